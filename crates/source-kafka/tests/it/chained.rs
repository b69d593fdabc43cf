//! A topic with its retry topics and its dead-letter topic, and consumers that follow a script.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::handler::Attempt;
use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::{HandlerError, Headers, Message, Timestamp};
use lazaret_engine::{Consumer, Event, Options, Stats};
use lazaret_memory::MemoryStore;
use lazaret_source_kafka::headers::Relayed;
use lazaret_source_kafka::{KafkaOptions, KafkaRelay, KafkaSource, RetryTopics, headers};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use rdkafka::producer::{BaseProducer, BaseRecord};
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{LONG, Topic, client};

/// The name of the consumer.
pub(crate) const NAME: &str = "mail";

pub(crate) const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Returns a policy for retries in topics: three attempts, with this delay and then twice this delay,
/// without jitter.
pub(crate) fn retry(delay: Duration) -> RetryPolicy {
    RetryPolicy {
        strategy: Strategy::Topics,
        initial_delay: delay,
        jitter: 0.0,
        max_delay: delay * 8,
        ..RetryPolicy::default()
    }
}

/// A call of a handler.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) message: Message,
    pub(crate) attempt: u32,
    pub(crate) at: Timestamp,
}

pub(crate) fn payload_of(message: &Message) -> String {
    String::from_utf8_lossy(message.payload.as_deref().unwrap_or_default()).into_owned()
}

/// A topic with its retry topics and its dead-letter topic, and the calls of all its consumers.
#[derive(Clone)]
pub(crate) struct Chained {
    pub(crate) topic: Arc<Topic>,
    calls: watch::Sender<Vec<Call>>,
    pub(crate) events: watch::Sender<Vec<String>>,
    /// Whether messages that begin with `wait` may continue.
    pub(crate) open: watch::Sender<bool>,
    producer: Arc<BaseProducer>,
    store: Arc<MemoryStore>,
    window: usize,
    commit_interval: Duration,
    change: fn(RetryTopics) -> RetryTopics,
    draining: Vec<Duration>,
    /// Attempts after this one never end.
    last_attempt: u32,
    spring: bool,
    transactional_id: Option<String>,
    /// The hook that is called at each step of a transaction.
    hook: Option<TransactionHook>,
}

/// A hook that receives the name of each step of a transaction.
type TransactionHook = Arc<dyn Fn(&'static str) + Send + Sync>;

/// The name of an event: its leading letters and digits.
struct Name(String);

impl fmt::Write for Name {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let end = more.find(|c: char| !c.is_ascii_alphanumeric());
        self.0.push_str(&more[..end.unwrap_or(more.len())]);
        if end.is_some() { Err(fmt::Error) } else { Ok(()) }
    }
}

/// A running consumer.
pub(crate) struct Running {
    drain: CancellationToken,
    task: JoinHandle<Stats>,
}

impl Running {
    pub(crate) async fn stop(self) -> Stats {
        self.drain.cancel();
        self.task.await.unwrap()
    }

    /// Kills the consumer. Nothing is drained and nothing is committed.
    pub(crate) async fn crash(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

impl Chained {
    pub(crate) async fn new(broker: String, partitions: i32) -> Self {
        Self::of(Topic::new(broker, partitions).await)
    }

    pub(crate) fn of(topic: Topic) -> Self {
        Self {
            producer: Arc::new(client(&topic.brokers).create().unwrap()),
            topic: Arc::new(topic),
            calls: watch::Sender::default(),
            events: watch::Sender::default(),
            open: watch::Sender::new(false),
            store: Arc::new(MemoryStore::default()),
            window: 8192,
            commit_interval: millis(50),
            change: RetryTopics::creating_topics,
            draining: Vec::new(),
            last_attempt: u32::MAX,
            spring: false,
            transactional_id: None,
            hook: None,
        }
    }

    pub(crate) fn with_window(&self, window: usize) -> Self {
        Self { window, ..self.clone() }
    }

    pub(crate) fn with_store(&self, store: Arc<MemoryStore>) -> Self {
        Self { store, ..self.clone() }
    }

    pub(crate) fn committing_every(&self, commit_interval: Duration) -> Self {
        Self { commit_interval, ..self.clone() }
    }

    pub(crate) fn draining(&self, delay: Duration) -> Self {
        Self { draining: vec![delay], ..self.clone() }
    }

    /// Returns a setup whose consumers make no attempt after this one, however long they live. A slow
    /// test may stop them too late.
    pub(crate) fn up_to_attempt(&self, last_attempt: u32) -> Self {
        Self { last_attempt, ..self.clone() }
    }

    pub(crate) fn with_spring_headers(&self) -> Self {
        Self { spring: true, ..self.clone() }
    }

    pub(crate) fn in_transactions(&self, id: &str) -> Self {
        Self { transactional_id: Some(id.to_owned()), ..self.clone() }
    }

    /// Returns a setup in which the process crashes when a transaction reaches this point.
    pub(crate) fn dying_at(&self, point: &str) -> Self {
        let point = point.to_owned();
        self.calling_in_transactions(move |step| {
            if step == point {
                std::process::abort();
            }
        })
    }

    /// Returns a setup that calls this hook at each step of a transaction, in the thread that runs it.
    pub(crate) fn calling_in_transactions(
        &self,
        hook: impl Fn(&'static str) + Send + Sync + 'static,
    ) -> Self {
        Self { hook: Some(Arc::new(hook)), ..self.clone() }
    }

    pub(crate) fn changed(&self, change: fn(RetryTopics) -> RetryTopics) -> Self {
        Self { change, ..self.clone() }
    }

    pub(crate) fn topics(&self, policy: &RetryPolicy) -> RetryTopics {
        let mut topics = (self.change)(RetryTopics::for_policy(NAME, policy)).draining(self.draining.clone());
        if self.spring {
            topics = topics.with_spring_headers();
        }
        if let Some(hook) = self.hook.clone() {
            topics = topics.with_transaction_hook(move |step| hook(step));
        }
        match &self.transactional_id {
            Some(id) => topics.in_transactions(id),
            None => topics,
        }
    }

    pub(crate) fn dead_topic(&self) -> String {
        format!("{}.{NAME}.dlt", self.topic.name)
    }

    pub(crate) fn retry_topic(&self, delay: Duration) -> String {
        RetryTopics::new(NAME, []).retry_topic(&self.topic.name, delay)
    }

    pub(crate) fn send(&self, partition: i32, payload: &str) {
        let record = BaseRecord::to(&self.topic.name).partition(partition).key(payload).payload(payload);
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
        self.producer.poll(Duration::ZERO);
    }

    /// Starts a consumer.
    pub(crate) async fn start(
        &self,
        policy: RetryPolicy,
        script: impl Fn(&Call) -> Result<(), HandlerError> + Send + Sync + 'static,
    ) -> Running {
        self.start_with(self.topic.options(), policy, script, false).await
    }

    /// Starts a consumer that begins at the end of topics that it does not know.
    pub(crate) async fn start_at_end(
        &self,
        policy: RetryPolicy,
        script: impl Fn(&Call) -> Result<(), HandlerError> + Send + Sync + 'static,
    ) -> Running {
        let kafka = self.topic.options().with_property("auto.offset.reset", "latest");
        self.start_with(kafka, policy, script, false).await
    }

    /// Runs a consumer until there is nothing more to do.
    pub(crate) async fn run_to_end(
        &self,
        policy: RetryPolicy,
        script: impl Fn(&Call) -> Result<(), HandlerError> + Send + Sync + 'static,
    ) -> Stats {
        let running = self.start_with(self.topic.options().reading_to_end(), policy, script, true).await;
        tokio::time::timeout(LONG, running.task).await.expect("it ends by itself").unwrap()
    }

    async fn start_with(
        &self,
        kafka: KafkaOptions,
        policy: RetryPolicy,
        script: impl Fn(&Call) -> Result<(), HandlerError> + Send + Sync + 'static,
        until_idle: bool,
    ) -> Running {
        let relay = KafkaRelay::open(&kafka, self.topics(&policy)).await.unwrap();
        let source = KafkaSource::open_with(kafka, &relay).unwrap();
        let (calls, open, script) = (self.calls.clone(), self.open.clone(), Arc::new(script));
        let last_attempt = self.last_attempt;
        let handler = move |message: Message, Attempt(attempt): Attempt| {
            let call = Call { message, attempt, at: Timestamp::now() };
            let (calls, open, script) = (calls.clone(), open.clone(), script.clone());
            async move {
                if call.attempt > last_attempt {
                    std::future::pending::<()>().await;
                }
                if payload_of(&call.message).starts_with("wait") {
                    open.subscribe().wait_for(|open| *open).await.unwrap();
                }
                let result = script(&call);
                calls.send_modify(|calls| calls.push(call));
                result
            }
        };
        let options = Options {
            relay: Some(Arc::new(relay)),
            retry: policy,
            window: self.window,
            commit_interval: self.commit_interval,
            drain_deadline: Duration::from_secs(5),
            breaker: None,
            fuse: None,
            until_idle,
            ..Options::default()
        };
        let events = self.events.clone();
        let observer = move |event: &Event<'_>| {
            let mut name = Name(String::new());
            // Formatting ends with an error where the name ends.
            let _ = write!(name, "{event:?}");
            events.send_modify(|events| events.push(name.0));
        };
        let builder = Consumer::builder(NAME).source(source).store(self.store.clone());
        let consumer = builder.handler(handler).options(options).observer(observer).build().unwrap();
        let drain = CancellationToken::new();
        let stop = drain.clone();
        let task = tokio::spawn(async move { consumer.run(stop).await.unwrap() });
        Running { drain, task }
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.borrow().clone()
    }

    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&[Call]) -> bool) {
        let mut calls = self.calls.subscribe();
        let held = tokio::time::timeout(LONG, calls.wait_for(|calls| holds(calls))).await.is_ok();
        assert!(held, "timed out waiting until {what}: {} calls", self.calls.borrow().len());
    }

    pub(crate) async fn until_event(&self, event: &str, times: usize) {
        let mut events = self.events.subscribe();
        let enough = |events: &Vec<String>| events.iter().filter(|name| *name == event).count() >= times;
        let held = tokio::time::timeout(LONG, events.wait_for(enough)).await.is_ok();
        assert!(held, "timed out waiting for {event}: {:?}", self.events.borrow());
    }

    /// Returns the records of a topic as soon as there are this many.
    pub(crate) async fn read(&self, topic: &str, count: usize) -> Vec<OwnedMessage> {
        let (brokers, topic) = (self.topic.brokers.clone(), topic.to_owned());
        let read = move || {
            let consumer: BaseConsumer = client(&brokers).set("group.id", "nobody").create().unwrap();
            let until = Instant::now() + LONG;
            let partitions = loop {
                let metadata = consumer.fetch_metadata(Some(&topic), LONG).unwrap();
                let found = metadata.topics().iter().find(|found| found.name() == topic);
                if let Some(found) = found.filter(|found| found.error().is_none()) {
                    break found.partitions().len();
                }
                assert!(Instant::now() < until, "{topic} is not there");
            };
            let mut list = TopicPartitionList::new();
            for partition in 0..partitions as i32 {
                list.add_partition_offset(&topic, partition, Offset::Beginning).unwrap();
            }
            consumer.assign(&list).unwrap();
            let mut records = Vec::new();
            while records.len() < count {
                assert!(Instant::now() < until, "{topic} has {} of {count} records", records.len());
                if let Some(record) = consumer.poll(millis(50)) {
                    records.push(record.unwrap().detach());
                }
            }
            records
        };
        tokio::task::spawn_blocking(read).await.unwrap()
    }

    /// Returns all topics that a consumer reads.
    fn read_topics(&self) -> Vec<Topic> {
        let consumer: BaseConsumer = client(&self.topic.brokers).create().unwrap();
        let metadata = consumer.fetch_metadata(None, LONG).unwrap();
        let retries = format!("{}.{NAME}.retry.", self.topic.name);
        let names = metadata.topics().iter().map(|topic| topic.name());
        let ours = names.filter(|name| *name == self.topic.name || name.starts_with(&retries));
        ours.map(|name| {
            let group = self.topic.group.clone();
            Topic { group, ..Topic::existing(self.topic.brokers.clone(), name) }
        })
        .collect()
    }

    fn partitions_of(&self, topic: &str) -> i32 {
        let consumer: BaseConsumer = client(&self.topic.brokers).create().unwrap();
        let metadata = consumer.fetch_metadata(Some(topic), LONG).unwrap();
        metadata.topics()[0].partitions().len() as i32
    }

    /// Returns the committed offset and the end of each partition.
    fn progress(&self) -> Vec<(String, u64, u64)> {
        let mut progress = Vec::new();
        for topic in self.read_topics() {
            for partition in 0..self.partitions_of(&topic.name) {
                let committed = topic.committed(partition).map_or(0, |(offset, _)| offset);
                progress.push((format!("{}/{partition}", topic.name), committed, topic.end(partition)));
            }
        }
        progress
    }

    /// Waits until every record that failed or was handled is committed. Waiting records are not committed.
    pub(crate) async fn until_everything_read_is_committed(&self) {
        let until = Instant::now() + LONG;
        let topic = self.topic.name.clone();
        loop {
            let of = self.clone();
            let progress = tokio::task::spawn_blocking(move || of.progress()).await.unwrap();
            // The last relayed record waits in a retry topic.
            let behind: u64 = progress.iter().map(|(_, committed, end)| end - committed).sum();
            let main = progress.iter().filter(|(name, ..)| name.starts_with(&format!("{topic}/")));
            if behind <= 1 && main.clone().all(|(_, committed, end)| committed == end) {
                return;
            }
            assert!(Instant::now() < until, "{progress:?}");
            tokio::time::sleep(millis(20)).await;
        }
    }

    /// Makes the broker forget the group, as soon as the broker sees that it has no members.
    pub(crate) async fn forget_positions(&self) {
        let admin: AdminClient<DefaultClientContext> = client(&self.topic.brokers).create().unwrap();
        let until = Instant::now() + LONG;
        loop {
            let deleted = admin.delete_groups(&[&self.topic.group], &AdminOptions::new()).await.unwrap();
            match &deleted[0] {
                Ok(_) => return,
                Err((_, code)) => assert!(Instant::now() < until, "{code}"),
            }
            tokio::time::sleep(millis(50)).await;
        }
    }

    pub(crate) fn assert_all_committed(&self) {
        for (name, committed, end) in self.progress() {
            assert_eq!(committed, end, "{name}");
        }
    }
}

/// Returns the relayed message that a record's headers describe.
pub(crate) fn relayed(record: &OwnedMessage) -> Relayed {
    let mut found = Headers::new();
    for header in record.headers().unwrap().iter() {
        match header.value {
            Some(value) => found.push(header.key, value.to_vec()),
            None => found.push_null(header.key),
        }
    }
    headers::read(&found).unwrap()
}
