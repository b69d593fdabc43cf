//! A component: one handler of a consumer, its queue, and the parts of the consumer that it works with.

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

/// One handler of a consumer, with its own queue.
pub(crate) struct Component {
    pub(crate) index: usize,
    pub(crate) queue: QueueName,
    pub(crate) handler: BoxHandler,
    pub(crate) signals: QueueSignals,
    /// The stored sequences that run now.
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

/// Wakes the tasks of one queue, and holds the state that they publish.
#[derive(Debug)]
pub(crate) struct QueueSignals {
    /// A letter may be due: wakes the retry scheduler.
    pub(crate) retry: Notify,
    /// A stored run ended or an operation began: wakes the task that carries out operations.
    pub(crate) replay: Notify,
    /// `true` while operations on the queue are under way, and until the store has been asked.
    pub(crate) operations_active: AtomicBool,
    /// The highest revision of the queue whose open sequences were sent to the shards.
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
    /// Returns the current time of the consumer's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Sleeps until the clock shows at least `due` (I12).
    pub(crate) async fn sleep_until(&self, due: Timestamp) {
        time::sleep_until(&*self.clock, due).await;
    }

    /// Returns the hash of a sequence id.
    pub(crate) fn hash(&self, sequence: &SequenceId) -> SequenceHash {
        self.identity.hasher.hash(sequence.as_str())
    }

    /// Returns the retry policy for a message that failed for this reason: the first override that
    /// applies, else the policy of its route, else the consumer's. A handler that panics here has no
    /// policy of its own (I10).
    pub(crate) fn retry_policy(&self, message: &Message, reason: Option<&Reason>) -> &RetryPolicy {
        let overrides = &self.options.retry_overrides;
        if let Some(over) = overrides.iter().find(|over| over.applies(message, reason)) {
            return &over.policy;
        }
        let of_route = guarded(|| self.handler.retry_policy(message)).ok().flatten();
        of_route.unwrap_or(&self.options.retry)
    }

    /// Returns the limits on the attempts of a message that failed for this reason.
    pub(crate) fn limits(&self, message: &Message, reason: Option<&Reason>) -> RetryLimits<'_> {
        RetryLimits { retry: self.retry_policy(message, reason), poison: &self.options.poison }
    }

    /// Returns the failure with the fingerprint that the consumer's grouping rules give it. Call it once
    /// the failure is complete.
    pub(crate) fn grouped(&self, mut failure: Failure, message: &Message) -> Failure {
        let rules = &self.options.grouping;
        // A new failure has the fingerprint of the default rules.
        if *rules != Grouping::default() {
            failure.fingerprint = rules.fingerprint(&failure, message.event_type.as_deref());
        }
        failure
    }

    /// Returns the id of the sequence that a letter of this message belongs to.
    pub(crate) fn letter_sequence(&self, message: &Message, sequence: &SequenceId) -> SequenceId {
        match self.options.retry.strategy {
            Strategy::Unordered | Strategy::Topics => SequenceId::alone(message),
            _ => sequence.clone(),
        }
    }
}
