//! The writer's transaction: its begin under the write lock, its commit, and its rollback.

use std::thread;
use std::time::{Duration, Instant};

use lazaret_core::store::Certainty;
use rusqlite::{Connection, ErrorCode};

use super::requests::GroupFailure;
use super::thread::{Outcome, Writer};
use crate::error::{Fault, kind_of};
use crate::redo::{End, Mark, RedoLog, Size};
use crate::schema;

/// A transaction is committed at this number of letters, notes, posts, claims and settlements, or bytes of them in the redo log (I7).
pub(super) const OPEN_COUNT: usize = 4096;
const OPEN_BYTES: u64 = 8 << 20;
/// Retry interval for the write lock while another process holds it.
const LOCK_RETRY: Duration = Duration::from_millis(1);

/// An open transaction.
pub(super) struct Transaction {
    pub(super) end: End,
    /// The size of its records.
    pub(super) size: Size,
    since: Instant,
    /// `true` if the redo log may hold records of it.
    pub(super) is_recorded: bool,
    /// The number of rows that the connection had changed before.
    changes: u64,
}

impl Transaction {
    pub(super) fn is_full(&self, time: Duration) -> bool {
        self.size.count >= OPEN_COUNT || self.end.bytes() >= OPEN_BYTES || self.since.elapsed() >= time
    }
}

impl Writer {
    /// Begins a transaction if none is open, after recovery of valid records.
    pub(super) fn begin(&mut self) -> Outcome<()> {
        while self.open.is_none() {
            let begin = self.begin_once().and_then(|records| self.recover_records(&records));
            if let Err(failure) = begin {
                self.roll_back();
                // Nothing of the new group has happened.
                return Err(GroupFailure { certainty: Certainty::NotDone, ..failure });
            }
        }
        Ok(())
    }

    /// Begins a transaction; returns the valid records.
    fn begin_once(&mut self) -> Outcome<Vec<Vec<u8>>> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => schema::connect(&self.path, &self.options)
                .map_err(|error| GroupFailure::rolled_back(&error))?,
        };
        let connection = self.connection.insert(connection);
        lock(connection, &self.redo, self.options.busy_timeout).map_err(GroupFailure::of)?;
        self.cache.begin(connection).map_err(GroupFailure::of)?;
        let mark = Mark::read(connection).map_err(GroupFailure::of)?;
        self.redo.observe(&mark);
        let records = self.redo.records(&mark).map_err(GroupFailure::of)?;
        let end = End::start(mark);
        let is_recorded = !records.is_empty();
        self.is_behind = is_recorded;
        let changes = connection.total_changes();
        let since = Instant::now();
        self.open = Some(Transaction { end, size: Size::default(), since, is_recorded, changes });
        Ok(records)
    }

    /// Commits the open transaction, if any; `before` is the certainty of an error before the commit itself.
    pub(super) fn commit(&mut self, before: Certainty) -> Outcome<()> {
        let (Some(open), Some(connection)) = (&self.open, &self.connection) else { return Ok(()) };
        let prepared = self.cache.write(connection).and_then(|()| {
            // Also without records: a mark stands for one state, so that a log fits no copy of another one.
            let has_changed = open.is_recorded || connection.total_changes() != open.changes;
            Ok(if has_changed { open.end.mark.invalidate(connection)? } else { open.end.mark })
        });
        let mark = match prepared {
            Ok(mark) => mark,
            Err(fault) => {
                self.roll_back();
                return Err(GroupFailure { certainty: before, ..GroupFailure::of(fault) });
            }
        };
        if let Err(error) = execute(connection, "COMMIT") {
            let context = format!("commit failed: {error}");
            let failure = GroupFailure { kind: kind_of(&error), certainty: Certainty::MaybeDone, context };
            self.connection = None;
            self.roll_back();
            return Err(failure);
        }
        self.open = None;
        self.cache.committed();
        self.redo.observe(&mark);
        Ok(())
    }

    /// Rolls back the transaction, and clears the cache.
    pub(super) fn roll_back(&mut self) {
        self.is_behind |= self.open.take().is_some_and(|open| open.is_recorded);
        self.cache.roll_back();
        // If the rollback fails, closing the connection rolls back.
        self.connection = self
            .connection
            .take()
            .filter(|connection| connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok());
    }
}

/// Takes the write lock, and requests it from its owner while it waits.
fn lock(connection: &Connection, redo: &RedoLog, timeout: Duration) -> Result<(), Fault> {
    let started = Instant::now();
    connection.busy_timeout(Duration::ZERO)?;
    let mut request = None;
    let begin = loop {
        match execute(connection, "BEGIN IMMEDIATE") {
            Err(error) if is_busy(&error) && started.elapsed() < timeout => {
                // Without the request, the wait is only longer.
                request = request.or_else(|| redo.request_lock().ok());
                thread::sleep(LOCK_RETRY);
            }
            begin => break begin,
        }
    };
    drop(request);
    connection.busy_timeout(timeout)?;
    Ok(begin?)
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

pub(super) fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(|_| ())
}
