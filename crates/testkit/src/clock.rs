//! Clocks for tests: one that follows tokio's, and one that only the test advances.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use lazaret_core::Clock;
use tokio::time::Instant;

/// The start of test time: 2026-01-01T00:00:00Z.
pub fn test_epoch() -> Timestamp {
    Timestamp::constant(1_767_225_600, 0)
}

/// A clock that follows tokio's: with a paused runtime, the test controls the time.
///
/// Clones share the skew, so that a test can skew the clock of a running instance.
///
/// ```
/// use std::time::Duration;
/// use lazaret_core::Clock;
/// use lazaret_testkit::TokioClock;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// let clock = TokioClock::new();
/// let before = clock.now();
/// tokio::time::advance(Duration::from_secs(5)).await;
/// assert_eq!(clock.now().duration_since(before).as_secs(), 5);
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct TokioClock {
    started: Instant,
    skew_nanos: Arc<AtomicI64>,
}

impl TokioClock {
    /// A clock that shows [`test_epoch`] now.
    pub fn new() -> Self {
        Self { started: Instant::now(), skew_nanos: Arc::default() }
    }

    /// A clock that shows the same time, with a skew of its own.
    #[must_use]
    pub fn apart(&self) -> Self {
        let skew = self.skew_nanos.load(Ordering::Relaxed);
        Self { started: self.started, skew_nanos: Arc::new(skew.into()) }
    }

    /// Sets the skew of this clock, at most 292 years.
    pub fn set_skew(&self, skew: SignedDuration) {
        let limit = if skew.is_negative() { i64::MIN } else { i64::MAX };
        self.skew_nanos.store(skew.as_nanos().try_into().unwrap_or(limit), Ordering::Relaxed);
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let skew = SignedDuration::from_nanos(self.skew_nanos.load(Ordering::Relaxed));
        test_epoch() + self.started.elapsed() + skew
    }

    fn steady(&self) -> Duration {
        self.started.elapsed()
    }

    fn boot(&self) -> Option<String> {
        // The runtime that it follows ends with the process.
        None
    }
}

/// A clock that only the test advances, and sets. Clones show the same time.
///
/// ```
/// use std::time::Duration;
/// use lazaret_core::Clock;
/// use lazaret_testkit::ManualClock;
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(5));
/// assert_eq!(clock.now().duration_since(before).as_secs(), 5);
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Manual>);

#[derive(Debug)]
struct Manual {
    /// Tells it from other machines and other boots.
    number: u64,
    shown: Mutex<Shown>,
}

#[derive(Clone, Copy, Debug)]
struct Shown {
    now: Timestamp,
    steady: Duration,
}

impl ManualClock {
    /// A clock that shows [`test_epoch`], of a machine that has just been started.
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let shown = Mutex::new(Shown { now: test_epoch(), steady: Duration::ZERO });
        Self(Arc::new(Manual { number, shown }))
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.0.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the time, as a person does: no time passes.
    pub fn set(&self, now: Timestamp) {
        self.shown().now = now;
    }

    /// Lets the time pass.
    pub fn advance(&self, by: Duration) {
        let mut shown = self.shown();
        shown.now += by;
        shown.steady += by;
    }

    /// Sets the time and the [steady](Clock::steady) time to those of another clock.
    pub fn follow(&self, now: Timestamp, steady: Duration) {
        *self.shown() = Shown { now, steady };
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.shown().now
    }

    fn steady(&self) -> Duration {
        self.shown().steady
    }

    fn boot(&self) -> Option<String> {
        Some(format!("manual-{}", self.0.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_counts_no_time() {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(5));
        clock.set(test_epoch() + Duration::from_secs(3600));
        clock.advance(Duration::from_secs(5));
        assert_eq!(clock.now(), test_epoch() + Duration::from_secs(3605));
        assert_eq!(clock.steady(), Duration::from_secs(10));
        assert_eq!(clock.boot(), clock.clone().boot());
        assert_ne!(clock.boot(), ManualClock::new().boot());
    }

    #[tokio::test(start_paused = true)]
    async fn a_skewed_clock_is_off_by_its_skew_and_leaves_others_alone() {
        let right = TokioClock::new();
        let wrong = right.apart();
        wrong.set_skew(SignedDuration::from_secs(-30));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(right.now() - wrong.now(), jiff::Span::new().seconds(30).fieldwise());
        assert_eq!(right.now(), test_epoch() + Duration::from_secs(60));
    }
}
