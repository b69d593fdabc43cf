//! Delays the start of workers after failures, with exponential back-off.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;

/// The first delay. It doubles after each consecutive failure.
const MIN_DELAY: Duration = Duration::from_millis(100);
/// The maximum delay.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Computes the earliest time of the next start after consecutive failures.
#[derive(Debug)]
pub(super) struct RestartDelay {
    delays: ExponentialBackoff,
    /// The last failure that counted.
    failed_at: Option<Instant>,
    until: Option<Instant>,
}

impl Default for RestartDelay {
    fn default() -> Self {
        let delays = ExponentialBuilder::new()
            .with_min_delay(MIN_DELAY)
            .with_max_delay(MAX_DELAY)
            .with_factor(2.0)
            .without_max_times()
            .build();
        Self { delays, failed_at: None, until: None }
    }
}

impl RestartDelay {
    /// Records that a worker failed. Workers that ran concurrently and fail together count once: a
    /// worker that was started before the last failure does not lengthen the delay.
    pub(super) fn failed(&mut self, started: Instant, now: Instant) {
        if self.failed_at.is_some_and(|failed_at| started < failed_at) {
            return;
        }
        self.failed_at = Some(now);
        self.until = Some(now + self.delays.next().unwrap_or(MAX_DELAY));
    }

    /// Returns the time before which no worker may start.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_consecutive_failure_doubles_the_delay_up_to_the_maximum() {
        let now = Instant::now();
        let mut delay = RestartDelay::default();
        assert_eq!(delay.until(), None);
        let mut after = || {
            delay.failed(now, now);
            (delay.until().unwrap() - now).as_millis()
        };
        let delays: Vec<u128> = (0..9).map(|_| after()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    }
    #[tokio::test(start_paused = true)]
    async fn workers_that_fail_together_count_once() {
        let started = Instant::now();
        let now = started + Duration::from_secs(1);
        let mut delay = RestartDelay::default();
        (0..64).for_each(|_| delay.failed(started, now));
        assert_eq!((delay.until().unwrap() - now).as_millis(), 100);
        let later = now + Duration::from_secs(1);
        delay.failed(now + MIN_DELAY, later);
        assert_eq!((delay.until().unwrap() - later).as_millis(), 200);
    }
}
