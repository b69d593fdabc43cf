//! The store on a sharded cluster: the suites, chunks that move, and servers that are killed.
//!
//! `LAZARET_TEST_MONGODB_SHARDED` names a cluster for the suites. The other tests start one: `LAZARET_TEST_MONGOD` and
//! `LAZARET_TEST_MONGOS` name the programs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use lazaret_core::LetterState;
use lazaret_core::store::LetterStore;
use lazaret_mongodb_testkit::Cluster;
use lazaret_store_mongodb::MongoStore;
use lazaret_testkit::{
    checkpoints_test_suite, dedupe_test_suite, locks_test_suite, outbox_test_suite, store_test_suite,
};
use mongodb::Client;

use crate::support::running::{LONG, Running, assert_stored_once, queue};
use crate::support::{TestDatabase, cluster_is_there, sharded_store};

store_test_suite!(letters_of, io, super::sharded_store, if super::cluster_is_there);
checkpoints_test_suite!(checkpoints, io, super::sharded_store, if super::cluster_is_there);
locks_test_suite!(locks, io, super::sharded_store, if super::cluster_is_there);
dedupe_test_suite!(dedupe, io, super::sharded_store, if super::cluster_is_there);
outbox_test_suite!(outbox, io, super::sharded_store, if super::cluster_is_there);

#[test]
fn the_store_behaves_like_the_model() {
    if cluster_is_there() {
        lazaret_testkit::model::check(2, sharded_store);
    }
}

/// Repairs the handler, and replays all letters.
async fn replay_all(running: &Running, store: &MongoStore) {
    running.repaired.store(true, Ordering::SeqCst);
    let replayer = running.handle.replayer("orders").unwrap();
    tokio::time::timeout(LONG, replayer.process_all("repaired")).await.expect("timed out").unwrap();
    let counts = store.counts(&queue()).await.unwrap();
    assert_eq!((counts.open(), counts.of(LetterState::Resolved)), (0, running.messages));
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_a_cluster_that_are_killed_lose_no_letter_and_store_none_twice() {
    // I1, I2, I8
    let Some(mut cluster) = Cluster::for_test("killed servers of a cluster", &[1, 1]).await else { return };
    let test = TestDatabase::new(cluster.uri());
    test.shard().await;
    let store = Arc::new(test.open(None).await);
    let mut running = Running::start(store.clone());
    running.push();
    running.until_stored().await;
    for number in 0..2 {
        running.push();
        let primary = cluster.shard(number).primary().await;
        cluster.shard(number).kill(primary);
        running.push();
        cluster.shard(number).restart(primary).await;
        cluster.shard(number).primary().await;
        running.until_stored().await;
        running.until_stored().await;
    }
    running.push();
    cluster.kill_router();
    running.push();
    cluster.restart_router().await;
    running.until_stored().await;
    running.until_stored().await;
    running.push();
    let primary = cluster.configuration().primary().await;
    cluster.configuration().kill(primary);
    running.push();
    cluster.configuration().restart(primary).await;
    cluster.configuration().primary().await;
    running.until_stored().await;
    running.until_stored().await;
    assert_stored_once(&store, running.messages).await;
    replay_all(&running, &store).await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_whose_primary_is_killed_goes_on_by_its_next_primary() {
    // I1, I2, I8
    let Some(mut cluster) = Cluster::for_test("a killed primary of a shard", &[3, 1]).await else { return };
    let test = TestDatabase::new(cluster.uri());
    test.shard().await;
    let store = Arc::new(test.open(None).await);
    let mut running = Running::start(store.clone());
    running.push();
    running.until_stored().await;
    running.push();
    let killed = cluster.shard(0).primary().await;
    cluster.shard(0).kill(killed);
    running.push();
    running.until_stored().await;
    running.until_stored().await;
    assert_ne!(cluster.shard(0).primary().await, killed, "the others have elected one");
    cluster.shard(0).restart(killed).await;
    cluster.shard(0).until_caught_up(killed).await;
    running.push();
    running.until_stored().await;
    assert_stored_once(&store, running.messages).await;
    replay_all(&running, &store).await;
    running.end().await;
}

/// Moves half of a collection that was spread by a hash from the primary shard to another one.
async fn move_half(client: &Client, database: &str, collection: &str) {
    let (admin, config, of) =
        (client.database("admin"), client.database("config"), format!("{database}.{collection}"));
    let databases = config.collection::<Document>("databases");
    let primary = databases.find_one(doc! { "_id": database }).await.unwrap().unwrap();
    let primary = primary.get_str("primary").unwrap().to_owned();
    let other = config.collection::<Document>("shards").find_one(doc! { "_id": { "$ne": primary } }).await;
    let other = other.unwrap().unwrap().get_str("_id").unwrap().to_owned();
    admin.run_command(doc! { "split": &of, "middle": { "_id": 0_i64 } }).await.unwrap();
    let bounds = [doc! { "_id": 0_i64 }, doc! { "_id": Bson::MaxKey }];
    admin.run_command(doc! { "moveChunk": &of, "bounds": bounds, "to": other }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_with_letters_is_sharded_and_moved_while_it_works() {
    // I1, I2, I8
    let Some(cluster) = Cluster::for_test("sharding a store with letters", &[1, 1]).await else { return };
    let test = TestDatabase::new(cluster.uri());
    let store = Arc::new(test.open(None).await);
    let mut running = Running::start(store.clone());
    running.push();
    running.until_stored().await;
    // The indexes for it are there.
    test.shard().await;
    let client = Client::with_uri_str(&test.uri).await.unwrap();
    // It would move chunks at the same time.
    client.database("admin").run_command(doc! { "balancerStop": 1 }).await.unwrap();
    for collection in ["_fw_dlq", "_fw_dlq_sequences"] {
        running.push();
        move_half(&client, &test.name, collection).await;
        running.push();
        running.until_stored().await;
        running.until_stored().await;
    }
    assert_stored_once(&store, running.messages).await;
    let owners = |statistics: &Document| statistics.get_document("shards").unwrap().len();
    let statistics = test.database().await.run_command(doc! { "collStats": "_fw_dlq" }).await.unwrap();
    assert_eq!(owners(&statistics), 2, "{statistics}");
    replay_all(&running, &store).await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_has_the_indexes_that_sharding_needs() {
    let Some(cluster) = Cluster::for_test("indexes on a cluster", &[1]).await else { return };
    let test = TestDatabase::new(cluster.uri());
    for _ in 0..2 {
        drop(test.open(None).await);
        let database = test.database().await;
        for collection in ["_fw_dlq", "_fw_dlq_sequences", "_fw_dlq_batches", "_fw_dlq_values"] {
            let indexes = database.collection::<Document>(collection).list_indexes().await.unwrap();
            let indexes: Vec<_> = indexes.try_collect().await.unwrap();
            let hashed = indexes.iter().filter(|index| index.keys == doc! { "_id": "hashed" });
            assert_eq!(hashed.count(), 1, "{collection}");
        }
    }
}
