//! What only a real replica set does, from a scripted server: certified positions, invalidation, lost history, elections.

use std::sync::Arc;
use std::time::Duration;

use bson::doc;
use lazaret_core::handler::{Delivery, FromDelivery};
use lazaret_core::store::{Checkpoint, Checkpoints};
use lazaret_core::{Message, Operation};
use lazaret_memory::MemoryStore;
use lazaret_source_mongodb::{
    CheckpointOptions, Document, ErrorClass, FullDocument, MongoSourceOptions, OnHistoryLost, OnInvalidate,
    Start, StreamState, headers,
};

use crate::support::peer::{Fault, Peer, token};
use crate::support::{LONG, Reading, quick};

fn options(peer: &Peer) -> MongoSourceOptions {
    quick(MongoSourceOptions::collection(peer.uri(), "shop", "orders"))
}

/// Options of a stream that keeps its position after a short idle time.
fn heartbeats(peer: &Peer) -> MongoSourceOptions {
    let checkpoint =
        CheckpointOptions { idle_heartbeat: Duration::from_millis(1), ..CheckpointOptions::default() };
    MongoSourceOptions { checkpoint, ..options(peer) }
}

async fn checkpoint(store: &MemoryStore) -> Checkpoint {
    store.load("orders").await.unwrap().unwrap()
}

fn tick_token(tick: u32) -> String {
    format!(r#"{{"_data":"{}"}}"#, token(tick))
}

/// Waits until the seen anchor is at or behind this tick.
async fn until_seen(store: &MemoryStore, tick: u32) {
    let waited = tokio::time::timeout(LONG, async {
        while checkpoint(store).await.seen.is_none_or(|seen| seen.token[..] < *tick_token(tick).as_bytes()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    waited.await.expect("timed out waiting for a certified position");
}

async fn started(peer: &Peer, options: MongoSourceOptions, store: &Arc<MemoryStore>) -> Reading {
    let mut reading = Reading::open(options, store.clone());
    reading.until_status("it reads", |status| status.state == StreamState::Reading).await;
    peer.until_idle().await;
    reading
}

fn ids(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| message.id.to_string()).collect()
}

fn id(tick: u32) -> String {
    format!("orders:{}", token(tick))
}

/// The id of an event in the second incarnation.
fn later_id(tick: u32) -> String {
    format!("orders~1:{}", token(tick))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_before_the_first_commit_loses_nothing() {
    // I1: a position exists before the first event is delivered.
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let reading = started(&peer, options(&peer), &store).await;
    let first = checkpoint(&store).await;
    assert!(first.seen.is_some() && first.processed.is_none());
    reading.crash(&*store).await;
    let tick = peer.insert(1);
    let mut again = Reading::open(options(&peer), store.clone());
    again.until_count(1).await;
    assert_eq!(ids(&again.messages), [id(tick)]);
    assert!(peer.last_opened().contains_key("resumeAfter"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_certified_positions_the_operation_time_is_the_first_position() {
    // I1
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    peer.without_post_batch_tokens();
    let reading = started(&peer, options(&peer), &store).await;
    assert!(checkpoint(&store).await.seen.is_some());
    reading.crash(&*store).await;
    let tick = peer.insert(1);
    let mut again = Reading::open(options(&peer), store.clone());
    again.until_count(1).await;
    assert_eq!(ids(&again.messages), [id(tick)]);
    assert!(peer.last_opened().contains_key("startAtOperationTime"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_position_of_a_quiet_stream_does_not_age_out() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let mut reading = started(&peer, heartbeats(&peer), &store).await;
    let processed = peer.insert(1);
    reading.until_count(1).await;
    reading.commit(0).await;
    let later = peer.advance();
    until_seen(&store, later).await;
    let kept = checkpoint(&store).await;
    assert_eq!(kept.processed.unwrap().token, tick_token(processed), "each anchor has one writer");
    reading.close().await;
    // The oplog has lost the processed position, not the seen one.
    peer.truncate();
    let next = peer.insert(2);
    let mut again = Reading::open(options(&peer), store.clone());
    again.until_count(1).await;
    assert_eq!(ids(&again.messages), [id(next)]);
    assert_eq!(again.status().decisions, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_position_is_certified_while_an_event_is_in_flight() {
    // I1
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let mut reading = started(&peer, heartbeats(&peer), &store).await;
    let tick = peer.insert(1);
    reading.until_count(1).await;
    peer.until_idle().await;
    let before = checkpoint(&store).await.seen;
    peer.advance();
    peer.until_idle().await;
    assert_eq!(checkpoint(&store).await.seen, before);
    reading.crash(&*store).await;
    let mut again = Reading::open(options(&peer), store.clone());
    again.until_count(1).await;
    assert_eq!(ids(&again.messages), [id(tick)], "it comes again");
}

/// A stream whose processed position is no longer in the oplog, and neither is the event behind it.
async fn lost_history(store: &Arc<MemoryStore>) -> (Peer, u32) {
    let peer = Peer::start().await;
    let mut reading = started(&peer, options(&peer), store).await;
    let processed = peer.insert(1);
    reading.until_count(1).await;
    reading.commit(0).await;
    reading.close().await;
    peer.insert(2);
    peer.advance();
    peer.truncate();
    (peer, processed)
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_history_fails_in_words_and_keeps_the_checkpoint() {
    let store = Arc::new(MemoryStore::default());
    let (peer, processed) = lost_history(&store).await;
    let mut reading = Reading::open(options(&peer), store.clone());
    let error = reading.permanent_error().await;
    assert!(error.contains("oplog") && error.contains("on-history-lost") && error.contains("286"), "{error}");
    assert!(matches!(reading.status().state, StreamState::Failed { class: ErrorClass::HistoryLost, .. }));
    assert_eq!(checkpoint(&store).await.processed.unwrap().token, tick_token(processed));
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_history_goes_on_from_now_if_so_decided_and_tells_it() {
    let store = Arc::new(MemoryStore::default());
    let (peer, _) = lost_history(&store).await;
    peer.insert(3);
    let options = MongoSourceOptions { on_history_lost: OnHistoryLost::FromNow, ..options(&peer) };
    let mut reading = started(&peer, options.clone(), &store).await;
    let next = peer.insert(4);
    reading.until_count(1).await;
    assert_eq!(ids(&reading.messages), [id(next)]);
    assert!(reading.status().decisions[0].text.contains("from now"));
    let kept = checkpoint(&store).await;
    assert!(kept.processed.is_none() && kept.seen.is_some(), "the dead position is gone");
    // Once is enough.
    reading.close().await;
    let mut again = Reading::open(options, store.clone());
    again.until_count(1).await;
    assert_eq!((ids(&again.messages), again.status().decisions), (vec![id(next)], vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_history_goes_on_at_the_start_of_the_oplog_if_so_decided() {
    let store = Arc::new(MemoryStore::default());
    let (peer, _) = lost_history(&store).await;
    let left = peer.insert(3);
    let options = MongoSourceOptions { on_history_lost: OnHistoryLost::FromOplogStart, ..options(&peer) };
    let mut reading = Reading::open(options, store.clone());
    reading.until_count(1).await;
    assert_eq!(ids(&reading.messages), [id(left)]);
    assert!(reading.status().decisions[0].text.contains("oldest entry"));
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_are_not_lost_history() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let mut reading = started(&peer, options(&peer), &store).await;
    peer.insert(1);
    reading.until_count(1).await;
    reading.commit(0).await;
    reading.close().await;
    let before = checkpoint(&store).await;
    peer.fail_aggregate(Fault::Error(13, "Unauthorized", false));
    let options = MongoSourceOptions { on_history_lost: OnHistoryLost::FromNow, ..options(&peer) };
    let mut again = Reading::open(options, store.clone());
    let error = again.permanent_error().await;
    assert!(error.contains("credentials") && error.contains("changeStream"), "{error}");
    let after = checkpoint(&store).await;
    assert_eq!((after.processed, after.seen), (before.processed, before.seen));
    assert_eq!(again.status().decisions, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_that_no_retry_can_mend_say_what_to_do() {
    for (code, name, words) in [
        (40573, "Location40573", "replica set"),
        (40324, "Location40324", "pipeline"),
        (10334, "BSONObjectTooLarge", "16 MB"),
        (47, "NoMatchingDocument", "changeStreamPreAndPostImages"),
    ] {
        let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
        peer.fail_aggregate(Fault::Error(code, name, false));
        let error = Reading::open(options(&peer), store).permanent_error().await;
        assert!(error.contains(words) && error.contains(name), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn elections_killed_cursors_and_lost_connections_lose_and_repeat_nothing() {
    // I1
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let mut reading = started(&peer, options(&peer), &store).await;
    let mut expected = Vec::new();
    let faults = [
        Fault::Error(10107, "NotWritablePrimary", true),
        Fault::Error(43, "CursorNotFound", false),
        Fault::Error(237, "CursorKilled", false),
        Fault::Error(11601, "Interrupted", false),
        Fault::Error(91, "ShutdownInProgress", false),
        Fault::Disconnect,
    ];
    for (number, fault) in (0..).zip(faults) {
        expected.push(id(peer.insert(2 * number)));
        reading.until("the event before", |reading| reading.messages.len() == expected.len()).await;
        peer.fail_get_more(fault);
        expected.push(id(peer.insert(2 * number + 1)));
        reading.until("the event behind", |reading| reading.messages.len() == expected.len()).await;
        assert!(peer.has_failed());
    }
    assert_eq!(ids(&reading.messages), expected);
    assert!(reading.errors.iter().all(|error| error.is_temporary()), "{:?}", reading.errors);
    assert!(!reading.errors.is_empty(), "the engine is told");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_repeats_nothing_without_certified_positions() {
    // The driver resumes where the stream was opened, because the server certifies no later position.
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    peer.without_post_batch_tokens();
    let mut reading = started(&peer, options(&peer), &store).await;
    let mut expected: Vec<_> = (1..4).map(|number| id(peer.insert(number))).collect();
    reading.until_count(3).await;
    peer.until_idle().await;
    peer.fail_get_more(Fault::Disconnect);
    peer.until_failed().await;
    expected.push(id(peer.insert(4)));
    reading.until("the event behind", |reading| reading.ids().contains(&expected[3])).await;
    assert_eq!(ids(&reading.messages), expected);
    assert_eq!(reading.status().restarts, 1);
    assert!(
        reading.errors.iter().any(|error| error.to_string().contains("earlier position")),
        "{:?}",
        reading.errors
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_restart_counter_starts_again_only_after_progress() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let mut options = options(&peer);
    options.restart.max_attempts = 2;
    let mut reading = started(&peer, options, &store).await;
    // Twice as many faults as the limit allows, with an event in between.
    for number in 0..2 {
        peer.fail_get_more(Fault::Error(11601, "Interrupted", false));
        peer.fail_get_more(Fault::Error(11601, "Interrupted", false));
        peer.insert(number);
        let count = usize::try_from(number).unwrap() + 1;
        reading.until("the event", |reading| reading.messages.len() == count).await;
    }
    // The server has certified its last position. A connection that fails again is no progress.
    peer.until_idle().await;
    (0..3).for_each(|_| peer.fail_get_more(Fault::Error(11601, "Interrupted", false)));
    reading.until_status("it gives up", |status| matches!(status.state, StreamState::Failed { .. })).await;
    // The engine ends a consumer at a permanent error; at a temporary one it would wait for ever.
    let error = reading.permanent_error().await;
    assert!(error.contains("after 2 restarts without progress") && error.contains("Interrupted"), "{error}");
    let restarts = reading.errors.iter().filter(|error| error.is_temporary()).count();
    assert!(restarts >= 6, "{restarts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalidated_stream_stops_when_all_before_it_is_settled() {
    // I1
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let mut reading = started(&peer, options(&peer), &store).await;
    peer.insert(1);
    let end = peer.invalidate();
    reading.until_count(3).await;
    let operations: Vec<_> = reading.messages.iter().filter_map(|message| message.operation).collect();
    assert_eq!(operations, [Operation::Insert, Operation::Drop, Operation::Invalidate]);
    reading.until_status("it waits", |status| status.state == StreamState::Invalidated).await;
    assert!(reading.errors.is_empty());
    reading.commit(2).await;
    let error = reading.permanent_error().await;
    assert!(error.contains("dropped or renamed") && error.contains("start-after"), "{error}");
    assert_eq!(checkpoint(&store).await.processed.unwrap().token, tick_token(end));
    reading.close().await;
    // Not silent, and not different after a restart.
    let mut again = Reading::open(options(&peer), store.clone());
    let again_error = again.permanent_error().await;
    assert_eq!(again_error, error);
    again.close().await;
    let next = peer.insert(2);
    let after = MongoSourceOptions { on_invalidate: OnInvalidate::StartAfter, ..options(&peer) };
    let mut last = Reading::open(after, store.clone());
    last.until_recreated(1).await;
    assert_eq!(ids(&last.messages), [later_id(next)]);
    assert_eq!(peer.last_opened().get_document("startAfter").unwrap().get_str("_data").unwrap(), token(end));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalidated_stream_goes_on_behind_it_if_so_decided_and_tells_it() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let options = MongoSourceOptions {
        on_invalidate: OnInvalidate::StartAfter,
        operations: vec![Operation::Insert],
        ..options(&peer)
    };
    let mut reading = started(&peer, options, &store).await;
    peer.insert(1);
    peer.invalidate();
    let next = peer.insert(2);
    reading.until_count(1).await;
    reading.commit(0).await;
    reading.until_recreated(1).await;
    assert_eq!(ids(&reading.messages), [later_id(next)], "drop and invalidation were not selected");
    assert!(reading.status().decisions[0].text.contains("invalidated"));
    reading.commit(0).await;
    assert!(!checkpoint(&store).await.metadata.contains_key("invalidated"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_looked_up_document_may_be_gone_and_an_event_may_have_no_namespace() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let options = MongoSourceOptions { full_document: FullDocument::UpdateLookup, ..options(&peer) };
    let mut reading = started(&peer, options, &store).await;
    assert_eq!(peer.last_opened().get_str("fullDocument").unwrap(), "updateLookup");
    peer.push(doc! {
        "operationType": "update", "documentKey": { "_id": 7 }, "fullDocument": bson::Bson::Null,
        "updateDescription": { "updatedFields": { "a": 1 }, "removedFields": [] },
    });
    reading.until_count(1).await;
    let message = &reading.messages[0];
    assert_eq!(message.headers.get_str(headers::COLLECTION), Some("orders"));
    assert_eq!(message.key.as_deref(), Some(&br#"{"_id":{"$numberInt":"7"}}"#[..]));
    let delivery = Delivery::new(message.clone());
    let Document(document) = Document::<Option<bson::Document>>::from_delivery(&delivery).unwrap();
    assert_eq!(document, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_starts_now_ignores_its_checkpoint() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let options = MongoSourceOptions { start: Start::Now, ..options(&peer) };
    let mut first = started(&peer, options.clone(), &store).await;
    peer.insert(1);
    first.until_count(1).await;
    first.close().await;
    peer.insert(2);
    let mut second = started(&peer, options, &store).await;
    let next = peer.insert(3);
    second.until_count(1).await;
    assert_eq!(ids(&second.messages), [id(next)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn history_lost_while_reading_waits_until_what_was_delivered_is_settled() {
    // I1: a late commit must not bring the dead position back.
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let options = MongoSourceOptions { on_history_lost: OnHistoryLost::FromNow, ..options(&peer) };
    let mut reading = started(&peer, options.clone(), &store).await;
    peer.insert(1);
    reading.until_count(1).await;
    peer.fail_get_more(Fault::Error(286, "ChangeStreamHistoryLost", false));
    peer.until_failed().await;
    let openings = peer.openings();
    assert_eq!(reading.status().decisions, [], "an event is in flight");
    reading.commit(0).await;
    reading.until_status("it goes on", |status| status.decisions.len() == 1).await;
    while peer.openings() == openings {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    peer.until_idle().await;
    let next = peer.insert(2);
    reading.until("the next event", |reading| reading.messages.len() == 2).await;
    assert_eq!(ids(&reading.messages)[1], id(next));
    assert_eq!(checkpoint(&store).await.processed, None);
    assert!(reading.status().token_at.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_that_is_refused_at_the_first_request_is_recovered_from() {
    let store = Arc::new(MemoryStore::default());
    let (peer, _) = lost_history(&store).await;
    let fresh = Peer::start().await;
    drop(peer);
    // Its cluster time is not before the position.
    (0..9).for_each(|_| {
        fresh.advance();
    });
    // The server accepts the position, and refuses it when it is asked for events.
    fresh.fail_get_more(Fault::Error(286, "ChangeStreamHistoryLost", false));
    let options = MongoSourceOptions { on_history_lost: OnHistoryLost::FromOplogStart, ..options(&fresh) };
    let mut reading = Reading::open(options, store.clone());
    reading.until_status("it goes on", |status| status.decisions.len() == 1).await;
    let tick = fresh.insert(1);
    reading.until("the event", |reading| !reading.messages.is_empty()).await;
    assert_eq!(ids(&reading.messages), [id(tick)]);
}
