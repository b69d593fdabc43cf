//! Arithmetic on timestamps, and waits on the injected clock.

use std::time::Duration;

use lazaret_core::{Clock, Timestamp};
use tokio::time::Instant;

/// Returns the time from `now` to `due`, or zero if `due` has passed.
pub(crate) fn until(now: Timestamp, due: Timestamp) -> Duration {
    Duration::try_from(due.duration_since(now)).unwrap_or(Duration::ZERO)
}

/// Returns `now` plus `delay`, or the latest timestamp if the sum overflows.
pub(crate) fn later(now: Timestamp, delay: Duration) -> Timestamp {
    now.checked_add(delay).unwrap_or(Timestamp::MAX)
}

/// The maximum lag of a clock that is being adjusted slowly.
pub(crate) const SLEW: Duration = Duration::from_secs(1);

/// The maximum lead of another member's clock over ours.
const MEMBER_SKEW: Duration = Duration::from_secs(60);

/// Returns the due time of a retry that was stored together with the time of the preceding failure. If
/// that failure lies in the future, our clock was set back since: the retry is then due after its full
/// delay, counted from now.
pub(crate) fn due_after_set_back(due: Timestamp, failed_at: Timestamp, now: Timestamp) -> Timestamp {
    if failed_at <= later(now, MEMBER_SKEW) {
        return due;
    }
    due.min(later(now, until(failed_at, due)))
}

/// A wait for a due time. It ends when the clock shows the due time (I12). If the clock is set back
/// meanwhile, it ends after the original delay. The wait begins when the due time is decided, even if
/// storing it takes a while.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SteadyWait {
    due: Timestamp,
    end: Instant,
}

impl SteadyWait {
    /// Starts a wait now.
    pub(crate) fn until(clock: &dyn Clock, due: Timestamp) -> Self {
        Self { due, end: Instant::now() + until(clock.now(), due) }
    }

    /// Resumes the wait for a due time that was stored together with the time of the preceding failure.
    /// It lasts for the remaining time or, if our clock was set back since, for the whole delay.
    pub(crate) fn resumed(clock: &dyn Clock, due: Timestamp, failed_at: Timestamp) -> Self {
        let now = clock.now();
        Self { due, end: Instant::now() + until(now, due_after_set_back(due, failed_at, now)) }
    }

    /// Returns the due time by the clock as it was set when the wait began.
    pub(crate) fn due(&self) -> Timestamp {
        self.due
    }

    /// Returns the due time by the clock as it is set now. It is earlier if the clock was set back
    /// since.
    pub(crate) fn due_by(&self, clock: &dyn Clock) -> Timestamp {
        self.due.min(later(clock.now(), self.end.saturating_duration_since(Instant::now())))
    }

    pub(crate) fn is_over(&self, clock: &dyn Clock) -> bool {
        let left = until(clock.now(), self.due);
        left.is_zero() || Instant::now() >= self.end && left > SLEW
    }

    /// Returns the delay before the next check whether the wait is over.
    pub(crate) fn rest(&self, clock: &dyn Clock) -> Duration {
        let rest = self.end.saturating_duration_since(Instant::now());
        // The clock is being adjusted slowly.
        if rest.is_zero() { until(clock.now(), self.due) } else { rest }
    }

    /// Sleeps until the wait is over.
    pub(crate) async fn sleep(&self, clock: &dyn Clock) {
        while !self.is_over(clock) {
            tokio::time::sleep(self.rest(clock)).await;
        }
    }
}

/// Waits for a due time.
pub(crate) async fn sleep_until(clock: &dyn Clock, due: Timestamp) {
    SteadyWait::until(clock, due).sleep(clock).await;
}

/// A moment in the past from which elapsed time is measured. The measurement stays correct if the
/// process is stopped or its machine is suspended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    instant: Instant,
    steady: Duration,
}

impl Moment {
    pub(crate) fn now(clock: &dyn Clock) -> Self {
        Self { instant: Instant::now(), steady: clock.steady() }
    }

    /// Returns the moment by the timer clock, which may stand still while the machine is suspended.
    pub(crate) fn instant(self) -> Instant {
        self.instant
    }

    /// Returns the moment by the clock that includes the time of suspensions.
    pub(crate) fn steady(self) -> Duration {
        self.steady
    }

    /// Returns the time since the moment: the larger of what the two clocks measured.
    pub(crate) fn elapsed(self, clock: &dyn Clock) -> Duration {
        self.instant.elapsed().max(clock.steady().saturating_sub(self.steady))
    }
}

/// The time for state that lives only in memory, such as the breaker and the retry budget. It starts at
/// the time of a clock and never goes back, whatever happens to that clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SteadyTime {
    start: Timestamp,
    since: Instant,
}

impl SteadyTime {
    pub(crate) fn starting_at(start: Timestamp) -> Self {
        Self { start, since: Instant::now() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        later(self.start, self.since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    struct Set(Mutex<Timestamp>);

    impl Clock for Set {
        fn now(&self) -> Timestamp {
            *self.0.lock().unwrap()
        }
    }

    #[test]
    fn a_due_time_counts_unless_it_was_written_before_the_clock_was_set_back() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (due, failed_at) = (at(10_030), at(10_000));
        for (now, expected) in [(10_010, 10_030), (9_950, 10_030), (20_000, 10_030), (6_400, 6_430)] {
            assert_eq!(due_after_set_back(due, failed_at, at(now)), at(expected), "at {now}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_was_begun_before_the_clock_was_set_back_ends_in_time() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let clock = Set(Mutex::new(at(10_000)));
        let wait = SteadyWait::until(&clock, at(10_030));
        *clock.0.lock().unwrap() = at(6_400);
        assert_eq!((wait.due(), wait.due_by(&clock)), (at(10_030), at(6_430)));
        let started = Instant::now();
        wait.sleep(&clock).await;
        assert_eq!(started.elapsed(), Duration::from_secs(30));
        assert!(wait.is_over(&clock), "and stays over");
        // Stored before the step, read after it.
        let resumed = SteadyWait::resumed(&clock, at(10_030), at(10_000));
        assert_eq!((resumed.is_over(&clock), resumed.due_by(&clock)), (false, at(6_430)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_back_does_not_prolong_a_sleep() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let clock = Set(Mutex::new(at(10_000)));
        let (started, due) = (Instant::now(), at(10_005));
        let set_back = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            *clock.0.lock().unwrap() = at(100);
        };
        tokio::join!(sleep_until(&clock, due), set_back);
        assert_eq!(started.elapsed(), Duration::from_secs(5));
    }
}
