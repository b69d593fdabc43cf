//! Counts the bytes of hand-offs, so that the room of the store is measured by what was written, too, and not by time alone.
//!
//! A small disk is full long before the next look by the clock. After each measurement the consumer may write a part of the
//! room that was left; then the room is measured again.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// The part of the room after which it is measured again: a letter takes several times its bytes, in the table, its indexes and
/// the logs.
const PART: u64 = 16;

/// The bytes after which the room is measured while it is unknown, and at the least.
const LEAST: u64 = 64 << 10;

/// The bytes that were handed off since the last measurement.
#[derive(Debug)]
pub(crate) struct HandedOff {
    bytes: AtomicU64,
    /// The number after which the room is measured again.
    limit: AtomicU64,
    reached: Notify,
}

impl Default for HandedOff {
    fn default() -> Self {
        Self { bytes: AtomicU64::new(0), limit: AtomicU64::new(LEAST), reached: Notify::new() }
    }
}

impl HandedOff {
    /// Counts a hand-off.
    pub(crate) fn add(&self, bytes: u64) {
        let before = self.bytes.fetch_add(bytes, Ordering::AcqRel);
        if before.saturating_add(bytes) >= self.limit.load(Ordering::Acquire) {
            self.reached.notify_one();
        }
    }

    /// Waits until so much was handed off that the room is to be measured. Cancellation safe.
    pub(crate) async fn reached(&self) {
        while self.bytes.load(Ordering::Acquire) < self.limit.load(Ordering::Acquire) {
            self.reached.notified().await;
        }
    }

    /// Starts again before a measurement: what is handed off meanwhile may not be in it.
    pub(crate) fn begin(&self) {
        self.bytes.store(0, Ordering::Release);
    }

    /// Sets the limit by the room that is left before a bound is reached; `None` while no bound depends on bytes.
    pub(crate) fn measured(&self, room: Option<u64>) {
        let limit = room.map_or(u64::MAX, |room| (room / PART).max(LEAST));
        self.limit.store(limit, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn the_room_is_measured_again_after_a_part_of_it_was_written() {
        let handed_off = HandedOff::default();
        let is_reached = || handed_off.reached().now_or_never().is_some();
        handed_off.add(LEAST - 1);
        assert!(!is_reached());
        handed_off.add(1);
        assert!(is_reached(), "the room is unknown");
        handed_off.begin();
        handed_off.measured(Some(PART << 20));
        handed_off.add((1 << 20) - 1);
        assert!(!is_reached());
        handed_off.add(1);
        assert!(is_reached());
        handed_off.begin();
        handed_off.measured(Some(0));
        handed_off.add(LEAST);
        assert!(is_reached(), "a full disk is no reason to measure without end");
        handed_off.begin();
        handed_off.measured(None);
        handed_off.add(u64::MAX / 2);
        assert!(!is_reached());
    }
}
