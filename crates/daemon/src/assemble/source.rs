//! Opens the source of a consumer.

use std::sync::Arc;

use async_trait::async_trait;
use lazaret_config::{Consumer as Wanted, Source as From};
use lazaret_core::Partition;
use lazaret_core::relay::Relay;
use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_source_file::{FileSource, Options as FileOptions};

use super::Stores;
use crate::error::Trouble;

/// A source, and who holds what failed in place of the store.
pub(super) type Both = (Opened, Option<Arc<dyn Relay>>);

/// Opens the source. With `until_idle` every source is finite: a file is not followed, topics are read to where they ended,
/// and an inbox to where it is empty.
pub(super) async fn open(wanted: &Wanted, stores: &Stores, until_idle: bool) -> Result<Both, Trouble> {
    match &wanted.source {
        From::File { path, follow } => {
            let options = FileOptions { follow: *follow && !until_idle, ..FileOptions::default() };
            let checkpoints = stores.checkpoints.clone();
            let file = FileSource::open(path, checkpoints, wanted.name.as_str(), options).await?;
            Ok((Opened::new(file), None))
        }
        #[cfg(feature = "sqlite")]
        From::Inbox => {
            let missing = Trouble::NotInThisBuild("an inbox in this store");
            let inbox = stores.inbox(&wanted.name).ok_or(missing)?;
            let opened = Opened::new(inbox.source());
            Ok((if until_idle { opened.ending_when_empty() } else { opened }, None))
        }
        #[cfg(feature = "kafka")]
        From::Kafka(kafka) => {
            let (source, relay) = super::kafka::open(wanted, kafka, until_idle).await?;
            Ok((Opened::new(source), relay))
        }
        _ => Err(Trouble::NotInThisBuild("this source")),
    }
}

/// A source of any kind.
pub(super) struct Opened {
    inner: Box<dyn Source>,
    /// Ends when nothing lies ahead. What comes later is left for the next run.
    ends_when_empty: bool,
    assigned: bool,
    ended: bool,
}

impl Opened {
    fn new(source: impl Source) -> Self {
        Self { inner: Box::new(source), ends_when_empty: false, assigned: false, ended: false }
    }

    #[cfg(feature = "sqlite")]
    fn ending_when_empty(self) -> Self {
        Self { ends_when_empty: true, ..self }
    }
}

#[async_trait]
impl Source for Opened {
    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        if self.ends_when_empty {
            if self.ended {
                // Nothing changes before the next call of another method.
                std::future::pending::<()>().await;
            }
            if self.assigned && self.inner.lag() == Some(0) {
                self.ended = true;
                return Ok(SourceEvent::End);
            }
        }
        let event = self.inner.next().await?;
        self.assigned |= matches!(event, SourceEvent::Assigned(_));
        Ok(event)
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        self.inner.commit(commits).await
    }

    fn begin_commit(&mut self, commits: Vec<Commit>) -> Result<(), Vec<Commit>> {
        match self.ends_when_empty {
            // Once it has ended, nobody is told anything.
            true => Err(commits),
            false => self.inner.begin_commit(commits),
        }
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.inner.pause(partitions);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.inner.resume(partitions);
    }

    fn rewind(&mut self, partitions: &[Partition]) {
        (self.assigned, self.ended) = (false, false);
        self.inner.rewind(partitions);
    }

    async fn revoked(&mut self, partitions: &[Partition]) -> Result<(), SourceError> {
        self.inner.revoked(partitions).await
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        self.inner.close().await
    }

    fn lag(&self) -> Option<u64> {
        self.inner.lag()
    }
}
