//! The words with a fixed set of values, each in step with the core's own by construction.

use std::fmt;
use std::str::FromStr;

use lazaret_core::{letter, store};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Makes an enum that mirrors one of the core's. A value that is missing here or there does not compile.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident mirrors $core:path { $($(#[$word_doc:meta])* $word:ident = $text:tt),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        pub enum $name {
            $($(#[$word_doc])* #[serde(rename = $text)] $word),+
        }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$word),+];

            /// The word itself.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$word => $text),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.iter().copied().find(|word| word.as_str() == text);
                found.ok_or_else(|| {
                    let all: Vec<&str> = Self::ALL.iter().map(|word| word.as_str()).collect();
                    format!("{text:?} is none of {}", all.join(", "))
                })
            }
        }

        impl From<$core> for $name {
            fn from(word: $core) -> Self {
                match word { $(<$core>::$word => Self::$word),+ }
            }
        }

        impl From<$name> for $core {
            fn from(word: $name) -> Self {
                match word { $($name::$word => Self::$word),+ }
            }
        }
    };
}

words! {
    /// Where a letter stands.
    State mirrors letter::LetterState {
        /// Will be tried again at its due time.
        Retrying = "retrying",
        /// Will not be tried again by itself.
        Dead = "dead",
        /// Kept until a person or a deployment changes something.
        Parked = "parked",
        /// Kept apart: suspicious.
        Quarantined = "quarantined",
        /// Blocked behind the head of its sequence, with no cause of its own.
        Waiting = "waiting",
        /// Closed: handled in the end.
        Resolved = "resolved",
        /// Closed: taken out by a person or a policy.
        Evicted = "evicted",
        /// Closed: left out on purpose.
        Skipped = "skipped",
        /// Closed: its time ran out.
        Expired = "expired",
    }
}

words! {
    /// How far an attempt had come when it failed.
    Phase mirrors lazaret_core::Phase {
        /// Making sense of the bytes.
        Decode = "decode",
        /// Deciding whether the message is wanted.
        Filter = "filter",
        /// Checking the content.
        Validate = "validate",
        /// The handler's own work.
        Handle = "handle",
        /// A call to somebody else; it may have had its effect.
        ExternalCall = "external-call",
        /// Confirming that it was handled.
        Ack = "ack",
    }
}

words! {
    /// Who ran an attempt.
    AttemptKind mirrors letter::AttemptKind {
        /// The live stream.
        Live = "live",
        /// The retry scheduler.
        Retry = "retry",
        /// A replay that somebody asked for.
        Replay = "replay",
    }
}

words! {
    /// What an operation does to each letter.
    Action mirrors store::Action {
        /// Run it through its handler again.
        Retry = "retry",
        /// Take it out.
        Evict = "evict",
        /// Hold it until it is released.
        Park = "park",
        /// Let the scheduler try it again, with fresh attempts.
        Release = "release",
    }
}

words! {
    /// A change that a person makes to one letter.
    Act mirrors store::Act {
        /// Take it out; `restore` brings it back until it is purged.
        Evict = "evict",
        /// Say that it was handled by other means.
        Resolve = "resolve",
        /// Hold it until it is released.
        Park = "park",
        /// Hold it apart.
        Quarantine = "quarantine",
        /// Let the scheduler try it again now, with fresh attempts.
        Release = "release",
        /// Bring an evicted letter back, as `dead`, to its old place.
        Restore = "restore",
    }
}

words! {
    /// What a person tells an operation.
    Command mirrors store::Command {
        /// Hold it. Letters that are being tried are finished.
        Pause = "pause",
        /// Go on. The stop rule counts anew from here.
        Resume = "resume",
        /// End it; all letters whose turn has not come are skipped.
        Cancel = "cancel",
        /// Say yes, as a second person.
        Approve = "approve",
        /// Say no, as a second person.
        Reject = "reject",
    }
}

words! {
    /// Where an operation stands.
    OperationState mirrors store::OperationState {
        /// A second person must approve it.
        AwaitingApproval = "awaiting-approval",
        /// Its time has not come.
        Scheduled = "scheduled",
        /// Under way.
        Running = "running",
        /// Held by a person or by the stop rule.
        Paused = "paused",
        /// Every letter has its outcome.
        Done = "done",
        /// Ended by a person.
        Cancelled = "cancelled",
        /// The second person said no.
        Rejected = "rejected",
    }
}

impl OperationState {
    /// Whether nothing new will be begun in it.
    pub fn is_over(self) -> bool {
        store::OperationState::from(self).is_over()
    }
}

words! {
    /// What became of one letter in an operation.
    Outcome mirrors store::Outcome {
        /// Handled, or changed as asked.
        Ok = "ok",
        /// The handler failed again.
        FailedAgain = "failed-again",
        /// Not tried: an earlier letter of its sequence failed in this operation.
        SkippedBehindFailed = "skipped-behind-failed",
        /// Not tried: somebody else changed it meanwhile.
        SkippedChanged = "skipped-changed",
        /// Not tried: the operation was cancelled or rejected.
        SkippedCancelled = "skipped-cancelled",
    }
}

words! {
    /// Why a letter that was selected is not part of a plan.
    Exclusion mirrors store::Exclusion {
        /// There is no such letter.
        NotFound = "not-found",
        /// It is closed.
        Closed = "closed",
        /// It has been in that state already.
        Already = "already",
        /// It is part of another operation that is not over.
        InOperation = "in-operation",
        /// It is quarantined and nobody asked for that state.
        Quarantined = "quarantined",
        /// Its payload was left out, so there is nothing to run.
        NoPayload = "no-payload",
        /// An earlier letter of its sequence is open and is not part of the plan.
        Behind = "behind",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every word is written here as the core writes it.
    macro_rules! same_words {
        ($name:ident, $core:path) => {
            for word in $name::ALL {
                let core = <$core>::from(*word);
                assert_eq!($name::from(core), *word);
                assert_eq!(core.as_str(), word.as_str());
                assert_eq!(serde_json::to_value(word).unwrap(), serde_json::to_value(core).unwrap());
                assert_eq!(word.as_str().parse::<$name>(), Ok(*word));
            }
        };
    }

    #[test]
    fn words_are_written_as_the_core_writes_them() {
        same_words!(State, letter::LetterState);
        same_words!(Phase, lazaret_core::Phase);
        same_words!(Action, store::Action);
        same_words!(Act, store::Act);
        same_words!(Command, store::Command);
        same_words!(OperationState, store::OperationState);
        same_words!(Outcome, store::Outcome);
        same_words!(Exclusion, store::Exclusion);
        for kind in AttemptKind::ALL {
            let core = letter::AttemptKind::from(*kind);
            assert_eq!(serde_json::to_value(kind).unwrap(), serde_json::to_value(core).unwrap());
        }
    }

    #[test]
    fn a_wrong_word_is_told_the_right_ones() {
        assert_eq!(
            "retri".parse::<Action>().unwrap_err(),
            r#""retri" is none of retry, evict, park, release"#
        );
    }
}
