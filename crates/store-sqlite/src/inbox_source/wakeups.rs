//! Wakes sources in this process after a post.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lazaret_core::ConsumerName;
use tokio::sync::Notify;

/// One notifier per inbox.
#[derive(Default)]
pub(crate) struct Wakeups(Mutex<HashMap<ConsumerName, Arc<Wakeup>>>);

/// The process-local state of an inbox.
#[derive(Debug, Default)]
pub(super) struct Wakeup {
    pub(super) notify: Notify,
    /// The next position, as far as this process has seen.
    next: AtomicU64,
}

impl Wakeups {
    /// The notifier of a consumer's inbox.
    pub(super) fn of(&self, consumer: &ConsumerName) -> Arc<Wakeup> {
        let mut wakeups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        wakeups.entry(consumer.clone()).or_default().clone()
    }
}

impl Wakeup {
    /// Records that the inbox extends at least to this position.
    pub(super) fn seen(&self, next: u64) {
        self.next.fetch_max(next, Ordering::Relaxed);
    }

    /// The next position, as far as this process has seen.
    pub(super) fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }
}
