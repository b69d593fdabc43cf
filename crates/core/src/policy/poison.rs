//! Knows a message that fails in the same way again and again.

use super::PolicyError;
use crate::fingerprint::Fingerprint;

/// When the retries of a message end early because nothing changes.
///
/// ```
/// use lazaret_core::policy::PoisonPolicy;
/// let policy = PoisonPolicy { same_failure: Some(3) };
/// assert!(!policy.is_poison(2));
/// assert!(policy.is_poison(3));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct PoisonPolicy {
    /// So many attempts in a row failed with one fingerprint; `None` means never.
    pub same_failure: Option<u32>,
}

impl Default for PoisonPolicy {
    fn default() -> Self {
        Self { same_failure: Some(10) }
    }
}

impl PoisonPolicy {
    /// Refuses 0 and 1: a first failure repeats nothing.
    pub fn validate(&self) -> Result<(), PolicyError> {
        match self.same_failure {
            Some(0 | 1) => Err(PolicyError::Invalid { field: "same-failure", why: "must be at least 2" }),
            _ => Ok(()),
        }
    }

    /// Returns whether a run of this length makes a message poison.
    pub fn is_poison(&self, run: u32) -> bool {
        self.same_failure.is_some_and(|limit| run >= limit)
    }
}

/// Returns the number of attempts in a row, this one included, that failed with the current fingerprint, given the fingerprint
/// before it and its run. Failures without a fingerprint are never taken for the same.
///
/// ```
/// use lazaret_core::policy::run_length;
/// use lazaret_core::{Failure, Reason};
/// let a = Failure::new(Reason::TIMEOUT, "HttpError", "no answer").fingerprint;
/// let b = Failure::new(Reason::TIMEOUT, "SqlError", "no answer").fingerprint;
/// assert_eq!(run_length(None, a), 1);
/// assert_eq!(run_length(Some((a, 1)), a), 2);
/// assert_eq!(run_length(Some((a, 2)), b), 1);
/// ```
pub fn run_length(previous: Option<(Fingerprint, u32)>, current: Fingerprint) -> u32 {
    match previous {
        Some((fingerprint, run)) if fingerprint == current && current != Fingerprint::NONE => {
            run.saturating_add(1)
        }
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Failure, Reason};

    fn fingerprint(error_type: &str) -> Fingerprint {
        Failure::new(Reason::TIMEOUT, error_type, "x").fingerprint
    }

    #[test]
    fn a_run_grows_with_the_same_failure_and_ends_with_another() {
        let (a, b) = (fingerprint("A"), fingerprint("B"));
        let mut previous = None;
        let mut runs = Vec::new();
        for current in [a, a, a, b, a, a] {
            let run = run_length(previous, current);
            runs.push(run);
            previous = Some((current, run));
        }
        assert_eq!(runs, [1, 2, 3, 1, 1, 2]);
        assert_eq!(run_length(Some((a, u32::MAX)), a), u32::MAX);
    }

    #[test]
    fn failures_without_a_fingerprint_are_never_the_same() {
        assert_eq!(run_length(Some((Fingerprint::NONE, 9)), Fingerprint::NONE), 1);
    }

    #[test]
    fn poison_begins_at_the_limit_or_never() {
        let table =
            [(Some(10), 9, false), (Some(10), 10, true), (Some(10), 11, true), (None, u32::MAX, false)];
        for (same_failure, run, expected) in table {
            assert_eq!(PoisonPolicy { same_failure }.is_poison(run), expected, "{same_failure:?} {run}");
        }
        assert!(PoisonPolicy::default().is_poison(10));
    }

    #[test]
    fn a_single_failure_cannot_be_poison() {
        for (same_failure, good) in [(Some(0), false), (Some(1), false), (Some(2), true), (None, true)] {
            assert_eq!(PoisonPolicy { same_failure }.validate().is_ok(), good, "{same_failure:?}");
        }
    }
}
