//! Verdicts: what the classifier decides about a failed message.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The decision about a failed attempt.
///
/// ```
/// use lazaret_core::Verdict;
/// assert_eq!("dead-letter".parse::<Verdict>().unwrap(), Verdict::DeadLetter);
/// assert_eq!(Verdict::Retry.to_string(), "retry");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Retry on the schedule, within its limits.
    Retry,
    /// A retry cannot help: keep it as a dead letter.
    DeadLetter,
    /// Keep it until a person or a deployment changes something.
    Park,
    /// Keep it apart: its content is suspicious.
    Quarantine,
    /// Skip it, with a durable audit entry.
    Skip,
    /// It was handled before: acknowledge it.
    Duplicate,
    /// The consumer is broken, not the message: stop and keep the position.
    Stop,
}

impl Verdict {
    /// Every verdict, in the order of the contract.
    pub const ALL: [Self; 7] = [
        Self::Retry,
        Self::DeadLetter,
        Self::Park,
        Self::Quarantine,
        Self::Skip,
        Self::Duplicate,
        Self::Stop,
    ];

    /// The name used in configuration, protocols and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::DeadLetter => "dead-letter",
            Self::Park => "park",
            Self::Quarantine => "quarantine",
            Self::Skip => "skip",
            Self::Duplicate => "duplicate",
            Self::Stop => "stop",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An unknown verdict.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown verdict {0:?}, expected one of retry, dead-letter, park, quarantine, skip, duplicate, stop")]
pub struct UnknownVerdict(pub String);

impl FromStr for Verdict {
    type Err = UnknownVerdict;

    fn from_str(word: &str) -> Result<Self, UnknownVerdict> {
        Self::ALL.into_iter().find(|v| v.as_str() == word).ok_or_else(|| UnknownVerdict(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_reads_back_from_its_name() {
        for verdict in Verdict::ALL {
            assert_eq!(verdict.as_str().parse(), Ok(verdict));
        }
        assert!("retry-later".parse::<Verdict>().is_err());
    }
}
