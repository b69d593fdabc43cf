//! One queue inside a transaction: its sequence rows, and what every change to a letter has to keep in line.
//!
//! [`intake`] takes letters in, [`leases`] hands out work and settles it, [`acts`] does what people ask for, [`lifecycle`]
//! sees letters out, [`groups`] counts them by their cause, and [`listing`] answers questions. Nothing of it walks over
//! all letters; [`query`], which finds letters by what is known of them, looks at a bounded number of them at a time.

mod acts;
pub(crate) mod groups;
mod intake;
mod leases;
pub(crate) mod lifecycle;
pub(crate) mod listing;
pub(crate) mod query;

use std::sync::Arc;

use lazaret_core::letter::LetterId;
use lazaret_core::store::{ErrorKind, StoreError};
use lazaret_core::{Letter, LetterState, QueueName, SequenceId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::{Fault, Work};
use crate::facts::{Facts, QueueFacts};
use crate::rows::{self, id_bytes, read_letter, select_letter};
use groups::Blocked;
pub(crate) use intake::NoteBody;

/// A queue on which a request works. Its numbers count once the request has succeeded.
pub(crate) struct Queue<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) name: &'a QueueName,
    pub(crate) facts: QueueFacts,
    pub(crate) shared: &'a mut Facts,
    pub(crate) now: i64,
}

/// An open sequence.
pub(crate) struct SequenceRow {
    sid: i64,
    name: SequenceId,
    count: i64,
    pub(crate) head_index: i64,
    /// When the head may run by itself; `None` when it may not.
    head_due: Option<i64>,
    pub(crate) paused: bool,
    lease: Option<LeaseRow>,
    /// What of it the group of its head has counted.
    counted: Option<Blocked>,
    /// The operation that has begun with its letters and goes on with them: until then they do not run by themselves.
    reserved: Option<i64>,
}

struct LeaseRow {
    owner: String,
    fence: i64,
    until: i64,
    /// Whether it was taken by `claim`: a replay runs letters in any state.
    replay: bool,
    /// The operation for which it was taken.
    operation: Option<i64>,
}

/// What a decision about a letter needs to know of it.
pub(crate) struct Found {
    pub(crate) lid: i64,
    id: [u8; 16],
    pub(crate) index: i64,
    pub(crate) state: LetterState,
    due_at: Option<i64>,
    enqueued_at: i64,
    touched_at: i64,
    /// Its group, if it has a cause.
    gid: Option<i64>,
    /// Whether only its trace is left.
    purged: bool,
}

/// A query for what [`Found::read`] expects.
macro_rules! select_found {
    ($rest:literal) => {
        concat!(
            "SELECT lid, id, idx, state, due_at, enqueued_at, touched_at, gid, sid IS NULL AND closed_at IS NULL ",
            $rest
        )
    };
}
use select_found;

impl Found {
    fn read(row: &Row<'_>) -> Work<Self> {
        Ok(Self {
            lid: row.get(0)?,
            id: row.get(1)?,
            index: row.get(2)?,
            state: rows::state(row.get(3)?)?,
            due_at: row.get(4)?,
            enqueued_at: row.get(5)?,
            touched_at: row.get(6)?,
            gid: row.get(7)?,
            purged: row.get(8)?,
        })
    }

    /// When this letter may run by itself if it is the head; `None` when it may not.
    fn due(&self) -> Option<i64> {
        due_of(self.state, self.due_at, self.enqueued_at)
    }
}

/// When a letter may run by itself if it is the head; `None` when it may not.
fn due_of(state: LetterState, due_at: Option<i64>, enqueued_at: i64) -> Option<i64> {
    match state {
        LetterState::Retrying => Some(due_at.unwrap_or(enqueued_at)),
        // At once: since before now.
        LetterState::Waiting => Some(enqueued_at),
        _ => None,
    }
}

/// A query for what [`SequenceRow::read`] expects.
macro_rules! select_sequence {
    ($rest:literal) => {
        concat!(
            "SELECT sid, name, count, head_idx, head_due, paused, lease_owner, lease_fence, lease_until, lease_replay, \
             lease_operation, head_gid, reserved ",
            $rest
        )
    };
}
use select_sequence;

impl SequenceRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let lease = match row.get(7)? {
            Some(fence) => Some(LeaseRow {
                owner: row.get(6)?,
                fence,
                until: row.get(8)?,
                replay: row.get(9)?,
                operation: row.get(10)?,
            }),
            None => None,
        };
        let (count, head_gid): (i64, Option<i64>) = (row.get(2)?, row.get(11)?);
        Ok(Self {
            sid: row.get(0)?,
            name: SequenceId::new(row.get::<_, Arc<str>>(1)?),
            count,
            head_index: row.get(3)?,
            head_due: row.get(4)?,
            paused: row.get(5)?,
            lease,
            counted: head_gid.map(|gid| (gid, count - 1)),
            reserved: row.get(12)?,
        })
    }

    pub(crate) fn is_leased(&self, now: i64) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.until > now)
    }

    /// Whether somebody works on a letter: it is at or before the head, so a change to it is not theirs any more.
    fn is_in_work(&self, letter: &Found, now: i64) -> bool {
        self.is_leased(now) && letter.index <= self.head_index
    }

    /// The operation for which the row is leased now.
    pub(crate) fn operation(&self, now: i64) -> Option<i64> {
        self.lease.as_ref().filter(|lease| lease.until > now)?.operation
    }

    /// Under which times the row stands in the indexes for the scheduler.
    fn keys(&self) -> (Option<i64>, Option<i64>) {
        let may_run = !self.paused && self.reserved.is_none();
        match (self.head_due.filter(|_| may_run), &self.lease) {
            (Some(due), Some(lease)) => (None, Some(due.max(lease.until))),
            (due, _) => (due, None),
        }
    }
}

/// The first row of a query, read by a function that may find it corrupt.
pub(crate) fn first<T>(
    mut rows: rusqlite::Rows<'_>,
    read: impl FnOnce(&Row<'_>) -> Work<T>,
) -> Work<Option<T>> {
    rows.next()?.map(read).transpose()
}

impl Queue<'_> {
    fn refuse<T>(kind: ErrorKind, operation: &'static str, context: String) -> Work<T> {
        Err(Fault::Refused(StoreError::not_done(kind, operation, context)))
    }

    /// The row of a sequence, if it is open.
    pub(crate) fn sequence(&self, name: &SequenceId) -> Work<Option<SequenceRow>> {
        let mut select = self
            .connection
            .prepare_cached(select_sequence!("FROM sequences WHERE qid = ?1 AND name = ?2"))?;
        let row = select.query_row(params![self.facts.qid, name.as_str()], SequenceRow::read);
        Ok(row.optional()?)
    }

    /// Opens a sequence for a letter that is about to be stored as its head, and gives its number.
    fn open_sequence(
        &mut self,
        name: &SequenceId,
        index: i64,
        head_due: Option<i64>,
        head_gid: Option<i64>,
    ) -> Work<i64> {
        self.count_blocked(None, head_gid.map(|gid| (gid, 0)))?;
        self.facts.revision += 1;
        self.facts.sequences += 1;
        let paused = self.facts.has_pauses && self.is_paused(name)?;
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO sequences (qid, name, count, head_idx, head_due, touched, revision, paused, due, head_gid)
             VALUES (?1, ?2, 1, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?;
        insert.execute(params![
            self.facts.qid,
            name.as_str(),
            index,
            head_due,
            self.now,
            self.facts.revision,
            paused,
            head_due.filter(|_| !paused),
            head_gid,
        ])?;
        Ok(self.connection.last_insert_rowid())
    }

    fn is_paused(&self, name: &SequenceId) -> Work<bool> {
        let scope = crate::pauses::sequence_scope(name)?;
        let mut select =
            self.connection.prepare_cached("SELECT 1 FROM pauses WHERE consumer = ?1 AND scope = ?2")?;
        Ok(select.exists([self.name.consumer(), &scope])?)
    }

    /// Says that one more letter stands behind the others of a sequence.
    fn count_one_more(&mut self, row: &SequenceRow) -> Work<()> {
        let mut update =
            self.connection.prepare_cached("UPDATE sequences SET count = count + 1 WHERE sid = ?1")?;
        update.execute([row.sid])?;
        self.count_blocked(row.counted, row.counted.map(|(gid, behind)| (gid, behind + 1)))
    }

    /// Gives an open sequence a new revision.
    fn mark_opened(&mut self, sid: i64) -> Work<()> {
        self.facts.revision += 1;
        let mut update =
            self.connection.prepare_cached("UPDATE sequences SET revision = ?2 WHERE sid = ?1")?;
        update.execute([sid, self.facts.revision])?;
        Ok(())
    }

    /// The letter at the head of a sequence, by the letters themselves.
    fn head(&self, sid: i64) -> Work<Option<Found>> {
        let mut select = self
            .connection
            .prepare_cached(select_found!("FROM letters WHERE sid = ?1 ORDER BY idx LIMIT 1"))?;
        first(select.query([sid])?, Found::read)
    }

    /// Brings a row in line with its letters and its lease, and removes one without letters.
    fn refresh(&mut self, row: &mut SequenceRow) -> Work<()> {
        let head = self.head(row.sid)?;
        self.write_row(row, head.as_ref())
    }

    /// As [`refresh`](Self::refresh), for who knows the head.
    fn write_row(&mut self, row: &mut SequenceRow, head: Option<&Found>) -> Work<()> {
        let blocked = head.and_then(|head| row.blocked(head));
        self.count_blocked(row.counted, blocked)?;
        row.counted = blocked;
        let Some(head) = head else {
            self.connection.prepare_cached("DELETE FROM sequences WHERE sid = ?1")?.execute([row.sid])?;
            self.facts.sequences -= 1;
            return Ok(());
        };
        (row.head_index, row.head_due) = (head.index, head.due());
        let (due, busy) = row.keys();
        let lease = row.lease.as_ref();
        let mut update = self.connection.prepare_cached(
            "UPDATE sequences SET count = ?2, head_idx = ?3, head_due = ?4, touched = ?5, lease_owner = ?6,
             lease_fence = ?7, lease_until = ?8, lease_replay = ?9, lease_operation = ?10, due = ?11, busy = ?12,
             head_gid = ?13, reserved = ?14 WHERE sid = ?1",
        )?;
        update.execute(params![
            row.sid,
            row.count,
            row.head_index,
            row.head_due,
            head.touched_at,
            lease.map(|lease| &lease.owner),
            lease.map(|lease| lease.fence),
            lease.map(|lease| lease.until),
            lease.map(|lease| lease.replay),
            lease.and_then(|lease| lease.operation),
            due,
            busy,
            head.gid,
            row.reserved,
        ])?;
        Ok(())
    }

    /// Writes the lease of a row whose letters have not changed.
    fn write_lease(&self, row: &SequenceRow) -> Work<()> {
        let (due, busy) = row.keys();
        let lease = row.lease.as_ref();
        let mut update = self.connection.prepare_cached(
            "UPDATE sequences SET lease_owner = ?2, lease_fence = ?3, lease_until = ?4, lease_replay = ?5,
             lease_operation = ?6, due = ?7, busy = ?8 WHERE sid = ?1",
        )?;
        update.execute(params![
            row.sid,
            lease.map(|lease| &lease.owner),
            lease.map(|lease| lease.fence),
            lease.map(|lease| lease.until),
            lease.map(|lease| lease.replay),
            lease.and_then(|lease| lease.operation),
            due,
            busy,
        ])?;
        Ok(())
    }

    /// The state of the letter of this id in this queue, if there is one.
    fn state_of(&self, id: LetterId) -> Work<Option<LetterState>> {
        let mut select =
            self.connection.prepare_cached("SELECT state FROM letters WHERE id = ?1 AND qid = ?2")?;
        let rows = select.query(params![id_bytes(id), self.facts.qid])?;
        first(rows, |row| rows::state(row.get(0)?))
    }

    /// Moves an open letter to another open state and touches it.
    fn set_state(&mut self, letter: &Found, state: LetterState, due_at: Option<i64>) -> Work<()> {
        self.count(Some(letter.standing()), Some((letter.gid, state)))?;
        let mut update = self
            .connection
            .prepare_cached("UPDATE letters SET state = ?2, due_at = ?3, touched_at = ?4 WHERE lid = ?1")?;
        update.execute(params![letter.lid, state as i64, due_at, self.now])?;
        Ok(())
    }

    /// Closes an open letter and takes it out of its row. The row may be empty after it: refresh.
    fn close(&mut self, row: &mut SequenceRow, letter: &Found, state: LetterState) -> Work<()> {
        self.count(Some(letter.standing()), Some((letter.gid, state)))?;
        row.count -= 1;
        let mut update = self.connection.prepare_cached(
            "UPDATE letters SET sid = NULL, state = ?2, due_at = NULL, touched_at = ?3, closed_at = ?3 WHERE lid = ?1",
        )?;
        update.execute(params![letter.lid, state as i64, self.now])?;
        Ok(())
    }

    /// A whole letter by the number of its row.
    fn whole(&self, lid: i64) -> Work<Letter> {
        let mut select = self.connection.prepare_cached(select_letter!("WHERE lid = ?1"))?;
        let letter = first(select.query([lid])?, |row| read_letter(row, self.name))?;
        letter.ok_or_else(|| Fault::Corrupt(format!("the letter in row {lid} is gone")))
    }
}
