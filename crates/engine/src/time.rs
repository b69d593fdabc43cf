//! Arithmetic on timestamps, and waiting on the injected clock.

use std::time::Duration;

use lazaret_core::{Clock, Timestamp};
use tokio::time::Instant;

/// The time from `now` to `due`; zero when that has passed.
pub(crate) fn until(now: Timestamp, due: Timestamp) -> Duration {
    Duration::try_from(due.duration_since(now)).unwrap_or(Duration::ZERO)
}

/// `now` and `delay` later, or the last timestamp that can be expressed.
pub(crate) fn later(now: Timestamp, delay: Duration) -> Timestamp {
    now.checked_add(delay).unwrap_or(Timestamp::MAX)
}

/// By how much a clock that is adjusted slowly may lag behind the time that has passed.
const SLEW: Duration = Duration::from_secs(1);

/// Sleeps for the time from now to `due`, and until the clock shows it (I12). A clock that is set back meanwhile is not
/// waited for.
pub(crate) async fn sleep_until(clock: &dyn Clock, due: Timestamp) {
    let end = Instant::now() + until(clock.now(), due);
    loop {
        let (left, passed) = (until(clock.now(), due), Instant::now() >= end);
        if left.is_zero() || passed && left > SLEW {
            return;
        }
        tokio::time::sleep(if passed { left } else { end - Instant::now() }).await;
    }
}

/// Time for what lives in memory only, such as the breaker and the retry budget: it starts at the time of a clock and never
/// goes back, whatever happens to that clock.
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
