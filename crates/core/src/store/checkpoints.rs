//! Stored positions for sources without a broker that keeps them, as [key-value pairs](super::KeyValue).

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::error::{ErrorKind, Result, StoreError};
use super::key_value::{Expect, KeyValue, Reading, update};
use crate::letter::Diagnostics;

/// A position to resume from, with its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// The source's resume token.
    pub token: Bytes,
    /// Event time at this position.
    pub at: Timestamp,
}

/// The progress of a named stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The last message that is settled, with everything before it.
    pub processed: Option<Anchor>,
    /// A later position that the source certifies as safe: no message of this stream lies between (idle heartbeat).
    pub seen: Option<Anchor>,
    /// When a position to resume from was last confirmed.
    pub heartbeat: Option<Timestamp>,
    /// The instance that wrote it.
    pub instance: Option<String>,
    /// Additional data of the source.
    pub metadata: Diagnostics,
}

/// A reset of a checkpoint after its history was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The new start position; `None` clears the seen anchor and the heartbeat. The processed anchor is cleared subject to
    /// `dead` in either case.
    pub fresh: Option<Anchor>,
    /// The processed token that is no longer valid. A processed anchor with another token is newer and stays.
    pub dead: Option<Bytes>,
}

/// One checkpoint per name. The consumer chooses the name; two consumers of one stream use two names.
///
/// Each write changes only the fields in its name, so that writers of different anchors do not overwrite each other.
#[async_trait]
pub trait Checkpoints: Send + Sync + 'static {
    /// The checkpoint, if there is one.
    async fn load(&self, name: &str) -> Result<Option<Checkpoint>>;

    /// Replaces the whole checkpoint.
    async fn save(&self, name: &str, checkpoint: Checkpoint) -> Result<()>;

    /// Writes the processed anchor, and the heartbeat if given.
    async fn save_processed(&self, name: &str, anchor: Anchor, heartbeat: Option<Timestamp>) -> Result<()>;

    /// Writes the seen anchor, and the heartbeat if given.
    async fn save_seen(&self, name: &str, anchor: Anchor, heartbeat: Option<Timestamp>) -> Result<()>;

    /// Writes the heartbeat.
    async fn save_heartbeat(&self, name: &str, at: Timestamp) -> Result<()>;

    /// Resets the checkpoint atomically: sets seen and heartbeat to the fresh position, and clears the processed anchor unless it
    /// was replaced since `dead` was read. Instance and metadata stay.
    async fn reset(&self, name: &str, reset: Reset) -> Result<()>;

    /// Removes the checkpoint. A missing checkpoint is no error.
    async fn delete(&self, name: &str) -> Result<()>;
}

const SPACE: &str = Checkpoint::SPACE;

fn decode(reading: &Reading, operation: &'static str) -> Result<Option<Checkpoint>> {
    reading.found.as_ref().map(|found| Checkpoint::from_value(&found.value, operation)).transpose()
}

impl Checkpoint {
    /// The namespace of checkpoints, for sources that change one under a condition of their own.
    pub const SPACE: &'static str = "checkpoint";

    /// Decodes a checkpoint from its [value](super::KeyValue). An error names the operation.
    pub fn from_value(value: &[u8], operation: &'static str) -> Result<Self> {
        serde_json::from_slice(value).map_err(|error| {
            StoreError::not_done(ErrorKind::Corrupt, operation, "failed to decode the checkpoint")
                .with_source(error)
        })
    }

    /// Encodes the checkpoint as a [value](super::KeyValue), for stores that migrate it from another format.
    pub fn to_value(&self) -> Result<Bytes> {
        serde_json::to_vec(self).map(Bytes::from).map_err(|error| {
            StoreError::not_done(ErrorKind::Invalid, "save", "failed to encode the checkpoint")
                .with_source(error)
        })
    }
}

async fn change<K: KeyValue + ?Sized>(
    store: &K,
    name: &str,
    operation: &'static str,
    mut change: impl FnMut(&mut Checkpoint) + Send,
) -> Result<()> {
    update(store, (SPACE, name), |reading| {
        let mut checkpoint = decode(reading, operation)?.unwrap_or_default();
        change(&mut checkpoint);
        Ok(((), Some(checkpoint.to_value()?)))
    })
    .await
}

#[async_trait]
impl<K: KeyValue + ?Sized> Checkpoints for K {
    async fn load(&self, name: &str) -> Result<Option<Checkpoint>> {
        decode(&self.read(SPACE, name).await?, "load")
    }

    async fn save(&self, name: &str, checkpoint: Checkpoint) -> Result<()> {
        let value = checkpoint.to_value()?;
        self.write(SPACE, name, Expect::Anything, Some(value), None).await.map(drop)
    }

    async fn save_processed(&self, name: &str, anchor: Anchor, heartbeat: Option<Timestamp>) -> Result<()> {
        change(self, name, "save_processed", |stored| {
            stored.processed = Some(anchor.clone());
            stored.heartbeat = heartbeat.or(stored.heartbeat);
        })
        .await
    }

    async fn save_seen(&self, name: &str, anchor: Anchor, heartbeat: Option<Timestamp>) -> Result<()> {
        change(self, name, "save_seen", |stored| {
            stored.seen = Some(anchor.clone());
            stored.heartbeat = heartbeat.or(stored.heartbeat);
        })
        .await
    }

    async fn save_heartbeat(&self, name: &str, at: Timestamp) -> Result<()> {
        change(self, name, "save_heartbeat", |stored| stored.heartbeat = Some(at)).await
    }

    async fn reset(&self, name: &str, reset: Reset) -> Result<()> {
        change(self, name, "reset", |stored| {
            let processed = stored.processed.as_ref().map(|anchor| &anchor.token);
            // The processed anchor has another token than the invalid one: it was written since and is valid.
            if processed == reset.dead.as_ref() {
                stored.processed = None;
            }
            stored.heartbeat = reset.fresh.as_ref().map(|anchor| anchor.at);
            stored.seen = reset.fresh.clone();
        })
        .await
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.write(SPACE, name, Expect::Anything, None, None).await.map(drop)
    }
}
