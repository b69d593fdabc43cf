//! Encrypted stores pass the conformance suites.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::Clock;
use lazaret_core::store::{KeyValue, Store};
use lazaret_memory::MemoryStore;
use lazaret_sealing::{EncryptionKey, PlainStore, SealedStore};
use lazaret_store_sqlite::{Durability, Options, SqliteStore};
use lazaret_testkit::suite::WITHOUT_CONTENT;
use lazaret_testkit::{outbox_test_suite, store_test_suite};

async fn sealed<S: Store + KeyValue>(inside: S, clock: Arc<dyn Clock>) -> SealedStore<S> {
    let key = EncryptionKey::new(&[7; 32]);
    SealedStore::open(Arc::new(inside), vec![key]).await.unwrap().with_clock(clock)
}

async fn in_memory(clock: Arc<dyn Clock>) -> SealedStore<MemoryStore> {
    sealed(MemoryStore::new(clock.clone()), clock).await
}

async fn in_file(clock: Arc<dyn Clock>) -> SealedStore<SqliteStore> {
    sealed(file(Options { clock: clock.clone(), ..Options::default() }), clock).await
}

/// A store that writes every hand-off to the redo log first.
async fn in_redo_log(clock: Arc<dyn Clock>) -> SealedStore<SqliteStore> {
    let redo_time = Duration::from_secs(3600);
    let options = Options { clock: clock.clone(), redo_from: 0, redo_time, ..Options::default() };
    sealed(file(options), clock).await
}

/// A store without keys, beside which nobody encrypts.
async fn plain_in_memory(clock: Arc<dyn Clock>) -> PlainStore<MemoryStore> {
    PlainStore::new(Arc::new(MemoryStore::new(clock)))
}

async fn plain_in_file(clock: Arc<dyn Clock>) -> PlainStore<SqliteStore> {
    PlainStore::new(Arc::new(file(Options { clock, ..Options::default() })))
}

/// A store in a file of its own, whose folder is removed at once: the store keeps its files open.
fn file(options: Options) -> SqliteStore {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { durability: Durability::Normal, ..options };
    SqliteStore::open(folder.path().join("lazaret.db"), options).unwrap()
}

store_test_suite!(letters_in_memory, in_memory, except WITHOUT_CONTENT);
store_test_suite!(letters_in_a_file, io, in_file, except WITHOUT_CONTENT);
store_test_suite!(letters_in_a_redo_log, io, in_redo_log, except WITHOUT_CONTENT);
outbox_test_suite!(outbox, io, super::in_file);
store_test_suite!(letters_without_keys, super::plain_in_memory);
outbox_test_suite!(outbox_without_keys, io, super::plain_in_file);
