//! Faults of real servers and of the network before them: elections, killed cursors, cut connections, missing rights.
//!
//! `scripted.rs` has the same cases by a scripted server, which also fails at moments that no real one can be made to fail at.

use std::sync::Arc;

use bson::oid::ObjectId;
use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use lazaret_core::store::{Checkpoint, Checkpoints};
use lazaret_memory::MemoryStore;
use lazaret_mongodb_testkit::ReplicaSet;
use lazaret_source_mongodb::{
    ErrorClass, MongoSourceOptions, OnHistoryLost, OnInvalidate, Server, StreamState,
};
use mongodb::Client;
use mongodb::options::{ClientOptions, Credential};

use crate::support::disturbed::{Disturbed, documents, insert, started, until};
use crate::support::relay::Relay;
use crate::support::{Reading, Shop, failover_set, replica_set, server, unique};

/// The number of the election that the primary has won.
async fn election(client: &Client) -> ObjectId {
    until("a primary", || async {
        let hello = client.database("admin").run_command(doc! { "hello": 1 }).await.ok()?;
        hello.get_bool("isWritablePrimary").ok()?.then(|| hello.get_object_id("electionId").ok())?
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_election_loses_and_repeats_nothing() {
    // I1
    let Some(set) = failover_set("elections").await else { return };
    let shop = Shop::new(set.uri.clone()).await;
    let mut stream = Disturbed::start(&shop, shop.options("orders")).await;
    for _ in 0..2 {
        stream.read_next().await;
        let before = election(&shop.client).await;
        // A set of one member has no other that could catch up, and elects itself again after the time.
        let step_down = doc! { "replSetStepDown": 2, "secondaryCatchUpPeriodSecs": 1, "force": true };
        shop.client.database("admin").run_command(step_down).await.unwrap();
        stream.read_next().await;
        assert_ne!(election(&shop.client).await, before, "there was an election");
    }
    stream.end().await;
    shop.drop().await;
}

/// The cursor of the stream on the server, if it is not this one. A cursor is there while it waits for events, and between two requests.
async fn cursor(shop: &Shop, but_not: Option<i64>) -> i64 {
    let admin = shop.client.database("admin");
    until("the cursor of the stream", || async {
        let namespace = format!("{}.orders", shop.database);
        let pipeline = [
            doc! { "$currentOp": { "idleCursors": true } },
            doc! { "$match": { "ns": namespace, "cursor.cursorId": { "$exists": true } } },
        ];
        let found: Vec<Document> = admin.aggregate(pipeline).await.unwrap().try_collect().await.unwrap();
        let id = |operation: &Document| operation.get_document("cursor").ok()?.get_i64("cursorId").ok();
        found.iter().filter_map(id).find(|id| Some(*id) != but_not)
    })
    .await
}

async fn kill(shop: &Shop, cursor: i64) {
    let kill = doc! { "killCursors": "orders", "cursors": [cursor] };
    let answer = shop.client.database(&shop.database).run_command(kill).await.unwrap();
    assert_eq!(answer.get_array("cursorsKilled").unwrap()[..], [Bson::Int64(cursor)], "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_cursor_that_is_killed_loses_and_repeats_nothing() {
    // I1
    let Some(server) = replica_set("killed cursors") else { return };
    let shop = Shop::new(server).await;
    let mut stream = Disturbed::start(&shop, shop.options("orders")).await;
    for _ in 0..3 {
        stream.read_next().await;
        let killed = cursor(&shop, None).await;
        kill(&shop, killed).await;
        stream.read_next().await;
        assert_ne!(cursor(&shop, Some(killed)).await, killed, "the stream was opened again");
    }
    stream.end().await;
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_cursor_that_is_killed_right_behind_an_invalidation_loses_and_repeats_nothing() {
    // I1
    let what = "cursors that are killed behind an invalidation";
    // Of its own: writes of others would move the position of the stream on from the invalidation.
    let Some(set) = ReplicaSet::for_test(what, 1, &[]).await else { return };
    let (shop, store) = (Shop::new(set.uri()).await, Arc::new(MemoryStore::default()));
    let options = MongoSourceOptions { on_invalidate: OnInvalidate::StartAfter, ..shop.options("orders") };
    let mut reading = Reading::attached(options, &store);
    reading.until_status("it reads", |status| status.state == StreamState::Reading).await;
    let (orders, mut last) = (shop.collection("orders"), cursor(&shop, None).await);
    insert(&orders, "before").await;
    reading.until_count(1).await;
    reading.commit(0).await;
    orders.drop().await.unwrap();
    reading.until_status("it starts after the invalidation", |status| !status.decisions.is_empty()).await;
    for _ in 0..3 {
        last = cursor(&shop, Some(last)).await;
        kill(&shop, last).await;
    }
    cursor(&shop, Some(last)).await;
    insert(&orders, "after").await;
    reading.until_recreated(1).await;
    assert_eq!((documents(&reading), reading.status().incarnation), (vec!["after".to_owned()], 1));
    assert!(reading.errors.iter().all(|error| error.is_temporary()), "{:?}", reading.errors);
    reading.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_lose_and_repeat_nothing() {
    // I1
    let Some(server) = server() else { return };
    let relay = Relay::start(&server).await;
    let shop = Shop::new(server).await;
    let options =
        MongoSourceOptions { server: Server::Client(relay.client.clone()), ..shop.options("orders") };
    let mut stream = Disturbed::start(&shop, options).await;
    for _ in 0..3 {
        stream.read_next().await;
        assert!(relay.cut() > 0, "the stream has a connection");
        stream.read_next().await;
    }
    stream.end().await;
    shop.drop().await;
}

/// A client of the server that signs in as this user.
async fn client_of(uri: &str, user: &str, password: &str) -> Client {
    let mut options = ClientOptions::parse(uri).await.unwrap();
    let credential = Credential::builder()
        .username(user.to_owned())
        .password(password.to_owned())
        .source("admin".to_owned())
        .build();
    options.credential = Some(credential);
    Client::with_options(options).unwrap()
}

async fn checkpoint(store: &MemoryStore) -> Checkpoint {
    store.load("orders").await.unwrap().unwrap()
}

/// A stream that was read up to an event. It would skip what is lost.
async fn read_before(shop: &Shop, store: &Arc<MemoryStore>) -> MongoSourceOptions {
    let mut reading = started(shop.options("orders"), store).await;
    insert(&shop.collection("orders"), "order").await;
    reading.until_count(1).await;
    reading.commit(0).await;
    reading.close().await;
    MongoSourceOptions { on_history_lost: OnHistoryLost::FromNow, ..shop.options("orders") }
}

/// Opens the stream as this user. It ends with an error in words, and the checkpoint stays.
async fn refused(options: &MongoSourceOptions, client: Client, store: &Arc<MemoryStore>) {
    let before = checkpoint(store).await;
    let options = MongoSourceOptions { server: Server::Client(client), ..options.clone() };
    let mut reading = Reading::open(options, store.clone());
    let error = reading.permanent_error().await;
    assert!(error.contains("credentials") && error.contains("changeStream"), "{error}");
    let status = reading.status();
    assert!(
        matches!(status.state, StreamState::Failed { class: ErrorClass::Unauthorized, .. }),
        "{status:?}"
    );
    assert_eq!(status.decisions, []);
    reading.close().await;
    let after = checkpoint(store).await;
    assert_eq!((after.processed, after.seen), (before.processed, before.seen));
}

#[tokio::test(flavor = "multi_thread")]
async fn real_wrong_credentials_are_not_lost_history() {
    let Some(server) = replica_set("wrong credentials") else { return };
    let (shop, store) = (Shop::new(server).await, Arc::new(MemoryStore::default()));
    let options = read_before(&shop, &store).await;
    refused(&options, client_of(&shop.uri, &unique("nobody"), "wrong").await, &store).await;
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn real_missing_rights_are_not_lost_history() {
    let Some(server) = replica_set("missing rights") else { return };
    let (shop, store) = (Shop::new(server).await, Arc::new(MemoryStore::default()));
    let options = read_before(&shop, &store).await;
    let (admin, user) = (shop.client.database("admin"), unique("reader"));
    let create = doc! { "createUser": &user, "pwd": "secret", "roles": [] };
    admin.run_command(create).await.expect("the user of LAZARET_TEST_MONGODB may create others");
    let client = client_of(&shop.uri, &user, "secret").await;
    if client.database(&shop.database).run_command(doc! { "find": "orders" }).await.is_ok() {
        println!("not run: missing rights; the server in LAZARET_TEST_MONGODB lets everybody do everything");
    } else {
        refused(&options, client, &store).await;
    }
    admin.run_command(doc! { "dropUser": &user }).await.unwrap();
    shop.drop().await;
}
