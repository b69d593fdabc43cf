//! The engine on the MongoDB store: failures become letters, a replay resolves them, and a process may be killed at any time.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lazaret_core::handler::Context;
use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::query::Query;
use lazaret_core::store::{LetterStore, Triage};
use lazaret_core::{HandlerError, LetterState, QueueName, Reason};
use lazaret_engine::{Consumer, Event, Options};
use lazaret_memory::MemoryLog;
use lazaret_store_mongodb::MongoStore;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::support::{TestDatabase, options_of, server};

const DATABASE: &str = "LAZARET_MONGODB_VICTIM_DATABASE";
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
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
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

/// Reads the log from its beginning, as after a crash without a commit, fails each message, and prints each letter.
#[tokio::test]
#[ignore = "started by the other test, in a process of its own"]
async fn victim() {
    let (uri, database) =
        (server().unwrap(), std::env::var(DATABASE).expect("only the other test starts this one"));
    let store = Arc::new(MongoStore::connect(&uri, options_of(database)).await.unwrap());
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
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    // The last one is not killed.
    for lines in [1, 4, 9, 15, usize::MAX] {
        let mut victim = Command::new(std::env::current_exe().unwrap());
        victim.args(["engine::victim", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        let mut child = victim.env(DATABASE, &test.name).stdout(Stdio::piped()).spawn().unwrap();
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
