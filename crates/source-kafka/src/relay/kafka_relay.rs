//! The relay. It writes one record per failed message, confirmed by the broker.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::Partition;
use lazaret_core::relay::{Handover, Relay, RelayError, RelayErrorKind};
use lazaret_core::source::SourceError;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{FutureProducer, FutureRecord};
use tokio::sync::watch;

use super::counts::{self, CountedTopics, RelayCounts};
use super::preflight;
use super::transactions::{NotRelayed, RelayedRecord, Transactions};
use crate::claim_check;
use crate::client::metadata::{metadata_client, partition_count};
use crate::client::producer::{classify_produce_error, durable_producer, record_headers};
use crate::error::config_error;
use crate::headers::HeaderStyle;
use crate::options::KafkaOptions;
use crate::retry_topics::RetryTopics;
use crate::topology::{StreamTopics, Topology};

/// How long to wait for space in the producer's queue.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(1);
/// The default transaction timeout. Readers wait this long for the open transaction of a crashed producer.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(20);

/// Writes to the retry topics and dead-letter topics of one consumer. Clones share one producer.
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
/// let minutes = |n: u64| Duration::from_secs(60 * n);
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
    topology: Arc<Topology>,
    group: String,
    header_style: HeaderStyle,
    /// The number of partitions of each topic.
    partitions: RwLock<HashMap<String, i32>>,
    remarks: Vec<String>,
    /// The settings of the producer.
    config: ClientConfig,
    writer: Writer,
    connection: ClientConfig,
}

/// The way in which records are written.
enum Writer {
    /// Writes each record by itself.
    Plain(Mutex<FutureProducer>),
    /// Writes each record together with the position that it settles.
    Transactions(Arc<Transactions>),
}

impl KafkaRelay {
    /// Checks the topics, creates missing ones if allowed, and opens a producer.
    ///
    /// # Errors
    /// When a topic is missing, compacted or denied, or deletes its records before they are due, because
    /// failed messages could not be stored there. The error names the remedy.
    pub async fn open(options: &KafkaOptions, topics: RetryTopics) -> Result<Self, SourceError> {
        let topology = Arc::new(Topology::new(&topics, &options.topics)?);
        let connection = options.connection()?;
        let checked = preflight::run(options, &connection, &topology, &topics).await?;
        let mut config = durable_producer(&connection, topics.delivery_timeout, &topics.properties);
        let writer = writer(options, &topics, &mut config)?;
        let inner = Inner {
            topology,
            group: options.group.clone(),
            header_style: topics.header_style,
            partitions: RwLock::new(checked.partitions),
            remarks: checked.remarks,
            config,
            writer,
            connection,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns remarks from the checks, for example on topics with fewer partitions than their stream.
    pub fn remarks(&self) -> &[String] {
        &self.inner.remarks
    }

    /// Counts the records of the topics in the broker, now and at this interval, until the relay is
    /// dropped. The value is `None` while the broker does not answer. Must be called within a tokio
    /// runtime.
    pub fn watch_counts(&self, interval: Duration) -> watch::Receiver<Option<RelayCounts>> {
        let partitions = self.inner.partitions.read().unwrap_or_else(PoisonError::into_inner).clone();
        let of_topic = |topic: &str| partitions.get(topic).copied().unwrap_or(0);
        let topics = CountedTopics::new(&self.inner.topology, of_topic);
        let (owner, config) = (Arc::downgrade(&self.inner), self.inner.connection.clone());
        counts::watch(owner, config, &self.inner.group, topics, interval)
    }

    pub(crate) fn topology(&self) -> Arc<Topology> {
        self.inner.topology.clone()
    }

    /// Returns the transactions that commit positions, if the relay uses them.
    pub(crate) fn transactions(&self) -> Option<Arc<Transactions>> {
        match &self.inner.writer {
            Writer::Plain(_) => None,
            Writer::Transactions(transactions) => Some(transactions.clone()),
        }
    }

    /// Writes a record and waits for the broker's confirmation.
    async fn write(&self, topic: &str, handover: &Handover<'_>) -> Result<(), RelayError> {
        let style = self.inner.header_style;
        match self.send(topic, handover, style).await {
            // Lazaret's headers may have made the record too large.
            Err(error) if error.kind() == RelayErrorKind::TooLarge => {
                self.send(topic, handover, HeaderStyle { minimal: true, ..style }).await
            }
            other => other,
        }
    }

    async fn send(&self, topic: &str, handover: &Handover<'_>, style: HeaderStyle) -> Result<(), RelayError> {
        let partition = self.partition(topic, handover)?;
        let headers = record_headers(handover.letter, &self.inner.group, handover.same_failure, style);
        let message = &handover.letter.message;
        let (partition, offset) = match &self.inner.writer {
            Writer::Plain(producer) => {
                let producer = producer.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let record: FutureRecord<'_, [u8], [u8]> = FutureRecord {
                    key: message.key.as_deref(),
                    payload: message.payload.as_deref(),
                    ..FutureRecord::to(topic).partition(partition).headers(headers)
                };
                match producer.send(record, QUEUE_TIMEOUT).await {
                    Ok(delivery) => (delivery.partition, delivery.offset.unsigned_abs()),
                    Err((error, _)) => {
                        let classified = classify_produce_error(&error, topic);
                        self.recover(&error, topic).await;
                        return Err(classified.with_source(error));
                    }
                }
            }
            Writer::Transactions(transactions) => {
                let record = RelayedRecord {
                    topic: topic.to_owned(),
                    partition,
                    headers,
                    message: message.clone(),
                    settles: (!style.claim_check).then(|| (handover.from.clone(), handover.offset)),
                };
                let written = transactions.relay(record).await.map_err(|reason| relay_error(reason, topic));
                (partition, written?)
            }
        };
        self.inner.topology.record_write(Partition::new(topic, partition.unsigned_abs()), offset);
        Ok(())
    }

    /// Returns the partition with the same number as the original one. Messages of one partition
    /// therefore stay together, whatever partitioner the stream's producers use, with or without keys.
    fn partition(&self, topic: &str, handover: &Handover<'_>) -> Result<i32, RelayError> {
        let partitions = self.inner.partitions.read().unwrap_or_else(PoisonError::into_inner);
        let count = partitions.get(topic).copied().filter(|count| *count > 0).ok_or_else(|| {
            RelayError::not_done(
                RelayErrorKind::Permanent,
                format!("the topic {topic} does not exist; create it"),
            )
        })?;
        Ok((handover.letter.message.position.partition % count.unsigned_abs()) as i32)
    }

    /// Recovers from errors that would otherwise repeat. Replaces a failed producer, and updates the
    /// number of partitions.
    async fn recover(&self, error: &KafkaError, topic: &str) {
        match error.rdkafka_error_code() {
            // After a fatal error, the producer sends nothing more. Its queued records have failed.
            Some(Code::Fatal) => match (self.inner.config.create(), &self.inner.writer) {
                (Ok(new), Writer::Plain(producer)) => {
                    *producer.lock().unwrap_or_else(PoisonError::into_inner) = new;
                }
                (Ok(_), Writer::Transactions(_)) => {}
                (Err(error), _) => tracing::warn!(%error, "producer not replaced"),
            },
            Some(Code::UnknownPartition) => {
                if let Ok(client) = metadata_client(&self.inner.connection)
                    && let Ok(count) = partition_count(&client, topic).await
                {
                    let mut partitions =
                        self.inner.partitions.write().unwrap_or_else(PoisonError::into_inner);
                    partitions.insert(topic.to_owned(), count);
                }
            }
            _ => {}
        }
    }

    fn topics_of(&self, handover: &Handover<'_>) -> Result<&StreamTopics, RelayError> {
        let stream = handover.letter.message.stream.as_str();
        self.inner.topology.of_stream(stream).ok_or_else(|| {
            let reason = format!("{stream} has no retry topics: it is no longer consumed");
            RelayError::not_done(RelayErrorKind::Permanent, reason)
        })
    }
}

/// Opens the producer.
fn writer(
    options: &KafkaOptions,
    topics: &RetryTopics,
    config: &mut ClientConfig,
) -> Result<Writer, SourceError> {
    let Some(id) = &topics.transactional_id else {
        return Ok(Writer::Plain(Mutex::new(config.create().map_err(config_error)?)));
    };
    if !options.reads_committed() {
        let rule =
            "with transactions, isolation.level must be read_committed; otherwise aborted records are read";
        return Err(SourceError::permanent(rule));
    }
    config.set("transactional.id", id);
    if config.get("transaction.timeout.ms").is_none() {
        let timeout = TRANSACTION_TIMEOUT.max(topics.delivery_timeout * 2);
        config.set("transaction.timeout.ms", timeout.as_millis().to_string());
    }
    let started = Transactions::start(config.clone(), topics.hook.clone()).map_err(|error| {
        SourceError::temporary(format!("failed to start the transaction thread: {error}")).with_source(error)
    })?;
    Ok(Writer::Transactions(Arc::new(started)))
}

/// Converts the reason why a transaction did not relay a message.
fn relay_error(reason: NotRelayed, topic: &str) -> RelayError {
    match reason {
        NotRelayed::Revoked => {
            RelayError::not_done(RelayErrorKind::Fenced, "the partition of the message was revoked")
        }
        // The transaction was aborted, so nothing was written, whatever the error.
        NotRelayed::NotDone(error) => {
            let classified = classify_produce_error(&error, topic);
            RelayError::not_done(classified.kind(), format!("{topic}: {error}")).with_source(error)
        }
        NotRelayed::MaybeDone(error) => classify_produce_error(&error, topic).with_source(error),
    }
}

#[async_trait]
impl Relay for KafkaRelay {
    async fn retry(&self, handover: Handover<'_>) -> Result<(), RelayError> {
        let topics = self.topics_of(&handover)?;
        let tier = topics.tier(handover.usual_delay).ok_or_else(|| {
            RelayError::not_done(
                RelayErrorKind::Permanent,
                "no retry topics are configured; name at least one delay",
            )
        })?;
        self.write(&tier.topic, &handover).await
    }

    async fn dead(&self, handover: Handover<'_>) -> Result<(), RelayError> {
        let topic = self.topics_of(&handover)?.dead_letter.clone();
        self.write(&topic, &handover).await
    }

    async fn claim(&self, handover: Handover<'_>) -> Result<(), RelayError> {
        let topic = self.topics_of(&handover)?.dead_letter.clone();
        let letter = claim_check::of(handover.letter);
        self.send(
            &topic,
            &Handover { letter: &letter, ..handover },
            claim_check::style(self.inner.header_style),
        )
        .await
    }

    fn is_expecting(&self) -> bool {
        self.inner.topology.is_expecting()
    }
}

impl fmt::Debug for KafkaRelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaRelay").field("group", &self.inner.group).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aborted_transaction_wrote_nothing_whatever_the_error() {
        let error = KafkaError::MessageProduction(Code::MessageTimedOut);
        assert!(!relay_error(NotRelayed::NotDone(error.clone()), "t").is_maybe_done());
        assert!(relay_error(NotRelayed::MaybeDone(error), "t").is_maybe_done());
        assert_eq!(relay_error(NotRelayed::Revoked, "t").kind(), RelayErrorKind::Fenced);
    }
}
