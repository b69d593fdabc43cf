//! The limits on the attempts of one message (I4): attempts, elapsed time, crashes, equal failures.
//!
//! All code that needs to know whether a message may be tried again asks here: before an attempt, after
//! a failure, and when it marks a letter as poison.

use std::time::Duration;

use lazaret_core::Timestamp;
use lazaret_core::policy::{Dimension, Limit, Next, PoisonPolicy, RetryPolicy};

/// The number of crashes that ends replays if `max-crashes` is unlimited.
const REPLAY_CRASHES: u32 = 3;

/// The policies that limit the attempts of one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryLimits<'a> {
    pub(crate) retry: &'a RetryPolicy,
    pub(crate) poison: &'a PoisonPolicy,
}

/// The amounts of its limits that one message has used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttemptUsage {
    /// The number of automatic attempts so far.
    pub(crate) attempts: u32,
    /// The number of these attempts in which the process crashed.
    pub(crate) crashes: u32,
    /// The number of consecutive failures with the same fingerprint.
    pub(crate) same_failure: u32,
    pub(crate) first_failed_at: Timestamp,
}

/// The reason why a message gets no more automatic attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The classifier's verdict.
    Verdict,
    /// A limit was reached.
    Exhausted(Limit),
    /// The message failed too often in the same way.
    Poison,
    /// The retry budget that the message shares with others is used up.
    Budget(Dimension),
}

impl RetryLimits<'_> {
    /// Returns the limit, if any, that forbids another attempt now, whatever has changed since the last
    /// one. A letter that was released manually has no attempts and is tried at least once, however long
    /// ago it first failed.
    pub(crate) fn reached(&self, usage: &AttemptUsage, now: Timestamp) -> Option<Limit> {
        if self.retry.too_many_crashes(usage.crashes) {
            Some(Limit::Crashes)
        } else if usage.attempts >= self.retry.max_attempts {
            Some(Limit::Attempts)
        } else {
            let expired = self.retry.expired(usage.first_failed_at, now);
            (usage.attempts > 0 && expired).then_some(Limit::Elapsed)
        }
    }

    /// Returns the time of the next attempt after a failure, or the reason why there is none.
    pub(crate) fn next_due(
        &self,
        usage: &AttemptUsage,
        now: Timestamp,
        hint: Option<Duration>,
        seed: u64,
    ) -> Result<Timestamp, End> {
        if self.poison.is_poison(usage.same_failure) {
            return Err(End::Poison);
        }
        match self.retry.next(usage.attempts, usage.first_failed_at, now, hint, seed) {
            Next::At { at, .. } => Ok(at),
            Next::Exhausted(limit) => Err(End::Exhausted(limit)),
        }
    }

    /// Returns `true` if a replayed letter crashed the process too often. Replays are limited even if
    /// attempts are not, because their caller waits for the end.
    pub(crate) const fn crashes_too_often_in_replays(&self, crashes: u32) -> bool {
        let limit = if self.retry.max_crashes == 0 { REPLAY_CRASHES } else { self.retry.max_crashes };
        crashes >= limit
    }

    /// Returns the number of attempts after one whose end is unknown because its lease was lost. That
    /// attempt counts. But while crashes are limited it is never the last one: a message that no handler
    /// rejected is retried up to that limit.
    pub(crate) fn attempts_after_lost_lease(&self, attempts: u32) -> u32 {
        let counted = attempts.saturating_add(1);
        match self.retry.max_crashes {
            0 => counted,
            _ => counted.min(self.retry.max_attempts.saturating_sub(1)).max(attempts),
        }
    }

    /// Returns `true` if the message failed too often in the same way, or crashed the process too often.
    pub(crate) fn is_poison(&self, usage: &AttemptUsage) -> bool {
        self.poison.is_poison(usage.same_failure) || self.retry.too_many_crashes(usage.crashes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn reached(usage: AttemptUsage, now: i64) -> Option<Limit> {
        let retry = RetryPolicy {
            max_attempts: 3,
            max_crashes: 2,
            max_elapsed: Some(Duration::from_secs(10)),
            ..RetryPolicy::default()
        };
        RetryLimits { retry: &retry, poison: &PoisonPolicy::default() }.reached(&usage, at(now))
    }

    #[test]
    fn crashes_attempts_and_time_each_forbid_another_attempt() {
        // I4
        let usage = AttemptUsage { attempts: 1, crashes: 0, same_failure: 1, first_failed_at: at(0) };
        assert_eq!(reached(usage, 10), None);
        assert_eq!(reached(usage, 11), Some(Limit::Elapsed));
        assert_eq!(reached(AttemptUsage { attempts: 3, ..usage }, 1), Some(Limit::Attempts));
        assert_eq!(reached(AttemptUsage { attempts: 3, crashes: 2, ..usage }, 1), Some(Limit::Crashes));
    }

    #[test]
    fn a_lost_lease_costs_an_attempt_but_never_the_last_one() {
        // I4
        let after = |max_attempts, max_crashes, attempts| {
            let retry = RetryPolicy { max_attempts, max_crashes, ..RetryPolicy::default() };
            RetryLimits { retry: &retry, poison: &PoisonPolicy::default() }
                .attempts_after_lost_lease(attempts)
        };
        assert_eq!((after(3, 3, 0), after(3, 3, 1), after(3, 3, 2)), (1, 2, 2));
        assert_eq!((after(1, 3, 0), after(1, 3, 1)), (0, 1));
        assert_eq!(
            (after(3, 0, 1), after(3, 0, 2)),
            (2, 3),
            "without a limit of crashes, attempts are the limit"
        );
    }

    #[test]
    fn a_released_letter_is_tried_once_however_old_it_is() {
        let usage = AttemptUsage { attempts: 0, crashes: 0, same_failure: 0, first_failed_at: at(0) };
        assert_eq!(reached(usage, 1_000), None);
    }
}
