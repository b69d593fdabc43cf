//! The content of one framework's failure headers.

use lazaret_core::{Failure, Phase, Timestamp};

/// The phase of a failure whose headers do not name one.
pub(super) const DEFAULT_PHASE: Phase = Phase::Handle;

/// The content of one framework's failure headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FailureInfo {
    pub(super) topic: Option<String>,
    pub(super) partition: Option<u32>,
    pub(super) offset: Option<u64>,
    pub(super) timestamp: Option<Timestamp>,
    /// Whether the framework keeps the timestamp of the record.
    pub(super) keeps_time: bool,
    pub(super) group: Option<String>,
    pub(super) failure: Option<Failure>,
    pub(super) attempts: Option<u32>,
    pub(super) first_failed_at: Option<Timestamp>,
    pub(super) last_failed_at: Option<Timestamp>,
}

/// The original position of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) topic: String,
    pub(super) partition: u32,
    pub(super) offset: u64,
}

impl FailureInfo {
    /// Returns the original position if it is complete.
    pub(super) fn origin(&self) -> Option<Origin> {
        let topic = self.topic.clone().filter(|topic| !topic.is_empty())?;
        Some(Origin { topic, partition: self.partition?, offset: self.offset? })
    }
}
