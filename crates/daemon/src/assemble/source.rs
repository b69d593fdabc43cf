//! Opens the source of a consumer.

use std::sync::Arc;

use async_trait::async_trait;
use lazaret_config::{Consumer as ConsumerConfig, Source as From};
use lazaret_core::Partition;
use lazaret_core::incarnation::IncarnationRegistry;
use lazaret_core::relay::Relay;
use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_source_file::{FileSource, Options as FileOptions};

use super::consumer::Shared;
use crate::error::ConsumerError;

/// A source, and the relay that stores failed messages instead of the store.
pub(super) type SourceAndRelay = (Opened, Option<Arc<dyn Relay>>);

/// Opens the source. With `until_idle` every source is finite: a file is not followed, topics are read to their current end,
/// and an inbox until it is empty. A change stream or the outbox of a service has no end, and is refused.
pub(super) async fn open(config: &ConsumerConfig, shared: &Shared) -> Result<SourceAndRelay, ConsumerError> {
    let (stores, until_idle) = (&shared.stores, shared.until_idle);
    match &config.source {
        From::File { path, follow } => {
            let options = FileOptions { follow: *follow && !until_idle, ..FileOptions::default() };
            let checkpoints = stores.checkpoints.clone();
            let file = FileSource::open(path, checkpoints, config.name.as_str(), options).await?;
            let progress = file.progress();
            shared.telemetry.metrics.file(&config.name, move || progress.bytes_behind());
            Ok((Opened::new(file), None))
        }
        From::Inbox => {
            let opened = inbox(config, shared)?;
            Ok((if until_idle { opened.ending_when_empty() } else { opened }, None))
        }
        #[cfg(feature = "kafka")]
        From::Kafka(kafka) => {
            let (source, relay) = super::kafka::open(config, kafka, shared).await?;
            Ok((Opened::new(source), relay))
        }
        #[cfg(feature = "mongodb")]
        From::Mongodb(_) if until_idle => Err(ConsumerError::NoEnd("mongodb")),
        #[cfg(feature = "mongodb")]
        From::Mongodb(mongodb) => Ok((Opened::new(super::mongodb::open(config, mongodb, shared)?), None)),
        #[cfg(feature = "postgres")]
        From::PostgresOutbox(_) if until_idle => Err(ConsumerError::NoEnd("postgres-outbox")),
        #[cfg(feature = "postgres")]
        From::PostgresOutbox(outbox) => {
            Ok((Opened::new(super::postgres_outbox::open(config, outbox, shared)?), None))
        }
        _ => Err(ConsumerError::NotInThisBuild("this source")),
    }
}

/// Opens the inbox that the store keeps.
fn inbox(config: &ConsumerConfig, shared: &Shared) -> Result<Opened, ConsumerError> {
    #[cfg(feature = "sqlite")]
    if let Some(store) = &shared.stores.sqlite {
        let options = lazaret_store_sqlite::InboxOptions::default();
        return Ok(decrypted(store.inbox_log(config.name.as_str(), options).source(), config, shared));
    }
    #[cfg(feature = "postgres")]
    if let Some(store) = &shared.stores.postgres {
        return Ok(decrypted(super::postgres::inbox_source(store, config, shared), config, shared));
    }
    let _ = (config, shared);
    Err(ConsumerError::NotInThisBuild("an inbox with this store"))
}

/// The source of an inbox, which decrypts if the store is encrypted, and delivers nothing encrypted without the keys.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn decrypted(source: impl Source, config: &ConsumerConfig, shared: &Shared) -> Opened {
    let keys = shared.stores.keys.clone();
    Opened::new(lazaret_sealing::SealedSource::new(source, config.name.as_str(), keys))
}

/// A source of any kind.
pub(super) struct Opened {
    inner: Box<dyn Source>,
    /// Ends when the lag is zero. Later messages are read by the next run.
    ends_when_empty: bool,
    assigned: bool,
    ended: bool,
}

impl Opened {
    fn new(source: impl Source) -> Self {
        Self { inner: Box::new(source), ends_when_empty: false, assigned: false, ended: false }
    }

    fn ending_when_empty(self) -> Self {
        Self { ends_when_empty: true, ..self }
    }
}

#[async_trait]
impl Source for Opened {
    fn attach(&mut self, registry: Arc<dyn IncarnationRegistry>) {
        self.inner.attach(registry);
    }

    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        if self.ends_when_empty {
            if self.ended {
                // Waits until another method is called.
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
            // A background commit could not report its result after the end.
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
