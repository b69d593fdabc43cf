//! The side of an inbox where messages are consumed.

use std::pin::pin;

use async_trait::async_trait;
use lazaret_core::source::{Assignment, Commit, Source, SourceError, SourceEvent};
use lazaret_core::{Partition, StreamName};

use super::log::InboxLog;
use super::rows;
use crate::write_cache::inboxes::InboxNumbers;

/// Delivers what was posted to an inbox, in the order in which it was taken.
///
/// It has one partition, number 0, of a stream that is named like the consumer. What is committed is removed from the
/// file; its ids stay for a [while](crate::InboxOptions::window).
#[derive(Debug)]
pub struct InboxSource {
    log: InboxLog,
    /// The position that is delivered next.
    cursor: u64,
    assigned: bool,
    paused: bool,
    closed: bool,
}

impl InboxLog {
    /// The source of a consumer that reads this inbox.
    pub fn source(&self) -> InboxSource {
        InboxSource::new(self.clone())
    }
}

impl InboxSource {
    fn new(log: InboxLog) -> Self {
        Self { log, cursor: 0, assigned: false, paused: false, closed: false }
    }

    /// The stream its messages come on.
    pub fn stream(&self) -> StreamName {
        StreamName::from(self.log.consumer.as_str())
    }

    /// Its only partition.
    pub fn partition(&self) -> Partition {
        Partition { stream: self.stream(), index: 0 }
    }

    fn is_ours(&self, partitions: &[Partition]) -> bool {
        partitions
            .iter()
            .any(|partition| partition.index == 0 && partition.stream.as_str() == self.log.consumer.as_str())
    }

    async fn assign(&mut self) -> Result<SourceEvent, SourceError> {
        let consumer = self.log.consumer.clone();
        let asked = self.log.store.ask("assign", move |view| {
            let Some(facts) = InboxNumbers::read(view.connection, &consumer)? else { return Ok(None) };
            let settled = rows::settled(view.connection, &facts)?;
            Ok(Some((facts, settled)))
        });
        let (committed, settled) = asked.await?.map_or((None, Vec::new()), |(facts, settled)| {
            self.log.bell.seen(facts.next.unsigned_abs());
            (facts.committed, settled)
        });
        self.cursor = committed.map_or(0, |committed| committed.unsigned_abs() + 1);
        self.assigned = true;
        Ok(SourceEvent::Assigned(vec![Assignment { partition: self.partition(), settled }]))
    }

    /// Reads on. While paused, it only looks how much there is.
    async fn read(&mut self) -> Result<Option<SourceEvent>, SourceError> {
        let (consumer, stream, from) = (self.log.consumer.clone(), self.stream(), self.cursor);
        let most = if self.paused { 0 } else { self.log.options.batch.max(1) };
        let read = self
            .log
            .store
            .ask("read", move |view| rows::page(view.connection, &consumer, &stream, from, most));
        let page = read.await?;
        self.log.bell.seen(page.next);
        // Moved and returned without an await between: cancellation can lose nothing.
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
        let bell = self.log.bell.clone();
        loop {
            // Listens before it looks, so that nothing is posted unheard between the two.
            let mut rung = pin!(bell.rung.notified());
            rung.as_mut().enable();
            if let Some(event) = self.read().await? {
                return Ok(event);
            }
            // Ends early when this process has posted something.
            _ = tokio::time::timeout(self.log.options.poll, rung).await;
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

    /// An inbox is never taken away, so there is nothing to do.
    async fn revoked(&mut self, _partitions: &[Partition]) -> Result<(), SourceError> {
        Ok(())
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        self.closed = true;
        Ok(())
    }

    fn lag(&self) -> Option<u64> {
        Some(self.log.bell.next().saturating_sub(self.cursor))
    }
}
