//! Counts handled messages at the time at which they are handled, for the fuse.
//!
//! Failures are rare and counted under a lock; handled messages are the hottest path of the engine. Each shard therefore
//! has a counter of its own, which nobody else writes, and a failure looks at all of them first. The fuse so sees both in
//! order of completion, at the cost of one plain store for a handled message.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of messages that one shard has handled. Alone in its cache lines, so that shards do not slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct HandledCount(AtomicU64);

impl HandledCount {
    /// Counts one message. Only the owner of the counter may call it.
    pub(crate) fn add_one(&self) {
        // With one writer, nothing is lost between the load and the store.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Counts one message; for callers that share a counter.
    pub(crate) fn add_one_shared(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// The number of messages so far.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
