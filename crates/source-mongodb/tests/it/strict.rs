//! What real servers refuse, filter and forget, from a scripted server: options, positions, invalidations, own writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bson::{Document, doc};
use bytes::Bytes;
use lazaret_core::Operation;
use lazaret_core::store::{
    Checkpoint, Checkpoints, ErrorKind, Expect, KeyValue, Reading, Result as StoreResult, StoreError, Written,
};
use lazaret_memory::MemoryStore;
use lazaret_source_mongodb::{
    BeforeChange, CheckpointOptions, ErrorClass, FullDocument, MongoSource, MongoSourceOptions,
    OnHistoryLost, OnInvalidate, Probed, Server, StoreCollections, StreamState, headers,
};

use crate::support::peer::{Fault, Peer, event_token, token};
use crate::support::{LONG, Reading as Stream, quick};

const FIRST: &str = "D3284E04D8914467A2160201812E4C4C";
const SECOND: &str = "0E1A2B3C4D5E6F708192A3B4C5D6E7F8";

fn options(peer: &Peer) -> MongoSourceOptions {
    quick(MongoSourceOptions::collection(peer.uri(), "shop", "orders"))
}

/// Options of a stream that goes on behind an invalidation, and keeps its position after a short idle time.
fn start_after(peer: &Peer) -> MongoSourceOptions {
    let checkpoint =
        CheckpointOptions { idle_heartbeat: Duration::from_millis(1), ..CheckpointOptions::default() };
    let operations = vec![Operation::Insert];
    MongoSourceOptions { on_invalidate: OnInvalidate::StartAfter, checkpoint, operations, ..options(peer) }
}

async fn started(peer: &Peer, options: MongoSourceOptions, store: &Arc<MemoryStore>) -> Stream {
    let mut reading = Stream::open(options, store.clone());
    reading.until_status("it reads", |status| status.state == StreamState::Reading).await;
    peer.until_idle().await;
    reading
}

async fn checkpoint(store: &MemoryStore) -> Checkpoint {
    store.load("orders").await.unwrap().unwrap()
}

/// An order with a status.
fn order(id: i32, status: &str) -> Document {
    doc! {
        "operationType": "insert", "ns": { "db": "shop", "coll": "orders" }, "documentKey": { "_id": id },
        "fullDocument": { "_id": id, "status": status },
    }
}

fn paid() -> Vec<Document> {
    vec![doc! { "$match": { "fullDocument.status": "paid" } }]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_opened_with_what_every_server_knows_and_names_itself() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    peer.set_wire_version(13);
    let options = MongoSourceOptions { full_document: FullDocument::UpdateLookup, ..options(&peer) };
    let _reading = started(&peer, options, &store).await;
    assert_eq!(peer.last_opened(), doc! { "fullDocument": "updateLookup" });
    assert_eq!(peer.last_pipeline(), [doc! { "$match": { "$comment": "lazaret:orders" } }]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_releases_without_hello_are_read() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    peer.without_hello();
    // Each look at the time of the server needs it: the first start, and the start behind a checkpoint.
    for number in 1..3 {
        let mut reading = started(&peer, options(&peer), &store).await;
        peer.insert(number);
        reading.until_count(1).await;
        reading.commit(0).await;
        assert_eq!(reading.status().restarts, 0);
        reading.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn images_of_a_server_that_has_none_are_refused_before_a_stream_is_opened() {
    for (full_document, full_document_before_change) in [
        (FullDocument::Required, BeforeChange::Off),
        (FullDocument::WhenAvailable, BeforeChange::Off),
        (FullDocument::UpdateLookup, BeforeChange::Required),
        (FullDocument::UpdateLookup, BeforeChange::WhenAvailable),
    ] {
        let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
        let options = MongoSourceOptions { full_document, full_document_before_change, ..options(&peer) };
        peer.set_wire_version(13);
        let mut reading = Stream::open(options.clone(), store);
        let error = reading.permanent_error().await;
        assert!(error.contains("MongoDB 6.0") && error.contains("full-document"), "{error}");
        assert!(reading.errors.iter().all(|error| !error.is_temporary()), "{:?}", reading.errors);
        assert_eq!(peer.openings(), 0);
        let state = reading.status().state;
        assert!(matches!(state, StreamState::Failed { class: ErrorClass::ServerTooOld, .. }), "{state:?}");
        // A later version has them.
        peer.set_wire_version(17);
        let probed = MongoSource::probe(&options, None).await.unwrap();
        assert!(!probed.resumes);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_that_was_certified_behind_an_invalidation_is_used_after_a_restart() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let mut reading = started(&peer, start_after(&peer), &store).await;
    peer.insert(1);
    reading.until_count(1).await;
    peer.invalidate();
    reading.commit(0).await;
    reading.until_status("it goes on", |status| status.decisions.len() == 1).await;
    peer.advance();
    let later = format!(r#"{{"_data":"{}"}}"#, token(peer.advance()));
    let seen = tokio::time::timeout(LONG, async {
        while checkpoint(&store).await.seen.is_none_or(|seen| seen.token != later) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    seen.await.expect("timed out waiting for a certified position");
    reading.close().await;
    // The oplog has lost the invalidation.
    peer.truncate();
    let next = peer.insert(2);
    let mut again = Stream::open(start_after(&peer), store.clone());
    again.until_recreated(1).await;
    assert_eq!(again.ids(), [format!("orders~1:{}", token(next))]);
    assert!(again.errors.is_empty(), "{:?}", again.errors);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_that_is_lost_right_behind_an_invalidation_starts_after_it_again() {
    // Once with tokens that tell an invalidation, and once with tokens that do not.
    for collection in [Some(FIRST), None] {
        let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
        if let Some(collection) = collection {
            peer.create(collection);
        }
        let mut reading = started(&peer, start_after(&peer), &store).await;
        peer.insert(1);
        reading.until_count(1).await;
        peer.invalidate();
        reading.commit(0).await;
        reading.until_status("it goes on", |status| status.decisions.len() == 1).await;
        // The server has certified the invalidation itself.
        peer.until_idle().await;
        peer.fail_get_more(Fault::Error(11601, "Interrupted", false));
        peer.until_failed().await;
        if collection.is_some() {
            peer.create(SECOND);
        }
        let next = peer.insert(2);
        reading.until_recreated(1).await;
        assert!(peer.last_opened().contains_key("startAfter"), "{}", peer.last_opened());
        let data = collection.map_or_else(|| token(next), |_| event_token(next, SECOND));
        assert_eq!(reading.ids(), [format!("orders~1:{data}")]);
        assert!(reading.errors.iter().all(|error| error.is_temporary()), "{:?}", reading.errors);
    }
}

/// A store that refuses some writes of checkpoints.
#[derive(Default)]
struct Refusing {
    inner: MemoryStore,
    refused: AtomicU32,
}

#[async_trait]
impl KeyValue for Refusing {
    async fn read(&self, space: &str, name: &str) -> StoreResult<Reading> {
        self.inner.read(space, name).await
    }

    async fn write(
        &self,
        space: &str,
        name: &str,
        expect: Expect,
        value: Option<Bytes>,
        ttl: Option<Duration>,
    ) -> StoreResult<Written> {
        let take = |left: u32| left.checked_sub(1);
        let is_checkpoint = space == Checkpoint::SPACE;
        if is_checkpoint && self.refused.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            return Err(StoreError::not_done(ErrorKind::Unavailable, "write", "down"));
        }
        self.inner.write(space, name, expect, value, ttl).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalidation_whose_end_could_not_be_written_is_written_at_the_restart() {
    let (peer, store) = (Peer::start().await, Arc::new(Refusing::default()));
    let checkpoint = CheckpointOptions::default();
    let mut reading = Stream::open(MongoSourceOptions { checkpoint, ..start_after(&peer) }, store.clone());
    reading.until_status("it reads", |status| status.state == StreamState::Reading).await;
    peer.insert(1);
    reading.until_count(1).await;
    reading.commit(0).await;
    store.refused.store(1, Ordering::SeqCst);
    peer.invalidate();
    reading.until_status("it goes on", |status| status.decisions.len() == 1).await;
    let next = peer.insert(2);
    reading.until_recreated(1).await;
    assert_eq!(reading.ids(), [format!("orders~1:{}", token(next))]);
    assert_eq!(store.refused.load(Ordering::SeqCst), 0);
    let errors = &reading.errors;
    assert!(errors.len() == 1 && errors[0].is_temporary(), "{errors:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalidation_passes_a_filter_and_only_the_source_gets_it() {
    // Once by the operations that are selected, and once without a selection.
    for operations in [vec![], vec![Operation::Insert]] {
        let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
        let options = MongoSourceOptions { pipeline: paid(), operations, ..start_after(&peer) };
        let mut reading = started(&peer, options.clone(), &store).await;
        peer.push(order(1, "open"));
        let first = peer.push(order(2, "paid"));
        peer.invalidate();
        let next = peer.push(order(3, "paid"));
        reading.until_count(1).await;
        assert_eq!(reading.ids(), [format!("orders:{}", token(first))]);
        reading.commit(0).await;
        reading.until_recreated(1).await;
        assert_eq!(reading.ids(), [format!("orders~1:{}", token(next))]);
        reading.commit(0).await;
        reading.close().await;
        // The same without `start-after` says why it stops, also after a restart.
        peer.invalidate();
        for _ in 0..2 {
            let stop = MongoSourceOptions { on_invalidate: OnInvalidate::Stop, ..options.clone() };
            let mut stopped = Stream::open(stop, store.clone());
            let error = stopped.permanent_error().await;
            assert!(error.contains("dropped or renamed"), "{error}");
            assert_eq!(stopped.ids(), Vec::<String>::new());
            stopped.close().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalidation_that_is_asked_for_is_delivered() {
    let asked = doc! { "operationType": { "$in": ["insert", "invalidate"] } };
    for (pipeline, operations) in
        [(vec![doc! { "$match": asked }], vec![]), (paid(), vec![Operation::Insert, Operation::Invalidate])]
    {
        let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
        let options = MongoSourceOptions { pipeline, operations, ..start_after(&peer) };
        let mut reading = started(&peer, options, &store).await;
        peer.push(order(1, "paid"));
        peer.invalidate();
        reading.until_count(2).await;
        let all: Vec<_> = reading.messages.iter().filter_map(|message| message.operation).collect();
        assert_eq!(all, [Operation::Insert, Operation::Invalidate]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_every_position_is_asked_after_growing_delays_until_the_limit() {
    for on_history_lost in [OnHistoryLost::FromNow, OnHistoryLost::FromOplogStart] {
        let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
        let mut options = MongoSourceOptions { on_history_lost, ..options(&peer) };
        options.restart.max_attempts = 2;
        let mut reading = started(&peer, options, &store).await;
        let before = peer.openings();
        (0..60).for_each(|_| peer.fail_get_more(Fault::Error(286, "ChangeStreamHistoryLost", false)));
        let error = reading.permanent_error().await;
        assert!(error.contains("after 2 restarts without progress") && error.contains("286"), "{error}");
        assert!(!peer.has_failed(), "it gave up before the server did");
        // Each time the stream is started it may replace a refused position once.
        assert!(peer.openings() - before <= 6, "{} openings", peer.openings() - before);
        assert_eq!(reading.status().restarts, 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_the_server_cannot_continue_is_no_lost_history() {
    // I1: going on from now would skip events, and mend nothing.
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let options = MongoSourceOptions { on_history_lost: OnHistoryLost::FromNow, ..options(&peer) };
    let mut reading = started(&peer, options, &store).await;
    peer.insert(1);
    reading.until_count(1).await;
    reading.commit(0).await;
    let kept = checkpoint(&store).await.processed;
    peer.fail_get_more(Fault::Error(280, "ChangeStreamFatalError", false));
    let error = reading.permanent_error().await;
    assert!(error.contains("cannot continue the stream") && !error.contains("oplog"), "{error}");
    assert_eq!((checkpoint(&store).await.processed, reading.status().decisions), (kept, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_the_server_does_not_find_has_advice_of_its_own() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let mut reading = started(&peer, options(&peer), &store).await;
    peer.fail_get_more(Fault::Error(280, "cannot resume stream; the resume token was not found", false));
    let error = reading.permanent_error().await;
    assert!(error.contains("rolled back") && error.contains("on-history-lost"), "{error}");
    let state = reading.status().state;
    assert!(matches!(state, StreamState::Failed { class: ErrorClass::TokenRefused, .. }), "{state:?}");
}

/// A store on the server of a peer.
fn store_at(peer: &Peer, database: &str, collection: &str) -> StoreCollections {
    let server = Server::Uri(peer.uri().to_owned());
    StoreCollections { server, database: database.to_owned(), collection: collection.to_owned() }
}

/// Changes of an order and of the collections of a store.
fn changes(peer: &Peer) {
    for (n, name) in (1..).zip(["letters", "letters_values", "lettersx", "orders"]) {
        peer.push(doc! {
            "operationType": "insert", "ns": { "db": "shop", "coll": name }, "documentKey": { "_id": n },
        });
    }
}

async fn collections_of(options: MongoSourceOptions, peer: &Peer, count: usize) -> Vec<String> {
    let mut reading = started(peer, options, &Arc::new(MemoryStore::default())).await;
    changes(peer);
    reading.until_count(count).await;
    let name =
        |message: &lazaret_core::Message| message.headers.get_str(headers::COLLECTION).unwrap().to_owned();
    reading.messages.iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_does_not_read_what_its_own_store_writes() {
    let (peer, other) = (Peer::start().await, Peer::start().await);
    let watches =
        [MongoSourceOptions::database(peer.uri(), "shop"), MongoSourceOptions::deployment(peer.uri(), "all")];
    for watch in watches {
        let own = vec![store_at(&peer, "shop", "letters")];
        let options = quick(MongoSourceOptions { store_collections: own, ..watch.clone() });
        assert_eq!(collections_of(options, &peer, 2).await, ["lettersx", "orders"]);
        // A store of another server, or of another database, has no collection that is read.
        let elsewhere = vec![store_at(&other, "shop", "letters"), store_at(&peer, "other", "letters")];
        let options = quick(MongoSourceOptions { store_collections: elsewhere, ..watch });
        let all = ["letters", "letters_values", "lettersx", "orders"];
        assert_eq!(collections_of(options, &peer, 4).await, all);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_its_own_store_is_refused() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let own = vec![store_at(&peer, "shop", "orders")];
    let options = MongoSourceOptions { store_collections: own, ..options(&peer) };
    let error = Stream::open(options, store).permanent_error().await;
    assert!(error.contains("shop.orders belongs to the store of Lazaret"), "{error}");
    assert_eq!(peer.openings(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_asks_for_what_the_source_asks_for() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let options = MongoSourceOptions {
        full_document: FullDocument::UpdateLookup,
        operations: vec![Operation::Insert],
        pipeline: paid(),
        ..options(&peer)
    };
    let mut reading = started(&peer, options.clone(), &store).await;
    peer.push(order(1, "paid"));
    reading.until_count(1).await;
    reading.commit(0).await;
    reading.close().await;
    let mut again = started(&peer, options.clone(), &store).await;
    let asked = (peer.last_opened(), peer.last_pipeline(), peer.last_target());
    again.until("it is assigned", |reading| reading.assigned).await;
    again.close().await;
    let (openings, before) = (peer.openings(), checkpoint(&store).await);
    let probed = MongoSource::probe(&options, Some(&before)).await.unwrap();
    assert_eq!(probed, Probed { resumes: true, excludes_store: false });
    assert_eq!(peer.openings(), openings + 1);
    assert_eq!((peer.last_opened(), peer.last_pipeline(), peer.last_target()), asked);
    assert_eq!(checkpoint(&store).await, before, "it writes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_finds_a_lost_position_and_an_event_that_is_too_large() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let mut reading = started(&peer, options(&peer), &store).await;
    peer.insert(1);
    reading.until_count(1).await;
    reading.commit(0).await;
    reading.close().await;
    let kept = checkpoint(&store).await;
    peer.fail_aggregate(Fault::Error(10334, "BSONObjectTooLarge", false));
    let large = MongoSource::probe(&options(&peer), Some(&kept)).await.unwrap_err();
    assert_eq!(large.class, ErrorClass::EventTooLarge);
    peer.insert(2);
    peer.advance();
    peer.truncate();
    let lost = MongoSource::probe(&options(&peer), Some(&kept)).await.unwrap_err();
    assert!(lost.class == ErrorClass::HistoryLost && lost.detail.contains("286"), "{lost}");
    let fresh = MongoSource::probe(&options(&peer), None).await.unwrap();
    assert_eq!(fresh, Probed { resumes: false, excludes_store: false });
}
