//! A consumer as a process that is killed with SIGKILL again and again: no event is lost, and none has two letters.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::doc;
use lazaret_core::HandlerError;
use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::query::Query;
use lazaret_core::store::Triage;
use lazaret_engine::{Consumer, Options};
use lazaret_source_mongodb::{Document, MongoSource};
use lazaret_store_sqlite::{Options as StoreOptions, SqliteStore};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::support::{LONG, SHORT_LEASE, Shop, server};

/// Says to a process of this test that it is the consumer, and all that it needs: `uri database folder`.
const CONSUMER: &str = "LAZARET_MONGODB_CONSUMER";
/// Every number that this divides fails.
const FAILS: i64 = 5;

#[derive(Deserialize)]
struct Order {
    number: i64,
}

/// A process that does not outlive the test.
struct Process(Child);

impl Process {
    fn start(shop: &Shop, folder: &Path) -> Self {
        let arguments = format!("{} {} {}", shop.uri, shop.database, folder.display());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "kill::consumer", "--nocapture"]).env(CONSUMER, arguments);
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn journal(folder: &Path) -> Vec<i64> {
    let text = std::fs::read_to_string(folder.join("journal")).unwrap_or_default();
    // The last line may be torn.
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.parse().ok()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test below as a process"]
async fn consumer() {
    let arguments = std::env::var(CONSUMER).expect("run by the test");
    let [uri, database, folder] = arguments.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let folder = Path::new(folder);
    let shop = Shop::existing(uri.to_owned(), database.to_owned()).await;
    let mut source = shop.options("orders");
    source.lease = SHORT_LEASE;
    // The time of the first start is that of the test.
    let began = std::fs::read_to_string(folder.join("began")).unwrap().parse().unwrap();
    source.start = lazaret_source_mongodb::Start::At(bson::Timestamp { time: began, increment: 0 });
    let store = Arc::new(SqliteStore::open(folder.join("lazaret.db"), StoreOptions::default()).unwrap());
    let file = OpenOptions::new().append(true).create(true).open(folder.join("journal")).unwrap();
    let file = Arc::new(file);
    let handler = move |Document(order): Document<Order>| {
        let file = file.clone();
        async move {
            if order.number % FAILS == 0 {
                return Err(HandlerError::msg("no"));
            }
            (&*file).write_all(format!("{}\n", order.number).as_bytes())?;
            Ok::<_, HandlerError>(())
        }
    };
    let consumer = Consumer::builder("orders")
        .source(MongoSource::open(source, store.clone()).unwrap())
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
    let Some(server) = server() else { return };
    let shop = Shop::new(server).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("began"), shop.began.time.to_string()).unwrap();
    let orders = shop.collection("orders");
    let mut number = 0;
    for round in 0..6 {
        let mut process = Process::start(&shop, folder.path());
        let started = Instant::now();
        let before = journal(folder.path()).len();
        // It is killed while events come, at another point in each round.
        let mut sent = 0;
        while journal(folder.path()).len() < before + 7 * (round + 1) {
            assert!(started.elapsed() < LONG, "nothing is handled");
            // The server keeps everything in memory, so it gets a few.
            if sent < 60 {
                (sent, number) = (sent + 1, number + 1);
                orders.insert_one(doc! { "_id": number, "number": number }).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        process.0.kill().unwrap();
        assert!(!process.0.wait().unwrap().success(), "it ran until then");
    }
    let expected: BTreeSet<i64> = (1..=number).filter(|number| number % FAILS != 0).collect();
    let failing = usize::try_from(number / FAILS).unwrap();
    let process = Process::start(&shop, folder.path());
    let store = SqliteStore::open(folder.path().join("lazaret.db"), StoreOptions::default()).unwrap();
    let started = Instant::now();
    let letters = loop {
        let handled: BTreeSet<i64> = journal(folder.path()).into_iter().collect();
        let letters = store.find(&Query::parse("").unwrap(), None, 1000).await.unwrap().letters;
        if handled == expected && letters.len() >= failing {
            break letters;
        }
        let lost: Vec<_> = expected.difference(&handled).take(9).collect();
        assert!(started.elapsed() < LONG, "lost: {lost:?}; {} of {failing} letters", letters.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    drop(process);
    let mut by_key = BTreeMap::new();
    for letter in &letters {
        *by_key.entry(letter.message.key.clone()).or_insert(0) += 1;
    }
    assert_eq!((letters.len(), by_key.len()), (failing, failing), "one letter for each");
    println!("{number} events, {failing} letters, {} handled", journal(folder.path()).len());
    shop.drop().await;
}
