//! The ages of running attempts in one queue, and of failed messages that wait in memory.
//!
//! The store shows the age of a message that waits there. The age of a message that waits in memory, and
//! of a handler that does not return, is known only here. A handler that completes at its first poll is
//! not tracked.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_core::Timestamp;

/// The interval within which starts count as simultaneous.
const GRAIN_MILLIS: i64 = 100;

/// The ages of one queue.
#[derive(Debug, Default)]
pub(crate) struct Ages {
    /// The running attempts, by their start.
    pub(crate) attempts: Starts,
    /// The failed messages that are neither settled nor letters, by their first failed attempt.
    pub(crate) failing: Starts,
}

/// The start times of running items. There are at most as many as messages in flight (I7).
#[derive(Clone, Debug, Default)]
pub(crate) struct Starts(Arc<Mutex<BTreeMap<i64, usize>>>);

impl Starts {
    /// Adds a start and keeps it until the returned value is dropped.
    pub(crate) fn begin(&self, at: Timestamp) -> UnderWay {
        let grain = at.as_millisecond().div_euclid(GRAIN_MILLIS);
        *self.lock().entry(grain).or_default() += 1;
        UnderWay { starts: self.clone(), grain }
    }

    /// Returns the earliest start.
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        let grain = *self.lock().first_key_value()?.0;
        Timestamp::from_millisecond(grain.saturating_mul(GRAIN_MILLIS)).ok()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<i64, usize>> {
        // Each critical section leaves the counts consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An item that is under way until this value is dropped.
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
