//! Counts the bytes of hand-offs, so that the store's free space is measured not only at intervals but
//! also after a certain amount of writes.
//!
//! A small disk can fill up long before the next measurement at an interval. After each measurement the
//! consumer may write a fraction of the remaining space before the next one. Messages that were read
//! before may all become letters, so hand-offs are also counted against the disk's reserve before they
//! are written.

use std::sync::atomic::{AtomicU64, Ordering};

use lazaret_core::store::HandOff;
use tokio::sync::Notify;

use crate::message_size::memory_size;

/// The fraction of the free space, as a divisor, after which it is measured again. A letter takes
/// several times its own size in the table, its indexes and the logs.
const PART: u64 = 16;

/// The number of bytes after which the free space is measured while it is unknown, and the minimum
/// otherwise.
const LEAST: u64 = 64 << 10;

/// The maximum disk space per byte of a letter before the next checkpoint. A letter is in the redo log,
/// in the database's log and in the database. Indexes and partly filled pages take the same again.
const ON_DISK: u64 = 4;

/// The size of a letter without its message: its state, its failure and its index entries.
const BESIDE_MESSAGE: u64 = 2 << 10;

/// Returns the counted size of the letters in bytes.
pub(crate) fn bytes_of(items: &[HandOff]) -> u64 {
    items.iter().map(|item| memory_size(&item.letter.message) as u64 + BESIDE_MESSAGE).sum()
}

/// Counts the bytes that were handed off since the last measurement.
#[derive(Debug)]
pub(crate) struct HandedOff {
    bytes: AtomicU64,
    /// The number of bytes after which the free space is measured again.
    limit: AtomicU64,
    reached: Notify,
    /// The total bytes that were ever handed off, and the total that the disk has room for.
    total: AtomicU64,
    most: AtomicU64,
}

impl Default for HandedOff {
    fn default() -> Self {
        Self {
            bytes: AtomicU64::new(0),
            limit: AtomicU64::new(LEAST),
            reached: Notify::new(),
            total: AtomicU64::new(0),
            // 0, so that the first hand-off measures the disk.
            most: AtomicU64::new(0),
        }
    }
}

impl HandedOff {
    /// Counts a hand-off.
    pub(crate) fn add(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::AcqRel);
        let before = self.bytes.fetch_add(bytes, Ordering::AcqRel);
        if before.saturating_add(bytes) >= self.limit.load(Ordering::Acquire) {
            self.reached.notify_one();
        }
    }

    /// Waits until enough bytes were handed off for another measurement. Cancellation safe.
    pub(crate) async fn reached(&self) {
        while self.bytes.load(Ordering::Acquire) < self.limit.load(Ordering::Acquire) {
            self.reached.notified().await;
        }
    }

    /// Resets the count before a measurement, which may not include bytes that are handed off meanwhile.
    /// Returns the total so far.
    pub(crate) fn begin(&self) -> u64 {
        self.bytes.store(0, Ordering::Release);
        self.total()
    }

    /// Returns the total bytes that were ever handed off.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Acquire)
    }

    /// Sets how many bytes may be handed off beyond this total, from the free disk space without the
    /// reserve. `None` means that the disk has no reserve or its free space is unknown.
    pub(crate) fn disk_measured(&self, total: u64, free: Option<u64>) {
        let most = free.map_or(u64::MAX, |free| total.saturating_add(free / ON_DISK));
        self.most.store(most, Ordering::Release);
    }

    /// Returns `true` if the disk has room for this many bytes without using its reserve.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        self.total().saturating_add(bytes) <= self.most.load(Ordering::Acquire)
    }

    /// Sets the limit from the remaining space before a bound is reached. `None` means that no bound
    /// depends on bytes.
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

    #[test]
    fn what_was_handed_off_since_the_disk_was_measured_takes_of_its_room() {
        let handed_off = HandedOff::default();
        assert!(!handed_off.fits(1), "nobody has looked at the disk");
        handed_off.add(7);
        let before = handed_off.begin();
        handed_off.add(40);
        handed_off.disk_measured(before, Some(100 * ON_DISK));
        assert!(handed_off.fits(60) && !handed_off.fits(61), "40 may not be in the measurement");
        let before = handed_off.begin();
        handed_off.disk_measured(before, Some(0));
        assert!(handed_off.fits(0) && !handed_off.fits(1));
        handed_off.disk_measured(before, None);
        assert!(handed_off.fits(u64::MAX / 2));
    }
}
