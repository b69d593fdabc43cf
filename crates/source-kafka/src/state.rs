//! The state of a source, for monitoring.

/// The state of a [`KafkaSource`](crate::KafkaSource).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KafkaState {
    /// The source waits for its first assignment.
    Joining,
    /// The source is a member of its group and owns this many partitions.
    Reading(usize),
    /// The source had an error and is retrying.
    Error(String),
    /// The source has left the group.
    Closed,
}
