//! The consumer side of an inbox.

use std::pin::pin;

use async_trait::async_trait;
use lazaret_core::source::{Assignment, Commit, Source, SourceError, SourceEvent};
use lazaret_core::{Partition, StreamName};

use super::log::InboxLog;
use super::rows;
use crate::write_cache::inboxes::InboxNumbers;

/// Delivers the messages of an inbox, in the order in which they were taken.
///
/// It has one partition, number 0, of a stream with the consumer's name. Committed messages are removed from the
/// file; their ids are kept for the [window](crate::InboxOptions::window).
#[derive(Debug)]
pub struct InboxSource {
    log: InboxLog,
    /// The next position to deliver.
    cursor: u64,
    assigned: bool,
    paused: bool,
    closed: bool,
}

impl InboxLog {
    /// The source that reads this inbox.
    pub fn source(&self) -> InboxSource {
        InboxSource::new(self.clone())
    }
}

impl InboxSource {
    fn new(log: InboxLog) -> Self {
        Self { log, cursor: 0, assigned: false, paused: false, closed: false }
    }

    /// The stream of its messages.
    pub fn stream(&self) -> StreamName {
        StreamName::from(self.log.consumer.as_str())
    }

    /// Its only partition.
    pub fn partition(&self) -> Partition {
        Partition::new(self.stream(), 0)
    }

    fn is_ours(&self, partitions: &[Partition]) -> bool {
        partitions
            .iter()
            .any(|partition| partition.index == 0 && partition.stream.as_str() == self.log.consumer.as_str())
    }

    async fn assign(&mut self) -> Result<SourceEvent, SourceError> {
        let consumer = self.log.consumer.clone();
        let asked = self.log.store.ask("assign", move |view| {
            let Some(numbers) = InboxNumbers::read(view.connection, &consumer)? else { return Ok(None) };
            let settled = rows::settled(view.connection, &numbers)?;
            Ok(Some((numbers, settled)))
        });
        let (committed, settled) = asked.await?.map_or((None, Vec::new()), |(numbers, settled)| {
            self.log.wakeup.seen(numbers.next.unsigned_abs());
            (numbers.committed, settled)
        });
        self.cursor = committed.map_or(0, |committed| committed.unsigned_abs() + 1);
        self.assigned = true;
        // An inbox in a file has one reader, which nobody replaces while it is stopped.
        Ok(SourceEvent::Assigned(vec![Assignment::new(self.partition(), settled)]))
    }

    /// Reads the next batch. While paused, it only updates the lag.
    async fn read(&mut self) -> Result<Option<SourceEvent>, SourceError> {
        let (consumer, stream, from) = (self.log.consumer.clone(), self.stream(), self.cursor);
        let most = if self.paused { 0 } else { self.log.options.batch.max(1) };
        let read = self
            .log
            .store
            .ask("read", move |view| rows::page(view.connection, &consumer, &stream, from, most));
        let page = read.await?;
        self.log.wakeup.seen(page.next);
        // Moved and returned without an await between: cancellation loses nothing.
        let Some(last) = page.messages.last() else { return Ok(None) };
        self.cursor = last.position.offset + 1;
        Ok(Some(SourceEvent::Messages(page.messages)))
    }
}

#[async_trait]
impl Source for InboxSource {
    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        if self.closed {
            return Err(SourceError::permanent("the source was closed"));
        }
        if !self.assigned {
            return self.assign().await;
        }
        let wakeup = self.log.wakeup.clone();
        loop {
            // Subscribes before the read, so that no post in between is missed.
            let mut notify = pin!(wakeup.notify.notified());
            notify.as_mut().enable();
            if let Some(event) = self.read().await? {
                return Ok(event);
            }
            // Ends early after a post in this process.
            _ = tokio::time::timeout(self.log.options.poll, notify).await;
        }
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        for commit in commits {
            if self.assigned && self.is_ours(std::slice::from_ref(&commit.partition)) {
                let (consumer, window) = (self.log.consumer.clone(), self.log.options.window);
                let work =
                    self.log.store.write("commit", move |step| rows::commit(step, &consumer, window, commit));
                work.await?;
            }
        }
        Ok(())
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.paused |= self.is_ours(partitions);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.paused &= !self.is_ours(partitions);
    }

    fn rewind(&mut self, partitions: &[Partition]) {
        if self.assigned && self.is_ours(partitions) {
            (self.assigned, self.paused) = (false, false);
        }
    }

    /// An inbox is never revoked: does nothing.
    async fn revoked(&mut self, _partitions: &[Partition]) -> Result<(), SourceError> {
        Ok(())
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        self.closed = true;
        Ok(())
    }

    fn lag(&self) -> Option<u64> {
        Some(self.log.wakeup.next().saturating_sub(self.cursor))
    }
}
