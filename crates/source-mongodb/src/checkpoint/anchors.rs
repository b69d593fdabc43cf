//! Moves the anchors other than by commits: certified positions, new starts, and ends by an invalidation.

use bytes::Bytes;
use jiff::Timestamp;
use lazaret_core::store::Anchor;

use super::progress::{INVALIDATED, OFFSET, PASSED, Progress, SEEN_AFTER, SETTLED, text_of};
use super::{CheckpointError, CheckpointWriter};
use crate::incarnation::Life;

impl CheckpointWriter {
    /// Writes a position that the server certified after the processed one, which must be `after`. Does
    /// nothing if another event was settled in the meantime.
    pub(crate) async fn certify(&self, after: Option<&Bytes>, seen: Anchor) -> Result<(), CheckpointError> {
        let mut state = self.state.lock().await;
        if state.dirty {
            self.write(&mut state).await?;
        }
        let state = &*state;
        if state.committed.token.as_ref() != after {
            return Ok(());
        }
        let now = Timestamp::now();
        self.change(state, |checkpoint| {
            checkpoint.seen = Some(seen.clone());
            checkpoint.heartbeat = Some(now);
            match after {
                Some(token) => checkpoint.metadata.insert(SEEN_AFTER.into(), text_of(token)),
                None => checkpoint.metadata.remove(SEEN_AFTER),
            };
        })
        .await
        .map(drop)
    }

    /// Replaces both anchors by a start position, at the first start or after the history was lost.
    /// Everything delivered must be settled.
    pub(crate) async fn start_at(&self, fresh: Anchor, life: &Life) -> Result<(), CheckpointError> {
        self.replace(Progress::default(), Some(fresh), life).await
    }

    /// Replaces both anchors by positions of this incarnation.
    pub(crate) async fn replace(
        &self,
        processed: Progress,
        seen: Option<Anchor>,
        life: &Life,
    ) -> Result<(), CheckpointError> {
        let mut state = self.state.lock().await;
        let now = Timestamp::now();
        self.change(&state, |checkpoint| {
            checkpoint.processed = None;
            checkpoint.seen = seen.clone();
            checkpoint.heartbeat = Some(now);
            for name in [OFFSET, SETTLED, SEEN_AFTER, INVALIDATED] {
                checkpoint.metadata.remove(name);
            }
            processed.put(checkpoint);
            life.put(checkpoint);
        })
        .await?;
        self.reset(&mut state, processed);
        Ok(())
    }

    /// Records that later events belong to this incarnation. The position stays. Offsets that were
    /// settled beyond it belong to an earlier incarnation and are dropped.
    pub(crate) async fn continue_in(&self, life: &Life) -> Result<(), CheckpointError> {
        let mut state = self.state.lock().await;
        if state.dirty {
            self.write(&mut state).await?;
        }
        self.change(&state, |checkpoint| {
            checkpoint.metadata.remove(SETTLED);
            if let Some(invalidated) = checkpoint.metadata.get_mut(INVALIDATED) {
                PASSED.clone_into(invalidated);
            }
            life.put(checkpoint);
        })
        .await?;
        let committed = Progress { settled: Vec::new(), ..state.committed.clone() };
        self.reset(&mut state, committed);
        Ok(())
    }

    /// Records that the stream ends with this event, an invalidation. Everything before it must be settled.
    pub(crate) async fn end_with(
        &self,
        token: Bytes,
        offset: u64,
        life: &Life,
    ) -> Result<(), CheckpointError> {
        let mut state = self.state.lock().await;
        let now = Timestamp::now();
        let progress = Progress { token: Some(token), offset, settled: Vec::new() };
        self.change(&state, |checkpoint| {
            progress.put(checkpoint);
            checkpoint.heartbeat = Some(now);
            checkpoint.metadata.insert(INVALIDATED.into(), "true".into());
            life.put(checkpoint);
        })
        .await?;
        self.reset(&mut state, progress);
        Ok(())
    }
}
