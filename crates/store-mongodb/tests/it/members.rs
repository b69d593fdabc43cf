//! The store on real servers that step down, are killed, frozen and rolled back.
//!
//! The tests start the servers: `LAZARET_TEST_MONGOD` names the program. The one with elections also runs on the set of
//! `LAZARET_TEST_MONGODB_FAILOVER`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bson::{Document, doc};
use lazaret_core::query::Query;
use lazaret_core::store::{HandOff, LetterStore, Limits, Placed, Placement, Result as StoreResult, Triage};
use lazaret_core::{Failure, Letter, LetterState, Message, Position, Reason, Timestamp};
use lazaret_mongodb_testkit::ReplicaSet;
use lazaret_store_mongodb::MongoStore;
use mongodb::Client;

use crate::support::TestDatabase;
use crate::support::running::{LONG, Running, assert_stored_once, queue};

#[tokio::test(flavor = "multi_thread")]
async fn elections_lose_no_letter_store_none_twice_and_a_replay_survives_one() {
    // I1, I2, I8
    let own = match std::env::var("LAZARET_TEST_MONGODB_FAILOVER") {
        Ok(_) => None,
        Err(_) => {
            let Some(set) = ReplicaSet::for_test("elections", 3, &[]).await else { return };
            Some(set)
        }
    };
    let named = || std::env::var("LAZARET_TEST_MONGODB_FAILOVER").unwrap();
    let test = TestDatabase::new(own.as_ref().map_or_else(named, ReplicaSet::uri));
    let step_down = async || {
        let admin = Client::with_uri_str(&test.uri).await.unwrap().database("admin");
        let command = doc! { "replSetStepDown": 2, "secondaryCatchUpPeriodSecs": 1, "force": true };
        admin.run_command(command).await.unwrap();
    };
    let store = Arc::new(test.open(None).await);
    let mut running = Running::start(store.clone());
    for _ in 0..3 {
        running.push();
        step_down().await;
        running.push();
        running.until_stored().await;
        running.until_stored().await;
    }
    assert_stored_once(&store, running.messages).await;
    running.repaired.store(true, Ordering::SeqCst);
    step_down().await;
    let replayer = running.handle.replayer("orders").unwrap();
    tokio::time::timeout(LONG, replayer.process_all("repaired")).await.expect("timed out").unwrap();
    let counts = store.counts(&queue()).await.unwrap();
    assert_eq!((counts.open(), counts.of(LetterState::Resolved)), (0, running.messages));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn primaries_that_are_killed_or_frozen_lose_no_letter_and_store_none_twice() {
    // I1, I2, I8
    let Some(mut set) = ReplicaSet::for_test("killed and frozen primaries", 3, &[]).await else { return };
    let test = TestDatabase::new(set.uri());
    let store = Arc::new(test.open(None).await);
    let mut running = Running::start(store.clone());
    running.push();
    running.until_stored().await;
    for is_killed in [true, false] {
        let primary = set.primary().await;
        running.push();
        if is_killed {
            set.kill(primary);
        } else {
            set.freeze(primary);
        }
        running.push();
        // By the next primary.
        running.until_stored().await;
        running.until_stored().await;
        if is_killed {
            set.restart(primary).await;
        } else {
            set.thaw(primary);
        }
        set.until_caught_up(primary).await;
    }
    running.push();
    running.until_stored().await;
    assert_stored_once(&store, running.messages).await;
    running.end().await;
}

async fn hand_off(store: &MongoStore) -> StoreResult<Placed> {
    let message = Message::new("m-1", "orders", Position::new(0, 1));
    let mut letter = Letter::new(queue(), "k-1".into(), message.into(), Timestamp::now());
    letter.state = LetterState::Dead;
    letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "the ledger gave no answer"));
    let item = HandOff { letter, placement: Placement::Open, grant: None };
    let mut answers = store.hand_off(&queue(), &Limits::NONE, vec![item]).await?;
    answers.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_opened_and_builds_its_indexes_while_a_member_is_down() {
    let Some(mut set) = ReplicaSet::for_test("a member that is down", 3, &[]).await else { return };
    let test = TestDatabase::new(set.uri());
    assert_eq!(hand_off(&test.open(None).await).await.unwrap(), Placed::Opened);
    let letters = test.database().await.collection::<Document>("_fw_dlq");
    let indexes = async || BTreeSet::from_iter(letters.list_index_names().await.unwrap());
    let wanted = indexes().await;
    // As before an upgrade that adds indexes: those of a collection without documents are built by nobody.
    letters.drop_indexes().await.unwrap();
    assert_ne!(indexes().await, wanted);
    let secondary = set.others(set.primary().await)[0];
    set.kill(secondary);
    let opened = tokio::time::timeout(LONG, test.open(None)).await;
    let store = opened.expect("the store waits for the member that is down");
    assert_eq!(indexes().await, wanted);
    assert_eq!(hand_off(&store).await.unwrap(), Placed::Held(LetterState::Dead));
    set.restart(secondary).await;
    set.until_caught_up(secondary).await;
}

/// The number of documents in a database, as one member has them.
async fn documents(client: &Client, database: &str) -> u64 {
    let database = client.database(database);
    let mut count = 0;
    for name in database.list_collection_names().await.unwrap() {
        count += database.collection::<Document>(&name).count_documents(doc! {}).await.unwrap();
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_that_only_a_minority_has_is_not_confirmed_and_is_stored_once_after_the_rollback() {
    // I1, I8
    let Some(mut set) = ReplicaSet::for_test("rolled back letters", 3, &[]).await else { return };
    let test = TestDatabase::new(set.uri());
    let store = test.open(None).await;
    let cut_off = set.primary().await;
    let before = documents(set.client_of(cut_off), &test.name).await;
    for secondary in set.others(cut_off) {
        set.set_replicating(secondary, false).await;
    }
    let caller = store.clone();
    let first = tokio::spawn(async move { hand_off(&caller).await });
    // Something of it is there: a part is enough.
    let written = tokio::time::timeout(LONG, async {
        while documents(set.client_of(cut_off), &test.name).await == before {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    written.await.expect("timed out waiting for a write");
    set.kill(cut_off);
    for secondary in set.others(cut_off) {
        set.set_replicating(secondary, true).await;
    }
    set.primary().await;
    let confirmed = first.await.unwrap();
    let letters = async || {
        let all = Query::parse("state:open or state:closed").unwrap();
        store.find(&all, None, 10).await.unwrap().letters.len()
    };
    if confirmed.is_ok() {
        assert_eq!(letters().await, 1, "what was confirmed is stored");
    }
    let again = tokio::time::timeout(LONG, async {
        loop {
            if let Ok(placed) = hand_off(&store).await {
                return placed;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let again = again.await.expect("timed out waiting for a hand-off");
    let is_first = again == Placed::Opened;
    assert!(is_first || again == Placed::Held(LetterState::Dead), "{again:?}");
    assert!(!(is_first && confirmed.is_ok()), "it was stored once");
    set.restart(cut_off).await;
    set.until_caught_up(cut_off).await;
    assert_eq!(letters().await, 1);
    assert_eq!(store.counts(&queue()).await.unwrap().of(LetterState::Dead), 1);
}
