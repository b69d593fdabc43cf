//! Streams of real servers that are killed, frozen or rolled back, that forget, and whose collections are replaced.
//!
//! The tests start the servers: `LAZARET_TEST_MONGOD` names the program. Those that change nothing but collections also run on servers that
//! are named. `faults.rs` has elections and killed cursors, `sharded.rs` has clusters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bson::{Document, Timestamp, doc};
use lazaret_core::store::{Checkpoints, Locks};
use lazaret_memory::MemoryStore;
use lazaret_mongodb_testkit::ReplicaSet;
use lazaret_source_mongodb::{
    CheckpointOptions, LeaseOptions, MongoSourceOptions, MongoStatus, OnHistoryLost, OnInvalidate, Start,
    StreamState,
};
use lazaret_store_mongodb::{MongoStore, MongoStoreOptions};
use mongodb::Collection;
use mongodb::options::{Acknowledgment, WriteConcern};

use crate::support::disturbed::{Disturbed, documents, insert, started, until};
use crate::support::{Reading, Shop, current_incarnation, real_server, unique};

/// Options for the collection `orders`, from now on. A server that was just started has no time before that.
fn options(shop: &Shop) -> MongoSourceOptions {
    MongoSourceOptions { start: Start::Resume, ..shop.options("orders") }
}

#[tokio::test(flavor = "multi_thread")]
async fn primaries_that_are_killed_lose_and_repeat_nothing() {
    // I1
    let Some(mut set) = ReplicaSet::for_test("killed primaries", 3, &[]).await else { return };
    let shop = Shop::new(set.uri()).await;
    let mut stream = Disturbed::start(&shop, options(&shop)).await;
    for _ in 0..2 {
        stream.read_next().await;
        let primary = set.primary().await;
        set.kill(primary);
        stream.read_next().await;
        set.restart(primary).await;
        set.until_caught_up(primary).await;
    }
    stream.read_next().await;
    stream.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_members_lose_and_repeat_nothing() {
    // I1
    let Some(mut set) = ReplicaSet::for_test("frozen members", 3, &[]).await else { return };
    let shop = Shop::new(set.uri()).await;
    let mut stream = Disturbed::start(&shop, options(&shop)).await;
    stream.read_next().await;
    let primary = set.primary().await;
    let secondary = set.others(primary)[0];
    for member in [secondary, primary] {
        set.freeze(member);
        // Without the primary: on the next one, while the connections to this one are open.
        stream.read_next().await;
        set.thaw(member);
        set.until_caught_up(member).await;
        stream.read_next().await;
    }
    stream.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_of_a_minority_that_is_rolled_back_is_never_delivered() {
    // I1
    let Some(mut set) = ReplicaSet::for_test("rolled back writes", 3, &[]).await else { return };
    let shop = Shop::new(set.uri()).await;
    let mut stream = Disturbed::start(&shop, options(&shop)).await;
    stream.read_next().await;
    let cut_off = set.primary().await;
    for secondary in set.others(cut_off) {
        set.set_replicating(secondary, false).await;
    }
    let durable = WriteConcern::builder().w(Acknowledgment::Nodes(1)).journal(true).build();
    let client = set.client_of(cut_off).clone();
    let minority: Collection<Document> = client.database(&shop.database).collection("orders");
    minority.insert_one(doc! { "_id": "lost" }).write_concern(durable).await.unwrap();
    set.kill(cut_off);
    for secondary in set.others(cut_off) {
        set.set_replicating(secondary, true).await;
    }
    stream.read_next().await;
    set.restart(cut_off).await;
    set.until_caught_up(cut_off).await;
    assert!(minority.find_one(doc! { "_id": "lost" }).await.unwrap().is_none(), "it was rolled back");
    stream.read_next().await;
    stream.end().await;
}

/// The time of the oldest or the newest entry of the oplog. A look at the oldest fails when it is truncated meanwhile.
async fn oplog_entry(shop: &Shop, direction: i32) -> Option<Timestamp> {
    let oplog: Collection<Document> = shop.client.database("local").collection("oplog.rs");
    let entry = oplog.find_one(doc! {}).sort(doc! { "$natural": direction }).await.ok()??;
    entry.get_timestamp("ts").ok()
}

const SMALL_OPLOG: [&str; 2] = ["--oplogSize", "1"];

/// Writes until the oldest entry of a small oplog is later than this time.
async fn outgrow(shop: &Shop, time: Timestamp) {
    let (others, large) = (shop.collection("others"), "x".repeat(100_000));
    let writes = AtomicU32::new(0);
    until("the oplog to be truncated", || async {
        // A replacement that changes nothing is not in the oplog.
        let write = i64::from(writes.fetch_add(1, Ordering::Relaxed));
        let large = doc! { "_id": 1, "write": write, "large": &large };
        others.replace_one(doc! { "_id": 1 }, large).upsert(true).await.unwrap();
        (oplog_entry(shop, 1).await? > time).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_that_fell_out_of_a_small_oplog_is_lost_history() {
    let what = "an oplog that is too short";
    let Some(set) = ReplicaSet::for_test(what, 1, &SMALL_OPLOG).await else { return };
    let (shop, store) = (Shop::new(set.uri()).await, Arc::new(MemoryStore::default()));
    let orders = shop.collection("orders");
    let mut reading = started(options(&shop), &store).await;
    insert(&orders, "read").await;
    reading.until_count(1).await;
    reading.commit(0).await;
    reading.close().await;
    outgrow(&shop, oplog_entry(&shop, -1).await.unwrap()).await;
    let kept = store.load("orders").await.unwrap().unwrap().processed;
    let error = Reading::open(options(&shop), store.clone()).permanent_error().await;
    assert!(error.contains("on-history-lost"), "{error}");
    assert_eq!(store.load("orders").await.unwrap().unwrap().processed, kept, "the checkpoint stays");
    // The same for a time that is set. Before it was truncated, the oplog began with the set itself, and had every time.
    let start = Start::At(Timestamp { time: 1, increment: 1 });
    let at = MongoSourceOptions { start, ..options(&shop) };
    let error = Reading::open(at, Arc::new(MemoryStore::default())).permanent_error().await;
    assert!(error.contains("on-history-lost"), "{error}");
    for (decision, id) in [(OnHistoryLost::FromOplogStart, "next"), (OnHistoryLost::FromNow, "last")] {
        // Each from the lost position.
        let own = Arc::new(MemoryStore::default());
        let checkpoint = store.load("orders").await.unwrap().unwrap();
        own.save("orders", checkpoint).await.unwrap();
        let options = MongoSourceOptions { on_history_lost: decision, ..options(&shop) };
        let mut reading = started(options, &own).await;
        insert(&orders, id).await;
        reading.until("it goes on", |reading| documents(reading).iter().any(|found| found == id)).await;
        assert!(!reading.status().decisions.is_empty(), "{:?}", reading.status());
        reading.close().await;
    }
}

/// A stream of a collection with one event, which is settled, and whose consumer is down.
async fn down_behind_an_event(shop: &Shop, options: &MongoSourceOptions) -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::default());
    let mut reading = Reading::attached(options.clone(), &store);
    reading.until_status("it reads", |status| status.state == StreamState::Reading).await;
    insert(&shop.collection("orders"), "before").await;
    reading.until_count(1).await;
    reading.commit(0).await;
    reading.close().await;
    store
}

fn start_after(shop: &Shop) -> MongoSourceOptions {
    MongoSourceOptions { on_invalidate: OnInvalidate::StartAfter, ..options(shop) }
}

async fn rename(shop: &Shop, from: &str, to: &str) {
    let namespace = |name: &str| format!("{}.{name}", shop.database);
    let command = doc! { "renameCollection": namespace(from), "to": namespace(to) };
    shop.client.database("admin").run_command(command).await.unwrap();
}

/// Reads what was inserted into another collection with the name, while the consumer was down.
async fn read_another(shop: &Shop, options: MongoSourceOptions, store: &Arc<MemoryStore>) {
    let orders = shop.collection("orders");
    for id in ["first", "second"] {
        insert(&orders, id).await;
    }
    let mut again = Reading::attached(options, store);
    again.until_recreated(2).await;
    assert_eq!(documents(&again), ["first", "second"], "from its first change on");
    assert!(again.ids().iter().all(|id| id.starts_with("orders~1:")), "{:?}", again.ids());
    let recorded = current_incarnation(store).await;
    assert_eq!((recorded.number, recorded.id), (1, Some(shop.uuid("orders").await.into())));
    again.commit(1).await;
    insert(&orders, "third").await;
    again.until("the next one has come", |again| again.messages.len() == 3).await;
    assert_eq!((documents(&again)[2].as_str(), again.recreated.len()), ("third", 1));
    again.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_is_dropped_and_created_again_while_the_consumer_is_down_is_read_from_its_first_change()
 {
    // I1
    let Some(server) = real_server("collections that are created again").await else { return };
    let shop = Shop::new(server.uri.clone()).await;
    let store = down_behind_an_event(&shop, &start_after(&shop)).await;
    shop.collection("orders").drop().await.unwrap();
    read_another(&shop, start_after(&shop), &store).await;
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_replaces_a_renamed_one_while_the_consumer_is_down_is_read_from_its_first_change() {
    // I1
    let Some(server) = real_server("collections that are renamed").await else { return };
    let shop = Shop::new(server.uri.clone()).await;
    let store = down_behind_an_event(&shop, &start_after(&shop)).await;
    rename(&shop, "orders", "archive").await;
    insert(&shop.collection("archive"), "elsewhere").await;
    read_another(&shop, start_after(&shop), &store).await;
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_gets_its_name_back_while_the_consumer_is_down_goes_on() {
    // I1
    let Some(server) = real_server("collections that are renamed and back").await else { return };
    let shop = Shop::new(server.uri.clone()).await;
    let store = down_behind_an_event(&shop, &start_after(&shop)).await;
    rename(&shop, "orders", "archive").await;
    rename(&shop, "archive", "orders").await;
    insert(&shop.collection("orders"), "after").await;
    let mut again = Reading::attached(start_after(&shop), &store);
    again.until("the event behind", |again| documents(again) == ["after"]).await;
    assert_eq!((again.recreated.len(), again.status().incarnation), (0, 0));
    again.close().await;
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_is_dropped_while_the_consumer_is_down_stops_it_until_somebody_decides() {
    // I1
    let Some(server) = real_server("collections that are dropped").await else { return };
    let shop = Shop::new(server.uri.clone()).await;
    let store = down_behind_an_event(&shop, &options(&shop)).await;
    shop.collection("orders").drop().await.unwrap();
    for _ in 0..2 {
        let mut reading = Reading::attached(options(&shop), &store);
        let error = reading.permanent_error().await;
        assert!(error.contains("start-after"), "{error}");
        reading.close().await;
    }
    read_another(&shop, start_after(&shop), &store).await;
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_that_was_certified_behind_an_invalidation_outlives_it_in_the_oplog() {
    // I1
    let what = "positions behind an invalidation";
    let Some(set) = ReplicaSet::for_test(what, 1, &SMALL_OPLOG).await else { return };
    let (shop, store) = (Shop::new(set.uri()).await, Arc::new(MemoryStore::default()));
    let checkpoint =
        CheckpointOptions { idle_heartbeat: Duration::from_millis(1), ..CheckpointOptions::default() };
    let options = MongoSourceOptions { checkpoint, ..start_after(&shop) };
    let mut reading = Reading::attached(options.clone(), &store);
    reading.until_status("it reads", |status| status.state == StreamState::Reading).await;
    let orders = shop.collection("orders");
    insert(&orders, "before").await;
    reading.until_count(1).await;
    reading.commit(0).await;
    orders.drop().await.unwrap();
    reading.until_status("it starts after the invalidation", |status| !status.decisions.is_empty()).await;
    outgrow(&shop, oplog_entry(&shop, -1).await.unwrap()).await;
    let oldest = until("the oldest entry", || oplog_entry(&shop, 1)).await;
    until("a position that the oplog has", || async {
        shop.collection("others").insert_one(doc! {}).await.unwrap();
        let seen = store.load("orders").await.unwrap()?.seen?;
        (seen.at.as_second() > i64::from(oldest.time)).then_some(())
    })
    .await;
    reading.close().await;
    let mut again = Reading::attached(options, &store);
    again.until_status("it reads", |status| status.state == StreamState::Reading).await;
    insert(&orders, "after").await;
    again.until_recreated(1).await;
    assert_eq!(documents(&again), ["after"]);
    assert_eq!((again.status().restarts, again.status().incarnation), (0, 1), "{:?}", again.errors);
    again.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_store_elects_a_primary_keeps_a_lease_that_is_long_enough() {
    // I6
    let Some(mut set) = ReplicaSet::for_test("leases in a store with elections", 3, &[]).await else {
        return;
    };
    let shop = Shop::new(set.uri()).await;
    let letters = MongoStoreOptions { database: Some(unique("lzs")), ..MongoStoreOptions::default() };
    let store = Arc::new(MongoStore::connect(&shop.uri, letters).await.unwrap());
    let (renew, margin, standby) =
        (Duration::from_secs(2), Duration::from_secs(5), Duration::from_millis(50));
    let lease = LeaseOptions { ttl: Duration::from_secs(20), renew, margin, standby };
    let options = MongoSourceOptions { lease, ..options(&shop) };
    let mut leader = Reading::open(options.clone(), store.clone());
    leader.until_status("it reads", |status| status.state == StreamState::Reading).await;
    let mut other = Reading::open(options, store.clone());
    let stands_by = |status: &MongoStatus| matches!(status.state, StreamState::Standby { .. });
    other.until_status("it stands by", stands_by).await;
    let held = async || store.state("change-stream/orders").await.ok().flatten();
    let first = held().await.unwrap();
    for (count, is_killed) in [(1, false), (2, true)] {
        let (primary, before) = (set.primary().await, held().await.unwrap());
        if is_killed {
            set.kill(primary);
        } else {
            let step_down = doc! { "replSetStepDown": 10, "secondaryCatchUpPeriodSecs": 5 };
            set.client_of(primary).database("admin").run_command(step_down).await.unwrap();
        }
        insert(&shop.collection("orders"), &format!("order-{count}")).await;
        leader.until_count(count).await;
        // By the next primary.
        until("a renewal", || async { held().await.filter(|lock| lock.expires_at > before.expires_at) })
            .await;
        assert_ne!(set.primary().await, primary, "there was an election");
        if is_killed {
            set.restart(primary).await;
        }
        set.until_caught_up(primary).await;
    }
    let last = held().await.unwrap();
    assert_eq!((last.fence, &last.owner), (first.fence, &first.owner), "it was never lost");
    assert!(leader.assigned && stands_by(&other.status()), "{:?}", other.status());
    leader.commit(1).await;
    leader.close().await;
    other.close().await;
}
