//! The outbox under concurrent calls: every end is read once, whoever carries out a hand-off, and whenever watching begins.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bson::{Document, doc};
use lazaret_core::store::{LetterStore, Limits, Outbox};
use lazaret_testkit::suite::outbox::concurrent::{
    Writers, an_end_that_is_listed_late_is_still_read, dead, queue, read,
    watching_that_begins_between_hand_offs_misses_none,
};

use crate::support::{TestDatabase, server};

const WRITERS: Writers = Writers { count: 4, calls: 8 };

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_end_that_is_listed_after_a_later_one_was_forgotten_is_still_read() {
    // I11
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    an_end_that_is_listed_late_is_still_read(WRITERS, || test.open(None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watching_that_begins_between_hand_offs_misses_none_of_them() {
    // I11
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    watching_that_begins_between_hand_offs_misses_none(WRITERS, || test.open(None)).await;
}

#[tokio::test]
async fn an_end_that_was_forgotten_is_not_listed_by_watching_again() {
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    let store = test.open(None).await;
    store.watch_ends(&queue()).await.unwrap();
    store.hand_off(&queue(), &Limits::NONE, (0..5).map(dead).collect()).await.unwrap();
    let page = store.ends(&queue(), 0, 2).await.unwrap();
    assert_eq!((page.ends.len(), page.left), (2, 3));
    store.forget_ends(&queue(), page.ends[1].number).await.unwrap();
    // A watch that was interrupted is completed by the next one, and looks through the letters again.
    let watches = test.database().await.collection::<Document>("_fw_dlq_watches");
    watches.update_one(doc! {}, doc! { "$set": { "complete": false } }).await.unwrap();
    test.open(None).await.watch_ends(&queue()).await.unwrap();
    let listed = read(store, Arc::new(AtomicBool::new(true))).await;
    assert_eq!(listed, ["m-2", "m-3", "m-4"]);
}
