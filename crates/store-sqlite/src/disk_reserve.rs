//! Keeps the reserve of the disk: counts what all callers of this process write, before it is written.
//!
//! Consumers keep their own reserve, and stop reading at it. This one holds for everybody: several consumers, imports, adopted letters
//! and posts, which together write more than each of them knows of.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lazaret_core::policy::CapacityPolicy;
use lazaret_core::store::{ErrorKind, Occupancy, Result, StoreError};

use crate::occupancy;
use crate::redo::Size;

/// What a byte takes of the disk at most, before it is checkpointed: its place in the redo log, in SQLite's log and in the database,
/// and as much again for indexes and pages that are not full.
const ON_DISK: u64 = 4;
/// What a letter or a post takes beside its own bytes: its rows, and its places in the indexes.
const BESIDE: u64 = 2 << 10;
/// The limit, by its configuration key.
const MIN_FREE: &str = "min-free";

/// What has to stay free of the disk, and what was written since that was looked at.
#[derive(Default)]
pub(crate) struct DiskReserve(Mutex<State>);

#[derive(Default)]
struct State {
    min_free: Option<u64>,
    /// The bytes of all calls that have ended.
    written: u64,
    /// The bytes of the calls that have not.
    in_flight: u64,
    /// How many bytes may be written in all, by the last measurement. Nobody has measured in the beginning.
    most: u64,
    #[cfg(test)]
    pretended: Option<Occupancy>,
}

impl State {
    fn take(&mut self, bytes: u64) -> bool {
        let fits = self.written.saturating_add(self.in_flight).saturating_add(bytes) <= self.most;
        if fits {
            self.in_flight += bytes;
        }
        fits
    }
}

/// A call that may write. It counts as in flight until this is dropped.
#[must_use]
pub(crate) struct Admitted<'a> {
    reserve: &'a DiskReserve,
    bytes: u64,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let mut state = self.reserve.lock();
        state.in_flight -= self.bytes;
        state.written = state.written.saturating_add(self.bytes);
    }
}

impl DiskReserve {
    /// Sets what has to stay free; `None` is nothing.
    pub(crate) fn set(&self, min_free: Option<u64>) {
        let mut state = self.lock();
        (state.min_free, state.most) = (min_free, 0);
    }

    /// Admits a call that writes so much to the store at this path. Its `room` is measured if necessary.
    ///
    /// # Errors
    /// `Full` if it would take of the reserve. Nothing was written.
    pub(crate) async fn admit(
        &self,
        path: &Path,
        operation: &'static str,
        size: Size,
        room: impl Future<Output = Result<Occupancy>>,
    ) -> Result<Admitted<'_>> {
        let bytes = (size.bytes as u64).saturating_add(BESIDE.saturating_mul(size.count as u64));
        let (min_free, before) = {
            let mut state = self.lock();
            if state.min_free.is_none() {
                return Ok(Admitted { reserve: self, bytes: 0 });
            }
            if state.take(bytes) {
                return Ok(Admitted { reserve: self, bytes });
            }
            // What is in flight now may not be in the measurement, and stays counted.
            (state.min_free, state.written)
        };
        let Ok(room) = self.measured(room).await else {
            // What nobody knows bounds nothing.
            return Ok(Admitted { reserve: self, bytes: 0 });
        };
        let policy = CapacityPolicy { min_free, ..CapacityPolicy::NONE };
        let mut state = self.lock();
        state.most = policy.room(&room).map_or(u64::MAX, |free| before.saturating_add(free / ON_DISK));
        if state.take(bytes) {
            return Ok(Admitted { reserve: self, bytes });
        }
        let disk = policy.disk(&room).map(|disk| disk.describe(Some(&occupancy::place(path))));
        let why = format!("no room for more letters and posts: {}", disk.unwrap_or_default());
        Err(StoreError::not_done(ErrorKind::Full, operation, why).with_limit(MIN_FREE))
    }

    #[cfg(not(test))]
    async fn measured(&self, room: impl Future<Output = Result<Occupancy>>) -> Result<Occupancy> {
        room.await
    }

    #[cfg(test)]
    async fn measured(&self, room: impl Future<Output = Result<Occupancy>>) -> Result<Occupancy> {
        let pretended = self.lock().pretended;
        match pretended {
            Some(room) => Ok(room),
            None => room.await,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::source::{Ingest, NewMessage};
    use lazaret_core::store::{HandOff, LetterStore, Limits, Placement};
    use lazaret_core::{Letter, Message, Position, QueueName, Timestamp};

    use super::*;
    use crate::{InboxOptions, Options, SqliteStore};

    /// A disk of a terabyte on which so much is free.
    fn pretend(reserve: &DiskReserve, free: u64) {
        let room = Occupancy { used: Some(0), free: Some(free), size: Some(1 << 40), ..Occupancy::default() };
        reserve.lock().pretended = Some(room);
    }

    async fn admit(reserve: &DiskReserve, bytes: usize) -> Result<Admitted<'_>> {
        let room = std::future::ready(Err(StoreError::not_done(ErrorKind::Unavailable, "test", "unknown")));
        reserve.admit(Path::new("lazaret.db"), "test", Size { count: 0, bytes }, room).await
    }

    #[tokio::test]
    async fn several_callers_do_not_take_the_same_room() {
        // I9
        let reserve = DiskReserve::default();
        drop(admit(&reserve, usize::MAX).await.unwrap());
        reserve.set(Some(1000));
        pretend(&reserve, 1000 + 100 * ON_DISK);
        let first = admit(&reserve, 60).await.unwrap();
        let refused = admit(&reserve, 41).await.err().unwrap();
        assert_eq!((refused.kind(), refused.limit()), (ErrorKind::Full, Some(MIN_FREE)));
        assert!(refused.context().contains("must stay free (min-free)"), "{refused}");
        let second = admit(&reserve, 40).await.unwrap();
        // They are written, and the disk is measured with them.
        drop((first, second));
        pretend(&reserve, 1000);
        assert!(admit(&reserve, 1).await.is_err());
        pretend(&reserve, 1000 + 50 * ON_DISK);
        let third = admit(&reserve, 50).await.unwrap();
        // What is in flight is not in a measurement.
        assert!(admit(&reserve, 1).await.is_err());
        drop(third);
        reserve.set(None);
        assert!(admit(&reserve, usize::MAX).await.is_ok());
    }

    #[tokio::test]
    async fn hand_offs_and_posts_leave_the_reserve_alone() {
        // I9
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("lazaret.db"), Options::default()).unwrap();
        store.keep_free(Some(1 << 20));
        let queue = QueueName::of("orders", "orders");
        let inbox = store.inbox_log("orders", InboxOptions::default());
        let hand_off = async |id: &str| {
            let message = Message::new(id, "orders", Position::new(0, 0)).into();
            let letter = Letter::new(queue.clone(), id.into(), message, Timestamp::UNIX_EPOCH);
            let item = HandOff { letter, placement: Placement::Open, grant: None };
            store.hand_off(&queue, &Limits::NONE, vec![item]).await
        };
        let post = async || inbox.post(vec![NewMessage::default()]).await;
        pretend(store.disk_reserve(), 1 << 20);
        for refused in [hand_off("a").await.err().unwrap(), post().await.err().unwrap()] {
            assert_eq!((refused.kind(), refused.limit()), (ErrorKind::Full, Some(MIN_FREE)), "{refused}");
        }
        assert_eq!(store.counts(&queue).await.unwrap().open(), 0);
        assert_eq!(inbox.backlog().await.unwrap().messages, 0);
        pretend(store.disk_reserve(), 2 << 20);
        hand_off("a").await.unwrap().remove(0).unwrap();
        post().await.unwrap();
    }
}
