//! Streams of a sharded cluster: chunks that move, and a collection that is resharded.
//!
//! `LAZARET_TEST_MONGODB_SHARDED` names a cluster. Without one the tests start their own: `LAZARET_TEST_MONGOD` and `LAZARET_TEST_MONGOS`
//! name the programs.

use std::sync::Arc;

use bson::{Bson, Document, doc};
use lazaret_memory::MemoryStore;
use lazaret_source_mongodb::{MongoSourceOptions, Start, StreamState};
use mongodb::options::{ClientOptions, ServerAddress, WriteConcern};
use mongodb::{Client, Collection, Database};
use tokio::task::JoinHandle;

use crate::support::disturbed::{Disturbed, documents, insert};
use crate::support::{Reading, Shop, current_incarnation, sharded_cluster};

/// Options for the collection `orders`, from now on. A server that was just started has no time before that.
fn options(shop: &Shop) -> MongoSourceOptions {
    MongoSourceOptions { start: Start::Resume, ..shop.options("orders") }
}

/// The shards of a cluster, the one with the unsharded collections of the database first.
async fn shards(shop: &Shop) -> Vec<String> {
    let config = shop.client.database("config");
    let databases: Collection<Document> = config.collection("databases");
    let own = databases.find_one(doc! { "_id": &shop.database }).await.unwrap().unwrap();
    let own = own.get_str("primary").unwrap().to_owned();
    let listed = shop.client.database("admin").run_command(doc! { "listShards": 1 }).await.unwrap();
    let name = |shard: &Bson| shard.as_document().unwrap().get_str("_id").unwrap().to_owned();
    let others = listed.get_array("shards").unwrap().iter().map(name).filter(|name| *name != own);
    std::iter::once(own.clone()).chain(others).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_that_move_between_shards_lose_and_repeat_nothing() {
    // I1
    let Some(cluster) = sharded_cluster("a sharded cluster").await else { return };
    let shop = Shop::new(cluster.uri.clone()).await;
    let (admin, namespace) = (shop.client.database("admin"), format!("{}.orders", shop.database));
    let run = async |command: Document| admin.run_command(command).await.unwrap();
    run(doc! { "enableSharding": &shop.database }).await;
    run(doc! { "shardCollection": &namespace, "key": { "_id": 1 } }).await;
    // Nobody else moves its chunks.
    let collections: Collection<Document> = shop.client.database("config").collection("collections");
    let stay = doc! { "$set": { "noBalance": true } };
    let stay =
        collections.update_one(doc! { "_id": &namespace }, stay).write_concern(WriteConcern::majority());
    assert_eq!(stay.await.unwrap().matched_count, 1);
    run(doc! { "split": &namespace, "middle": { "_id": "order-2" } }).await;
    let shards = shards(&shop).await;
    assert!(shards.len() > 1, "a cluster has several shards: {shards:?}");
    let mut stream = Disturbed::start(&shop, options(&shop)).await;
    for _ in 0..4 {
        stream.read_next().await;
    }
    // The upper chunk goes to the other shard and back, with documents in it.
    for shard in [&shards[1], &shards[0]] {
        let moved = doc! { "moveChunk": &namespace, "find": { "_id": "order-3" }, "to": shard, "_waitForDelete": true };
        run(moved).await;
        for _ in 0..2 {
            stream.read_next().await;
        }
    }
    let index =
        doc! { "createIndexes": "orders", "indexes": [{ "key": { "_id": 1, "region": 1 }, "name": "key" }] };
    shop.client.database(&shop.database).run_command(index).await.unwrap();
    run(doc! { "refineCollectionShardKey": &namespace, "key": { "_id": 1, "region": 1 } }).await;
    stream.read_next().await;
    stream.end().await;
    shop.drop().await;
}

/// The wire version of MongoDB 5.0, the first that reshards.
const RESHARDS: i32 = 13;
/// The documents before a collection is resharded: enough to find the bounds of two chunks.
const BEFORE: usize = 40;

/// The configuration servers of a cluster.
async fn configuration(shop: &Shop) -> Database {
    let map = shop.client.database("admin").run_command(doc! { "getShardMap": 1 }).await.unwrap();
    let servers = map.get_document("map").unwrap().get_str("config").unwrap();
    let (set, hosts) = servers.split_once('/').unwrap();
    let mut options = ClientOptions::parse(&shop.uri).await.unwrap();
    options.hosts = hosts.split(',').map(|host| ServerAddress::parse(host).unwrap()).collect();
    (options.repl_set_name, options.direct_connection) = (Some(set.to_owned()), None);
    Client::with_options(options).unwrap().database("admin")
}

/// Sets how long resharding takes at least, by default five minutes. Returns how long it was.
async fn set_least_duration(configuration: &Database, milliseconds: i64) -> i64 {
    let set = doc! { "setParameter": 1, "reshardingMinimumOperationDurationMillis": milliseconds };
    let answer = configuration.run_command(set).await.unwrap();
    match answer.get("was") {
        Some(Bson::Int32(was)) => (*was).into(),
        Some(Bson::Int64(was)) => *was,
        was => panic!("{was:?}"),
    }
}

/// Inserts documents while a collection is resharded, and some behind it. Returns the ids of all.
async fn insert_beside(orders: Collection<Document>, resharded: JoinHandle<()>) -> Vec<String> {
    let mut ids = Vec::new();
    while !resharded.is_finished() {
        ids.push(format!("beside-{}", ids.len()));
        insert(&orders, ids.last().unwrap()).await;
    }
    resharded.await.unwrap();
    for id in ["behind-0", "behind-1", "last"] {
        insert(&orders, id).await;
        ids.push(id.to_owned());
    }
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_is_resharded_begins_an_incarnation_and_loses_and_repeats_nothing() {
    // I1
    let Some(cluster) = sharded_cluster("a resharded collection").await else { return };
    let shop = Shop::new(cluster.uri.clone()).await;
    let (admin, namespace) = (shop.client.database("admin"), format!("{}.orders", shop.database));
    let hello = admin.run_command(doc! { "hello": 1 }).await.unwrap();
    if hello.get_i32("maxWireVersion").unwrap() < RESHARDS {
        println!("not run: a resharded collection; the cluster is older than MongoDB 5.0");
        return;
    }
    admin.run_command(doc! { "enableSharding": &shop.database }).await.unwrap();
    admin.run_command(doc! { "shardCollection": &namespace, "key": { "_id": 1 } }).await.unwrap();
    let (store, orders) = (Arc::new(MemoryStore::default()), shop.collection("orders"));
    let mut reading = Reading::attached(options(&shop), &store);
    reading.until_status("it reads", |status| status.state == StreamState::Reading).await;
    let mut written: Vec<String> = (0..BEFORE).map(|number| format!("before-{number}")).collect();
    for id in &written {
        insert(&orders, id).await;
    }
    let first = shop.uuid("orders").await;
    let configuration = configuration(&shop).await;
    let was = set_least_duration(&configuration, 0).await;
    let reshard = doc! { "reshardCollection": &namespace, "key": { "_id": "hashed" }, "numInitialChunks": 2 };
    let resharded = tokio::spawn(async move { drop(admin.run_command(reshard).await.unwrap()) });
    let writing = tokio::spawn(insert_beside(orders, resharded));
    let (mut read, mut ids) = (Vec::<String>::new(), Vec::<String>::new());
    while read.last().is_none_or(|id| id != "last") {
        reading.until("the next event", |reading| !reading.messages.is_empty()).await;
        reading.commit(reading.messages.len() - 1).await;
        read.extend(documents(&reading));
        ids.extend(reading.ids());
        reading.messages.clear();
    }
    written.extend(writing.await.unwrap());
    set_least_duration(&configuration, was).await;
    assert_eq!(read, written, "{:?}", reading.errors);
    let second = shop.uuid("orders").await;
    assert_ne!(first, second, "it was resharded");
    assert_eq!((reading.recreated.len(), reading.status().incarnation), (1, 1));
    let recorded = current_incarnation(&store).await;
    assert_eq!((recorded.number, recorded.id), (1, Some(second.into())));
    assert!(ids[0].starts_with("orders:") && ids[ids.len() - 1].starts_with("orders~1:"), "{ids:?}");
    let errors = &reading.errors;
    assert!(errors.iter().all(|error| error.is_temporary()), "{errors:?}");
    reading.close().await;
    shop.drop().await;
}
