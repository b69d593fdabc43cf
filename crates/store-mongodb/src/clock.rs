//! The store's clock: that of the server, or one that a test controls.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use lazaret_core::Clock;
use lazaret_core::store::Result;

use crate::database::Database;
use crate::error::corrupt;

/// How long a reading of the server's clock is used before it is read again.
const FRESH: Duration = Duration::from_secs(10);

/// By how much a new reading may be behind before the clock counts as set back: half a round trip and the milliseconds of the server.
const JITTER: Duration = Duration::from_millis(500);

/// The clock that leases and due times go by.
pub(crate) enum StoreClock {
    /// The server's.
    Server(Mutex<Option<Reading>>),
    /// A test's.
    Given(Arc<dyn Clock>),
}

/// A reading of the server's clock. Between two readings, time passes as it does on this machine.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    server: Timestamp,
    taken: Instant,
}

impl Reading {
    fn at(self, now: Instant) -> Timestamp {
        let passed = now.saturating_duration_since(self.taken);
        self.server.checked_add(passed).unwrap_or(Timestamp::MAX)
    }

    /// The next reading. One that is behind by less than the jitter does not set the time back.
    fn followed_by(self, next: Self) -> Self {
        let expected = self.at(next.taken);
        let behind = Duration::try_from(expected.duration_since(next.server)).unwrap_or_default();
        if behind > JITTER { next } else { Self { server: next.server.max(expected), ..next } }
    }
}

impl StoreClock {
    pub(crate) fn new(given: Option<Arc<dyn Clock>>) -> Self {
        given.map_or_else(|| Self::Server(Mutex::default()), Self::Given)
    }

    pub(crate) const fn is_server(&self) -> bool {
        matches!(self, Self::Server(_))
    }

    pub(crate) async fn now(&self, database: &Database) -> Result<Timestamp> {
        let kept = match self {
            Self::Given(clock) => return Ok(clock.now()),
            Self::Server(kept) => kept,
        };
        let lock = || kept.lock().unwrap_or_else(PoisonError::into_inner);
        let last = *lock();
        if let Some(last) = last.filter(|last| last.taken.elapsed() < FRESH) {
            return Ok(last.at(Instant::now()));
        }
        let asked = Instant::now();
        let hello = database.hello().await?;
        let answered = Instant::now();
        let time = hello.get_datetime("localTime").map_err(|_| corrupt("the server states no time"))?;
        let server = Timestamp::from_millisecond(time.timestamp_millis())
            .map_err(|error| corrupt(error.to_string()))?;
        let next = Reading { server, taken: asked + answered.duration_since(asked) / 2 };
        let mut kept = lock();
        let next = kept.map_or(next, |last| last.followed_by(next));
        *kept = Some(next);
        Ok(next.at(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_difference_between_two_readings_does_not_set_the_clock_back() {
        let (start, server) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let first = Reading { server, taken: start };
        let later = start + Duration::from_secs(10);
        let next = |server| first.followed_by(Reading { server, taken: later }).at(later);
        let expected = server + Duration::from_secs(10);
        assert_eq!(next(expected - Duration::from_millis(20)), expected);
        assert_eq!(next(expected + Duration::from_millis(20)), expected + Duration::from_millis(20));
        assert_eq!(next(server), server, "a clock that was set back is followed");
    }
}
