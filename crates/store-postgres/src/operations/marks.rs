//! Where the polls of this process continue.
//!
//! A letter that a poll has given out stays pending until it is settled. Without a mark, each poll would inspect all letters in flight
//! again before it comes to a new one. A mark says that a poll would find nothing to do before it: the letters there are in flight, or
//! have their outcome. So it ends with the first of their leases, and with every call that may change that.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use lazaret_core::store::OperationId;

use crate::leases::Claimant;
use crate::store::Queue;

/// How long a mark is used. Other processes change letters, too.
const VALID: Duration = Duration::from_secs(1);
/// The calls that leave each letter in flight as it is. A settlement says by itself whether it does.
const HARMLESS: [&str; 14] = [
    "assign",
    "change",
    "claim",
    "claim_due",
    "commit",
    "count",
    "find",
    "note",
    "poll_work",
    "post",
    "read",
    "renew",
    "settle",
    "write",
];

/// The letters of an operation in a queue that one owner has polled, up to an ordinal.
#[derive(Debug)]
struct Mark {
    operation: OperationId,
    from: u64,
    since: Instant,
    /// When the first lease ends, by the clock of the store.
    until: Timestamp,
}

/// The marks of a store, by queue and owner. Each has the operation that was served last.
#[derive(Default)]
pub(crate) struct Marks(Mutex<HashMap<(i64, String), Mark>>);

impl Marks {
    fn lock(&self) -> MutexGuard<'_, HashMap<(i64, String), Mark>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ordinal from which a poll continues; 0 is the first.
    pub(super) fn from(&self, queue: &Queue, owner: &str, operation: OperationId, now: Timestamp) -> u64 {
        let marks = self.lock();
        let mark = marks.get(&(queue.qid, owner.to_owned()));
        let fits =
            |mark: &&Mark| mark.operation == operation && now < mark.until && mark.since.elapsed() < VALID;
        mark.filter(fits).map_or(0, |mark| mark.from)
    }

    /// Sets the mark after a poll that began with the mark `begun`, at this time.
    pub(super) fn set(
        &self,
        queue: &Queue,
        claimant: Claimant<'_>,
        operation: OperationId,
        (begun, from): (u64, u64),
        now: Timestamp,
    ) {
        let mut marks = self.lock();
        let key = (queue.qid, claimant.owner.to_owned());
        let continues = begun > 0 && from >= begun;
        if let Some(mark) = marks.get_mut(&key).filter(|mark| continues && mark.operation == operation) {
            mark.from = from;
        } else if from == 0 {
            marks.remove(&key);
        } else {
            let until = now.checked_add(claimant.lease).unwrap_or(Timestamp::MAX);
            marks.insert(key, Mark { operation, from, since: Instant::now(), until });
        }
    }

    /// Ends all marks after a call that may have changed a letter in flight.
    pub(crate) fn end_after(&self, call: &str) {
        if !HARMLESS.contains(&call) {
            self.end();
        }
    }

    /// Ends all marks.
    pub(crate) fn end(&self) {
        self.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::QueueName;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;
    const LEASE: Duration = Duration::from_secs(30);

    #[test]
    fn a_poll_continues_at_the_mark_of_the_same_owner_and_operation() {
        let (marks, operation) = (Marks::default(), OperationId(7));
        let queue = Queue { qid: 1, name: QueueName::of("c", "c") };
        let claimant = Claimant { owner: "w1", lease: LEASE };
        marks.set(&queue, claimant, operation, (0, 64), NOW);
        assert_eq!(marks.from(&queue, "w1", operation, NOW), 64);
        assert_eq!(marks.from(&queue, "w2", operation, NOW), 0);
        assert_eq!(marks.from(&queue, "w1", OperationId(8), NOW), 0);
        assert_eq!(marks.from(&queue, "w1", operation, NOW + LEASE), 0, "a lease may have ended");
        marks.set(&queue, claimant, operation, (64, 128), NOW + LEASE / 2);
        assert_eq!(marks.from(&queue, "w1", operation, NOW + LEASE), 0, "that of the first poll has");
        marks.end_after("settle");
        assert_eq!(marks.from(&queue, "w1", operation, NOW), 128);
        marks.set(&queue, claimant, operation, (128, 0), NOW);
        assert_eq!(marks.from(&queue, "w1", operation, NOW), 0, "the stage has no more letters");
    }

    #[test]
    fn a_call_that_may_change_a_letter_in_flight_ends_the_marks() {
        let (marks, operation) = (Marks::default(), OperationId(7));
        let queue = Queue { qid: 1, name: QueueName::of("c", "c") };
        for call in ["act", "command", "expire", "hand_off", "release", "set_pause"] {
            marks.set(&queue, Claimant { owner: "w1", lease: LEASE }, operation, (0, 64), NOW);
            marks.end_after(call);
            assert_eq!(marks.from(&queue, "w1", operation, NOW), 0, "{call}");
        }
    }
}
