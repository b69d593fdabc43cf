//! Reads that several callers share. While one reads, the others wait for the next read, which is one for all of them. A result is never
//! older than the request that gets it, so nothing has to be kept or forgotten when something changes.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OnceCell;

/// Reads by key. All that a result depends on is part of the key: what is read, and the rights of the caller.
pub(crate) struct SharedReads<K, V> {
    places: Mutex<HashMap<K, Place<V>>>,
}

/// The reads of one key, as long as somebody waits for one.
struct Place<V> {
    callers: usize,
    /// Held by the one who reads.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// The result of the read that has not begun.
    next: Arc<OnceCell<V>>,
}

impl<V> Default for Place<V> {
    fn default() -> Self {
        Self { callers: 0, turn: Arc::default(), next: Arc::default() }
    }
}

impl<K, V> Default for SharedReads<K, V> {
    fn default() -> Self {
        Self { places: Mutex::default() }
    }
}

impl<K: Hash + Eq + Clone, V: Clone> SharedReads<K, V> {
    /// Returns the result of a read that begins after this call: its own, or that of another caller.
    pub(crate) async fn read(&self, key: K, read: impl Future<Output = V>) -> V {
        let (turn, result) = self.join(&key);
        let _caller = Caller { reads: self, key: &key };
        let read = async {
            let _turn = turn.lock().await;
            self.begin(&key, &result);
            read.await
        };
        // When the caller who reads goes away, another one reads.
        result.get_or_init(|| read).await.clone()
    }

    fn join(&self, key: &K) -> (Arc<tokio::sync::Mutex<()>>, Arc<OnceCell<V>>) {
        let mut places = self.places();
        let place = places.entry(key.clone()).or_default();
        place.callers += 1;
        (place.turn.clone(), place.next.clone())
    }

    /// Callers from now on get a later read.
    fn begin(&self, key: &K, result: &Arc<OnceCell<V>>) {
        if let Some(place) = self.places().get_mut(key)
            && Arc::ptr_eq(&place.next, result)
        {
            place.next = Arc::default();
        }
    }
}

impl<K, V> SharedReads<K, V> {
    fn places(&self) -> MutexGuard<'_, HashMap<K, Place<V>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who waits for a read, until it is dropped.
struct Caller<'a, K: Hash + Eq, V> {
    reads: &'a SharedReads<K, V>,
    key: &'a K,
}

impl<K: Hash + Eq, V> Drop for Caller<'_, K, V> {
    fn drop(&mut self) {
        let mut places = self.reads.places();
        if let Some(place) = places.get_mut(self.key) {
            place.callers -= 1;
            if place.callers == 0 {
                places.remove(self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::poll;
    use tokio::sync::Semaphore;

    use super::*;

    /// Reads that wait for a permit, and are numbered.
    struct Source {
        reads: SharedReads<&'static str, u32>,
        begun: AtomicU32,
        permits: Semaphore,
    }

    impl Source {
        fn new() -> Self {
            Self { reads: SharedReads::default(), begun: AtomicU32::new(0), permits: Semaphore::new(0) }
        }

        async fn read(&self, key: &'static str) -> u32 {
            let read = async {
                let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
                self.permits.acquire().await.expect("it stays open").forget();
                number
            };
            self.reads.read(key, read).await
        }
    }

    #[tokio::test]
    async fn those_who_ask_during_a_read_share_the_next_one() {
        let source = Source::new();
        let mut first = Box::pin(source.read("a"));
        assert!(poll!(&mut first).is_pending(), "it reads");
        let mut others: Vec<_> = (0..3).map(|_| Box::pin(source.read("a"))).collect();
        for other in &mut others {
            assert!(poll!(other).is_pending());
        }
        assert_eq!(source.begun.load(Ordering::SeqCst), 1, "one reads at a time");
        source.permits.add_permits(2);
        assert_eq!(first.await, 1);
        for other in others {
            assert_eq!(other.await, 2, "a read that began after the request");
        }
        assert_eq!(source.begun.load(Ordering::SeqCst), 2);
        assert!(source.reads.places().is_empty(), "nothing is kept");
    }

    #[tokio::test]
    async fn what_has_been_read_is_read_again_for_later_callers() {
        let source = Source::new();
        source.permits.add_permits(2);
        assert_eq!(source.read("a").await, 1);
        assert_eq!(source.read("a").await, 2);
    }

    #[tokio::test]
    async fn other_keys_do_not_wait_and_share_nothing() {
        let source = Source::new();
        let mut first = Box::pin(source.read("a"));
        let mut second = Box::pin(source.read("b"));
        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        source.permits.add_permits(2);
        assert_eq!((first.await, second.await), (1, 2));
    }

    #[tokio::test]
    async fn when_the_reader_goes_away_another_caller_reads() {
        let source = Source::new();
        let mut first = Box::pin(source.read("a"));
        assert!(poll!(&mut first).is_pending());
        let mut second = Box::pin(source.read("a"));
        let mut third = Box::pin(source.read("a"));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        drop(first);
        assert!(poll!(&mut second).is_pending(), "it reads now");
        drop(second);
        source.permits.add_permits(1);
        assert_eq!(third.await, 3);
        assert!(source.reads.places().is_empty());
    }
}
