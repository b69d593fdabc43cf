//! Runs the requests of a group.
//!
//! A request that fails after it has written must not affect the others. A savepoint of its own ensures that, but in a savepoint
//! SQLite copies every page before its first change: a third of the work of a settlement. So a group runs without
//! savepoints first. Only if a request fails with changes, which a damaged row or a full disk causes, the transaction is
//! rolled back, what was acknowledged of it is recovered from the redo log, and the group runs again, with savepoints.

use rusqlite::Connection;

use super::requests::{GroupFailure, Request};
use super::thread::{Outcome, Writer};
use super::transaction::execute;
use crate::rows::nanos;
use crate::step::Step;

/// The number of groups with savepoints after one that had to run again. A damaged row that is tried again and again costs one
/// recovery in so many groups.
const CAREFUL_GROUPS: u32 = 64;

/// The end of a run without savepoints.
enum Quick {
    Done,
    /// A request has failed after it had written.
    Stained,
}

impl Writer {
    /// Runs a group in the open transaction.
    pub(super) fn work(&mut self, group: &mut [Box<dyn Request>]) -> Outcome<()> {
        if self.careful_groups > 0 {
            self.careful_groups -= 1;
        } else if group.iter().all(|request| request.is_repeatable()) {
            match self.work_quickly(group)? {
                Quick::Done => return Ok(()),
                Quick::Stained => {
                    self.careful_groups = CAREFUL_GROUPS;
                    self.roll_back();
                    self.begin()?;
                }
            }
        }
        self.work_carefully(group)
    }

    fn work_quickly(&mut self, group: &mut [Box<dyn Request>]) -> Outcome<Quick> {
        let Some(connection) = &self.connection else { return Ok(Quick::Done) };
        for request in group {
            let changes = connection.total_changes();
            let mut step = Step { connection, cache: &mut self.cache, now: nanos(self.options.clock.now()) };
            match request.run(&mut step) {
                Ok(()) => self.cache.keep(connection).map_err(GroupFailure::of)?,
                Err(failure) if !request.fails_alone() || connection.is_autocommit() => {
                    return Err(lost(connection, failure));
                }
                Err(_) if connection.total_changes() == changes => self.cache.undo(),
                Err(_) => return Ok(Quick::Stained),
            }
        }
        Ok(Quick::Done)
    }

    fn work_carefully(&mut self, group: &mut [Box<dyn Request>]) -> Outcome<()> {
        let Some(connection) = &self.connection else { return Ok(()) };
        for request in group {
            let has_savepoint = request.fails_alone();
            if has_savepoint {
                execute(connection, "SAVEPOINT request").map_err(GroupFailure::of)?;
            }
            let mut step = Step { connection, cache: &mut self.cache, now: nanos(self.options.clock.now()) };
            match request.run(&mut step) {
                Ok(()) => self.cache.keep(connection).map_err(GroupFailure::of)?,
                Err(failure) if !has_savepoint || connection.is_autocommit() => {
                    return Err(lost(connection, failure));
                }
                Err(_) => {
                    self.cache.undo_with_savepoint();
                    execute(connection, "ROLLBACK TO request").map_err(GroupFailure::of)?;
                }
            }
            if has_savepoint {
                execute(connection, "RELEASE request").map_err(GroupFailure::of)?;
            }
        }
        Ok(())
    }
}

/// The failure of a group by one of its requests. A full disk and some other errors roll back the whole transaction.
fn lost(connection: &Connection, failure: GroupFailure) -> GroupFailure {
    if connection.is_autocommit() { failure } else { failure.for_others() }
}
