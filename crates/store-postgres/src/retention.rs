//! Letters whose time has passed, and queues that are cleared: bounded pages, each a transaction.

use lazaret_core::store::rules::{self, AuditLine};
use lazaret_core::store::{Actor, Cleared, Expired, Result};
use lazaret_core::{SequenceId, Timestamp};

use crate::error::Work;
use crate::letter_row::{HeldLetter, select_letter};
use crate::sequence_row::{OpenSequence, select_sequence};
use crate::store::{PostgresStore, Queue};
use crate::transaction::{Transaction, transaction};
use crate::values::{Columns, limit as rows_of, nanos};

/// Number of letters or sequences in a page (I7).
const PAGE: usize = 256;

/// Letters that wait (4) do not expire.
pub(crate) const EXPIRING: &str =
    "SELECT l.expires_at, l.lid, l.id, l.sequence FROM letters l WHERE l.qid = $1 AND l.sid IS NOT NULL
    AND l.expires_at <= $2 AND l.state <> 4 AND (l.expires_at, l.lid) > ($3, $4) ORDER BY l.expires_at, l.lid LIMIT $5";
pub(crate) const CLOSED_BEFORE: &str = select_letter!(
    light "FROM letters l WHERE l.qid = $1 AND l.closed_at < $2 ORDER BY l.closed_at, l.lid LIMIT $3 FOR UPDATE SKIP LOCKED"
);
const BY_SID: &str =
    select_sequence!("FROM sequences s WHERE s.qid = $1 AND s.sid > $2 ORDER BY s.sid LIMIT $3");
const OPEN_LETTERS: &str = select_letter!(light "FROM letters l WHERE l.sid = $1 ORDER BY l.idx DESC");

/// A place in the list of expiring letters.
type Place = (i64, i64);

impl PostgresStore {
    pub(crate) async fn expire_letters(
        &self,
        queue: &Queue,
        closed_before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Expired> {
        // Those of processes that have ended.
        self.add_notes_soon();
        let mut done = Expired::default();
        let mut after = Some((i64::MIN, i64::MIN));
        while let Some(place) = after {
            let left = limit.saturating_sub(usize::try_from(done.expired).unwrap_or(usize::MAX));
            let (expired, next) = transaction!(self, "expire", |tx| tx.expire_page(queue, place, left));
            done.expired += expired.expired;
            done.more |= expired.more;
            after = next.filter(|_| !done.more);
        }
        while let Some(end) = closed_before.filter(|_| !done.more) {
            let used = usize::try_from(done.expired + done.purged).unwrap_or(usize::MAX);
            let left = limit.saturating_sub(used);
            let page = transaction!(self, "expire", |tx| tx.purge_page(queue, end, left));
            done.purged += page.purged;
            done.more = page.more;
            if page.purged == 0 {
                break;
            }
        }
        Ok(done)
    }

    pub(crate) async fn clear_queue(&self, queue: &Queue, by: &Actor) -> Result<Cleared> {
        let mut cleared = Cleared { evicted: 0, busy: 0 };
        let mut after = Some(i64::MIN);
        while let Some(sid) = after {
            let (page, next) = transaction!(self, "clear", |tx| tx.clear_page(queue, sid));
            cleared.evicted += page.evicted;
            cleared.busy += page.busy;
            after = next;
        }
        transaction!(self, "clear", |tx| tx.audit_cleared(queue, &cleared, by));
        Ok(cleared)
    }
}

impl Transaction<'_> {
    /// Closes some letters whose TTL has passed. Returns where to go on, if there may be more.
    async fn expire_page(
        &mut self,
        queue: &Queue,
        after: Place,
        limit: usize,
    ) -> Work<(Expired, Option<Place>)> {
        self.read_clock().await?;
        let now = nanos(self.now());
        let rows = self.query(EXPIRING, &[&queue.qid, &now, &after.0, &after.1, &rows_of(PAGE)]).await?;
        let (mut letters, mut names) = (Vec::new(), Vec::<SequenceId>::new());
        for row in &rows {
            let mut c = Columns::of(row);
            let place: Place = (c.get()?, c.get()?);
            letters.push((place, crate::values::letter_id(c.get()?)?));
            names.push(SequenceId::new(c.arc_text()?));
        }
        self.lock_sequences(queue, &names).await?;
        self.read_clock().await?;
        let mut done = Expired::default();
        let mut last = None;
        for ((place, id), name) in letters.into_iter().zip(&names) {
            last = Some(place);
            // It may have been closed, or got more time, before its sequence was locked.
            let rules::LetterLookup::Letter(held) = self.letter(queue, id).await? else { continue };
            let still = held.letter.expires_at.is_some_and(|at| at <= self.now());
            let Some(open) = self
                .unit
                .sequence(queue, name)
                .filter(|_| still && held.sid.is_some() && held.letter.sequence == *name)
                .cloned()
            else {
                continue;
            };
            let next = self.behind(queue, Some(&open), &held.view()).await?;
            let Some(effects) = rules::expire(&held.view(), &open.row, next, self.now()) else { continue };
            if done.expired >= limit as u64 {
                done.more = true;
                break;
            }
            let now = self.now();
            self.unit.apply(queue, held, effects, None, now)?;
            self.write_rows().await?;
            done.expired += 1;
        }
        Ok((done, last.filter(|_| rows.len() == PAGE)))
    }

    /// Purges some letters that were closed before this time.
    async fn purge_page(&mut self, queue: &Queue, end: Timestamp, limit: usize) -> Work<Expired> {
        self.read_clock().await?;
        let wanted = rows_of(limit.saturating_add(1).min(PAGE));
        let rows = self.query(CLOSED_BEFORE, &[&queue.qid, &nanos(end), &wanted]).await?;
        let mut done = Expired { more: rows.len() > limit, ..Expired::default() };
        for row in rows.iter().take(limit) {
            let held = HeldLetter::read(row, &queue.name)?;
            let (effects, now) = (rules::purge(&held.view(), None)?, self.now());
            self.unit.apply(queue, held, effects, None, now)?;
            done.purged += 1;
        }
        if done.purged > 0 {
            self.unit.audit.push(AuditLine::purged(&queue.name, done.purged));
        }
        Ok(done)
    }

    /// Evicts the letters of some sequences. Returns the last of these, if there may be more.
    async fn clear_page(&mut self, queue: &Queue, after: i64) -> Work<(Cleared, Option<i64>)> {
        let rows = self.query(BY_SID, &[&queue.qid, &after, &rows_of(PAGE)]).await?;
        let found = rows.iter().map(OpenSequence::read).collect::<Work<Vec<_>>>()?;
        let names: Vec<SequenceId> = found.iter().map(|open| open.name.clone()).collect();
        self.lock_sequences(queue, &names).await?;
        self.read_clock().await?;
        let mut cleared = Cleared { evicted: 0, busy: 0 };
        for name in &names {
            if let Some(open) = self.unit.sequence(queue, name).cloned() {
                self.evict_all(queue, open, &mut cleared).await?;
            }
        }
        Ok((cleared, found.last().map(|open| open.sid).filter(|_| found.len() == PAGE)))
    }

    /// Evicts the letters of a sequence, the last one first, so that its head changes once.
    async fn evict_all(&mut self, queue: &Queue, mut open: OpenSequence, cleared: &mut Cleared) -> Work<()> {
        let now = self.now();
        for row in self.query(OPEN_LETTERS, &[&open.sid]).await? {
            let held = HeldLetter::read(&row, &queue.name)?;
            let Some(effects) = rules::clear(&held.view(), &open.row, None, now) else {
                cleared.busy += 1;
                continue;
            };
            let after = effects.sequence.row().cloned();
            self.unit.apply(queue, held, effects, None, now)?;
            cleared.evicted += 1;
            if let Some(after) = after {
                open.row = after;
            }
        }
        self.write_rows().await
    }

    async fn audit_cleared(&mut self, queue: &Queue, cleared: &Cleared, by: &Actor) -> Work<()> {
        self.read_clock().await?;
        self.unit.audit.push(AuditLine::cleared(&queue.name, cleared, by));
        Ok(())
    }
}
