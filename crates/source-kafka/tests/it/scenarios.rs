//! Hard end-to-end cases on a real broker: back-off during continued flow, poison, pauses, metadata that
//! does not fit, and shutdown.
//!
//! `README.md` in this folder lists which test covers which scenario.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::handler::Attempt;
use lazaret_core::policy::{PoisonPolicy, RetryPolicy, Strategy};
use lazaret_core::store::{Actor, LetterStore, PauseScope};
use lazaret_core::{HandlerError, LetterState, Message, QueueName, Reason};
use lazaret_engine::{Consumer, Event, Handle, Options, Stats};
use lazaret_memory::MemoryStore;
use lazaret_source_kafka::{KafkaOptions, KafkaSource};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{self, LONG, Topic, broker, client};

const CONSUMER: &str = "orders";

/// The behavior of a handler for a message.
enum Does {
    Handle,
    /// Fails with a retryable error.
    FailForNow,
    /// Fails permanently.
    FailForGood,
    /// Waits until it may continue.
    Wait,
}

/// A topic and a store, with the payload, the attempt and the success of each handler call.
#[derive(Clone)]
struct Stage {
    topic: Arc<Topic>,
    producer: Arc<BaseProducer>,
    store: Arc<MemoryStore>,
    calls: watch::Sender<Vec<(String, u32, bool)>>,
    open: watch::Sender<bool>,
    /// The numbers of assigned and revoked partitions.
    moved: watch::Sender<(u32, u32)>,
}

/// A running consumer.
struct Running {
    drain: CancellationToken,
    handle: Handle,
    run: JoinHandle<Stats>,
}

impl Running {
    async fn stop(self) -> Stats {
        self.drain.cancel();
        self.run.await.unwrap()
    }

    async fn crash(self) {
        self.run.abort();
        let _ = self.run.await;
    }
}

impl Stage {
    async fn new(broker: String, partitions: i32) -> Self {
        let topic = Topic::new(broker, partitions).await;
        Self {
            producer: Arc::new(client(&topic.brokers).create().unwrap()),
            topic: Arc::new(topic),
            store: Arc::new(MemoryStore::default()),
            calls: watch::Sender::default(),
            open: watch::Sender::new(false),
            moved: watch::Sender::default(),
        }
    }

    fn send(&self, partition: i32, key: Option<&[u8]>, payload: &str) {
        let mut record = BaseRecord::to(&self.topic.name).partition(partition).payload(payload);
        record.key = key;
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
        self.producer.poll(Duration::ZERO);
    }

    fn start(
        &self,
        kafka: KafkaOptions,
        options: Options,
        does: impl Fn(&str, u32) -> Does + Send + Sync + 'static,
    ) -> Running {
        let (stage, does) = (self.clone(), Arc::new(does));
        let handler = move |message: Message, Attempt(attempt): Attempt| {
            let (stage, does) = (stage.clone(), does.clone());
            async move {
                let payload = String::from_utf8(message.payload.unwrap_or_default().into()).unwrap();
                let end =
                    |well| stage.calls.send_modify(|calls| calls.push((payload.clone(), attempt, well)));
                match does(&payload, attempt) {
                    Does::Handle => {}
                    Does::Wait => {
                        stage.open.subscribe().wait_for(|open| *open).await.unwrap();
                    }
                    Does::FailForNow => {
                        end(false);
                        return Err(HandlerError::msg("not now").reason(Reason::DEPENDENCY_UNAVAILABLE));
                    }
                    Does::FailForGood => {
                        end(false);
                        return Err(HandlerError::msg("never").reason(Reason::DOMAIN_INVALID));
                    }
                }
                end(true);
                Ok(())
            }
        };
        let moved = self.moved.clone();
        let observer = move |event: &Event<'_>| match event {
            Event::Assigned { .. } => moved.send_modify(|(assigned, _)| *assigned += 1),
            Event::Revoked { .. } => moved.send_modify(|(_, went)| *went += 1),
            _ => {}
        };
        let consumer = Consumer::builder(CONSUMER)
            .source(KafkaSource::open(kafka).unwrap())
            .store(self.store.clone())
            .handler(handler)
            .observer(observer)
            .options(options)
            .build()
            .unwrap();
        let (drain, handle) = (CancellationToken::new(), consumer.handle());
        let stop = drain.clone();
        Running { drain, handle, run: tokio::spawn(async move { consumer.run(stop).await.unwrap() }) }
    }

    async fn until(&self, what: &str, holds: impl Fn(&[(String, u32, bool)]) -> bool) {
        let mut calls = self.calls.subscribe();
        let held = tokio::time::timeout(LONG, calls.wait_for(|calls| holds(calls))).await.is_ok();
        assert!(held, "timed out waiting until {what}: {} calls", self.calls.borrow().len());
    }

    /// Returns the attempts of a message, in order.
    fn attempts(&self, payload: &str) -> Vec<u32> {
        let calls = self.calls.borrow();
        calls.iter().filter(|(p, ..)| p == payload).map(|(_, attempt, _)| *attempt).collect()
    }

    /// Returns the number of times that each message was handled.
    fn handled(&self) -> BTreeMap<String, u32> {
        let mut handled = BTreeMap::new();
        for (payload, _, well) in self.calls.borrow().iter() {
            *handled.entry(payload.clone()).or_default() += u32::from(*well);
        }
        handled
    }

    async fn count(&self, state: LetterState) -> u64 {
        self.store.counts(&QueueName::of(CONSUMER, CONSUMER)).await.unwrap().of(state)
    }
}

/// Returns options that commit often, without a breaker or fuse that would stop after many failures.
fn options(retry: RetryPolicy) -> Options {
    Options {
        retry,
        breaker: None,
        fuse: None,
        poison: PoisonPolicy { same_failure: None },
        commit_interval: Duration::from_millis(50),
        refresh: Duration::from_millis(50),
        ..Options::default()
    }
}

fn well(calls: &[(String, u32, bool)]) -> usize {
    calls.iter().filter(|(.., well)| *well).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_map_that_does_not_fit_costs_repetitions_in_its_partition_and_nothing_else() {
    // I1, I7: every second message of a partition waits, which is far more than commit metadata can hold.
    const MESSAGES: u32 = 10_000;
    let Some(broker) = broker() else { return };
    let stage = Stage::new(broker, 2).await;
    for number in 0..MESSAGES {
        let kind = if number % 2 == 0 { "wait" } else { "done" };
        let text = format!("{kind}-{number}");
        stage.send(0, Some(text.as_bytes()), &text);
    }
    (0..100).for_each(|number| stage.send(1, None, &format!("other-{number}")));
    stage.producer.flush(LONG).unwrap();
    let wide = || Options { concurrency: 20_000, window: 20_000, ..options(RetryPolicy::default()) };
    let does = |payload: &str, _: u32| if payload.starts_with("wait") { Does::Wait } else { Does::Handle };
    let first = stage.start(stage.topic.options(), wide(), does);
    let half = MESSAGES as usize / 2 + 100;
    stage.until("all that need not wait are handled", |calls| well(calls) == half).await;
    stage.topic.until_committed(1, |offset, _| offset == 100);
    // The engine commits a thousand ranges, which fit. The metadata holds only some of them.
    stage.topic.until_committed(0, |offset, text| offset == 0 && (2500..=4096).contains(&text.len()));
    first.crash().await;
    stage.open.send_replace(true);
    let second = stage.start(stage.topic.options(), wide(), does);
    stage
        .topic
        .until_committed(0, |offset, text| offset == u64::from(MESSAGES) && support::has_no_ranges(text));
    second.stop().await;
    let handled = stage.handled();
    assert_eq!(handled.len(), MESSAGES as usize + 100);
    assert!(handled.values().all(|times| *times >= 1), "nothing is lost");
    let repeated = |number: u32| handled[&format!("done-{number}")] > 1;
    // Near ranges are kept, and far messages are redelivered.
    assert!((0..1000).all(|n| !repeated(2 * n + 1)), "what fits is not repeated");
    assert!((2000..5000).any(|n| repeated(2 * n + 1)), "there was more than fits");
    assert!((0..100).all(|n| handled[&format!("other-{n}")] == 1), "the other partition is not touched");
}

#[tokio::test(flavor = "multi_thread")]
async fn successes_of_one_partition_leave_the_attempts_of_another_alone() {
    // I4
    let Some(broker) = broker() else { return };
    let stage = Stage::new(broker, 2).await;
    let retry = RetryPolicy {
        strategy: Strategy::InPlace,
        max_attempts: 4,
        initial_delay: Duration::from_millis(150),
        multiplier: 1.0,
        jitter: 0.0,
        ..RetryPolicy::default()
    };
    let does = |payload: &str, _: u32| if payload == "sick" { Does::FailForNow } else { Does::Handle };
    let running = stage.start(stage.topic.options(), options(retry), does);
    stage.send(0, Some(b"sick"), "sick");
    let mut number = 0;
    while stage.attempts("sick").len() < 4 {
        let text = format!("well-{number}");
        stage.send(1, Some(text.as_bytes()), &text);
        stage.until("the healthy one is handled", |calls| calls.iter().any(|(p, ..)| *p == text)).await;
        number += 1;
    }
    stage.topic.until_committed(0, |offset, _| offset == 1);
    running.stop().await;
    assert_eq!(stage.attempts("sick"), [1, 2, 3, 4]);
    assert_eq!(stage.count(LetterState::Dead).await, 1);
    assert!(number > 4, "the other partition flowed between the attempts");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_null_key_has_its_own_lane_and_equal_bytes_share_one() {
    // I2: null is not empty.
    let Some(broker) = broker() else { return };
    let stage = Stage::new(broker, 1).await;
    let binary: &[u8] = &[0, 159, 146, 150];
    for (key, name) in [(None, "null"), (Some(&b""[..]), "empty"), (Some(binary), "binary")] {
        stage.send(0, key, &format!("fail-{name}"));
        stage.send(0, key, &format!("next-{name}"));
    }
    stage.send(0, Some(b"last"), "last");
    let does = |payload: &str, _: u32| match payload.starts_with("fail") {
        true => Does::FailForGood,
        false => Does::Handle,
    };
    let running = stage.start(stage.topic.options(), options(RetryPolicy::default()), does);
    stage.topic.until_committed(0, |offset, _| offset == 7);
    running.stop().await;
    let handled: Vec<String> =
        stage.handled().into_iter().filter(|(_, times)| *times > 0).map(|(payload, _)| payload).collect();
    assert_eq!(handled, ["last", "next-null"]);
    assert_eq!((stage.count(LetterState::Dead).await, stage.count(LetterState::Waiting).await), (3, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_always_fail_delay_no_others() {
    // I1, I3: one in a hundred messages is retried without end, with separate keys and a hot key among them.
    const MESSAGES: u32 = 10_000;
    let Some(broker) = broker() else { return };
    for strategy in [Strategy::Ordered, Strategy::Unordered] {
        let stage = Stage::new(broker.clone(), 3).await;
        let retry = RetryPolicy {
            strategy,
            hold: Duration::from_millis(20),
            max_attempts: u32::MAX,
            initial_delay: Duration::from_millis(10),
            max_delay: Duration::from_millis(100),
            ..RetryPolicy::default()
        };
        let does = |payload: &str, _: u32| match payload.ends_with("00") {
            true => Does::FailForNow,
            false => Does::Handle,
        };
        let running = stage.start(stage.topic.options(), options(retry), does);
        for number in 0..MESSAGES {
            let text = format!("{number:05}");
            stage.send((number % 3) as i32, Some(text.as_bytes()), &text);
        }
        stage.producer.flush(LONG).unwrap();
        let healthy = (MESSAGES - MESSAGES / 100) as usize;
        stage.until("all healthy ones are handled", |calls| well(calls) == healthy).await;
        for partition in 0..3 {
            let end = stage.topic.end(partition);
            stage.topic.until_committed(partition, |offset, _| offset == end);
        }
        let tries = stage.calls.borrow().len();
        stage.until("the others are tried on and on", |calls| calls.len() > tries + 100).await;
        running.stop().await;
        assert!(
            stage.handled().values().all(|times| *times <= 1),
            "{strategy}: no message was handled twice"
        );
        assert_eq!(stage.count(LetterState::Retrying).await, u64::from(MESSAGES / 100), "{strategy}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_is_paused_during_a_back_off_continues_once_when_it_is_resumed() {
    // I12: the due time passes while the partition is paused.
    let Some(broker) = broker() else { return };
    let stage = Stage::new(broker, 2).await;
    let retry = RetryPolicy {
        strategy: Strategy::InPlace,
        initial_delay: Duration::from_millis(400),
        jitter: 0.0,
        ..RetryPolicy::default()
    };
    let does = |payload: &str, attempt: u32| match payload == "sick" && attempt == 1 {
        true => Does::FailForNow,
        false => Does::Handle,
    };
    let running = stage.start(stage.topic.options(), options(retry), does);
    stage.send(0, Some(b"a"), "sick");
    stage.until("it has failed", |calls| calls.len() == 1).await;
    let (scope, by) =
        (PauseScope::Partition(stage.topic.partition(0)), Actor::new("ada", "test", "maintenance"));
    running.handle.pause(scope.clone(), &by).await.unwrap();
    stage.send(0, Some(b"a"), "behind");
    stage.send(0, Some(b"b"), "beside");
    // The pause is longer than the back-off. Messages of the other partition measure it.
    let paused = Instant::now();
    let mut number = 0;
    while paused.elapsed() < Duration::from_secs(1) {
        let text = format!("other-{number}");
        stage.send(1, Some(text.as_bytes()), &text);
        stage.until("the other partition flows", |calls| calls.iter().any(|(p, ..)| *p == text)).await;
        number += 1;
    }
    assert_eq!(stage.attempts("sick"), [1], "nothing runs while it is paused");
    assert!(stage.attempts("beside").is_empty() && stage.attempts("behind").is_empty());
    assert!(running.handle.resume(&scope, &by).await.unwrap());
    stage.topic.until_committed(0, |offset, _| offset == 3);
    running.stop().await;
    assert_eq!(stage.attempts("sick"), [1, 2]);
    assert_eq!((stage.attempts("behind"), stage.attempts("beside")), (vec![1], vec![1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_back_off_that_is_longer_than_max_poll_interval_costs_no_rebalance() {
    let Some(broker) = broker() else { return };
    let stage = Stage::new(broker, 2).await;
    let retry = RetryPolicy {
        strategy: Strategy::InPlace,
        initial_delay: Duration::from_secs(5),
        jitter: 0.0,
        ..RetryPolicy::default()
    };
    let kafka = stage
        .topic
        .options()
        .with_property("session.timeout.ms", "2000")
        .with_property("max.poll.interval.ms", "2000");
    let does = |payload: &str, attempt: u32| match payload == "sick" && attempt == 1 {
        true => Does::FailForNow,
        false => Does::Handle,
    };
    let running = stage.start(kafka, options(retry), does);
    stage.send(0, Some(b"sick"), "sick");
    stage.until("it has failed", |calls| calls.len() == 1).await;
    let failed = Instant::now();
    stage.until("it is handled", |calls| well(calls) == 1).await;
    assert!(failed.elapsed() >= Duration::from_millis(4900), "it waited");
    assert_eq!(*stage.moved.borrow(), (2, 0), "each partition was assigned once and none revoked");
    stage.topic.until_committed(0, |offset, _| offset == 1);
    running.stop().await;
    assert_eq!(stage.attempts("sick"), [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_with_much_in_flight_ends_in_time_and_repeats_only_what_was_not_settled() {
    // I1: thousands of handlers are running, hundreds of messages wait for a retry in memory, and others
    // are done.
    const EACH: u32 = 2000;
    let Some(broker) = broker() else { return };
    let stage = Stage::new(broker, 3).await;
    for number in 0..3 * EACH {
        let kind = ["done", "wait", "late"][(number % 3) as usize];
        let text = format!("{kind}-{number}");
        stage.send((number / 3 % 3) as i32, Some(text.as_bytes()), &text);
    }
    stage.producer.flush(LONG).unwrap();
    // The delay is longer than everything before the restart. The restart does not shorten it.
    let delay = Duration::from_secs(15);
    let retry = RetryPolicy {
        strategy: Strategy::InPlace,
        initial_delay: delay,
        max_delay: delay,
        ..RetryPolicy::default()
    };
    let drain_deadline = Duration::from_secs(2);
    let options =
        || Options { concurrency: 10_000, window: 20_000, drain_deadline, ..options(retry.clone()) };
    let first = stage.start(stage.topic.options(), options(), |payload: &str, _| match &payload[..4] {
        "wait" => Does::Wait,
        "late" => Does::FailForNow,
        _ => Does::Handle,
    });
    stage.until("all are done or under way", |calls| calls.len() == 2 * EACH as usize).await;
    let started = Instant::now();
    first.stop().await;
    assert!(started.elapsed() < drain_deadline + Duration::from_secs(10), "{:?}", started.elapsed());
    let second = stage.start(stage.topic.options(), options(), |_: &str, _| Does::Handle);
    for partition in 0..3 {
        let end = stage.topic.end(partition);
        stage.topic.until_committed(partition, |offset, text| offset == end && support::has_no_ranges(text));
    }
    second.stop().await;
    let handled = stage.handled();
    assert_eq!(handled.len(), 3 * EACH as usize);
    for (payload, times) in handled {
        assert_eq!(times, 1, "{payload}");
    }
}
