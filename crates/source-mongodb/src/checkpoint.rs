//! The checkpoint of a stream. It has two anchors, written under the fence of a lease.
//!
//! *Processed* is the last settled event, with everything before it also settled. Only commits of the
//! engine move it. *Seen* is a later position, for which the server certified that no event of this
//! stream lies in between. Only the reader moves it. Both are parts of one value that is changed by
//! compare-and-set, so that neither writer overwrites the other. Each write checks that no newer leader
//! has claimed the checkpoint (I6).

mod anchors;
mod progress;

use std::convert::Infallible;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use lazaret_core::store::{Checkpoint, Expect, KeyValue, StoreError, Written as Outcome};
use tokio::sync::{Mutex, watch};

use self::progress::{FENCE, INVALIDATED, fence_of, resumable_at};
pub(crate) use self::progress::{Progress, is_incarnation_ended, is_invalidated, is_seen_after_processed};
use crate::options::CheckpointOptions;

/// The reason why a checkpoint was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    /// A newer leader has claimed the checkpoint.
    #[error("another instance has taken over the stream")]
    Fenced,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Writes the checkpoint of one stream.
pub(crate) struct CheckpointWriter {
    store: Arc<dyn KeyValue>,
    name: String,
    instance: String,
    options: CheckpointOptions,
    state: Mutex<State>,
    /// The token of the last event that the engine settled.
    settled: watch::Sender<Option<Bytes>>,
    /// The event time of the position from which the stream would resume.
    resumable_at: watch::Sender<Option<Timestamp>>,
    /// Whether a newer leader was found since the last claim.
    fenced: watch::Sender<bool>,
    /// The checkpoint as this process last read or wrote it. A store that has lost the checkpoint gets
    /// it back. Otherwise the stream would begin as if it had never been read, and skip events (I1).
    known: StdMutex<Option<Checkpoint>>,
}

/// A checkpoint after it was written.
pub(crate) struct Written {
    pub(crate) checkpoint: Checkpoint,
    /// Whether the store had lost the checkpoint.
    pub(crate) restored: bool,
}

#[derive(Default)]
struct State {
    /// Identifies the assignment. Commits of earlier assignments are ignored.
    epoch: u64,
    fence: u64,
    committed: Progress,
    /// The number of settled events that are not written yet.
    unwritten: u32,
    dirty: bool,
    /// Whether the last write failed.
    failed: bool,
}

impl CheckpointWriter {
    pub(crate) fn new(
        store: Arc<dyn KeyValue>,
        name: String,
        instance: String,
        options: CheckpointOptions,
    ) -> Self {
        Self {
            store,
            name,
            instance,
            options,
            state: Mutex::default(),
            settled: watch::Sender::default(),
            resumable_at: watch::Sender::default(),
            fenced: watch::Sender::default(),
            known: StdMutex::default(),
        }
    }

    fn known(&self) -> Option<Checkpoint> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_known(&self, checkpoint: Checkpoint) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(checkpoint);
    }

    /// Reads the checkpoint of another leader, in case the store loses it.
    pub(crate) async fn remember(&self) -> Result<(), StoreError> {
        let reading = self.store.read(Checkpoint::SPACE, &self.name).await?;
        if let Some(found) = reading.found {
            self.set_known(Checkpoint::from_value(&found.value, "checkpoint")?);
        }
        Ok(())
    }

    /// Claims the checkpoint for a leader, so that no earlier one can move it any more. Returns its
    /// content. Commits of the same leader are written first. Commits that an earlier leader did not
    /// write are dropped, and their events are delivered again.
    pub(crate) async fn claim(&self, epoch: u64, fence: u64) -> Result<Written, CheckpointError> {
        let mut state = self.state.lock().await;
        if state.fence == fence && state.dirty {
            self.write(&mut state).await?;
        }
        (state.epoch, state.fence) = (epoch, fence);
        self.fenced.send_replace(false);
        let claimed = self.change(&state, |_| {}).await?;
        self.reset(&mut state, Progress::of(&claimed.checkpoint));
        Ok(claimed)
    }

    /// Applies a position that the engine committed, and writes it when enough events are settled.
    pub(crate) async fn settle(
        &self,
        epoch: u64,
        progress: Progress,
        events: u32,
    ) -> Result<(), CheckpointError> {
        let mut state = self.state.lock().await;
        if state.epoch != epoch || state.committed == progress {
            return Ok(());
        }
        self.settled.send_replace(progress.token.clone());
        state.committed = progress;
        state.unwritten = state.unwritten.saturating_add(events);
        state.dirty = true;
        match state.unwritten >= self.options.every {
            true => self.write(&mut state).await,
            false => Ok(()),
        }
    }

    fn reset(&self, state: &mut State, committed: Progress) {
        self.settled.send_replace(committed.token.clone());
        *state = State { committed, unwritten: 0, dirty: false, failed: false, ..*state };
    }

    /// Waits until the event with this token is settled, with everything before it.
    pub(crate) async fn until_settled(&self, token: Option<&Bytes>) {
        // The sender lives as long as this call.
        let _ = self.settled.subscribe().wait_for(|settled| settled.as_ref() == token).await;
    }

    /// Returns `true` if the event with this token is the last settled one.
    pub(crate) fn is_settled(&self, token: Option<&Bytes>) -> bool {
        self.settled.borrow().as_ref() == token
    }

    /// Writes the position if it is not written yet.
    pub(crate) async fn flush(&self) -> Result<(), CheckpointError> {
        let mut state = self.state.lock().await;
        match state.dirty {
            true => self.write(&mut state).await,
            false => Ok(()),
        }
    }

    /// Writes again after a failed write.
    pub(crate) async fn retry_failed(&self, epoch: u64) -> Result<(), CheckpointError> {
        let mut state = self.state.lock().await;
        match state.failed && state.dirty && state.epoch == epoch {
            true => self.write(&mut state).await,
            false => Ok(()),
        }
    }

    /// Writes at intervals, forever.
    pub(crate) async fn flush_at_intervals(&self) -> Infallible {
        loop {
            tokio::time::sleep(self.options.interval).await;
            if let Err(error) = self.flush().await {
                tracing::warn!(checkpoint = self.name, %error, "checkpoint not written, retrying");
            }
        }
    }

    async fn write(&self, state: &mut State) -> Result<(), CheckpointError> {
        let now = Timestamp::now();
        let progress = state.committed.clone();
        state.failed = true;
        self.change(state, |checkpoint| {
            if checkpoint.processed.as_ref().map(|anchor| &anchor.token) != progress.token.as_ref() {
                checkpoint.metadata.remove(INVALIDATED);
            }
            progress.put(checkpoint);
            checkpoint.heartbeat = Some(now);
        })
        .await?;
        (state.dirty, state.failed, state.unwritten) = (false, false, 0);
        Ok(())
    }

    /// Returns the event time of the position from which the stream would resume after a crash.
    pub(crate) fn resumable_at(&self) -> Option<Timestamp> {
        *self.resumable_at.borrow()
    }

    /// Waits until a newer leader is found.
    pub(crate) async fn fenced(&self) {
        // The sender lives as long as this call.
        let _ = self.fenced.subscribe().wait_for(|fenced| *fenced).await;
    }

    /// Changes the checkpoint by compare-and-set, unless a newer leader has claimed it. If the store has
    /// lost the checkpoint, it is written again as this process knows it. At most, events that another
    /// leader has since settled are repeated.
    async fn change(
        &self,
        state: &State,
        mut change: impl FnMut(&mut Checkpoint) + Send,
    ) -> Result<Written, CheckpointError> {
        let mut reading = self.store.read(Checkpoint::SPACE, &self.name).await?;
        loop {
            let found = reading.found.as_ref();
            let stored = found.map(|found| Checkpoint::from_value(&found.value, "checkpoint")).transpose()?;
            // The fences of an emptied store start over.
            if stored.as_ref().is_some_and(|stored| fence_of(stored) > state.fence) {
                self.fenced.send_replace(true);
                return Err(CheckpointError::Fenced);
            }
            let lost = stored.is_none().then(|| self.known()).flatten();
            let restored = lost.is_some();
            let mut checkpoint = stored.or(lost).unwrap_or_default();
            change(&mut checkpoint);
            checkpoint.instance = Some(self.instance.clone());
            checkpoint.metadata.insert(FENCE.into(), state.fence.to_string());
            let expect = found.map_or(Expect::Absent, |found| Expect::Version(found.version));
            let value = checkpoint.to_value()?;
            match self.store.write(Checkpoint::SPACE, &self.name, expect, Some(value), None).await? {
                Outcome::Done => {
                    if restored {
                        tracing::error!(
                            checkpoint = self.name,
                            "checkpoint was missing in the store, written again as this process knew it; was the store emptied?"
                        );
                    }
                    self.resumable_at.send_replace(resumable_at(&checkpoint));
                    self.set_known(checkpoint.clone());
                    return Ok(Written { checkpoint, restored });
                }
                Outcome::Conflict(now) => reading = now,
            }
        }
    }

    /// Returns the time without events after which the seen position is written, or `None` for never.
    pub(crate) fn idle_heartbeat(&self) -> Option<Duration> {
        Some(self.options.idle_heartbeat).filter(|interval| !interval.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::store::{Anchor, Checkpoints};
    use lazaret_memory::MemoryStore;

    use super::*;
    use crate::incarnation::Life;

    const FIRST: Life = Life { number: 0, collection: None };

    fn writer(store: &Arc<MemoryStore>, every: u32) -> CheckpointWriter {
        let options = CheckpointOptions { every, ..CheckpointOptions::default() };
        CheckpointWriter::new(store.clone(), "orders".into(), "a".into(), options)
    }

    fn progress(token: &'static str, offset: u64) -> Progress {
        Progress { token: Some(token.into()), offset, settled: vec![] }
    }

    fn anchor(token: &'static str) -> Anchor {
        Anchor { token: token.into(), at: Timestamp::UNIX_EPOCH }
    }

    async fn stored(store: &MemoryStore) -> Checkpoint {
        store.load("orders").await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn a_position_is_written_every_n_events_and_at_the_flush() {
        let store = Arc::new(MemoryStore::default());
        let writer = writer(&store, 3);
        writer.claim(1, 1).await.unwrap();
        writer.settle(1, progress("t2", 2), 2).await.unwrap();
        assert_eq!(stored(&store).await.processed, None);
        writer.settle(1, progress("t3", 3), 1).await.unwrap();
        assert_eq!(&stored(&store).await.processed.unwrap().token[..], b"t3");
        writer.settle(1, progress("t4", 4), 1).await.unwrap();
        assert_eq!(&stored(&store).await.processed.unwrap().token[..], b"t3");
        writer.flush().await.unwrap();
        assert_eq!(Progress::of(&stored(&store).await), progress("t4", 4));
    }

    #[tokio::test]
    async fn a_late_leader_cannot_move_the_checkpoint() {
        // I6
        let store = Arc::new(MemoryStore::default());
        let (old, new) = (writer(&store, 1), writer(&store, 1));
        old.claim(1, 1).await.unwrap();
        old.settle(1, progress("t1", 1), 1).await.unwrap();
        let seen = new.claim(1, 2).await.unwrap().checkpoint;
        assert_eq!(&seen.processed.unwrap().token[..], b"t1");
        let late = old.settle(1, progress("t9", 9), 1).await;
        assert!(matches!(late, Err(CheckpointError::Fenced)));
        assert!(matches!(old.certify(None, anchor("s")).await, Err(CheckpointError::Fenced)));
        assert!(matches!(old.start_at(anchor("s"), &FIRST).await, Err(CheckpointError::Fenced)));
        tokio::time::timeout(Duration::from_secs(10), old.fenced()).await.expect("it learns of it");
        assert_eq!(Progress::of(&stored(&store).await), progress("t1", 1));
    }

    #[tokio::test]
    async fn a_store_that_has_lost_the_checkpoint_gets_it_back() {
        // I1
        let store = Arc::new(MemoryStore::default());
        let writer = writer(&store, 1);
        assert!(!writer.claim(1, 7).await.unwrap().restored, "there was none");
        let beyond = Progress { settled: vec![7..=8], ..progress("t1", 1) };
        writer.settle(1, beyond.clone(), 1).await.unwrap();
        let empty = || async {
            let space = Checkpoint::SPACE;
            store.write(space, "orders", Expect::Anything, None, None).await.unwrap();
        };
        empty().await;
        writer.certify(Some(&"t1".into()), anchor("s1")).await.unwrap();
        assert_eq!(Progress::of(&stored(&store).await), beyond);
        empty().await;
        // The fence starts over, and belongs to the store.
        let claimed = writer.claim(2, 1).await.unwrap();
        assert!(claimed.restored);
        assert_eq!((Progress::of(&claimed.checkpoint), fence_of(&claimed.checkpoint)), (beyond, 1));
        assert_eq!(claimed.checkpoint, stored(&store).await);
    }

    #[tokio::test]
    async fn a_commit_of_an_earlier_assignment_is_ignored() {
        let store = Arc::new(MemoryStore::default());
        let writer = writer(&store, 1);
        writer.claim(1, 1).await.unwrap();
        writer.claim(2, 1).await.unwrap();
        writer.settle(1, progress("t1", 1), 1).await.unwrap();
        assert_eq!(stored(&store).await.processed, None);
    }

    #[tokio::test]
    async fn the_anchors_do_not_overwrite_each_other() {
        let store = Arc::new(MemoryStore::default());
        let writer = writer(&store, 1);
        writer.claim(1, 1).await.unwrap();
        writer.start_at(anchor("s0"), &FIRST).await.unwrap();
        assert!(is_seen_after_processed(&stored(&store).await));
        let beyond = Progress { settled: vec![7..=8], ..progress("t1", 1) };
        writer.settle(1, beyond.clone(), 1).await.unwrap();
        let checkpoint = stored(&store).await;
        assert_eq!(
            (&checkpoint.seen.clone().unwrap().token[..], Progress::of(&checkpoint)),
            (&b"s0"[..], beyond)
        );
        assert!(!is_seen_after_processed(&checkpoint), "an event lies between");
        writer.certify(Some(&"t1".into()), anchor("s1")).await.unwrap();
        assert!(is_seen_after_processed(&stored(&store).await));
    }

    #[tokio::test]
    async fn a_certified_position_is_written_only_behind_the_processed_one() {
        // I1
        let store = Arc::new(MemoryStore::default());
        let writer = writer(&store, 10);
        writer.claim(1, 1).await.unwrap();
        writer.settle(1, progress("t1", 1), 1).await.unwrap();
        writer.certify(None, anchor("s0")).await.unwrap();
        let checkpoint = stored(&store).await;
        assert_eq!(checkpoint.seen, None, "another event was settled meanwhile");
        assert_eq!(&checkpoint.processed.unwrap().token[..], b"t1", "the processed one goes first");
        writer.certify(Some(&"t1".into()), anchor("s1")).await.unwrap();
        assert_eq!(&stored(&store).await.seen.unwrap().token[..], b"s1");
    }

    #[tokio::test]
    async fn an_incarnation_is_kept_and_takes_over_nothing_that_was_settled_beyond() {
        // I1: those offsets may belong to other events.
        let store = Arc::new(MemoryStore::default());
        let writer = writer(&store, 10);
        writer.claim(1, 1).await.unwrap();
        let beyond = Progress { settled: vec![7..=8], ..progress("t1", 1) };
        writer.settle(1, beyond, 1).await.unwrap();
        let life = Life { number: 2, collection: Some(bson::Uuid::from_bytes([7; 16])) };
        writer.continue_in(&life).await.unwrap();
        let read = || async {
            let checkpoint = stored(&store).await;
            (Progress::of(&checkpoint), Life::of(&checkpoint))
        };
        assert_eq!(read().await, (progress("t1", 1), life));
        writer.settle(1, progress("t2", 2), 1).await.unwrap();
        writer.flush().await.unwrap();
        assert_eq!(read().await, (progress("t2", 2), life), "commits keep it");
        writer.end_with("t3".into(), 3, &life).await.unwrap();
        assert_eq!(read().await, (progress("t3", 3), life));
        assert!(is_incarnation_ended(&stored(&store).await));
        writer.continue_in(&Life { number: 3, ..life }).await.unwrap();
        let checkpoint = stored(&store).await;
        assert!(is_invalidated(&checkpoint) && !is_incarnation_ended(&checkpoint), "it goes on behind it");
        let next = Life { number: 3, collection: None };
        writer.start_at(anchor("s"), &next).await.unwrap();
        assert_eq!(read().await, (Progress::default(), next));
    }

    #[tokio::test]
    async fn an_invalidation_is_kept_until_the_stream_goes_on() {
        let store = Arc::new(MemoryStore::default());
        let writer = writer(&store, 1);
        writer.claim(1, 1).await.unwrap();
        writer.settle(1, progress("t0", 0), 1).await.unwrap();
        writer.end_with("t1".into(), 1, &FIRST).await.unwrap();
        assert!(is_invalidated(&stored(&store).await));
        assert_eq!(Progress::of(&stored(&store).await), progress("t1", 1));
        writer.settle(1, progress("t2", 2), 1).await.unwrap();
        assert!(!is_invalidated(&stored(&store).await));
    }
}
