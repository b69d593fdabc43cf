//! Counts handled messages for the fuse, at the time at which they are handled.
//!
//! Failures are rare and are counted under a lock. Handled messages are the hottest path of the engine.
//! Each shard therefore has a counter of its own that only this shard writes, and a failure reads all of
//! them first. So the fuse sees both in order of completion, at the cost of one plain store per handled
//! message.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of messages that one shard has handled. It has cache lines of its own, so that shards do
/// not slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct HandledCount(AtomicU64);

impl HandledCount {
    /// Counts one message. Only the owner of the counter may call this.
    pub(crate) fn add_one(&self) {
        // There is only one writer, so no update is lost between the load and the store.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Counts one message, for callers that share a counter.
    pub(crate) fn add_one_shared(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the number of messages so far.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
