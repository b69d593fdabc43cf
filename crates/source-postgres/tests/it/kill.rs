//! A consumer process is killed with SIGKILL repeatedly. No event is lost, and no event has two letters.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::HandlerError;
use lazaret_core::handler::Payload;
use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::query::Query;
use lazaret_core::store::Triage;
use lazaret_engine::{Consumer, Options};
use lazaret_source_postgres::{Ack, OutboxOptions, OutboxSource};
use lazaret_store_sqlite::{Options as StoreOptions, SqliteStore};
use tokio_util::sync::CancellationToken;

use crate::support::{LONG, Shop, insert, server};

/// The environment variable that makes a process of this test the consumer. It holds all that the
/// consumer needs: `dsn schema folder ack`.
const CONSUMER: &str = "LAZARET_OUTBOX_CONSUMER";
/// Every number divisible by this one fails.
const FAILS: i64 = 5;

/// A process that does not outlive the test.
struct Process(Child);

impl Process {
    fn start(shop: &Shop, folder: &Path, ack: &str) -> Self {
        let arguments = format!("{} {} {} {ack}", shop.dsn, shop.schema, folder.display());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "kill::consumer", "--nocapture"]).env(CONSUMER, arguments);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn journal(folder: &Path) -> Vec<i64> {
    let text = std::fs::read_to_string(folder.join("journal")).unwrap_or_default();
    // The last line may be incomplete.
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.parse().ok()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test below as a process"]
async fn consumer() {
    let arguments = std::env::var(CONSUMER).expect("run by the test");
    let [dsn, schema, folder, ack] = arguments.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let folder = Path::new(folder);
    let source = OutboxOptions {
        poll: Duration::from_millis(20),
        ack: if ack == "delete" { Ack::Delete } else { Ack::Position },
        batch_rows: 4,
        ..OutboxOptions::new(dsn, format!("{schema}.outbox"))
    };
    let store = Arc::new(SqliteStore::open(folder.join("lazaret.db"), StoreOptions::default()).unwrap());
    let file = OpenOptions::new().append(true).create(true).open(folder.join("journal")).unwrap();
    let file = Arc::new(file);
    let handler = move |Payload(payload): Payload| {
        let file = file.clone();
        async move {
            let number: i64 = std::str::from_utf8(&payload.unwrap()).unwrap().parse().unwrap();
            if number % FAILS == 0 {
                return Err(HandlerError::msg("no"));
            }
            (&*file).write_all(format!("{number}\n").as_bytes())?;
            Ok::<_, HandlerError>(())
        }
    };
    let consumer = Consumer::builder("orders")
        .source(OutboxSource::open(source, store.clone()).unwrap())
        .store(store)
        .handler(handler)
        .options(Options {
            commit_interval: Duration::from_millis(5),
            retry: RetryPolicy { strategy: Strategy::Ordered, max_attempts: 1, ..RetryPolicy::default() },
            ..Options::default()
        })
        .build()
        .unwrap();
    consumer.run(CancellationToken::new()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_killed_loses_no_event_and_makes_no_second_letter() {
    // I1, I8
    let Some(dsn) = server() else { return };
    for ack in ["delete", "position"] {
        let shop = Shop::with_outbox(dsn.clone()).await;
        shop.sql("ALTER TABLE outbox ALTER COLUMN key SET DEFAULT 'k'").await;
        let folder = tempfile::tempdir().unwrap();
        let mut number = 0;
        for round in 0..4 {
            let mut process = Process::start(&shop, folder.path(), ack);
            let started = Instant::now();
            let before = journal(folder.path()).len();
            // The process is killed while rows arrive, at a different point in each round.
            let mut sent = 0;
            while journal(folder.path()).len() < before + 7 * (round + 1) {
                assert!(started.elapsed() < LONG, "nothing is handled");
                if sent < 60 {
                    (sent, number) = (sent + 1, number + 1);
                    let sql = "INSERT INTO outbox (key, payload) VALUES ($1, $1)";
                    shop.client.execute(sql, &[&number.to_string()]).await.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            process.0.kill().unwrap();
            assert!(!process.0.wait().unwrap().success(), "it ran until then");
        }
        insert(&shop.client, "1").await;
        let expected: BTreeSet<i64> = (1..=number).filter(|number| number % FAILS != 0).collect();
        let failing = usize::try_from(number / FAILS).unwrap();
        let process = Process::start(&shop, folder.path(), ack);
        let store = SqliteStore::open(folder.path().join("lazaret.db"), StoreOptions::default()).unwrap();
        let started = Instant::now();
        loop {
            let handled: BTreeSet<i64> = journal(folder.path()).into_iter().collect();
            let letters = store.find(&Query::parse("").unwrap(), None, 1000).await.unwrap().letters;
            let rows = shop.count("outbox").await;
            let is_acknowledged = ack == "position" || rows == 0;
            if handled == expected && letters.len() >= failing && is_acknowledged {
                assert_eq!(letters.len(), failing, "one letter for each");
                break;
            }
            let lost: Vec<_> = expected.difference(&handled).take(9).collect();
            assert!(
                started.elapsed() < LONG,
                "lost: {lost:?}; {} of {failing} letters; {rows} rows",
                letters.len()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(process);
        println!("{ack}: {number} rows, {failing} letters, {} handled", journal(folder.path()).len());
    }
}
