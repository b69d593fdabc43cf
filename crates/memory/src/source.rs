//! One member of a memory log's group.

use std::sync::Arc;

use async_trait::async_trait;
use lazaret_core::Partition;
use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use tokio::sync::Notify;

use crate::log::{DEFAULT_BATCH, MemberId, MemoryLog};

/// A consumer of a [`MemoryLog`]. Dropping it without [`close`](Source::close) is a crash.
///
/// `End` is returned once the log is closed and all messages of the assigned partitions were delivered.
/// It is returned again after each later assignment, once the messages of that assignment were
/// delivered.
#[derive(Debug)]
pub struct MemorySource {
    log: MemoryLog,
    member: MemberId,
    wake: Arc<Notify>,
    batch: usize,
    closed: bool,
}

impl MemorySource {
    pub(crate) fn new(log: MemoryLog, member: MemberId, wake: Arc<Notify>) -> Self {
        Self { log, member, wake, batch: DEFAULT_BATCH, closed: false }
    }

    /// Sets the maximum number of messages per batch, at least one.
    #[must_use]
    pub fn with_batch(mut self, batch: usize) -> Self {
        self.batch = batch.max(1);
        self
    }

    /// Returns the member's number in the group.
    pub const fn member(&self) -> MemberId {
        self.member
    }

    /// Returns the log that this source reads.
    pub const fn log(&self) -> &MemoryLog {
        &self.log
    }
}

#[async_trait]
impl Source for MemorySource {
    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        if self.closed {
            return Err(SourceError::permanent("the source was closed"));
        }
        loop {
            // The event is taken and returned without an await in between, so cancellation loses
            // nothing.
            if let Some(event) = self.log.poll(self.member, self.batch) {
                return Ok(event);
            }
            // A change since the poll has stored a permit here.
            self.wake.notified().await;
        }
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        self.log.commit(self.member, commits);
        Ok(())
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.log.set_paused(self.member, partitions, true);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.log.set_paused(self.member, partitions, false);
    }

    fn rewind(&mut self, partitions: &[Partition]) {
        self.log.rewind(self.member, partitions);
    }

    async fn revoked(&mut self, partitions: &[Partition]) -> Result<(), SourceError> {
        self.log.revoked(self.member, partitions);
        Ok(())
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        self.closed = true;
        self.log.leave(self.member);
        Ok(())
    }

    fn lag(&self) -> Option<u64> {
        Some(self.log.lag(self.member))
    }
}

impl Drop for MemorySource {
    fn drop(&mut self) {
        self.log.leave(self.member);
    }
}
