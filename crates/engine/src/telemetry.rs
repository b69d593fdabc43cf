//! Reports a consumer's activity: events to observers, counters and gauges.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lazaret_core::{Message, QueueName, SequenceId};

use crate::events::{Event, Observer};

/// Reports the events, counters and gauges of one consumer.
#[derive(Default)]
pub(crate) struct Telemetry {
    observers: Vec<Arc<dyn Observer>>,
    pub(crate) counters: Counters,
    pub(crate) gauges: Gauges,
}

impl Telemetry {
    pub(crate) fn new(observers: Vec<Arc<dyn Observer>>) -> Self {
        Self { observers, ..Self::default() }
    }

    /// Reports an event to all observers.
    pub(crate) fn emit(&self, event: &Event<'_>) {
        for observer in &self.observers {
            // I10: a panicking observer loses its own event and nothing else.
            let _ = catch_unwind(AssertUnwindSafe(|| observer.on(event)));
        }
    }

    /// Counts and reports a lease that was lost during a run.
    pub(crate) fn report_lost_lease(&self, queue: &QueueName, sequence: &SequenceId) {
        Counters::add(&self.counters.leases_lost, 1);
        tracing::warn!(%queue, %sequence, "lease lost, run of the sequence stopped");
        self.emit(&Event::LeaseLost { queue, sequence });
    }

    /// Counts and logs a message whose id belongs to another message.
    pub(crate) fn report_id_conflict(&self, queue: &QueueName, message: &Message) {
        Counters::add(&self.counters.id_conflicts, 1);
        let (stream, position) = message.place();
        tracing::warn!(
            queue = queue.as_str(),
            stream = stream.as_str(),
            %position,
            "message has the id of another message and was given an id of its own"
        );
    }

    /// Counts and reports a known duplicate.
    pub(crate) fn report_duplicate(&self, queue: &QueueName, message: &Message) {
        Counters::add(&self.counters.duplicates, 1);
        self.emit(&Event::Duplicate { queue, message });
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// The live counters of a consumer.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64),+ }

        /// The counters of a consumer since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats { $($(#[$doc])* pub $name: u64),+ }

        impl Counters {
            pub(crate) fn read(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed)),+ }
            }
        }
    };
}

counters! {
    /// Messages that a handler processed, live or from the store.
    handled,
    /// Messages that the filter rejected.
    filtered,
    /// Failed attempts.
    failed,
    /// Attempts after the first.
    retries,
    /// Messages that became letters.
    handed_off,
    /// Messages appended behind an open sequence.
    appended,
    /// Known duplicates.
    duplicates,
    /// Messages that had the id of another message and received an id of their own.
    id_conflicts,
    /// Letters that were resolved by a handler.
    resolved,
    /// Messages that were skipped with an audit entry.
    skipped,
    /// Store calls for hand-off that failed.
    hand_off_failures,
    /// Messages that were relayed to the broker.
    relayed,
    /// Failed calls to relay a message.
    relay_failures,
    /// Leases of stored sequences that were lost during a run.
    leases_lost,
    /// Commits that succeeded.
    commits,
    /// Messages read from the source.
    read,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// Represents an unknown lag.
const UNKNOWN: u64 = u64::MAX;

/// Values that go up and down. The intake writes them, handles read them.
#[derive(Debug)]
pub(crate) struct Gauges {
    in_flight: AtomicU64,
    lag: AtomicU64,
    /// The error after which the source is being retried.
    source_error: Mutex<Option<String>>,
}

impl Default for Gauges {
    fn default() -> Self {
        Self { in_flight: AtomicU64::new(0), lag: AtomicU64::new(UNKNOWN), source_error: Mutex::new(None) }
    }
}

impl Gauges {
    pub(crate) fn publish_in_flight(&self, in_flight: usize) {
        self.in_flight.store(in_flight as u64, Ordering::Relaxed);
    }

    pub(crate) fn publish_lag(&self, lag: Option<u64>) {
        self.lag.store(lag.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    pub(crate) fn publish_source_error(&self, error: Option<String>) {
        *self.source_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    pub(crate) fn source_error(&self) -> Option<String> {
        self.source_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn lag(&self) -> Option<u64> {
        Some(self.lag.load(Ordering::Relaxed)).filter(|lag| *lag != UNKNOWN)
    }
}
