//! The options of a consumer, with defaults that lose nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::policy::{
    AlwaysEnqueue, BreakerPolicy, BudgetPolicy, CapacityPolicy, Classifier, EnqueuePolicy, FusePolicy,
    OnDead, OnDeadPolicy, PoisonPolicy, RetryOverride, RetryPolicy, Strategy,
};
use lazaret_core::recorder::FlightRecorder;
use lazaret_core::redaction::TextRules;
use lazaret_core::relay::Relay;
use lazaret_core::store::{Dedupe, Limits};
use lazaret_core::{Grouping, HandlerError, LetterState, Message, Reason, Sequencing};

use crate::error::BuildError;
use crate::mutation::mutated;
use crate::reprocess::Reprocess;

/// Returns whether a message is handled. An error or a panic is the failure of the message, in phase `filter`.
pub type Filter = dyn Fn(&Message) -> Result<bool, HandlerError> + Send + Sync;

/// The options of a consumer.
///
/// ```
/// use lazaret_engine::Options;
/// let options = Options { concurrency: 16, ..Options::default() };
/// assert!(options.validate().is_ok());
/// assert!(Options { concurrency: 0, ..Options::default() }.validate().is_err());
/// ```
#[derive(Clone)]
pub struct Options {
    /// Which messages must be handled in order.
    pub sequencing: Sequencing,
    /// The maximum number of concurrent attempts.
    pub concurrency: usize,
    /// The number of tasks that share the lanes; 0 for one per core. Never more than `concurrency`.
    pub shards: usize,
    /// The maximum number of messages in flight: read and not settled. At the limit the source is held; the batch that reaches
    /// it is still taken in.
    pub window: usize,
    /// The maximum number of messages that failing, throttled and paused sequences hold back in memory, beside the window. From
    /// half of it on, sequences that wait for a retry move to the store before their `hold` has passed.
    pub hold_limit: usize,
    /// The maximum size of these in bytes.
    pub hold_limit_bytes: usize,
    /// The time limit of one attempt; `None` for no limit.
    pub attempt_timeout: Option<Duration>,
    /// The largest payload that is passed to a handler. A message with a larger one is dead-lettered.
    pub max_payload: Option<usize>,
    /// Selects the messages to handle. The others are settled without a call.
    pub filter: Option<Arc<Filter>>,
    /// When and how often a failed message is retried.
    pub retry: RetryPolicy,
    /// Policies for some events or failures; the first that applies replaces `retry`, and the policy of a route. Their strategy is that of
    /// `retry`.
    pub retry_overrides: Vec<RetryOverride>,
    /// The rules that map a failure to a verdict.
    pub classifier: Classifier,
    /// The rules by which failures are grouped.
    pub grouping: Grouping,
    /// The rules by which texts of errors and diagnostics are redacted before they are stored, reported or published. Classification and
    /// grouping see the exact texts.
    pub redact: TextRules,
    /// The limits on retries.
    pub budget: BudgetPolicy,
    /// When handler calls are suspended because a dependency is down; `None` for never.
    pub breaker: Option<BreakerPolicy>,
    /// When the consumer pauses instead of dead-lettering; `None` for never.
    pub fuse: Option<FusePolicy>,
    /// When a message is poison.
    pub poison: PoisonPolicy,
    /// The hook that decides at each failure whether a letter is kept.
    pub enqueue: Arc<dyn EnqueuePolicy>,
    /// Limits and retention of letters. `None` disables dead letters: a message that fails for good stops the consumer, and the
    /// position stays before it.
    pub dead_letter: Option<DeadLetterOptions>,
    /// The limits of replays.
    pub replay: ReplayOptions,
    /// The idempotent receiver; `None` is off.
    pub dedupe: Option<DedupeOptions>,
    /// The recorder of the attempts in progress, which identifies a message that kills the process; `None` for none.
    pub flight_recorder: Option<Arc<dyn FlightRecorder>>,
    /// The minimum time between commits of positions.
    pub commit_interval: Duration,
    /// The time limit of a drain; attempts that still run after it are cancelled.
    pub drain_deadline: Duration,
    /// How long the lease of a stored sequence lasts unless it is renewed.
    pub lease: Duration,
    /// How often the store is polled for changes by others.
    pub refresh: Duration,
    /// The number of open sequences that the shards together keep exactly in memory.
    pub blocked_limit: usize,
    /// The name of this instance in leases; empty for a generated one.
    pub instance: String,
    /// The broker that holds failed messages, for the strategy `topics`.
    pub relay: Option<Arc<dyn Relay>>,
    /// The maximum number of relayed messages that wait in memory until they are due, over all partitions. A partition that has
    /// reached its share is held; the others continue.
    pub delay_queue: usize,
    /// The maximum size of these in bytes.
    pub delay_queue_bytes: usize,
    /// The seed of jitter and hashes; 0 for a random one.
    pub seed: u64,
    /// Ends the run when a finite source is read to its end and nothing is in flight or waiting for a retry or an operation.
    pub until_idle: bool,
    /// Stops the tasks of the consumer.
    #[cfg(feature = "suspension")]
    #[doc(hidden)]
    pub suspension: crate::suspension::Suspension,
    /// The bug that this engine has on purpose.
    #[cfg(feature = "mutations")]
    #[doc(hidden)]
    pub mutation: Option<crate::mutation::Mutation>,
}

/// Limits and retention of the letters of a consumer.
#[derive(Clone, Debug)]
pub struct DeadLetterOptions {
    /// Discards a message that fails for good instead of making it a dead letter: it is skipped, or its letter evicted, with an
    /// audit entry. Letters that are retried, parked or quarantined are kept all the same.
    pub discard: bool,
    /// The strict limits of each queue. By default there are none.
    pub limits: Limits,
    /// Bounds on letters, bytes and free disk, at which no more messages are read.
    pub capacity: CapacityPolicy,
    /// How long a letter may stay open before it is closed as `expired`, with an audit entry; `None` for ever.
    pub ttl: Option<Duration>,
    /// How long a closed letter is kept; `None` for ever. Afterwards only its id is kept.
    pub keep_closed: Option<Duration>,
    /// Automatic reprocessing of dead letters.
    pub reprocess: Reprocess,
    /// The team that owns the letters.
    pub owner: Option<Arc<str>>,
    /// Keeps the payload of a letter that is not retried automatically. A letter without its payload can be inspected and
    /// closed, not replayed.
    pub include_payload: bool,
    /// Keeps backtraces.
    pub include_backtrace: bool,
    /// Whether later messages of a sequence wait behind a dead letter.
    pub on_dead: OnDeadPolicy,
}

impl DeadLetterOptions {
    /// Returns whether a message that ends in this state is discarded.
    pub(crate) fn discards(&self, state: LetterState) -> bool {
        self.discard && state == LetterState::Dead
    }

    /// Returns whether a letter of this message that ends in this state, for this reason, leaves its sequence. Only dead ones do:
    /// a person or a deployment is awaited for the others.
    pub(crate) fn detaches(&self, state: LetterState, message: &Message, reason: Option<&Reason>) -> bool {
        state == LetterState::Dead && self.on_dead.decide(message, reason) == OnDead::Continue
    }

    /// Returns whether a letter in this state loses its payload. One that is retried automatically needs it.
    pub(crate) fn leaves_out_payload(&self, state: LetterState) -> bool {
        !self.include_payload && !state.is_automatic()
    }
}

impl Default for DeadLetterOptions {
    fn default() -> Self {
        Self {
            discard: false,
            limits: Limits::NONE,
            capacity: CapacityPolicy::default(),
            ttl: Some(Duration::from_secs(30 * 24 * 3600)),
            keep_closed: Some(Duration::from_secs(30 * 24 * 3600)),
            reprocess: Reprocess::Manual,
            owner: None,
            include_payload: true,
            include_backtrace: true,
            on_dead: OnDeadPolicy::default(),
        }
    }
}

/// The limits of replays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayOptions {
    /// A letter that failed again in this many replays is parked. `None` for no limit.
    pub max_replays: Option<u32>,
    /// Letters per second in operations that the engine starts itself; `None` for no limit.
    pub rate: Option<f64>,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self { max_replays: Some(5), rate: Some(50.0) }
    }
}

/// The idempotent receiver.
#[derive(Clone)]
pub struct DedupeOptions {
    /// The store of the ids of handled messages.
    pub filter: Arc<dyn Dedupe>,
    /// How long an id is kept.
    pub window: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sequencing: Sequencing::Key,
            concurrency: 64,
            shards: 0,
            window: 8192,
            hold_limit: 65_536,
            hold_limit_bytes: 64 << 20,
            attempt_timeout: Some(Duration::from_secs(60)),
            max_payload: None,
            filter: None,
            retry: RetryPolicy::default(),
            retry_overrides: Vec::new(),
            classifier: Classifier::default(),
            grouping: Grouping::default(),
            redact: TextRules::default(),
            budget: BudgetPolicy::default(),
            breaker: Some(BreakerPolicy::default()),
            fuse: Some(FusePolicy::default()),
            poison: PoisonPolicy::default(),
            enqueue: Arc::new(AlwaysEnqueue),
            dead_letter: Some(DeadLetterOptions::default()),
            replay: ReplayOptions::default(),
            dedupe: None,
            flight_recorder: None,
            commit_interval: Duration::from_millis(200),
            drain_deadline: Duration::from_secs(30),
            lease: Duration::from_secs(30),
            refresh: Duration::from_secs(1),
            blocked_limit: 16 << 20,
            instance: String::new(),
            relay: None,
            delay_queue: 131_072,
            delay_queue_bytes: 128 << 20,
            seed: 0,
            until_idle: false,
            #[cfg(feature = "suspension")]
            suspension: crate::suspension::Suspension::default(),
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }
}

impl Options {
    /// Validates the options.
    pub fn validate(&self) -> Result<(), BuildError> {
        let at_least = |field: &'static str, value: u128, least: u128| {
            if value < least { Err(BuildError::TooSmall { field, least }) } else { Ok(()) }
        };
        at_least("concurrency", self.concurrency as u128, 1)?;
        at_least("window", self.window as u128, 1)?;
        at_least("hold-limit", self.hold_limit as u128, 1)?;
        at_least("hold-limit-bytes", self.hold_limit_bytes as u128, 1)?;
        at_least("delay-queue", self.delay_queue as u128, 1)?;
        at_least("delay-queue-bytes", self.delay_queue_bytes as u128, 1)?;
        at_least("blocked-limit", self.blocked_limit as u128, 1)?;
        at_least("lease (ms)", self.lease.as_millis(), 100)?;
        at_least("refresh (ms)", self.refresh.as_millis(), 1)?;
        at_least("commit-interval (ms)", self.commit_interval.as_millis(), 1)?;
        if let Some(timeout) = self.attempt_timeout {
            at_least("attempt-timeout (ms)", timeout.as_millis(), 1)?;
        }
        if let Some(limit) = self.dead_letter.as_ref().and_then(|d| d.limits.max_sequences) {
            at_least("max-sequences", u128::from(limit), 1)?;
        }
        if let Some(limit) = self.dead_letter.as_ref().and_then(|d| d.limits.max_sequence_size) {
            at_least("max-sequence-size", u128::from(limit), 1)?;
        }
        if let Some(limit) = self.dead_letter.as_ref().and_then(|d| d.capacity.max_letters) {
            at_least("max-letters", u128::from(limit), 1)?;
        }
        if let Some(limit) = self.dead_letter.as_ref().and_then(|d| d.capacity.max_bytes) {
            at_least("max-bytes", u128::from(limit), 1)?;
        }
        if let Some(limit) = self.replay.max_replays {
            at_least("max-replays", u128::from(limit), 1)?;
        }
        if let Some(Reprocess::Cron { batch_size, .. }) = self.dead_letter.as_ref().map(|d| &d.reprocess) {
            at_least("batch-size", u128::from(*batch_size), 1)?;
        }
        if let Some(rate) = self.replay.rate.filter(|rate| !rate.is_finite() || *rate <= 0.0) {
            return Err(BuildError::Rate(rate));
        }
        self.grouping.validate()?;
        self.retry.validate()?;
        for over in &self.retry_overrides {
            over.policy.validate()?;
            if over.policy.strategy != self.retry.strategy {
                let (route, consumer) = (over.policy.strategy, self.retry.strategy);
                return Err(BuildError::RouteStrategy { route, consumer });
            }
        }
        self.budget.validate()?;
        self.poison.validate()?;
        self.breaker.as_ref().map_or(Ok(()), BreakerPolicy::validate)?;
        self.fuse.as_ref().map_or(Ok(()), FusePolicy::validate)?;
        if self.retry.strategy == Strategy::Topics && self.relay.is_none() {
            return Err(BuildError::TopicsWithoutBroker);
        }
        if self.relay().is_some() && self.dead_letter.is_none() {
            return Err(BuildError::TopicsWithoutLetters);
        }
        Ok(())
    }

    /// Returns whether a message that ends in this state is discarded.
    pub(crate) fn discards(&self, state: LetterState) -> bool {
        self.dead_letter.as_ref().is_some_and(|options| options.discards(state))
    }

    /// Returns whether a letter that ends in this state, for this reason, leaves its sequence.
    pub(crate) fn detaches(&self, state: LetterState, message: &Message, reason: Option<&Reason>) -> bool {
        if mutated!(self, LeaveUnasked) {
            return state == LetterState::Dead;
        }
        self.dead_letter.as_ref().is_some_and(|options| options.detaches(state, message, reason))
    }

    /// The relay that takes failed messages instead of the store.
    pub(crate) fn relay(&self) -> Option<&Arc<dyn Relay>> {
        self.relay.as_ref().filter(|_| self.retry.strategy == Strategy::Topics)
    }

    /// The number of sequences that are retried at once: they take at most half of the attempts, so that live messages always have the
    /// other half (I3).
    pub(crate) fn retries_at_once(&self) -> usize {
        (self.concurrency / 2).max(1)
    }

    /// The number of sequences that an operation, or a replay from code, runs at once: a quarter of the attempts at most (I3).
    pub(crate) fn replays_at_once(&self) -> usize {
        (self.concurrency / 4).max(1)
    }

    /// The number of shards to run.
    pub(crate) fn shard_count(&self) -> usize {
        let wanted = match self.shards {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            given => given,
        };
        wanted.clamp(1, self.concurrency)
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("sequencing", &self.sequencing)
            .field("concurrency", &self.concurrency)
            .field("window", &self.window)
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}
