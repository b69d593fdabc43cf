//! The free slots: lock-free stacks, one per shard, to avoid contention.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The maximum number of shards. More shards would only slow down the search when few slots are free.
const MAX_SHARDS: usize = 16;

/// The top of one stack, in a cache line of its own. The high half is a counter of changes, which
/// prevents the ABA problem. The low half is one more than the slot's index, or 0 if the stack is empty.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Top(AtomicU64);

/// The free slots.
#[derive(Debug)]
pub(crate) struct FreeSlots {
    tops: Box<[Top]>,
    /// For each slot, one more than the index of the slot below it in its stack.
    below: Box<[AtomicU32]>,
}

/// Returns a number that is unique per thread.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

impl FreeSlots {
    /// Creates a set in which all slots are free.
    pub(crate) fn new(slots: u32) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let shards = threads.min(MAX_SHARDS).min(slots as usize).max(1);
        let free = Self {
            tops: (0..shards).map(|_| Top::default()).collect(),
            below: (0..slots).map(|_| AtomicU32::new(0)).collect(),
        };
        for slot in (0..slots).rev() {
            free.push(slot as usize % shards, slot);
        }
        free
    }

    /// Acquires a free slot, if there is one.
    pub(crate) fn acquire(&self) -> Option<u32> {
        let home = thread_number();
        (0..self.tops.len()).find_map(|step| self.pop((home + step) % self.tops.len()))
    }

    /// Releases a slot. This thread acquires it next, while it is still in the cache.
    pub(crate) fn release(&self, slot: u32) {
        self.push(thread_number() % self.tops.len(), slot);
    }

    fn pop(&self, shard: usize) -> Option<u32> {
        let top = &self.tops[shard].0;
        let mut seen = top.load(Ordering::Acquire);
        loop {
            let slot = (seen as u32).checked_sub(1)?;
            // This value is stale after a concurrent change. Then the counter differs, and the exchange
            // fails.
            let next = self.below[slot as usize].load(Ordering::Relaxed);
            match top.compare_exchange_weak(seen, changed(seen, next), Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(slot),
                Err(now) => seen = now,
            }
        }
    }

    fn push(&self, shard: usize, slot: u32) {
        let top = &self.tops[shard].0;
        let mut seen = top.load(Ordering::Relaxed);
        loop {
            self.below[slot as usize].store(seen as u32, Ordering::Relaxed);
            match top.compare_exchange_weak(
                seen,
                changed(seen, slot + 1),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

/// Returns the next value of a top: the slot, and an incremented counter.
const fn changed(seen: u64, slot: u32) -> u64 {
    ((seen >> 32).wrapping_add(1) << 32) | slot as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn every_slot_is_given_out_once() {
        let free = FreeSlots::new(37);
        let taken: HashSet<u32> = std::iter::from_fn(|| free.acquire()).collect();
        assert_eq!(taken, (0..37).collect());
        free.release(5);
        assert_eq!(free.acquire(), Some(5));
        assert_eq!(free.acquire(), None);
    }

    #[test]
    fn threads_never_hold_the_same_slot() {
        let free = FreeSlots::new(3);
        let held: Vec<AtomicBool> = (0..3).map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        if let Some(slot) = free.acquire() {
                            assert!(!held[slot as usize].swap(true, Ordering::AcqRel), "held twice");
                            held[slot as usize].store(false, Ordering::Release);
                            free.release(slot);
                        }
                    }
                });
            }
        });
        assert_eq!(std::iter::from_fn(|| free.acquire()).count(), 3, "none was lost");
    }
}
