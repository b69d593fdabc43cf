//! The guards of one consumer: gate (pauses, breaker, store outages), fuse, retry budget and concurrency
//! limit.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lazaret_core::policy::{BreakerState, Budget, Charge, Fuse, FusePolicy, Shortage};
use lazaret_core::store::{Actor, Pause, PauseScope, Store};
use lazaret_core::traceback::excerpt;
use lazaret_core::{Clock, Failure, Message, QueueName, Reason, Timestamp};
use tokio::sync::Semaphore;

use crate::backlog::RetryBacklog;
use crate::events::Event;
use crate::fuse_causes::FuseCauses;
use crate::gate::{Gate, Health, Pass};
use crate::handed_off::HandedOff;
use crate::handled::HandledCount;
use crate::hash::SequenceHash;
use crate::held::{Held, Usage};
use crate::options::Options;
use crate::telemetry::Telemetry;
use crate::time::{SteadyTime, later, until};

/// Limits the activity of a consumer while things fail.
pub(crate) struct Guards {
    pub(crate) gate: Arc<Gate>,
    /// One permit per concurrent attempt.
    pub(crate) permits: Arc<Semaphore>,
    /// The number of shards that have messages and too few permits.
    pub(crate) starved_shards: AtomicUsize,
    /// The letters that wait for a retry. At their limit, no more messages are read.
    pub(crate) backlog: RetryBacklog,
    /// The capacity bound of the store that is reached, if any. No more messages are read meanwhile.
    shortage: Mutex<Option<Shortage>>,
    /// The location of the store's files, once the store has reported it.
    place: OnceLock<String>,
    /// The bytes that were handed off since the store's free space was last measured.
    pub(crate) handed_off: HandedOff,
    /// The messages that failing sequences hold back in memory.
    pub(crate) held: Held,
    budget: Mutex<Budget>,
    fuse: Option<Mutex<CountingFuse>>,
    /// The failure that opened the breaker; `None` while the breaker is closed.
    breaker_cause: Mutex<Option<BreakerCause>>,
    /// The numbers of messages that each shard handled itself.
    handled_by_shard: Box<[Arc<HandledCount>]>,
    /// The number of messages that were handled after their first poll, or as letters.
    handled_elsewhere: HandledCount,
    clock: Arc<dyn Clock>,
    /// The time for the breaker and the budget.
    steady: SteadyTime,
    telemetry: Arc<Telemetry>,
}

impl Guards {
    pub(crate) fn new(
        options: &Options,
        queues: Vec<QueueName>,
        clock: Arc<dyn Clock>,
        telemetry: Arc<Telemetry>,
    ) -> Self {
        // Each component holds its own copy of a message, as in the window.
        let held = Usage {
            messages: options.hold_limit.saturating_mul(queues.len()),
            bytes: options.hold_limit_bytes.saturating_mul(queues.len()),
        };
        let gate = Arc::new(Gate::new(options.breaker.clone()));
        Self {
            held: Held::new(held),
            backlog: RetryBacklog::new(options.budget.clone(), queues, gate.clone()),
            gate,
            permits: Arc::new(Semaphore::new(options.concurrency.min(Semaphore::MAX_PERMITS))),
            starved_shards: AtomicUsize::new(0),
            shortage: Mutex::new(None),
            place: OnceLock::new(),
            handed_off: HandedOff::default(),
            budget: Mutex::new(Budget::new(options.budget.clone())),
            breaker_cause: Mutex::new(None),
            fuse: options.fuse.clone().map(|policy| Mutex::new(CountingFuse::new(policy))),
            handled_by_shard: (0..options.shard_count()).map(|_| Arc::default()).collect(),
            handled_elsewhere: HandledCount::default(),
            steady: SteadyTime::starting_at(clock.now()),
            clock,
            telemetry,
        }
    }

    /// Returns the time for the breaker and the budget, which never goes back.
    pub(crate) fn steady_now(&self) -> Timestamp {
        self.steady.now()
    }

    /// Converts a steady time to the time of the clock.
    pub(crate) fn by_clock(&self, steady: Timestamp) -> Timestamp {
        later(self.clock.now(), until(self.steady.now(), steady))
    }

    /// Charges the retry budget for one more attempt of this sequence.
    pub(crate) fn charge(&self, sequence: SequenceHash, message: &Message) -> Charge {
        let charge =
            lock(&self.budget).charge(self.steady.now(), sequence.low, message.event_type.as_deref());
        match charge {
            Charge::NotBefore(steady) => Charge::NotBefore(self.by_clock(steady)),
            charge => charge,
        }
    }

    /// Refunds the charge for an attempt that the handler did not make.
    pub(crate) fn refund(&self, sequence: SequenceHash, message: &Message) {
        lock(&self.budget).refund(self.steady.now(), sequence.low, message.event_type.as_deref());
    }

    /// Returns the state of the breaker, or `None` if there is no breaker.
    pub(crate) fn breaker(&self) -> Option<BreakerState> {
        Some(match self.gate.breaker(self.steady.now())? {
            BreakerState::Open { until } => BreakerState::Open { until: self.by_clock(until) },
            state => state,
        })
    }

    /// Returns the time until the breaker admits probes, or `None` unless the breaker is open.
    pub(crate) fn breaker_probe_in(&self) -> Option<Duration> {
        let now = self.steady.now();
        match self.gate.breaker(now)? {
            BreakerState::Open { until: probe } => Some(until(now, probe)),
            BreakerState::Closed | BreakerState::HalfOpen => None,
        }
    }

    /// Returns the failure that opened the breaker, or `None` while the breaker is closed.
    pub(crate) fn breaker_cause(&self) -> Option<BreakerCause> {
        lock(&self.breaker_cause).clone()
    }

    /// Records a success for the breaker.
    pub(crate) fn record_success(&self) {
        self.gate.record_success(self.steady.now());
    }

    /// Returns `true` if the failure of a retry is attributed to its message.
    pub(crate) fn blames_message(&self, first_failed_at: Timestamp) -> bool {
        let (now, ago) = (self.steady.now(), until(first_failed_at, self.clock.now()));
        let first_failed_at = now.checked_sub(ago).unwrap_or(Timestamp::MIN);
        self.gate.blames_message(first_failed_at, now)
    }

    /// Records the capacity bound that is reached, if any. Returns `true` if the source must now be held
    /// or released.
    pub(crate) fn update_shortage(&self, shortage: Option<Shortage>) -> bool {
        let before = std::mem::replace(&mut *lock(&self.shortage), shortage);
        before.is_some() != shortage.is_some()
    }

    /// Returns the capacity bound that is reached, if any.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        *lock(&self.shortage)
    }

    /// Returns the location of the store's files, or `None` if it is unknown or the store has no files.
    pub(crate) fn place(&self) -> Option<&str> {
        self.place.get().map(String::as_str)
    }

    /// Asks the store for the location of its files, so that operators learn which disk is full.
    pub(crate) async fn ask_place(&self, store: &dyn Store) {
        if self.place.get().is_none()
            && let Ok(Some(place)) = store.place().await
        {
            // Another task may have set it meanwhile.
            let _ = self.place.set(place);
        }
    }

    /// Reports to the breaker the health of the handler's dependencies, as shown by a failed attempt.
    pub(crate) fn report_failure(&self, health: Health, pass: Pass, failure: &Failure) {
        if health != Health::Down {
            return self.report_health(health, pass);
        }
        if let Some(until) = self.gate.failed(pass, self.steady.now()) {
            let until = self.by_clock(until);
            *lock(&self.breaker_cause) = Some(BreakerCause::of(failure, self.clock.now()));
            self.telemetry.emit(&Event::BreakerOpened { until, failure });
        }
    }

    /// Reports to the breaker the health of the handler's dependencies, as shown by an attempt.
    pub(crate) fn report_health(&self, health: Health, pass: Pass) {
        match health {
            // Failures are reported with their cause by `report_failure`.
            Health::Down => drop(self.gate.failed(pass, self.steady.now())),
            Health::Up => {
                if self.gate.succeeded(pass, self.steady.now()) {
                    *lock(&self.breaker_cause) = None;
                    self.telemetry.emit(&Event::BreakerClosed);
                }
            }
            Health::Unknown => drop(pass),
        }
    }

    /// Returns the counter for the messages that this shard handles itself. The fuse reads it at every
    /// failure.
    pub(crate) fn handled_by_shard(&self, shard: usize) -> Arc<HandledCount> {
        self.handled_by_shard[shard].clone()
    }

    /// Counts a message for the fuse that was handled outside a shard's fast path.
    pub(crate) fn record_handled(&self) {
        self.handled_elsewhere.add_one_shared();
    }

    fn handled(&self) -> u64 {
        let by_shard = self.handled_by_shard.iter().map(|count| count.get());
        by_shard.fold(self.handled_elsewhere.get(), u64::wrapping_add)
    }

    /// Counts a message that failed for good for the fuse, after all messages that were handled before
    /// it. Call it before anything else starts and before the letter is written, because other messages
    /// could fail meanwhile. A fuse that blows pauses the consumer: at once in memory, and in the store
    /// as soon as the store accepts the pause. The reason of the pause names the most frequent cause.
    pub(crate) fn record_terminal(&self, queue: &QueueName, failure: Option<&Failure>) {
        let Some(fuse) = &self.fuse else { return };
        let Some(blown) = lock(fuse).on_terminal(queue, failure, || self.handled()) else { return };
        let why = PauseCause::Fuse.reason(&blown);
        let pause =
            Pause { scope: PauseScope::Consumer, by: Actor::engine(why.clone()), since: self.clock.now() };
        if self.gate.pause_now(pause) {
            self.telemetry.emit(&Event::FuseBlown { why: &why });
        }
    }

    /// Returns `true` if the consumer has a fuse.
    pub(crate) const fn has_fuse(&self) -> bool {
        self.fuse.is_some()
    }

    /// Resets the fuse after the consumer was resumed.
    pub(crate) fn reset_fuse(&self) {
        if let Some(fuse) = &self.fuse {
            lock(fuse).reset(|| self.handled());
        }
    }
}

/// A fuse that catches up with the handled messages at each failure. It only needs their number and
/// their place in the order.
struct CountingFuse {
    fuse: Fuse,
    /// The number of handled messages that the fuse has counted.
    known: u64,
    causes: FuseCauses,
}

impl CountingFuse {
    fn new(policy: FusePolicy) -> Self {
        Self { fuse: Fuse::new(policy), known: 0, causes: FuseCauses::default() }
    }

    /// Records a message that failed for good. `handled` is called under the lock, so that the number
    /// never goes back. Returns the explanation if the fuse blew.
    fn on_terminal(
        &mut self,
        queue: &QueueName,
        failure: Option<&Failure>,
        handled: impl FnOnce() -> u64,
    ) -> Option<String> {
        let handled = handled();
        self.fuse.on_ok(handled.wrapping_sub(self.known));
        self.known = handled;
        if let Some(failure) = failure {
            self.causes.add(queue, failure);
        }
        let blown = self.fuse.on_terminal()?;
        let why = self.causes.explain(&blown);
        self.causes.reset();
        Some(why)
    }

    fn reset(&mut self, handled: impl FnOnce() -> u64) {
        self.known = handled();
        self.causes.reset();
        self.fuse.reset();
    }
}

/// The failure that opened a breaker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakerCause {
    /// The reason code of the failure.
    pub reason: Reason,
    /// The type of the error.
    pub error_type: String,
    /// The error message, shortened if it is long.
    pub message: String,
    /// The time at which the failure opened the breaker.
    pub at: Timestamp,
}

impl BreakerCause {
    /// The maximum length of the error message in bytes (I7).
    pub const MESSAGE_BYTES: usize = 1024;

    fn of(failure: &Failure, at: Timestamp) -> Self {
        Self {
            reason: failure.reason.clone(),
            error_type: failure.error_type.clone(),
            message: excerpt(&failure.message, Self::MESSAGE_BYTES).into_owned(),
            at,
        }
    }
}

/// The origin of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseCause {
    /// A fuse of the engine blew.
    Fuse,
    /// A person or another part of the system requested the pause.
    Requested,
}

impl PauseCause {
    /// The prefix of the stored reason for a pause that a fuse requested.
    const FUSE_PREFIX: &'static str = "fuse: ";

    /// Derives the origin of a pause. A pause is stored as an actor with a reason, so only these survive
    /// a restart.
    pub(crate) fn of(pause: &Pause) -> Self {
        let engine = Actor::engine("");
        let by_engine = pause.by.who == engine.who && pause.by.via == engine.via;
        let whole = pause.scope == PauseScope::Consumer;
        match by_engine && whole && pause.by.why.starts_with(Self::FUSE_PREFIX) {
            true => Self::Fuse,
            false => Self::Requested,
        }
    }

    /// Returns the reason to store, from which [`of`](Self::of) derives the origin again.
    fn reason(self, why: &str) -> String {
        match self {
            Self::Fuse => format!("{}{why}", Self::FUSE_PREFIX),
            Self::Requested => why.to_owned(),
        }
    }
}

fn lock<T>(guarded: &Mutex<T>) -> MutexGuard<'_, T> {
    // The policies behind these locks run no user code, and each call leaves them consistent.
    guarded.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use lazaret_core::SystemClock;

    use super::*;

    #[test]
    fn a_success_in_another_shard_counts_before_a_failure_that_follows_it() {
        let fuse = Some(FusePolicy { consecutive: 3, ..FusePolicy::default() });
        let options = Options { fuse, shards: 2, ..Options::default() };
        let queue = QueueName::of("shop", "shop");
        let guards =
            Guards::new(&options, vec![queue.clone()], Arc::new(SystemClock), Arc::new(Telemetry::default()));
        let (other, is_open) = (guards.handled_by_shard(1), || guards.gate.is_open());
        let fail = || guards.record_terminal(&queue, None);
        for _ in 0..10 {
            fail();
            fail();
            other.add_one();
        }
        assert!(is_open(), "never three in a row");
        fail();
        fail();
        guards.record_handled();
        fail();
        fail();
        assert!(is_open(), "a message that was handled elsewhere counts, too");
        fail();
        assert!(!is_open(), "exactly at the third");
    }

    fn pause(scope: PauseScope, by: Actor) -> Pause {
        Pause { scope, by, since: Timestamp::UNIX_EPOCH }
    }

    #[test]
    fn the_origin_of_a_pause_is_read_from_what_was_stored() {
        let blown = Actor::engine(PauseCause::Fuse.reason("50 messages in a row failed for good"));
        assert_eq!(PauseCause::of(&pause(PauseScope::Consumer, blown.clone())), PauseCause::Fuse);
        assert_eq!(PauseCause::of(&pause(PauseScope::Replay, blown)), PauseCause::Requested);
        let person = Actor::new("ada", "cli", "fuse: replaced by hand");
        assert_eq!(PauseCause::of(&pause(PauseScope::Consumer, person)), PauseCause::Requested);
        let other = Actor::engine(PauseCause::Requested.reason("maintenance"));
        assert_eq!(PauseCause::of(&pause(PauseScope::Consumer, other)), PauseCause::Requested);
    }
}
