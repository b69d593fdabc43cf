//! The outbox under concurrent calls: every end is read once, whoever carries out a hand-off, and whenever watching begins.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bson::{Document, doc};
use lazaret_core::store::{HandOff, LetterStore, Limits, Outbox, Placement};
use lazaret_core::{Failure, Letter, LetterState, Message, Position, QueueName, Reason, Timestamp};
use lazaret_store_mongodb::MongoStore;
use support::{TestDatabase, server};
use tokio::task::JoinSet;

const WRITERS: u64 = 4;
/// Calls of each writer.
const CALLS: u64 = 8;
/// Letters of each call.
const LETTERS: u64 = 3;

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn dead(number: u64) -> HandOff {
    let message = Message::new(format!("m-{number}"), "orders", Position::new(0, number)).with_payload("{}");
    let mut letter =
        Letter::new(queue(), format!("s-{number}").as_str().into(), message.into(), Timestamp::now());
    letter.state = LetterState::Dead;
    letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom"));
    HandOff { letter, placement: Placement::Open, grant: None }
}

async fn write(store: MongoStore, writer: u64) {
    for call in 0..CALLS {
        let first = (writer * CALLS + call) * LETTERS;
        let items = (first..first + LETTERS).map(dead).collect();
        for placed in store.hand_off(&queue(), &Limits::NONE, items).await.unwrap() {
            placed.unwrap();
        }
    }
}

/// Reads and forgets pages, as a mirror does, until nothing is left and the writers have ended.
async fn read(store: MongoStore, written: Arc<AtomicBool>) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        // Asked before the page: what was written before is in it, or was read.
        let is_last = written.load(Ordering::SeqCst);
        let page = store.ends(&queue(), 0, 10).await.unwrap();
        match page.ends.last() {
            Some(last) => store.forget_ends(&queue(), last.number).await.unwrap(),
            None if is_last => return found,
            None => tokio::task::yield_now().await,
        }
        found.extend(page.ends.into_iter().map(|end| end.letter.unwrap().message.id.to_string()));
    }
}

fn all() -> BTreeSet<String> {
    (0..WRITERS * CALLS * LETTERS).map(|number| format!("m-{number}")).collect()
}

fn assert_each_once(found: Vec<String>) {
    let (count, found) = (found.len(), found.into_iter().collect::<BTreeSet<_>>());
    assert_eq!(found.len(), count, "one was listed twice");
    let missing: Vec<String> = all().difference(&found).cloned().collect();
    assert!(missing.is_empty(), "not listed: {missing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_end_that_is_listed_after_a_later_one_was_forgotten_is_still_read() {
    // I11
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    let (store, other) = (test.open(None).await, test.open(None).await);
    store.watch_ends(&queue()).await.unwrap();
    let written = Arc::new(AtomicBool::new(false));
    let reading = tokio::spawn(read(other, written.clone()));
    let mut writing = JoinSet::new();
    for writer in 0..WRITERS {
        // A process of its own for each.
        writing.spawn(write(test.open(None).await, writer));
    }
    writing.join_all().await;
    written.store(true, Ordering::SeqCst);
    assert_each_once(reading.await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watching_that_begins_between_hand_offs_misses_none_of_them() {
    // I11
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    let (store, other) = (test.open(None).await, test.open(None).await);
    let mut writing = JoinSet::new();
    for writer in 0..WRITERS {
        writing.spawn(write(test.open(None).await, writer));
    }
    // Some have ended before.
    while store.counts(&queue()).await.unwrap().open() < 20 {
        tokio::task::yield_now().await;
    }
    let queue = queue();
    let (one, two) = tokio::join!(store.watch_ends(&queue), other.watch_ends(&queue));
    one.and(two).unwrap();
    writing.join_all().await;
    assert_each_once(read(store, Arc::new(AtomicBool::new(true))).await);
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
