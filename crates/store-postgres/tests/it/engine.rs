//! The engine on the PostgreSQL store: failures become letters, a replay resolves them, and a process may be killed at any time.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lazaret_core::handler::Context;
use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::query::Query;
use lazaret_core::store::{LetterStore, Triage};
use lazaret_core::{HandlerError, LetterState, QueueName, Reason};
use lazaret_engine::{Consumer, Event, Options};
use lazaret_memory::MemoryLog;
use lazaret_postgres_testkit::{Cluster, SYNCHRONOUS};
use lazaret_store_postgres::{PostgresStore, PostgresStoreOptions};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::support::{TestSchema, server};

const SCHEMA: &str = "LAZARET_POSTGRES_VICTIM_SCHEMA";
const MESSAGES: usize = 60;

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn options() -> Options {
    let retry = RetryPolicy {
        max_attempts: 1,
        ..RetryPolicy { strategy: Strategy::Ordered, ..RetryPolicy::default() }
    };
    Options { breaker: None, fuse: None, retry, ..Options::default() }
}

/// A log of messages of six keys.
fn log() -> MemoryLog {
    let log = MemoryLog::new("events", 2);
    for number in 0..MESSAGES {
        let key = format!("k{}", number % 6);
        log.push((number % 2) as u32, key, number.to_string());
    }
    log
}

fn refused() -> HandlerError {
    HandlerError::foreign("Invalid", "no such order").reason(Reason::DOMAIN_INVALID)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_become_letters_and_a_replay_resolves_them() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let store = Arc::new(test.open(None).await);
    let repaired = Arc::new(AtomicBool::new(false));
    let (stored, mut letters) = mpsc::unbounded_channel();
    let is_repaired = repaired.clone();
    let handler = move |_context: Context| {
        let repaired = is_repaired.clone();
        async move { if repaired.load(Ordering::SeqCst) { Ok(()) } else { Err(refused()) } }
    };
    let observer = move |event: &Event<'_>| {
        if let Event::LetterStored { .. } = event {
            stored.send(()).ok();
        }
    };
    let consumer = Consumer::builder("orders").source(log().join()).store(store.clone()).handler(handler);
    let consumer = consumer.options(options()).observer(observer).build().unwrap();
    let (handle, drain) = (consumer.handle(), CancellationToken::new());
    let running = tokio::spawn(Box::pin(consumer.run(drain.clone())));
    for _ in 0..MESSAGES {
        letters.recv().await.unwrap();
    }
    let counts = store.counts(&queue()).await.unwrap();
    assert_eq!((counts.open(), counts.sequences), (MESSAGES as u64, 6));
    repaired.store(true, Ordering::SeqCst);
    handle.replayer("orders").unwrap().process_all("repaired").await.unwrap();
    let counts = store.counts(&queue()).await.unwrap();
    assert_eq!((counts.open(), counts.of(LetterState::Resolved)), (0, MESSAGES as u64));
    drain.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_waits_for_the_promotion_of_a_standby_and_goes_on_there() {
    // I1, I2, I8
    let Some(mut primary) = Cluster::for_test(&[SYNCHRONOUS]) else { return };
    let standby = primary.standby().unwrap();
    let hosts = [primary.host().unwrap(), standby.host().unwrap()].join(",");
    let dsn = format!("postgres://lazaret@{hosts}/postgres?target_session_attrs=read-write&sslmode=disable");
    let store = Arc::new(PostgresStore::connect(&dsn, PostgresStoreOptions::default()).await.unwrap());
    let (stored, mut letters) = mpsc::unbounded_channel();
    let observer = move |event: &Event<'_>| {
        if let Event::LetterStored { .. } = event {
            stored.send(()).ok();
        }
    };
    let log = MemoryLog::new("events", 2);
    let publish = |numbers: std::ops::Range<usize>| {
        for number in numbers {
            log.push((number % 2) as u32, format!("k{}", number % 6), number.to_string());
        }
    };
    publish(0..MESSAGES / 2);
    let handler = |_context: Context| async { Err::<(), _>(refused()) };
    let consumer = Consumer::builder("orders").source(log.join()).store(store.clone()).handler(handler);
    let consumer = consumer.options(options()).observer(observer).build().unwrap();
    let drain = CancellationToken::new();
    let running = tokio::spawn(Box::pin(consumer.run(drain.clone())));
    // Some are acknowledged, and others are on their way.
    letters.recv().await.unwrap();
    primary.crash().unwrap();
    publish(MESSAGES / 2..MESSAGES);
    assert!(!running.is_finished());
    standby.promote().unwrap();
    // Not by their events: a letter whose acknowledgement was lost is there when it is handed off again.
    let all = async {
        while !store.counts(&queue()).await.is_ok_and(|counts| counts.open() == MESSAGES as u64) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(240), all).await.expect("all letters are stored");
    for head in store.heads(&queue(), None, 100).await.unwrap().heads {
        let letters = store.sequence(&queue(), &head.sequence, 0, MESSAGES).await.unwrap();
        let offsets: Vec<u64> = letters.iter().map(|letter| letter.message.position.offset).collect();
        assert!(offsets.is_sorted_by(|a, b| a < b) && offsets.len() == MESSAGES / 6, "{offsets:?}");
    }
    drain.cancel();
    running.await.unwrap().unwrap();
}

/// Reads the log from its beginning, as after a crash without a commit, fails each message, and prints each letter.
#[tokio::test]
#[ignore = "started by the other test, in a process of its own"]
async fn victim() {
    let (dsn, schema) =
        (server().unwrap(), std::env::var(SCHEMA).expect("only the other test starts this one"));
    let options_of_store = PostgresStoreOptions { schema, ..PostgresStoreOptions::default() };
    let store = Arc::new(PostgresStore::connect(&dsn, options_of_store).await.unwrap());
    let handler = |_context: Context| async { Err::<(), _>(refused()) };
    let observer = |event: &Event<'_>| {
        if let Event::LetterStored { .. } = event {
            let mut out = std::io::stdout().lock();
            writeln!(out, "\nstored").unwrap();
            out.flush().unwrap();
        }
    };
    let log = log();
    log.close();
    let consumer = Consumer::builder("orders").source(log.join().with_batch(5)).store(store).handler(handler);
    let options = Options { until_idle: true, ..options() };
    let consumer = consumer.options(options).observer(observer).build().unwrap();
    Box::pin(consumer.run(CancellationToken::new())).await.unwrap();
    println!("\nended");
}

#[tokio::test]
async fn a_process_that_is_killed_loses_no_message_and_stores_none_twice() {
    // I1, I2, I8
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    // The last one is not killed.
    for lines in [1, 4, 9, 15, usize::MAX] {
        let mut victim = Command::new(std::env::current_exe().unwrap());
        victim.args(["engine::victim", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        let mut child = victim.env(SCHEMA, &test.name).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut ended = false;
        for (count, line) in output.filter(|line| line == "stored" || line == "ended").enumerate() {
            ended |= line == "ended";
            if count + 1 == lines {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(ended || lines != usize::MAX, "the last process works to its end");
    }
    let store = test.open(None).await;
    let all = Query::parse("state:open or state:closed").unwrap();
    let letters = store.find(&all, None, MESSAGES * 2).await.unwrap().letters;
    let mut payloads: Vec<_> = letters.iter().map(|letter| letter.message.payload.clone().unwrap()).collect();
    payloads.sort();
    payloads.dedup();
    assert_eq!((letters.len(), payloads.len()), (MESSAGES, MESSAGES), "each message has one letter");
    assert_eq!(store.counts(&queue()).await.unwrap().open(), MESSAGES as u64);
    let mut of_key: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for head in store.heads(&queue(), None, 100).await.unwrap().heads {
        let letters = store.sequence(&queue(), &head.sequence, 0, MESSAGES).await.unwrap();
        let offsets = letters.iter().map(|letter| letter.message.position.offset).collect();
        of_key.insert(head.sequence.to_string(), offsets);
    }
    assert_eq!(of_key.len(), 6);
    assert!(
        of_key.values().all(|offsets| offsets.is_sorted() && offsets.len() == MESSAGES / 6),
        "{of_key:?}"
    );
}
