//! The position of an outbox in the store. Each reader claims the position under a new number, and a
//! late reader cannot write (I6).

use std::ops::RangeInclusive;
use std::sync::Arc;

use jiff::Timestamp;
use lazaret_core::store::{Anchor, Checkpoint, Expect, KeyValue, StoreError, Written};
use serde::{Deserialize, Serialize};

use crate::continuation;
use crate::error::OutboxError;
use crate::options::Ack;

/// The version of the token.
const VERSION: u32 = 1;
/// The metadata key for the number of a claim.
const FENCE: &str = "fence";

/// The settled part of an outbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The last id of the settled prefix.
    pub(crate) id: Option<u64>,
    /// Settled ids beyond the prefix.
    pub(crate) settled: Vec<RangeInclusive<u64>>,
    /// The number of times that ids began to refer to other rows.
    pub(crate) incarnation: u32,
    /// The identity of the table, its sequence and the server's history in which the ids were drawn.
    /// Positions of earlier versions have none.
    pub(crate) identity: Option<String>,
    /// The fingerprint of the last row of the prefix, for rows that stay.
    pub(crate) anchor: Option<String>,
    /// How the rows were acknowledged.
    pub(crate) ack: Option<Ack>,
}

/// The stored form. Version 1 began with the first three fields. Processes that know only these ignore
/// the others.
#[derive(Serialize, Deserialize)]
struct Token {
    version: u32,
    id: Option<u64>,
    settled: Vec<(u64, u64)>,
    #[serde(default)]
    incarnation: u32,
    #[serde(default)]
    identity: Option<String>,
    #[serde(default)]
    anchor: Option<String>,
    #[serde(default)]
    ack: Option<Ack>,
}

impl Progress {
    /// Returns the last settled id, including ids beyond the position.
    pub(crate) fn highest(&self) -> Option<u64> {
        continuation::highest(self.id, &self.settled)
    }

    /// Returns this progress, marked so that its ids refer to other rows from now on.
    pub(crate) fn replaced(self) -> Self {
        Self { identity: Some(continuation::REPLACED.to_owned()), ..self }
    }

    fn to_token(&self) -> Result<Vec<u8>, serde_json::Error> {
        let settled = self.settled.iter().map(|range| (*range.start(), *range.end())).collect();
        let Self { id, incarnation, identity, anchor, ack, .. } = self.clone();
        serde_json::to_vec(&Token { version: VERSION, id, settled, incarnation, identity, anchor, ack })
    }

    fn from_token(token: &[u8]) -> Result<Self, String> {
        let token: Token = serde_json::from_slice(token).map_err(|error| error.to_string())?;
        if token.version != VERSION {
            return Err(format!("unsupported version {}, expected {VERSION}", token.version));
        }
        let Token { id, settled, incarnation, identity, anchor, ack, .. } = token;
        let settled = settled.into_iter().map(|(start, end)| start..=end).collect();
        Ok(Self { id, settled, incarnation, identity, anchor, ack })
    }
}

/// The reason why a position was not written.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// A later reader has claimed the position.
    Fenced,
    Store(StoreError),
}

impl From<StoreError> for WriteError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Writes the checkpoint of one stream.
pub(crate) struct CheckpointWriter {
    store: Arc<dyn KeyValue>,
    name: String,
    instance: String,
}

impl CheckpointWriter {
    pub(crate) fn new(store: Arc<dyn KeyValue>, name: String, instance: String) -> Self {
        Self { store, name, instance }
    }

    /// Claims the checkpoint, so that no earlier reader can move it any more. Returns the number of the
    /// claim and the settled progress.
    pub(crate) async fn claim(&self) -> Result<(u64, Progress), OutboxError> {
        let mut claimed = None;
        let written = self.change(|checkpoint| {
            let fence = fence_of(checkpoint) + 1;
            checkpoint.metadata.insert(FENCE.into(), fence.to_string());
            claimed = Some((fence, checkpoint.processed.clone()));
            true
        });
        match written.await {
            Err(WriteError::Store(error)) => return Err(error.into()),
            Ok(()) | Err(WriteError::Fenced) => {}
        }
        let (fence, processed) = claimed.unwrap_or_default();
        let progress = match processed {
            None => Progress::default(),
            Some(anchor) => Progress::from_token(&anchor.token).map_err(|why| {
                let name = &self.name;
                OutboxError::refused(format!("the checkpoint {name} does not belong to an outbox: {why}"))
            })?,
        };
        Ok((fence, progress))
    }

    /// Writes the settled progress under a claim.
    pub(crate) async fn write(&self, fence: u64, progress: &Progress) -> Result<(), WriteError> {
        let token = progress.to_token().map_err(|error| {
            use lazaret_core::store::ErrorKind::Invalid;
            StoreError::not_done(Invalid, "save", "failed to encode the position").with_source(error)
        })?;
        let anchor = Anchor { token: token.into(), at: Timestamp::now() };
        self.change(|checkpoint| {
            checkpoint.processed = Some(anchor.clone());
            checkpoint.heartbeat = Some(anchor.at);
            fence_of(checkpoint) == fence
        })
        .await
    }

    /// Records under a claim that ids of rows already read refer to other rows.
    pub(crate) async fn mark_replaced(&self, fence: u64) -> Result<(), WriteError> {
        let reading = self.store.read(Checkpoint::SPACE, &self.name).await?;
        let found = reading.found.as_ref();
        let checkpoint = found.map(|found| Checkpoint::from_value(&found.value, "checkpoint")).transpose()?;
        let processed = checkpoint.and_then(|checkpoint| checkpoint.processed);
        let known = processed.and_then(|anchor| Progress::from_token(&anchor.token).ok()).unwrap_or_default();
        self.write(fence, &known.replaced()).await
    }

    /// Changes the checkpoint by compare-and-set. If `change` returns `false`, this reader is fenced.
    async fn change(&self, mut change: impl FnMut(&mut Checkpoint) -> bool + Send) -> Result<(), WriteError> {
        let mut reading = self.store.read(Checkpoint::SPACE, &self.name).await?;
        loop {
            let found = reading.found.as_ref();
            let known = found.map(|found| Checkpoint::from_value(&found.value, "checkpoint")).transpose()?;
            let mut checkpoint = known.unwrap_or_default();
            if !change(&mut checkpoint) {
                return Err(WriteError::Fenced);
            }
            checkpoint.instance = Some(self.instance.clone());
            let expect = found.map_or(Expect::Absent, |found| Expect::Version(found.version));
            let value = checkpoint.to_value()?;
            match self.store.write(Checkpoint::SPACE, &self.name, expect, Some(value), None).await? {
                Written::Done => return Ok(()),
                Written::Conflict(now) => reading = now,
            }
        }
    }
}

fn fence_of(checkpoint: &Checkpoint) -> u64 {
    checkpoint.metadata.get(FENCE).and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use lazaret_core::store::Checkpoints;
    use lazaret_memory::MemoryStore;

    use super::*;

    fn writer(store: &Arc<MemoryStore>) -> CheckpointWriter {
        CheckpointWriter::new(store.clone(), "orders".into(), "a".into())
    }

    #[tokio::test]
    async fn a_late_reader_cannot_move_the_position() {
        // I6
        let store = Arc::new(MemoryStore::default());
        let (old, new) = (writer(&store), writer(&store));
        let (first, progress) = old.claim().await.unwrap();
        assert_eq!(progress, Progress::default());
        let settled = Progress {
            id: Some(7),
            settled: vec![9..=12, 20..=20],
            incarnation: 2,
            identity: Some("1/2".into()),
            anchor: Some("ab".into()),
            ack: Some(Ack::Position),
        };
        old.write(first, &settled).await.unwrap();
        let (second, progress) = new.claim().await.unwrap();
        assert_eq!(progress, settled);
        let late = old.write(first, &Progress { id: Some(99), ..Progress::default() }).await;
        assert!(matches!(late, Err(WriteError::Fenced)));
        new.write(second, &Progress { id: Some(8), ..Progress::default() }).await.unwrap();
        assert_eq!(new.claim().await.unwrap().1.id, Some(8));
    }

    #[tokio::test]
    async fn rows_that_were_replaced_are_noted_with_the_position() {
        // I1: the next reader may find nothing that shows the replacement.
        let store = Arc::new(MemoryStore::default());
        let writer = writer(&store);
        let (first, _) = writer.claim().await.unwrap();
        writer.mark_replaced(first).await.unwrap();
        let (fence, progress) = writer.claim().await.unwrap();
        assert_eq!(progress, Progress::default().replaced());
        let settled =
            Progress { id: Some(7), incarnation: 2, identity: Some("a".into()), ..Progress::default() };
        writer.write(fence, &settled).await.unwrap();
        writer.mark_replaced(fence).await.unwrap();
        assert!(matches!(writer.mark_replaced(first).await, Err(WriteError::Fenced)));
        assert_eq!(writer.claim().await.unwrap().1, settled.replaced());
    }

    #[tokio::test]
    async fn the_position_of_another_source_is_refused() {
        let store = Arc::new(MemoryStore::default());
        let anchor = Anchor { token: "8265".into(), at: Timestamp::UNIX_EPOCH };
        store.save_processed("orders", anchor, None).await.unwrap();
        let error = writer(&store).claim().await.unwrap_err();
        assert!(error.to_string().contains("does not belong to an outbox"), "{error}");
    }

    #[test]
    fn a_later_version_is_refused() {
        let error = Progress::from_token(br#"{"version":2,"id":7,"settled":[]}"#).unwrap_err();
        assert!(error.contains("unsupported version 2"), "{error}");
        let stored = Progress::from_token(br#"{"version":1,"id":7,"settled":[[9,12]]}"#).unwrap();
        assert_eq!(stored, Progress { id: Some(7), settled: vec![9..=12], ..Progress::default() });
    }
}
