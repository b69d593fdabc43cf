//! The groups that a query selects.

use std::collections::BTreeSet;

use lazaret_core::QueueName;
use lazaret_core::query::{GroupPattern, Term};
use lazaret_core::store::GroupId;
use rusqlite::Connection;

use super::compile::ARMS_LIMIT;
use crate::error::Work;

/// The groups that a query selects, if it does and they are few.
pub(super) fn few_groups<'q>(
    mut required: impl Iterator<Item = &'q Term>,
    queues: &[(i64, QueueName)],
    connection: &Connection,
) -> Work<Option<Vec<i64>>> {
    let wanted = required.find_map(|term| if let Term::Group(any) = term { Some(any) } else { None });
    let Some(wanted) = wanted else { return Ok(None) };
    if let Some(ids) = complete(wanted) {
        return named_groups(&ids, queues, connection).map(few);
    }
    let mut select = connection.prepare_cached("SELECT gid, qid, fingerprint FROM groups")?;
    let mut rows = select.query([])?;
    let mut gids = Vec::new();
    while let Some(row) = rows.next()? {
        let (qid, fingerprint): (i64, String) = (row.get(1)?, row.get(2)?);
        let Ok(place) = queues.binary_search_by_key(&qid, |(qid, _)| *qid) else { continue };
        if wanted.iter().any(|pattern| pattern.matches(&fingerprint, &queues[place].1)) {
            gids.push(row.get(0)?);
        }
    }
    Ok(few(gids))
}

/// The groups, if there is an arm for each.
fn few(gids: Vec<i64>) -> Option<Vec<i64>> {
    Some(gids).filter(|gids| gids.len() <= ARMS_LIMIT)
}

/// The groups of these ids, each once.
fn named_groups(ids: &[GroupId], queues: &[(i64, QueueName)], connection: &Connection) -> Work<Vec<i64>> {
    let mut select =
        connection.prepare_cached("SELECT gid FROM groups WHERE qid = ?1 AND fingerprint = ?2")?;
    let mut gids = BTreeSet::new();
    for id in ids {
        let Some(qid) = qid_of(queues, &id.queue) else { continue };
        for gid in select.query_map((qid, id.fingerprint.to_string()), |row| row.get::<_, i64>(0))? {
            gids.insert(gid?);
        }
    }
    Ok(gids.into_iter().collect())
}

/// The groups of patterns that are all complete.
pub(super) fn complete(patterns: &[GroupPattern]) -> Option<Vec<GroupId>> {
    patterns.iter().map(GroupPattern::group).collect()
}

pub(super) fn qid_of(queues: &[(i64, QueueName)], name: &QueueName) -> Option<i64> {
    queues.iter().find(|(_, queue)| queue == name).map(|(qid, _)| *qid)
}
