//! Arithmetic on timestamps, and waiting on the injected clock.

use std::time::Duration;

use lazaret_core::{Clock, Timestamp};

/// The time from `now` to `due`; zero when that has passed.
pub(crate) fn until(now: Timestamp, due: Timestamp) -> Duration {
    Duration::try_from(due.duration_since(now)).unwrap_or(Duration::ZERO)
}

/// `now` and `delay` later, or the last timestamp that can be expressed.
pub(crate) fn later(now: Timestamp, delay: Duration) -> Timestamp {
    now.checked_add(delay).unwrap_or(Timestamp::MAX)
}

/// Sleeps until the clock shows at least `due` (I12).
pub(crate) async fn sleep_until(clock: &dyn Clock, due: Timestamp) {
    loop {
        let left = until(clock.now(), due);
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}
