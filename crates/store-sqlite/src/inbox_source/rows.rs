//! The tables of an inbox.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lazaret_core::source::{Commit, NewMessage, Posted};
use lazaret_core::store::{ErrorKind, StoreError};
use lazaret_core::{ConsumerName, Message, MessageId, Position, StreamName};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::log::InboxOptions;
use crate::error::{Fault, Work};
use crate::rows::{bound, decode_headers, encode_headers, later, limit, nanos, time, unsigned};
use crate::writer::Step;

/// How many ranges beyond the committed position are kept (I7).
const MOST_RANGES: usize = 4096;
/// How many ids that have ended are removed with each call at least; more than a call adds, so they never pile up (I7).
const PRUNE: usize = 64;
/// After this many bytes a page ends, so that large messages do not fill the memory (I7).
const PAGE_BYTES: i64 = 8 * 1024 * 1024;

/// What is known of an inbox as a whole.
pub(super) struct State {
    log: i64,
    /// The position of the message that comes next.
    pub(super) next: i64,
    pub(super) committed: Option<i64>,
    /// Messages that are not consumed, and their bytes.
    pub(super) messages: i64,
    pub(super) bytes: i64,
}

/// A piece of an inbox.
pub(super) struct Page {
    pub(super) messages: Vec<Message>,
    pub(super) next: u64,
}

/// An inbox; `None` while nothing was ever posted to it.
pub(super) fn state(connection: &Connection, consumer: &ConsumerName) -> Work<Option<State>> {
    let mut select = connection
        .prepare_cached("SELECT log, next, committed, messages, bytes FROM inbox_logs WHERE consumer = ?1")?;
    let found = select.query_row([consumer.as_str()], |row| {
        Ok(State {
            log: row.get(0)?,
            next: row.get(1)?,
            committed: row.get(2)?,
            messages: row.get(3)?,
            bytes: row.get(4)?,
        })
    });
    Ok(found.optional()?)
}

fn save(connection: &Connection, state: &State) -> Work<()> {
    let mut update = connection.prepare_cached(
        "UPDATE inbox_logs SET next = ?2, committed = ?3, messages = ?4, bytes = ?5 WHERE log = ?1",
    )?;
    update.execute(params![state.log, state.next, state.committed, state.messages, state.bytes])?;
    Ok(())
}

/// What is settled beyond the committed position.
pub(super) fn settled(connection: &Connection, state: &State) -> Work<Vec<RangeInclusive<u64>>> {
    let mut select = connection.prepare_cached("SELECT ranges FROM inbox_settled WHERE log = ?1")?;
    let found: Option<String> = select.query_row([state.log], |row| row.get(0)).optional()?;
    let Some(ranges) = found else { return Ok(Vec::new()) };
    let ranges: Vec<(u64, u64)> = serde_json::from_str(&ranges)
        .map_err(|error| Fault::Corrupt(format!("what is settled in an inbox: {error}")))?;
    Ok(ranges.into_iter().map(|(start, end)| start..=end).collect())
}

/// Writes it down. It may be long, so it has a place of its own, which posts do not touch.
fn save_settled(connection: &Connection, state: &State, ranges: &[RangeInclusive<u64>]) -> Work<()> {
    let ranges: Vec<(u64, u64)> = ranges.iter().map(|range| (*range.start(), *range.end())).collect();
    let ranges = serde_json::to_string(&ranges)
        .map_err(|error| Fault::Corrupt(format!("ranges that cannot be written: {error}")))?;
    let mut replace =
        connection.prepare_cached("INSERT OR REPLACE INTO inbox_settled (log, ranges) VALUES (?1, ?2)")?;
    replace.execute(params![state.log, ranges])?;
    Ok(())
}

fn state_or_new(connection: &Connection, consumer: &ConsumerName) -> Work<State> {
    if let Some(state) = state(connection, consumer)? {
        return Ok(state);
    }
    let mut insert = connection.prepare_cached("INSERT INTO inbox_logs (consumer) VALUES (?1)")?;
    insert.execute([consumer.as_str()])?;
    let log = connection.last_insert_rowid();
    Ok(State { log, next: 0, committed: None, messages: 0, bytes: 0 })
}

/// Takes messages, in order. Once one finds no room, no later one of the call is taken either: it must not overtake.
pub(super) fn post(
    step: &Step<'_>,
    consumer: &ConsumerName,
    options: &InboxOptions,
    messages: Vec<NewMessage>,
) -> Work<(Vec<Posted>, u64)> {
    if messages.iter().any(|message| message.id.as_ref().is_some_and(|id| id.as_str().is_empty())) {
        // All messages with an empty id would be one and the same.
        return Err(StoreError::not_done(ErrorKind::Invalid, "post", "an id is empty").into());
    }
    let mut state = state_or_new(step.connection, consumer)?;
    prune(step, messages.len())?;
    let (most_messages, most_bytes) = (bound(options.max_messages), bound(options.max_bytes));
    let mut full = false;
    let mut answers = Vec::with_capacity(messages.len());
    for message in messages {
        let known = match &message.id {
            Some(id) => known(step, state.log, id)?,
            None => None,
        };
        let size = limit(message.byte_size());
        answers.push(if let Some((id, position)) = known {
            Posted::Known { id, position }
        } else if size > most_bytes {
            Posted::TooLarge
        } else if full || state.messages >= most_messages || size > most_bytes - state.bytes {
            full = true;
            Posted::Full
        } else {
            let (id, position) = insert(step, &mut state, message, size)?;
            Posted::Taken { id, position }
        });
    }
    save(step.connection, &state)?;
    Ok((answers, unsigned(state.next)?))
}

/// Where a message stands that was posted before.
fn known(step: &Step<'_>, log: i64, id: &MessageId) -> Work<Option<(MessageId, Position)>> {
    let mut select = step.connection.prepare_cached(
        "SELECT position FROM posts WHERE log = ?1 AND message = ?2
         UNION ALL SELECT position FROM consumed_posts WHERE log = ?1 AND message = ?2 AND until > ?3 LIMIT 1",
    )?;
    let found: Option<i64> =
        select.query_row(params![log, id.as_str(), step.now], |row| row.get(0)).optional()?;
    found.map(|position| Ok((id.clone(), Position::new(0, unsigned(position)?)))).transpose()
}

fn insert(step: &Step<'_>, state: &mut State, message: NewMessage, size: i64) -> Work<(MessageId, Position)> {
    let (id, position) = loop {
        let position = Position::new(0, unsigned(state.next)?);
        state.next += 1;
        match &message.id {
            Some(id) => break (id.clone(), position),
            None => {
                let id = MessageId::from(position.to_string());
                // Somebody may have posted a message under just this name. Then the next place has another one.
                if known(step, state.log, &id)?.is_none() {
                    break (id, position);
                }
            }
        }
    };
    let mut insert = step.connection.prepare_cached(
        "INSERT INTO posts (log, position, message, size, event_type, content_type, correlation, undecodable, at, key, \
         headers, payload) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?;
    insert.execute(params![
        state.log,
        bound(position.offset),
        id.as_str(),
        size,
        message.event_type.as_deref(),
        message.content_type.as_deref(),
        message.correlation.as_deref(),
        message.undecodable.as_deref(),
        message.timestamp.map_or(step.now, nanos),
        message.key.as_deref(),
        encode_headers(&message.headers),
        message.payload.as_deref(),
    ])?;
    state.messages += 1;
    state.bytes += size;
    Ok((id, position))
}

/// The messages from this position on.
pub(super) fn page(
    connection: &Connection,
    consumer: &ConsumerName,
    stream: &StreamName,
    from: u64,
    most: usize,
) -> Work<Page> {
    let Some(state) = state(connection, consumer)? else {
        return Ok(Page { messages: Vec::new(), next: 0 });
    };
    let mut select = connection.prepare_cached(
        "SELECT position, message, size, event_type, content_type, correlation, undecodable, at, key, headers, payload
         FROM posts WHERE log = ?1 AND position >= ?2 ORDER BY position LIMIT ?3",
    )?;
    let mut rows = select.query(params![state.log, bound(from), limit(most)])?;
    let (mut messages, mut bytes) = (Vec::new(), 0);
    while bytes < PAGE_BYTES
        && let Some(row) = rows.next()?
    {
        bytes += row.get::<_, i64>(2)?;
        messages.push(message(row, stream)?);
    }
    Ok(Page { messages, next: unsigned(state.next)? })
}

fn message(row: &Row<'_>, stream: &StreamName) -> Work<Message> {
    let text = |column: usize| row.get::<_, Option<Arc<str>>>(column);
    let bytes = |column: usize| Ok::<_, Fault>(row.get::<_, Option<Vec<u8>>>(column)?.map(Bytes::from));
    let id: String = row.get(1)?;
    let position = Position::new(0, unsigned(row.get(0)?)?);
    let new = NewMessage {
        id: Some(id.into()),
        key: bytes(8)?,
        event_type: text(3)?,
        headers: bytes(9)?.map_or_else(|| Ok(Default::default()), |headers| decode_headers(&headers))?,
        payload: bytes(10)?,
        content_type: text(4)?,
        timestamp: Some(time(row.get(7)?)),
        correlation: text(5)?,
        undecodable: text(6)?,
    };
    Ok(new.at(stream.clone(), position))
}

/// Makes a position durable, removes what is settled, and keeps the ids of that for a while.
pub(super) fn commit(step: &Step<'_>, consumer: &ConsumerName, window: Duration, commit: Commit) -> Work<()> {
    let mut state = state_or_new(step.connection, consumer)?;
    // Whatever is said, nothing that is still to be posted is settled.
    let position = commit.position.map(|position| bound(position.offset).min(state.next - 1));
    let committed = state.committed.max(position.filter(|position| *position >= 0));
    if let Some(up_to) = committed.filter(|_| committed > state.committed) {
        consume(step, &mut state, up_to, later(step.now, window))?;
    }
    state.committed = committed;
    save(step.connection, &state)?;
    let mut beyond = commit.settled_beyond;
    beyond.retain(|range| committed.is_none_or(|committed| bound(*range.end()) > committed));
    beyond.truncate(MOST_RANGES);
    save_settled(step.connection, &state, &beyond)
}

fn consume(step: &Step<'_>, state: &mut State, up_to: i64, until: i64) -> Work<()> {
    let mut sum = step.connection.prepare_cached(
        "SELECT count(*), coalesce(sum(size), 0) FROM posts WHERE log = ?1 AND position <= ?2",
    )?;
    let (messages, bytes): (i64, i64) =
        sum.query_row([state.log, up_to], |row| Ok((row.get(0)?, row.get(1)?)))?;
    prune(step, usize::try_from(messages).unwrap_or(usize::MAX))?;
    if until > step.now {
        let mut keep = step.connection.prepare_cached(
            "INSERT OR REPLACE INTO consumed_posts (log, message, position, until)
             SELECT log, message, position, ?3 FROM posts WHERE log = ?1 AND position <= ?2",
        )?;
        keep.execute([state.log, up_to, until])?;
    }
    let mut delete = step.connection.prepare_cached("DELETE FROM posts WHERE log = ?1 AND position <= ?2")?;
    delete.execute([state.log, up_to])?;
    state.messages -= messages;
    state.bytes -= bytes;
    Ok(())
}

/// Removes ids whose time is over, of any inbox.
fn prune(step: &Step<'_>, adding: usize) -> Work<()> {
    let mut delete = step.connection.prepare_cached(
        "DELETE FROM consumed_posts WHERE cid IN
         (SELECT cid FROM consumed_posts WHERE until <= ?1 ORDER BY until LIMIT ?2)",
    )?;
    delete.execute([step.now, limit(PRUNE.max(adding.saturating_mul(2)))])?;
    Ok(())
}
