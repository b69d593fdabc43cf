//! Compiles a query to a filter of the server.
//!
//! The filter never leaves out a letter that matches; if it may let one through that does not, it is not `exact`, and the letter itself has to be
//! matched.

use bson::{Bson, Document, doc};
use lazaret_core::letter::LetterId;
use lazaret_core::policy::Operator;
use lazaret_core::query::{
    CountField, Expr, GroupPattern, Query, Term, Text, TextField, TimeBound, TimeField,
};
use lazaret_core::{QueueName, Timestamp};

use crate::values::{nanos, time};

/// A condition, as far as it is known without a letter.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    Always,
    Never,
    Sometimes(Document),
}

/// A condition on the document of a letter that holds for every letter that matches.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Condition {
    pub(super) part: Part,
    /// `true` if it holds for no other letter.
    pub(super) exact: bool,
}

impl Condition {
    /// Compiles a query, but for the terms that have to hold and are decided otherwise.
    pub(super) fn of(
        query: &Query,
        queues: &[QueueName],
        now: Timestamp,
        is_decided: &dyn Fn(&Term) -> bool,
    ) -> Self {
        let parts = match query.expr() {
            Expr::All(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        let compiler = Compiler { queues, now };
        let left = parts.iter().filter(|part| !matches!(part, Expr::Term(term) if is_decided(term)));
        Self::all(left.map(|part| compiler.expr(part, false)).collect())
    }

    const fn exact(part: Part) -> Self {
        Self { part, exact: true }
    }

    const fn loose(part: Part) -> Self {
        Self { part, exact: false }
    }

    fn when(condition: Document) -> Self {
        Self::exact(Part::Sometimes(condition))
    }

    fn all(conditions: Vec<Self>) -> Self {
        Self::join(conditions, "$and")
    }

    fn any(conditions: Vec<Self>) -> Self {
        Self::join(conditions, "$or")
    }

    fn join(conditions: Vec<Self>, how: &str) -> Self {
        let exact = conditions.iter().all(|condition| condition.exact);
        let (nothing, everything) =
            if how == "$and" { (Part::Always, Part::Never) } else { (Part::Never, Part::Always) };
        let mut documents = Vec::new();
        for Self { part, .. } in conditions {
            match part {
                part if part == nothing => {}
                Part::Sometimes(document) => documents.push(document),
                _ => return Self { part: everything, exact },
            }
        }
        let part = match documents.len() {
            0 => nothing,
            1 => Part::Sometimes(documents.remove(0)),
            _ => Part::Sometimes(doc! { how: documents }),
        };
        Self { part, exact }
    }
}

struct Compiler<'q> {
    queues: &'q [QueueName],
    now: Timestamp,
}

impl Compiler<'_> {
    fn expr(&self, expr: &Expr, negated: bool) -> Condition {
        let each = |parts: &[Expr]| parts.iter().map(|part| self.expr(part, negated)).collect();
        match expr {
            Expr::All(parts) if negated => Condition::any(each(parts)),
            Expr::Any(parts) if negated => Condition::all(each(parts)),
            Expr::All(parts) => Condition::all(each(parts)),
            Expr::Any(parts) => Condition::any(each(parts)),
            Expr::Not(inner) => self.expr(inner, !negated),
            Expr::Term(term) => {
                let condition = self.term(term);
                match (negated, condition.exact) {
                    (false, _) => condition,
                    (true, true) => Condition::exact(not(condition.part)),
                    // It also lets letters through that do not match, so nothing is known about those that it leaves out.
                    (true, false) => Condition::loose(Part::Always),
                }
            }
        }
    }

    fn term(&self, term: &Term) -> Condition {
        match term {
            Term::Text(TextField::Queue | TextField::Consumer, _) => {
                let fits = |queue: &&QueueName| term.matches_queue(queue).unwrap_or(false);
                let names: Vec<&str> = self.queues.iter().filter(fits).map(|queue| queue.as_str()).collect();
                if names.is_empty() {
                    return Condition::exact(Part::Never);
                }
                Condition::when(doc! { "lazaret.queue": { "$in": names } })
            }
            Term::Text(TextField::Id, any) => id(any),
            Term::Text(TextField::Stream, any) => text("lazaret.stream", any),
            Term::Text(TextField::Sequence, any) => text("lazaret.sequence", any),
            Term::Text(TextField::Type, any) => of_message(text("lazaret.message.event_type", any)),
            Term::Text(TextField::Message, any) => of_message(text("lazaret.message.id", any)),
            Term::Text(TextField::Reason, any) => of_details(text("lazaret.details.cause.reason", any)),
            Term::Text(TextField::Owner, any) => of_details(text("lazaret.details.owner", any)),
            Term::Text(TextField::Assignee, any) => of_details(text("lazaret.details.assignee", any)),
            Term::State(states) => {
                let states: Vec<&str> = states.iter().map(|state| state.as_str()).collect();
                Condition::when(doc! { "lazaret.state": { "$in": states } })
            }
            Term::Count(field, any) => {
                let field = match field {
                    CountField::Attempts => "lazaret.attempts",
                    CountField::Crashes => "lazaret.crashAttempts",
                    CountField::Replays => "lazaret.replayAttempts",
                };
                let each = any
                    .iter()
                    .map(|comparison| compared(field, comparison.operator(), i64::from(comparison.bound())));
                Condition::any(each.collect())
            }
            Term::Time(field, any) => self.time(*field, any),
            Term::Poison(any) if any.len() > 1 => Condition::exact(Part::Always),
            Term::Poison(any) => Condition::when(doc! { "lazaret.poison": any.contains(&true) }),
            Term::Group(any) => Condition::any(any.iter().map(group).collect()),
            // A letter with a cause has its group.
            Term::Error(_) | Term::Text(TextField::Phase, _) => {
                Condition::loose(Part::Sometimes(doc! { "lazaret.group": { "$ne": null } }))
            }
            Term::Text(TextField::Key, _) | Term::Payload { .. } | Term::Header { .. } | Term::Free(_) => {
                Condition::loose(Part::Always)
            }
        }
    }

    fn time(&self, field: TimeField, any: &[TimeBound]) -> Condition {
        let name = match field {
            TimeField::Age | TimeField::Enqueued => "lazaret.enqueued",
            TimeField::Failed => "lazaret.lastFailed",
            TimeField::Due => "lazaret.due",
        };
        let bounds: Vec<_> = any.iter().map(|bound| bound.on_time(field, self.now)).collect();
        // Times that the documents cannot hold are all equal.
        if bounds.iter().any(|(_, bound)| time(nanos(*bound)) != *bound) {
            return Condition::loose(Part::Always);
        }
        let each = bounds.into_iter().map(|(operator, bound)| compared(name, operator, nanos(bound)));
        Condition::any(each.collect())
    }
}

fn not(part: Part) -> Part {
    match part {
        Part::Always => Part::Never,
        Part::Never => Part::Always,
        Part::Sometimes(condition) => Part::Sometimes(doc! { "$nor": [condition] }),
    }
}

/// A number in a field. One that is missing meets no condition.
fn compared(field: &str, operator: Operator, bound: i64) -> Condition {
    let operator = match operator {
        Operator::AtLeast => "$gte",
        Operator::Above => "$gt",
        Operator::AtMost => "$lte",
        Operator::Below => "$lt",
        Operator::Equal => "$eq",
    };
    Condition::when(doc! { field: { operator: bound } })
}

/// A text in a field. One that is missing meets no condition.
fn text(field: &str, any: &[Text]) -> Condition {
    let (mut values, mut conditions) = (Vec::new(), Vec::new());
    for text in any {
        match text {
            Text::Exact(text) => values.push(Bson::from(text.as_str())),
            Text::Glob(glob) => conditions.push(beginning(field, glob.as_str())),
        }
    }
    if !values.is_empty() {
        conditions.push(Condition::when(doc! { field: { "$in": values } }));
    }
    Condition::any(conditions)
}

/// A text that matches a pattern, as far as the beginning of the pattern tells.
fn beginning(field: &str, pattern: &str) -> Condition {
    let (prefix, rest) = pattern.split_once('*').unwrap_or((pattern, ""));
    let exact = pattern.contains('*') && rest.bytes().all(|byte| byte == b'*');
    let is_there = doc! { field: { "$ne": null } };
    // The text of an expression ends at a zero byte.
    if prefix.is_empty() || prefix.contains('\0') {
        return Condition { part: Part::Sometimes(is_there), exact: exact && prefix.is_empty() };
    }
    let mut expression = String::from("^");
    for character in prefix.chars() {
        if character.is_ascii() && !character.is_ascii_alphanumeric() {
            expression.push('\\');
        }
        expression.push(character);
    }
    Condition { part: Part::Sometimes(doc! { field: { "$regex": expression } }), exact }
}

/// A condition on a part of the message, which is not in the document if the message is kept in chunks.
fn of_message(condition: Condition) -> Condition {
    or_there("lazaret.messageChunks", condition)
}

/// A condition on a part of the details.
fn of_details(condition: Condition) -> Condition {
    or_there("lazaret.detailsChunks", condition)
}

fn or_there(chunks: &str, condition: Condition) -> Condition {
    let Condition { part, .. } =
        Condition::any(vec![condition, Condition::when(doc! { chunks: { "$ne": null } })]);
    Condition::loose(part)
}

/// A letter id, or a pattern for one.
fn id(any: &[Text]) -> Condition {
    let is_id = |text: &&Text| match text {
        Text::Exact(text) => letter_id(text).is_some(),
        Text::Glob(_) => true,
    };
    let any: Vec<Text> = any.iter().filter(is_id).cloned().collect();
    text("_id", &any)
}

/// The letter id with exactly this text.
pub(super) fn letter_id(text: &str) -> Option<LetterId> {
    text.parse().ok().filter(|id: &LetterId| id.to_string() == text)
}

fn group(pattern: &GroupPattern) -> Condition {
    if let Some(id) = pattern.group() {
        let group = doc! { "lazaret.queue": id.queue.as_str(), "lazaret.group": id.fingerprint.to_string() };
        return Condition::when(group);
    }
    let group = match pattern.version {
        Some(version) => doc! { "$regex": format!("^g{version}_{}", pattern.digits) },
        None => doc! { "$ne": null },
    };
    let mut condition = doc! { "lazaret.group": group };
    if let Some(queue) = &pattern.queue {
        condition.insert("lazaret.queue", queue.as_str());
    }
    Condition::loose(Part::Sometimes(condition))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(text: &str) -> Condition {
        let queues: [QueueName; 2] = ["a/b".into(), "c/d".into()];
        let now = time(5_000_000_000);
        Condition::of(&Query::parse(text).unwrap(), &queues, now, &|_| false)
    }

    fn exactly(text: &str, condition: Document) {
        assert_eq!(compiled(text), Condition::when(condition), "{text:?}");
    }

    #[test]
    fn what_the_documents_hold_is_decided_by_the_server() {
        exactly("queue:a", doc! { "lazaret.queue": { "$in": ["a/b"] } });
        exactly("seq:k", doc! { "lazaret.sequence": { "$in": ["k"] } });
        exactly("stream:ord*", doc! { "lazaret.stream": { "$regex": "^ord" } });
        exactly("attempts:>=3", doc! { "lazaret.attempts": { "$gte": 3_i64 } });
        exactly("age:>3s", doc! { "lazaret.enqueued": { "$lt": 2_000_000_000_i64 } });
        exactly("-seq:k", doc! { "$nor": [{ "lazaret.sequence": { "$in": ["k"] } }] });
        let group = doc! { "lazaret.queue": "a/b", "lazaret.group": "g1_0123456789abcdef" };
        exactly("group:g1_0123456789abcdef@a/b", group);
        assert_eq!(compiled(""), Condition::exact(Part::Always));
        assert_eq!(compiled("queue:none"), Condition::exact(Part::Never));
        assert_eq!(compiled("-queue:none"), Condition::exact(Part::Always));
    }

    #[test]
    fn a_letter_whose_parts_are_in_chunks_is_never_left_out() {
        let by_type = doc! { "lazaret.message.event_type": { "$in": ["x"] } };
        let chunks = doc! { "lazaret.messageChunks": { "$ne": null } };
        let expected = Condition::loose(Part::Sometimes(doc! { "$or": [by_type, chunks] }));
        assert_eq!(compiled("type:x"), expected);
        assert_eq!(compiled("-type:x"), Condition::loose(Part::Always));
        assert_eq!(compiled("-(type:x or seq:k)").part, compiled("-seq:k").part);
        assert_eq!(compiled("type:x or boom"), Condition::loose(Part::Always));
    }

    #[test]
    fn content_that_the_server_cannot_read_is_left_to_the_query() {
        for text in ["boom", "key:k", "payload./a:1", "header.tenant:x", "-boom", "boom or seq:k"] {
            assert_eq!(compiled(text), Condition::loose(Part::Always), "{text:?}");
        }
        let with_cause = doc! { "lazaret.group": { "$ne": null } };
        assert_eq!(compiled("error:boom"), Condition::loose(Part::Sometimes(with_cause)));
        assert!(!compiled("error:boom seq:k").exact, "one part is not exact");
    }

    #[test]
    fn the_beginning_of_a_pattern_is_taken_literally() {
        let of = |pattern: &str| beginning("f", pattern);
        assert_eq!(of("a.b*"), Condition::when(doc! { "f": { "$regex": "^a\\.b" } }));
        assert_eq!(of("a*b"), Condition::loose(Part::Sometimes(doc! { "f": { "$regex": "^a" } })));
        assert_eq!(of("é-*"), Condition::when(doc! { "f": { "$regex": "^é\\-" } }));
        assert_eq!(of("*"), Condition::when(doc! { "f": { "$ne": null } }));
        assert_eq!(of("a\0*"), Condition::loose(Part::Sometimes(doc! { "f": { "$ne": null } })));
    }

    #[test]
    fn a_time_that_no_document_holds_is_left_to_the_query() {
        assert_eq!(compiled("enqueued:<1600-01-01"), Condition::loose(Part::Always));
    }
}
