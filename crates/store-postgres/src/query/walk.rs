//! Chooses the index by which the rows of a query are scanned.

use std::collections::BTreeSet;

use lazaret_core::LetterId;
use lazaret_core::message::{MessageId, QueueName};
use lazaret_core::query::{GroupPattern, Query, Term, Text, TextField};
use uuid::Uuid;

use super::compile::{Sql, complete, letter_id, named_groups, stored, value};
use crate::sequence_row::sequence_key;
use crate::store::Queue;

/// Maximum number of letters or sequences that are looked up by name instead of scanned.
const LIST_LIMIT: usize = 1000;
/// Maximum number of arms of a scan.
const ARMS_LIMIT: usize = 100;

/// Rows that a scan reads along one index.
#[derive(Clone, Debug)]
pub(super) struct Arm {
    /// The condition on the rows.
    rows: Sql,
    /// The queue of the rows, if they are all open letters of one.
    queue: Option<i64>,
}

impl Arm {
    /// The newest rows below this one.
    pub(super) fn page(&self, before: i64, most: i64) -> Sql {
        let Sql { text, parameters } = &self.rows;
        let page = match self.queue {
            // Only the index of open letters has this order. For an order by number alone, a server that takes closed letters for evenly
            // spread prefers the primary key, and reads all that were closed later than the open ones. A limit that it does not know
            // when it plans keeps it from reading all rows to sort them.
            Some(qid) => format!(
                "(SELECT l.lid FROM letters l WHERE {text} AND l.qid >= {qid} AND (l.qid, l.lid) < ({qid}, {before})
                 ORDER BY l.qid DESC, l.lid DESC LIMIT (SELECT {most}::bigint))"
            ),
            None => format!(
                "(SELECT l.lid FROM letters l WHERE {text} AND l.lid < {before} ORDER BY l.lid DESC LIMIT {most})"
            ),
        };
        Sql::new(page, parameters.clone())
    }
}

impl From<Sql> for Arm {
    fn from(rows: Sql) -> Self {
        Self { rows, queue: None }
    }
}

/// The most selective scan: each arm is a condition for which there is an index, and the rows of all arms together are scanned. No row is
/// in two arms. Without arms there are no rows. `groups` are those that the query can select, see [`Groups`].
pub(super) fn walk(query: &Query, queues: &[Queue], groups: &[(i64, String)]) -> Vec<Arm> {
    let required = || query.expr().required();
    let fits = |queue: &&Queue| required().all(|term| term.matches_queue(&queue.name) != Some(false));
    let wanted: Vec<&Queue> = queues.iter().filter(fits).collect();
    let exact = |wanted: TextField| required().find_map(|term| exact_texts(term, wanted));
    let few = |texts: &BTreeSet<&str>| texts.len().saturating_mul(wanted.len()) <= LIST_LIMIT;

    if let Some(texts) = exact(TextField::Id) {
        return by_id(texts.into_iter().filter_map(letter_id));
    }
    // The id of a letter is derived from its queue and its message, and that of an import as well.
    if let Some(texts) = exact(TextField::Message).filter(few) {
        let ids = |queue: &QueueName, message| {
            [LetterId::of(queue, &message), LetterId::of_import(queue, &message)]
        };
        let of = |text| wanted.iter().flat_map(move |queue| ids(&queue.name, MessageId::from(text)));
        return by_id(texts.into_iter().flat_map(of));
    }
    if query.is_about_open() {
        if let Some(texts) = exact(TextField::Sequence).filter(few) {
            let keys: Vec<Uuid> = texts.into_iter().map(|text| sequence_key(&text.into())).collect();
            let qids: Vec<i64> = wanted.iter().map(|queue| queue.qid).collect();
            let sids = "l.sid IN (SELECT sid FROM sequences WHERE qid = ANY(?) AND hash = ANY(?))";
            return vec![Sql::new(sids, vec![value(qids), value(keys)]).into()];
        }
        if let Some(groups) = groups_of(required(), queues, groups) {
            let arm = |(qid, group): &(i64, String)| {
                let Sql { text, mut parameters } = open_with("l.cause_group", group);
                parameters.push(value(*qid));
                Arm::from(Sql::new(format!("{text} AND l.qid = ?"), parameters))
            };
            return groups.into_iter().map(arm).collect();
        }
        for (field, column) in [(TextField::Reason, "l.reason"), (TextField::Type, "l.event_type")] {
            if let Some(texts) = exact(field).filter(|texts| texts.len() <= ARMS_LIMIT) {
                return texts.into_iter().map(|plain| Arm::from(open_with(column, plain))).collect();
            }
        }
        if wanted.len() <= ARMS_LIMIT {
            let open = || Sql::new("l.sid IS NOT NULL", Vec::new());
            let arm = |queue: &&Queue| Arm { rows: open(), queue: Some(queue.qid) };
            return wanted.iter().map(arm).collect();
        }
    }
    vec![Sql::new("true", Vec::new()).into()]
}

/// An open letter with this text in a column whose hash has an index. The text itself tells those with the same hash apart.
fn open_with(column: &str, plain: &str) -> Sql {
    let text = format!(
        "hashtextextended({column}, 0) = hashtextextended(?, 0) AND {column} = ? AND l.sid IS NOT NULL"
    );
    Sql::new(text, vec![value(stored(plain)), value(stored(plain))])
}

fn by_id(ids: impl Iterator<Item = LetterId>) -> Vec<Arm> {
    let ids: Vec<Uuid> = ids.map(|id| id.as_uuid()).collect();
    vec![Sql::new("l.id = ANY(?)", vec![value(ids)]).into()]
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

/// The groups that a query can select.
pub(super) enum Groups {
    /// These, whether they exist or not; none if the query names no group.
    Known(Vec<(i64, String)>),
    /// Some of all groups, which have to be read.
    AmongAll,
}

impl Groups {
    /// The groups that a query names.
    pub(super) fn of(query: &Query, queues: &[Queue]) -> Self {
        let named = query.expr().required().find_map(group_patterns);
        match named.map(complete) {
            None => Self::Known(Vec::new()),
            Some(Some(ids)) => {
                let each: BTreeSet<_> = named_groups(&ids, queues).collect();
                Self::Known(each.into_iter().collect())
            }
            Some(None) => Self::AmongAll,
        }
    }
}

fn group_patterns(term: &Term) -> Option<&[GroupPattern]> {
    if let Term::Group(any) = term { Some(any) } else { None }
}

/// The groups that a query selects, if it does and they are few.
fn groups_of<'q, 'g>(
    mut required: impl Iterator<Item = &'q Term>,
    queues: &[Queue],
    groups: &'g [(i64, String)],
) -> Option<Vec<&'g (i64, String)>> {
    let wanted = required.find_map(group_patterns)?;
    let fits = |group: &&(i64, String)| {
        let queue = queues.iter().find(|queue| queue.qid == group.0);
        queue.is_some_and(|queue| wanted.iter().any(|pattern| pattern.matches(&group.1, &queue.name)))
    };
    let found: Vec<_> = groups.iter().filter(fits).collect();
    Some(found).filter(|found| found.len() <= ARMS_LIMIT)
}
