//! MongoDB as only real servers are: a sharded cluster, and the watch of a whole database.
//!
//! The servers are those that `LAZARET_TEST_MONGODB` and `LAZARET_TEST_MONGODB_SHARDED` name, or the tests start their own:
//! `LAZARET_TEST_MONGOD` and `LAZARET_TEST_MONGOS` name the programs.

use std::any::Any;

use bson::{Document, doc};
use lazaret_mongodb_testkit::{Cluster, ReplicaSet};
use lazaret_store_mongodb::{MongoStore, MongoStoreOptions};
use rustix::process::Signal;

use crate::mongodb::{Handler, Shop, examine, folder, waits_for_position, waits_for_status};
use crate::support::{get, wait_for};

/// A database on a server, and the server if the test has started it.
type Real = (Shop, Option<Box<dyn Any>>);

/// A replica set. Prints what was not run without one.
async fn replica_set(what: &str) -> Option<Real> {
    let is_wire_server = std::env::var("LAZARET_TEST_MONGODB_KIND").is_ok_and(|kind| kind == "wire-server");
    match std::env::var("LAZARET_TEST_MONGODB") {
        Ok(uri) if !is_wire_server => Some((Shop::at(uri).await, None)),
        _ => {
            let set = ReplicaSet::for_test(what, 1, &[]).await?;
            Some((Shop::at(set.uri()).await, Some(Box::new(set))))
        }
    }
}

/// A cluster of two shards or more. Prints what was not run without one.
async fn cluster(what: &str) -> Option<Real> {
    if let Ok(uri) = std::env::var("LAZARET_TEST_MONGODB_SHARDED") {
        return Some((Shop::at(uri).await, None));
    }
    let cluster = Cluster::for_test(what, &[1, 1]).await?;
    Some((Shop::at(cluster.uri()).await, Some(Box::new(cluster))))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_watches_the_database_of_its_store_reads_what_others_write_and_nothing_else() {
    let Some((shop, _server)) = replica_set("a daemon that watches the database of its store").await else {
        return;
    };
    let handler = Handler::start();
    let source = format!("{{ mongodb: {{ uri: '{}', database: {} }} }}", shop.uri, shop.database);
    let folder = folder(&shop.store_in(&shop.database), &source, &handler);
    let mut daemon = folder.start(&["run"]);
    let address = waits_for_position(&mut daemon);
    shop.insert([(1, "poison")]).await;
    waits_for_status(&address, "\"dead\":1");
    // The letter, its lease and the position lie before this change.
    shop.insert([(2, "fine")]).await;
    handler.waits_for([2]);
    let shows = |number: &str| get(&address, "/metrics").1.contains(&format!("{number}\n"));
    let handled = "lazaret_handled_total{consumer=\"shop\"} 1";
    wait_for("what is settled", || shows(handled).then_some(()));
    let read = "lazaret_read_total{consumer=\"shop\"} 2";
    assert!(shows(read), "{}", get(&address, "/metrics").1);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", folder.read("stderr.log"));
    shop.close().await;
}

/// Shards a collection of a database by this key.
async fn shard(shop: &Shop, database: &str, collection: &str, key: Document) {
    let admin = shop.client.database("admin");
    admin.run_command(doc! { "enableSharding": database }).await.unwrap();
    let command = doc! { "shardCollection": format!("{database}.{collection}"), "key": key };
    admin.run_command(command).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_tells_how_a_cluster_spreads_the_store() {
    let Some((shop, _cluster)) = cluster("what the doctor says about a cluster").await else { return };
    let (handler, store) = (Handler::start(), format!("{}_store", shop.database));
    let here = folder(&shop.store(), &shop.source(), &handler);
    let says = |words: &str| {
        let said = examine(&here);
        assert!(said.contains(words), "{words:?}: {said}");
        said
    };
    let said = says(&format!(
        "warn  store: no collection of the store is sharded: all are on the primary shard of {store}"
    ));
    assert!(said.contains("ok    shop source: the server is a router of a sharded cluster"), "{said}");
    for of in MongoStore::collections(&shop.client, &store, MongoStoreOptions::default()) {
        if let Some(key) = of.shard_key {
            shard(&shop, &store, &of.name, key).await;
        }
    }
    let said = says("ok    store: the collections that grow are sharded, each by the key of the store");
    assert!(said.contains("ok    store: the sharded collections have no documents yet"), "{said}");
    let letters = shop.client.database(&store).collection::<Document>("lazaret_letters");
    letters.insert_many((0..100).map(|number| doc! { "_id": number })).await.unwrap();
    let said = says("ok    store: share of the fullest of ");
    let share = said.split_once(" shards: lazaret_letters ").unwrap().1.split_once(" %").unwrap().0;
    assert!((1..90).contains(&share.parse::<u32>().unwrap()), "a hash spreads them: {said}");
    letters.drop().await.unwrap();
    shard(&shop, &store, "lazaret_letters", doc! { "stream": 1 }).await;
    let said = says(&format!("FAIL  store: {store}.lazaret_letters is sharded by "));
    assert!(said.contains(&format!("`sh.reshardCollection(\"{store}.lazaret_letters\", ")), "{said}");
    shop.close().await;
}
