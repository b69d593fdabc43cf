//! Label values, from bounded sets only (I7).

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use lazaret_core::store::PauseScope;
use lazaret_core::{QueueName, Reason};
use metrics::{Label, SharedString};

/// The maximum number of custom reason codes that one process exports as label values.
pub const CUSTOM_REASONS: usize = 64;
/// The label value for further custom reason codes.
pub const OTHER: &str = "OTHER";
/// The label value for letters without a cause: waiting or resolved ones.
pub(super) const NONE: &str = "NONE";

/// The pause scopes, as label values.
pub(super) const SCOPES: [&str; 5] = ["consumer", "stream", "partition", "sequence", "replay"];

/// The outcome of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplayOutcome {
    Ok,
    FailedAgain,
    Skipped,
}

impl ReplayOutcome {
    pub(super) const ALL: [Self; 3] = [Self::Ok, Self::FailedAgain, Self::Skipped];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::FailedAgain => "failed-again",
            Self::Skipped => "skipped",
        }
    }
}

/// The custom reason codes seen so far.
#[derive(Debug, Default)]
pub(super) struct Reasons {
    custom: Mutex<HashSet<Reason>>,
}

impl Reasons {
    /// The label value of a reason. The first [`CUSTOM_REASONS`] custom codes keep their name.
    pub(super) fn label(&self, reason: &Reason) -> SharedString {
        if let Some(known) = Reason::KNOWN.iter().find(|known| *known == reason) {
            return SharedString::const_str(known.as_str());
        }
        let mut custom = self.custom.lock().unwrap_or_else(PoisonError::into_inner);
        if !custom.contains(reason) {
            if custom.len() == CUSTOM_REASONS {
                return SharedString::const_str(OTHER);
            }
            custom.insert(reason.clone());
        }
        SharedString::from_owned(reason.as_str().to_owned())
    }
}

/// The label value of an attempt number.
pub(super) const fn attempt(number: u32) -> &'static str {
    const NUMBERS: [&str; 10] = ["1", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    if number < 10 { NUMBERS[number as usize] } else { "10+" }
}

/// The kind of a pause scope. The sequence is left out: it is a key.
pub(crate) const fn scope_name(scope: &PauseScope) -> &'static str {
    match scope {
        PauseScope::Consumer => SCOPES[0],
        PauseScope::Stream(_) => SCOPES[1],
        PauseScope::Partition(_) => SCOPES[2],
        PauseScope::Sequence(_) => SCOPES[3],
        PauseScope::Replay => SCOPES[4],
    }
}

pub(super) fn label(name: &'static str, value: &str) -> Label {
    Label::new(name, value.to_owned())
}

pub(super) fn of_queue(consumer: &str, queue: &QueueName) -> Vec<Label> {
    vec![label("consumer", consumer), label("queue", queue.as_str())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn custom_reasons_beyond_the_limit_share_one_label() {
        // I7
        let reasons = Reasons::default();
        let custom = |n: usize| Reason::new(format!("OWN_{n}")).unwrap();
        let label = |reason: &Reason| reasons.label(reason).into_owned();
        for n in 0..CUSTOM_REASONS {
            assert_eq!(label(&custom(n)), format!("OWN_{n}"));
        }
        assert_eq!(label(&custom(CUSTOM_REASONS)), OTHER);
        assert_eq!(label(&custom(0)), "OWN_0", "the first ones stay");
        assert_eq!(label(&Reason::TIMEOUT), "TIMEOUT", "built-in reasons always have a label");
    }

    #[test]
    fn attempts_have_ten_labels() {
        assert_eq!([1, 2, 9, 10, 11, u32::MAX].map(attempt), ["1", "2", "9", "10+", "10+", "10+"]);
    }
}
