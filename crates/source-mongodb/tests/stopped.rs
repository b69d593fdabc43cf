//! A leader that is stopped for longer than its lease, as a process of its own: `SIGSTOP` and `SIGCONT`.
//!
//! The test runs itself again as the instances, which read a scripted server. One that goes on has events in its lanes that its successor
//! has handled meanwhile. It learns that from its lease, and may call no handler before.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod support;

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::store::{LetterStore, Locks};
use lazaret_core::{HandlerError, Message, Partition, QueueName, Timestamp};
use lazaret_engine::{Consumer, Event, Options};
use lazaret_source_mongodb::{LeaseOptions, MongoSource, MongoSourceOptions, Start};
use lazaret_store_sqlite::{Options as StoreOptions, SqliteStore};
use support::peer::{Peer, time, token};
use support::{LONG, quick};
use tokio_util::sync::CancellationToken;

/// Says to a process of this test that it is an instance, and all that it needs: `number uri folder`.
const INSTANCE: &str = "LAZARET_STOPPED_INSTANCE";
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

/// A process that does not outlive the test.
struct Instance(Child);

impl Instance {
    fn start(number: u32, peer: &Peer, folder: &Path) -> Self {
        let arguments = format!("{number} {} {}", peer.uri(), folder.display());
        let mut instance = Command::new(std::env::current_exe().unwrap());
        instance.args(["--ignored", "--exact", "instance", "--nocapture"]).env(INSTANCE, arguments);
        Self(instance.stdout(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.0.id())]).status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn write(journal: &File, line: &str) {
    (&*journal).write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn open_store(folder: &Path) -> SqliteStore {
    SqliteStore::open(folder.join("lazaret.db"), StoreOptions::default()).unwrap()
}

/// An instance. Each call of its handler lasts until there is a file `go-NUMBER`, and it leaves when there is a file `leave-NUMBER`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the other test, in its own process"]
async fn instance() {
    let arguments = std::env::var(INSTANCE).expect("the test that starts it sets its arguments");
    let [number, uri, folder] = arguments.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let folder = Path::new(folder);
    let source = MongoSourceOptions {
        // Before the first event.
        start: Start::At(time(1)),
        lease: LEASE,
        ..quick(MongoSourceOptions::collection(uri, "shop", "orders"))
    };
    let journal = OpenOptions::new().create(true).append(true).open(folder.join("journal")).unwrap();
    let journal = Arc::new(journal);
    let (noted, go, by) = (journal.clone(), folder.join(format!("go-{number}")), number.to_owned());
    let handler = move |message: Message| {
        let (noted, go, by) = (noted.clone(), go.clone(), by.clone());
        async move {
            write(&noted, &format!("{by} begins {}", message.id));
            while !go.exists() {
                tokio::time::sleep(MOMENT).await;
            }
            write(&noted, &format!("{by} ends {}", message.id));
            Ok::<_, HandlerError>(())
        }
    };
    let store = Arc::new(open_store(folder));
    let (seen, by) = (journal.clone(), number.to_owned());
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
            Event::Assigned { .. } => write(&seen, &format!("{by} gets the stream")),
            Event::Revoked { lost: true, .. } => write(&seen, &format!("{by} loses the stream")),
            _ => {}
        })
        .handler(handler)
        .build()
        .unwrap();
    let (handle, drain) = (consumer.handle(), CancellationToken::new());
    let (told, leaving, by) = (journal.clone(), drain.clone(), number.to_owned());
    let leave = folder.join(format!("leave-{number}"));
    tokio::spawn(async move {
        let mut is_full = false;
        while !leave.exists() {
            if !is_full && handle.in_flight() == u64::from(EVENTS.unsigned_abs()) {
                is_full = true;
                write(&told, &format!("{by} has all"));
            }
            tokio::time::sleep(MOMENT).await;
        }
        leaving.cancel();
    });
    consumer.run(drain).await.unwrap();
    write(&journal, &format!("{number} has left"));
}

/// The lines of the instances.
struct Journal(PathBuf);

impl Journal {
    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        // The last line may not be complete.
        text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect()
    }

    /// Returns whether an instance noted this, from this line on.
    fn has(&self, what: &str, from: usize) -> bool {
        self.lines().iter().skip(from).any(|line| line == what)
    }

    /// The ids of the events with which an instance did this, from this line on.
    fn of(&self, what: &str, from: usize) -> BTreeSet<String> {
        let lines = self.lines();
        lines.iter().skip(from).filter_map(|line| line.strip_prefix(what)).map(str::to_owned).collect()
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !holds(self) {
            assert!(started.elapsed() < LONG, "waited in vain for {what}: {:?}", self.lines());
            tokio::time::sleep(MOMENT).await;
        }
    }
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
    let journal = Journal(folder.path().join("journal"));
    let first = Instance::start(1, &peer, folder.path());
    journal.until("the first calls", |journal| journal.of("1 begins ", 0).len() == CONCURRENCY).await;
    journal.until("all events in its memory", |journal| journal.has("1 has all", 0)).await;
    until_renewed(folder.path()).await;
    // All its calls wait, so it is stopped within a call, and the other events are in its lanes.
    first.signal("STOP");
    let begun = journal.of("1 begins ", 0);
    std::fs::write(folder.path().join("go-2"), "").unwrap();
    let _second = Instance::start(2, &peer, folder.path());
    journal.until("its successor to handle all", |journal| journal.of("2 ends ", 0) == all).await;
    // Its calls can return as soon as it goes on.
    std::fs::write(folder.path().join("go-1"), "").unwrap();
    let woken = journal.lines().len();
    first.signal("CONT");
    journal.until("its loss", |journal| journal.has("1 loses the stream", woken)).await;
    // And it leads in its turn.
    std::fs::write(folder.path().join("leave-2"), "").unwrap();
    journal.until("the end of its successor", |journal| journal.has("2 has left", woken)).await;
    journal.until("its turn", |journal| journal.has("1 gets the stream", woken)).await;
    let new: BTreeSet<String> = (EVENTS..EVENTS + 5).map(insert).collect();
    journal.until("the new events", |journal| journal.of("1 ends ", woken).is_superset(&new)).await;
    let again = &journal.of("1 begins ", woken) - &new;
    assert_eq!(again, BTreeSet::new(), "its successor has handled them; begun before the stop: {begun:?}");
}
