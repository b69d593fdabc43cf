//! A topic of its own for each test, on the broker that `LAZARET_TEST_KAFKA` names.

#![allow(dead_code, reason = "each test program uses its part")]

pub(crate) mod chaos;
pub(crate) mod dead_letters;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_core::{Message, Partition, Position};
use lazaret_source_kafka::{KafkaOptions, KafkaSource};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Offset, TopicPartitionList};

/// How long to wait for something that must come.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// The broker. Without one the test says that it did not run, and fails where everything must run.
pub(crate) fn broker() -> Option<String> {
    let broker = std::env::var("LAZARET_TEST_KAFKA").ok();
    if broker.is_none() {
        let must = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!must, "LAZARET_TEST_KAFKA is not set; `cargo xtask test` starts a broker and sets it");
        println!(
            "not run: LAZARET_TEST_KAFKA is not set; `cargo xtask services` starts a broker and prints it"
        );
    }
    broker
}

/// The listener of the broker that wants a user, as `user:password@host:port`. A broker that somebody brought along
/// need not have one.
pub(crate) fn listener_with_users() -> Option<String> {
    broker()?;
    let listener = std::env::var("LAZARET_TEST_KAFKA_SASL").ok();
    if listener.is_none() {
        println!("not run: LAZARET_TEST_KAFKA_SASL is not set; `cargo xtask services` prints it");
    }
    listener
}

/// Options for the listener that wants a user, with this password.
pub(crate) fn with_password(topic: &str, group: &str, password: Option<&str>) -> Option<KafkaOptions> {
    let given = listener_with_users()?;
    let (login, address) = given.split_once('@').expect("user:password@host:port");
    let (user, right) = login.split_once(':').expect("user:password@host:port");
    let options = quick(KafkaOptions::new(address, group, [topic]))
        .with_property("security.protocol", "SASL_PLAINTEXT")
        .with_property("sasl.mechanism", "PLAIN")
        .with_property("sasl.username", user)
        .with_property("sasl.password", password.unwrap_or(right));
    Some(options)
}

pub(crate) fn broker_is_there() -> bool {
    broker().is_some()
}

/// A name that nobody has used.
pub(crate) fn unique(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    format!("{prefix}{time}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A topic, and what is needed to fill it and to look at the group that reads it.
pub(crate) struct Topic {
    pub(crate) brokers: String,
    pub(crate) name: String,
    pub(crate) group: String,
    pub(crate) producer: FutureProducer,
}

impl Topic {
    pub(crate) async fn new(brokers: String, partitions: i32) -> Self {
        Self::with_config(brokers, &unique("t-"), partitions, &[]).await
    }

    pub(crate) async fn with_config(
        brokers: String,
        name: &str,
        partitions: i32,
        config: &[(&str, &str)],
    ) -> Self {
        let admin: AdminClient<DefaultClientContext> = client(&brokers).create().unwrap();
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        topic.config = config.to_vec();
        let made = admin.create_topics([&topic], &AdminOptions::new().operation_timeout(Some(LONG))).await;
        made.unwrap()[0].as_ref().unwrap();
        Self::existing(brokers, name)
    }

    pub(crate) fn existing(brokers: String, name: &str) -> Self {
        let producer = client(&brokers).create().unwrap();
        Self { brokers, name: name.to_owned(), group: format!("g-{name}"), producer }
    }

    /// Options that notice quickly what happens.
    pub(crate) fn options(&self) -> KafkaOptions {
        quick(KafkaOptions::new(&self.brokers, &self.group, [&self.name]))
    }

    pub(crate) fn open(&self) -> Reading {
        Reading::new(KafkaSource::open(self.options()).unwrap())
    }

    pub(crate) fn partition(&self, index: u32) -> Partition {
        Partition::new(self.name.as_str(), index)
    }

    pub(crate) async fn push(&self, partition: i32, payload: &str) -> u64 {
        self.send(FutureRecord::to(&self.name).partition(partition).payload(payload).key("key")).await
    }

    pub(crate) async fn fill(&self, partition: i32, numbers: std::ops::Range<u32>) {
        for number in numbers {
            self.push(partition, &number.to_string()).await;
        }
    }

    pub(crate) async fn send(&self, record: FutureRecord<'_, str, str>) -> u64 {
        let delivered = self.producer.send(record, LONG).await.map_err(|(error, _)| error).unwrap();
        delivered.offset.unsigned_abs()
    }

    /// What the group has committed for a partition, with its metadata.
    pub(crate) fn committed(&self, partition: i32) -> Option<(u64, String)> {
        let consumer: BaseConsumer = client(&self.brokers).set("group.id", &self.group).create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition(&self.name, partition);
        let list = consumer.committed_offsets(list, LONG).unwrap();
        let elements = list.elements();
        match elements[0].offset() {
            Offset::Offset(offset) => Some((offset.unsigned_abs(), elements[0].metadata().to_owned())),
            _ => None,
        }
    }

    /// Asks until what is committed is as it should be.
    pub(crate) fn until_committed(&self, partition: i32, holds: impl Fn(u64, &str) -> bool) {
        let started = Instant::now();
        let mut committed = None;
        while !committed.as_ref().is_some_and(|(offset, metadata): &(u64, String)| holds(*offset, metadata)) {
            assert!(started.elapsed() < LONG, "committed is {committed:?}");
            committed = self.committed(partition);
        }
    }

    /// The offset behind the last message of a partition.
    pub(crate) fn end(&self, partition: i32) -> u64 {
        let consumer: BaseConsumer = client(&self.brokers).create().unwrap();
        consumer.fetch_watermarks(&self.name, partition, LONG).unwrap().1.unsigned_abs()
    }

    /// Commits on behalf of the group, which must have no members.
    pub(crate) fn set_committed(&self, partition: i32, offset: i64, metadata: &str) {
        let consumer: BaseConsumer = client(&self.brokers).set("group.id", &self.group).create().unwrap();
        let mut list = TopicPartitionList::new();
        let mut element = list.add_partition(&self.name, partition);
        element.set_offset(Offset::Offset(offset)).unwrap();
        element.set_metadata(metadata);
        consumer.commit(&list, rdkafka::consumer::CommitMode::Sync).unwrap();
    }
}

pub(crate) fn client(brokers: &str) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", brokers);
    client
}

pub(crate) fn quick(options: KafkaOptions) -> KafkaOptions {
    options
        .with_property("session.timeout.ms", "6000")
        .with_property("heartbeat.interval.ms", "200")
        .with_property("fetch.wait.max.ms", "50")
        .with_property("statistics.interval.ms", "100")
        .with_property("reconnect.backoff.max.ms", "500")
}

/// A source and what it has given, by partition.
pub(crate) struct Reading {
    pub(crate) source: KafkaSource,
    pub(crate) held: BTreeMap<u32, Vec<std::ops::RangeInclusive<u64>>>,
    pub(crate) got: BTreeMap<u32, Vec<Message>>,
    pub(crate) revoking: Vec<Partition>,
    pub(crate) lost: Vec<Partition>,
    pub(crate) ends: u32,
    /// What came of commits that were begun.
    pub(crate) commits: Vec<Result<(), String>>,
    pub(crate) errors: Vec<SourceError>,
}

impl std::fmt::Debug for Reading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { held, revoking, lost, ends, errors, .. } = self;
        let mut text = f.debug_struct("Reading");
        text.field("held", held).field("revoking", revoking).field("lost", lost).field("ends", ends);
        text.field("state", &*self.source.state().borrow()).field("errors", errors).finish_non_exhaustive()
    }
}

impl Reading {
    pub(crate) fn new(source: KafkaSource) -> Self {
        Self {
            source,
            held: BTreeMap::new(),
            got: BTreeMap::new(),
            revoking: Vec::new(),
            lost: Vec::new(),
            ends: 0,
            commits: Vec::new(),
            errors: Vec::new(),
        }
    }

    pub(crate) fn take(&mut self, event: Result<SourceEvent, SourceError>) {
        match event {
            Ok(SourceEvent::Messages(messages)) => {
                for message in messages {
                    assert!(
                        self.held.contains_key(&message.position.partition),
                        "messages come after Assigned"
                    );
                    self.got.entry(message.position.partition).or_default().push(message);
                }
            }
            Ok(SourceEvent::Assigned(assignments)) => {
                for assignment in assignments {
                    self.held.insert(assignment.partition.index, assignment.settled);
                }
            }
            Ok(SourceEvent::Revoking(partitions)) => self.revoking.extend(partitions),
            Ok(SourceEvent::Lost(partitions)) => {
                for partition in partitions {
                    self.held.remove(&partition.index);
                    self.lost.push(partition);
                }
            }
            Ok(SourceEvent::End) => self.ends += 1,
            Ok(SourceEvent::Committed(outcome)) => self.commits.push(outcome),
            Err(error) => self.errors.push(error),
        }
    }

    /// Reads until this holds.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) -> impl Future<Output = ()> {
        let what = what.to_owned();
        async move {
            let until = tokio::time::Instant::now() + LONG;
            while !holds(self) {
                let event = tokio::time::timeout_at(until, self.source.next()).await;
                let event =
                    event.unwrap_or_else(|_| panic!("waited in vain until {what}: {:?}", self.errors));
                self.take(event);
            }
        }
    }

    /// Reads for so long, whatever comes.
    pub(crate) async fn read_for(&mut self, time: Duration) {
        let until = tokio::time::Instant::now() + time;
        while let Ok(event) = tokio::time::timeout_at(until, self.source.next()).await {
            self.take(event);
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.got.values().map(Vec::len).sum()
    }

    pub(crate) fn payloads(&self, partition: u32) -> Vec<String> {
        let messages = self.got.get(&partition).into_iter().flatten();
        messages.map(|m| String::from_utf8(m.payload.clone().unwrap().into()).unwrap()).collect()
    }

    pub(crate) fn offsets(&self, partition: u32) -> Vec<u64> {
        self.got.get(&partition).into_iter().flatten().map(|m| m.position.offset).collect()
    }

    pub(crate) async fn commit(
        &mut self,
        partition: Partition,
        offset: impl Into<Option<u64>>,
        settled_beyond: Vec<std::ops::RangeInclusive<u64>>,
    ) -> Result<(), SourceError> {
        let position = offset.into().map(|offset| Position::new(partition.index, offset));
        self.source.commit(vec![Commit { partition, position, settled_beyond }]).await
    }

    /// Lets go of all that is being revoked.
    pub(crate) async fn let_go(&mut self) {
        let revoking = std::mem::take(&mut self.revoking);
        revoking.iter().for_each(|partition| {
            self.held.remove(&partition.index);
        });
        self.source.revoked(&revoking).await.unwrap();
    }
}

/// The numbers from `range` as payloads.
pub(crate) fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}
