//! Mirrors dead letters to a topic: `dead-letter: { topic: … }`.
//!
//! The store stays the source of truth. A letter that ends is listed in the store's [outbox](Outbox) in
//! the same transaction, and the mirror processes that list. It writes a record, waits until the brokers
//! confirm it, and only then removes the entry. A mirror that crashes therefore repeats at most its last
//! batch, with the same `x-handoff-id`, and an unreachable broker delays only the mirror. For the
//! reasons, see docs/decisions/0017-mirror-by-outbox.md.
//!
//! The mirror is not part of the Kafka source: it reads a store, and uses the source's [`LetterWriter`]
//! to write. It is in this crate because it reverses adoption, and must skip letters that were
//! [adopted](crate::kafka).

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder, Retryable};
use lazaret_core::relay::RelayErrorKind;
use lazaret_core::source::SourceError;
use lazaret_core::store::{End, Locks, Outbox, StoreError};
use lazaret_core::{Letter, LetterState, QueueName, Timestamp};
use lazaret_source_kafka::headers::HeaderStyle;
use lazaret_source_kafka::{KafkaOptions, LetterWriter};
use tokio::sync::watch;

use crate::target::ADOPTED_FROM;

/// The number of letters per batch, which is also the maximum that is written again after a crash (I7).
const BATCH: usize = 100;
/// The interval at which the store is polled when the outbox is empty.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The delays between attempts after an error.
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(100))
    .with_max_delay(Duration::from_secs(10))
    .with_factor(2.0)
    .without_max_times();
/// The time that the brokers may take to confirm a record. The lock is held longer.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_TTL: Duration = Duration::from_secs(30);

/// The state of a [`Mirror`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MirrorState {
    /// The number of letters written since the mirror started.
    pub mirrored: u64,
    /// The number of letters that are too large for the topic. A claim check that names the letter in
    /// the store was written instead.
    pub claimed: u64,
    /// The number of letters that cannot be mirrored: stored without their payload, purged before they
    /// were written, or too large even with a claim check.
    pub skipped: u64,
    /// The number of letters waiting to be mirrored.
    pub lag: u64,
    /// Whether another mirror of this queue and topic is active. This one then waits to take over.
    pub standby: bool,
    /// The current error while it is retried.
    pub error: Option<String>,
}

/// Mirrors the dead letters of one queue to a topic.
///
/// Mirrors letters that end as `dead`, and [optionally](Self::with_parked) as `parked`. Quarantined
/// letters are never mirrored, because they are isolated on purpose. [Adopted](crate::kafka) letters are
/// in a topic already.
///
/// ```no_run
/// use lazaret_adopt::mirror::Mirror;
/// use lazaret_core::QueueName;
/// use lazaret_core::store::{Locks, Outbox};
/// use lazaret_source_kafka::KafkaOptions;
///
/// # async fn example(store: &(impl Outbox + Locks), stop: impl Future<Output = ()>) -> Result<(), lazaret_core::source::SourceError> {
/// let kafka = KafkaOptions::new("127.0.0.1:9092", "billing", ["orders"]);
/// let mirror = Mirror::of(&kafka, QueueName::of("billing", "billing"), "orders.billing.dlt").with_spring_headers();
/// let state = mirror.state();
/// // Beside the consumer, with the same store.
/// mirror.run(store, stop).await?;
/// println!("{} mirrored, {} wait", state.borrow().mirrored, state.borrow().lag);
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
    /// Creates a mirror of this queue to this topic. The options are the consumer's.
    pub fn of(consumer: &KafkaOptions, queue: QueueName, topic: impl Into<String>) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let time = Timestamp::now().as_nanosecond();
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

    /// Adds Spring Kafka's `kafka_dlt-*` headers, for tools that read them.
    #[must_use]
    pub fn with_spring_headers(mut self) -> Self {
        self.style.spring = true;
        self
    }

    /// Writes error messages unmasked. By default, their variable parts are masked.
    #[must_use]
    pub fn with_unmasked_errors(mut self) -> Self {
        self.style.unmasked_errors = true;
        self
    }

    /// Also mirrors parked letters.
    #[must_use]
    pub fn with_parked(mut self) -> Self {
        self.parked = true;
        self
    }

    /// Returns the state, for monitoring the running mirror.
    pub fn state(&self) -> watch::Receiver<MirrorState> {
        self.state.subscribe()
    }

    /// Mirrors until `shutdown` completes, starting with the letters that are dead now. Temporary errors
    /// are retried and shown in the [state](Self::state). Of several mirrors of the same queue and
    /// topic, only one is active.
    ///
    /// # Errors
    /// When the mirror cannot start, because the topic does not exist or is denied, or a property is invalid.
    pub async fn run<S: Outbox + Locks + ?Sized>(
        self,
        store: &S,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), SourceError> {
        let mut shutdown = pin!(shutdown);
        let start = || self.start(store);
        let start = start
            .retry(BACKOFF)
            .when(SourceError::is_temporary)
            .notify(|error: &SourceError, _| self.report_error(&error.to_string()));
        let mut writer = tokio::select! {
            biased;
            writer = start => writer?,
            () = &mut shutdown => return Ok(()),
        };
        let lock = self.lock();
        let mut delays = BACKOFF.build();
        loop {
            // Not cancelled, because records that were written but not removed from the outbox would be
            // written again.
            let wait = match self.process_batch(store, &mut writer, &lock).await {
                Ok(ends) => {
                    delays = BACKOFF.build();
                    if ends == 0 { POLL_INTERVAL } else { Duration::ZERO }
                }
                Err(error) => {
                    self.report_error(&error);
                    delays.next().unwrap_or(POLL_INTERVAL)
                }
            };
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                () = tokio::time::sleep(wait) => {}
            }
        }
        if let Err(error) = Locks::release(store, &lock, &self.instance).await {
            tracing::debug!(%error, "mirror lock not released, it will expire");
        }
        Ok(())
    }

    fn lock(&self) -> String {
        format!("mirror/{}/{}", self.queue, self.topic)
    }

    fn report_error(&self, error: &str) {
        tracing::warn!(queue = %self.queue, topic = self.topic, error, "mirroring failed, retrying");
        self.state.send_modify(|state| state.error = Some(error.to_owned()));
    }

    /// Enables the outbox of the queue and opens the writer.
    async fn start<S: Outbox + ?Sized>(&self, store: &S) -> Result<LetterWriter, SourceError> {
        // This comes first: from now on ended letters are listed, whether or not the brokers are reachable.
        store.watch_ends(&self.queue).await?;
        LetterWriter::open(&self.options, &self.topic, DELIVERY_TIMEOUT).await
    }

    /// Mirrors the next letters. Returns the number of outbox entries that it read.
    async fn process_batch<S: Outbox + Locks + ?Sized>(
        &self,
        store: &S,
        writer: &mut LetterWriter,
        lock: &str,
    ) -> Result<usize, String> {
        let text = |error: StoreError| error.to_string();
        let locked = store.acquire(lock, &self.instance, LOCK_TTL).await.map_err(text)?;
        self.state.send_modify(|state| state.standby = locked.is_none());
        if locked.is_none() {
            return Ok(0);
        }
        let page = store.ends(&self.queue, 0, BATCH).await.map_err(text)?;
        let waiting = page.ends.len() as u64 + page.left;
        self.state.send_modify(|state| state.lag = waiting);
        let ends = page.ends.len();
        let (done, outcome) = self.write(writer, page.ends).await;
        if let Some(number) = done.last() {
            store.forget_ends(&self.queue, *number).await.map_err(text)?;
        }
        self.state.send_modify(|state| state.lag = waiting - done.len() as u64);
        outcome?;
        self.state.send_modify(|state| state.error = None);
        Ok(ends)
    }

    /// Writes letters to the topic, pipelined, and waits for the confirmations in order. Returns the
    /// numbers of the entries before the first error, and that error.
    async fn write(&self, writer: &mut LetterWriter, ends: Vec<End>) -> (Vec<u64>, Result<(), String>) {
        let mut sent = Vec::new();
        let mut failed = None;
        for end in ends {
            let number = end.number;
            match self.mirrored_letter(end) {
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
                match writer.confirm(&letter, delivery).await {
                    Ok(()) => self.state.send_modify(|state| state.mirrored += 1),
                    Err(error) if error.kind() == RelayErrorKind::TooLarge => {
                        match writer.claim(&letter, self.style).await {
                            Ok(()) => self.state.send_modify(|state| state.claimed += 1),
                            Err(error) if error.kind() == RelayErrorKind::TooLarge => {
                                self.skip(&letter.id.to_string(), &error.to_string());
                            }
                            Err(error) => return (done, Err(error.to_string())),
                        }
                    }
                    Err(error) => return (done, Err(error.to_string())),
                }
            }
            done.push(number);
        }
        (done, failed.map_or(Ok(()), |error| Err(error.to_string())))
    }

    /// Returns the letter of an entry in the state in which it ended, if it is to be mirrored.
    fn mirrored_letter(&self, end: End) -> Option<Letter> {
        let is_wanted = end.state == LetterState::Dead || (self.parked && end.state == LetterState::Parked);
        let id = end.id;
        let Some(mut letter) = end.letter else {
            if is_wanted {
                self.skip(&id.to_string(), "it was purged before it was mirrored");
            }
            return None;
        };
        if !is_wanted || letter.diagnostics.contains_key(ADOPTED_FROM) {
            return None;
        }
        if letter.payload_left_out {
            self.skip(&id.to_string(), "its consumer stores no payloads");
            return None;
        }
        (letter.state, letter.attempts, letter.due_at) = (end.state, end.attempts, None);
        Some(letter)
    }

    fn skip(&self, letter: &str, reason: &str) {
        tracing::error!(queue = %self.queue, topic = self.topic, letter, reason, "letter not mirrored");
        self.state.send_modify(|state| state.skipped += 1);
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
