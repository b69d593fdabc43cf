//! An instance that is stopped for longer than its session, as a separate process: `SIGSTOP` and `SIGCONT`.
//!
//! The test runs itself again as the instances. An instance that continues has messages in its lanes
//! that another instance has handled in the meantime. It learns this from its connection, and must not
//! call a handler before.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::store::LetterStore;
use lazaret_core::{HandlerError, Message, Partition, QueueName};
use lazaret_engine::{Consumer, Event, Options};
use lazaret_source_postgres::{Ack, OutboxOptions, OutboxSource};
use lazaret_store_sqlite::{Options as StoreOptions, SqliteStore};
use lazaret_testkit::{Instance, Journal};
use tokio_util::sync::CancellationToken;

use crate::support::{Shop, server};

/// The number of rows before the stop, each with its own key.
const ROWS: u64 = 30;
/// The number of concurrent attempts of an instance.
const CONCURRENCY: usize = 4;
/// The session timeout, which is longer than a busy machine makes a process wait.
const SESSION_TIMEOUT: Duration = Duration::from_secs(6);
const MOMENT: Duration = Duration::from_millis(10);

/// Starts an instance in a separate process.
fn start(number: u32, shop: &Shop, folder: &Path, ack: &str) -> Instance {
    let (number, folder) = (number.to_string(), folder.display().to_string());
    Instance::start("stopped::instance", &[&number, &shop.dsn, &shop.schema, &folder, ack])
}

fn open_store(folder: &Path) -> SqliteStore {
    SqliteStore::open(folder.join("lazaret.db"), StoreOptions::default()).unwrap()
}

/// Runs an instance. Each call of its handler lasts until the test allows `go-NUMBER`. The instance ends
/// when the test allows `leave-NUMBER`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the other test, in its own process"]
async fn instance() {
    let [number, dsn, schema, folder, ack] = Instance::arguments();
    let folder = Path::new(&folder);
    let source = OutboxOptions {
        poll: Duration::from_millis(20),
        session_timeout: SESSION_TIMEOUT,
        ack: if ack == "delete" { Ack::Delete } else { Ack::Position },
        ..OutboxOptions::new(dsn, format!("{schema}.outbox"))
    };
    let journal = Journal::new(folder);
    let (noted, by) = (journal.clone(), number.clone());
    let handler = move |message: Message| {
        let (noted, by) = (noted.clone(), by.clone());
        async move {
            noted.call(&by, message.position.offset).await;
            Ok::<_, HandlerError>(())
        }
    };
    let store = Arc::new(open_store(folder));
    let (seen, by) = (journal.clone(), number.clone());
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
            Event::Assigned { .. } => seen.write(&format!("{by} gets the outbox")),
            Event::Revoked { lost: true, .. } => seen.write(&format!("{by} loses the outbox")),
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
            if !is_full && handle.in_flight() == ROWS {
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

/// Returns the messages with which an instance did this, from this line of the journal on.
fn of(journal: &Journal, what: &str, from: usize) -> BTreeSet<String> {
    journal.of(what, from).into_iter().collect()
}

/// Adds the rows with these ids. No row is rolled back, so no id is missing.
async fn fill(shop: &Shop, from: u64, to: u64) {
    shop.sql(&format!(
        "INSERT INTO outbox (key, payload) SELECT n::text, '' FROM generate_series({from}, {to}) n"
    ))
    .await;
}

/// Writes to the store. The current holder of its write lock must release it first, and does not take it
/// again while it has nothing to write.
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
        let journal = Journal::new(folder.path());
        let first = start(1, &shop, folder.path(), ack);
        journal.until("the first calls", |journal| of(journal, "1 begins ", 0).len() == CONCURRENCY).await;
        journal.until("all rows in its memory", |journal| journal.has("1 has all", 0)).await;
        pass_through(folder.path()).await;
        // All of its calls wait. It is therefore stopped within calls, with the other messages in its lanes.
        first.signal("STOP");
        let begun = of(&journal, "1 begins ", 0);
        journal.allow("go-2");
        let _second = start(2, &shop, folder.path(), ack);
        let all: BTreeSet<String> = (1..=ROWS).map(|id| id.to_string()).collect();
        journal.until("the other one to handle all", |journal| of(journal, "2 ends ", 0) == all).await;
        // Its calls can return as soon as it continues.
        journal.allow("go-1");
        let woken = journal.lines().len();
        first.signal("CONT");
        journal.until("its loss", |journal| journal.has("1 loses the outbox", woken)).await;
        // Then it takes over again.
        journal.allow("leave-2");
        journal.until("the end of the other one", |journal| journal.has("2 has left", woken)).await;
        journal.until("its turn", |journal| journal.has("1 gets the outbox", woken)).await;
        fill(&shop, ROWS + 1, ROWS + 5).await;
        let new: BTreeSet<String> = (ROWS + 1..=ROWS + 5).map(|id| id.to_string()).collect();
        let is_handled = |journal: &Journal| of(journal, "1 ends ", woken).is_superset(&new);
        journal.until("the new rows", is_handled).await;
        let again = &of(&journal, "1 begins ", woken) - &new;
        assert_eq!(
            again,
            BTreeSet::new(),
            "the other one has handled them; begun before the stop: {begun:?}"
        );
    }
}
