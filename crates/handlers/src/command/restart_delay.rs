//! Delays the start of workers after failures, with exponential backoff.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;

/// The first delay; doubled after each consecutive failure.
const MIN_DELAY: Duration = Duration::from_millis(100);
/// The maximum delay.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// The earliest time of the next start, after consecutive failures.
#[derive(Debug)]
pub(super) struct RestartDelay {
    delays: ExponentialBackoff,
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
        Self { delays, until: None }
    }
}

impl RestartDelay {
    /// Records a failure at the given time.
    pub(super) fn failed(&mut self, now: Instant) {
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
            delay.failed(now);
            (delay.until().unwrap() - now).as_millis()
        };
        let delays: Vec<u128> = (0..9).map(|_| after()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    }
}
