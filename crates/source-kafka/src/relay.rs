//! Writes what failed to retry topics and dead-letter topics, durably: Lazaret's [`Relay`] for Kafka.
//!
//! Why messages keep the number of their partition, and how they come back: docs/decisions/0013-retry-topics.md.

mod startup;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::Partition;
use lazaret_core::relay::{Handover, Relay, RelayError, RelayTrouble};
use lazaret_core::source::SourceError;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::chain::{Chain, RetryTopics};
use crate::headers::{self, HeaderStyle};
use crate::options::KafkaOptions;

/// How long to wait for room in the producer's queue.
const ROOM: Duration = Duration::from_secs(1);
/// Records of any size are sent; it is the broker that refuses them.
const ANY_SIZE: &str = "1000000000";

/// The way to the retry topics and dead-letter topics of one consumer. Clones are the same relay.
///
/// ```no_run
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use lazaret_core::policy::{RetryPolicy, Strategy};
/// use lazaret_source_kafka::{KafkaOptions, KafkaRelay, KafkaSource, RetryTopics};
///
/// # async fn example() -> Result<(), lazaret_core::source::SourceError> {
/// let kafka = KafkaOptions::new("127.0.0.1:9092", "notification-service", ["case-events"]);
/// let minutes = |n| Duration::from_secs(60 * n);
/// let topics = RetryTopics::new("notification-service", [minutes(1), minutes(10)]).creating_topics();
///
/// let relay = KafkaRelay::open(&kafka, topics).await?;
/// let source = KafkaSource::open_with(kafka, &relay)?;
/// // Then, with the engine: Options { relay: Some(Arc::new(relay)), retry, ..Options::default() }
/// let retry = RetryPolicy { strategy: Strategy::Topics, initial_delay: minutes(1), ..RetryPolicy::default() };
/// # let _ = (source, retry, Arc::new(relay));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct KafkaRelay {
    inner: Arc<Inner>,
}

struct Inner {
    chain: Arc<Chain>,
    group: String,
    style: HeaderStyle,
    /// How many partitions each topic has.
    partitions: RwLock<HashMap<String, i32>>,
    /// What was found that works and is worth knowing.
    remarks: Vec<String>,
    config: ClientConfig,
    producer: Mutex<FutureProducer>,
    /// The settings of a client that asks.
    asking: ClientConfig,
}

impl KafkaRelay {
    /// Looks at the topics, makes those that are missing if it may, and gets ready to write. The error says what to do.
    ///
    /// A topic that is missing, compacted, that forgets its records before they are due, or that may not be written to is an
    /// error: what fails would have nowhere to go.
    pub async fn open(options: &KafkaOptions, topics: RetryTopics) -> Result<Self, SourceError> {
        let chain = Arc::new(Chain::new(&topics, &options.topics)?);
        let asking = options.asking_client()?;
        let found = startup::look(&asking, &chain, &topics).await?;
        let mut config = asking.clone();
        config
            .set("message.timeout.ms", topics.delivery_timeout.as_millis().to_string())
            .set("linger.ms", "2")
            .set("message.max.bytes", ANY_SIZE);
        for (name, value) in &topics.properties {
            config.set(name, value);
        }
        // What makes a record durable is not for choosing.
        config.set("enable.idempotence", "true").set("acks", "all");
        let producer = config.create().map_err(crate::source::refused)?;
        let inner = Inner {
            chain,
            group: options.group.clone(),
            style: topics.style,
            partitions: RwLock::new(found.partitions),
            remarks: found.remarks,
            config,
            producer: Mutex::new(producer),
            asking,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What was found at the start that works and is worth knowing, such as topics with fewer partitions than their stream.
    pub fn remarks(&self) -> &[String] {
        &self.inner.remarks
    }

    pub(crate) fn chain(&self) -> Arc<Chain> {
        self.inner.chain.clone()
    }

    /// Writes a record and waits until the broker has it.
    async fn write(&self, topic: &str, handover: &Handover<'_>) -> Result<(), RelayError> {
        let style = self.inner.style;
        let whole = self.send(topic, handover, style).await;
        match whole {
            // Our own headers may be what made it too large.
            Err(error) if error.trouble() == RelayTrouble::TooLarge => {
                self.send(topic, handover, HeaderStyle { least: true, ..style }).await
            }
            other => other,
        }
    }

    async fn send(&self, topic: &str, handover: &Handover<'_>, style: HeaderStyle) -> Result<(), RelayError> {
        let partition = self.partition(topic, handover)?;
        let producer = self.inner.producer.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let headers = headers_of(handover, &self.inner.group, style);
        let message = &handover.letter.message;
        let mut record: FutureRecord<'_, [u8], [u8]> =
            FutureRecord::to(topic).partition(partition).headers(headers);
        record.key = message.key.as_deref();
        record.payload = message.payload.as_deref();
        match producer.send(record, ROOM).await {
            Ok(delivery) => {
                let partition = Partition::new(topic, delivery.partition.unsigned_abs());
                self.inner.chain.wrote(partition, delivery.offset.unsigned_abs());
                Ok(())
            }
            Err((error, _)) => {
                let judged = judge(&error, topic);
                self.recover(&error, topic).await;
                Err(judged.with_source(error))
            }
        }
    }

    /// The partition of the same number, so that what was together stays together, whatever partitioner the producers of
    /// the stream use, and keys or not.
    fn partition(&self, topic: &str, handover: &Handover<'_>) -> Result<i32, RelayError> {
        let partitions = self.inner.partitions.read().unwrap_or_else(PoisonError::into_inner);
        let count = partitions.get(topic).copied().filter(|count| *count > 0).ok_or_else(|| {
            RelayError::not_done(
                RelayTrouble::Permanent,
                format!("the topic {topic} is not known; create it"),
            )
        })?;
        Ok((handover.letter.message.position.partition % count.unsigned_abs()) as i32)
    }

    /// Makes another attempt possible after an error that would come again otherwise.
    async fn recover(&self, error: &KafkaError, topic: &str) {
        match error.rdkafka_error_code() {
            // The producer does nothing more; what it had was answered.
            Some(Code::Fatal) => match self.inner.config.create() {
                Ok(producer) => {
                    *self.inner.producer.lock().unwrap_or_else(PoisonError::into_inner) = producer;
                }
                Err(error) => tracing::warn!(%error, "no new producer"),
            },
            Some(Code::UnknownPartition) => {
                if let Ok(count) = startup::count(&self.inner.asking, topic).await {
                    let mut partitions =
                        self.inner.partitions.write().unwrap_or_else(PoisonError::into_inner);
                    partitions.insert(topic.to_owned(), count);
                }
            }
            _ => {}
        }
    }

    fn links(&self, handover: &Handover<'_>) -> Result<&crate::chain::Links, RelayError> {
        let stream = handover.letter.message.stream.as_str();
        self.inner.chain.of_stream(stream).ok_or_else(|| {
            let why = format!("there are no retry topics for {stream}: it is not consumed any more");
            RelayError::not_done(RelayTrouble::Permanent, why)
        })
    }
}

/// The headers of the record that holds this message.
fn headers_of(handover: &Handover<'_>, group: &str, style: HeaderStyle) -> OwnedHeaders {
    let headers = headers::write(handover.letter, group, handover.same_failure, style);
    let owned = OwnedHeaders::new_with_capacity(headers.len());
    headers.iter_nullable().fold(owned, |owned, (key, value)| {
        owned.insert(Header { key, value: value.map(|value| value.as_ref()) })
    })
}

/// What an error means for the message.
fn judge(error: &KafkaError, topic: &str) -> RelayError {
    let Some(code) = error.rdkafka_error_code() else {
        return RelayError::maybe_done(RelayTrouble::Temporary, format!("{topic}: {error}"));
    };
    let permanent = |why: String| RelayError::not_done(RelayTrouble::Permanent, why);
    match code {
        Code::MessageSizeTooLarge | Code::InvalidMessageSize => RelayError::not_done(
            RelayTrouble::TooLarge,
            format!("{topic} does not take a record of this size"),
        ),
        Code::TopicAuthorizationFailed => {
            permanent(format!("writing to {topic} is denied; grant WRITE on it to this user"))
        }
        Code::ClusterAuthorizationFailed => {
            permanent(format!("writing to {topic} is denied; grant IDEMPOTENT_WRITE to this user"))
        }
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::InvalidTopic => {
            permanent(format!("the topic {topic} does not exist; create it"))
        }
        Code::PolicyViolation | Code::InvalidRecord => {
            permanent(format!("{topic} refuses the record: {error}"))
        }
        Code::QueueFull => {
            RelayError::not_done(RelayTrouble::Temporary, format!("too much waits to be written to {topic}"))
        }
        _ => RelayError::maybe_done(RelayTrouble::Temporary, format!("{topic}: {error}")),
    }
}

#[async_trait]
impl Relay for KafkaRelay {
    async fn retry(&self, handover: Handover<'_>) -> Result<(), RelayError> {
        let links = self.links(&handover)?;
        let tier = links.tier(handover.usual_delay).ok_or_else(|| {
            RelayError::not_done(RelayTrouble::Permanent, "there is no retry topic; name at least one delay")
        })?;
        self.write(&tier.topic, &handover).await
    }

    async fn dead(&self, handover: Handover<'_>) -> Result<(), RelayError> {
        let topic = self.links(&handover)?.dead.clone();
        self.write(&topic, &handover).await
    }

    fn is_expecting(&self) -> bool {
        self.inner.chain.is_expecting()
    }
}

impl fmt::Debug for KafkaRelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaRelay").field("group", &self.inner.group).finish_non_exhaustive()
    }
}
