//! Decides the next step of a failed message, as a pure function.

use std::time::Duration;

use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::{LetterState, Timestamp, Verdict};

use crate::limits::{AttemptUsage, End, RetryLimits};

/// The properties of a failure on which the next step depends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedAttempt {
    /// The classifier's verdict.
    pub(crate) verdict: Verdict,
    pub(crate) usage: AttemptUsage,
    pub(crate) now: Timestamp,
    /// The delay that the failed dependency requested.
    pub(crate) hint: Option<Duration>,
    /// The seed of this message's jitter.
    pub(crate) seed: u64,
}

/// The next step of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait in memory, then retry.
    Wait { due: Timestamp },
    /// Wait in the store, then retry.
    Later { due: Timestamp },
    /// Make no more attempts, and keep the message as a letter in this state.
    End { state: LetterState, why: End },
    /// Skip it, with an audit entry.
    Skip,
    /// Acknowledge it as handled before.
    Duplicate,
    /// Stop the consumer.
    Stop,
}

/// Decides the next step. `stored` means that the message is already a letter and cannot wait in memory.
pub(crate) fn next_step(limits: RetryLimits<'_>, failed: &FailedAttempt, stored: bool) -> Step {
    let end = |state, why| Step::End { state, why };
    match failed.verdict {
        Verdict::Retry => match limits.next_due(&failed.usage, failed.now, failed.hint, failed.seed) {
            Err(why) => end(LetterState::Dead, why),
            Ok(due) if !stored && waits_in_memory(limits.retry, failed, due) => Step::Wait { due },
            Ok(due) => Step::Later { due },
        },
        Verdict::DeadLetter => end(LetterState::Dead, End::Verdict),
        Verdict::Park => end(LetterState::Parked, End::Verdict),
        Verdict::Quarantine => end(LetterState::Quarantined, End::Verdict),
        Verdict::Skip => Step::Skip,
        Verdict::Duplicate => Step::Duplicate,
        Verdict::Stop => Step::Stop,
    }
}

/// Decides the next step of a letter in this state that failed in a replay. `replays` includes this
/// replay. Each verdict counts as after a first attempt, except that a replay gives no new automatic
/// attempts: on the verdict `retry` the letter keeps its state (I4). A failure in the last replay that
/// `max_replays` allows parks the letter.
pub(crate) fn step_after_replay(
    verdict: Verdict,
    state: LetterState,
    replays: u32,
    max_replays: Option<u32>,
) -> Step {
    let end = |state| Step::End { state, why: End::Verdict };
    let was_last = max_replays.is_some_and(|limit| replays >= limit);
    match verdict {
        Verdict::Retry | Verdict::DeadLetter if was_last => end(LetterState::Parked),
        Verdict::Retry => end(state),
        Verdict::DeadLetter => end(LetterState::Dead),
        Verdict::Park => end(LetterState::Parked),
        Verdict::Quarantine => end(LetterState::Quarantined),
        Verdict::Skip => Step::Skip,
        Verdict::Duplicate => Step::Duplicate,
        Verdict::Stop => Step::Stop,
    }
}

fn waits_in_memory(retry: &RetryPolicy, failed: &FailedAttempt, due: Timestamp) -> bool {
    match retry.strategy {
        Strategy::InPlace => true,
        Strategy::Ordered => {
            let held = due.duration_since(failed.usage.first_failed_at);
            Duration::try_from(held).is_ok_and(|held| held <= retry.hold)
        }
        Strategy::Unordered | Strategy::Topics => false,
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::policy::{Limit, PoisonPolicy};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn failed(verdict: Verdict, attempts: u32) -> FailedAttempt {
        let usage = AttemptUsage { attempts, crashes: 0, same_failure: 1, first_failed_at: at(0) };
        FailedAttempt { verdict, usage, now: at(0), hint: None, seed: 1 }
    }

    fn decide(retry: &RetryPolicy, poison: &PoisonPolicy, failed: &FailedAttempt, stored: bool) -> Step {
        next_step(RetryLimits { retry, poison }, failed, stored)
    }

    fn policy(strategy: Strategy) -> RetryPolicy {
        RetryPolicy {
            strategy,
            jitter: 0.0,
            initial_delay: Duration::from_secs(1),
            hold: Duration::from_secs(1),
            ..RetryPolicy::default()
        }
    }

    #[test]
    fn each_verdict_leads_to_its_step() {
        let dead = Step::End { state: LetterState::Dead, why: End::Verdict };
        let table = [
            (Verdict::Retry, Step::Wait { due: at(1) }),
            (Verdict::DeadLetter, dead),
            (Verdict::Park, Step::End { state: LetterState::Parked, why: End::Verdict }),
            (Verdict::Quarantine, Step::End { state: LetterState::Quarantined, why: End::Verdict }),
            (Verdict::Skip, Step::Skip),
            (Verdict::Duplicate, Step::Duplicate),
            (Verdict::Stop, Step::Stop),
        ];
        for (verdict, step) in table {
            let decided =
                decide(&policy(Strategy::Ordered), &PoisonPolicy::default(), &failed(verdict, 1), false);
            assert_eq!(decided, step, "{verdict}");
        }
    }

    #[test]
    fn each_verdict_counts_in_a_replay_and_a_retry_keeps_the_state() {
        // I4
        use LetterState::{Dead, Parked, Quarantined, Retrying};
        let end = |state| Step::End { state, why: End::Verdict };
        let table = [
            (Verdict::Retry, Retrying, end(Retrying), end(Parked)),
            (Verdict::Retry, Quarantined, end(Quarantined), end(Parked)),
            (Verdict::DeadLetter, Retrying, end(Dead), end(Parked)),
            (Verdict::DeadLetter, Dead, end(Dead), end(Parked)),
            (Verdict::Park, Dead, end(Parked), end(Parked)),
            (Verdict::Quarantine, Dead, end(Quarantined), end(Quarantined)),
            (Verdict::Skip, Dead, Step::Skip, Step::Skip),
            (Verdict::Duplicate, Parked, Step::Duplicate, Step::Duplicate),
            (Verdict::Stop, Dead, Step::Stop, Step::Stop),
        ];
        for (verdict, state, early, last) in table {
            assert_eq!(step_after_replay(verdict, state, 4, Some(5)), early, "{verdict} {state}");
            assert_eq!(step_after_replay(verdict, state, 9, None), early, "{verdict} {state}");
            assert_eq!(step_after_replay(verdict, state, 5, Some(5)), last, "{verdict} {state}");
        }
    }

    #[test]
    fn the_strategy_says_where_a_retry_waits() {
        let poison = PoisonPolicy::default();
        let second = failed(Verdict::Retry, 2);
        let table = [
            (Strategy::InPlace, Step::Wait { due: at(2) }),
            (Strategy::Ordered, Step::Later { due: at(2) }),
            (Strategy::Unordered, Step::Later { due: at(2) }),
        ];
        for (strategy, step) in table {
            assert_eq!(decide(&policy(strategy), &poison, &second, false), step, "{strategy:?}");
        }
        let stored = decide(&policy(Strategy::InPlace), &poison, &second, true);
        assert_eq!(stored, Step::Later { due: at(2) });
    }

    #[test]
    fn attempts_time_and_equal_failures_all_end_retries() {
        // I4
        let end = |why| Step::End { state: LetterState::Dead, why };
        let mut retry = policy(Strategy::Ordered);
        let poison = PoisonPolicy { same_failure: Some(2) };
        let third = failed(Verdict::Retry, 3);
        assert_eq!(decide(&retry, &poison, &third, false), end(End::Exhausted(Limit::Attempts)));
        let mut again = failed(Verdict::Retry, 2);
        again.usage.same_failure = 2;
        assert_eq!(decide(&retry, &poison, &again, false), end(End::Poison));
        retry.max_elapsed = Some(Duration::from_secs(1));
        let late = FailedAttempt { now: at(5), ..failed(Verdict::Retry, 1) };
        assert_eq!(decide(&retry, &poison, &late, false), end(End::Exhausted(Limit::Elapsed)));
    }
}
