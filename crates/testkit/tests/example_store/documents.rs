//! The database of the example: collections of documents, and nothing that changes two documents at once.
//!
//! Four operations, as MongoDB, DynamoDB, etcd or an object store with conditional writes have them: read a document, write
//! it if it still has a version, delete it if it still has a version, and read a range of keys.

use std::collections::BTreeMap;
use std::ops::RangeBounds;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_core::store::{ErrorKind, Result, StoreError};

/// A document and its version. Versions grow and are never given twice, in no collection; 0 stands for "no document".
#[derive(Clone, Default)]
pub(crate) struct Stored<V> {
    pub(crate) version: u64,
    pub(crate) value: V,
}

/// What another process does between two calls.
type Interruption = Box<dyn FnOnce() + Send>;

/// The connection that all collections share: it gives versions, and can be cut or interrupted.
#[derive(Clone)]
pub(crate) struct Connection {
    last_version: Arc<AtomicU64>,
    writes_left: Arc<AtomicU64>,
    /// The number of reads that are left before an interruption.
    interruption: Arc<Mutex<Option<(u64, Interruption)>>>,
}

impl Default for Connection {
    fn default() -> Self {
        let writes_left = Arc::new(AtomicU64::new(u64::MAX));
        Self { last_version: Arc::default(), writes_left, interruption: Arc::default() }
    }
}

impl Connection {
    /// Refuses every write after this many, as if the process had died there.
    pub(crate) fn cut_after(&self, writes: u64) {
        self.writes_left.store(writes, Ordering::SeqCst);
    }

    /// How many writes it takes before it is cut.
    pub(crate) fn writes_left(&self) -> u64 {
        self.writes_left.load(Ordering::SeqCst)
    }

    /// Lets another process do something before the read after this many.
    pub(crate) fn interrupt_after(&self, reads: u64, interruption: impl FnOnce() + Send + 'static) {
        *self.interruption() = Some((reads, Box::new(interruption)));
    }

    /// Whether the interruption is still to come. It does not come any more.
    pub(crate) fn end_interruption(&self) -> bool {
        self.interruption().take().is_some()
    }

    fn interruption(&self) -> MutexGuard<'_, Option<(u64, Interruption)>> {
        self.interruption.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn before_read(&self) {
        let mut next = self.interruption();
        match next.take() {
            Some((0, interruption)) => {
                drop(next);
                interruption();
            }
            Some((reads, interruption)) => *next = Some((reads - 1, interruption)),
            None => {}
        }
    }

    /// A number that is larger than every version given before.
    pub(crate) fn next_version(&self) -> u64 {
        self.last_version.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn check(&self) -> Result<()> {
        let take = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(1) };
        let taken = self.writes_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        let cut = |_| StoreError::not_done(ErrorKind::Unavailable, "write", "the connection was cut");
        taken.map(drop).map_err(cut)
    }
}

/// A collection of documents, ordered by their keys.
pub(crate) struct Collection<K, V> {
    documents: Mutex<BTreeMap<K, Stored<V>>>,
    connection: Connection,
}

impl<K: Ord + Clone, V: Clone> Collection<K, V> {
    pub(crate) fn new(connection: &Connection) -> Self {
        Self { documents: Mutex::default(), connection: connection.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, Stored<V>>> {
        self.documents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The document with this key.
    pub(crate) fn get(&self, key: &K) -> Option<Stored<V>> {
        self.connection.before_read();
        self.lock().get(key).cloned()
    }

    /// Writes a document if it still has this version; 0 if there is none yet. Returns whether it was written.
    pub(crate) fn put_if_version(&self, key: &K, version: u64, value: V) -> Result<bool> {
        let mut documents = self.lock();
        if documents.get(key).map_or(0, |stored| stored.version) != version {
            return Ok(false);
        }
        self.connection.check()?;
        documents.insert(key.clone(), Stored { version: self.connection.next_version(), value });
        Ok(true)
    }

    /// Deletes a document if it still has this version. Returns whether it was deleted.
    pub(crate) fn delete_if_version(&self, key: &K, version: u64) -> Result<bool> {
        let mut documents = self.lock();
        if documents.get(key).is_none_or(|stored| stored.version != version) {
            return Ok(false);
        }
        self.connection.check()?;
        Ok(documents.remove(key).is_some())
    }

    /// Looks at the documents of a range of keys, in order, and returns what `pick` picks. A database has an index for it.
    pub(crate) fn scan<T>(
        &self,
        range: impl RangeBounds<K>,
        mut pick: impl FnMut(&K, &V) -> Option<T>,
    ) -> Vec<T> {
        self.connection.before_read();
        self.lock().range(range).filter_map(|(key, stored)| pick(key, &stored.value)).collect()
    }

    /// The last key, if there is a document.
    pub(crate) fn last_key(&self) -> Option<K> {
        self.lock().last_key_value().map(|(key, _)| key.clone())
    }
}
