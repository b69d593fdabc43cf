//! End-to-end: the engine reads Kafka, members join and crash, and nothing is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::{HandlerError, Message, Reason};
use lazaret_engine::{Consumer, Options, Stats};
use lazaret_memory::MemoryStore;
use lazaret_source_kafka::KafkaSource;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{LONG, Topic, broker, client, has_no_ranges};

/// The handled messages with their consumers, in the order of completion, and whether waiting messages
/// may continue.
#[derive(Clone)]
struct Diary {
    handled: watch::Sender<Vec<(&'static str, String)>>,
    open: watch::Sender<bool>,
}

impl Diary {
    fn new() -> Self {
        Self { handled: watch::Sender::default(), open: watch::Sender::new(false) }
    }

    fn payloads(&self) -> Vec<String> {
        self.handled.borrow().iter().map(|(_, payload)| payload.clone()).collect()
    }

    async fn until(&self, what: &str, holds: impl Fn(&[(&'static str, String)]) -> bool) {
        let mut handled = self.handled.subscribe();
        let held = tokio::time::timeout(LONG, handled.wait_for(|handled| holds(handled))).await;
        assert!(held.is_ok(), "timed out waiting until {what}");
    }

    /// Returns the handled numbers of each key, in the order of their first time.
    fn numbers(&self) -> BTreeMap<String, Vec<u32>> {
        let mut numbers: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for payload in self.payloads() {
            let (key, number) = payload.split_once(':').unwrap();
            let (seen, number) = (numbers.entry(key.to_owned()).or_default(), number.parse().unwrap());
            if !seen.contains(&number) {
                seen.push(number);
            }
        }
        numbers
    }

    /// Starts a consumer. Messages that begin with `wait` wait until they may continue, and messages
    /// that begin with `fail` fail.
    fn consume(
        &self,
        name: &'static str,
        topic: &Topic,
        store: Arc<MemoryStore>,
    ) -> (CancellationToken, JoinHandle<Stats>) {
        let diary = self.clone();
        let handler = move |message: Message| {
            let diary = diary.clone();
            async move {
                let payload = String::from_utf8(message.payload.unwrap_or_default().into()).unwrap();
                if payload.starts_with("wait") {
                    diary.open.subscribe().wait_for(|open| *open).await.unwrap();
                }
                if payload.starts_with("fail") {
                    return Err(HandlerError::msg("no").reason(Reason::DOMAIN_INVALID));
                }
                diary.handled.send_modify(|handled| handled.push((name, payload)));
                Ok(())
            }
        };
        let options = Options {
            instance: name.to_owned(),
            commit_interval: Duration::from_millis(50),
            drain_deadline: Duration::from_secs(2),
            retry: RetryPolicy { strategy: Strategy::Ordered, ..RetryPolicy::default() },
            ..Options::default()
        };
        let consumer = Consumer::builder("orders")
            .source(KafkaSource::open(topic.options()).unwrap())
            .store(store)
            .handler(handler)
            .options(options)
            .build()
            .unwrap();
        let drain = CancellationToken::new();
        let stop = drain.clone();
        (stop, tokio::spawn(async move { consumer.run(drain).await.unwrap() }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_repeats_only_the_message_that_waited() {
    // I1: the process crashes while the first message is being handled and all later ones are done.
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 1).await;
    let producer: BaseProducer = client(&topic.brokers).create().unwrap();
    let send = |payload: &str| {
        producer.send(BaseRecord::to(&topic.name).partition(0).key(payload).payload(payload)).unwrap();
    };
    send("wait");
    (1..1000).for_each(|number| send(&number.to_string()));
    producer.flush(LONG).unwrap();
    let diary = Diary::new();
    let store = Arc::new(MemoryStore::default());
    let (_, run) = diary.consume("first", &topic, store.clone());
    diary.until("all others are handled", |handled| handled.len() == 999).await;
    // The position stays before the waiting message. The settled offsets beyond it are in the metadata,
    // in the end as one range: the checksum, a distance of one byte and a length of two. The id of the
    // topic precedes them.
    topic.until_committed(0, |offset, text| offset == 0 && text.len() == "lz3.".len() + 22 + 2 + 10);
    run.abort();
    let _ = run.await;
    diary.open.send_replace(true);
    let (stop, run) = diary.consume("second", &topic, store);
    diary.until("the one that waited is handled", |handled| handled.iter().any(|(_, p)| p == "wait")).await;
    topic.until_committed(0, |offset, text| offset == 1000 && has_no_ranges(text));
    stop.cancel();
    let stats = run.await.unwrap();
    assert_eq!((stats.handled, diary.payloads().len()), (1, 1000), "nothing else was repeated");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_group_share_the_work_and_lose_nothing() {
    // I1, I2
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 3).await;
    let producer: BaseProducer = client(&topic.brokers).create().unwrap();
    let send = |round: u32| {
        for number in 0..300 {
            let (partition, key) = ((number % 3) as i32, (number % 30).to_string());
            let fails = if number == 7 { "fail" } else { "" };
            let payload = format!("{fails}{key}:{}", round * 300 + number);
            producer
                .send(BaseRecord::to(&topic.name).partition(partition).key(&key).payload(&payload))
                .unwrap();
        }
        producer.flush(LONG).unwrap();
    };
    let diary = Diary::new();
    let store = Arc::new(MemoryStore::default());
    let (stop_first, first) = diary.consume("first", &topic, store.clone());
    send(0);
    // Key 7 fails once and is held from then on. There are 30 keys, with 10 messages each per round.
    diary.until("the first round is done", |handled| handled.len() >= 290).await;
    let (stop_second, second) = diary.consume("second", &topic, store.clone());
    send(1);
    // Writing continues until the new member has its share.
    while !diary.handled.borrow().iter().any(|(by, _)| *by == "second") {
        send(2);
        tokio::task::yield_now().await;
    }
    first.abort();
    let _ = first.await;
    send(3);
    diary.until("the last round is done", |handled| handled.iter().any(|(_, p)| p == "29:1199")).await;
    for partition in 0..3 {
        let end = topic.end(partition);
        topic.until_committed(partition, |offset, _| offset == end);
    }
    stop_first.cancel();
    stop_second.cancel();
    second.await.unwrap();
    // Every message of every other key was handled, in order when first handled.
    let numbers = diary.numbers();
    assert!(
        !numbers.contains_key("7") || numbers["7"].iter().all(|number| *number < 7),
        "{:?}",
        numbers.get("7")
    );
    for key in (0..30_u32).filter(|key| *key != 7) {
        let seen = &numbers[&key.to_string()];
        assert_eq!(seen.len(), 40, "key {key}: {seen:?}");
        assert!(seen.is_sorted(), "key {key}: {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_die_and_come_lose_nothing() {
    // I1, I2: in every round one member crashes while it handles messages, and another one joins.
    const ROUNDS: u32 = 6;
    const KEYS: u32 = 24;
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 6).await;
    let producer: BaseProducer = client(&topic.brokers).create().unwrap();
    let diary = Diary::new();
    let store = Arc::new(MemoryStore::default());
    let names = ["first", "second", "third"];
    let mut runs: Vec<_> = names.iter().map(|name| diary.consume(name, &topic, store.clone())).collect();
    for round in 0..ROUNDS {
        for number in 0..KEYS * 20 {
            let (partition, key) = ((number % 6) as i32, (number % KEYS).to_string());
            let payload = format!("{key}:{}", round * KEYS * 20 + number);
            producer
                .send(BaseRecord::to(&topic.name).partition(partition).key(&key).payload(&payload))
                .unwrap();
        }
        producer.flush(LONG).unwrap();
        let some = (round * KEYS * 20) as usize;
        diary.until("some are handled", |handled| handled.len() > some).await;
        let index = round as usize % runs.len();
        let next = diary.consume(names[index], &topic, store.clone());
        let (_, run) = std::mem::replace(&mut runs[index], next);
        run.abort();
        let _ = run.await;
    }
    for partition in 0..6 {
        let end = topic.end(partition);
        topic.until_committed(partition, |offset, metadata| offset == end && has_no_ranges(metadata));
    }
    for (stop, run) in runs {
        stop.cancel();
        run.await.unwrap();
    }
    for (key, seen) in diary.numbers() {
        assert_eq!(seen.len(), (ROUNDS * 20) as usize, "key {key}: {seen:?}");
        assert!(seen.is_sorted(), "key {key}: {seen:?}");
    }
    assert_eq!(diary.numbers().len(), KEYS as usize);
}

#[tokio::test]
async fn a_run_to_the_end_ends_by_itself() {
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 2).await;
    topic.fill(0, 0..20).await;
    topic.fill(1, 0..5).await;
    let run = async || {
        let consumer = Consumer::builder("orders")
            .source(KafkaSource::open(topic.options().reading_to_end()).unwrap())
            .store(Arc::new(MemoryStore::default()))
            .handler(|_: Message| async {})
            .options(Options { until_idle: true, ..Options::default() })
            .build()
            .unwrap();
        let run = tokio::time::timeout(LONG, consumer.run(CancellationToken::new())).await;
        run.expect("it ends").unwrap().handled
    };
    assert_eq!(run().await, 25);
    assert_eq!((topic.committed(0).unwrap().0, topic.committed(1).unwrap().0), (20, 5));
    assert_eq!(run().await, 0, "there is nothing left");
}
