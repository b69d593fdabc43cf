//! The whole way: the engine reads a change stream, fails, restarts, and loses nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bson::doc;
use lazaret_core::handler::Attempt;
use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::query::Query;
use lazaret_core::store::{Audit, Checkpoints, Triage};
use lazaret_core::{HandlerError, Letter, LetterState, Message, Operation, Phase};
use lazaret_engine::{Consumer, DeadLetterOptions, Error, Options, Stats};
use lazaret_memory::MemoryStore;
use lazaret_source_mongodb::{Document, MongoSource, MongoSourceOptions, OperationType};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{LONG, Shop, expire_lease, replica_set, server};

#[derive(Debug, Deserialize)]
struct Order {
    number: i64,
}

/// What was handled: the key, the operation, and the number in the document.
type Entry = (String, Operation, Option<i64>);

#[derive(Clone, Default)]
struct Diary {
    entries: watch::Sender<Vec<Entry>>,
    /// Every attempt that failed, by number.
    failures: watch::Sender<Vec<(i64, u32)>>,
}

impl Diary {
    async fn until(&self, what: &str, holds: impl Fn(&[Entry]) -> bool) {
        let mut entries = self.entries.subscribe();
        let held = tokio::time::timeout(LONG, entries.wait_for(|entries| holds(entries))).await;
        assert!(held.is_ok(), "timed out waiting until {what}: {:?}", self.entries.borrow());
    }

    /// The numbers in the documents, sorted: documents have no order among each other.
    fn numbers(&self) -> Vec<i64> {
        let mut numbers: Vec<_> = self.entries.borrow().iter().filter_map(|(_, _, number)| *number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// The operations and numbers of each key, in order.
    fn by_key(&self) -> BTreeMap<String, Vec<(Operation, Option<i64>)>> {
        let mut by_key: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (key, operation, number) in self.entries.borrow().iter() {
            by_key.entry(key.clone()).or_default().push((*operation, *number));
        }
        by_key
    }

    /// Starts a consumer. Negative numbers fail.
    fn consume(&self, source: MongoSourceOptions, store: &Arc<MemoryStore>, options: Options) -> Running {
        let diary = self.clone();
        let handler = move |Document(order): Document<Option<Order>>,
                            OperationType(operation): OperationType,
                            Attempt(attempt): Attempt,
                            message: Message| {
            let diary = diary.clone();
            async move {
                let number = order.map(|order| order.number);
                if let Some(number) = number.filter(|number| *number < 0) {
                    diary.failures.send_modify(|failures| failures.push((number, attempt)));
                    return Err(HandlerError::msg("no"));
                }
                let key = String::from_utf8(message.key.unwrap().into()).unwrap();
                diary.entries.send_modify(|entries| entries.push((key, operation, number)));
                Ok(())
            }
        };
        let consumer = Consumer::builder("orders")
            .source(MongoSource::open(source, store.clone()).unwrap())
            .store(store.clone())
            .handler(handler)
            .options(options)
            .build()
            .unwrap();
        let drain = CancellationToken::new();
        let run = tokio::spawn(consumer.run(drain.clone()));
        Running { drain, run }
    }
}

struct Running {
    drain: CancellationToken,
    run: JoinHandle<Result<Stats, Error>>,
}

impl Running {
    async fn stop(self) {
        self.drain.cancel();
        self.run.await.unwrap().unwrap();
    }

    /// Ends it as a crash does: nothing is committed any more.
    async fn crash(self) {
        self.run.abort();
        let _ = self.run.await;
    }
}

fn options(max_attempts: u32) -> Options {
    Options {
        commit_interval: Duration::from_millis(20),
        drain_deadline: Duration::from_secs(5),
        retry: RetryPolicy {
            strategy: Strategy::Ordered,
            max_attempts,
            initial_delay: Duration::from_millis(5),
            jitter: 0.0,
            ..RetryPolicy::default()
        },
        ..Options::default()
    }
}

async fn letters(store: &MemoryStore) -> Vec<Letter> {
    store.find(&Query::parse("").unwrap(), None, 1000).await.unwrap().letters
}

/// Waits until the checkpoint has a processed position.
async fn until_processed(store: &MemoryStore) {
    let waited = tokio::time::timeout(LONG, async {
        while store.load("orders").await.unwrap().is_none_or(|checkpoint| checkpoint.processed.is_none()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.expect("timed out waiting for the position");
}

/// Waits until the store holds this many dead letters.
async fn until_dead(store: &MemoryStore, count: usize) -> Vec<Letter> {
    let waited = tokio::time::timeout(LONG, async {
        loop {
            let letters = letters(store).await;
            if letters.iter().filter(|letter| letter.state == LetterState::Dead).count() >= count {
                return letters;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.expect("timed out waiting for dead letters")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_changes_of_a_document_come_in_their_order() {
    // I2
    let Some(server) = server() else { return };
    let shop = Shop::new(server).await;
    let (diary, store) = (Diary::default(), Arc::new(MemoryStore::default()));
    let orders = shop.collection("orders");
    let running = diary.consume(shop.options("orders"), &store, options(3));
    for key in 0..5_i64 {
        orders.insert_one(doc! { "_id": key, "number": 1_i64 }).await.unwrap();
    }
    let mut expected = 5;
    for number in 2..6_i64 {
        for key in 0..5_i64 {
            orders.update_one(doc! { "_id": key }, doc! { "$set": { "number": number } }).await.unwrap();
            expected += 1;
        }
        // A document that is looked up may be newer than its event, but not older.
        diary.until("the updates are handled", |entries| entries.len() == expected).await;
    }
    for key in 0..5_i64 {
        orders.delete_one(doc! { "_id": key }).await.unwrap();
    }
    diary.until("all deletes are handled", |entries| entries.len() == 30).await;
    running.stop().await;
    let by_key = diary.by_key();
    assert_eq!(by_key.len(), 5, "{by_key:?}");
    for changes in by_key.values() {
        let operations: Vec<_> = changes.iter().map(|(operation, _)| *operation).collect();
        let mut expected = vec![Operation::Insert];
        expected.extend([Operation::Update; 4]);
        expected.push(Operation::Delete);
        assert_eq!(operations, expected);
        let numbers: Vec<_> = changes.iter().filter_map(|(_, number)| *number).collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
    }
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_goes_on_exactly_where_it_stopped() {
    // I1
    let Some(server) = server() else { return };
    let shop = Shop::new(server).await;
    let (diary, store) = (Diary::default(), Arc::new(MemoryStore::default()));
    let orders = shop.collection("orders");
    for round in 0..3_i64 {
        let before: Vec<_> = (0..20).map(|n| doc! { "number": round * 40 + n }).collect();
        orders.insert_many(before).await.unwrap();
        let running = diary.consume(shop.options("orders"), &store, options(3));
        let after: Vec<_> = (20..40).map(|n| doc! { "number": round * 40 + n }).collect();
        orders.insert_many(after).await.unwrap();
        let expected = usize::try_from((round + 1) * 40).unwrap();
        diary.until("all are handled", |entries| entries.len() >= expected).await;
        running.stop().await;
    }
    assert_eq!(diary.numbers(), (0..120).collect::<Vec<_>>(), "each one once");
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_does_not_fit_is_a_letter_and_the_stream_goes_on() {
    // Decode errors are failures of their event.
    let Some(server) = server() else { return };
    let shop = Shop::new(server).await;
    let (diary, store) = (Diary::default(), Arc::new(MemoryStore::default()));
    let orders = shop.collection("orders");
    let documents = [doc! { "number": 1_i64 }, doc! { "number": "three" }, doc! { "number": 3_i64 }];
    orders.insert_many(documents).await.unwrap();
    let running = diary.consume(shop.options("orders"), &store, options(3));
    diary.until("the others are handled", |entries| entries.len() == 2).await;
    let letters = until_dead(&store, 1).await;
    running.stop().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].cause.as_ref().unwrap().phase, Phase::Decode);
    assert_eq!(diary.numbers(), [1, 3]);
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_fails_is_a_letter_and_the_stream_goes_on() {
    let Some(server) = server() else { return };
    let shop = Shop::new(server).await;
    let (diary, store) = (Diary::default(), Arc::new(MemoryStore::default()));
    let orders = shop.collection("orders");
    let documents =
        [doc! { "number": 1_i64 }, doc! { "number": 2_i64, "bad": true }, doc! { "number": 3_i64 }];
    orders.insert_many(documents).await.unwrap();
    let filter = |message: &Message| {
        let payload = String::from_utf8_lossy(message.payload.as_deref().unwrap_or_default()).into_owned();
        match payload.contains("bad") {
            true => Err(HandlerError::msg("the filter failed")),
            false => Ok(true),
        }
    };
    let options = Options { filter: Some(Arc::new(filter)), ..options(1) };
    let running = diary.consume(shop.options("orders"), &store, options);
    diary.until("the others are handled", |entries| entries.len() == 2).await;
    let letters = until_dead(&store, 1).await;
    running.stop().await;
    assert_eq!((letters.len(), diary.numbers()), (1, vec![1, 3]));
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_before_the_commit_redelivers_and_makes_no_second_letter() {
    // I1, I8
    let Some(server) = server() else { return };
    let shop = Shop::new(server).await;
    let (diary, store) = (Diary::default(), Arc::new(MemoryStore::default()));
    let orders = shop.collection("orders");
    orders.insert_many([doc! { "number": -1_i64 }, doc! { "number": 2_i64 }]).await.unwrap();
    // It never commits by itself.
    let late = Options { commit_interval: Duration::from_secs(3600), ..options(1) };
    let first = diary.consume(shop.options("orders"), &store, late);
    diary.until("the second is handled", |entries| entries.len() == 1).await;
    until_dead(&store, 1).await;
    first.crash().await;
    expire_lease(&*store, "orders").await;
    assert_eq!(store.load("orders").await.unwrap().unwrap().processed, None, "nothing was committed");
    let second = diary.consume(shop.options("orders"), &store, options(1));
    diary.until("the second comes again", |entries| entries.len() == 2).await;
    until_processed(&store).await;
    second.stop().await;
    assert_eq!(diary.numbers(), [2, 2]);
    assert_eq!(letters(&store).await.len(), 1);
    assert_eq!(*diary.failures.borrow(), [(-1, 1)], "the letter is not tried again");
    shop.drop().await;
}

/// Runs one failing and one good document under a policy. Returns the attempts of the failing one and the letters, or the error.
async fn table_row(
    server: String,
    max_attempts: u32,
    dead_letter: bool,
) -> (Vec<u32>, Result<Vec<Letter>, String>, bool) {
    let shop = Shop::new(server).await;
    let (diary, store) = (Diary::default(), Arc::new(MemoryStore::default()));
    shop.collection("orders").insert_one(doc! { "number": -1_i64 }).await.unwrap();
    let dead_letter = dead_letter.then(DeadLetterOptions::default);
    let options = Options { dead_letter, ..options(max_attempts) };
    let is_stopping = options.dead_letter.is_none();
    let running = diary.consume(shop.options("orders"), &store, options);
    let ended = match is_stopping {
        true => Err(tokio::time::timeout(LONG, running.run).await.unwrap().unwrap().unwrap_err().to_string()),
        false => {
            let letters = until_dead(&store, 1).await;
            until_processed(&store).await;
            running.stop().await;
            Ok(letters)
        }
    };
    let moved = store.load("orders").await.unwrap().unwrap().processed.is_some();
    shop.drop().await;
    (diary.failures.borrow().iter().map(|(_, attempt)| *attempt).collect(), ended, moved)
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_and_dead_letters_an_event_is_retried_and_then_a_letter() {
    // Seed 000, "Retry + DLQ Together", row 1.
    let Some(server) = server() else { return };
    let (attempts, letters, moved) = table_row(server, 3, true).await;
    let letters = letters.unwrap();
    assert_eq!((attempts, letters.len(), moved), (vec![1, 2, 3], 1, true));
    assert_eq!(letters[0].message.operation, Some(Operation::Insert));
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_only_an_event_is_a_letter_after_the_first_failure() {
    // Row 2.
    let Some(server) = server() else { return };
    let (attempts, letters, moved) = table_row(server, 1, true).await;
    assert_eq!((attempts, letters.unwrap().len(), moved), (vec![1], 1, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_only_an_event_is_retried_and_then_stops_the_consumer() {
    // Row 3. FlowWarden loses the event; here the position stays before it (I1).
    let Some(server) = server() else { return };
    let (attempts, ended, moved) = table_row(server, 3, false).await;
    let error = ended.unwrap_err();
    assert!(error.contains("dead letters are disabled"), "{error}");
    assert_eq!((attempts, moved), (vec![1, 2, 3], false));
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_an_event_stops_the_consumer_at_its_first_failure() {
    // Row 4. FlowWarden loses the event; here the position stays before it (I1).
    let Some(server) = server() else { return };
    let (attempts, ended, moved) = table_row(server, 1, false).await;
    assert!(ended.unwrap_err().contains("dead letters are disabled"));
    assert_eq!((attempts, moved), (vec![1], false));
}

/// Runs one failing document with dead letters disabled in the configuration. Returns its attempts and the actions in the audit.
async fn discarded(server: String, max_attempts: u32) -> (Vec<u32>, Vec<String>) {
    let shop = Shop::new(server).await;
    let (diary, store) = (Diary::default(), Arc::new(MemoryStore::default()));
    shop.collection("orders").insert_one(doc! { "number": -1_i64 }).await.unwrap();
    let dead_letter = Some(DeadLetterOptions { discard: true, ..DeadLetterOptions::default() });
    let options = Options { dead_letter, ..options(max_attempts) };
    let running = diary.consume(shop.options("orders"), &store, options);
    until_processed(&store).await;
    running.stop().await;
    shop.drop().await;
    let audit = store.audit(0, 100).await.unwrap().into_iter().map(|entry| entry.action).collect();
    let attempts = diary.failures.borrow().iter().map(|(_, attempt)| *attempt).collect();
    (attempts, audit)
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_only_with_dead_letters_disabled_an_event_is_discarded_with_an_audit_entry() {
    // Row 3, as `dead-letter: { enabled: false }` asks for it. I11
    let Some(server) = server() else { return };
    let (attempts, audit) = discarded(server, 3).await;
    assert_eq!((attempts, audit.len()), (vec![1, 2, 3], 1), "{audit:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_with_dead_letters_disabled_an_event_is_discarded_with_an_audit_entry() {
    // Row 4. I11
    let Some(server) = server() else { return };
    let (attempts, audit) = discarded(server, 1).await;
    assert_eq!((attempts, audit.len()), (vec![1], 1), "{audit:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operations_of_a_transaction_share_an_offset_and_all_come() {
    // I1
    let what = "transactions: their operations share an offset, and a restart in the middle repeats none that is settled";
    let Some(server) = replica_set(what) else { return };
    let shop = Shop::new(server).await;
    let (diary, store) = (Diary::default(), Arc::new(MemoryStore::default()));
    let orders = shop.collection("orders");
    orders.insert_one(doc! { "number": 0_i64 }).await.unwrap();
    let mut session = shop.client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    for number in 1..10_i64 {
        orders.insert_one(doc! { "number": number }).session(&mut session).await.unwrap();
    }
    session.commit_transaction().await.unwrap();
    let running = diary.consume(shop.options("orders"), &store, options(3));
    diary.until("all are handled", |entries| entries.len() == 10).await;
    running.stop().await;
    shop.drop().await;
}
