//! One handler of a consumer with its queue, and the parts of the consumer that it works with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use lazaret_core::handler::BoxHandler;
use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::store::Store;
use lazaret_core::{Clock, Failure, Grouping, Message, QueueName, Reason, SequenceId, Timestamp};
use tokio::sync::Notify;

use crate::ages::Ages;
use crate::dedupe::DuplicateFilter;
use crate::flight::Flight;
use crate::guards::Guards;
use crate::hand_offs::HandOffs;
use crate::hash::SequenceHash;
use crate::identity::Identity;
use crate::lifecycle::Lifecycle;
use crate::limits::RetryLimits;
use crate::options::Options;
use crate::panics::guarded;
use crate::store_clock::StoreClock;
use crate::stored::ActiveRuns;
use crate::telemetry::Telemetry;
use crate::time;

/// One handler of a consumer, with a queue of its own.
pub(crate) struct Component {
    pub(crate) index: usize,
    pub(crate) queue: QueueName,
    pub(crate) handler: BoxHandler,
    pub(crate) signals: QueueSignals,
    /// The stored sequences that are being run.
    pub(crate) active_runs: ActiveRuns,
    pub(crate) options: Arc<Options>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) clock: Arc<StoreClock>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) hand_offs: HandOffs,
    pub(crate) guards: Arc<Guards>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) ages: Ages,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) flight: Arc<Flight>,
    pub(crate) dedupe: Option<Arc<DuplicateFilter>>,
}

/// Wakes the tasks that work on one queue, and what they publish about it.
#[derive(Debug)]
pub(crate) struct QueueSignals {
    /// A letter may be due: wakes the retry scheduler.
    pub(crate) retry: Notify,
    /// A stored run ended or an operation began: wakes the task that carries out operations.
    pub(crate) replay: Notify,
    /// Operations on the queue are under way, or the store has not been asked yet.
    pub(crate) operations_active: AtomicBool,
    /// The highest revision of the queue that was listed to the shards.
    pub(crate) revision: AtomicU64,
}

impl Default for QueueSignals {
    fn default() -> Self {
        Self {
            retry: Notify::new(),
            replay: Notify::new(),
            operations_active: AtomicBool::new(true),
            revision: AtomicU64::new(0),
        }
    }
}

impl Component {
    /// The time of the consumer's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Sleeps until the clock shows at least `due` (I12).
    pub(crate) async fn sleep_until(&self, due: Timestamp) {
        time::sleep_until(&*self.clock, due).await;
    }

    /// The hash of a sequence id.
    pub(crate) fn hash(&self, sequence: &SequenceId) -> SequenceHash {
        self.identity.hasher.hash(sequence.as_str())
    }

    /// The retry policy of a message that failed for this reason: the first override that applies, that of its route, or else the
    /// consumer's. A handler that panics here has none (I10).
    pub(crate) fn retry_policy(&self, message: &Message, reason: Option<&Reason>) -> &RetryPolicy {
        let overrides = &self.options.retry_overrides;
        if let Some(over) = overrides.iter().find(|over| over.applies(message, reason)) {
            return &over.policy;
        }
        let of_route = guarded(|| self.handler.retry_policy(message)).ok().flatten();
        of_route.unwrap_or(&self.options.retry)
    }

    /// The limits on the attempts of a message that failed for this reason.
    pub(crate) fn limits(&self, message: &Message, reason: Option<&Reason>) -> RetryLimits<'_> {
        RetryLimits { retry: self.retry_policy(message, reason), poison: &self.options.poison }
    }

    /// The failure of a message, with the fingerprint by the grouping rules of the consumer. It needs all parts of the failure.
    pub(crate) fn grouped(&self, mut failure: Failure, message: &Message) -> Failure {
        let rules = &self.options.grouping;
        // A failure is made with the fingerprint by the default rules.
        if *rules != Grouping::default() {
            failure.fingerprint = rules.fingerprint(&failure, message.event_type.as_deref());
        }
        failure
    }

    /// The id of the sequence that a letter of this message belongs to.
    pub(crate) fn letter_sequence(&self, message: &Message, sequence: &SequenceId) -> SequenceId {
        match self.options.retry.strategy {
            Strategy::Unordered | Strategy::Topics => SequenceId::alone(message),
            _ => sequence.clone(),
        }
    }
}
