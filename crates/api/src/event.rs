//! Events of `/v1/events`. They contain no payload, key or sequence. The only error text is that of a
//! failed consumer.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::enums::{Phase, State};
use crate::operation::Operation;
use crate::pause::PauseScope;
use crate::status::ConsumerState;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum EventKind {
    /// An attempt failed.
    Failed,
    /// A retry was scheduled.
    RetryScheduled,
    /// The retries of a message were exhausted.
    RetryExhausted,
    /// A message failed the same way too often.
    Poison,
    /// A letter was stored.
    LetterStored,
    /// A letter was closed: handled, evicted or skipped.
    LetterClosed,
    /// A letter was changed by a person.
    LetterChanged,
    /// A letter hand-off failed. The source is held, nothing is lost.
    HandOffFailed,
    /// A duplicate was acknowledged.
    Duplicate,
    /// Open letters expired.
    Expired,
    /// A consumer or a part of it was paused.
    Paused,
    /// A consumer or a part of it was resumed.
    Resumed,
    /// The circuit breaker opened.
    BreakerOpened,
    /// The circuit breaker closed.
    BreakerClosed,
    /// The fuse blew and paused the consumer.
    FuseBlown,
    /// A partition was assigned.
    Assigned,
    /// A partition was revoked.
    Revoked,
    /// A position commit failed. It is retried.
    CommitFailed,
    /// A consumer started, stopped or failed.
    Consumer,
    /// An operation made progress.
    Operation,
    /// Events since the last one received were lost: reload all state.
    Reset,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 21] = [
        Self::Failed,
        Self::RetryScheduled,
        Self::RetryExhausted,
        Self::Poison,
        Self::LetterStored,
        Self::LetterClosed,
        Self::LetterChanged,
        Self::HandOffFailed,
        Self::Duplicate,
        Self::Expired,
        Self::Paused,
        Self::Resumed,
        Self::BreakerOpened,
        Self::BreakerClosed,
        Self::FuseBlown,
        Self::Assigned,
        Self::Revoked,
        Self::CommitFailed,
        Self::Consumer,
        Self::Operation,
        Self::Reset,
    ];

    /// Returns the name of the event.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::RetryScheduled => "retry-scheduled",
            Self::RetryExhausted => "retry-exhausted",
            Self::Poison => "poison",
            Self::LetterStored => "letter-stored",
            Self::LetterClosed => "letter-closed",
            Self::LetterChanged => "letter-changed",
            Self::HandOffFailed => "hand-off-failed",
            Self::Duplicate => "duplicate",
            Self::Expired => "expired",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::BreakerOpened => "breaker-opened",
            Self::BreakerClosed => "breaker-closed",
            Self::FuseBlown => "fuse-blown",
            Self::Assigned => "assigned",
            Self::Revoked => "revoked",
            Self::CommitFailed => "commit-failed",
            Self::Consumer => "consumer",
            Self::Operation => "operation",
            Self::Reset => "reset",
        }
    }
}

/// An event. Which fields are present depends on the kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Event {
    /// The kind.
    pub kind: EventKind,
    /// The time.
    pub at: Timestamp,
    /// The consumer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// The queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The id of the letter, or the id that a letter of the message would have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub letter: Option<String>,
    /// The state of the letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// The event type of the message.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    /// The reason code of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The phase in which the attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The fingerprint of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The attempt number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// When the retry is due, or when the circuit breaker half-opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    /// The number of letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub letters: Option<u64>,
    /// The scope that was paused or resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<PauseScope>,
    /// The partition: `stream/number`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The state of the consumer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer_state: Option<ConsumerState>,
    /// The change to the letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Who made the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
}

impl Event {
    /// Creates an event with only a kind and a time.
    pub const fn new(kind: EventKind, at: Timestamp) -> Self {
        Self {
            kind,
            at,
            consumer: None,
            queue: None,
            letter: None,
            state: None,
            event_type: None,
            reason: None,
            phase: None,
            group: None,
            attempt: None,
            due_at: None,
            letters: None,
            scope: None,
            partition: None,
            consumer_state: None,
            action: None,
            who: None,
            why: None,
            operation: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_serialized_as_its_name() {
        for kind in EventKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }
}
