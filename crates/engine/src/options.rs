//! The options of a consumer. The defaults lose nothing.

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

/// Selects the messages to handle: returns `true` for a message that goes to the handler. If the filter
/// returns an error or panics, the message fails in phase `filter`.
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
    /// Defines which messages must be handled in order.
    pub sequencing: Sequencing,
    /// The maximum number of concurrent attempts.
    pub concurrency: usize,
    /// The number of tasks that share the lanes, at most `concurrency`. 0 means one per core.
    pub shards: usize,
    /// The maximum number of messages in flight, that is, read and not yet settled. At the limit the
    /// source is held; the batch that reaches the limit is still accepted.
    pub window: usize,
    /// The maximum number of messages that failing, throttled and paused sequences hold back in memory.
    /// These messages do not count towards the window. Once half of this limit is reached, sequences that
    /// wait for a retry move to the store before their `hold` has passed.
    pub hold_limit: usize,
    /// The maximum size in bytes of the messages that are held back.
    pub hold_limit_bytes: usize,
    /// The time limit of one attempt. `None` means no limit.
    pub attempt_timeout: Option<Duration>,
    /// The size in bytes of the largest payload that is passed to a handler. A message with a larger
    /// payload is dead-lettered. `None` means no limit.
    pub max_payload: Option<usize>,
    /// Selects the messages to handle. The others are settled without a handler call.
    pub filter: Option<Arc<Filter>>,
    /// Decides when and how often a failed message is retried.
    pub retry: RetryPolicy,
    /// Retry policies for some events or failures. The first override that applies replaces `retry` and
    /// the policy of a route. Overrides always use the strategy of `retry`.
    pub retry_overrides: Vec<RetryOverride>,
    /// The rules that map a failure to a verdict.
    pub classifier: Classifier,
    /// The rules that group failures.
    pub grouping: Grouping,
    /// The rules that redact the texts of errors and diagnostics before they are stored, reported or
    /// published. Classification and grouping see the unredacted texts.
    pub redact: TextRules,
    /// The limits on retries.
    pub budget: BudgetPolicy,
    /// Decides when handler calls are suspended because a dependency is down. `None` means never.
    pub breaker: Option<BreakerPolicy>,
    /// Decides when the consumer pauses instead of dead-lettering. `None` means never.
    pub fuse: Option<FusePolicy>,
    /// Decides when a message counts as poison.
    pub poison: PoisonPolicy,
    /// The hook that decides at each failure whether to keep a letter.
    pub enqueue: Arc<dyn EnqueuePolicy>,
    /// The limits and the retention of letters. `None` disables dead letters: a message that fails for
    /// good then stops the consumer, and the position stays before that message.
    pub dead_letter: Option<DeadLetterOptions>,
    /// The limits of replays.
    pub replay: ReplayOptions,
    /// The idempotent receiver. `None` disables it.
    pub dedupe: Option<DedupeOptions>,
    /// The recorder of running attempts, which identifies messages that crash the process. `None`
    /// disables it.
    pub flight_recorder: Option<Arc<dyn FlightRecorder>>,
    /// The minimum time between two commits of positions.
    pub commit_interval: Duration,
    /// The time limit of a drain. Attempts that still run after it are cancelled.
    pub drain_deadline: Duration,
    /// The duration of the lease of a stored sequence, unless it is renewed.
    pub lease: Duration,
    /// The interval at which the store is polled for changes by other processes.
    pub refresh: Duration,
    /// The number of open sequences that all shards together track exactly in memory.
    pub blocked_limit: usize,
    /// The name under which this instance holds leases. If it is empty, a name is generated.
    pub instance: String,
    /// The broker that holds failed messages, for the strategy `topics`.
    pub relay: Option<Arc<dyn Relay>>,
    /// The maximum number of relayed messages that wait in memory until they are due, over all
    /// partitions. A partition that reaches its share is held; the others continue.
    pub delay_queue: usize,
    /// The maximum size in bytes of the relayed messages that wait in memory.
    pub delay_queue_bytes: usize,
    /// The seed for jitter and hashes. 0 means a random seed.
    pub seed: u64,
    /// If `true`, the run ends once a finite source is read to its end and nothing is in flight or
    /// waiting for a retry or an operation.
    pub until_idle: bool,
    /// Stops the tasks of the consumer.
    #[cfg(feature = "suspension")]
    #[doc(hidden)]
    pub suspension: crate::suspension::Suspension,
    /// A deliberate bug of this engine, for the simulation.
    #[cfg(feature = "mutations")]
    #[doc(hidden)]
    pub mutation: Option<crate::mutation::Mutation>,
}

/// The limits and the retention of a consumer's letters.
#[derive(Clone, Debug)]
pub struct DeadLetterOptions {
    /// If `true`, a message that fails for good is discarded instead of becoming a dead letter: it is
    /// skipped, or its letter is evicted, with an audit entry. Letters that are retried, parked or
    /// quarantined are still kept.
    pub discard: bool,
    /// The strict limits of each queue. Default: no limits.
    pub limits: Limits,
    /// The bounds on letters, bytes and free disk space at which the consumer stops reading messages.
    pub capacity: CapacityPolicy,
    /// The maximum time that a letter stays open. Afterwards it is closed as `expired`, with an audit
    /// entry. `None` means no limit.
    pub ttl: Option<Duration>,
    /// The time for which a closed letter is kept. Afterwards only its id is kept. `None` means no limit.
    pub keep_closed: Option<Duration>,
    /// Configures the automatic reprocessing of dead letters.
    pub reprocess: Reprocess,
    /// The team that owns the letters.
    pub owner: Option<Arc<str>>,
    /// If `true`, letters that are not retried automatically keep their payload. A letter without its
    /// payload can be inspected and closed, but not replayed.
    pub include_payload: bool,
    /// If `true`, letters keep backtraces.
    pub include_backtrace: bool,
    /// Decides whether later messages of a sequence wait behind a dead letter.
    pub on_dead: OnDeadPolicy,
}

impl DeadLetterOptions {
    /// Returns `true` if a message that ends in this state is discarded.
    pub(crate) fn discards(&self, state: LetterState) -> bool {
        self.discard && state == LetterState::Dead
    }

    /// Returns `true` if a letter of this message that ends in this state, for this reason, leaves its
    /// sequence. Only dead letters do; the others wait for a person or a deployment.
    pub(crate) fn detaches(&self, state: LetterState, message: &Message, reason: Option<&Reason>) -> bool {
        state == LetterState::Dead && self.on_dead.decide(message, reason) == OnDead::Continue
    }

    /// Returns `true` if a letter in this state loses its payload. A letter that is retried
    /// automatically needs it.
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
    /// The number of failed replays after which a letter is parked. `None` means no limit.
    pub max_replays: Option<u32>,
    /// The rate, in letters per second, of operations that the engine starts itself. `None` means no
    /// limit.
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
    /// The store for the ids of handled messages.
    pub filter: Arc<dyn Dedupe>,
    /// The time for which an id is kept.
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

    /// Returns `true` if a message that ends in this state is discarded.
    pub(crate) fn discards(&self, state: LetterState) -> bool {
        self.dead_letter.as_ref().is_some_and(|options| options.discards(state))
    }

    /// Returns `true` if a letter that ends in this state, for this reason, leaves its sequence.
    pub(crate) fn detaches(&self, state: LetterState, message: &Message, reason: Option<&Reason>) -> bool {
        if mutated!(self, LeaveUnasked) {
            return state == LetterState::Dead;
        }
        self.dead_letter.as_ref().is_some_and(|options| options.detaches(state, message, reason))
    }

    /// Returns the relay that takes failed messages instead of the store, with the strategy `topics`.
    pub(crate) fn relay(&self) -> Option<&Arc<dyn Relay>> {
        self.relay.as_ref().filter(|_| self.retry.strategy == Strategy::Topics)
    }

    /// Returns the maximum number of sequences that are retried at once: half of the attempts, so that
    /// live messages have the other half (I3), but at least one.
    pub(crate) fn retries_at_once(&self) -> usize {
        (self.concurrency / 2).max(1)
    }

    /// Returns the maximum number of sequences that an operation, or a replay from code, runs at once: a
    /// quarter of the attempts, but at least one (I3).
    pub(crate) fn replays_at_once(&self) -> usize {
        (self.concurrency / 4).max(1)
    }

    /// Returns the number of shards to run.
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
