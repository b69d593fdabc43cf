//! An instance that is stopped for longer than its session, as a process of its own: `SIGSTOP` and `SIGCONT`.
//!
//! The test runs itself again as the instances. One that goes on has messages in its lanes that another one has handled meanwhile. It
//! learns that from its connection, and may call no handler before.

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

use lazaret_core::store::LetterStore;
use lazaret_core::{HandlerError, Message, Partition, QueueName};
use lazaret_engine::{Consumer, Event, Options};
use lazaret_source_postgres::{Ack, OutboxOptions, OutboxSource};
use lazaret_store_sqlite::{Options as StoreOptions, SqliteStore};
use support::{LONG, Shop, server};
use tokio_util::sync::CancellationToken;

/// Says to a process of this test that it is an instance, and all that it needs: `number dsn schema folder ack`.
const INSTANCE: &str = "LAZARET_STOPPED_INSTANCE";
/// The rows before the stop, each with a key of its own.
const ROWS: u64 = 30;
/// The attempts of an instance that run at once.
const CONCURRENCY: usize = 4;
/// Longer than a busy machine keeps a process waiting.
const SESSION_TIMEOUT: Duration = Duration::from_secs(6);
const MOMENT: Duration = Duration::from_millis(10);

/// A process that does not outlive the test.
struct Instance(Child);

impl Instance {
    fn start(number: u32, shop: &Shop, folder: &Path, ack: &str) -> Self {
        let arguments = format!("{number} {} {} {} {ack}", shop.dsn, shop.schema, folder.display());
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
    let [number, dsn, schema, folder, ack] = arguments.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let folder = Path::new(folder);
    let source = OutboxOptions {
        poll: Duration::from_millis(20),
        session_timeout: SESSION_TIMEOUT,
        ack: if ack == "delete" { Ack::Delete } else { Ack::Position },
        ..OutboxOptions::new(dsn, format!("{schema}.outbox"))
    };
    let journal = OpenOptions::new().create(true).append(true).open(folder.join("journal")).unwrap();
    let journal = Arc::new(journal);
    let (noted, go, by) = (journal.clone(), folder.join(format!("go-{number}")), number.to_owned());
    let handler = move |message: Message| {
        let (noted, go, by) = (noted.clone(), go.clone(), by.clone());
        async move {
            let id = message.position.offset;
            write(&noted, &format!("{by} begins {id}"));
            while !go.exists() {
                tokio::time::sleep(MOMENT).await;
            }
            write(&noted, &format!("{by} ends {id}"));
            Ok::<_, HandlerError>(())
        }
    };
    let store = Arc::new(open_store(folder));
    let (seen, by) = (journal.clone(), number.to_owned());
    let consumer = Consumer::builder("stopped")
        .source(OutboxSource::open(source, store.clone()).unwrap())
        .store(store)
        .options(Options {
            concurrency: CONCURRENCY,
            commit_interval: Duration::from_millis(50),
            instance: format!("instance-{number}"),
            ..Options::default()
        })
        .observer(move |event: &Event<'_>| match event {
            Event::Assigned { .. } => write(&seen, &format!("{by} gets the outbox")),
            Event::Revoked { lost: true, .. } => write(&seen, &format!("{by} loses the outbox")),
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
            if !is_full && handle.in_flight() == ROWS {
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

    /// The ids of the rows with which an instance did this, from this line on.
    fn of(&self, what: &str, from: usize) -> BTreeSet<u64> {
        let lines = self.lines();
        lines.iter().skip(from).filter_map(|line| line.strip_prefix(what)?.parse().ok()).collect()
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !holds(self) {
            assert!(started.elapsed() < LONG, "waited in vain for {what}: {:?}", self.lines());
            tokio::time::sleep(MOMENT).await;
        }
    }
}

/// Adds the rows with these ids. No rows were rolled back, so none is missing.
async fn fill(shop: &Shop, from: u64, to: u64) {
    shop.sql(&format!(
        "INSERT INTO outbox (key, payload) SELECT n::text, '' FROM generate_series({from}, {to}) n"
    ))
    .await;
}

/// Writes to the store. Whoever has its write lock gives it back first, and does not take it again while it has nothing to write.
async fn pass_through(folder: &Path) {
    let queue = QueueName::of("test", "test");
    open_store(folder).assign(&queue, &[Partition::new("test", 0)]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_was_stopped_for_longer_than_its_session_starts_nothing_that_another_has_handled() {
    // I6
    let Some(dsn) = server() else { return };
    for ack in ["delete", "position"] {
        let folder = tempfile::tempdir().unwrap();
        let shop = Shop::with_outbox(dsn.clone()).await;
        fill(&shop, 1, ROWS).await;
        let journal = Journal(folder.path().join("journal"));
        let first = Instance::start(1, &shop, folder.path(), ack);
        journal.until("the first calls", |journal| journal.of("1 begins ", 0).len() == CONCURRENCY).await;
        journal.until("all rows in its memory", |journal| journal.has("1 has all", 0)).await;
        pass_through(folder.path()).await;
        // All its calls wait, so it is stopped within a call, and the other messages are in its lanes.
        first.signal("STOP");
        let begun = journal.of("1 begins ", 0);
        std::fs::write(folder.path().join("go-2"), "").unwrap();
        let _second = Instance::start(2, &shop, folder.path(), ack);
        let all: BTreeSet<u64> = (1..=ROWS).collect();
        journal.until("the other one to handle all", |journal| journal.of("2 ends ", 0) == all).await;
        // Its calls can return as soon as it goes on.
        std::fs::write(folder.path().join("go-1"), "").unwrap();
        let woken = journal.lines().len();
        first.signal("CONT");
        journal.until("its loss", |journal| journal.has("1 loses the outbox", woken)).await;
        // And it takes over in its turn.
        std::fs::write(folder.path().join("leave-2"), "").unwrap();
        journal.until("the end of the other one", |journal| journal.has("2 has left", woken)).await;
        journal.until("its turn", |journal| journal.has("1 gets the outbox", woken)).await;
        fill(&shop, ROWS + 1, ROWS + 5).await;
        let new: BTreeSet<u64> = (ROWS + 1..=ROWS + 5).collect();
        let is_handled = |journal: &Journal| journal.of("1 ends ", woken).is_superset(&new);
        journal.until("the new rows", is_handled).await;
        let again = &journal.of("1 begins ", woken) - &new;
        assert_eq!(
            again,
            BTreeSet::new(),
            "the other one has handled them; begun before the stop: {begun:?}"
        );
    }
}
