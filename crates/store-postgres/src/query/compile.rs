//! Compiles a query to SQL: a condition on a row of `letters`.
//!
//! Every value is a parameter. The condition never rejects a letter that matches; if it may accept one that does not, it is not
//! `exact`, and the letter itself has to be matched.

use jiff::Timestamp;
use lazaret_core::LetterId;
use lazaret_core::query::{
    CountField, Expr, GroupPattern, Query, Term, Text, TextField, TimeBound, TimeField,
};
use lazaret_core::store::GroupId;
use tokio_postgres::types::ToSql;

use crate::store::Queue;
use crate::values::{nanos, state_number, text, time};

/// A parameter.
pub(super) type Value = std::sync::Arc<dyn ToSql + Send + Sync>;

pub(super) fn value<T: ToSql + Send + Sync + 'static>(value: T) -> Value {
    std::sync::Arc::new(value)
}

pub(super) fn stored(plain: &str) -> String {
    text(plain).into_owned()
}

/// A piece of SQL with a `?` for each of its parameters, in their order. The letter has the alias `l`.
#[derive(Clone, Debug)]
pub(super) struct Sql {
    pub(super) text: String,
    pub(super) parameters: Vec<Value>,
}

impl Sql {
    pub(super) fn new(text: impl Into<String>, parameters: Vec<Value>) -> Self {
        Self { text: text.into(), parameters }
    }

    /// The text with the numbers of its parameters.
    pub(super) fn numbered(&self) -> String {
        let mut numbered = String::with_capacity(self.text.len() + 2 * self.parameters.len());
        let mut parts = self.text.split('?');
        numbered.extend(parts.next());
        for (number, part) in (1..).zip(parts) {
            numbered.push_str(&format!("${number}"));
            numbered.push_str(part);
        }
        numbered
    }
}

/// A condition, as far as it is known without a row.
#[derive(Clone, Debug)]
pub(super) enum Part {
    Always,
    Never,
    Sometimes(Sql),
}

/// A condition on a row that holds for every letter that matches.
#[derive(Clone, Debug)]
pub(super) struct Condition {
    pub(super) part: Part,
    /// `true` if it holds for no other letter.
    pub(super) exact: bool,
}

impl Condition {
    /// Compiles the condition of a query.
    pub(super) fn of(query: &Query, queues: &[Queue], now: Timestamp) -> Self {
        let condition = Compiler { queues, now }.expr(query.expr(), false);
        let mut parts = vec![condition.part];
        if !query.names_state() {
            parts.push(Part::Sometimes(Sql::new("l.sid IS NOT NULL", Vec::new())));
        }
        if !query.is_about_open() {
            // Of a purged letter only the id and the state remain.
            let kept = "(l.sid IS NOT NULL OR l.closed_at IS NOT NULL)";
            parts.push(Part::Sometimes(Sql::new(kept, Vec::new())));
        }
        Self { part: join(parts, true), exact: condition.exact }
    }

    const fn exact(part: Part) -> Self {
        Self { part, exact: true }
    }

    const fn loose(part: Part) -> Self {
        Self { part, exact: false }
    }

    fn when(text: impl Into<String>, parameters: Vec<Value>) -> Self {
        Self::exact(Part::Sometimes(Sql::new(text, parameters)))
    }
}

struct Compiler<'q> {
    queues: &'q [Queue],
    now: Timestamp,
}

impl Compiler<'_> {
    fn expr(&self, expr: &Expr, negated: bool) -> Condition {
        match expr {
            Expr::All(parts) => self.list(parts, negated, !negated),
            Expr::Any(parts) => self.list(parts, negated, negated),
            Expr::Not(inner) => self.expr(inner, !negated),
            Expr::Term(term) => {
                let condition = self.term(term);
                match (negated, condition.exact) {
                    (false, _) => condition,
                    (true, true) => Condition::exact(not(condition.part)),
                    // A loose condition also accepts letters that do not match, so its negation is loose, too.
                    (true, false) => Condition::loose(Part::Always),
                }
            }
        }
    }

    fn list(&self, parts: &[Expr], negated: bool, all: bool) -> Condition {
        let conditions: Vec<Condition> = parts.iter().map(|part| self.expr(part, negated)).collect();
        let exact = conditions.iter().all(|condition| condition.exact);
        let part = join(conditions.into_iter().map(|condition| condition.part).collect(), all);
        Condition { part, exact }
    }

    fn term(&self, term: &Term) -> Condition {
        match term {
            Term::Text(TextField::Queue | TextField::Consumer, _) => {
                let fits = |queue: &&Queue| term.matches_queue(&queue.name).unwrap_or(false);
                let qids: Vec<i64> = self.queues.iter().filter(fits).map(|queue| queue.qid).collect();
                if qids.is_empty() {
                    return Condition::exact(Part::Never);
                }
                Condition::when("l.qid = ANY(?)", vec![value(qids)])
            }
            Term::Text(TextField::Id, any) => id(any),
            Term::Text(TextField::Stream, any) => column("l.stream", any),
            Term::Text(TextField::Type, any) => column("l.event_type", any),
            Term::Text(TextField::Reason, any) => column("l.reason", any),
            Term::Text(TextField::Sequence, any) => column("l.sequence", any),
            Term::Text(TextField::Message, any) => column("l.message", any),
            Term::State(states) => {
                let numbers: Vec<i16> = states.iter().map(|state| state_number(*state)).collect();
                Condition::when("l.state = ANY(?)", vec![value(numbers)])
            }
            Term::Count(field, any) => {
                let column = match field {
                    CountField::Attempts => "l.attempts",
                    CountField::Crashes => "l.crash_attempts",
                    CountField::Replays => "l.replay_attempts",
                };
                let each = any.iter().map(|comparison| {
                    let text = format!("{column} {} ?", comparison.operator().as_str());
                    Part::Sometimes(Sql::new(text, vec![value(i64::from(comparison.bound()))]))
                });
                Condition::exact(join(each.collect(), false))
            }
            Term::Time(field, any) => self.time(*field, any),
            Term::Poison(any) if any.len() > 1 => Condition::exact(Part::Always),
            Term::Poison(any) => Condition::when("l.poison = ?", vec![value(any.contains(&true))]),
            Term::Group(any) => match complete(any) {
                Some(ids) => self.groups(&ids),
                None => with_cause(),
            },
            Term::Error(_) | Term::Text(TextField::Phase, _) => with_cause(),
            Term::Text(TextField::Key | TextField::Owner | TextField::Assignee, _)
            | Term::Payload { .. }
            | Term::Header { .. }
            | Term::Free(_) => Condition::loose(Part::Always),
        }
    }

    /// The letters of these groups: a row names the group of its cause.
    fn groups(&self, ids: &[GroupId]) -> Condition {
        let each = named_groups(ids, self.queues).map(|(qid, group)| {
            let text = "coalesce(l.qid = ? AND l.cause_group = ?, false)";
            Part::Sometimes(Sql::new(text, vec![value(qid), value(group)]))
        });
        Condition::exact(join(each.collect(), false))
    }

    fn time(&self, field: TimeField, any: &[TimeBound]) -> Condition {
        let column = match field {
            TimeField::Age | TimeField::Enqueued => "l.enqueued_at",
            TimeField::Failed => "l.last_failed_at",
            TimeField::Due => "l.due_at",
        };
        let bounds: Vec<_> = any.iter().map(|bound| bound.on_time(field, self.now)).collect();
        // Times outside of the range of the table are all equal.
        if bounds.iter().any(|(_, bound)| time(nanos(*bound)) != *bound) {
            return Condition::loose(Part::Always);
        }
        let each = bounds.into_iter().map(|(operator, bound)| {
            let text = format!("coalesce({column} {} ?, false)", operator.as_str());
            Part::Sometimes(Sql::new(text, vec![value(nanos(bound))]))
        });
        Condition::exact(join(each.collect(), false))
    }
}

/// The rows with a cause: without one there is no reason in the row.
fn with_cause() -> Condition {
    Condition::loose(Part::Sometimes(Sql::new("l.reason IS NOT NULL", Vec::new())))
}

/// A condition on a column with text, which may be missing.
fn column(column: &str, any: &[Text]) -> Condition {
    let (mut exact, mut values, mut parts) = (true, Vec::new(), Vec::new());
    for text in any {
        match text {
            Text::Exact(text) => values.push(stored(text)),
            Text::Glob(glob) => {
                let (prefix, rest) = glob.as_str().split_once('*').unwrap_or((glob.as_str(), ""));
                exact &= rest.bytes().all(|b| b == b'*');
                let text = format!("coalesce(starts_with({column}, ?), false)");
                parts.push(Part::Sometimes(Sql::new(text, vec![value(stored(prefix))])));
            }
        }
    }
    if !values.is_empty() {
        let text = format!("coalesce({column} = ANY(?), false)");
        parts.push(Part::Sometimes(Sql::new(text, vec![value(values)])));
    }
    Condition { part: join(parts, false), exact }
}

fn id(any: &[Text]) -> Condition {
    let (mut exact, mut ids, mut parts) = (true, Vec::new(), Vec::new());
    for text in any {
        match text {
            Text::Exact(text) => ids.extend(letter_id(text).map(|id| id.as_uuid())),
            Text::Glob(glob) => {
                exact = false;
                let prefix: String = glob.as_str().chars().take_while(|c| *c != '*').collect();
                let text = "starts_with(l.id::text, ?)";
                parts.push(Part::Sometimes(Sql::new(text, vec![value(stored(&prefix))])));
            }
        }
    }
    if !ids.is_empty() {
        parts.push(Part::Sometimes(Sql::new("l.id = ANY(?)", vec![value(ids)])));
    }
    Condition { part: join(parts, false), exact }
}

/// The letter id with exactly this text.
pub(super) fn letter_id(text: &str) -> Option<LetterId> {
    text.parse().ok().filter(|id: &LetterId| id.to_string() == text)
}

fn not(part: Part) -> Part {
    match part {
        Part::Always => Part::Never,
        Part::Never => Part::Always,
        Part::Sometimes(sql) => Part::Sometimes(Sql::new(format!("NOT ({})", sql.text), sql.parameters)),
    }
}

/// All of these, or any of them.
fn join(parts: Vec<Part>, all: bool) -> Part {
    let (mut texts, mut parameters) = (Vec::new(), Vec::new());
    for part in parts {
        match (part, all) {
            (Part::Always, true) | (Part::Never, false) => {}
            (Part::Never, true) => return Part::Never,
            (Part::Always, false) => return Part::Always,
            (Part::Sometimes(sql), _) => {
                texts.push(sql.text);
                parameters.extend(sql.parameters);
            }
        }
    }
    match (texts.len(), all) {
        (0, true) => Part::Always,
        (0, false) => Part::Never,
        _ => Part::Sometimes(Sql::new(
            format!("({})", texts.join(if all { " AND " } else { " OR " })),
            parameters,
        )),
    }
}

/// The groups of patterns that are all complete.
pub(super) fn complete(patterns: &[GroupPattern]) -> Option<Vec<GroupId>> {
    patterns.iter().map(GroupPattern::group).collect()
}

/// The queue and the fingerprint of each of these groups. A queue that is not known has no letters.
pub(super) fn named_groups<'a>(
    ids: &'a [GroupId],
    queues: &'a [Queue],
) -> impl Iterator<Item = (i64, String)> + 'a {
    ids.iter().filter_map(move |id| {
        let queue = queues.iter().find(|queue| queue.name == id.queue)?;
        Some((queue.qid, id.fingerprint.to_string()))
    })
}
