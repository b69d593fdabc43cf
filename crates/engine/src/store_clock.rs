//! The clock of a consumer. If several machines share a store, it is the store's clock.
//!
//! One instance writes due times, notes and expiries, and others read them. If each instance used its
//! own time, an instance whose clock is an hour slow would make retries due at once (I12) and letters
//! expire an hour early.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use lazaret_core::store::{LetterStore, Result};
use lazaret_core::{Clock, Timestamp};
use tokio::time::Instant;

use crate::time::later;

/// The interval at which the store is asked for its time.
const ASK_EVERY: Duration = Duration::from_secs(30);

/// The time of the store, advanced by the monotonic clock of this machine. If the store has no clock,
/// our own clock.
pub(crate) struct StoreClock {
    own: Arc<dyn Clock>,
    state: RwLock<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    asked_at: Option<Instant>,
    reading: Option<Reading>,
}

/// A reading of the store's time, treated as the time at which it was requested. It is ahead by at most
/// the time until the response.
#[derive(Clone, Copy, Debug)]
struct Reading {
    time: Timestamp,
    at: Instant,
    /// The time from the request to the response.
    error: Duration,
}

impl Reading {
    fn now(&self) -> Timestamp {
        later(self.time, self.at.elapsed())
    }

    /// Returns `true` if a later reading confirms this one: this one is no further ahead and consistent
    /// with it.
    fn agrees_with(&self, later_one: &Self) -> bool {
        let (own, upper) = (self.now(), later_one.now());
        own <= upper && later(own, later_one.error) >= upper
    }
}

impl StoreClock {
    pub(crate) fn new(own: Arc<dyn Clock>) -> Self {
        Self { own, state: RwLock::default() }
    }

    fn state(&self) -> State {
        *self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the maximum lead of this clock over that of another instance.
    pub(crate) fn error(&self) -> Duration {
        self.state().reading.map_or(Duration::ZERO, |reading| reading.error)
    }

    /// Asks the store for its time, unless it was asked a short while ago.
    pub(crate) async fn ask(&self, store: &(impl LetterStore + ?Sized)) -> Result<()> {
        if self.state().asked_at.is_some_and(|asked_at| asked_at.elapsed() < ASK_EVERY) {
            return Ok(());
        }
        let at = Instant::now();
        let time = store.server_time().await?;
        let fresh = time.map(|time| Reading { time, at, error: at.elapsed() });
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.asked_at = Some(at);
        // A reading with a faster response is more precise, for as long as it is correct.
        let kept = state.reading.zip(fresh).is_some_and(|(known, fresh)| known.agrees_with(&fresh));
        if !kept {
            state.reading = fresh;
        }
        Ok(())
    }
}

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        self.state().reading.map_or_else(|| self.own.now(), |reading| reading.now())
    }

    fn steady(&self) -> Duration {
        self.own.steady()
    }

    fn boot(&self) -> Option<String> {
        self.own.boot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(second: i64, error: u64) -> Reading {
        let time = Timestamp::from_second(second).unwrap();
        Reading { time, at: Instant::now(), error: Duration::from_secs(error) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reading_is_kept_until_a_later_one_disagrees() {
        let known = reading(1_000, 1);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(known.now().as_second(), 1_060);
        // The response took five seconds: the store's time lies between 1,058 and 1,063.
        assert!(known.agrees_with(&reading(1_063, 5)));
        assert!(known.agrees_with(&reading(1_060, 0)));
        // The later reading is closer to the store's time.
        assert!(!known.agrees_with(&reading(1_059, 5)));
        // The store's clock was set.
        assert!(!known.agrees_with(&reading(1_070, 5)));
        assert!(!known.agrees_with(&reading(500, 5)));
    }
}
