//! Several instances: one leads, the others stand by; a late leader moves nothing.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::source::{Commit, Source};
use lazaret_core::store::{Checkpoint, Checkpoints, Expect, KeyValue, Locks};
use lazaret_memory::MemoryStore;
use lazaret_source_mongodb::{Deployment, ErrorClass, MongoSourceOptions, MongoStatus, StreamState};

use crate::support::peer::{Peer, token};
use crate::support::{LONG, Reading, SHORT_LEASE, quick};

const LEASE: &str = "change-stream/orders";

fn options(peer: &Peer) -> MongoSourceOptions {
    quick(MongoSourceOptions::collection(peer.uri(), "shop", "orders"))
}

async fn leading(peer: &Peer, store: &Arc<MemoryStore>) -> Reading {
    let mut reading = Reading::open(options(peer), store.clone());
    reading.until_status("it reads", |status| status.state == StreamState::Reading).await;
    reading
}

fn ids(reading: &Reading) -> Vec<String> {
    reading.messages.iter().map(|message| message.id.to_string()).collect()
}

fn id(tick: u32) -> String {
    format!("orders:{}", token(tick))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_exactly_where_the_leader_stopped() {
    // I1, I6
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let mut first = leading(&peer, &store).await;
    let mut second = Reading::open(options(&peer), store.clone());
    second
        .until_status("it stands by", |status| {
            matches!(&status.state, StreamState::Standby { leader: Some(_), .. })
        })
        .await;
    let all: Vec<_> = (1..5).map(|number| peer.insert(number)).collect();
    first.until_count(4).await;
    assert!(!second.assigned);
    first.commit(1).await;
    first.close().await;
    second.until_count(2).await;
    assert_eq!(ids(&second), [id(all[2]), id(all[3])]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_replaced_learns_it_and_moves_nothing() {
    // I6
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let mut old = leading(&peer, &store).await;
    let all: Vec<_> = (1..4).map(|number| peer.insert(number)).collect();
    old.until_count(3).await;
    // Its lease ends, as when it could not reach the store for long.
    let owner = store.state(LEASE).await.unwrap().unwrap().owner;
    store.release(LEASE, &owner).await.unwrap();
    let mut new = Reading::open(options(&peer), store.clone());
    new.until_count(3).await;
    new.commit(0).await;
    // The late commit of the old one is no error, and changes nothing.
    let (partition, position) = (old.source.partition(), old.messages[2].position.clone());
    let commit = Commit { partition, position: Some(position), settled_beyond: vec![] };
    old.source.commit(vec![commit]).await.unwrap();
    let stored = store.load("orders").await.unwrap().unwrap().processed.unwrap();
    assert_eq!(stored.token, format!(r#"{{"_data":"{}"}}"#, token(all[0])));
    old.until("it learns that it was replaced", |old| !old.assigned).await;
    old.until_status("it stands by", |status| matches!(status.state, StreamState::Standby { .. })).await;
}

/// Deletes the lease and the checkpoint, as somebody who drops the collections of the store does.
async fn empty(store: &MemoryStore) {
    for (space, name) in [("lock", LEASE), (Checkpoint::SPACE, "orders")] {
        store.write(space, name, Expect::Anything, None, None).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_store_was_emptied_goes_on_from_its_own_position() {
    // I1
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let short = MongoSourceOptions { lease: SHORT_LEASE, ..options(&peer) };
    let mut reading = Reading::open(short, store.clone());
    reading.until_status("it reads", |status| status.state == StreamState::Reading).await;
    let all = [peer.insert(1), peer.insert(2)];
    reading.until_count(2).await;
    reading.commit(0).await;
    empty(&store).await;
    reading.until("it has lost its lease", |reading| !reading.assigned).await;
    reading.until("it leads again", |reading| reading.assigned).await;
    reading.until_count(1).await;
    assert_eq!(ids(&reading), [id(all[1])]);
    let decisions = reading.status().decisions;
    assert!(decisions.iter().any(|decision| decision.text.contains("lost the checkpoint")), "{decisions:?}");
    assert!(store.load("orders").await.unwrap().unwrap().processed.is_some(), "it is written again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_knows_the_position_of_a_leader_whose_store_is_emptied() {
    // I1
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let mut first = leading(&peer, &store).await;
    let all = [peer.insert(1), peer.insert(2)];
    first.until_count(2).await;
    first.commit(0).await;
    let mut second = Reading::open(options(&peer), store.clone());
    let is_standby =
        |status: &MongoStatus| matches!(&status.state, StreamState::Standby { until: Some(_), .. });
    second.until_status("it stands by", is_standby).await;
    drop(first);
    empty(&store).await;
    second.until_count(1).await;
    assert_eq!(ids(&second), [id(all[1])]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crashed_leader_is_replaced_when_its_lease_ends() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let short = MongoSourceOptions { lease: SHORT_LEASE, ..options(&peer) };
    let mut first = Reading::open(short, store.clone());
    first.until_status("it reads", |status| status.state == StreamState::Reading).await;
    let tick = peer.insert(1);
    first.until_count(1).await;
    drop(first);
    let mut second = Reading::open(options(&peer), store.clone());
    second.until_count(1).await;
    assert_eq!(ids(&second), [id(tick)]);
    let lock = store.state(LEASE).await.unwrap().unwrap();
    assert_eq!(lock.fence, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_instances_read_everything_with_a_checkpoint_each() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let open = |instance: &str| {
        let options = MongoSourceOptions {
            deployment: Deployment::AllInstances,
            instance: Some(instance.to_owned()),
            ..options(&peer)
        };
        Reading::open(options, store.clone())
    };
    let (mut a, mut b) = (open("a"), open("b"));
    for reading in [&mut a, &mut b] {
        reading.until_status("it reads", |status| status.state == StreamState::Reading).await;
    }
    let ticks = [peer.insert(1), peer.insert(2)];
    for reading in [&mut a, &mut b] {
        reading.until_count(2).await;
        assert_eq!(ids(reading), ticks.map(id));
    }
    a.commit(1).await;
    b.commit(0).await;
    let processed =
        |name: &'static str| async { store.load(name).await.unwrap().unwrap().processed.unwrap().token };
    assert_ne!(processed("orders@a").await, processed("orders@b").await);
    assert!(store.load("orders").await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_cannot_start_does_not_keep_another_from_it() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    // Nobody listens there.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let uri = format!("mongodb://{nobody}/?directConnection=true&serverSelectionTimeoutMS=100");
    let mut broken =
        Reading::open(quick(MongoSourceOptions::collection(uri, "shop", "broken")), store.clone());
    let mut good = leading(&peer, &store).await;
    peer.insert(1);
    good.until_count(1).await;
    broken
        .until_status("it is retried", |status| {
            matches!(status.state, StreamState::Restarting { class: ErrorClass::Network, attempt: 2.., .. })
        })
        .await;
    assert!(broken.errors.iter().all(|error| error.is_temporary()), "it waits for the server");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_closes_flushes_and_then_releases() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let mut options = options(&peer);
    (options.checkpoint.every, options.checkpoint.interval) = (1000, Duration::from_secs(3600));
    let mut reading = Reading::open(options, store.clone());
    reading.until_status("it reads", |status| status.state == StreamState::Reading).await;
    let ticks = [peer.insert(1), peer.insert(2)];
    reading.until_count(2).await;
    reading.commit(1).await;
    assert!(store.load("orders").await.unwrap().unwrap().processed.is_none(), "not due yet");
    tokio::time::timeout(LONG, reading.close()).await.unwrap();
    let stored = store.load("orders").await.unwrap().unwrap().processed.unwrap();
    assert_eq!(stored.token, format!(r#"{{"_data":"{}"}}"#, token(ticks[1])));
    assert!(store.state(LEASE).await.unwrap().is_none(), "the lease is free");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settled_position_is_written_after_the_interval() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let mut options = options(&peer);
    (options.checkpoint.every, options.checkpoint.interval) = (1000, Duration::from_millis(10));
    let mut reading = Reading::open(options, store.clone());
    reading.until_status("it reads", |status| status.state == StreamState::Reading).await;
    peer.insert(1);
    reading.until_count(1).await;
    reading.commit(0).await;
    let written = tokio::time::timeout(LONG, async {
        while store.load("orders").await.unwrap().unwrap().processed.is_none() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    written.await.expect("timed out waiting for the interval");
}

#[tokio::test(flavor = "multi_thread")]
async fn settled_ranges_are_given_to_the_next_leader() {
    let (peer, store) = (Peer::start().await, Arc::new(MemoryStore::default()));
    let mut first = leading(&peer, &store).await;
    (1..6).for_each(|number| {
        peer.insert(number);
    });
    first.until_count(5).await;
    // The position stays at this one, while an event behind it waits for its retry.
    first.commit(0).await;
    let offset = |nth: usize| first.messages[nth].position.offset;
    let (kept, last) = (offset(2)..=offset(2), offset(4)..=offset(4));
    let commit = Commit {
        partition: first.source.partition(),
        position: Some(first.messages[0].position.clone()),
        settled_beyond: vec![kept.clone(), last],
    };
    first.source.commit(vec![commit]).await.unwrap();
    // Also a crash loses none of it: it was written with the commit.
    first.crash(&*store).await;
    let mut second = lazaret_source_mongodb::MongoSource::open(options(&peer), store.clone()).unwrap();
    let event = tokio::time::timeout(LONG, second.next()).await.unwrap().unwrap();
    let lazaret_core::source::SourceEvent::Assigned(assigned) = event else { panic!("{event:?}") };
    assert_eq!(assigned[0].settled, [kept], "without the last one: another event may share its offset (I1)");
}
