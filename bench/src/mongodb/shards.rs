//! The store on a cluster of one shard and of two: rates, and the share of commands that go to one shard.
//!
//! `LAZARET_TEST_MONGOD` and `LAZARET_TEST_MONGOS` name the programs. All servers share the cores of this machine, so two shards are no faster
//! than one here: the ratio tells what the router and the second shard cost.

use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use futures_util::future;
use lazaret_core::store::{LetterStore, Settlement};
use lazaret_mongodb_testkit::Cluster;
use lazaret_store_mongodb::{MongoStore, MongoStoreOptions};

use super::BENCH;
use super::due::due_letters;
use super::server::Server;
use crate::Scale;
use crate::core::rate;
use crate::letters::{open_with, put, queue};
use crate::table::{Compared, ROUNDS, Row, spread};

const LETTERS: usize = 4_000;
/// The letters per call, for hand-offs and claims.
const BATCH: usize = 500;
const CLAIMED: usize = 100;
const LEASE: Duration = Duration::from_secs(60);

/// What a cluster did.
struct Measured {
    stored: Vec<f64>,
    settled: Vec<f64>,
    /// The share of the commands that the router sent to one shard.
    targeted: f64,
}

pub(super) async fn run(scale: Scale) -> Vec<Row> {
    // One after the other: they share the cores.
    let Some(one) = measure(scale, 1).await else { return Vec::new() };
    let Some(two) = measure(scale, 2).await else { return Vec::new() };
    let row = |name, unit, two: &[f64], one: &[f64]| {
        let note = format!("the ratios lie between {}", spread(two, one));
        Row::compared(BENCH, name, unit, &Compared::new(two, one)).with_note(note)
    };
    let share = "shards/share of commands that a router of two shards sends to one";
    vec![
        row("shards/hand-offs, 500 a call, two shards beside one", "letters/s", &two.stored, &one.stored),
        row("shards/claims and settlements, two shards beside one", "letters/s", &two.settled, &one.settled),
        Row::new(BENCH, share, "of all", two.targeted).with_note(
            "the others go to both: those about up to 100 or more documents, and one for each claim",
        ),
    ]
}

/// Measures a cluster with so many shards. `None`, with a message, if no programs are named.
async fn measure(scale: Scale, shards: usize) -> Option<Measured> {
    let cluster = Cluster::for_test("the benchmark of shards", &vec![1; shards]).await?;
    let server = Server::at(cluster.uri()).await.expect("the cluster was started");
    let letters = scale.count(LETTERS);
    // Warm-up.
    rates(&server, letters).await;
    let before = targets(&server).await;
    let (mut stored, mut settled) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (hand_offs, settlements) = rates(&server, letters).await;
        stored.push(hand_offs);
        settled.push(settlements);
    }
    let after = targets(&server).await;
    let (single, all) = (after.0 - before.0, after.1 - before.1);
    server.clean_up().await;
    Some(Measured { stored, settled, targeted: single as f64 / (all as f64).max(1.0) })
}

/// The number of commands that the router has sent to one shard, and of all.
async fn targets(server: &Server) -> (i64, i64) {
    let status = server.client.database("admin").run_command(doc! { "serverStatus": 1 }).await;
    let status = status.expect("the router answers");
    let counted =
        status.get_document("shardingStatistics").and_then(|of| of.get_document("numHostsTargeted"));
    let counted = counted.expect("a router of 4.4 or later counts them");
    let (mut single, mut all) = (0, 0);
    for (name, number) in counted.values().filter_map(Bson::as_document).flatten() {
        let number = match number {
            Bson::Int32(number) => i64::from(*number),
            Bson::Int64(number) => *number,
            _ => 0,
        };
        all += number;
        if ["oneShard", "unsharded"].contains(&name.as_str()) {
            single += number;
        }
    }
    (single, all)
}

/// Letters per second into a new store that is spread over the shards, and out of it.
async fn rates(server: &Server, letters: usize) -> (f64, f64) {
    let options = MongoStoreOptions { collection: server.new_name(), ..MongoStoreOptions::default() };
    shard(server, options.clone()).await;
    let store = MongoStore::with_client(&server.client, server.database.name(), options).await;
    let store = store.expect("the cluster takes a store");
    let items: Vec<_> = due_letters(letters).map(open_with).collect();
    let batches: Vec<_> = items.chunks(BATCH).map(<[_]>::to_vec).collect();
    let started = Instant::now();
    for batch in batches {
        put(&store, batch).await;
    }
    let stored = rate(letters, started.elapsed());
    let (started, mut settled) = (Instant::now(), 0);
    while settled < letters {
        let claims =
            store.claim_due(&queue(), "bench", LEASE, CLAIMED).await.expect("the store gives leases");
        assert!(!claims.is_empty(), "{settled} of {letters} letters were due");
        let settle =
            claims.iter().map(|claim| store.settle(&claim.lease, claim.head.id, Settlement::Resolve(None)));
        for answer in future::join_all(settle).await {
            answer.expect("the store settles every letter");
        }
        settled += claims.len();
    }
    (stored, rate(letters, started.elapsed()))
}

/// Spreads the collections of a store over the shards, before it is opened.
async fn shard(server: &Server, options: MongoStoreOptions) {
    let (admin, database) = (server.client.database("admin"), server.database.name());
    let run = async |command: Document| {
        admin.run_command(command).await.expect("the router shards collections");
    };
    run(doc! { "enableSharding": database }).await;
    for collection in MongoStore::collections(&server.client, database, options) {
        if let Some(key) = collection.shard_key {
            run(doc! { "shardCollection": format!("{database}.{}", collection.name), "key": key }).await;
        }
    }
}
