//! The next step of a message that failed: a pure function of what is known.

use std::time::Duration;

use lazaret_core::policy::{Limit, Next, PoisonPolicy, RetryPolicy, Strategy};
use lazaret_core::{LetterState, Timestamp, Verdict};

/// What is known about a message that failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// What the classifier said.
    pub(crate) verdict: Verdict,
    /// Automatic attempts so far.
    pub(crate) attempts: u32,
    /// How often in a row it failed in the same way.
    pub(crate) same_failure: u32,
    pub(crate) first_failed_at: Timestamp,
    pub(crate) now: Timestamp,
    /// When the other side wants to be called again.
    pub(crate) hint: Option<Duration>,
    /// Where this message's jitter comes from.
    pub(crate) seed: u64,
}

/// Where the message goes from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait in memory, then try again.
    Wait { due: Timestamp },
    /// Wait in the store, then try again.
    Later { due: Timestamp },
    /// No more attempts: keep it as a letter in this state.
    End { state: LetterState, why: End },
    /// Leave it out, with a trace.
    Skip,
    /// It was handled before.
    Duplicate,
    /// Stop the consumer.
    Stop,
}

/// Why there are no more attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Verdict,
    Exhausted(Limit),
    Poison,
}

/// Where the message goes. `stored` says that it is a letter already, so that it cannot wait in memory.
pub(crate) fn decide(retry: &RetryPolicy, poison: &PoisonPolicy, facts: &Facts, stored: bool) -> Step {
    let end = |state, why| Step::End { state, why };
    match facts.verdict {
        Verdict::Retry if poison.is_poison(facts.same_failure) => end(LetterState::Dead, End::Poison),
        Verdict::Retry => {
            match retry.next(facts.attempts, facts.first_failed_at, facts.now, facts.hint, facts.seed) {
                Next::Exhausted(limit) => end(LetterState::Dead, End::Exhausted(limit)),
                Next::At { at, .. } if !stored && waits_in_memory(retry, facts, at) => Step::Wait { due: at },
                Next::At { at, .. } => Step::Later { due: at },
            }
        }
        Verdict::DeadLetter => end(LetterState::Dead, End::Verdict),
        Verdict::Park => end(LetterState::Parked, End::Verdict),
        Verdict::Quarantine => end(LetterState::Quarantined, End::Verdict),
        Verdict::Skip => Step::Skip,
        Verdict::Duplicate => Step::Duplicate,
        Verdict::Stop => Step::Stop,
    }
}

fn waits_in_memory(retry: &RetryPolicy, facts: &Facts, due: Timestamp) -> bool {
    match retry.strategy {
        Strategy::InPlace => true,
        Strategy::Ordered => {
            let held = due.duration_since(facts.first_failed_at);
            Duration::try_from(held).is_ok_and(|held| held <= retry.hold)
        }
        Strategy::Unordered | Strategy::Topics => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn facts(verdict: Verdict, attempts: u32) -> Facts {
        Facts { verdict, attempts, same_failure: 1, first_failed_at: at(0), now: at(0), hint: None, seed: 1 }
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
                decide(&policy(Strategy::Ordered), &PoisonPolicy::default(), &facts(verdict, 1), false);
            assert_eq!(decided, step, "{verdict}");
        }
    }

    #[test]
    fn the_strategy_says_where_a_retry_waits() {
        let poison = PoisonPolicy::default();
        let second = Facts { attempts: 2, ..facts(Verdict::Retry, 2) };
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
    fn attempts_time_and_sameness_all_end_retries() {
        // I4
        let end = |why| Step::End { state: LetterState::Dead, why };
        let mut retry = policy(Strategy::Ordered);
        let poison = PoisonPolicy { same_failure: Some(2) };
        let third = facts(Verdict::Retry, 3);
        assert_eq!(decide(&retry, &poison, &third, false), end(End::Exhausted(Limit::Attempts)));
        let again = Facts { same_failure: 2, ..facts(Verdict::Retry, 2) };
        assert_eq!(decide(&retry, &poison, &again, false), end(End::Poison));
        retry.max_elapsed = Some(Duration::from_secs(1));
        let late = Facts { now: at(5), ..facts(Verdict::Retry, 1) };
        assert_eq!(decide(&retry, &poison, &late, false), end(End::Exhausted(Limit::Elapsed)));
    }
}
