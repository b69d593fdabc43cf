//! Writes what failed to retry topics and dead-letter topics, durably: Lazaret's [`Relay`] for Kafka.
//!
//! Why messages keep the number of their partition, and how they come back: docs/decisions/0015-retry-topics.md.

mod ledger;
mod startup;
mod transaction;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::relay::{Handover, Relay, RelayError, RelayTrouble};
use lazaret_core::source::SourceError;
use lazaret_core::{Headers, Letter, Message, Partition};
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};

pub(crate) use self::ledger::Standing;
pub(crate) use self::transaction::{Hook, Transactions};
use self::transaction::{Passed, Refused};
use crate::chain::{Chain, RetryTopics};
use crate::headers::{self, HeaderStyle};
use crate::options::KafkaOptions;

pub(crate) use startup::{asker, count};

/// How long to wait for room in the producer's queue.
const ROOM: Duration = Duration::from_secs(1);
/// How long a transaction may take: when its producer died, nobody reads on before that.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest key that is written on a record which only says where the message is.
const CLAIM_KEY: usize = 1024;
/// Records of any size are sent; it is the broker that refuses them.
pub(crate) const ANY_SIZE: &str = "1000000000";

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
    chain: Arc<Chain>,
    group: String,
    style: HeaderStyle,
    /// How many partitions each topic has.
    partitions: RwLock<HashMap<String, i32>>,
    /// What was found that works and is worth knowing.
    remarks: Vec<String>,
    config: ClientConfig,
    writer: Writer,
    /// The settings of a client that asks.
    asking: ClientConfig,
}

/// Who writes records.
enum Writer {
    /// Each by itself.
    Plain(Mutex<FutureProducer>),
    /// Together with the position that it settles.
    Transactions(Arc<Transactions>),
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
        let writer = writer(options, &topics, &mut config)?;
        let inner = Inner {
            chain,
            group: options.group.clone(),
            style: topics.style,
            partitions: RwLock::new(found.partitions),
            remarks: found.remarks,
            config,
            writer,
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

    /// Who commits positions, if it is not the member of the group.
    pub(crate) fn transactions(&self) -> Option<Arc<Transactions>> {
        match &self.inner.writer {
            Writer::Plain(_) => None,
            Writer::Transactions(transactions) => Some(transactions.clone()),
        }
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
        let headers = headers_of(handover, &self.inner.group, style);
        let message = &handover.letter.message;
        let (partition, offset) = match &self.inner.writer {
            Writer::Plain(producer) => {
                let producer = producer.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let record: FutureRecord<'_, [u8], [u8]> = FutureRecord {
                    key: message.key.as_deref(),
                    payload: message.payload.as_deref(),
                    ..FutureRecord::to(topic).partition(partition).headers(headers)
                };
                match producer.send(record, ROOM).await {
                    Ok(delivery) => (delivery.partition, delivery.offset.unsigned_abs()),
                    Err((error, _)) => {
                        let judged = judge(&error, topic);
                        self.recover(&error, topic).await;
                        return Err(judged.with_source(error));
                    }
                }
            }
            Writer::Transactions(transactions) => {
                let passed = Passed {
                    topic: topic.to_owned(),
                    partition,
                    headers,
                    message: message.clone(),
                    from: handover.from.clone(),
                    offset: handover.offset,
                };
                let written =
                    transactions.pass(passed).await.map_err(|refused| judge_refusal(refused, topic));
                (partition, written?)
            }
        };
        self.inner.chain.wrote(Partition::new(topic, partition.unsigned_abs()), offset);
        Ok(())
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
            Some(Code::Fatal) => match (self.inner.config.create(), &self.inner.writer) {
                (Ok(new), Writer::Plain(producer)) => {
                    *producer.lock().unwrap_or_else(PoisonError::into_inner) = new;
                }
                (Ok(_), Writer::Transactions(_)) => {}
                (Err(error), _) => tracing::warn!(%error, "no new producer"),
            },
            Some(Code::UnknownPartition) => {
                if let Ok(client) = asker(&self.inner.asking)
                    && let Ok(count) = count(&client, topic).await
                {
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
pub(crate) fn headers_of(handover: &Handover<'_>, group: &str, style: HeaderStyle) -> OwnedHeaders {
    let headers = headers::write(handover.letter, group, handover.same_failure, style);
    let owned = OwnedHeaders::new_with_capacity(headers.len());
    headers.iter_nullable().fold(owned, |owned, (key, value)| {
        owned.insert(Header { key, value: value.map(|value| value.as_ref()) })
    })
}

/// Makes whoever writes records.
fn writer(
    options: &KafkaOptions,
    topics: &RetryTopics,
    config: &mut ClientConfig,
) -> Result<Writer, SourceError> {
    let Some(id) = &topics.transactional_id else {
        return Ok(Writer::Plain(Mutex::new(config.create().map_err(crate::membership::refused)?)));
    };
    if !options.reads_committed() {
        let why = "in transactions, isolation.level must be read_committed; else what was not passed on in the end is read";
        return Err(SourceError::permanent(why));
    }
    config.set("transactional.id", id);
    // How long others wait for one that died.
    if config.get("transaction.timeout.ms").is_none() {
        let timeout = TRANSACTION_TIMEOUT.max(topics.delivery_timeout * 2);
        config.set("transaction.timeout.ms", timeout.as_millis().to_string());
    }
    let started = Transactions::start(config.clone(), topics.hook.clone()).map_err(|error| {
        SourceError::temporary(format!("no thread for transactions: {error}")).with_source(error)
    })?;
    Ok(Writer::Transactions(Arc::new(started)))
}

/// What it means that a transaction did not pass a message on.
fn judge_refusal(refused: Refused, topic: &str) -> RelayError {
    match refused {
        Refused::Lost => RelayError::not_done(RelayTrouble::Fenced, "the partition is not ours any more"),
        // The transaction was aborted: whatever went wrong, nothing of it is there.
        Refused::NotDone(error) => {
            let judged = judge(&error, topic);
            RelayError::not_done(judged.trouble(), format!("{topic}: {error}")).with_source(error)
        }
        Refused::MaybeDone(error) => judge(&error, topic).with_source(error),
    }
}

/// What an error means for the message.
pub(crate) fn judge(error: &KafkaError, topic: &str) -> RelayError {
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
        Code::ProducerFenced | Code::Fenced | Code::UnknownMemberId | Code::FencedInstanceId => {
            RelayError::maybe_done(RelayTrouble::Fenced, format!("another instance took over: {error}"))
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

    async fn claim(&self, handover: Handover<'_>) -> Result<(), RelayError> {
        let topic = self.links(&handover)?.dead.clone();
        let Letter { id, queue, message, .. } = handover.letter;
        // Text, and not null: somebody who does not read headers must not take it for a tombstone.
        let payload =
            format!("too large for this topic: letter {id} of {queue} in Lazaret's store holds the message");
        let key = message.key.clone().filter(|key| key.len() <= CLAIM_KEY);
        let small =
            Message { key, payload: Some(payload.into()), headers: Headers::new(), ..(**message).clone() };
        let letter = Letter { message: Arc::new(small), ..handover.letter.clone() };
        let style = HeaderStyle { least: true, claim: true, ..self.inner.style };
        self.send(&topic, &Handover { letter: &letter, ..handover }, style).await
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

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(code: Code) -> RelayError {
        judge(&KafkaError::MessageProduction(code), "orders.mail.dlt")
    }

    #[test]
    fn what_does_not_pass_says_what_to_do_and_was_not_done() {
        for (code, word) in [
            (Code::TopicAuthorizationFailed, "grant WRITE"),
            (Code::ClusterAuthorizationFailed, "grant IDEMPOTENT_WRITE"),
            (Code::UnknownTopicOrPartition, "create it"),
            (Code::PolicyViolation, "refuses"),
        ] {
            let error = judged(code);
            assert_eq!((error.trouble(), error.is_maybe_done()), (RelayTrouble::Permanent, false), "{error}");
            assert!(
                error.to_string().contains(word) && error.to_string().contains("orders.mail.dlt"),
                "{error}"
            );
        }
        assert_eq!(judged(Code::MessageSizeTooLarge).trouble(), RelayTrouble::TooLarge);
    }

    #[test]
    fn what_timed_out_may_have_happened() {
        // I8: it is sent again under the same id.
        for code in [Code::MessageTimedOut, Code::NotEnoughReplicasAfterAppend, Code::BrokerTransportFailure]
        {
            let error = judged(code);
            assert_eq!((error.trouble(), error.is_maybe_done()), (RelayTrouble::Temporary, true), "{error}");
        }
        assert!(!judged(Code::QueueFull).is_maybe_done());
        assert_eq!(judged(Code::ProducerFenced).trouble(), RelayTrouble::Fenced);
    }

    #[test]
    fn a_transaction_that_was_aborted_did_nothing_whatever_went_wrong() {
        let error = KafkaError::MessageProduction(Code::MessageTimedOut);
        assert!(!judge_refusal(Refused::NotDone(error.clone()), "t").is_maybe_done());
        assert!(judge_refusal(Refused::MaybeDone(error), "t").is_maybe_done());
        assert_eq!(judge_refusal(Refused::Lost, "t").trouble(), RelayTrouble::Fenced);
    }
}
