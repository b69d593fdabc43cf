//! What all parts of one running consumer share.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lazaret_core::handler::BoxHandler;
use lazaret_core::policy::{Budget, Charge, Fuse, Strategy, seed_of};
use lazaret_core::store::{Actor, Pause, PauseScope, Store};
use lazaret_core::{Clock, ConsumerName, Message, QueueName, SequenceId, Timestamp};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::events::{Counters, Event, Observers};
use crate::flight::Flight;
use crate::gate::{Gate, Pass, Sign};
use crate::gauges::Gauges;
use crate::hand_offs::HandOffs;
use crate::hash::{SequenceHash, SequenceHasher};
use crate::options::Options;

/// How the reason of a pause begins that a blown fuse made.
pub(crate) const FUSE_PAUSE: &str = "fuse: ";

/// What all parts of one consumer share.
pub(crate) struct Shared {
    pub(crate) name: ConsumerName,
    pub(crate) options: Options,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) hand_offs: HandOffs,
    pub(crate) flight: Flight,
    pub(crate) hasher: SequenceHasher,
    pub(crate) seed: u64,
    pub(crate) instance: String,
    /// One permit per attempt that may run at once.
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) counters: Counters,
    /// What goes up and down.
    pub(crate) gauges: Gauges,
    pub(crate) observers: Observers,
    /// Stored sequences that are being worked on.
    pub(crate) runs: AtomicUsize,
    /// So many letters wait for a retry that no more messages should be read.
    pub(crate) backlog_full: AtomicBool,
    /// Shards that have messages and too few permits.
    pub(crate) hungry: AtomicUsize,
    /// A run ended, or something else that matters to whoever waits for silence.
    pub(crate) calmer: Notify,
    /// Cancelled when the consumer shall end.
    pub(crate) drain: CancellationToken,
    /// Cancelled when the time for that is up: stored sequences that are still being worked on are dropped.
    pub(crate) cut: CancellationToken,
    /// The run is over.
    pub(crate) ended: AtomicBool,
    budget: Mutex<Budget>,
    fuse: Option<Mutex<Fuse>>,
    stopped: Mutex<Option<Error>>,
}

/// One handler of a consumer, with a queue of its own.
pub(crate) struct Component {
    pub(crate) index: usize,
    pub(crate) queue: QueueName,
    pub(crate) handler: BoxHandler,
    pub(crate) shared: Arc<Shared>,
    /// Something in the queue may be due: its scheduler looks.
    pub(crate) due: Notify,
    /// A stored run is over, or there may be something new to replay.
    pub(crate) turn_over: Notify,
    /// Operations on the queue are under way, or nobody has looked yet.
    pub(crate) operating: AtomicBool,
    /// The highest revision of the queue that was listed to the shards.
    pub(crate) revision: AtomicU64,
}

/// What a consumer is made of, before it runs.
pub(crate) struct Parts {
    pub(crate) name: ConsumerName,
    pub(crate) options: Options,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) hand_offs: HandOffs,
    pub(crate) observers: Observers,
}

impl Shared {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { name, options, store, clock, hand_offs, observers } = parts;
        let seed = match options.seed {
            0 => fresh_seed(&*clock),
            given => given,
        };
        let instance = match options.instance.as_str() {
            "" => format!("{name}-{}-{:08x}", std::process::id(), seed as u32),
            given => given.to_owned(),
        };
        Self {
            flight: Flight::new(options.flight_recorder.clone()),
            gate: Arc::new(Gate::new(options.breaker.clone())),
            hasher: SequenceHasher::new(seed),
            permits: Arc::new(Semaphore::new(options.concurrency.min(Semaphore::MAX_PERMITS))),
            counters: Counters::default(),
            gauges: Gauges::default(),
            runs: AtomicUsize::new(0),
            backlog_full: AtomicBool::new(false),
            hungry: AtomicUsize::new(0),
            calmer: Notify::new(),
            drain: CancellationToken::new(),
            cut: CancellationToken::new(),
            ended: AtomicBool::new(false),
            budget: Mutex::new(Budget::new(options.budget.clone())),
            fuse: options.fuse.clone().map(|policy| Mutex::new(Fuse::new(policy))),
            stopped: Mutex::new(None),
            name,
            options,
            store,
            clock,
            hand_offs,
            seed,
            instance,
            observers,
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn tell(&self, event: &Event<'_>) {
        self.observers.tell(event);
    }

    pub(crate) fn jitter_seed(&self, message: &Message) -> u64 {
        seed_of(message.id.as_str(), self.seed)
    }

    /// Charges the retry budget for one more attempt of this sequence.
    pub(crate) fn charge(&self, now: Timestamp, sequence: SequenceHash, message: &Message) -> Charge {
        let mut budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
        budget.charge(now, sequence.low, message.event_type.as_deref())
    }

    /// Whether so many letters wait for a retry that no more messages should be read.
    pub(crate) fn backlog_full(&self, backlog: u64) -> bool {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner).backlog_full(backlog)
    }

    /// Tells the breaker what an attempt has shown, and observers what it did about that.
    pub(crate) fn breaker_hears(&self, sign: Sign, pass: Pass) {
        match sign {
            Sign::Sick => {
                if let Some(until) = self.gate.failed(pass, self.now()) {
                    self.tell(&Event::BreakerOpened { until });
                }
            }
            Sign::Well => {
                if self.gate.succeeded(pass, self.now()) {
                    self.tell(&Event::BreakerClosed);
                }
            }
            Sign::None => drop(pass),
        }
    }

    /// Tells the fuse that messages went through.
    pub(crate) fn fuse_ok(&self, messages: u64) {
        if let Some(fuse) = &self.fuse {
            fuse.lock().unwrap_or_else(PoisonError::into_inner).on_ok(messages);
        }
    }

    /// Tells the fuse that a message failed for good, before its letter is on the way: meanwhile others would fail. When it
    /// blows, the consumer pauses: at once in memory, and in the store as soon as that takes it. A consumer that is paused has
    /// nothing to lose by a fuse.
    pub(crate) fn fuse_terminal(&self) {
        let Some(fuse) = &self.fuse else { return };
        let Some(blown) = fuse.lock().unwrap_or_else(PoisonError::into_inner).on_terminal() else { return };
        let why = format!("{FUSE_PAUSE}{blown}");
        let pause = Pause { scope: PauseScope::Consumer, by: Actor::engine(why.clone()), since: self.now() };
        if self.gate.pause_now(pause) {
            self.tell(&Event::FuseBlown { why: &why });
        }
    }

    /// Whether the consumer has a fuse.
    pub(crate) const fn has_fuse(&self) -> bool {
        self.fuse.is_some()
    }

    /// Makes the fuse forget what it saw: somebody resumed the consumer.
    pub(crate) fn reset_fuse(&self) {
        if let Some(fuse) = &self.fuse {
            fuse.lock().unwrap_or_else(PoisonError::into_inner).reset();
        }
    }

    /// Ends the consumer with this error. The first one stays.
    pub(crate) fn stop(&self, error: Error) {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.drain.cancel();
    }

    /// Whether the consumer is about to end. Before and after its run it is not: replays work then.
    pub(crate) fn is_stopping(&self) -> bool {
        self.drain.is_cancelled() && !self.ended.load(Ordering::Acquire)
    }

    /// Resolves when the consumer is about to end.
    pub(crate) async fn stopping(&self) {
        if self.ended.load(Ordering::Acquire) {
            return std::future::pending().await;
        }
        self.drain.cancelled().await;
    }

    /// Resolves when the time for ending is up.
    pub(crate) async fn cutting(&self) {
        if self.ended.load(Ordering::Acquire) {
            return std::future::pending().await;
        }
        self.cut.cancelled().await;
    }

    pub(crate) fn take_stopped(&self) -> Option<Error> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Sleeps until the clock says at least `due` (I12).
    pub(crate) async fn sleep_until(&self, due: Timestamp) {
        loop {
            let left = until(self.now(), due);
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }

    #[cfg(feature = "mutations")]
    pub(crate) fn mutated(&self, mutation: crate::mutation::Mutation) -> bool {
        self.options.mutation == Some(mutation)
    }
}

/// Whether this engine has the bug on purpose. Always `false` unless the feature `mutations` is on.
macro_rules! mutated {
    ($shared:expr, $mutation:ident) => {{
        #[cfg(feature = "mutations")]
        {
            $shared.mutated($crate::mutation::Mutation::$mutation)
        }
        #[cfg(not(feature = "mutations"))]
        {
            let _ = &$shared;
            false
        }
    }};
}
pub(crate) use mutated;

impl Component {
    /// The id of the sequence in which a letter for this message would stand.
    pub(crate) fn letter_sequence(&self, message: &Message, sequence: &SequenceId) -> SequenceId {
        match self.shared.options.retry.strategy {
            Strategy::Unordered | Strategy::Topics => SequenceId::alone(message),
            _ => sequence.clone(),
        }
    }
}

/// Counts a stored sequence as being worked on.
pub(crate) struct RunGuard(Arc<Component>);

impl RunGuard {
    pub(crate) fn new(component: &Arc<Component>) -> Self {
        component.shared.runs.fetch_add(1, Ordering::AcqRel);
        Self(component.clone())
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.0.shared.runs.fetch_sub(1, Ordering::AcqRel);
        // What was run may be due again.
        self.0.due.notify_one();
        self.0.turn_over.notify_one();
        self.0.shared.calmer.notify_one();
    }
}

/// How long it is from `now` to `due`; zero when that has passed.
pub(crate) fn until(now: Timestamp, due: Timestamp) -> Duration {
    Duration::try_from(due.duration_since(now)).unwrap_or(Duration::ZERO)
}

/// `now` and `delay` later, or the end of time.
pub(crate) fn later(now: Timestamp, delay: Duration) -> Timestamp {
    now.checked_add(delay).unwrap_or(Timestamp::MAX)
}

fn fresh_seed(clock: &dyn Clock) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's hash keys are the one source of randomness that needs no dependency.
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_i128(clock.now().as_nanosecond());
    hasher.write_u32(std::process::id());
    hasher.finish() | 1
}
