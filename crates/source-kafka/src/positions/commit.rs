//! Offset commits: what is sent for each partition, and the outcome.

use std::ops::RangeInclusive;

use lazaret_core::Partition;
use rdkafka::error::KafkaError;
use tokio::sync::oneshot;

/// The commit of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OffsetCommit {
    pub(crate) partition: Partition,
    /// The first offset that is not settled.
    pub(crate) offset: u64,
    /// The ranges that are settled beyond it.
    pub(crate) settled_beyond: Vec<RangeInclusive<u64>>,
    /// The maximum number of characters of metadata.
    pub(crate) metadata_limit: usize,
    /// The settled ranges, encoded.
    pub(crate) metadata: String,
    /// The assignment of the partition that it belongs to.
    pub(crate) assignment_id: u64,
}

/// Partitions that were committed in one request, and its outcome.
pub(crate) type CommitOutcome = (Vec<OffsetCommit>, Result<(), KafkaError>);

/// A commit in progress.
pub(crate) type PendingCommit = oneshot::Receiver<Vec<CommitOutcome>>;
