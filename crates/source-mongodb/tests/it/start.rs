//! Where streams start, and what they watch; on a replica set also what the small wire server cannot do.

use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Timestamp, doc};
use lazaret_core::handler::{Delivery, FromDelivery};
use lazaret_core::store::Checkpoints;
use lazaret_core::{Message, Operation};
use lazaret_memory::MemoryStore;
use lazaret_source_mongodb::{
    Before, BeforeChange, CheckpointOptions, MongoSourceOptions, OnInvalidate, Server, Start,
    StoreCollections, StreamState, headers,
};

use crate::support::peer::{Fault, Peer, time, token};
use crate::support::{LONG, Reading, Shop, current_incarnation, quick, replica_set, server};

async fn started(options: MongoSourceOptions, store: &Arc<MemoryStore>) -> Reading {
    let mut reading = Reading::open(options, store.clone());
    reading.until_status("it reads", |status| status.state == StreamState::Reading).await;
    reading
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_stream_starts_now_and_a_crash_before_the_first_commit_loses_nothing() {
    // I1
    let Some(server) = server() else { return };
    let (shop, store) = (Shop::new(server).await, Arc::new(MemoryStore::default()));
    let orders = shop.collection("orders");
    orders.insert_one(doc! { "_id": 1 }).await.unwrap();
    let options = MongoSourceOptions { start: Start::Resume, ..shop.options("orders") };
    let mut first = started(options.clone(), &store).await;
    orders.insert_one(doc! { "_id": 2 }).await.unwrap();
    first.until_count(1).await;
    let ids = first.ids();
    first.crash(&*store).await;
    orders.insert_one(doc! { "_id": 3 }).await.unwrap();
    let mut second = Reading::open(options, store.clone());
    second.until_count(2).await;
    assert_eq!(second.ids()[..1], ids);
    shop.drop().await;
}

/// A server that tells the time of its last operation only by its oplog.
async fn with_times_in_the_oplog() -> Peer {
    let peer = Peer::start().await;
    peer.without_post_batch_tokens();
    peer.without_operation_times();
    peer
}

fn orders(peer: &Peer) -> MongoSourceOptions {
    quick(MongoSourceOptions::collection(peer.uri(), "shop", "orders"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oplog_that_cannot_be_read_for_a_while_does_not_start_a_stream_early() {
    let errors = [
        vec![Fault::Error(50, "MaxTimeMSExpired", false)],
        // The driver repeats a read once by itself.
        vec![Fault::Disconnect, Fault::Disconnect],
    ];
    for faults in errors {
        let (peer, store) = (with_times_in_the_oplog().await, Arc::new(MemoryStore::default()));
        let before = peer.insert(1);
        faults.into_iter().for_each(|fault| peer.fail_find(fault));
        let mut reading = started(orders(&peer), &store).await;
        assert!(peer.has_failed());
        assert_eq!(reading.status().restarts, 1);
        let start = peer.last_opened().get_timestamp("startAtOperationTime").unwrap();
        assert_eq!(start, Timestamp { increment: 2, ..time(before) }, "behind the last operation");
        let after = peer.insert(2);
        reading.until_count(1).await;
        assert_eq!(reading.ids(), [format!("orders:{}", token(after))]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_readable_oplog_a_stream_starts_by_the_clock_of_the_server() {
    let deny: fn(&Peer) = |peer| peer.fail_find(Fault::Error(13, "Unauthorized", false));
    for prepare in [deny, Peer::empty_oplog] {
        let (peer, store) = (with_times_in_the_oplog().await, Arc::new(MemoryStore::default()));
        let tick = peer.advance();
        prepare(&peer);
        let reading = started(orders(&peer), &store).await;
        assert_eq!(reading.status().restarts, 0);
        let start = peer.last_opened().get_timestamp("startAtOperationTime").unwrap();
        assert_eq!(start, Timestamp { increment: 0, ..time(tick) });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_starts_at_the_oldest_entry_of_the_oplog() {
    let Some(server) = server() else { return };
    let (shop, store) = (Shop::new(server).await, Arc::new(MemoryStore::default()));
    shop.collection("orders").insert_many([doc! { "_id": 1 }, doc! { "_id": 2 }]).await.unwrap();
    let options = MongoSourceOptions { start: Start::OplogStart, ..shop.options("orders") };
    let mut reading = Reading::open(options, store);
    reading.until_count(2).await;
    let status = reading.status();
    assert!(status.last_event_at.is_some() && status.events >= 2);
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_and_a_deployment_are_watched_as_a_whole() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let database = started(quick(MongoSourceOptions::database(peer.uri(), "shop")), &store).await;
    assert_eq!(peer.last_target(), ("shop".to_owned(), Bson::Int32(1)));
    let all = started(quick(MongoSourceOptions::deployment(peer.uri(), "all")), &store).await;
    assert_eq!(peer.last_target(), ("admin".to_owned(), Bson::Int32(1)));
    assert!(peer.last_opened().get_bool("allChangesForCluster").unwrap());
    let mut both = [database, all];
    peer.insert(7);
    for reading in &mut both {
        reading.until_count(1).await;
        let key = reading.messages[0].key.as_deref().unwrap();
        assert!(String::from_utf8_lossy(key).contains(r#""coll":"orders""#), "the key has the namespace");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_database_is_watched_as_a_whole() {
    let Some(server) = replica_set("the watch of a whole database") else { return };
    let (shop, store) = (Shop::new(server).await, Arc::new(MemoryStore::default()));
    let options = MongoSourceOptions {
        start: Start::At(shop.began),
        ..quick(MongoSourceOptions::database(&shop.uri, &shop.database))
    };
    for name in ["orders", "items"] {
        shop.collection(name).insert_one(doc! { "_id": 1 }).await.unwrap();
    }
    let mut reading = Reading::open(options, store);
    reading.until_count(2).await;
    let collections: Vec<_> =
        reading.messages.iter().filter_map(|message| message.headers.get_str(headers::COLLECTION)).collect();
    assert_eq!(collections, ["orders", "items"]);
    assert_ne!(reading.messages[0].key, reading.messages[1].key);
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_drop_ends_the_stream_and_a_decision_continues_it() {
    let Some(server) = replica_set("invalidation by a drop, and the start after it") else { return };
    let (shop, store) = (Shop::new(server).await, Arc::new(MemoryStore::default()));
    let options = MongoSourceOptions {
        on_invalidate: OnInvalidate::StartAfter,
        operations: vec![],
        ..shop.options("orders")
    };
    let orders = shop.collection("orders");
    orders.insert_one(doc! { "_id": 1 }).await.unwrap();
    orders.drop().await.unwrap();
    let mut reading = Reading::attached(options, &store);
    reading.until_count(3).await;
    reading.commit(2).await;
    let operations: Vec<_> = reading.messages.iter().filter_map(|message| message.operation).collect();
    assert_eq!(operations, [Operation::Insert, Operation::Drop, Operation::Invalidate]);
    orders.insert_one(doc! { "_id": 2 }).await.unwrap();
    reading.until_recreated(1).await;
    let first = &reading.messages[0];
    assert_eq!((first.operation, first.position.incarnation), (Some(Operation::Insert), 1));
    assert!(first.id.as_str().starts_with("orders~1:"), "{}", first.id);
    let recorded = current_incarnation(&store).await.id;
    assert_eq!(recorded.as_deref(), Some(shop.uuid("orders").await.as_str()));
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_invalidation_passes_a_filter_and_the_stream_continues_behind_it() {
    let Some(server) = replica_set("invalidation behind a filter") else { return };
    let (shop, store) = (Shop::new(server).await, Arc::new(MemoryStore::default()));
    let redact = doc! { "$cond": [{ "$eq": ["$operationType", "drop"] }, "$$PRUNE", "$$KEEP"] };
    let options = MongoSourceOptions {
        on_invalidate: OnInvalidate::StartAfter,
        operations: vec![],
        pipeline: vec![doc! { "$match": { "fullDocument.status": "paid" } }, doc! { "$redact": redact }],
        ..shop.options("orders")
    };
    let orders = shop.collection("orders");
    orders
        .insert_many([doc! { "_id": 1, "status": "open" }, doc! { "_id": 2, "status": "paid" }])
        .await
        .unwrap();
    orders.drop().await.unwrap();
    let mut reading = Reading::attached(options, &store);
    reading.until_count(1).await;
    assert_eq!(reading.messages[0].key.as_deref(), Some(&br#"{"_id":{"$numberInt":"2"}}"#[..]));
    reading.commit(0).await;
    orders.insert_one(doc! { "_id": 3, "status": "paid" }).await.unwrap();
    reading.until_recreated(1).await;
    assert_eq!(reading.messages[0].key.as_deref(), Some(&br#"{"_id":{"$numberInt":"3"}}"#[..]));
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_database_is_watched_without_the_collections_of_the_store() {
    let Some(server) = replica_set("the watch of a database with a store") else { return };
    let (shop, store) = (Shop::new(server).await, Arc::new(MemoryStore::default()));
    let letters = StoreCollections {
        server: Server::Client(shop.client.clone()),
        database: shop.database.clone(),
        collection: "letters".into(),
    };
    let options = MongoSourceOptions {
        start: Start::At(shop.began),
        store_collections: vec![letters],
        ..quick(MongoSourceOptions::database(&shop.uri, &shop.database))
    };
    for name in ["letters", "letters_values", "orders"] {
        shop.collection(name).insert_one(doc! { "_id": 1 }).await.unwrap();
    }
    let mut reading = Reading::open(options, store);
    reading.until_count(1).await;
    assert_eq!(reading.messages[0].headers.get_str(headers::COLLECTION), Some("orders"));
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_deployment_is_watched_without_the_collections_of_the_store() {
    let Some(server) = replica_set("the watch of a deployment with a store") else { return };
    let (shop, store) = (Shop::new(server).await, Arc::new(MemoryStore::default()));
    let letters = format!("{}_store", shop.database);
    let letters = StoreCollections {
        server: Server::Client(shop.client.clone()),
        database: letters,
        collection: "letters".into(),
    };
    let of_letters = shop.client.database(&letters.database);
    // Other tests write to the server as well.
    let own = doc! { "$match": { "ns.db": { "$in": [&shop.database, &letters.database] } } };
    let options = MongoSourceOptions {
        start: Start::At(shop.began),
        pipeline: vec![own],
        store_collections: vec![letters],
        ..quick(MongoSourceOptions::deployment(&shop.uri, "all"))
    };
    for name in ["letters", "letters_values", "orders"] {
        of_letters.collection::<bson::Document>(name).insert_one(doc! { "_id": 1 }).await.unwrap();
    }
    shop.collection("letters").insert_one(doc! { "_id": 1 }).await.unwrap();
    let mut reading = Reading::open(options, store);
    reading.until_count(2).await;
    let place = |message: &Message| {
        let header = |name| message.headers.get_str(name).unwrap().to_owned();
        format!("{}.{}", header(headers::DATABASE), header(headers::COLLECTION))
    };
    let places: Vec<_> = reading.messages.iter().map(place).collect();
    assert_eq!(places, [format!("{}.orders", of_letters.name()), format!("{}.letters", shop.database)]);
    of_letters.drop().await.unwrap();
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_certifies_the_position_of_a_quiet_stream() {
    let Some(server) = replica_set("idle heartbeats by post-batch tokens") else { return };
    let (shop, store) = (Shop::new(server).await, Arc::new(MemoryStore::default()));
    let checkpoint =
        CheckpointOptions { idle_heartbeat: Duration::from_millis(1), ..CheckpointOptions::default() };
    let options = MongoSourceOptions { start: Start::Resume, checkpoint, ..shop.options("orders") };
    let reading = started(options, &store).await;
    let seen = || async { store.load("orders").await.unwrap().unwrap().seen };
    let first = seen().await;
    let moved = tokio::time::timeout(LONG, async {
        while seen().await == first {
            shop.collection("others").insert_one(doc! {}).await.unwrap();
        }
    });
    moved.await.expect("timed out waiting for a certified position");
    reading.close().await;
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_gives_the_document_before_the_change() {
    let Some(server) = replica_set("documents before the change") else { return };
    let (shop, store) = (Shop::new(server).await, Arc::new(MemoryStore::default()));
    let hello = shop.client.database("admin").run_command(doc! { "hello": 1 }).await.unwrap();
    if hello.get_i32("maxWireVersion").unwrap() < 17 {
        let options = MongoSourceOptions {
            full_document_before_change: BeforeChange::Required,
            ..shop.options("orders")
        };
        let error = Reading::open(options, store).permanent_error().await;
        assert!(error.contains("MongoDB 6.0"), "{error}");
        return;
    }
    let images = doc! { "create": "orders", "changeStreamPreAndPostImages": { "enabled": true } };
    shop.client.database(&shop.database).run_command(images).await.unwrap();
    let orders = shop.collection("orders");
    orders.insert_one(doc! { "_id": 1, "total": 1 }).await.unwrap();
    orders.update_one(doc! { "_id": 1 }, doc! { "$set": { "total": 2 } }).await.unwrap();
    let options =
        MongoSourceOptions { full_document_before_change: BeforeChange::Required, ..shop.options("orders") };
    let mut reading = Reading::open(options, store);
    reading.until_count(2).await;
    let delivery = Delivery::new(reading.messages[1].clone());
    let Before(before) = Before::<bson::Document>::from_delivery(&delivery).unwrap();
    assert_eq!(before, doc! { "_id": 1, "total": 1 });
    shop.drop().await;
}
