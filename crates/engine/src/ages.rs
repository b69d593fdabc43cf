//! The ages of what is under way in one queue: running attempts, and messages that failed and wait in memory.
//!
//! A message that waits in the store has an age there. One that waits in memory, or a handler that does not return, shows only
//! here. A handler that ends at its first poll is not tracked.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_core::Timestamp;

/// The starts within this time count as one.
const GRAIN_MILLIS: i64 = 100;

/// The ages of one queue.
#[derive(Debug, Default)]
pub(crate) struct Ages {
    /// The attempts that run, by their start.
    pub(crate) attempts: Starts,
    /// The messages that failed and are neither settled nor letters, by their first failed attempt.
    pub(crate) failing: Starts,
}

/// The starts of what is under way. There are no more of them than messages in flight (I7).
#[derive(Clone, Debug, Default)]
pub(crate) struct Starts(Arc<Mutex<BTreeMap<i64, usize>>>);

impl Starts {
    /// Adds a start, until the returned value is dropped.
    pub(crate) fn begin(&self, at: Timestamp) -> UnderWay {
        let grain = at.as_millisecond().div_euclid(GRAIN_MILLIS);
        *self.lock().entry(grain).or_default() += 1;
        UnderWay { starts: self.clone(), grain }
    }

    /// The earliest start.
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        let grain = *self.lock().first_key_value()?.0;
        Timestamp::from_millisecond(grain.saturating_mul(GRAIN_MILLIS)).ok()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<i64, usize>> {
        // Each call leaves the counts whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Something that is under way while this lives.
#[derive(Debug)]
pub(crate) struct UnderWay {
    starts: Starts,
    grain: i64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.starts.lock().entry(self.grain) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_the_earliest_that_is_not_over() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let starts = Starts::default();
        assert_eq!(starts.oldest(), None);
        let (late, first, twin) = (starts.begin(at(9)), starts.begin(at(5)), starts.begin(at(5)));
        drop(first);
        assert_eq!(starts.oldest(), Some(at(5)), "two began at once");
        drop(twin);
        assert_eq!(starts.oldest(), Some(at(9)));
        drop(late);
        assert_eq!(starts.oldest(), None);
        assert!(starts.lock().is_empty());
    }
}
