//! librdkafka's callbacks: rebalances, errors and statistics.
//!
//! The callbacks run while the consumer is polled, and only record what happened. The source acts on it
//! later, outside the callback: a rebalance has to wait for the engine, but polling must not.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lazaret_core::Partition;
use lazaret_core::source::{Ownership, SourceError};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientConfig, ClientContext, TopicPartitionList};
use serde::Deserialize;
use tokio::sync::Notify;

use super::assignment::{assign, partition, unassign};
use crate::error::config_error;

/// The client with these callbacks.
pub(crate) type Client = BaseConsumer<Callbacks>;

/// The two clients of a source: the group member, and the client that fetches.
#[derive(Clone)]
pub(crate) struct Clients {
    pub(crate) group: Arc<Client>,
    pub(crate) fetcher: Arc<Client>,
}

/// A rebalance that the group requests. [`assign`] or [`unassign`] completes it.
#[derive(Debug)]
pub(crate) enum Rebalance {
    Assigned(Vec<Partition>),
    Revoked {
        partitions: Vec<Partition>,
        /// Whether another member may already own the partitions.
        lost: bool,
    },
}

/// The events that the callbacks recorded.
#[derive(Debug, Default)]
struct Recorded {
    rebalances: VecDeque<Rebalance>,
    /// The description of the next error that is polled.
    reason: String,
    /// The end offsets of partitions, from the statistics.
    ends: HashMap<Partition, u64>,
    /// The time of the last statistics with a connected broker.
    connected_at: Option<Instant>,
    /// How long the client is certainly a member of its group. Each loss starts a new one.
    ownership: Ownership,
    /// When the client was last polled, and the time before that, by the clock of the ownership.
    polled: (Duration, Duration),
}

impl Recorded {
    /// Records that the partitions may belong to other members. Anything later is a new membership.
    fn lose(&mut self) {
        self.ownership.end();
        self.ownership = Ownership::leased();
    }
}

/// The context of a client.
#[derive(Clone, Debug)]
pub(crate) struct Callbacks {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    recorded: Mutex<Recorded>,
    /// Wakes the owner of the client.
    wake: Arc<Notify>,
    /// Whether the client has events to poll.
    pending: AtomicBool,
    /// Whether a callback ran since the last check, so that the queue may hold more.
    served: AtomicBool,
    /// Whether the source is closing, so that rebalances are answered at once.
    closing: AtomicBool,
    read_committed: bool,
    /// How long a membership stays certain after a proof. Zero for a client that is not a member.
    membership_lasts: Duration,
}

impl Callbacks {
    /// Creates callbacks that notify `wake`.
    pub(crate) fn new(read_committed: bool, wake: Arc<Notify>) -> Self {
        Self::with(Recorded::default(), read_committed, wake, Duration::ZERO)
    }

    /// Creates callbacks for the client that is the group member. After a proof, the membership is
    /// certain for this long.
    pub(crate) fn of_member(read_committed: bool, wake: Arc<Notify>, membership_lasts: Duration) -> Self {
        let recorded = Recorded { ownership: Ownership::leased(), ..Recorded::default() };
        Self::with(recorded, read_committed, wake, membership_lasts)
    }

    fn with(recorded: Recorded, read_committed: bool, wake: Arc<Notify>, membership_lasts: Duration) -> Self {
        let shared = Shared {
            recorded: Mutex::new(recorded),
            wake,
            pending: AtomicBool::new(true),
            served: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            read_committed,
            membership_lasts,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns how long the client is certainly a member of its group.
    pub(crate) fn ownership(&self) -> Ownership {
        self.recorded().ownership.clone()
    }

    /// Ends the membership, because the group has expelled the client.
    pub(crate) fn end_ownership(&self) {
        self.recorded().lose();
    }

    /// Records that the client is being polled now.
    pub(crate) fn begin_poll(&self) {
        let mut recorded = self.recorded();
        recorded.polled = (recorded.ownership.now(), recorded.polled.0);
    }

    /// Creates a client with these callbacks.
    pub(crate) fn connect(&self, config: &ClientConfig) -> Result<Arc<Client>, SourceError> {
        let mut client = Client::from_config_and_context(config, self.clone()).map_err(config_error)?;
        let callbacks = self.clone();
        client.set_nonempty_callback(move || callbacks.set_pending());
        Ok(Arc::new(client))
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.shared.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, write: impl FnOnce(&mut Recorded)) {
        write(&mut self.recorded());
        self.shared.served.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        self.shared.wake.notify_one();
    }

    fn set_pending(&self) {
        self.shared.pending.store(true, Ordering::Release);
        self.wake();
    }

    /// Returns `true` if the client had events to poll since the last call.
    pub(crate) fn take_pending(&self) -> bool {
        self.shared.pending.swap(false, Ordering::AcqRel)
    }

    /// Returns `true` if a callback ran since the last call.
    pub(crate) fn take_served(&self) -> bool {
        self.shared.served.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn next_rebalance(&self) -> Option<Rebalance> {
        self.recorded().rebalances.pop_front()
    }

    pub(crate) fn take_reason(&self) -> String {
        std::mem::take(&mut self.recorded().reason)
    }

    /// Returns the end offset of a partition, if the statistics contained it.
    pub(crate) fn end_of(&self, partition: &Partition) -> Option<u64> {
        // The statistics do not know incarnations.
        self.recorded().ends.get(&partition.in_incarnation(0)).copied()
    }

    /// Returns `true` if a broker is connected, according to statistics received after this time.
    pub(crate) fn is_connected_since(&self, time: Instant) -> bool {
        self.recorded().connected_at.is_some_and(|at| at > time)
    }

    /// Makes the callbacks answer rebalances at once from now on.
    pub(crate) fn close(&self) {
        self.shared.closing.store(true, Ordering::Release);
    }
}

impl ClientContext for Callbacks {
    fn stats_raw(&self, statistics: &[u8]) {
        let Ok(statistics) = serde_json::from_slice::<Statistics<'_>>(statistics) else { return };
        let is_connected = statistics.brokers.values().any(|broker| broker.state == "UP");
        self.record(|recorded| {
            if is_connected {
                recorded.connected_at = Some(Instant::now());
            }
            for (topic, TopicStatistics { partitions }) in statistics.topics {
                for (number, PartitionStatistics { hi_offset, ls_offset }) in partitions {
                    let end = if self.shared.read_committed { ls_offset } else { hi_offset };
                    if let (Ok(number), Ok(end)) = (number.parse::<u32>(), u64::try_from(end)) {
                        recorded.ends.insert(Partition::new(topic, number), end);
                    }
                }
            }
        });
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let is_end = error.rdkafka_error_code() == Some(RDKafkaErrorCode::PartitionEOF);
        if !is_end {
            tracing::debug!(%error, reason, "client error received");
        }
        self.record(|recorded| reason.clone_into(&mut recorded.reason));
    }
}

impl ConsumerContext for Callbacks {
    fn rebalance(&self, consumer: &Client, error: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let is_assignment = error == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let partitions: Vec<Partition> =
            list.elements().iter().map(|e| partition(e.topic(), e.partition())).collect();
        if self.shared.closing.load(Ordering::Acquire) {
            let answered = match is_assignment {
                true => assign(consumer, &partitions),
                false => unassign(consumer, &partitions),
            };
            if let Err(error) = answered {
                tracing::warn!(%error, "rebalance failed while the source was closing");
            }
            return;
        }
        let lost = !is_assignment && consumer.assignment_lost();
        self.record(|recorded| {
            match is_assignment {
                // The group has answered since the poll before this one. That poll did not see the answer.
                true => recorded.ownership.confirm(recorded.polled.1, self.shared.membership_lasts),
                false if lost => recorded.lose(),
                false => {}
            }
            recorded.rebalances.push_back(match is_assignment {
                true => Rebalance::Assigned(partitions),
                false => Rebalance::Revoked { partitions, lost },
            });
        });
    }
}

#[derive(Deserialize)]
struct Statistics<'a> {
    #[serde(borrow)]
    topics: HashMap<&'a str, TopicStatistics<'a>>,
    #[serde(borrow, default)]
    brokers: HashMap<&'a str, BrokerStatistics<'a>>,
}

#[derive(Deserialize)]
struct BrokerStatistics<'a> {
    state: &'a str,
}

#[derive(Deserialize)]
struct TopicStatistics<'a> {
    /// The partitions by number. librdkafka adds one with the number -1 for records without a partition.
    #[serde(borrow)]
    partitions: HashMap<&'a str, PartitionStatistics>,
}

#[derive(Deserialize)]
struct PartitionStatistics {
    hi_offset: i64,
    ls_offset: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_partitions_are_read_from_the_statistics() {
        let statistics = br#"{"name": "x", "topics": {"orders": {"topic": "orders", "partitions": {
            "0": {"partition": 0, "hi_offset": 9, "ls_offset": 7}, "1": {"hi_offset": -1001, "ls_offset": -1001},
            "-1": {"hi_offset": 5, "ls_offset": 5}}}}}"#;
        for (read_committed, end) in [(true, 7), (false, 9)] {
            let callbacks = Callbacks::new(read_committed, Arc::default());
            callbacks.stats_raw(statistics);
            assert_eq!(callbacks.end_of(&Partition::new("orders", 0)), Some(end));
            assert_eq!(callbacks.end_of(&Partition::new("orders", 1)), None);
        }
        Callbacks::new(true, Arc::default()).stats_raw(b"no statistics");
    }

    #[test]
    fn a_broker_is_connected_when_later_statistics_say_so() {
        let (callbacks, failed_at) = (Callbacks::new(true, Arc::default()), Instant::now());
        let statistics = |state| {
            format!(
                r#"{{"brokers": {{"kafka:9092/1": {{"name": "x", "state": "{state}"}}}}, "topics": {{}}}}"#
            )
        };
        callbacks.stats_raw(statistics("TRY_CONNECT").as_bytes());
        assert!(!callbacks.is_connected_since(failed_at));
        callbacks.stats_raw(statistics("UP").as_bytes());
        assert!(callbacks.is_connected_since(failed_at));
        assert!(!callbacks.is_connected_since(Instant::now()));
    }
}
