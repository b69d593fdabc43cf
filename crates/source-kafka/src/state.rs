//! The state of a source, for monitoring.

/// State of a [`KafkaSource`](crate::KafkaSource).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KafkaState {
    /// Waits for its first assignment.
    Joining,
    /// Is a member of its group and owns this many partitions.
    Reading(usize),
    /// Met an error and retries.
    Error(String),
    /// Left the group.
    Closed,
}
