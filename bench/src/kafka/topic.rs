//! The broker, and topics that are filled before the timed runs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::zipf::Random;

const VARIABLE: &str = "LAZARET_TEST_KAFKA";
const LONG: Duration = Duration::from_secs(60);
/// The payload size.
const PAYLOAD: usize = 1024;
const SEED: u64 = 0x0005_eed0_4a5c;

/// The broker of all runs.
pub(super) struct Cluster {
    brokers: String,
}

impl Cluster {
    /// Returns the broker that the environment variable names.
    pub(super) fn find() -> Result<Self, String> {
        let brokers = std::env::var(VARIABLE);
        let brokers = brokers.map_err(|_| {
            format!("{VARIABLE} is not set; `cargo xtask bench kafka` starts a broker and sets it")
        })?;
        Ok(Self { brokers })
    }

    /// Creates a topic and fills it with messages, keyed by `key`. All messages of a key are in one partition.
    pub(super) async fn fill(
        &self,
        partitions: u32,
        messages: usize,
        mut key: impl FnMut(usize) -> u32,
    ) -> Topic {
        let name = self.make(partitions).await;
        let started = Instant::now();
        let producer: BaseProducer = client(&self.brokers)
            .set("linger.ms", "20")
            .set("batch.size", "500000")
            .set("queue.buffering.max.messages", "200000")
            .create()
            .expect("a producer can be made");
        let mut random = Random::new(SEED);
        let mut payload = vec![b'x'; PAYLOAD];
        for number in 0..messages {
            let key = key(number);
            payload[..LOT].copy_from_slice(&(random.next() as u32).to_be_bytes());
            let text = format!("{KEY}{key}");
            let record = || {
                let record = BaseRecord::to(&name).partition((key % partitions) as i32);
                record.key(&text).payload(&payload)
            };
            while let Err((error, _)) = producer.send(record()) {
                let full = KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull);
                assert_eq!(error, full, "the broker takes messages");
                producer.poll(Duration::from_millis(10));
            }
        }
        producer.flush(LONG).expect("the broker takes messages");
        eprintln!("{messages} messages produced in {:.1} s", started.elapsed().as_secs_f64());
        Topic { brokers: self.brokers.clone(), name, partitions, messages }
    }

    async fn make(&self, partitions: u32) -> String {
        let name = unique("bench");
        let admin: AdminClient<DefaultClientContext> =
            client(&self.brokers).create().expect("a client can be made");
        let topic = NewTopic::new(&name, partitions as i32, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(LONG));
        let made = admin.create_topics([&topic], &options).await.expect("the broker can be reached");
        made[0].as_ref().expect("the topic can be made");
        name
    }
}

/// A filled topic.
pub(super) struct Topic {
    pub(super) brokers: String,
    pub(super) name: String,
    pub(super) partitions: u32,
    pub(super) messages: usize,
}

/// The bytes of a payload that hold its random number.
const LOT: usize = 4;

/// Returns whether a handler that refuses this share of all messages refuses this payload.
pub(super) fn draws_the_short_straw(payload: Option<&[u8]>, share: f64) -> bool {
    let lot = payload.and_then(|payload| payload.first_chunk::<LOT>()).map(|lot| u32::from_be_bytes(*lot));
    lot.is_some_and(|lot| f64::from(lot) < share * f64::from(u32::MAX))
}

/// What the keys of messages begin with.
const KEY: &str = "order-";

/// Returns the number that a key was made from.
pub(super) fn key_number(key: Option<&[u8]>) -> Option<u32> {
    std::str::from_utf8(key?).ok()?.strip_prefix(KEY)?.parse().ok()
}

/// Returns an unused name.
fn unique(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}-{}-{}-{count}", time.as_millis(), std::process::id())
}

/// Returns an unused consumer group.
pub(super) fn fresh_group() -> String {
    unique("group")
}

/// Returns the client settings for these brokers.
pub(super) fn client(brokers: &str) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", brokers);
    client
}
