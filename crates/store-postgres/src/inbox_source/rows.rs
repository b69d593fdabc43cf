//! The tables of an inbox.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use lazaret_core::source::{Backlog, Commit, NewMessage, Posted};
use lazaret_core::store::Result;
use lazaret_core::store::rules::{later, latest_lease_end};
use lazaret_core::{ConsumerName, Message, Position, StreamName};
use tokio_postgres::Row;
use uuid::Uuid;

use super::log::InboxLog;
use super::posts::{Fill, KnownPost, OPERATION, Post, take};
use crate::error::{Fault, Work};
use crate::store::{PostgresStore, first};
use crate::transaction::{CLOCK, Transaction, transaction};
use crate::values::{Columns, bound, decode_headers, from_json, limit, nanos, text, time, to_json, unsigned};

/// Maximum number of settled ranges beyond the committed position (I7).
const MOST_RANGES: usize = 4096;
/// Minimum number of expired ids that each commit removes; more than it adds, so they never accumulate (I7).
const PRUNE: i64 = 64;
/// Page size limit in bytes, which bounds memory with large messages (I7).
const PAGE_BYTES: i64 = 8 * 1024 * 1024;

const FIND: &str = "SELECT log FROM inboxes WHERE consumer = $1";
const CREATE: &str = "INSERT INTO inboxes (consumer) VALUES ($1) ON CONFLICT (consumer) DO NOTHING";
const BACKLOG: &str = "SELECT messages, bytes FROM inboxes WHERE consumer = $1";
const LOCK: &str = "SELECT next, messages, bytes, consumed, fence, reader, lease_until, settled::text
    FROM inboxes WHERE log = $1 FOR UPDATE";
const KNOWN: &str = "SELECT hash, position, digest, until FROM inbox_ids WHERE log = $1 AND hash = ANY($2)";
const INSERT: &str = "INSERT INTO inbox_messages (log, position, message, size, event_type, content_type, correlation,
    undecodable, at, key, headers, payload)
    SELECT $1, * FROM unnest($2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[],
    $9::bigint[], $10::bytea[], $11::bytea[], $12::bytea[])";
/// An id that is there has expired.
const INSERT_IDS: &str = "INSERT INTO inbox_ids (log, hash, position, digest)
    SELECT $1, * FROM unnest($2::uuid[], $3::bigint[], $4::bytea[])
    ON CONFLICT (log, hash) DO UPDATE SET position = excluded.position, digest = excluded.digest, until = NULL";
const FILLED: &str = "UPDATE inboxes SET next = $2, messages = $3, bytes = $4 WHERE log = $1";
const LEASE: &str = "UPDATE inboxes SET reader = $2, fence = $3, lease_until = $4 WHERE log = $1";
/// A lease that has ended and that nobody took is as good as one that has not.
const RENEW: &str = "UPDATE inboxes SET lease_until = $3 WHERE log = $1 AND fence = $2 RETURNING 1";
const RELEASE: &str = "UPDATE inboxes SET lease_until = 0 WHERE log = $1 AND fence = $2";
const NUMBERS: &str = "SELECT next, fence FROM inboxes WHERE log = $1";
const PAGE: &str = "SELECT position, message, event_type, content_type, correlation, undecodable, at, key, headers, payload
    FROM (SELECT *, sum(size) OVER (ORDER BY position) - size AS before FROM (
        SELECT * FROM inbox_messages WHERE log = $1 AND position >= $2 ORDER BY position LIMIT $3) AS next) AS page
    WHERE before < $4::bigint ORDER BY position";
const CONSUME: &str =
    "WITH gone AS (DELETE FROM inbox_messages WHERE log = $1 AND position < $2 RETURNING size)
    SELECT count(*), coalesce(sum(size), 0)::bigint FROM gone";
const KEEP_IDS: &str = "UPDATE inbox_ids SET until = $3 WHERE log = $1 AND position < $2 AND until IS NULL";
const EXPIRED: &str = "DELETE FROM inbox_ids WHERE (log, hash) IN (
    SELECT log, hash FROM inbox_ids WHERE until <= $1 ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED)";
const CONSUMED: &str = "UPDATE inboxes SET consumed = $2, messages = messages - $3, bytes = bytes - $4,
    settled = $5::text::json WHERE log = $1";

/// The row of an inbox.
struct InboxRow {
    fill: Fill,
    consumed: i64,
    fence: i64,
    reader: Option<String>,
    lease_until: i64,
    settled: Vec<(u64, u64)>,
}

impl InboxRow {
    fn read(row: &Row) -> Work<Self> {
        let mut c = Columns::of(row);
        let fill = Fill { next: c.get()?, messages: c.get()?, bytes: c.get()? };
        let (consumed, fence, reader, lease_until) = (c.get()?, c.get()?, c.optional_text()?, c.get()?);
        let settled = from_json(&c.get::<String>()?, "the settled ranges of an inbox")?;
        Ok(Self { fill, consumed, fence, reader, lease_until, settled })
    }
}

/// The answer to an instance that asks for the lease of an inbox.
pub(super) enum Acquired {
    /// It reads the inbox from here on.
    Lease { fence: i64, from: u64, settled: Vec<RangeInclusive<u64>>, next: u64 },
    /// Another instance does.
    HeldBy(String),
}

/// A page of messages.
pub(super) struct Page {
    pub(super) messages: Vec<Message>,
    pub(super) next: u64,
    /// The fence of the instance that reads the inbox now.
    pub(super) fence: i64,
}

fn missing() -> Fault {
    Fault::Corrupt("the row of an inbox is missing".to_owned())
}

impl PostgresStore {
    /// The number of an inbox, which is created if necessary.
    pub(super) async fn inbox_number(&self, operation: &'static str, consumer: &ConsumerName) -> Result<i64> {
        let name = text(consumer.as_str());
        loop {
            if let Some(row) = self.ask(operation, FIND, &[&name]).await?.first() {
                return Ok(row.get(0));
            }
            self.write_once(operation, CREATE, &[&name]).await?;
        }
    }

    pub(super) async fn inbox_backlog(&self, consumer: &ConsumerName) -> Result<Backlog> {
        let rows = self.ask("backlog", BACKLOG, &[&text(consumer.as_str())]).await?;
        let read = |row: &Row| -> Work<Backlog> {
            let mut c = Columns::of(row);
            Ok(Backlog { messages: c.unsigned()?, bytes: c.unsigned()? })
        };
        let found = first(&rows, read).map_err(|fault| fault.into_error("backlog"))?;
        Ok(found.unwrap_or_default())
    }

    /// Stores messages, in order. Returns the next position as well.
    pub(super) async fn post(&self, inbox: &InboxLog, posts: &[Post]) -> Result<(Vec<Posted>, u64)> {
        let log = inbox.number(OPERATION).await?;
        Ok(transaction!(self, "post", |tx| tx.post(log, inbox, posts)))
    }

    /// Takes the lease if it is free.
    pub(super) async fn acquire_inbox(&self, inbox: &InboxLog, reader: &str) -> Result<Acquired> {
        let log = inbox.number("assign").await?;
        Ok(transaction!(self, "assign", |tx| tx.acquire_inbox(log, reader, inbox.options.lease)))
    }

    /// Extends the lease from now. `false` if another instance has taken it.
    pub(super) async fn renew_inbox(&self, inbox: &InboxLog, fence: i64) -> Result<bool> {
        let log = inbox.number("renew").await?;
        let until = nanos(later(self.now("renew").await?, inbox.options.lease));
        Ok(transaction!(self, "renew", |tx| tx.renew_inbox(log, fence, until)))
    }

    /// Gives the lease up, if it is still held.
    pub(super) async fn release_inbox(&self, inbox: &InboxLog, fence: i64) -> Result<()> {
        let log = inbox.number("release").await?;
        self.write_once("release", RELEASE, &[&log, &fence]).await
    }

    /// The messages from this position on.
    pub(super) async fn inbox_page(
        &self,
        inbox: &InboxLog,
        stream: &StreamName,
        from: u64,
        most: usize,
    ) -> Result<Page> {
        const READ: &str = "read";
        let log = inbox.number(READ).await?;
        let numbers = self.ask(READ, NUMBERS, &[&log]).await?;
        let rows = match most {
            0 => Vec::new(),
            _ => self.ask(READ, PAGE, &[&log, &bound(from), &limit(most), &PAGE_BYTES]).await?,
        };
        let read = || -> Work<Page> {
            let mut c = Columns::of(numbers.first().ok_or_else(missing)?);
            let (next, fence) = (c.unsigned()?, c.get()?);
            let messages = rows.iter().map(|row| read_message(row, stream)).collect::<Work<Vec<_>>>()?;
            Ok(Page { messages, next, fence })
        };
        read().map_err(|fault| fault.into_error(READ))
    }

    /// Commits a position, removes settled messages, and keeps their ids for the window. `false` if another instance has taken the
    /// lease: then nothing was changed.
    pub(super) async fn commit_inbox(&self, inbox: &InboxLog, fence: i64, commit: &Commit) -> Result<bool> {
        let log = inbox.number("commit").await?;
        let window = inbox.options.window;
        Ok(transaction!(self, "commit", |tx| tx.commit_inbox((log, fence), window, commit)))
    }
}

fn read_message(row: &Row, stream: &StreamName) -> Work<Message> {
    let mut c = Columns::of(row);
    let (position, id) = (Position::new(0, c.unsigned()?), c.text()?);
    let mut text = || -> Work<_> { Ok(c.optional_text()?.map(Into::into)) };
    let (event_type, content_type, correlation, undecodable) = (text()?, text()?, text()?, text()?);
    let timestamp = Some(time(c.get()?));
    let (key, headers, payload) = (c.bytes()?, c.bytes()?, c.bytes()?);
    let headers = headers.map_or_else(|| Ok(Default::default()), decode_headers)?;
    let new = NewMessage {
        id: None,
        key,
        event_type,
        headers,
        payload,
        content_type,
        timestamp,
        correlation,
        undecodable,
    };
    // The id is stored as it is, escaped if need be.
    Ok(Message { id: id.into(), ..new.at(stream.clone(), position) })
}

fn read_known(row: &Row, now: i64) -> Work<Option<(Uuid, KnownPost)>> {
    let mut c = Columns::of(row);
    let (hash, position) = (c.get()?, c.unsigned()?);
    let digest: Bytes = c.bytes()?.unwrap_or_default();
    let digest = <[u8; 32]>::try_from(&digest[..]);
    let digest =
        digest.map_err(|_| Fault::Corrupt("the digest of a message in an inbox has no 32 bytes".into()))?;
    let until: Option<i64> = c.get()?;
    Ok(until.is_none_or(|until| until > now).then_some((hash, KnownPost { position, digest })))
}

impl Transaction<'_> {
    async fn lock_inbox(&mut self, log: i64) -> Work<InboxRow> {
        let [row, clock] = self.query_all([(LOCK, &[&log]), (CLOCK, &[])]).await?;
        self.set_now(&clock)?;
        first(&row, InboxRow::read)?.ok_or_else(missing)
    }

    async fn post(&mut self, log: i64, inbox: &InboxLog, posts: &[Post]) -> Work<(Vec<Posted>, u64)> {
        let hashes: Vec<Uuid> = posts.iter().filter_map(|post| Some(post.identity?.0)).collect();
        // Read behind the lock.
        let [row, known, clock] =
            self.query_all([(LOCK, &[&log]), (KNOWN, &[&log, &hashes]), (CLOCK, &[])]).await?;
        self.set_now(&clock)?;
        let now = nanos(self.now());
        let mut fill = first(&row, InboxRow::read)?.ok_or_else(missing)?.fill;
        let known = known.iter().filter_map(|row| read_known(row, now).transpose());
        let known = known.collect::<Work<HashMap<_, _>>>()?;
        let (answers, rows) = take(posts, known, &inbox.options, now, &mut fill);
        if !rows.position.is_empty() {
            let ([event_type, content_type, correlation, undecodable], [key, headers, payload]) =
                (&rows.texts, &rows.bytes);
            self.query_all([
                (
                    INSERT,
                    &[
                        &log,
                        &rows.position,
                        &rows.message,
                        &rows.size,
                        event_type,
                        content_type,
                        correlation,
                        undecodable,
                        &rows.at,
                        key,
                        headers,
                        payload,
                    ],
                ),
                (INSERT_IDS, &[&log, &rows.id_hash, &rows.id_position, &rows.id_digest]),
                (FILLED, &[&log, &fill.next, &fill.messages, &fill.bytes]),
            ])
            .await?;
        }
        Ok((answers, unsigned(fill.next)?))
    }

    async fn acquire_inbox(&mut self, log: i64, reader: &str, lease: Duration) -> Work<Acquired> {
        let row = self.lock_inbox(log).await?;
        // Of a lease that ends later than one taken now, the clock was set back.
        let is_held = row.lease_until > nanos(self.now())
            && row.lease_until <= nanos(latest_lease_end(lease, self.now()));
        if let Some(holder) = row.reader.filter(|holder| is_held && holder != reader) {
            return Ok(Acquired::HeldBy(holder));
        }
        let (fence, until) = (row.fence + 1, nanos(later(self.now(), lease)));
        self.query(LEASE, &[&log, &text(reader), &fence, &until]).await?;
        Ok(Acquired::Lease {
            fence,
            from: unsigned(row.consumed)?,
            settled: row.settled.into_iter().map(|(start, end)| start..=end).collect(),
            next: unsigned(row.fill.next)?,
        })
    }

    async fn renew_inbox(&self, log: i64, fence: i64, until: i64) -> Work<bool> {
        Ok(!self.query(RENEW, &[&log, &fence, &until]).await?.is_empty())
    }

    async fn commit_inbox(
        &mut self,
        (log, fence): (i64, i64),
        window: Duration,
        commit: &Commit,
    ) -> Work<bool> {
        let row = self.lock_inbox(log).await?;
        if row.fence != fence {
            return Ok(false);
        }
        // Positions that were not posted yet cannot be settled.
        let end = commit.position.as_ref().map_or(0, |position| bound(position.offset).saturating_add(1));
        let consumed = end.min(row.fill.next).max(row.consumed);
        let (mut messages, mut bytes) = (0_i64, 0_i64);
        if consumed > row.consumed {
            let gone = self.query(CONSUME, &[&log, &consumed]).await?;
            let gone = gone.first().ok_or_else(missing)?;
            (messages, bytes) = (gone.try_get(0)?, gone.try_get(1)?);
            let (now, until) = (nanos(self.now()), nanos(later(self.now(), window)));
            let most = PRUNE.max(messages.saturating_mul(2));
            self.query_all([(KEEP_IDS, &[&log, &consumed, &until]), (EXPIRED, &[&now, &most])]).await?;
        }
        let mut beyond: Vec<(u64, u64)> =
            commit.settled_beyond.iter().map(|range| (*range.start(), *range.end())).collect();
        beyond.retain(|(_, end)| bound(*end) >= consumed);
        beyond.truncate(MOST_RANGES);
        let beyond = to_json(&beyond, "the settled ranges of an inbox")?;
        self.query(CONSUMED, &[&log, &consumed, &messages, &bytes, &beyond]).await?;
        Ok(true)
    }
}
