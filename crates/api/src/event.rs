//! What `/v1/events` tells. Never a payload, a key, a sequence or the text of an error.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::operation::Operation;
use crate::pause::PauseScope;
use crate::status::ConsumerState;
use crate::words::{Phase, State};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// An attempt failed.
    Failed,
    /// A message will be tried again.
    RetryScheduled,
    /// The retries of a message are used up.
    RetryExhausted,
    /// The same failure came back too often.
    Poison,
    /// A message became a letter.
    LetterStored,
    /// A letter left: handled at last, given up or skipped.
    LetterClosed,
    /// Somebody changed a letter.
    LetterChanged,
    /// A letter could not be stored. The message stays, the source waits.
    HandOffFailed,
    /// A known duplicate was acknowledged.
    Duplicate,
    /// The time of open letters ran out.
    Expired,
    /// Something was paused.
    Paused,
    /// A pause ended.
    Resumed,
    /// The breaker opened.
    BreakerOpened,
    /// The breaker closed.
    BreakerClosed,
    /// The fuse blew: the consumer is paused.
    FuseBlown,
    /// A partition came.
    Assigned,
    /// A partition went.
    Revoked,
    /// Positions could not be committed. They will be tried again.
    CommitFailed,
    /// A consumer started, stopped or failed.
    Consumer,
    /// An operation moved on.
    Operation,
    /// Events between the last one that was seen and this one are lost: look at everything anew.
    Reset,
}

impl EventKind {
    /// Every kind.
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

    /// The word used as the event's name.
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

/// Something that happened. Which fields are there depends on the kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// When.
    pub at: Timestamp,
    /// The consumer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// The queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The letter, or the one that the message would have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub letter: Option<String>,
    /// The state of the letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// The type of the event that the message is.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    /// The reason code of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How far the attempt had come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The fingerprint of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Which attempt it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// When it will be tried again, or the breaker lets attempts through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    /// How many letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub letters: Option<u64>,
    /// What kind of thing was paused or resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<PauseScope>,
    /// The partition: `stream/number`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Whether the consumer runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer_state: Option<ConsumerState>,
    /// What was done to the letter, and by whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Who did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// Why: what a person gave as the reason, or what Lazaret found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How the operation stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
}

impl Event {
    /// An event with nothing but its kind and its time.
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
    fn a_kind_is_written_as_it_is_named() {
        for kind in EventKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }
}
