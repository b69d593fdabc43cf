//! Enums that mirror the core's enums. The macro keeps them in step at compile time.

use std::fmt;
use std::str::FromStr;

use lazaret_core::{letter, store};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The error for an unknown name of an enum value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown value {given:?}, expected one of {expected}")]
pub struct UnknownValue {
    /// The name that was given.
    pub given: String,
    /// The known names, separated by commas.
    pub expected: String,
}

impl UnknownValue {
    pub(crate) fn new(given: &str, expected: &[&str]) -> Self {
        Self { given: given.to_owned(), expected: expected.join(", ") }
    }
}

/// Defines an enum that mirrors an enum of the core. A value missing on either side does not compile.
macro_rules! mirrored_enum {
    ($(#[$doc:meta])* $name:ident mirrors $core:path { $($(#[$value_doc:meta])* $value:ident = $text:tt),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        pub enum $name {
            $($(#[$value_doc])* #[serde(rename = $text)] $value),+
        }

        impl $name {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$value),+];

            /// Returns the name on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$value => $text),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownValue;

            fn from_str(text: &str) -> Result<Self, UnknownValue> {
                let found = Self::ALL.iter().copied().find(|value| value.as_str() == text);
                found.ok_or_else(|| {
                    let all: Vec<&str> = Self::ALL.iter().map(|value| value.as_str()).collect();
                    UnknownValue::new(text, &all)
                })
            }
        }

        impl From<$core> for $name {
            fn from(value: $core) -> Self {
                match value { $(<$core>::$value => Self::$value),+ }
            }
        }

        impl From<$name> for $core {
            fn from(value: $name) -> Self {
                match value { $($name::$value => Self::$value),+ }
            }
        }
    };
}

mirrored_enum! {
    /// The state of a letter.
    State mirrors letter::LetterState {
        /// Retried automatically at its due time.
        Retrying = "retrying",
        /// Not retried automatically.
        Dead = "dead",
        /// Held until a person or a deployment changes something.
        Parked = "parked",
        /// Isolated as suspicious.
        Quarantined = "quarantined",
        /// Blocked behind the head of its sequence, with no cause of its own.
        Waiting = "waiting",
        /// Closed: handled.
        Resolved = "resolved",
        /// Closed: evicted by a person or a policy.
        Evicted = "evicted",
        /// Closed: skipped on purpose.
        Skipped = "skipped",
        /// Closed: expired.
        Expired = "expired",
    }
}

mirrored_enum! {
    /// The phase in which an attempt failed.
    Phase mirrors lazaret_core::Phase {
        /// Decoding the payload.
        Decode = "decode",
        /// Filtering.
        Filter = "filter",
        /// Validating the content.
        Validate = "validate",
        /// Running the handler.
        Handle = "handle",
        /// An external call, which may have had its effect.
        ExternalCall = "external-call",
        /// Acknowledging the message.
        Ack = "ack",
    }
}

mirrored_enum! {
    /// The origin of an attempt.
    AttemptKind mirrors letter::AttemptKind {
        /// The live stream.
        Live = "live",
        /// The retry scheduler.
        Retry = "retry",
        /// A replay.
        Replay = "replay",
    }
}

mirrored_enum! {
    /// The action of an operation.
    Action mirrors store::Action {
        /// Run the handler again.
        Retry = "retry",
        /// Close the letter without handling it.
        Evict = "evict",
        /// Hold the letter until it is released.
        Park = "park",
        /// Schedule a retry with fresh attempts.
        Release = "release",
    }
}

mirrored_enum! {
    /// A manual change to one letter.
    Act mirrors store::Act {
        /// Close the letter without handling it; `restore` reopens it until it is purged.
        Evict = "evict",
        /// Mark the letter as handled by other means.
        Resolve = "resolve",
        /// Hold the letter until it is released.
        Park = "park",
        /// Isolate the letter.
        Quarantine = "quarantine",
        /// Schedule a retry now, with fresh attempts.
        Release = "release",
        /// Reopen an evicted letter as `dead` in its old position.
        Restore = "restore",
    }
}

mirrored_enum! {
    /// A command to an operation.
    Command mirrors store::Command {
        /// Pause. Running attempts finish.
        Pause = "pause",
        /// Resume. The stop rule counts from zero.
        Resume = "resume",
        /// Cancel. Letters that were not attempted are skipped.
        Cancel = "cancel",
        /// Approve, as a second person.
        Approve = "approve",
        /// Reject, as a second person.
        Reject = "reject",
    }
}

mirrored_enum! {
    /// The state of an operation.
    OperationState mirrors store::OperationState {
        /// Awaiting a second person's approval.
        AwaitingApproval = "awaiting-approval",
        /// Scheduled for a later start.
        Scheduled = "scheduled",
        /// Running.
        Running = "running",
        /// Paused by a person or by the stop rule.
        Paused = "paused",
        /// Completed: every letter has an outcome.
        Done = "done",
        /// Cancelled by a person.
        Cancelled = "cancelled",
        /// Rejected by the second person.
        Rejected = "rejected",
    }
}

impl OperationState {
    /// Returns `true` if the operation starts no further attempts.
    pub fn is_over(self) -> bool {
        store::OperationState::from(self).is_over()
    }
}

mirrored_enum! {
    /// The outcome of one letter in an operation.
    Outcome mirrors store::Outcome {
        /// Handled, or changed as requested.
        Ok = "ok",
        /// The handler failed again.
        FailedAgain = "failed-again",
        /// Not attempted: an earlier letter of its sequence failed in this operation.
        SkippedBehindFailed = "skipped-behind-failed",
        /// Not attempted: the letter changed in the meantime.
        SkippedChanged = "skipped-changed",
        /// Not attempted: the operation was cancelled or rejected.
        SkippedCancelled = "skipped-cancelled",
    }
}

mirrored_enum! {
    /// The reason why a selected letter is not part of a plan.
    Exclusion mirrors store::Exclusion {
        /// The letter does not exist.
        NotFound = "not-found",
        /// The letter is closed.
        Closed = "closed",
        /// The letter is in that state already.
        Already = "already",
        /// The letter is part of another operation that is not over.
        InOperation = "in-operation",
        /// The letter is quarantined and the selection does not name that state.
        Quarantined = "quarantined",
        /// The payload was not kept, so there is nothing to run.
        NoPayload = "no-payload",
        /// An earlier open letter of its sequence is not part of the plan.
        Behind = "behind",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that both enums have the same values and names.
    macro_rules! assert_mirrored {
        ($name:ident, $core:path) => {
            for value in $name::ALL {
                let core = <$core>::from(*value);
                assert_eq!($name::from(core), *value);
                assert_eq!(core.as_str(), value.as_str());
                assert_eq!(serde_json::to_value(value).unwrap(), serde_json::to_value(core).unwrap());
                assert_eq!(value.as_str().parse::<$name>(), Ok(*value));
            }
        };
    }

    #[test]
    fn values_are_named_as_in_the_core() {
        assert_mirrored!(State, letter::LetterState);
        assert_mirrored!(Phase, lazaret_core::Phase);
        assert_mirrored!(Action, store::Action);
        assert_mirrored!(Act, store::Act);
        assert_mirrored!(Command, store::Command);
        assert_mirrored!(OperationState, store::OperationState);
        assert_mirrored!(Outcome, store::Outcome);
        assert_mirrored!(Exclusion, store::Exclusion);
        for kind in AttemptKind::ALL {
            let core = letter::AttemptKind::from(*kind);
            assert_eq!(serde_json::to_value(kind).unwrap(), serde_json::to_value(core).unwrap());
        }
    }

    #[test]
    fn an_unknown_value_lists_the_known_ones() {
        assert_eq!(
            "retri".parse::<Action>().unwrap_err().to_string(),
            r#"unknown value "retri", expected one of retry, evict, park, release"#
        );
    }
}
