//! Label values, from bounded sets only (I7).

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use lazaret_core::Reason;
use metrics::SharedString;

/// How many reason codes that are not Lazaret's own are told apart in one process.
pub const OWN_REASONS: usize = 64;
/// What stands for all others.
pub const OTHER: &str = "OTHER";
/// What stands for no reason at all: a letter that only waits, or that was handled in the end.
pub(crate) const NONE: &str = "NONE";

/// The reason codes of users that were seen so far.
#[derive(Debug, Default)]
pub(crate) struct Reasons {
    own: Mutex<HashSet<Reason>>,
}

impl Reasons {
    /// The label for a reason. The first [`OWN_REASONS`] codes of users stand for themselves.
    pub(crate) fn label(&self, reason: &Reason) -> SharedString {
        if let Some(known) = Reason::KNOWN.iter().find(|known| *known == reason) {
            return SharedString::const_str(known.as_str());
        }
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if !own.contains(reason) {
            if own.len() == OWN_REASONS {
                return SharedString::const_str(OTHER);
            }
            own.insert(reason.clone());
        }
        SharedString::from_owned(reason.as_str().to_owned())
    }
}

/// The label for the number of an attempt.
pub(crate) const fn attempt(number: u32) -> &'static str {
    const NUMBERS: [&str; 10] = ["1", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    if number < 10 { NUMBERS[number as usize] } else { "10+" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_beyond_the_limit_become_one() {
        // I7
        let reasons = Reasons::default();
        let own = |n: usize| Reason::new(format!("OWN_{n}")).unwrap();
        let label = |reason: &Reason| reasons.label(reason).into_owned();
        for n in 0..OWN_REASONS {
            assert_eq!(label(&own(n)), format!("OWN_{n}"));
        }
        assert_eq!(label(&own(OWN_REASONS)), OTHER);
        assert_eq!(label(&own(0)), "OWN_0", "those seen first stay");
        assert_eq!(label(&Reason::TIMEOUT), "TIMEOUT", "Lazaret's own always have room");
    }

    #[test]
    fn attempts_have_ten_labels() {
        assert_eq!([1, 2, 9, 10, 11, u32::MAX].map(attempt), ["1", "2", "9", "10+", "10+", "10+"]);
    }
}
