//! The state of each partition in the intake.

use std::ops::RangeInclusive;
use std::sync::Arc;

use lazaret_core::source::Ownership;
use lazaret_core::store::{AttemptNote, Grant};
use lazaret_core::{Message, Partition};
use tokio::time::Instant;
use tokio_util::sync::DropGuard;

use super::delay_queue::Usage;
use crate::ownership::PartitionOwnership;
use crate::tracker::Tracker;

/// A partition, from its assignment to its revocation.
pub(super) struct Slot {
    pub(super) partition: Partition,
    pub(super) generation: u32,
    pub(super) stage: Stage,
    pub(super) tracker: Tracker,
    /// The offsets that were settled before this assignment.
    pub(super) settled: Vec<RangeInclusive<u64>>,
    /// `true` while the source holds this partition.
    pub(super) held: bool,
    /// The partition's share of the delay queue.
    pub(super) delayed: Usage,
}

pub(super) enum Stage {
    /// The partition is not assigned.
    Free,
    /// The store is being queried. Messages that already arrived wait. Dropping the guard cancels the
    /// query.
    Preparing { waiting: Vec<Message>, ownership: Ownership, _unwanted: DropGuard },
    /// Messages flow.
    Live(Arc<PartitionOwnership>),
    /// The partition is being revoked. `revoked` means that the source waits for our confirmation.
    Revoking { ownership: Option<Arc<PartitionOwnership>>, deadline: Instant, revoked: bool },
}

/// The grants and notes of an assigned partition, one entry per component.
pub(super) type Known = Vec<(Grant, Vec<AttemptNote>)>;

/// A partition whose position is being committed.
pub(super) struct Moved {
    pub(super) slot: usize,
    pub(super) generation: u32,
    /// The position; `None` if the watermark has not moved since the assignment.
    pub(super) offset: Option<u64>,
}

/// The result of a background task.
pub(super) enum Background {
    /// The store answered the query for an assigned partition.
    Prepared(usize, u32, Known),
    /// A fenced partition may be read again.
    Rewind { slot: usize, generation: u32 },
    /// No follow-up is needed.
    Done,
}
