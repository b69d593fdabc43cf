//! The user's say in what is kept of a failure: the enqueue policy.

use jiff::Timestamp;

use crate::failure::Failure;
use crate::letter::{Diagnostics, Letter};

/// The occasion of a call of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// A message failed for the first time and would become a letter.
    FirstFailure,
    /// A letter was tried again and failed again.
    Replay,
}

/// Decides what is kept of a failure. Asked before a message becomes a letter, and each time that a letter fails
/// again. At the first failure the letter is the one that would be kept.
///
/// Any function with these parameters is a policy. It must be pure: it may be called twice for one failure.
///
/// ```
/// use lazaret_core::policy::{Decision, EnqueuePolicy, Stage};
/// use lazaret_core::{Failure, Letter};
///
/// /// Counts the replays of a letter, and gives it up after ten.
/// fn ten_times(letter: &Letter, failure: &Failure, stage: Stage) -> Decision {
///     let retries = letter.diagnostics.get("retries").and_then(|text| text.parse().ok()).unwrap_or(0_u32);
///     if stage == Stage::FirstFailure {
///         return Decision::enqueue_with(failure.clone().truncated(1024));
///     }
///     if retries >= 10 {
///         return Decision::Evict;
///     }
///     let mut diagnostics = letter.diagnostics.clone();
///     diagnostics.insert("retries".to_owned(), (retries + 1).to_string());
///     Decision::requeue(failure.clone()).with_diagnostics(diagnostics)
/// }
///
/// let policy: Box<dyn EnqueuePolicy> = Box::new(ten_times);
/// # let _ = policy;
/// ```
pub trait EnqueuePolicy: Send + Sync + 'static {
    /// Decides what happens to this letter after this failure.
    fn decide(&self, letter: &Letter, failure: &Failure, stage: Stage) -> Decision;
}

impl<F> EnqueuePolicy for F
where
    F: Fn(&Letter, &Failure, Stage) -> Decision + Send + Sync + 'static,
{
    fn decide(&self, letter: &Letter, failure: &Failure, stage: Stage) -> Decision {
        self(letter, failure, stage)
    }
}

/// The default policy: keep everything, with its latest failure as the cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlwaysEnqueue;

impl EnqueuePolicy for AlwaysEnqueue {
    fn decide(&self, _letter: &Letter, failure: &Failure, stage: Stage) -> Decision {
        match stage {
            Stage::FirstFailure => Decision::enqueue_with(failure.clone()),
            Stage::Replay => Decision::requeue(failure.clone()),
        }
    }
}

/// The decision of an [`EnqueuePolicy`].
///
/// | decision | at the first failure | at a replay |
/// |---|---|---|
/// | `Enqueue` | the message becomes a letter | the letter stays |
/// | `Requeue` | the message becomes a letter | the letter stays |
/// | `Ignore` | the message becomes a letter as it is | the letter stays as it is, but touched |
/// | `DoNotEnqueue` | skipped, with a durable trace | evicted |
/// | `Evict` | skipped, with a durable trace | evicted |
///
/// `Enqueue` and `Requeue` have the same effect and differ only for the reader of the policy.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Keep it. Meant for the first failure.
    Enqueue {
        /// The cause to keep; `None` keeps the one that the letter has.
        cause: Option<Failure>,
        /// The diagnostics to keep instead of the letter's own; `None` keeps those.
        diagnostics: Option<Diagnostics>,
    },
    /// Keep it, with what the new failure taught. Meant for a replay.
    Requeue {
        /// The cause to keep; `None` keeps the one that the letter has.
        cause: Option<Failure>,
        /// The diagnostics to keep instead of the letter's own; `None` keeps those.
        diagnostics: Option<Diagnostics>,
    },
    /// Keep it as it is: neither cause nor diagnostics change.
    Ignore,
    /// Keep nothing. Meant for the first failure.
    DoNotEnqueue,
    /// Keep it no longer. Meant for a replay.
    Evict,
}

impl Decision {
    /// Keep it with the cause that the letter has.
    pub const fn enqueue() -> Self {
        Self::Enqueue { cause: None, diagnostics: None }
    }

    /// Keep it with this cause.
    pub const fn enqueue_with(cause: Failure) -> Self {
        Self::Enqueue { cause: Some(cause), diagnostics: None }
    }

    /// Keep a letter that failed again, with this cause.
    pub const fn requeue(cause: Failure) -> Self {
        Self::Requeue { cause: Some(cause), diagnostics: None }
    }

    /// The same decision with these diagnostics. Only `Enqueue` and `Requeue` can have any; the others stay as
    /// they are.
    #[must_use]
    pub fn with_diagnostics(mut self, new: Diagnostics) -> Self {
        if let Self::Enqueue { diagnostics, .. } | Self::Requeue { diagnostics, .. } = &mut self {
            *diagnostics = Some(new);
        }
        self
    }

    /// Returns whether the letter is kept.
    pub const fn keeps(&self) -> bool {
        matches!(self, Self::Enqueue { .. } | Self::Requeue { .. } | Self::Ignore)
    }

    /// The cause to keep, if it is a new one.
    pub const fn cause(&self) -> Option<&Failure> {
        match self {
            Self::Enqueue { cause, .. } | Self::Requeue { cause, .. } => cause.as_ref(),
            Self::Ignore | Self::DoNotEnqueue | Self::Evict => None,
        }
    }

    /// The diagnostics to keep, if they are new ones.
    pub const fn diagnostics(&self) -> Option<&Diagnostics> {
        match self {
            Self::Enqueue { diagnostics, .. } | Self::Requeue { diagnostics, .. } => diagnostics.as_ref(),
            Self::Ignore | Self::DoNotEnqueue | Self::Evict => None,
        }
    }

    /// The letter as this decision wants it: its cause, its diagnostics, its time of touch, nothing else. A letter
    /// that is not kept comes back unchanged; the caller closes it.
    #[must_use]
    pub fn apply(&self, letter: Letter, now: Timestamp) -> Letter {
        if !self.keeps() {
            return letter;
        }
        let letter = letter.with_cause(self.cause().cloned(), now);
        match self.diagnostics() {
            Some(diagnostics) => letter.with_diagnostics(diagnostics.clone(), now),
            None => letter,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{HandlerError, Reason};
    use crate::message::{Message, Position, QueueName};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn letter() -> Letter {
        let message = Message::new("m", "s", Position::new(0, 0));
        Letter::new(QueueName::of("c", "c"), "k".into(), message.into(), at(5))
    }

    fn cause(text: &str) -> Failure {
        Failure::new(Reason::TIMEOUT, "E", text)
    }

    fn diagnostics(name: &str) -> Diagnostics {
        [(name.to_owned(), "1".to_owned())].into()
    }

    #[test]
    fn v11_v12_ignore_keeps_the_letter_as_it_is_but_touched() {
        let old = letter().with_cause(Some(cause("old")), at(5)).with_diagnostics(diagnostics("old"), at(5));
        assert!(Decision::Ignore.keeps());
        assert_eq!(Decision::Ignore.cause(), None);
        assert_eq!(Decision::Ignore.apply(old.clone(), at(5)), old);
        assert_eq!(Decision::Ignore.apply(old.clone(), at(9)), old.touched(at(9)));
    }

    #[test]
    fn v13_to_v15_what_is_not_kept_comes_back_unchanged() {
        for decision in [Decision::DoNotEnqueue, Decision::Evict] {
            assert!(!decision.keeps());
            assert_eq!((decision.cause(), decision.diagnostics()), (None, None));
            assert_eq!(decision.apply(letter(), at(9)), letter());
            assert_eq!(decision.clone().with_diagnostics(diagnostics("new")), decision);
        }
    }

    #[test]
    fn v16_v17_enqueue_without_a_cause_changes_nothing() {
        let decision = Decision::enqueue();
        assert!(decision.keeps());
        assert_eq!((decision.cause(), decision.diagnostics()), (None, None));
        assert_eq!(decision.apply(letter(), at(5)), letter());
        let caused = letter().with_cause(Some(cause("old")), at(5));
        assert_eq!(decision.apply(caused.clone(), at(5)), caused);
    }

    #[test]
    fn v18_to_v20_a_cause_replaces_the_cause_and_nothing_else() {
        let old = letter().with_diagnostics(diagnostics("old"), at(5));
        for decision in [Decision::enqueue_with(cause("x")), Decision::requeue(cause("x"))] {
            assert!(decision.keeps());
            assert_eq!(decision.cause(), Some(&cause("x")));
            let expected = Letter { cause: Some(cause("x")), last_touched_at: at(9), ..old.clone() };
            assert_eq!(decision.apply(old.clone(), at(9)), expected);
        }
    }

    #[test]
    fn v21_v22_diagnostics_replace_the_diagnostics_and_nothing_else() {
        let old = letter().with_cause(Some(cause("old")), at(5)).with_diagnostics(diagnostics("old"), at(5));
        for decision in [Decision::enqueue_with(cause("x")), Decision::requeue(cause("x"))] {
            let decision = decision.with_diagnostics(diagnostics("new"));
            assert_eq!(decision.cause(), Some(&cause("x")));
            assert_eq!(decision.diagnostics(), Some(&diagnostics("new")));
            let kept = decision.apply(old.clone(), at(5));
            let expected = Letter { cause: Some(cause("x")), diagnostics: diagnostics("new"), ..old.clone() };
            assert_eq!(kept, expected);
        }
    }

    #[test]
    fn v23_to_v26_a_cause_has_the_type_and_message_of_its_error() {
        let wrapped = HandlerError::from(std::fmt::Error).failure();
        assert!(wrapped.error_type.ends_with("fmt::Error"), "{}", wrapped.error_type);
        assert_eq!(wrapped.message, std::fmt::Error.to_string());
        let given = Failure::new(Reason::TIMEOUT, "type", "message");
        assert_eq!((given.error_type.as_str(), given.message.as_str()), ("type", "message"));
        assert_eq!(Decision::enqueue_with(given.clone()).cause(), Some(&given));
    }

    #[test]
    fn v27_to_v31_a_policy_can_cut_the_cause() {
        let long = "x".repeat(2000);
        let table = [
            ("short", 1024, "short"),
            ("", 1024, ""),
            (long.as_str(), 1024, &long[..1024]),
            ("exactly", 7, "exactly"),
            ("exactly", 4, "exac"),
        ];
        for (message, limit, expected) in table {
            let policy = move |_: &Letter, failure: &Failure, _: Stage| {
                Decision::enqueue_with(failure.clone().truncated(limit))
            };
            let decision = policy.decide(&letter(), &cause(message), Stage::FirstFailure);
            assert_eq!(decision.cause().unwrap().message, expected, "{limit}");
        }
    }

    #[test]
    fn by_default_everything_is_kept_with_its_latest_failure() {
        let first = AlwaysEnqueue.decide(&letter(), &cause("a"), Stage::FirstFailure);
        assert_eq!(first, Decision::enqueue_with(cause("a")));
        let again = AlwaysEnqueue.decide(&letter(), &cause("b"), Stage::Replay);
        assert_eq!(again, Decision::requeue(cause("b")));
    }
}
