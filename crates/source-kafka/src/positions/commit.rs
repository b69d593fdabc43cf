//! Offset commits: the request for each partition, and the outcome.

use std::ops::RangeInclusive;
use std::sync::Arc;

use lazaret_core::Partition;
use rdkafka::error::KafkaError;
use tokio::sync::oneshot;

use super::metadata::CommitKey;

/// The commit of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OffsetCommit {
    pub(crate) partition: Partition,
    /// The first offset that is not settled.
    pub(crate) offset: u64,
    /// The settled ranges beyond it.
    pub(crate) settled_beyond: Vec<RangeInclusive<u64>>,
    /// The maximum number of characters of metadata.
    pub(crate) metadata_limit: usize,
    /// The settled ranges and the ids of topic and store, encoded.
    pub(crate) metadata: String,
    /// The id of the topic, if its broker has reported it.
    pub(crate) log: Option<Arc<str>>,
    /// The id of the assignment that the commit belongs to.
    pub(crate) assignment_id: u64,
}

impl OffsetCommit {
    /// Returns the key that the metadata belongs to.
    pub(crate) fn key(&self) -> CommitKey<'_> {
        CommitKey::of(&self.partition, self.offset, self.log.as_deref())
    }
}

/// Partitions that were committed in one request, and the outcome of the request.
pub(crate) type CommitOutcome = (Vec<OffsetCommit>, Result<(), KafkaError>);

/// A commit in progress.
pub(crate) type PendingCommit = oneshot::Receiver<Vec<CommitOutcome>>;
