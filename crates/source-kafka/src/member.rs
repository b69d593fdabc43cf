//! What librdkafka tells from its side: rebalances, errors and statistics.
//!
//! Its callbacks run while the consumer is polled. They only write down what happened. The source acts on it afterwards,
//! outside of the callback, because a rebalance has to wait for the engine and polling must not.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_core::Partition;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use serde::Deserialize;
use tokio::sync::Notify;

/// The client, with our callbacks.
pub(crate) type Client = BaseConsumer<Member>;

/// The two clients of a source: the member of the group, and the one that reads.
#[derive(Clone)]
pub(crate) struct Clients {
    pub(crate) group: Arc<Client>,
    pub(crate) reading: Arc<Client>,
}

/// A rebalance that the group asks for. It is over when [`assign`] or [`unassign`] was called.
#[derive(Debug)]
pub(crate) enum Change {
    Come(Vec<Partition>),
    Go {
        partitions: Vec<Partition>,
        /// They may be somebody else's already.
        lost: bool,
    },
}

/// What has been written down.
#[derive(Debug, Default)]
struct Notes {
    changes: VecDeque<Change>,
    /// What was said about the error that comes next.
    reason: String,
    /// The ends of partitions, as the statistics tell.
    ends: HashMap<Partition, u64>,
}

/// The side of a member that librdkafka talks to.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    notes: Mutex<Notes>,
    /// Something happened that is worth a look.
    wake: Arc<Notify>,
    /// The client has something to say.
    calls: AtomicBool,
    /// Something was written down since this was last asked: there may be more in the queue.
    served: AtomicBool,
    /// Nobody acts on what is written down any more.
    closing: AtomicBool,
    reads_committed: bool,
}

impl Member {
    /// The side of a client that wakes whoever waits for this.
    pub(crate) fn new(reads_committed: bool, wake: Arc<Notify>) -> Self {
        let shared = Shared {
            notes: Mutex::default(),
            wake,
            calls: AtomicBool::new(true),
            served: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            reads_committed,
        };
        Self { shared: Arc::new(shared) }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.shared.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, write: impl FnOnce(&mut Notes)) {
        write(&mut self.notes());
        self.shared.served.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        self.shared.wake.notify_one();
    }

    /// The client has something to say, besides records.
    pub(crate) fn call(&self) {
        self.shared.calls.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether the client had something to say since this was last asked.
    pub(crate) fn take_call(&self) -> bool {
        self.shared.calls.swap(false, Ordering::AcqRel)
    }

    /// Whether something was written down since this was last asked.
    pub(crate) fn take_served(&self) -> bool {
        self.shared.served.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn next_change(&self) -> Option<Change> {
        self.notes().changes.pop_front()
    }

    pub(crate) fn take_reason(&self) -> String {
        std::mem::take(&mut self.notes().reason)
    }

    /// Where a partition ends, as far as the statistics have told.
    pub(crate) fn end_of(&self, partition: &Partition) -> Option<u64> {
        self.notes().ends.get(partition).copied()
    }

    /// From now on rebalances are answered at once: nobody acts on them any more.
    pub(crate) fn close(&self) {
        self.shared.closing.store(true, Ordering::Release);
    }
}

impl ClientContext for Member {
    fn stats_raw(&self, statistics: &[u8]) {
        let Ok(statistics) = serde_json::from_slice::<Statistics<'_>>(statistics) else { return };
        self.note(|notes| {
            for (topic, TopicStatistics { partitions }) in statistics.topics {
                for (number, PartitionStatistics { hi_offset, ls_offset }) in partitions {
                    let end = if self.shared.reads_committed { ls_offset } else { hi_offset };
                    if let (Ok(number), Ok(end)) = (number.parse::<u32>(), u64::try_from(end)) {
                        notes.ends.insert(Partition::new(topic, number), end);
                    }
                }
            }
        });
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let is_end = error.rdkafka_error_code() == Some(RDKafkaErrorCode::PartitionEOF);
        if !is_end {
            tracing::debug!(%error, reason, "the Kafka client has trouble");
        }
        self.note(|notes| reason.clone_into(&mut notes.reason));
    }
}

impl ConsumerContext for Member {
    fn rebalance(&self, consumer: &Client, error: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let comes = error == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let partitions: Vec<Partition> =
            list.elements().iter().map(|e| partition(e.topic(), e.partition())).collect();
        if self.shared.closing.load(Ordering::Acquire) {
            let done = if comes { assign(consumer, &partitions) } else { unassign(consumer, &partitions) };
            if let Err(error) = done {
                tracing::warn!(%error, "a rebalance at the end failed");
            }
            return;
        }
        let lost = !comes && consumer.assignment_lost();
        self.note(|notes| {
            notes.changes.push_back(match comes {
                true => Change::Come(partitions),
                false => Change::Go { partitions, lost },
            });
        });
    }
}

/// Says to the group that these partitions, all of one [`Change`], are taken. This client reads none of them: it is told to
/// begin at the end, and to pause before it gets there.
pub(crate) fn assign(client: &Client, partitions: &[Partition]) -> KafkaResult<()> {
    let mut list = list_of(partitions);
    list.set_all_offsets(Offset::End)?;
    match client.rebalance_protocol() {
        RebalanceProtocol::Cooperative => client.incremental_assign(&list)?,
        RebalanceProtocol::Eager | RebalanceProtocol::None => client.assign(&list)?,
    }
    client.pause(&list)
}

/// Says to the group that these partitions, all of one [`Change`], were let go.
pub(crate) fn unassign(client: &Client, partitions: &[Partition]) -> KafkaResult<()> {
    match client.rebalance_protocol() {
        RebalanceProtocol::Cooperative => client.incremental_unassign(&list_of(partitions)),
        RebalanceProtocol::Eager | RebalanceProtocol::None => client.unassign(),
    }
}

/// The client's list of these partitions, without offsets.
pub(crate) fn list_of<'a>(partitions: impl IntoIterator<Item = &'a Partition>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        list.add_partition(partition.stream.as_str(), partition.index as i32);
    }
    list
}

/// Adds a partition with an offset to the client's list.
pub(crate) fn add_offset(list: &mut TopicPartitionList, partition: &Partition, offset: u64, metadata: &str) {
    let mut element = list.add_partition(partition.stream.as_str(), partition.index as i32);
    if element.set_offset(Offset::Offset(offset as i64)).is_ok() && !metadata.is_empty() {
        element.set_metadata(metadata);
    }
}

/// A partition by the client's names for it.
pub(crate) fn partition(topic: &str, number: i32) -> Partition {
    Partition::new(topic, number.unsigned_abs())
}

#[derive(Deserialize)]
struct Statistics<'a> {
    #[serde(borrow)]
    topics: HashMap<&'a str, TopicStatistics<'a>>,
}

#[derive(Deserialize)]
struct TopicStatistics<'a> {
    /// By number; there is one more, -1, for what is not known.
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
        for (reads_committed, end) in [(true, 7), (false, 9)] {
            let member = Member::new(reads_committed, Arc::default());
            member.stats_raw(statistics);
            assert_eq!(member.end_of(&Partition::new("orders", 0)), Some(end));
            assert_eq!(member.end_of(&Partition::new("orders", 1)), None);
        }
        Member::new(true, Arc::default()).stats_raw(b"no statistics");
    }
}
