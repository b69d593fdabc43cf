//! Positions for sources that have no broker to keep them, kept as [values by name](super::KeyValue).

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::error::{ErrorKind, Result, StoreError};
use super::key_value::{Expect, KeyValue, Reading, update};
use crate::letter::Diagnostics;

/// A place that can be resumed from, and the time it speaks of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// What the source needs to come back here.
    pub token: Bytes,
    /// When what stands here happened.
    pub at: Timestamp,
}

/// What is known about how far a named stream was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The last message that is settled, with everything before it.
    pub processed: Option<Anchor>,
    /// A later place that the source certifies to be safe because nothing of ours lies between (idle heartbeat).
    pub seen: Option<Anchor>,
    /// When a place to resume from was last confirmed.
    pub heartbeat: Option<Timestamp>,
    /// Who wrote it.
    pub instance: Option<String>,
    /// Whatever the source wants to remember besides.
    pub metadata: Diagnostics,
}

/// How to begin anew after the history behind a checkpoint was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The new place to start from; `None` clears the seen anchor and the heartbeat. The processed anchor goes under the
    /// guard below in either case.
    pub fresh: Option<Anchor>,
    /// The processed token that was found dead. A processed anchor with another token is newer and stays.
    pub dead: Option<Bytes>,
}

/// One checkpoint per name. The name is the consumer's choice; two consumers of one stream use two names.
///
/// Each write touches only what its name says, so that the writer of one anchor never undoes the other's work.
#[async_trait]
pub trait Checkpoints: Send + Sync + 'static {
    /// The checkpoint, if there is one.
    async fn load(&self, name: &str) -> Result<Option<Checkpoint>>;

    /// Writes the whole checkpoint in place of what was there.
    async fn save(&self, name: &str, checkpoint: Checkpoint) -> Result<()>;

    /// Writes the processed anchor, and the heartbeat if one is given.
    async fn save_processed(&self, name: &str, anchor: Anchor, heartbeat: Option<Timestamp>) -> Result<()>;

    /// Writes the seen anchor, and the heartbeat if one is given.
    async fn save_seen(&self, name: &str, anchor: Anchor, heartbeat: Option<Timestamp>) -> Result<()>;

    /// Writes the heartbeat.
    async fn save_heartbeat(&self, name: &str, at: Timestamp) -> Result<()>;

    /// Begins anew, atomically: seen and heartbeat become the fresh place, and the processed anchor goes unless it
    /// was replaced since `dead` was read. Instance and metadata stay.
    async fn reset(&self, name: &str, reset: Reset) -> Result<()>;

    /// Removes the checkpoint. One that is not there is no error.
    async fn delete(&self, name: &str) -> Result<()>;
}

const SPACE: &str = "checkpoint";

fn decode(reading: &Reading, operation: &'static str) -> Result<Option<Checkpoint>> {
    let Some(found) = &reading.found else { return Ok(None) };
    serde_json::from_slice(&found.value).map(Some).map_err(|error| {
        StoreError::not_done(ErrorKind::Corrupt, operation, "the checkpoint cannot be read")
            .with_source(error)
    })
}

impl Checkpoint {
    /// The checkpoint as a [value](super::KeyValue), for stores that take it over from another form.
    pub fn to_value(&self) -> Result<Bytes> {
        serde_json::to_vec(self).map(Bytes::from).map_err(|error| {
            StoreError::not_done(ErrorKind::Invalid, "save", "the checkpoint cannot be written")
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
            // Another token than the one found dead was written since: that place is good.
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
