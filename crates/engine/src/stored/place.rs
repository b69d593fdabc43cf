//! The places of runs, which limit how many sequences are claimed and attempted at once.
//!
//! A run has a place from its claim to the end of its attempt, and again for the next letter. While it
//! settles, another sequence can be claimed. So the store always has claims and settlements to write
//! together, while the number of concurrent attempts stays the same (I3).

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The maximum number of runs per place. Runs without a place settle, or wait for the store (I7).
const RUNS_PER_PLACE: usize = 4;

/// The places of retries or of replays. All components of a consumer share them.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    attempts: Arc<Semaphore>,
    runs: Arc<Semaphore>,
}

impl Places {
    pub(crate) fn new(at_once: usize) -> Self {
        let at_once = at_once.clamp(1, Semaphore::MAX_PERMITS / RUNS_PER_PLACE);
        Self {
            attempts: Arc::new(Semaphore::new(at_once)),
            runs: Arc::new(Semaphore::new(at_once * RUNS_PER_PLACE)),
        }
    }

    /// Waits for a place, in the order of the calls. Never returns `None` while the consumer lives.
    pub(crate) async fn take(&self) -> Option<Place> {
        let run = self.runs.clone().acquire_owned().await.ok()?;
        let attempt = self.attempts.clone().acquire_owned().await.ok()?;
        Some(self.place(run, attempt))
    }

    /// Takes more places as far as they are free, up to `at_most` in total including the first.
    pub(crate) fn fill(&self, first: Place, at_most: usize) -> Vec<Place> {
        let more = std::iter::from_fn(|| self.try_take()).take(at_most.saturating_sub(1));
        std::iter::once(first).chain(more).collect()
    }

    /// Takes a place if one is free.
    fn try_take(&self) -> Option<Place> {
        let run = self.runs.clone().try_acquire_owned().ok()?;
        let attempt = self.attempts.clone().try_acquire_owned().ok()?;
        Some(self.place(run, attempt))
    }

    fn place(&self, run: OwnedSemaphorePermit, attempt: OwnedSemaphorePermit) -> Place {
        Place { attempts: self.attempts.clone(), attempt: Mutex::new(Some(attempt)), _run: run }
    }
}

/// The place of one run.
#[derive(Debug)]
pub(crate) struct Place {
    attempts: Arc<Semaphore>,
    attempt: Mutex<Option<OwnedSemaphorePermit>>,
    _run: OwnedSemaphorePermit,
}

impl Place {
    /// Waits until the next attempt of the run has a place.
    pub(super) async fn enter(&self) {
        if self.is_entered() {
            return;
        }
        if let Ok(permit) = self.attempts.clone().acquire_owned().await {
            self.set(Some(permit));
        }
    }

    /// Frees the place for another sequence, until the next attempt.
    pub(super) fn leave(&self) {
        self.set(None);
    }

    fn is_entered(&self) -> bool {
        self.attempt.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn set(&self, permit: Option<OwnedSemaphorePermit>) {
        *self.attempt.lock().unwrap_or_else(PoisonError::into_inner) = permit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_run_that_settles_leaves_its_place_to_another_and_waits_for_the_next_one() {
        let places = Places::new(1);
        let first = places.take().await.unwrap();
        assert!(places.try_take().is_none());
        first.leave();
        let second = places.try_take().unwrap();
        assert!(places.try_take().is_none());
        let mut again = Box::pin(first.enter());
        assert!(futures_util::poll!(again.as_mut()).is_pending());
        drop(second);
        again.as_mut().await;
        assert!(places.try_take().is_none());
        drop(again);
        drop(first);
        assert_eq!(places.fill(places.take().await.unwrap(), 9).len(), 1);
    }

    #[tokio::test]
    async fn runs_that_settle_are_bounded() {
        // I7
        let places = Places::new(2);
        assert_eq!(places.fill(places.take().await.unwrap(), 9).len(), 2);
        let mut runs = Vec::new();
        while let Some(run) = places.try_take() {
            run.leave();
            runs.push(run);
        }
        assert_eq!(runs.len(), 2 * RUNS_PER_PLACE);
    }
}
