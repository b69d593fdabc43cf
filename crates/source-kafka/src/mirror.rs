//! Mirrors dead letters to a topic: `dead-letter: { topic: … }`.
//!
//! The store stays the truth. A letter that ends is listed in the store's [outbox](Outbox) in the same step, and the mirror
//! works that list down: it writes a record, waits until the brokers have it, and only then forgets the entry. So a mirror that
//! dies repeats at most what it had just written, with the same `x-handoff-id`, and a broker that is away delays the mirror
//! and nobody else. Why it is done so: docs/decisions/0017-mirror-by-outbox.md.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lazaret_core::relay::{Handover, RelayError, RelayTrouble};
use lazaret_core::source::SourceError;
use lazaret_core::store::{End, Locks, Outbox, StoreError};
use lazaret_core::{Letter, LetterState, QueueName};
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::future_producer::DeliveryFuture;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use tokio::sync::watch;

use crate::headers::HeaderStyle;
use crate::membership::refused;
use crate::options::KafkaOptions;
use crate::relay::{ANY_SIZE, asker, count, headers_of, judge};

/// How many letters are written at once, so many at most are written again after a death (I7).
const BATCH: usize = 100;
/// How long to wait before the store is asked again when there was nothing.
const IDLE: Duration = Duration::from_millis(500);
/// How long to wait after trouble: at first, and at most.
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(10);
/// How long a record may take to the brokers. The lock outlasts it.
const DELIVERY: Duration = Duration::from_secs(10);
const LOCKED_FOR: Duration = Duration::from_secs(30);

/// How a mirror is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MirrorState {
    /// Letters that the topic has got since the mirror began.
    pub mirrored: u64,
    /// Letters that could not be mirrored for good: too large even with the least headers, without their payload, or purged
    /// before their turn. They are in the store.
    pub left_out: u64,
    /// How many ends wait to be mirrored.
    pub lag: u64,
    /// Another mirror of this queue and topic is at work; this one waits to take over.
    pub standby: bool,
    /// What is wrong now, while it is tried again.
    pub trouble: Option<String>,
}

/// Mirrors the dead letters of one queue to a topic.
///
/// Letters that end as `dead` are mirrored, those that are `parked` on [request](Self::with_parked), and those that are
/// quarantined never: they are held apart on purpose. Letters that were [adopted](crate::adopt) are in a topic already.
///
/// ```no_run
/// use lazaret_core::QueueName;
/// use lazaret_core::store::{Locks, Outbox};
/// use lazaret_source_kafka::{KafkaOptions, Mirror};
///
/// # async fn example(store: &(impl Outbox + Locks), stop: impl Future<Output = ()>) -> Result<(), lazaret_core::source::SourceError> {
/// let kafka = KafkaOptions::new("127.0.0.1:9092", "billing", ["orders"]);
/// let mirror = Mirror::of(&kafka, QueueName::of("billing", "billing"), "orders.billing.dlt").with_spring_headers();
/// let state = mirror.state();
/// // Beside the consumer, with the same store.
/// mirror.run(store, stop).await?;
/// println!("{} are mirrored, {} wait", state.borrow().mirrored, state.borrow().lag);
/// # Ok(())
/// # }
/// ```
pub struct Mirror {
    options: KafkaOptions,
    queue: QueueName,
    topic: String,
    style: HeaderStyle,
    parked: bool,
    instance: String,
    state: watch::Sender<MirrorState>,
}

impl Mirror {
    /// Mirrors the letters of this queue to this topic. The options are those of the consumer.
    pub fn of(consumer: &KafkaOptions, queue: QueueName, topic: impl Into<String>) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let time = jiff::Timestamp::now().as_nanosecond();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self {
            options: consumer.clone(),
            queue,
            topic: topic.into(),
            style: HeaderStyle::default(),
            parked: false,
            instance: format!("mirror-{}-{time}-{number}", std::process::id()),
            state: watch::Sender::default(),
        }
    }

    /// The same with `kafka_dlt-*` headers besides our own, for tools that know Spring's.
    #[must_use]
    pub fn with_spring_headers(mut self) -> Self {
        self.style.spring = true;
        self
    }

    /// The same with the text of errors as it is. Without this, what varies in it is masked.
    #[must_use]
    pub fn with_whole_text(mut self) -> Self {
        self.style.whole_text = true;
        self
    }

    /// The same, mirroring letters that are parked, too.
    #[must_use]
    pub fn with_parked(mut self) -> Self {
        self.parked = true;
        self
    }

    /// How it is doing, for those who watch it while it runs.
    pub fn state(&self) -> watch::Receiver<MirrorState> {
        self.state.subscribe()
    }

    /// Mirrors until `shutdown` ends. Begins with the letters that are dead now. Whatever passes is waited for, in a state
    /// that [tells](Self::state); of several mirrors of a queue one works.
    ///
    /// # Errors
    /// When it cannot begin: the topic does not exist or is denied, or a property makes no sense.
    pub async fn run<S: Outbox + Locks + ?Sized>(
        self,
        store: &S,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), SourceError> {
        let mut shutdown = pin!(shutdown);
        let mut rest = FIRST_REST;
        let mut writer = loop {
            let failed = match self.begin(store).await {
                Ok(writer) => break writer,
                Err(error) if !error.is_temporary() => return Err(error),
                Err(error) => error,
            };
            self.complain(&failed.to_string());
            tokio::select! {
                () = &mut shutdown => return Ok(()),
                () = tokio::time::sleep(rest) => rest = (rest * 2).min(LONGEST_REST),
            }
        };
        let lock = self.lock();
        let mut rest = FIRST_REST;
        loop {
            // Not cut off in the middle: what was written and not forgotten would be written again.
            let wait = match self.round(store, &mut writer, &lock).await {
                Ok(0) => IDLE,
                Ok(_) => Duration::ZERO,
                Err(why) => {
                    self.complain(&why);
                    rest
                }
            };
            rest = if wait == rest { (rest * 2).min(LONGEST_REST) } else { FIRST_REST };
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                () = tokio::time::sleep(wait) => {}
            }
        }
        if let Err(error) = Locks::release(store, &lock, &self.instance).await {
            tracing::debug!(%error, "the lock of a mirror was not given back; it expires");
        }
        Ok(())
    }

    fn lock(&self) -> String {
        format!("mirror/{}/{}", self.queue, self.topic)
    }

    fn complain(&self, why: &str) {
        tracing::warn!(queue = %self.queue, topic = self.topic, why, "dead letters are not mirrored now");
        self.state.send_modify(|state| state.trouble = Some(why.to_owned()));
    }

    /// Has the store list what ends, and looks at the topic.
    async fn begin<S: Outbox + ?Sized>(&self, store: &S) -> Result<Writer, SourceError> {
        // First of all: what ends from now on waits in the store, be the brokers there or not.
        store.watch_ends(&self.queue).await?;
        Writer::open(&self.options, &self.topic).await
    }

    /// Mirrors the next letters. Gives how many ends were worked off.
    async fn round<S: Outbox + Locks + ?Sized>(
        &self,
        store: &S,
        writer: &mut Writer,
        lock: &str,
    ) -> Result<usize, String> {
        let told = |error: StoreError| error.to_string();
        let locked = store.acquire(lock, &self.instance, LOCKED_FOR).await.map_err(told)?;
        self.state.send_modify(|state| state.standby = locked.is_none());
        if locked.is_none() {
            return Ok(0);
        }
        let page = store.ends(&self.queue, 0, BATCH).await.map_err(told)?;
        let waiting = page.ends.len() as u64 + page.left;
        self.state.send_modify(|state| state.lag = waiting);
        let ends = page.ends.len();
        let (done, outcome) = self.mirror(writer, page.ends).await;
        if let Some(number) = done.last() {
            store.forget_ends(&self.queue, *number).await.map_err(told)?;
        }
        self.state.send_modify(|state| state.lag = waiting - done.len() as u64);
        outcome?;
        self.state.send_modify(|state| state.trouble = None);
        Ok(ends)
    }

    /// Writes letters to the topic, all at once, and waits for them in their order. Gives the numbers of the ends that are
    /// done, up to the first that is not, and why that one is not.
    async fn mirror(&self, writer: &mut Writer, ends: Vec<End>) -> (Vec<u64>, Result<(), String>) {
        let mut sent = Vec::new();
        let mut failed = None;
        for end in ends {
            let number = end.number;
            match self.wanted(end) {
                None => sent.push((number, None)),
                Some(letter) => match writer.send(&letter, self.style) {
                    Ok(delivery) => sent.push((number, Some((letter, delivery)))),
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                },
            }
        }
        let mut done = Vec::new();
        for (number, delivery) in sent {
            if let Some((letter, delivery)) = delivery {
                match writer.delivered(&letter, delivery).await {
                    Ok(()) => self.state.send_modify(|state| state.mirrored += 1),
                    Err(error) if error.trouble() == RelayTrouble::TooLarge => {
                        self.note_left_out(&letter.id.to_string(), &error.to_string());
                    }
                    Err(error) => return (done, Err(error.to_string())),
                }
            }
            done.push(number);
        }
        (done, failed.map_or(Ok(()), |error| Err(error.to_string())))
    }

    /// The letter of an end as it was then, if it is to be mirrored.
    fn wanted(&self, end: End) -> Option<Letter> {
        let is_wanted = end.state == LetterState::Dead || (self.parked && end.state == LetterState::Parked);
        let id = end.id;
        let Some(mut letter) = end.letter else {
            if is_wanted {
                self.note_left_out(&id.to_string(), "it was purged before its turn");
            }
            return None;
        };
        if !is_wanted || letter.diagnostics.contains_key(crate::adopt::ADOPTED_FROM) {
            return None;
        }
        if letter.payload_left_out {
            self.note_left_out(&id.to_string(), "its consumer keeps no payloads");
            return None;
        }
        (letter.state, letter.attempts, letter.due_at) = (end.state, end.attempts, None);
        Some(letter)
    }

    fn note_left_out(&self, letter: &str, why: &str) {
        tracing::error!(queue = %self.queue, topic = self.topic, letter, why, "a letter cannot be mirrored");
        self.state.send_modify(|state| state.left_out += 1);
    }
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror")
            .field("queue", &self.queue)
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

/// Writes records to one topic, durably.
struct Writer {
    topic: String,
    group: String,
    partitions: u32,
    config: ClientConfig,
    producer: Arc<FutureProducer>,
}

impl Writer {
    async fn open(options: &KafkaOptions, topic: &str) -> Result<Self, SourceError> {
        let asking = options.asking_client()?;
        let partitions = count(&asker(&asking)?, topic).await.map_err(|error| missing(error, topic))?;
        let mut config = asking;
        config
            .set("message.timeout.ms", DELIVERY.as_millis().to_string())
            .set("linger.ms", "2")
            .set("message.max.bytes", ANY_SIZE)
            // What makes a record durable is not for choosing.
            .set("enable.idempotence", "true")
            .set("acks", "all");
        let producer = Arc::new(config.create().map_err(refused)?);
        let partitions = partitions.unsigned_abs().max(1);
        Ok(Self { topic: topic.to_owned(), group: options.group.clone(), partitions, config, producer })
    }

    /// Gives a record to the client.
    fn send(&self, letter: &Letter, style: HeaderStyle) -> Result<DeliveryFuture, RelayError> {
        let message = &letter.message;
        let from = message.partition();
        let handover = Handover {
            letter,
            same_failure: 1,
            usual_delay: Duration::ZERO,
            from: &from,
            offset: message.position.offset,
        };
        let partition = (message.position.partition % self.partitions) as i32;
        let headers = headers_of(&handover, &self.group, style);
        let mut record: FutureRecord<'_, [u8], [u8]> =
            FutureRecord::to(&self.topic).partition(partition).headers(headers);
        record.key = message.key.as_deref();
        record.payload = message.payload.as_deref();
        self.producer.send_result(record).map_err(|(error, _)| judge(&error, &self.topic))
    }

    /// Waits until the brokers have a record. One that is too large is written again with the least headers.
    async fn delivered(&mut self, letter: &Letter, delivery: DeliveryFuture) -> Result<(), RelayError> {
        match self.outcome(delivery).await {
            Err(error) if error.trouble() == RelayTrouble::TooLarge => {
                let least = HeaderStyle { least: true, ..HeaderStyle::default() };
                let delivery = self.send(letter, least)?;
                self.outcome(delivery).await
            }
            other => other,
        }
    }

    async fn outcome(&mut self, delivery: DeliveryFuture) -> Result<(), RelayError> {
        let canceled = || RelayError::maybe_done(RelayTrouble::Temporary, "the client dropped a record");
        match delivery.await.map_err(|_| canceled())? {
            Ok(_) => Ok(()),
            Err((error, _)) => {
                let error = self.recover().unwrap_or(error);
                Err(judge(&error, &self.topic).with_source(error))
            }
        }
    }

    /// A producer that met a fatal error does nothing more: it gives way to a new one. Gives that error, because what waits in
    /// such a producer is told something else.
    fn recover(&mut self) -> Option<KafkaError> {
        let (code, why) = self.producer.client().fatal_error()?;
        tracing::warn!(why, "the producer of a mirror gives up");
        match self.config.create() {
            Ok(producer) => self.producer = Arc::new(producer),
            Err(error) => tracing::warn!(%error, "no new producer"),
        }
        Some(KafkaError::MessageProduction(code))
    }
}

/// Why there is nothing to write to.
fn missing(error: KafkaError, topic: &str) -> SourceError {
    let advice = match error.rdkafka_error_code() {
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::InvalidTopic) => {
            format!("the topic {topic} of `dead-letter` does not exist; create it or correct its name")
        }
        Some(Code::TopicAuthorizationFailed) => {
            format!(
                "the topic {topic} of `dead-letter` is denied; grant DESCRIBE and WRITE on it to this user"
            )
        }
        _ => {
            let context = format!("the brokers do not tell about {topic}: {error}");
            return SourceError::temporary(context).with_source(error);
        }
    };
    SourceError::permanent(advice).with_source(error)
}
