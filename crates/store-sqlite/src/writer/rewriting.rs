//! Rewrites the file after erasures: some time after the last one, so that several share a rewrite.
//!
//! SQLite rewrites a file under its write lock, so writes wait meanwhile. A [mark](crate::erasure_mark) in the file tells that a rewrite is
//! due, so the next opening makes up for one that a crash or the end of the process has kept from happening.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lazaret_core::store::Certainty;

use super::requests::GroupFailure;
use super::thread::{Outcome, Writer};
use crate::{erasure_mark, schema};

/// A rewrite is not postponed for longer, however many erasures follow each other.
const LONGEST_DELAY: Duration = Duration::from_secs(3600);
/// The time after which a rewrite that failed is tried again.
const RETRY: Duration = Duration::from_secs(3600);

/// Why the last rewrite failed, for readers; `None` if it did not.
#[derive(Clone, Debug, Default)]
pub(super) struct RewriteFailure(Arc<Mutex<Option<String>>>);

impl RewriteFailure {
    pub(super) fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, why: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}

/// A rewrite that is due.
#[derive(Clone, Copy)]
pub(super) struct DueRewrite {
    /// When the first erasure was noticed.
    since: Instant,
    at: Instant,
}

impl DueRewrite {
    /// The time until it is due.
    pub(super) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }
}

impl Writer {
    /// Continues what an earlier process has left.
    pub(super) fn resume_rewrite(&mut self) {
        let mark = self.connection.as_ref().map_or(Ok(None), erasure_mark::read);
        // The next call meets the same error.
        if mark.is_ok_and(|mark| mark.is_some()) {
            self.schedule_rewrite();
        }
    }

    /// Rewrites the file if that is due.
    pub(super) fn rewrite_when_due(&mut self) {
        if std::mem::take(&mut self.cache.has_erased) {
            self.schedule_rewrite();
        }
        if self.due_rewrite.is_some_and(|due| due.left().is_zero())
            && let Err(failure) = self.rewrite()
        {
            tracing::warn!(
                why = %failure.context,
                "file not rewritten, it still holds erased content; tried again"
            );
        }
    }

    fn schedule_rewrite(&mut self) {
        let now = Instant::now();
        let since = self.due_rewrite.map_or(now, |due| due.since);
        let at = (now + self.options.rewrite_after.min(LONGEST_DELAY)).min(since + LONGEST_DELAY);
        self.due_rewrite = Some(DueRewrite { since, at });
    }

    /// Writes the whole file anew and empties both logs. After a failure it is tried again.
    pub(super) fn rewrite(&mut self) -> Outcome<()> {
        self.due_rewrite = None;
        let rewritten = self.rewrite_once();
        if rewritten.is_err() {
            let now = Instant::now();
            self.due_rewrite = Some(DueRewrite { since: now, at: now + RETRY });
        }
        self.rewrite_failure.set(rewritten.as_ref().err().map(|failure| failure.context.clone()));
        rewritten
    }

    fn rewrite_once(&mut self) -> Outcome<()> {
        self.commit(Certainty::NotDone)?;
        // Under the write lock, with no valid record.
        self.begin()?;
        let mark = self.connection.as_ref().map_or(Ok(None), erasure_mark::read);
        let cleared = self.redo.clear();
        self.roll_back();
        let mark = mark.map_err(GroupFailure::of)?;
        cleared.map_err(|error| GroupFailure::of(self.redo.fault(&error)))?;
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => schema::connect(&self.path, &self.options)
                .map_err(|error| GroupFailure::rolled_back(&error))?,
        };
        let connection = self.connection.insert(connection);
        connection.execute_batch("VACUUM").map_err(GroupFailure::of)?;
        schema::truncate_wal(connection).map_err(GroupFailure::of)?;
        mark.map_or(Ok(()), |mark| self.remove_mark(mark))
    }

    fn remove_mark(&mut self, mark: i64) -> Outcome<()> {
        self.begin()?;
        let removed = self.connection.as_ref().map_or(Ok(()), |file| erasure_mark::remove(file, mark));
        if let Err(fault) = removed {
            self.roll_back();
            return Err(GroupFailure::of(fault));
        }
        self.commit(Certainty::NotDone)
    }
}
