//! How a consumer behaves: every knob of the engine, with defaults that lose nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::policy::{
    AlwaysEnqueue, BreakerPolicy, BudgetPolicy, Classifier, EnqueuePolicy, FusePolicy, PoisonPolicy,
    RetryPolicy, Strategy,
};
use lazaret_core::recorder::FlightRecorder;
use lazaret_core::relay::Relay;
use lazaret_core::store::{Dedupe, Limits};
use lazaret_core::{HandlerError, LetterState, Message, Sequencing};

use crate::error::BuildError;
use crate::reprocess::Reprocess;

/// Says whether a message is wanted. Its error or panic is that message's failure, in phase `filter`.
pub type Filter = dyn Fn(&Message) -> Result<bool, HandlerError> + Send + Sync;

/// How a consumer behaves.
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
    /// How many attempts may run at once.
    pub concurrency: usize,
    /// How many tasks share the lanes. 0 takes one per core, never more than `concurrency`.
    pub shards: usize,
    /// How many messages may be in flight: read, and neither settled nor given up. The source is held when there are as
    /// many; the batch that reaches the limit is still taken in.
    pub window: usize,
    /// How long one attempt may take; `None` waits for ever, which no default does.
    pub attempt_timeout: Option<Duration>,
    /// The largest payload that a handler gets to see. A larger one is dead-lettered whole.
    pub max_payload: Option<usize>,
    /// Which messages are wanted at all. Those that are not are settled.
    pub filter: Option<Arc<Filter>>,
    /// When and how often to try again.
    pub retry: RetryPolicy,
    /// What becomes of a failure.
    pub classifier: Classifier,
    /// How much retrying may cost.
    pub budget: BudgetPolicy,
    /// When to stop calling a sick dependency; `None` never does.
    pub breaker: Option<BreakerPolicy>,
    /// When to stop dead-lettering and pause instead; `None` never does.
    pub fuse: Option<FusePolicy>,
    /// When a message is poison.
    pub poison: PoisonPolicy,
    /// The last word on what is kept as a letter.
    pub enqueue: Arc<dyn EnqueuePolicy>,
    /// Dead letters and what holds for them. `None` means that there is nowhere to put a message that fails for
    /// good: the consumer then stops and keeps the position.
    pub dead_letter: Option<DeadLetterOptions>,
    /// What holds for replays.
    pub replay: ReplayOptions,
    /// The idempotent receiver; `None` is off.
    pub dedupe: Option<DedupeOptions>,
    /// Where attempts stand while they run, so that a message that kills the process is found; `None` for nowhere.
    pub flight_recorder: Option<Arc<dyn FlightRecorder>>,
    /// How often positions are committed at most.
    pub commit_interval: Duration,
    /// How long a drain may take before what still runs is cancelled.
    pub drain_deadline: Duration,
    /// How long the right to a stored sequence lasts unless it is renewed.
    pub lease: Duration,
    /// How often the store is asked for what others changed.
    pub refresh: Duration,
    /// How many open sequences each shard keeps exactly in memory.
    pub blocked_limit: usize,
    /// The name of this instance in leases; empty makes one up.
    pub instance: String,
    /// The broker that holds what failed, with the strategy `topics`; otherwise it is not asked.
    pub relay: Option<Arc<dyn Relay>>,
    /// How many messages that were passed on and are not due yet may wait in memory, all partitions together. A partition that
    /// has its share is held, the others flow on.
    pub waiting_room: usize,
    /// How many bytes these may have.
    pub waiting_room_bytes: usize,
    /// Where jitter and hashes come from; 0 draws a fresh one.
    pub seed: u64,
    /// End when a finite source is read to its end and nothing is in flight or waiting for a retry, or for its turn in an
    /// operation.
    pub until_idle: bool,
    /// The bug that this engine has on purpose.
    #[cfg(feature = "mutations")]
    #[doc(hidden)]
    pub mutation: Option<crate::mutation::Mutation>,
}

/// What holds for the letters of a consumer.
#[derive(Clone, Debug)]
pub struct DeadLetterOptions {
    /// How large each queue may grow.
    pub limits: Limits,
    /// How long a letter may stay open; `None` for ever. Then it is closed as `expired`, and the audit says so.
    pub ttl: Option<Duration>,
    /// How long a closed letter can be looked at; `None` for ever. Then only that it was there is kept.
    pub keep_closed: Option<Duration>,
    /// What happens to dead letters that nobody asks for.
    pub reprocess: Reprocess,
    /// The team that owns the letters.
    pub owner: Option<Arc<str>>,
    /// Whether payloads are kept once a letter will not be tried again by itself. Without its payload a letter can be
    /// looked at and closed, never replayed.
    pub include_payload: bool,
    /// Whether backtraces are kept.
    pub include_backtrace: bool,
}

impl DeadLetterOptions {
    /// Whether a letter in this state goes without its payload. One that will run by itself needs it.
    pub(crate) fn leaves_out_payload(&self, state: LetterState) -> bool {
        !self.include_payload && !state.is_automatic()
    }
}

impl Default for DeadLetterOptions {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            ttl: Some(Duration::from_secs(30 * 24 * 3600)),
            keep_closed: Some(Duration::from_secs(30 * 24 * 3600)),
            reprocess: Reprocess::Manual,
            owner: None,
            include_payload: true,
            include_backtrace: true,
        }
    }
}

/// What holds for replays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayOptions {
    /// A letter that failed again in this many replays is parked. `None` for no limit.
    pub max_replays: Option<u32>,
    /// Letters per second in operations that the engine begins by itself; `None` as fast as it goes.
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
    /// Where handled messages are remembered.
    pub filter: Arc<dyn Dedupe>,
    /// For how long.
    pub window: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sequencing: Sequencing::Key,
            concurrency: 64,
            shards: 0,
            window: 8192,
            attempt_timeout: Some(Duration::from_secs(60)),
            max_payload: None,
            filter: None,
            retry: RetryPolicy::default(),
            classifier: Classifier::default(),
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
            waiting_room: 131_072,
            waiting_room_bytes: 128 << 20,
            seed: 0,
            until_idle: false,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }
}

impl Options {
    /// Checks that the options make sense together.
    pub fn validate(&self) -> Result<(), BuildError> {
        let at_least = |field: &'static str, value: u128, least: u128| {
            if value < least { Err(BuildError::TooSmall { field, least }) } else { Ok(()) }
        };
        at_least("concurrency", self.concurrency as u128, 1)?;
        at_least("window", self.window as u128, 1)?;
        at_least("waiting-room", self.waiting_room as u128, 1)?;
        at_least("waiting-room-bytes", self.waiting_room_bytes as u128, 1)?;
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
        if let Some(limit) = self.replay.max_replays {
            at_least("max-replays", u128::from(limit), 1)?;
        }
        if let Some(Reprocess::Cron { batch_size, .. }) = self.dead_letter.as_ref().map(|d| &d.reprocess) {
            at_least("batch-size", u128::from(*batch_size), 1)?;
        }
        if let Some(rate) = self.replay.rate.filter(|rate| !rate.is_finite() || *rate <= 0.0) {
            return Err(BuildError::Rate(rate));
        }
        self.retry.validate()?;
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

    /// Who takes what failed instead of the store.
    pub(crate) fn relay(&self) -> Option<&Arc<dyn Relay>> {
        self.relay.as_ref().filter(|_| self.retry.strategy == Strategy::Topics)
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
