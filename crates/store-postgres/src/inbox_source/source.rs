//! The consumer side of an inbox.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::source::{Assignment, Commit, Ownership, Source, SourceError, SourceEvent};
use lazaret_core::store::Changes;
use lazaret_core::{Partition, StreamName};
use tokio::sync::watch;
use tokio::time::Instant;

use super::log::InboxLog;
use super::reader::{Asked, ReaderLease};
use super::rows::Acquired;

/// The shortest time between two attempts to get the lease.
const STANDBY: Duration = Duration::from_millis(200);

/// After this time without a response, the inbox counts as one that cannot be read.
const NO_RESPONSE: Duration = Duration::from_secs(5);

/// What a source does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum InboxStatus {
    /// It has not asked for the inbox yet.
    #[default]
    Starting,
    /// Another instance reads the inbox. This one takes over when that releases its lease, or does not renew it.
    Standby {
        /// The name of that instance.
        reader: String,
    },
    /// It reads the inbox.
    Reading,
    /// The inbox cannot be read, and is tried again.
    Failed {
        /// The error.
        error: String,
    },
    /// It was closed.
    Closed,
}

/// Delivers the messages of an inbox, in the order in which they were taken.
///
/// It has one partition, number 0, of a stream with the consumer's name. Of several instances, one reads it: it has a lease with a
/// fence, which each commit checks. The others stand by, and take over when the lease ends. Committed messages are removed from
/// the table; their ids are kept for the [window](crate::InboxOptions::window).
#[derive(Debug)]
pub struct InboxSource {
    log: InboxLog,
    /// The name of this reader, unlike that of any other.
    reader: String,
    lease: Option<ReaderLease>,
    changes: Changes,
    /// The next position to deliver.
    cursor: u64,
    paused: bool,
    closed: bool,
    /// Since when the store has not responded. A call that is cancelled is repeated, and may never fail.
    asked_at: Option<Instant>,
    status: watch::Sender<InboxStatus>,
}

impl InboxLog {
    /// A source that reads this inbox, or stands by.
    pub fn source(&self) -> InboxSource {
        InboxSource::new(self.clone())
    }
}

impl InboxSource {
    fn new(log: InboxLog) -> Self {
        // The keys of the hasher are random.
        let number = RandomState::new().build_hasher().finish();
        let (reader, changes) = (format!("{}/{number:016x}", log.options.instance), log.changes());
        let (asked_at, status) = (None, watch::Sender::default());
        Self { log, reader, lease: None, changes, cursor: 0, paused: false, closed: false, asked_at, status }
    }

    /// The stream of its messages.
    pub fn stream(&self) -> StreamName {
        StreamName::from(self.log.consumer.as_str())
    }

    /// Its only partition.
    pub fn partition(&self) -> Partition {
        Partition::new(self.stream(), 0)
    }

    /// What it does now.
    pub fn status(&self) -> watch::Receiver<InboxStatus> {
        self.status.subscribe()
    }

    fn set_status(&self, status: InboxStatus) {
        self.status.send_if_modified(|before| {
            let changed = *before != status;
            *before = status;
            changed
        });
    }

    fn set_failed(&self, error: impl fmt::Display) {
        self.set_status(InboxStatus::Failed { error: error.to_string() });
    }

    fn is_ours(&self, partitions: &[Partition]) -> bool {
        partitions
            .iter()
            .any(|partition| partition.index == 0 && partition.stream.as_str() == self.log.consumer.as_str())
    }

    /// Takes the lease, if no other instance has it.
    async fn assign(&mut self) -> Result<Option<SourceEvent>, SourceError> {
        let ownership = Ownership::leased();
        let asked = Asked::now(&ownership);
        match self.log.store.acquire_inbox(&self.log, &self.reader).await? {
            Acquired::HeldBy(reader) => {
                // The part behind the slash is random.
                let name = reader.rsplit_once('/').map_or(reader.as_str(), |(name, _)| name);
                self.set_status(InboxStatus::Standby { reader: name.to_owned() });
                Ok(None)
            }
            Acquired::Lease { fence, from, settled, next } => {
                // Stored and returned without an await between: cancellation loses nothing but the lease, which this reader can take again.
                self.log.seen(next);
                let lease = self.lease.insert(ReaderLease::keep(&self.log, fence, ownership, asked));
                let ownership = lease.ownership();
                (self.cursor, self.paused) = (from, false);
                self.set_status(InboxStatus::Reading);
                Ok(Some(SourceEvent::Assigned(vec![Assignment {
                    partition: self.partition(),
                    settled,
                    ownership,
                }])))
            }
        }
    }

    /// Reads the next batch. While paused, it only updates the lag.
    async fn read(&mut self) -> Result<Option<SourceEvent>, SourceError> {
        let most = if self.paused { 0 } else { self.log.options.batch.max(1) };
        let page = self.log.store.inbox_page(&self.log, &self.stream(), self.cursor, most).await?;
        self.log.seen(page.next);
        if let Some(lease) = self.lease.as_ref().filter(|lease| lease.fence != page.fence) {
            lease.lose();
            return Ok(None);
        }
        self.set_status(InboxStatus::Reading);
        // Moved and returned without an await between: cancellation loses nothing.
        let Some(last) = page.messages.last() else { return Ok(None) };
        self.cursor = last.position.offset + 1;
        Ok(Some(SourceEvent::Messages(page.messages)))
    }

    fn has_lost_lease(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| !lease.is_held())
    }

    fn lose(&mut self) -> SourceEvent {
        tracing::warn!(consumer = %self.log.consumer, "lease of the inbox lost");
        self.lease = None;
        self.set_status(InboxStatus::Starting);
        SourceEvent::Lost(vec![self.partition()])
    }
}

#[async_trait]
impl Source for InboxSource {
    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        if self.closed {
            return Err(SourceError::permanent("the source was closed"));
        }
        loop {
            if self.has_lost_lease() {
                return Ok(self.lose());
            }
            let cursor = self.cursor;
            if self.asked_at.get_or_insert_with(Instant::now).elapsed() >= NO_RESPONSE {
                self.set_failed("the store does not respond");
            }
            let event = match self.lease {
                Some(_) => self.read().await,
                None => self.assign().await,
            };
            self.asked_at = None;
            let event = event.inspect_err(|error| self.set_failed(error))?;
            // The process may have been stopped while it waited for the answer.
            if self.has_lost_lease() {
                self.cursor = cursor;
                continue;
            }
            if let Some(event) = event {
                return Ok(event);
            }
            if self.lease.is_none() {
                // Every post is told to those who stand by as well; they must not ask for the lease each time.
                tokio::time::sleep(STANDBY).await;
            }
            let lease = self.lease.as_ref();
            let lost = async {
                match lease {
                    Some(lease) => lease.lost().await,
                    None => std::future::pending().await,
                }
            };
            // What changes while the inbox is read is noted by the subscription.
            tokio::select! {
                () = self.changes.changed() => {}
                () = lost => {}
                () = tokio::time::sleep(self.log.options.poll) => {}
            }
        }
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        for commit in commits {
            let Some(lease) = &self.lease else { continue };
            if self.is_ours(std::slice::from_ref(&commit.partition))
                && !self.log.store.commit_inbox(&self.log, lease.fence, &commit).await?
            {
                // It is no longer assigned; the next event says so.
                lease.lose();
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
        if self.is_ours(partitions) {
            // Asks for the lease again, as the same reader.
            self.lease = None;
        }
    }

    /// An inbox is lost, never revoked: does nothing.
    async fn revoked(&mut self, _partitions: &[Partition]) -> Result<(), SourceError> {
        Ok(())
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        self.closed = true;
        if let Some(lease) = self.lease.take() {
            lease.release().await;
        }
        self.set_status(InboxStatus::Closed);
        Ok(())
    }

    fn lag(&self) -> Option<u64> {
        self.lease.as_ref().map(|_| self.log.next().saturating_sub(self.cursor))
    }
}
