//! The tables of an inbox.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lazaret_core::source::{Commit, NewMessage, Posted};
use lazaret_core::store::DigestKey;
use lazaret_core::{ConsumerName, Message, MessageId, Position, StreamName};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::posts::{Post, Posts, stored_digest};
use crate::error::{Fault, Work};
use crate::rows::{bound, decode_headers, later, limit, time, unsigned};
use crate::step::Step;
use crate::write_cache::inboxes::InboxNumbers;

/// Maximum number of settled ranges beyond the committed position (I7).
const MOST_RANGES: usize = 4096;
/// Minimum number of expired ids that each commit removes; more than it adds, so they never accumulate (I7).
const PRUNE: usize = 64;
/// Page size limit in bytes, which bounds memory with large messages (I7).
const PAGE_BYTES: i64 = 8 * 1024 * 1024;

/// A page of messages.
pub(super) struct Page {
    pub(super) messages: Vec<Message>,
    pub(super) next: u64,
}

/// The settled ranges beyond the committed position.
pub(super) fn settled(connection: &Connection, numbers: &InboxNumbers) -> Work<Vec<RangeInclusive<u64>>> {
    let mut select = connection.prepare_cached("SELECT ranges FROM inbox_settled WHERE log = ?1")?;
    let found: Option<String> = select.query_row([numbers.log], |row| row.get(0)).optional()?;
    let Some(ranges) = found else { return Ok(Vec::new()) };
    let ranges: Vec<(u64, u64)> = serde_json::from_str(&ranges).map_err(|error| {
        Fault::Corrupt(format!("failed to decode the settled ranges of an inbox: {error}"))
    })?;
    Ok(ranges.into_iter().map(|(start, end)| start..=end).collect())
}

/// Stores the settled ranges. They may be long, so they have a row of their own, which posts do not touch.
fn save_settled(connection: &Connection, numbers: &InboxNumbers, ranges: &[RangeInclusive<u64>]) -> Work<()> {
    let ranges: Vec<(u64, u64)> = ranges.iter().map(|range| (*range.start(), *range.end())).collect();
    let ranges = serde_json::to_string(&ranges).map_err(|error| {
        Fault::Corrupt(format!("failed to encode the settled ranges of an inbox: {error}"))
    })?;
    let mut replace =
        connection.prepare_cached("INSERT OR REPLACE INTO inbox_settled (log, ranges) VALUES (?1, ?2)")?;
    replace.execute(params![numbers.log, ranges])?;
    Ok(())
}

/// Stores messages, in order. After one that exceeds a limit, no later one of the call is stored: it must not overtake.
pub(super) fn post(step: &mut Step<'_>, call: &Posts) -> Work<(Vec<Posted>, u64)> {
    let mut numbers = step.cache.inboxes.of(step.connection, &call.consumer)?;
    let key = if call.has_ids() { digest_key(step.connection)? } else { None };
    let key = key.as_ref();
    let mut full = false;
    let mut answers = Vec::with_capacity(call.posts.len());
    for post in &call.posts {
        answers.push(if post.size > call.max_bytes {
            known(step, numbers.log, post, key)?.unwrap_or(Posted::TooLarge)
        } else if full || numbers.messages >= call.max_messages || post.size > call.max_bytes - numbers.bytes
        {
            let answer = known(step, numbers.log, post, key)?.unwrap_or(Posted::Full);
            full |= answer == Posted::Full;
            answer
        } else {
            insert(step, &mut numbers, post, key)?
        });
    }
    step.cache.inboxes.set(&call.consumer, numbers);
    Ok((answers, unsigned(numbers.next)?))
}

/// The key of the digests, which the first post with an id creates before it is recorded.
fn digest_key(connection: &Connection) -> Work<Option<DigestKey>> {
    let mut select =
        connection.prepare_cached("SELECT value FROM key_values WHERE space = ?1 AND name = ?2")?;
    let (space, name) = DigestKey::PLACE;
    let value: Option<Vec<u8>> = select.query_row([space, name], |row| row.get(0)).optional()?;
    Ok(value.and_then(|value| DigestKey::from_value(&value)))
}

/// The result for a message that was posted before, and waits or was consumed recently.
fn known(step: &Step<'_>, log: i64, post: &Post, key: Option<&DigestKey>) -> Work<Option<Posted>> {
    let Some(id) = &post.id else { return Ok(None) };
    let found = waiting(step, log, id)?.map_or_else(|| consumed(step, log, id), |found| Ok(Some(found)))?;
    found.map(|found| found.answer(id, post, key)).transpose()
}

/// A message that was posted before.
struct KnownPost {
    position: i64,
    /// `None` for a message of an older version of the format.
    digest: Option<Vec<u8>>,
}

impl KnownPost {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { position: row.get(0)?, digest: row.get(1)? })
    }

    /// The result for another message with its id.
    fn answer(&self, id: &MessageId, post: &Post, key: Option<&DigestKey>) -> Work<Posted> {
        let (id, position) = (id.clone(), Position::new(0, unsigned(self.position)?));
        let is_same = match (&self.digest, &post.digest) {
            // Earlier versions stored the plain one.
            (Some(first), Some(second)) => *first == stored_digest(key, second) || first == second,
            _ => true,
        };
        Ok(if is_same { Posted::Known { id, position } } else { Posted::Conflict { id, position } })
    }
}

/// An unconsumed message.
fn waiting(step: &Step<'_>, log: i64, id: &MessageId) -> Work<Option<KnownPost>> {
    let sql = "SELECT position, digest FROM posts WHERE log = ?1 AND message = ?2";
    let mut select = step.connection.prepare_cached(sql)?;
    Ok(select.query_row(params![log, id.as_str()], KnownPost::read).optional()?)
}

/// A recently consumed message.
fn consumed(step: &Step<'_>, log: i64, id: &MessageId) -> Work<Option<KnownPost>> {
    let sql = "SELECT position, digest FROM consumed_posts WHERE log = ?1 AND message = ?2 AND until > ?3";
    let mut select = step.connection.prepare_cached(sql)?;
    Ok(select.query_row(params![log, id.as_str(), step.now], KnownPost::read).optional()?)
}

/// Stores a message within the limits, unless it is a duplicate.
fn insert(step: &Step<'_>, numbers: &mut InboxNumbers, post: &Post, key: Option<&DigestKey>) -> Work<Posted> {
    loop {
        let position = Position::new(0, unsigned(numbers.next)?);
        let id = post.id.clone().unwrap_or_else(|| MessageId::of_position(&position));
        let found = match consumed(step, numbers.log, &id)? {
            Some(found) => Some(found),
            None if place(step, numbers, post, &id, key)? => None,
            None => Some(waiting(step, numbers.log, &id)?.ok_or_else(not_placed)?),
        };
        match found {
            Some(found) if post.id.is_some() => return found.answer(&id, post, key),
            // An earlier version let a sender give this id. The next position has another one.
            Some(_) => numbers.next += 1,
            None => {
                numbers.next += 1;
                numbers.messages += 1;
                numbers.bytes += post.size;
                return Ok(Posted::Taken { id, position });
            }
        }
    }
}

fn not_placed() -> Fault {
    Fault::Corrupt("a message was not inserted into its inbox, and is not a duplicate".into())
}

/// Inserts a message at the next position. `false` if one with this id is waiting.
fn place(
    step: &Step<'_>,
    numbers: &InboxNumbers,
    post: &Post,
    id: &MessageId,
    key: Option<&DigestKey>,
) -> Work<bool> {
    let mut insert = step.connection.prepare_cached(
        "INSERT INTO posts (log, position, message, size, event_type, content_type, correlation, undecodable, at, key, \
         headers, payload, digest) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
         ON CONFLICT (log, message) DO NOTHING",
    )?;
    let inserted = insert.execute(params![
        numbers.log,
        numbers.next,
        id.as_str(),
        post.size,
        post.event_type.as_deref(),
        post.content_type.as_deref(),
        post.correlation.as_deref(),
        post.undecodable.as_deref(),
        post.at.unwrap_or(step.now),
        post.key.as_deref(),
        post.headers.as_deref(),
        post.payload.as_deref(),
        post.digest.map(|digest| stored_digest(key, &digest)),
    ])?;
    Ok(inserted == 1)
}

/// The messages from this position on.
pub(super) fn page(
    connection: &Connection,
    consumer: &ConsumerName,
    stream: &StreamName,
    from: u64,
    most: usize,
) -> Work<Page> {
    let Some(numbers) = InboxNumbers::read(connection, consumer)? else {
        return Ok(Page { messages: Vec::new(), next: 0 });
    };
    let mut select = connection.prepare_cached(
        "SELECT position, message, size, event_type, content_type, correlation, undecodable, at, key, headers, payload
         FROM posts WHERE log = ?1 AND position >= ?2 ORDER BY position LIMIT ?3",
    )?;
    let mut rows = select.query(params![numbers.log, bound(from), limit(most)])?;
    let (mut messages, mut bytes) = (Vec::new(), 0);
    while bytes < PAGE_BYTES
        && let Some(row) = rows.next()?
    {
        bytes += row.get::<_, i64>(2)?;
        messages.push(message(row, stream)?);
    }
    Ok(Page { messages, next: unsigned(numbers.next)? })
}

fn message(row: &Row<'_>, stream: &StreamName) -> Work<Message> {
    let text = |column: usize| row.get::<_, Option<Arc<str>>>(column);
    let bytes = |column: usize| Ok::<_, Fault>(row.get::<_, Option<Vec<u8>>>(column)?.map(Bytes::from));
    let id: String = row.get(1)?;
    let position = Position::new(0, unsigned(row.get(0)?)?);
    let new = NewMessage {
        id: None,
        key: bytes(8)?,
        event_type: text(3)?,
        headers: bytes(9)?.map_or_else(|| Ok(Default::default()), |headers| decode_headers(&headers))?,
        payload: bytes(10)?,
        content_type: text(4)?,
        timestamp: Some(time(row.get(7)?)),
        correlation: text(5)?,
        undecodable: text(6)?,
    };
    // The id is stored as it is, escaped if need be.
    Ok(Message { id: id.into(), ..new.at(stream.clone(), position) })
}

/// Commits a position, removes settled messages, and keeps their ids for the window.
pub(super) fn commit(
    step: &mut Step<'_>,
    consumer: &ConsumerName,
    window: Duration,
    commit: Commit,
) -> Work<()> {
    let mut numbers = step.cache.inboxes.of(step.connection, consumer)?;
    // Positions that were not posted yet cannot be settled.
    let position = commit.position.map(|position| bound(position.offset).min(numbers.next - 1));
    let committed = numbers.committed.max(position.filter(|position| *position >= 0));
    if let Some(up_to) = committed.filter(|_| committed > numbers.committed) {
        consume(step, &mut numbers, up_to, later(step.now, window))?;
    }
    numbers.committed = committed;
    step.cache.inboxes.set(consumer, numbers);
    let mut beyond = commit.settled_beyond;
    beyond.retain(|range| committed.is_none_or(|committed| bound(*range.end()) > committed));
    beyond.truncate(MOST_RANGES);
    save_settled(step.connection, &numbers, &beyond)
}

fn consume(step: &Step<'_>, numbers: &mut InboxNumbers, up_to: i64, until: i64) -> Work<()> {
    let mut sum = step.connection.prepare_cached(
        "SELECT count(*), coalesce(sum(size), 0) FROM posts WHERE log = ?1 AND position <= ?2",
    )?;
    let (messages, bytes): (i64, i64) =
        sum.query_row([numbers.log, up_to], |row| Ok((row.get(0)?, row.get(1)?)))?;
    prune(step, usize::try_from(messages).unwrap_or(usize::MAX))?;
    if until > step.now {
        let mut keep = step.connection.prepare_cached(
            "INSERT OR REPLACE INTO consumed_posts (log, message, position, until, digest)
             SELECT log, message, position, ?3, digest FROM posts WHERE log = ?1 AND position <= ?2",
        )?;
        keep.execute([numbers.log, up_to, until])?;
    }
    let mut delete = step.connection.prepare_cached("DELETE FROM posts WHERE log = ?1 AND position <= ?2")?;
    delete.execute([numbers.log, up_to])?;
    numbers.messages -= messages;
    numbers.bytes -= bytes;
    Ok(())
}

/// Removes expired ids, of any inbox.
fn prune(step: &Step<'_>, adding: usize) -> Work<()> {
    let mut delete = step.connection.prepare_cached(
        "DELETE FROM consumed_posts WHERE cid IN
         (SELECT cid FROM consumed_posts WHERE until <= ?1 ORDER BY until LIMIT ?2)",
    )?;
    delete.execute([step.now, limit(PRUNE.max(adding.saturating_mul(2)))])?;
    Ok(())
}
