//! Reads messages from the owned partitions in turn, and implements the source.

use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::Partition;
use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};

use super::session::{Membership, POLL_INTERVAL};
use crate::owned_partition::{OwnedPartition, ReadEnd, Stage};

/// The maximum time for leaving the group.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

impl Membership {
    /// Returns the next event without waiting.
    fn step(&mut self) -> Option<Result<SourceEvent, SourceError>> {
        self.poll_clients();
        self.run_lookup();
        self.take_lookup();
        self.expire_revocation();
        self.take_rebalances();
        self.check_topics();
        self.check_logs();
        self.check_joining();
        self.check_recovery();
        self.confirm_membership();
        if let Some(event) = self.events.pop_front() {
            return Some(Ok(event));
        }
        if let Some(outcome) = self.take_commit_outcome() {
            return Some(Ok(outcome));
        }
        if let Some(error) = self.errors.pop_front() {
            return Some(Err(error));
        }
        if !self.may_read || self.topic_check.is_suspected() {
            return None;
        }
        self.take_messages().map(Ok)
    }

    /// Returns messages of the readable partitions in turn, or the end.
    fn take_messages(&mut self) -> Option<SourceEvent> {
        let finite = self.options.read_to_end;
        let (batch, count) = (self.options.batch, self.owned.len());
        let mut messages = Vec::new();
        let mut errors = Vec::new();
        for step in 1..=count {
            let index = (self.last_read + step) % count;
            let before = messages.len();
            let owned = &mut self.owned[index];
            if !owned.is_readable() {
                continue;
            }
            match owned.read(&mut messages, batch, &mut self.reader, finite, &mut errors) {
                ReadEnd::Done => {}
                ReadEnd::Truncated(offset) => self.restart_truncated(index, offset),
            }
            self.note_fetched(index, messages.len() > before, &mut errors);
            if messages.len() == batch {
                self.last_read = index;
                break;
            }
        }
        if !messages.is_empty() {
            // Messages of a retry topic may follow the end. Then there is another end.
            self.ended &= messages.iter().all(|message| message.hop.is_none());
            if self.has_error() {
                self.set_reading();
            }
            return Some(SourceEvent::Messages(messages));
        }
        self.events.pop_front().or_else(|| self.take_end())
    }

    /// Leaves a partition whose log was truncated below the delivered offsets. From there on, the log is
    /// a different one. Records after the truncation were already taken from the queue, so they are
    /// fetched again, in a new incarnation.
    fn restart_truncated(&mut self, index: usize, offset: u64) {
        let owned = &mut self.owned[index];
        let partition = owned.partition.clone();
        tracing::warn!(%partition, delivered = owned.next, offset, "log truncated, reading from its new end");
        owned.stage = Stage::Rewinding;
        self.events.push_back(SourceEvent::Lost(vec![partition.clone()]));
        self.truncations.push((partition, offset));
    }

    /// Returns the end, once, when everything that existed was delivered.
    fn take_end(&mut self) -> Option<SourceEvent> {
        let is_over = self.options.read_to_end
            && self.joined
            && !self.ended
            && self.lookup.is_none()
            && self.revocation.is_none()
            && self.rewinds.is_empty()
            && self.truncations.is_empty()
            && self.missing.is_none()
            && self.owned.iter().all(OwnedPartition::is_at_end);
        is_over.then(|| {
            self.ended = true;
            SourceEvent::End
        })
    }
}

#[async_trait]
impl Source for Membership {
    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        loop {
            if self.clients.is_none() {
                return Err(SourceError::permanent("the source was closed"));
            }
            // No await between taking and returning an event, so that cancellation loses nothing.
            if let Some(event) = self.step() {
                return event;
            }
            // A change since then has left a permit.
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        self.commit_all(commits).await
    }

    fn begin_commit(&mut self, commits: Vec<Commit>) -> Result<(), Vec<Commit>> {
        self.begin(commits)
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.owned
            .iter_mut()
            .filter(|owned| partitions.contains(&owned.partition))
            .for_each(|owned| owned.paused = true);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.owned
            .iter_mut()
            .filter(|owned| partitions.contains(&owned.partition))
            .for_each(|owned| owned.paused = false);
    }

    fn rewind(&mut self, partitions: &[Partition]) {
        self.start_rewind(partitions);
    }

    async fn revoked(&mut self, partitions: &[Partition]) -> Result<(), SourceError> {
        self.release(partitions).await;
        Ok(())
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        let Some(left) = self.leave() else { return Ok(()) };
        match tokio::time::timeout(LEAVE_TIMEOUT, left).await {
            Ok(_) => Ok(()),
            Err(_) => Err(SourceError::temporary("leaving the group timed out; its session will expire")),
        }
    }

    fn lag(&self) -> Option<u64> {
        let lag = |owned: &OwnedPartition| {
            let end = self.fetcher.end_of(&owned.partition).unwrap_or(0).max(owned.end);
            end.saturating_sub(owned.next)
        };
        Some(self.owned.iter().map(lag).sum())
    }
}
