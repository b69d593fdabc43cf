//! The id of a store, and its key for digests.

use lazaret_core::store::{Audit, store_id};
use lazaret_store_sqlite::{Options, SqliteStore};

#[tokio::test]
async fn a_store_keeps_the_id_of_its_first_opening() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| SqliteStore::open(folder.path().join(name), Options::default()).unwrap();
    let first = open("a.db");
    assert_eq!(store_id(&first, "a1").await.unwrap(), "a1");
    assert_eq!(store_id(&first, "another").await.unwrap(), "a1");
    first.close().await.unwrap();
    assert_eq!(store_id(&open("a.db"), "another").await.unwrap(), "a1", "after a restart");
    assert_eq!(store_id(&open("b.db"), "b2").await.unwrap(), "b2");
}

#[tokio::test]
async fn a_store_keeps_its_key_for_digests_and_no_other_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| SqliteStore::open(folder.path().join(name), Options::default()).unwrap();
    let first = open("a.db");
    let key = first.digest_key().await.unwrap();
    first.close().await.unwrap();
    assert_eq!(open("a.db").digest_key().await.unwrap(), key, "after a restart");
    assert_ne!(open("b.db").digest_key().await.unwrap(), key, "another store");
}
