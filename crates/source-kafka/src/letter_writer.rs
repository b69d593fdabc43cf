//! Writes letters to a topic, durably.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::Letter;
use lazaret_core::relay::{RelayError, RelayErrorKind};
use lazaret_core::source::SourceError;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::future_producer::DeliveryFuture;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};

use crate::claim_check;
use crate::client::metadata::{TopicWait, metadata_client};
use crate::client::producer::{classify_produce_error, durable_producer, record_headers};
use crate::error::config_error;
use crate::headers::HeaderStyle;
use crate::options::KafkaOptions;

/// Writes letters to one topic, each as a record with Lazaret's [headers](crate::headers). A letter goes
/// to the partition with the same number as its original partition.
///
/// ```no_run
/// use std::time::Duration;
/// use lazaret_core::Letter;
/// use lazaret_source_kafka::headers::HeaderStyle;
/// use lazaret_source_kafka::{KafkaOptions, LetterWriter};
///
/// # async fn example(letters: &[Letter]) -> Result<(), Box<dyn std::error::Error>> {
/// let options = KafkaOptions::new("127.0.0.1:9092", "billing", ["orders"]);
/// let mut writer = LetterWriter::open(&options, "orders.billing.dlt", Duration::from_secs(10)).await?;
/// let mut sent = Vec::new();
/// for letter in letters {
///     sent.push((letter, writer.send(letter, HeaderStyle::default())?));
/// }
/// for (letter, delivery) in sent {
///     writer.confirm(letter, delivery).await?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct LetterWriter {
    topic: String,
    group: String,
    partitions: u32,
    config: ClientConfig,
    producer: Arc<FutureProducer>,
}

/// A record that was sent and is not yet confirmed.
pub struct Delivery(DeliveryFuture);

impl LetterWriter {
    /// Opens a producer for a topic. The options are the options of the consumer whose letters are
    /// written. Each record is confirmed or fails within the timeout. A topic that does not exist yet is
    /// [waited for](KafkaOptions::with_topic_timeout).
    ///
    /// # Errors
    /// When the topic does not exist or is denied, the brokers are unreachable, or a property is invalid.
    pub async fn open(
        options: &KafkaOptions,
        topic: impl Into<String>,
        delivery_timeout: Duration,
    ) -> Result<Self, SourceError> {
        let topic = topic.into();
        let connection = options.connection()?;
        let client = metadata_client(&connection)?;
        let partitions = TopicWait::new(options).partition_count(&client, &topic).await;
        let partitions = partitions.map_err(|error| open_error(error, &topic))?;
        let config = durable_producer(&connection, delivery_timeout, &[]);
        let producer = Arc::new(config.create().map_err(config_error)?);
        let partitions = partitions.unsigned_abs().max(1);
        Ok(Self { topic, group: options.group.clone(), partitions, config, producer })
    }

    /// Queues a record for a letter.
    ///
    /// # Errors
    /// When the record cannot be queued. Nothing was written then.
    pub fn send(&self, letter: &Letter, style: HeaderStyle) -> Result<Delivery, RelayError> {
        let message = &letter.message;
        let partition = (message.position.partition % self.partitions) as i32;
        // A letter that failed without a recorded attempt counts as failed once.
        let headers = record_headers(letter, &self.group, letter.same_failures().max(1), style);
        let mut record: FutureRecord<'_, [u8], [u8]> =
            FutureRecord::to(&self.topic).partition(partition).headers(headers);
        record.key = message.key.as_deref();
        record.payload = message.payload.as_deref();
        let sent = self.producer.send_result(record);
        sent.map(Delivery).map_err(|(error, _)| classify_produce_error(&error, &self.topic))
    }

    /// Waits until the brokers confirm a record. A record that is too large is written again with
    /// minimal headers.
    ///
    /// # Errors
    /// When the record was not written, or may not have been written.
    pub async fn confirm(&mut self, letter: &Letter, delivery: Delivery) -> Result<(), RelayError> {
        match self.outcome(delivery).await {
            Err(error) if error.kind() == RelayErrorKind::TooLarge => {
                let minimal = HeaderStyle { minimal: true, ..HeaderStyle::default() };
                let delivery = self.send(letter, minimal)?;
                self.outcome(delivery).await
            }
            other => other,
        }
    }

    /// Writes a claim check for a letter that is too large for the topic: a small record that names the
    /// letter in the store. Returns when the brokers have confirmed it.
    ///
    /// # Errors
    /// When the record was not written, or may not have been written.
    pub async fn claim(&mut self, letter: &Letter, style: HeaderStyle) -> Result<(), RelayError> {
        let delivery = self.send(&claim_check::of(letter), claim_check::style(style))?;
        self.outcome(delivery).await
    }

    async fn outcome(&mut self, Delivery(delivery): Delivery) -> Result<(), RelayError> {
        let canceled = || RelayError::maybe_done(RelayErrorKind::Temporary, "the client dropped a record");
        match delivery.await.map_err(|_| canceled())? {
            Ok(_) => Ok(()),
            Err((error, _)) => {
                let error = self.replace_failed_producer().unwrap_or(error);
                Err(classify_produce_error(&error, &self.topic).with_source(error))
            }
        }
    }

    /// Replaces a producer that had a fatal error, because it sends nothing more. Returns that error,
    /// because the records queued in the producer fail with a different one.
    fn replace_failed_producer(&mut self) -> Option<KafkaError> {
        let (code, reason) = self.producer.client().fatal_error()?;
        tracing::warn!(topic = self.topic, reason, "producer failed and was replaced");
        match self.config.create() {
            Ok(producer) => self.producer = Arc::new(producer),
            Err(error) => tracing::warn!(topic = self.topic, %error, "producer not replaced"),
        }
        Some(KafkaError::MessageProduction(code))
    }
}

impl fmt::Debug for LetterWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LetterWriter").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Delivery")
    }
}

/// Converts an error of the metadata request.
fn open_error(error: KafkaError, topic: &str) -> SourceError {
    let remedy = match error.rdkafka_error_code() {
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::InvalidTopic) => {
            format!("the topic {topic} of `dead-letter` does not exist; create it or correct its name")
        }
        Some(Code::TopicAuthorizationFailed) => {
            format!(
                "the topic {topic} of `dead-letter` is denied; grant DESCRIBE and WRITE on it to this user"
            )
        }
        _ => {
            let context = format!("failed to fetch the metadata of {topic}: {error}");
            return SourceError::temporary(context).with_source(error);
        }
    };
    SourceError::permanent(remedy).with_source(error)
}
