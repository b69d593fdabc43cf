//! Repeats the valid records of the redo log.

use lazaret_core::store::{Certainty, ErrorKind};
use rusqlite::Connection;

use super::requests::GroupFailure;
use super::thread::{Outcome, Writer};
use crate::error::{Fault, Work};
use crate::hand_offs::{HandOffs, Notes};
use crate::inbox_source::Posts;
use crate::lease_calls::{ClaimDue, ClaimOne, PollWork, Release, Renew};
use crate::recorded::{Call, Repeatable};
use crate::redo::{End, Mark};
use crate::schema;
use crate::settle_calls::{Settle, SettleAndContinue};
use crate::step::Step;
use crate::write_cache::WriteCache;

impl Writer {
    /// Repeats valid records. `false` if their owner is alive and busy: it will commit them.
    pub(super) fn recover(&mut self) -> Outcome<bool> {
        let first = self.redo.first().map_err(|error| GroupFailure::of(self.redo.fault(&error)))?;
        let Some(connection) = self.connection.as_ref().filter(|_| first.is_some()) else { return Ok(true) };
        if first != Some(Mark::read(connection).map_err(GroupFailure::of)?) {
            return Ok(true);
        }
        match self.begin() {
            Ok(()) => self.commit(Certainty::NotDone).map(|()| true),
            Err(failure) if failure.kind == ErrorKind::Unavailable => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Gives the file the mark of this opening. Without it the last one stays, under which generations are unique, too: so
    /// neither a full disk nor another process that holds the lock keeps a store from opening.
    pub(super) fn renew_mark(&mut self) {
        if self.begin().is_err() {
            return;
        }
        let renewed = self.connection.as_ref().is_none_or(|connection| Mark::renew(connection).is_ok());
        if !renewed {
            return self.roll_back();
        }
        if let (Some(open), Some(Ok(mark))) = (&mut self.open, self.connection.as_ref().map(Mark::read)) {
            open.end = End::start(mark);
        }
        _ = self.commit(Certainty::NotDone);
    }

    /// Repeats records and commits them. They were acknowledged, so the limit of the file does not apply.
    pub(super) fn recover_records(&mut self, records: &[Vec<u8>]) -> Outcome<()> {
        let (Some(connection), false) = (&self.connection, records.is_empty()) else { return Ok(()) };
        schema::limit_pages(connection, None).map_err(GroupFailure::of)?;
        repeat_calls(connection, &mut self.cache, records).map_err(GroupFailure::of)?;
        self.commit(Certainty::NotDone)?;
        let Some(connection) = &self.connection else { return Ok(()) };
        schema::limit_pages(connection, self.options.max_pages).map_err(GroupFailure::of)
    }
}

/// Repeats the calls of records.
fn repeat_calls(connection: &Connection, cache: &mut WriteCache, records: &[Vec<u8>]) -> Work<()> {
    for record in records {
        for call in Call::all(record)? {
            let mut step = Step { connection, cache: &mut *cache, now: call.now };
            run_call(&call, &mut step)?;
            cache.keep(connection)?;
        }
    }
    Ok(())
}

/// Repeats a call. The kinds of calls belong to the version of the log.
fn run_call(call: &Call<'_>, step: &mut Step<'_>) -> Work<()> {
    match call.kind {
        HandOffs::KIND => call.run_as::<HandOffs>(step),
        Notes::KIND => call.run_as::<Notes>(step),
        Posts::KIND => call.run_as::<Posts>(step),
        ClaimDue::KIND => call.run_as::<ClaimDue>(step),
        ClaimOne::KIND => call.run_as::<ClaimOne>(step),
        Renew::KIND => call.run_as::<Renew>(step),
        Release::KIND => call.run_as::<Release>(step),
        Settle::KIND => call.run_as::<Settle>(step),
        PollWork::KIND => call.run_as::<PollWork>(step),
        SettleAndContinue::KIND => call.run_as::<SettleAndContinue>(step),
        kind => Err(Fault::Corrupt(format!("unknown kind {kind} of a call in the redo log"))),
    }
}
