//! Shared support of the tests against a real Kafka: the broker that `LAZARET_TEST_KAFKA` names, a new topic for each test, and
//! a source whose events are recorded.

#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

mod unknown_compression;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_core::{Message, Partition, Position};
use lazaret_source_kafka::{KafkaOptions, KafkaSource};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

pub use unknown_compression::push_unknown_compression;

/// How long to wait for an event that must occur.
pub const LONG: Duration = Duration::from_secs(240);

/// Returns the broker. Without one the test prints that it did not run, and fails when `CI=true`.
pub fn broker() -> Option<String> {
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

/// Returns the listener with authentication, as `user:password@host:port`. An external broker need not have one.
pub fn listener_with_users() -> Option<String> {
    broker()?;
    let listener = std::env::var("LAZARET_TEST_KAFKA_SASL").ok();
    if listener.is_none() {
        println!("not run: LAZARET_TEST_KAFKA_SASL is not set; `cargo xtask services` prints it");
    }
    listener
}

/// Returns options for the listener with authentication, with this password or the right one.
pub fn with_password(topic: &str, group: &str, password: Option<&str>) -> Option<KafkaOptions> {
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

/// Returns whether there is a broker.
pub fn broker_is_there() -> bool {
    broker().is_some()
}

/// Returns a name that was not used before.
pub fn unique(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    format!("{prefix}{time}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A topic, with a producer and the group that reads it.
pub struct Topic {
    /// The brokers.
    pub brokers: String,
    /// The name of the topic.
    pub name: String,
    /// The group.
    pub group: String,
    /// A producer.
    pub producer: FutureProducer,
}

impl Topic {
    /// Creates a topic. Its records stay, whatever their timestamps: every five minutes a broker deletes those that are older than its
    /// retention.
    pub async fn new(brokers: String, partitions: i32) -> Self {
        Self::with_config(brokers, &unique("t-"), partitions, &[("retention.ms", "-1")]).await
    }

    /// Creates a topic with settings.
    pub async fn with_config(brokers: String, name: &str, partitions: i32, config: &[(&str, &str)]) -> Self {
        let admin: AdminClient<DefaultClientContext> = client(&brokers).create().unwrap();
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        topic.config = config.to_vec();
        let made = admin.create_topics([&topic], &AdminOptions::new().operation_timeout(Some(LONG))).await;
        made.unwrap()[0].as_ref().unwrap();
        Self::existing(brokers, name)
    }

    /// Deletes the topic, waits until the broker knows it no more, and creates it again.
    pub async fn recreate(&self, partitions: i32) {
        let admin: AdminClient<DefaultClientContext> = client(&self.brokers).create().unwrap();
        let options = AdminOptions::new().operation_timeout(Some(LONG));
        admin.delete_topics(&[&self.name], &options).await.unwrap()[0].as_ref().unwrap();
        let topic = NewTopic::new(&self.name, partitions, TopicReplication::Fixed(1));
        let started = Instant::now();
        // The broker refuses the name until the deletion is complete.
        while let Err((name, error)) = &admin.create_topics([&topic], &options).await.unwrap()[0] {
            assert!(started.elapsed() < LONG, "{name} was not created again: {error}");
        }
    }

    /// Adds partitions to the topic, up to this number, and waits until the broker knows them.
    pub async fn grow(&mut self, partitions: usize) {
        let admin: AdminClient<DefaultClientContext> = client(&self.brokers).create().unwrap();
        let options = AdminOptions::new().operation_timeout(Some(LONG));
        let added = admin.create_partitions([&NewPartitions::new(&self.name, partitions)], &options).await;
        added.unwrap()[0].as_ref().unwrap();
        // The old producer knows the old ones for minutes.
        self.producer = client(&self.brokers).create().unwrap();
        let started = Instant::now();
        let known = || {
            let metadata = self.producer.client().fetch_metadata(Some(&self.name), LONG).unwrap();
            metadata.topics()[0].partitions().len()
        };
        while known() < partitions {
            assert!(started.elapsed() < LONG, "the broker does not know {partitions} partitions");
        }
    }

    /// Uses an existing topic.
    pub fn existing(brokers: String, name: &str) -> Self {
        let producer = client(&brokers).create().unwrap();
        Self { brokers, name: name.to_owned(), group: format!("g-{name}"), producer }
    }

    /// Returns options with short intervals.
    pub fn options(&self) -> KafkaOptions {
        quick(KafkaOptions::new(&self.brokers, &self.group, [&self.name]))
    }

    /// Opens a source.
    pub fn open(&self) -> Reading {
        Reading::new(KafkaSource::open(self.options()).unwrap())
    }

    /// Returns a partition of the topic.
    pub fn partition(&self, index: u32) -> Partition {
        Partition::new(self.name.as_str(), index)
    }

    /// Writes a record and returns its offset.
    pub async fn push(&self, partition: i32, payload: &str) -> u64 {
        self.send(FutureRecord::to(&self.name).partition(partition).payload(payload).key("key")).await
    }

    /// Writes the numbers as records.
    pub async fn fill(&self, partition: i32, numbers: std::ops::Range<u32>) {
        for number in numbers {
            self.push(partition, &number.to_string()).await;
        }
    }

    /// Writes a record and returns its offset.
    pub async fn send(&self, record: FutureRecord<'_, str, str>) -> u64 {
        let delivered = self.producer.send(record, LONG).await.map_err(|(error, _)| error).unwrap();
        delivered.offset.unsigned_abs()
    }

    /// Returns the committed offset of a partition, with its metadata.
    pub fn committed(&self, partition: i32) -> Option<(u64, String)> {
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
    pub fn until_committed(&self, partition: i32, holds: impl Fn(u64, &str) -> bool) {
        let started = Instant::now();
        let mut committed = None;
        while !committed.as_ref().is_some_and(|(offset, metadata): &(u64, String)| holds(*offset, metadata)) {
            assert!(started.elapsed() < LONG, "committed is {committed:?}");
            committed = self.committed(partition);
        }
    }

    /// Returns the offset after the last message of a partition.
    pub fn end(&self, partition: i32) -> u64 {
        let consumer: BaseConsumer = client(&self.brokers).create().unwrap();
        consumer.fetch_watermarks(&self.name, partition, LONG).unwrap().1.unsigned_abs()
    }

    /// Commits on behalf of the group, which must have no members.
    pub fn set_committed(&self, partition: i32, offset: i64, metadata: &str) {
        let consumer: BaseConsumer = client(&self.brokers).set("group.id", &self.group).create().unwrap();
        let mut list = TopicPartitionList::new();
        let mut element = list.add_partition(&self.name, partition);
        element.set_offset(Offset::Offset(offset)).unwrap();
        element.set_metadata(metadata);
        consumer.commit(&list, rdkafka::consumer::CommitMode::Sync).unwrap();
    }
}

/// Returns the settings of a client.
pub fn client(brokers: &str) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", brokers);
    client
}

/// Sets short intervals.
pub fn quick(options: KafkaOptions) -> KafkaOptions {
    options
        .with_property("session.timeout.ms", "6000")
        .with_property("heartbeat.interval.ms", "200")
        .with_property("fetch.wait.max.ms", "50")
        .with_property("statistics.interval.ms", "100")
        .with_property("reconnect.backoff.max.ms", "500")
}

/// A source and its events.
pub struct Reading {
    /// The source.
    pub source: KafkaSource,
    /// Assigned partitions, with the ranges that are settled.
    pub held: BTreeMap<u32, Vec<std::ops::RangeInclusive<u64>>>,
    /// Messages by partition.
    pub got: BTreeMap<u32, Vec<Message>>,
    /// Partitions that are being revoked.
    pub revoking: Vec<Partition>,
    /// Lost partitions.
    pub lost: Vec<Partition>,
    /// Partitions that began a new incarnation.
    pub recreated: Vec<Partition>,
    /// The number of ends.
    pub ends: u32,
    /// Outcomes of commits that were begun.
    pub commits: Vec<Result<(), SourceError>>,
    /// Errors of the source.
    pub errors: Vec<SourceError>,
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
    /// Wraps a source.
    pub fn new(source: KafkaSource) -> Self {
        Self {
            source,
            held: BTreeMap::new(),
            got: BTreeMap::new(),
            revoking: Vec::new(),
            lost: Vec::new(),
            recreated: Vec::new(),
            ends: 0,
            commits: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Records an event.
    pub fn take(&mut self, event: Result<SourceEvent, SourceError>) {
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
            Ok(SourceEvent::Recreated(partitions)) => self.recreated.extend(partitions),
            Ok(SourceEvent::End) => self.ends += 1,
            Ok(SourceEvent::Committed(outcome)) => self.commits.push(outcome),
            Err(error) => self.errors.push(error),
        }
    }

    /// Reads until the condition holds.
    #[track_caller]
    pub fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) -> impl Future<Output = ()> {
        let what = what.to_owned();
        async move {
            let until = tokio::time::Instant::now() + LONG;
            while !holds(self) {
                let event = tokio::time::timeout_at(until, self.source.next()).await;
                let event =
                    event.unwrap_or_else(|_| panic!("timed out waiting until {what}: {:?}", self.errors));
                self.take(event);
            }
        }
    }

    /// Reads for this long.
    pub async fn read_for(&mut self, time: Duration) {
        let until = tokio::time::Instant::now() + time;
        while let Ok(event) = tokio::time::timeout_at(until, self.source.next()).await {
            self.take(event);
        }
    }

    /// Returns the number of messages.
    pub fn count(&self) -> usize {
        self.got.values().map(Vec::len).sum()
    }

    /// Returns the payloads of a partition.
    pub fn payloads(&self, partition: u32) -> Vec<String> {
        let messages = self.got.get(&partition).into_iter().flatten();
        messages.map(|m| String::from_utf8(m.payload.clone().unwrap().into()).unwrap()).collect()
    }

    /// Returns the offsets of the messages of a partition.
    pub fn offsets(&self, partition: u32) -> Vec<u64> {
        self.got.get(&partition).into_iter().flatten().map(|m| m.position.offset).collect()
    }

    /// Commits a position.
    pub async fn commit(
        &mut self,
        partition: Partition,
        offset: impl Into<Option<u64>>,
        settled_beyond: Vec<std::ops::RangeInclusive<u64>>,
    ) -> Result<(), SourceError> {
        let position = offset.into().map(|offset| Position::at(partition.number(), offset));
        self.source.commit(vec![Commit { partition, position, settled_beyond }]).await
    }

    /// Releases all partitions that are being revoked.
    pub async fn release(&mut self) {
        let revoking = std::mem::take(&mut self.revoking);
        revoking.iter().for_each(|partition| {
            self.held.remove(&partition.index);
        });
        self.source.revoked(&revoking).await.unwrap();
    }
}

/// Returns whether the metadata of a commit has no ranges of settled offsets, but the ids of topic and store at most.
pub fn has_no_ranges(metadata: &str) -> bool {
    metadata.is_empty() || metadata.ends_with('.')
}

/// Returns the numbers as payloads.
pub fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}
