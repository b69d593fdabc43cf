//! Compiles a query to SQL: a condition on a row of `letters`, and the most selective index for a scan.
//!
//! Every value is a bound parameter. The condition never rejects a letter that matches; if it may
//! accept one that does not, it is not `exact`, and the letter itself has to be matched.

use std::collections::BTreeSet;

use jiff::Timestamp;
use lazaret_core::LetterId;
use lazaret_core::message::{MessageId, QueueName};
use lazaret_core::query::{CountField, Expr, Query, Term, Text, TextField, TimeBound, TimeField};
use lazaret_core::store::GroupId;
use rusqlite::Connection;
use rusqlite::types::Value;

use super::groups::{complete, few_groups, qid_of};
use crate::error::Work;
use crate::rows::{id_bytes, nanos, time};

/// Maximum number of letters or sequences that are looked up by name instead of scanned.
const LIST_LIMIT: usize = 1000;
/// Maximum number of arms of a scan. SQLite's limit is 500.
pub(super) const ARMS_LIMIT: usize = 200;

/// A piece of SQL and its parameters, in their order.
#[derive(Clone, Debug)]
pub(super) struct Sql {
    pub(super) text: String,
    pub(super) parameters: Vec<Value>,
}

impl Sql {
    fn new(text: impl Into<String>, parameters: Vec<Value>) -> Self {
        Self { text: text.into(), parameters }
    }

    /// `column IN (…)`.
    fn list(column: &str, values: Vec<Value>) -> Self {
        let marks = vec!["?"; values.len()].join(", ");
        Self::new(format!("{column} IN ({marks})"), values)
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
    pub(super) fn of(query: &Query, queues: &[(i64, QueueName)], now: Timestamp) -> Self {
        let condition = Compiler { queues, now }.expr(query.expr(), false);
        let mut parts = vec![condition.part];
        if !query.names_state() {
            parts.push(Part::Sometimes(Sql::new("sid IS NOT NULL", Vec::new())));
        }
        if !query.is_about_open() {
            // A purged letter has no payload row.
            let kept = "EXISTS (SELECT 1 FROM payloads WHERE payloads.lid = letters.lid)";
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
    queues: &'q [(i64, QueueName)],
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
                let fits = |name: &QueueName| term.matches_queue(name).unwrap_or(false);
                let qids: Vec<String> = self
                    .queues
                    .iter()
                    .filter(|(_, name)| fits(name))
                    .map(|(qid, _)| qid.to_string())
                    .collect();
                if qids.is_empty() {
                    return Condition::exact(Part::Never);
                }
                // One parameter, however many queues there are.
                let list = format!("[{}]", qids.join(","));
                Condition::when("qid IN (SELECT value FROM json_each(?))", vec![list.into()])
            }
            Term::Text(TextField::Id, any) => id(any),
            Term::Text(TextField::Stream, any) => column("stream", any),
            Term::Text(TextField::Type, any) => column("event_type", any),
            Term::Text(TextField::Reason, any) => column("reason", any),
            Term::Text(TextField::Sequence, any) => column("sequence", any),
            Term::Text(TextField::Message, any) => column("message", any),
            Term::State(states) => {
                let numbers = states.iter().map(|state| Value::from(*state as i64)).collect();
                Condition::exact(Part::Sometimes(Sql::list("state", numbers)))
            }
            Term::Count(field, any) => {
                let column = match field {
                    CountField::Attempts => "attempts",
                    CountField::Crashes => "crash_attempts",
                    CountField::Replays => "replay_attempts",
                };
                let each = any.iter().map(|comparison| {
                    let text = format!("{column} {} ?", comparison.operator().as_str());
                    Part::Sometimes(Sql::new(text, vec![comparison.bound().into()]))
                });
                Condition::exact(join(each.collect(), false))
            }
            Term::Time(field, any) => self.time(*field, any),
            Term::Poison(any) if any.len() > 1 => Condition::exact(Part::Always),
            Term::Poison(any) => Condition::when("poison = ?", vec![any.contains(&true).into()]),
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
        let each = ids.iter().filter_map(|id| {
            let text =
                "coalesce(gid = (SELECT g.gid FROM groups g WHERE g.qid = ? AND g.fingerprint = ?), 0)";
            let qid = qid_of(self.queues, &id.queue)?;
            Some(Part::Sometimes(Sql::new(text, vec![qid.into(), id.fingerprint.to_string().into()])))
        });
        Condition::exact(join(each.collect(), false))
    }

    fn time(&self, field: TimeField, any: &[TimeBound]) -> Condition {
        let column = match field {
            TimeField::Age | TimeField::Enqueued => "enqueued_at",
            TimeField::Failed => "last_failed_at",
            TimeField::Due => "due_at",
        };
        let bounds: Vec<_> = any.iter().map(|bound| bound.on_time(field, self.now)).collect();
        // Times outside of the range of the file are all equal.
        if bounds.iter().any(|(_, bound)| time(nanos(*bound)) != *bound) {
            return Condition::loose(Part::Always);
        }
        let each = bounds.into_iter().map(|(operator, bound)| {
            let text = format!("coalesce({column} {} ?, 0)", operator.as_str());
            Part::Sometimes(Sql::new(text, vec![nanos(bound).into()]))
        });
        Condition::exact(join(each.collect(), false))
    }
}

/// The rows with a cause: without one there is no reason in the row.
fn with_cause() -> Condition {
    Condition::loose(Part::Sometimes(Sql::new("reason IS NOT NULL", Vec::new())))
}

/// A condition on a column with text, which may be missing.
fn column(column: &str, any: &[Text]) -> Condition {
    let mut exact = true;
    let mut values = Vec::new();
    let mut parts = Vec::new();
    for text in any {
        match text {
            Text::Exact(text) => values.push(Value::from(text.clone())),
            Text::Glob(glob) => {
                // SQLite's own GLOB ends a text at the first NUL. A range does not, and can use an index.
                let (prefix, rest) = glob.as_str().split_once('*').unwrap_or((glob.as_str(), ""));
                exact &= rest.bytes().all(|b| b == b'*');
                parts.push(Part::Sometimes(starts_with(column, prefix)));
            }
        }
    }
    if !values.is_empty() {
        let Sql { text, parameters } = Sql::list(column, values);
        parts.push(Part::Sometimes(Sql::new(format!("coalesce({text}, 0)"), parameters)));
    }
    Condition { part: join(parts, false), exact }
}

/// The rows whose column starts with this text.
fn starts_with(column: &str, prefix: &str) -> Sql {
    match (prefix, successor(prefix)) {
        ("", _) => Sql::new(format!("{column} IS NOT NULL"), Vec::new()),
        (_, None) => Sql::new(format!("coalesce({column} >= ?, 0)"), vec![prefix.to_owned().into()]),
        (_, Some(end)) => {
            let text = format!("coalesce({column} >= ? AND {column} < ?, 0)");
            Sql::new(text, vec![prefix.to_owned().into(), end.into()])
        }
    }
}

/// The first text after all those with this prefix. The order of bytes is the order of characters.
fn successor(prefix: &str) -> Option<String> {
    let mut end: Vec<char> = prefix.chars().collect();
    while let Some(last) = end.pop() {
        // Between U+D7FF and U+E000 there are no characters.
        let next = if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(u32::from(last) + 1) };
        if let Some(next) = next {
            end.push(next);
            return Some(end.into_iter().collect());
        }
    }
    None
}

fn id(any: &[Text]) -> Condition {
    let mut exact = true;
    let mut ids = Vec::new();
    let mut parts = Vec::new();
    for text in any {
        match text {
            Text::Exact(text) => ids.extend(letter_id(text).map(|id| Value::from(id_bytes(id).to_vec()))),
            Text::Glob(glob) => {
                exact = false;
                let prefix: Vec<u8> =
                    glob.as_str().bytes().take_while(|b| *b != b'*').filter(|b| *b != b'-').collect();
                parts.push(id_prefix(&prefix));
            }
        }
    }
    if !ids.is_empty() {
        parts.push(Part::Sometimes(Sql::list("id", ids)));
    }
    Condition { part: join(parts, false), exact }
}

/// The rows whose id starts with these hexadecimal digits, approximately.
fn id_prefix(digits: &[u8]) -> Part {
    let nibble = |digit: &u8| char::from(*digit).to_digit(16).and_then(|nibble| u8::try_from(nibble).ok());
    let bytes: Option<Vec<u8>> =
        digits.chunks_exact(2).map(|pair| Some(nibble(&pair[0])? << 4 | nibble(&pair[1])?)).collect();
    match bytes {
        // A character that no id contains.
        None => Part::Never,
        Some(bytes) if bytes.is_empty() => Part::Always,
        Some(bytes) => {
            let mut end = bytes.clone();
            end.resize(17, 0xff);
            Part::Sometimes(Sql::new("(id >= ? AND id < ?)", vec![bytes.into(), end.into()]))
        }
    }
}

/// The letter id with exactly this text.
fn letter_id(text: &str) -> Option<LetterId> {
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
    let mut conditions = Vec::new();
    for part in parts {
        match (part, all) {
            (Part::Always, true) | (Part::Never, false) => {}
            (Part::Never, true) => return Part::Never,
            (Part::Always, false) => return Part::Always,
            (Part::Sometimes(sql), _) => conditions.push(sql),
        }
    }
    match balanced(conditions, if all { " AND " } else { " OR " }) {
        Some(sql) => Part::Sometimes(sql),
        None if all => Part::Always,
        None => Part::Never,
    }
}

/// Joins the conditions in brackets as a balanced tree: SQLite limits the depth of an expression.
fn balanced(mut conditions: Vec<Sql>, between: &str) -> Option<Sql> {
    if conditions.len() < 2 {
        return conditions.pop();
    }
    let right = balanced(conditions.split_off(conditions.len() / 2), between)?;
    let mut left = balanced(conditions, between)?;
    left.text = format!("({}{between}{})", left.text, right.text);
    left.parameters.extend(right.parameters);
    Some(left)
}

/// The most selective scan: each arm is the text after `FROM letters`, and the rows of all arms
/// together are scanned. No row is in two arms. Without arms there are no rows.
pub(super) fn walk(query: &Query, queues: &[(i64, QueueName)], connection: &Connection) -> Work<Vec<Sql>> {
    let required = || query.expr().required();
    let wanted: Vec<&(i64, QueueName)> = queues
        .iter()
        .filter(|(_, name)| required().all(|term| term.matches_queue(name) != Some(false)))
        .collect();
    let exact = |wanted: TextField| required().find_map(|term| exact_texts(term, wanted));
    let few = |texts: &BTreeSet<&str>| texts.len().saturating_mul(wanted.len()) <= LIST_LIMIT;

    if let Some(texts) = exact(TextField::Id) {
        return Ok(by_id(texts.into_iter().filter_map(letter_id)));
    }
    // The id of a letter is derived from its queue and its message, and that of an import as well.
    if let Some(texts) = exact(TextField::Message).filter(few) {
        let ids = |queue, message| [LetterId::of(queue, &message), LetterId::of_import(queue, &message)];
        let of = |text| wanted.iter().flat_map(move |(_, queue)| ids(queue, MessageId::from(text)));
        return Ok(by_id(texts.into_iter().flat_map(of)));
    }
    if query.is_about_open() {
        if let Some(texts) = exact(TextField::Sequence).filter(few) {
            let sids = open_sequences(connection, &wanted, &texts)?;
            return Ok(in_one_arm("letters_place", "sid", sids));
        }
        if let Some(gids) = few_groups(required(), queues, connection)? {
            return Ok(an_arm_each("letters_group", "gid", gids.into_iter().map(Value::from)));
        }
        let columns = [
            (TextField::Reason, "letters_reason", "reason"),
            (TextField::Type, "letters_type", "event_type"),
        ];
        for (field, index, column) in columns {
            if let Some(texts) = exact(field).filter(|texts| texts.len() <= ARMS_LIMIT) {
                return Ok(an_arm_each(index, column, texts.into_iter().map(|text| text.to_owned().into())));
            }
        }
        if wanted.len() <= ARMS_LIMIT {
            let qids = wanted.iter().map(|(qid, _)| Value::from(*qid));
            return Ok(an_arm_each("letters_oldest", "qid", qids));
        }
    }
    Ok(vec![Sql::new("WHERE 1", Vec::new())])
}

// The index is named explicitly, so that the query plan is deterministic.

/// Rows by the values of a column whose index has another order. They are sorted, so they should be few.
fn in_one_arm(index: &str, column: &str, values: Vec<Value>) -> Vec<Sql> {
    if values.is_empty() {
        return Vec::new();
    }
    let Sql { text, parameters } = Sql::list(column, values);
    vec![Sql::new(format!("INDEXED BY {index} WHERE {text}"), parameters)]
}

/// Open letters by the values of a column whose index has the order of the scan.
fn an_arm_each(index: &str, column: &str, values: impl Iterator<Item = Value>) -> Vec<Sql> {
    let text = format!("INDEXED BY {index} WHERE {column} = ? AND sid IS NOT NULL");
    values.map(|value| Sql::new(text.clone(), vec![value])).collect()
}

fn by_id(ids: impl Iterator<Item = LetterId>) -> Vec<Sql> {
    in_one_arm("letters_id", "id", ids.map(|id| Value::from(id_bytes(id).to_vec())).collect())
}

/// The texts of a term for this field, if none of them is a pattern.
fn exact_texts(term: &Term, wanted: TextField) -> Option<BTreeSet<&str>> {
    let Term::Text(field, any) = term else { return None };
    if *field != wanted {
        return None;
    }
    any.iter()
        .map(|text| match text {
            Text::Exact(exact) => Some(exact.as_str()),
            Text::Glob(_) => None,
        })
        .collect()
}

fn open_sequences(
    connection: &Connection,
    queues: &[&(i64, QueueName)],
    names: &BTreeSet<&str>,
) -> Work<Vec<Value>> {
    let mut select = connection.prepare_cached("SELECT sid FROM sequences WHERE qid = ?1 AND name = ?2")?;
    let mut found = Vec::new();
    for (qid, _) in queues {
        for name in names {
            for sid in select.query_map((qid, name), |row| row.get::<_, i64>(0))? {
                found.push(sid?.into());
            }
        }
    }
    Ok(found)
}
