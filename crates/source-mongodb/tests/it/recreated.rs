//! Streams that are another one than before: a collection that was created again, and a server whose history was replaced.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::query::Query;
use lazaret_core::store::{Checkpoint, Checkpoints, Triage};
use lazaret_core::{HandlerError, Letter, LetterState, Operation};
use lazaret_engine::{Consumer, Options};
use lazaret_memory::MemoryStore;
use lazaret_source_mongodb::{
    Document, ErrorClass, MongoSource, MongoSourceOptions, OnHistoryLost, OnInvalidate, RestartPolicy, Start,
    StreamState,
};
use serde::Deserialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::support::peer::{Peer, event_token, token};
use crate::support::{LONG, Reading, current_incarnation, quick};

const FIRST: &str = "D3284E04D8914467A2160201812E4C4C";
const SECOND: &str = "0E1A2B3C4D5E6F708192A3B4C5D6E7F8";

fn options(peer: &Peer) -> MongoSourceOptions {
    MongoSourceOptions {
        on_invalidate: OnInvalidate::StartAfter,
        operations: vec![Operation::Insert],
        ..quick(MongoSourceOptions::collection(peer.uri(), "shop", "orders"))
    }
}

fn from_oplog_start(peer: &Peer) -> MongoSourceOptions {
    MongoSourceOptions { on_history_lost: OnHistoryLost::FromOplogStart, ..options(peer) }
}

async fn started(peer: &Peer, options: MongoSourceOptions, store: &Arc<MemoryStore>) -> Reading {
    let mut reading = Reading::attached(options, store);
    reading.until_status("it reads", |status| status.state == StreamState::Reading).await;
    peer.until_idle().await;
    reading
}

async fn checkpoint(store: &MemoryStore) -> Checkpoint {
    store.load("orders").await.unwrap().unwrap()
}

/// The id of an event in the first collection.
fn first(tick: u32) -> String {
    format!("orders:{}", event_token(tick, FIRST))
}

/// The id of an event in the second one.
fn second(tick: u32) -> String {
    format!("orders~1:{}", event_token(tick, SECOND))
}

async fn assert_second_is_recorded(reading: &Reading, store: &MemoryStore) {
    assert_eq!(reading.recreated, [reading.source.partition()]);
    assert_eq!((reading.source.partition().incarnation, reading.status().incarnation), (1, 1));
    assert!(reading.messages.iter().all(|message| message.position.incarnation == 1));
    let recorded = current_incarnation(store).await;
    assert_eq!((recorded.number, recorded.id.as_deref()), (1, Some("0e1a2b3c-4d5e-6f70-8192-a3b4c5d6e7f8")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_is_created_again_while_it_is_read_begins_an_incarnation() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    peer.create(FIRST);
    let mut reading = started(&peer, options(&peer), &store).await;
    let before = peer.insert(1);
    reading.until_count(1).await;
    assert_eq!(reading.ids(), [first(before)]);
    peer.invalidate();
    peer.create(SECOND);
    let all = [peer.insert(1), peer.insert(2)];
    reading.commit(0).await;
    reading.until_recreated(2).await;
    assert_eq!(reading.ids(), all.map(second));
    assert_second_is_recorded(&reading, &store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_is_created_again_while_the_consumer_is_down_is_read_from_its_first_change() {
    // I1
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    peer.create(FIRST);
    let mut reading = started(&peer, options(&peer), &store).await;
    peer.insert(1);
    reading.until_count(1).await;
    reading.commit(0).await;
    reading.close().await;
    peer.invalidate();
    peer.create(SECOND);
    let all = [peer.insert(1), peer.insert(2)];
    let mut again = Reading::attached(options(&peer), &store);
    again.until_recreated(2).await;
    assert_eq!(again.ids(), all.map(second));
    assert_second_is_recorded(&again, &store).await;
    // A crash before the first commit begins no further one.
    again.crash(&*store).await;
    let mut last = Reading::attached(options(&peer), &store);
    last.until_count(2).await;
    last.commit(1).await;
    let next = peer.insert(3);
    last.until("the next event", |last| last.messages.len() == 3).await;
    assert_eq!(last.ids(), [all[0], all[1], next].map(second));
    assert_eq!((last.recreated.len(), last.status().incarnation), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_another_collection_comes_before_all_of_the_one_before_is_settled() {
    // I1. A collection gets another UUID without an invalidation when it is resharded, or when the set was built anew.
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    peer.create(FIRST);
    let mut reading = started(&peer, options(&peer), &store).await;
    let before = peer.insert(1);
    peer.create(SECOND);
    let behind = peer.insert(2);
    reading.until_count(1).await;
    reading.crash(&*store).await;
    let mut again = Reading::attached(options(&peer), &store);
    again.until_count(1).await;
    assert_eq!((again.ids(), again.recreated.len()), (vec![first(before)], 0), "it comes again as before");
    again.commit(0).await;
    again.until_recreated(1).await;
    assert_eq!(again.ids(), [second(behind)]);
    assert_second_is_recorded(&again, &store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_gets_its_name_back_is_no_other_one() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    peer.create(FIRST);
    let mut reading = started(&peer, options(&peer), &store).await;
    let before = peer.insert(1);
    reading.until_count(1).await;
    peer.invalidate();
    let behind = peer.insert(2);
    reading.commit(0).await;
    reading.until("the event behind", |reading| reading.messages.len() == 2).await;
    assert_eq!((reading.ids(), reading.recreated.len()), (vec![first(before), first(behind)], 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_created_again_begins_an_incarnation_behind_its_drop() {
    // Its collections have UUIDs, it has none.
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    peer.create(FIRST);
    let database = MongoSourceOptions { collection: None, ..options(&peer) };
    let mut reading = started(&peer, database, &store).await;
    peer.insert(1);
    peer.create(SECOND);
    peer.insert(2);
    reading.until_count(2).await;
    peer.invalidate();
    let next = peer.insert(3);
    reading.commit(1).await;
    reading.until_recreated(1).await;
    assert_eq!(reading.ids(), [second(next)]);
    let recorded = current_incarnation(&store).await;
    assert_eq!((recorded.number, recorded.id), (1, None));
}

/// A checkpoint that only a certified position holds, which is this many seconds later than all that a new server has.
async fn late_position(store: &Arc<MemoryStore>, seconds: u32) {
    let peer = Peer::start().await;
    (0..seconds).for_each(|_| {
        peer.advance();
    });
    started(&peer, options(&peer), store).await.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_that_the_server_has_not_reached_stops_the_stream() {
    // I1: the server would wait until its time has come, and skip all changes before that.
    for (seconds, looks_again) in [(20, true), (600, false)] {
        let store = Arc::new(MemoryStore::default());
        late_position(&store, seconds).await;
        let kept = checkpoint(&store).await.seen;
        let restored = Peer::start().await;
        restored.insert(1);
        let mut reading = Reading::attached(options(&restored), &store);
        let error = reading.permanent_error().await;
        assert!(error.contains("restored") && error.contains("on-history-lost"), "{error}");
        let state = reading.status().state;
        assert!(matches!(state, StreamState::Failed { class: ErrorClass::HistoryReplaced, .. }), "{state:?}");
        assert_eq!(reading.errors.iter().any(|error| error.is_temporary()), looks_again);
        assert_eq!(checkpoint(&store).await.seen, kept, "the checkpoint stays");
        assert_eq!((restored.openings(), reading.recreated.len()), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_server_is_read_from_the_start_of_its_oplog_if_so_decided() {
    // I1
    let store = Arc::new(MemoryStore::default());
    late_position(&store, 20).await;
    let restored = Peer::start().await;
    let all = [restored.insert(1), restored.insert(2)];
    let mut reading = Reading::attached(from_oplog_start(&restored), &store);
    reading.until_recreated(2).await;
    assert_eq!(reading.ids(), all.map(|tick| format!("orders~1:{}", token(tick))));
    assert!(reading.status().decisions[0].text.contains("oldest entry"));
    assert_eq!(current_incarnation(&store).await.number, 1);
    reading.commit(1).await;
    reading.close().await;
    // Once is enough.
    let next = restored.insert(3);
    let mut again = Reading::attached(from_oplog_start(&restored), &store);
    again.until_count(1).await;
    assert_eq!(again.ids(), [format!("orders~1:{}", token(next))]);
    assert_eq!((again.recreated.len(), again.status().decisions), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_settled_beyond_the_position_is_not_settled_on_a_restored_server() {
    // I1: an offset is a cluster time, and may be that of another event there.
    let store = Arc::new(MemoryStore::default());
    let peer = Peer::start().await;
    let mut reading = started(&peer, options(&peer), &store).await;
    (1..5).for_each(|number| {
        peer.insert(number);
    });
    reading.until_count(4).await;
    let settled = reading.messages[2].position.offset;
    reading.commit_with(0, vec![settled..=settled]).await;
    reading.crash(&*store).await;
    let restored = Peer::start().await;
    let mut again = Reading::attached(from_oplog_start(&restored), &store);
    let is_recreated = |reading: &Reading| reading.recreated.len() == 1 && reading.assigned;
    again.until("it goes on", is_recreated).await;
    // The cluster times come again.
    (1..5).for_each(|number| {
        restored.insert(number);
    });
    again.until_recreated(4).await;
    assert_eq!(again.messages[2].position.offset, settled);
    assert_eq!(again.settled, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_set_back_while_it_is_read_is_noticed() {
    // I1: the driver resumes by itself, and does not tell.
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    (0..50).for_each(|_| {
        peer.advance();
    });
    let mut reading = started(&peer, from_oplog_start(&peer), &store).await;
    peer.set_back();
    let tick = peer.insert(1);
    reading.until_recreated(1).await;
    assert_eq!(reading.ids(), [format!("orders~1:{}", token(tick))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_catches_up_is_read_on_and_the_status_tells_it() {
    let store = Arc::new(MemoryStore::default());
    late_position(&store, 20).await;
    let lagging = Peer::start().await;
    let restart = RestartPolicy {
        initial_delay: Duration::from_millis(500),
        max_delay: Duration::from_millis(500),
        ..RestartPolicy::default()
    };
    let mut reading = Reading::attached(MongoSourceOptions { restart, ..options(&lagging) }, &store);
    reading
        .until_status("it waits", |status| {
            matches!(status.state, StreamState::Restarting { class: ErrorClass::ServerBehind, .. })
        })
        .await;
    (0..30).for_each(|_| {
        lagging.advance();
    });
    reading.until_status("it reads", |status| status.state == StreamState::Reading).await;
    assert!(reading.status().decisions[0].text.contains("has passed it since"));
    let tick = lagging.insert(1);
    reading.until_count(1).await;
    assert_eq!(reading.ids(), [format!("orders:{}", token(tick))]);
    assert_eq!(reading.recreated, []);
}

#[derive(Deserialize)]
struct Order {
    number: i64,
}

/// Waits until these numbers were handled, and as many letters are dead. Returns the letters.
async fn until_settled(
    handled: &watch::Sender<BTreeSet<i64>>,
    store: &MemoryStore,
    numbers: &[i64],
    dead: usize,
) -> Vec<Letter> {
    let expected: BTreeSet<i64> = numbers.iter().copied().collect();
    let settled = tokio::time::timeout(LONG, async {
        loop {
            let letters = store.find(&Query::parse("").unwrap(), None, 1000).await.unwrap().letters;
            let count = letters.iter().filter(|letter| letter.state == LetterState::Dead).count();
            if *handled.borrow() == expected && count == dead {
                return letters;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    settled.await.unwrap_or_else(|_| panic!("timed out: handled {:?}", handled.borrow()))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_of_both_collections_is_handled_or_a_letter() {
    // I1, I5
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    peer.create(FIRST);
    let handled = watch::Sender::new(BTreeSet::new());
    let seen = handled.clone();
    let handler = move |Document(order): Document<Order>| {
        let seen = seen.clone();
        async move {
            if order.number < 0 {
                return Err(HandlerError::msg("no"));
            }
            seen.send_modify(|numbers| {
                numbers.insert(order.number);
            });
            Ok(())
        }
    };
    let source = MongoSourceOptions { start: Start::OplogStart, ..options(&peer) };
    let consumer = Consumer::builder("orders")
        .source(MongoSource::open(source, store.clone()).unwrap())
        .store(store.clone())
        .handler(handler)
        .options(Options {
            commit_interval: Duration::from_millis(5),
            retry: RetryPolicy { strategy: Strategy::Ordered, max_attempts: 1, ..RetryPolicy::default() },
            ..Options::default()
        })
        .build()
        .unwrap();
    let drain = CancellationToken::new();
    let run = tokio::spawn(consumer.run(drain.clone()));
    let before = [peer.insert(1), peer.insert(-2)];
    until_settled(&handled, &store, &[1], 1).await;
    peer.invalidate();
    peer.create(SECOND);
    let after = [peer.insert(3), peer.insert(-4)];
    let letters = until_settled(&handled, &store, &[1, 3], 2).await;
    drain.cancel();
    run.await.unwrap().unwrap();
    let ids: BTreeSet<String> = letters.iter().map(|letter| letter.message.id.to_string()).collect();
    assert_eq!(ids, BTreeSet::from([first(before[1]), second(after[1])]), "the first one keeps its identity");
    assert_eq!(current_incarnation(&store).await.number, 1);
}
