//! Lists of groups and of queues.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use lazaret_core::store::rules::{EXPIRIES_OF_GROUP, EXPIRIES_OF_QUEUE, GroupExpiry, NextExpiries};
use lazaret_core::store::{ErrorKind, Group, GroupId, GroupsPage, GroupsRequest, QueueSummary, StoreError};
use lazaret_core::{LetterState, QueueName, Timestamp};
use rusqlite::{Connection, OptionalExtension};

use super::listing::Listing;
use crate::error::Work;
use crate::rows::{bound, first, limit as rows_of, state, time};
use crate::write_cache::groups::{CachedGroup, read_group, select_group};
use crate::write_cache::is_used;

pub(crate) const OF_ALL: &str =
    select_group!("WHERE (open, gid) < (?1, ?2) AND open >= ?3 ORDER BY open DESC, gid DESC LIMIT ?4");
pub(crate) const OF_QUEUE: &str = select_group!(
    "WHERE (open, gid) < (?1, ?2) AND open >= ?3 AND qid = ?5 ORDER BY open DESC, gid DESC LIMIT ?4"
);
/// Row numbers follow the order of arrival, so the oldest letter has the lowest one.
pub(crate) const OLDEST_OF_GROUP: &str =
    "SELECT enqueued_at FROM letters WHERE gid = ?1 AND sid IS NOT NULL ORDER BY lid LIMIT 1";
pub(crate) const OLDEST_OF_QUEUE: &str =
    "SELECT enqueued_at FROM letters WHERE qid = ?1 AND sid IS NOT NULL ORDER BY lid LIMIT 1";
/// Letters that wait (4) do not expire.
pub(crate) const NEXT_EXPIRY: &str =
    "SELECT expires_at FROM letters WHERE qid = ?1 AND sid IS NOT NULL AND expires_at IS NOT NULL AND state <> 4
     ORDER BY expires_at LIMIT 1";
pub(crate) const NEXT_EXPIRIES: &str = "SELECT gid, expires_at FROM letters
     WHERE qid = ?1 AND sid IS NOT NULL AND expires_at IS NOT NULL AND state <> 4 ORDER BY expires_at LIMIT ?2";
pub(crate) const EXPIRIES_OF_OLDEST: &str =
    "SELECT expires_at, state FROM letters WHERE gid = ?1 AND sid IS NOT NULL ORDER BY lid LIMIT ?2";

/// A cursor in the list of groups: number of open letters of the last group returned, and its number.
#[derive(Clone, Copy)]
struct Place {
    open: i64,
    gid: i64,
}

impl Place {
    fn text(self) -> String {
        format!("{}/{}", self.open, self.gid)
    }

    fn parse(text: &str) -> Result<Self, StoreError> {
        let parts = text
            .split_once('/')
            .and_then(|(open, gid)| Some(Self { open: open.parse().ok()?, gid: gid.parse().ok()? }));
        parts.ok_or_else(|| {
            let context = format!("invalid cursor {text:?}");
            StoreError::not_done(ErrorKind::Invalid, "groups", context)
        })
    }
}

/// A page of groups, those with the most open letters first; of equal ones, the newest first.
pub(crate) fn groups(connection: &Connection, now: i64, request: &GroupsRequest) -> Work<GroupsPage> {
    let limit = request.limit.max(1);
    let after = request.after.as_deref().map(Place::parse).transpose()?;
    let Place { open, gid } = after.unwrap_or(Place { open: i64::MAX, gid: i64::MAX });
    let (least, wanted) = (i64::from(!request.closed), rows_of(limit.saturating_add(1)));
    let mut found = match &request.queue {
        None => read_all(connection, OF_ALL, [open, gid, least, wanted])?,
        Some(queue) => {
            let Some(qid) = qid_of(connection, queue)? else {
                return Ok(GroupsPage { groups: Vec::new(), next: None });
            };
            read_all(connection, OF_QUEUE, [open, gid, least, wanted, qid])?
        }
    };
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|(gid, facts)| {
        let open = facts.row.by_state.iter().zip(LetterState::ALL).filter(|(_, state)| state.is_open());
        Place { open: bound(open.map(|(count, _)| *count).sum()), gid: *gid }.text()
    });
    let mut groups = Vec::with_capacity(found.len());
    let mut expiries = Expiries::default();
    for (gid, facts) in found {
        let queue = queue_name(connection, facts.qid)?;
        groups.push(shown(connection, now, queue, gid, &facts, &mut expiries)?);
    }
    Ok(GroupsPage { groups, next })
}

fn read_all<const N: usize>(
    connection: &Connection,
    sql: &str,
    parameters: [i64; N],
) -> Work<Vec<(i64, CachedGroup)>> {
    let mut select = connection.prepare_cached(sql)?;
    let mut rows = select.query(rusqlite::params_from_iter(parameters))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(read_group(row)?);
    }
    Ok(found)
}

fn qid_of(connection: &Connection, queue: &QueueName) -> Work<Option<i64>> {
    let mut select = connection.prepare_cached("SELECT qid FROM queues WHERE name = ?1")?;
    Ok(select.query_row([queue.as_str()], |row| row.get(0)).optional()?)
}

fn queue_name(connection: &Connection, qid: i64) -> Work<QueueName> {
    let mut select = connection.prepare_cached("SELECT name FROM queues WHERE qid = ?1")?;
    Ok(QueueName::from(select.query_row([qid], |row| row.get::<_, String>(0))?))
}

/// One group.
pub(crate) fn group(connection: &Connection, now: i64, id: &GroupId) -> Work<Option<Group>> {
    let Some(qid) = qid_of(connection, &id.queue)? else { return Ok(None) };
    let mut select = connection.prepare_cached(select_group!("WHERE qid = ?1 AND fingerprint = ?2"))?;
    let found = first(select.query(rusqlite::params![qid, id.fingerprint.to_string()])?, read_group)?;
    let expiries = &mut Expiries::default();
    found.map(|(gid, facts)| shown(connection, now, id.queue.clone(), gid, &facts, expiries)).transpose()
}

fn shown(
    connection: &Connection,
    now: i64,
    queue: QueueName,
    gid: i64,
    group: &CachedGroup,
    expiries: &mut Expiries,
) -> Work<Group> {
    let id = GroupId { queue, fingerprint: group.fingerprint };
    let oldest = first_time(connection, OLDEST_OF_GROUP, gid)?;
    let next_expiry = expiries.next_of(connection, group.qid, gid)?;
    Ok(group.row.to_group(id, oldest, next_expiry, time(now)))
}

/// The letters that expire next, by queue. Those of a queue are read once for all of its groups.
#[derive(Default)]
struct Expiries(HashMap<i64, NextExpiries<i64>>);

impl Expiries {
    /// When the next open letter of a group expires.
    fn next_of(&mut self, connection: &Connection, qid: i64, gid: i64) -> Work<Option<Timestamp>> {
        let next = match self.0.entry(qid) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(next_expiries(connection, qid)?),
        };
        match next.of(&gid) {
            GroupExpiry::Known(next) => Ok(next),
            GroupExpiry::OfOldest => expiry_of_oldest(connection, gid),
        }
    }
}

fn next_expiries(connection: &Connection, qid: i64) -> Work<NextExpiries<i64>> {
    let mut select = connection.prepare_cached(NEXT_EXPIRIES)?;
    let mut rows = select.query([qid, rows_of(EXPIRIES_OF_QUEUE)])?;
    let mut letters = Vec::new();
    while let Some(row) = rows.next()? {
        letters.push((row.get(0)?, time(row.get(1)?)));
    }
    Ok(NextExpiries::new(letters))
}

fn expiry_of_oldest(connection: &Connection, gid: i64) -> Work<Option<Timestamp>> {
    let mut select = connection.prepare_cached(EXPIRIES_OF_OLDEST)?;
    let mut rows = select.query([gid, rows_of(EXPIRIES_OF_GROUP)])?;
    let mut next = None;
    while let Some(row) = rows.next()? {
        let expires: Option<i64> = row.get(0)?;
        let waits = state(row.get(1)?)? == LetterState::Waiting;
        next = [next, expires.filter(|_| !waits)].into_iter().flatten().min();
    }
    Ok(next.map(time))
}

/// The timestamp returned by a query.
fn first_time(connection: &Connection, sql: &str, parameter: i64) -> Work<Option<Timestamp>> {
    let found: Option<i64> =
        connection.prepare_cached(sql)?.query_row([parameter], |row| row.get(0)).optional()?;
    Ok(found.map(time))
}

/// All queues that have ever held a letter, by name.
pub(crate) fn queues(connection: &Connection) -> Work<Vec<QueueSummary>> {
    let mut select = connection.prepare_cached("SELECT qid, name, idx FROM queues ORDER BY name")?;
    let mut rows = select.query([])?;
    let mut queues = Vec::new();
    while let Some(row) = rows.next()? {
        let queue = QueueName::from(row.get::<_, String>(1)?);
        let used = is_used(row.get(2)?);
        if let Some(listing) = Listing::of(connection, &queue)?.filter(|_| used) {
            let oldest = first_time(connection, OLDEST_OF_QUEUE, row.get(0)?)?;
            let next_expiry = first_time(connection, NEXT_EXPIRY, row.get(0)?)?;
            let counts = listing.counts()?;
            queues.push(QueueSummary { queue, counts, oldest, next_expiry });
        }
    }
    Ok(queues)
}
