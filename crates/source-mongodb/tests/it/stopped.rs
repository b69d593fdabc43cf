//! A leader that is stopped for longer than its lease, as a process of its own: `SIGSTOP` and `SIGCONT`.
//!
//! The test runs itself again as the instances, which read a scripted server. One that goes on has events in its lanes that its successor
//! has handled meanwhile. It learns that from its lease, and may call no handler before.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::store::{LetterStore, Locks};
use lazaret_core::{HandlerError, Message, Partition, QueueName, Timestamp};
use lazaret_engine::{Consumer, Event, Options};
use lazaret_source_mongodb::{LeaseOptions, MongoSource, MongoSourceOptions, Start};
use lazaret_store_sqlite::{Options as StoreOptions, SqliteStore};
use lazaret_testkit::{Instance, Journal};
use tokio_util::sync::CancellationToken;

use crate::support::peer::{Peer, time, token};
use crate::support::{LONG, quick};

/// The events before the stop, each of another document.
const EVENTS: i32 = 30;
/// The attempts of an instance that run at once.
const CONCURRENCY: usize = 4;
/// Longer than a busy machine keeps a process waiting.
const LEASE: LeaseOptions = LeaseOptions {
    ttl: Duration::from_secs(6),
    renew: Duration::from_secs(2),
    margin: Duration::from_millis(500),
    standby: Duration::from_millis(50),
};
const MOMENT: Duration = Duration::from_millis(10);

/// Starts an instance in a process of its own.
fn start(number: u32, peer: &Peer, folder: &Path) -> Instance {
    let (number, folder) = (number.to_string(), folder.display().to_string());
    Instance::start("stopped::instance", &[&number, peer.uri(), &folder])
}

fn open_store(folder: &Path) -> SqliteStore {
    SqliteStore::open(folder.join("lazaret.db"), StoreOptions::default()).unwrap()
}

/// An instance. Each call of its handler lasts until the test allows `go-NUMBER`, and it leaves when the test allows `leave-NUMBER`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the other test, in its own process"]
async fn instance() {
    let [number, uri, folder] = Instance::arguments();
    let folder = Path::new(&folder);
    let source = MongoSourceOptions {
        // Before the first event.
        start: Start::At(time(1)),
        lease: LEASE,
        ..quick(MongoSourceOptions::collection(uri, "shop", "orders"))
    };
    let journal = Journal::new(folder);
    let (noted, by) = (journal.clone(), number.clone());
    let handler = move |message: Message| {
        let (noted, by) = (noted.clone(), by.clone());
        async move {
            noted.call(&by, &message.id).await;
            Ok::<_, HandlerError>(())
        }
    };
    let store = Arc::new(open_store(folder));
    let (seen, by) = (journal.clone(), number.clone());
    let consumer = Consumer::builder("stopped")
        .source(MongoSource::open(source, store.clone()).unwrap())
        .store(store)
        .options(Options {
            concurrency: CONCURRENCY,
            commit_interval: Duration::from_millis(50),
            instance: format!("instance-{number}"),
            ..Options::default()
        })
        .observer(move |event: &Event<'_>| match event {
            Event::Assigned { .. } => seen.write(&format!("{by} gets the stream")),
            Event::Revoked { lost: true, .. } => seen.write(&format!("{by} loses the stream")),
            _ => {}
        })
        .handler(handler)
        .build()
        .unwrap();
    let (handle, drain) = (consumer.handle(), CancellationToken::new());
    let (told, leaving, by) = (journal.clone(), drain.clone(), number.clone());
    tokio::spawn(async move {
        let (mut is_full, leave) = (false, format!("leave-{by}"));
        while !told.is_allowed(&leave) {
            if !is_full && handle.in_flight() == u64::from(EVENTS.unsigned_abs()) {
                is_full = true;
                told.write(&format!("{by} has all"));
            }
            tokio::time::sleep(MOMENT).await;
        }
        leaving.cancel();
    });
    consumer.run(drain).await.unwrap();
    journal.write(&format!("{number} has left"));
}

/// The messages with which an instance did this, from this line of the journal on.
fn of(journal: &Journal, what: &str, from: usize) -> BTreeSet<String> {
    journal.of(what, from).into_iter().collect()
}

/// When the lease of the stream ends.
async fn end_of_lease(store: &SqliteStore) -> Option<Timestamp> {
    store.state("change-stream/orders").await.unwrap().map(|lock| lock.expires_at)
}

/// Waits until the leader has renewed its lease. It does not write to the store again before the next time: a process that is stopped with
/// the write lock of the file would stop the others, too.
async fn until_renewed(folder: &Path) {
    let (store, started) = (open_store(folder), Instant::now());
    let before = end_of_lease(&store).await;
    while end_of_lease(&store).await == before {
        assert!(started.elapsed() < LONG, "the lease is not renewed");
        tokio::time::sleep(MOMENT).await;
    }
    // Whoever has the lock gives it back first.
    store.assign(&QueueName::of("test", "test"), &[Partition::new("test", 0)]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_stopped_for_longer_than_its_lease_starts_nothing_that_its_successor_has_handled() {
    // I6
    let (peer, folder) = (Peer::start().await, tempfile::tempdir().unwrap());
    let insert = |number: i32| format!("orders:{}", token(peer.insert(number)));
    let all: BTreeSet<String> = (0..EVENTS).map(insert).collect();
    let journal = Journal::new(folder.path());
    let first = start(1, &peer, folder.path());
    journal.until("the first calls", |journal| of(journal, "1 begins ", 0).len() == CONCURRENCY).await;
    journal.until("all events in its memory", |journal| journal.has("1 has all", 0)).await;
    until_renewed(folder.path()).await;
    // All its calls wait, so it is stopped within a call, and the other events are in its lanes.
    first.signal("STOP");
    let begun = of(&journal, "1 begins ", 0);
    journal.allow("go-2");
    let _second = start(2, &peer, folder.path());
    journal.until("its successor to handle all", |journal| of(journal, "2 ends ", 0) == all).await;
    // Its calls can return as soon as it goes on.
    journal.allow("go-1");
    let woken = journal.lines().len();
    first.signal("CONT");
    journal.until("its loss", |journal| journal.has("1 loses the stream", woken)).await;
    // And it leads in its turn.
    journal.allow("leave-2");
    journal.until("the end of its successor", |journal| journal.has("2 has left", woken)).await;
    journal.until("its turn", |journal| journal.has("1 gets the stream", woken)).await;
    let new: BTreeSet<String> = (EVENTS..EVENTS + 5).map(insert).collect();
    journal.until("the new events", |journal| of(journal, "1 ends ", woken).is_superset(&new)).await;
    let again = &of(&journal, "1 begins ", woken) - &new;
    assert_eq!(again, BTreeSet::new(), "its successor has handled them; begun before the stop: {begun:?}");
}
