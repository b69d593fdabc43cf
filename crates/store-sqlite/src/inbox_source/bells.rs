//! Wakes sources in this process when something is posted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lazaret_core::ConsumerName;
use tokio::sync::Notify;

/// One bell per inbox.
#[derive(Default)]
pub(crate) struct Bells(Mutex<HashMap<ConsumerName, Arc<Bell>>>);

/// What a process knows about an inbox without asking the file.
#[derive(Debug, Default)]
pub(super) struct Bell {
    pub(super) rung: Notify,
    /// The position that comes next, as far as this process has seen.
    next: AtomicU64,
}

impl Bells {
    /// The bell of a consumer's inbox.
    pub(super) fn of(&self, consumer: &ConsumerName) -> Arc<Bell> {
        let mut bells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bells.entry(consumer.clone()).or_default().clone()
    }
}

impl Bell {
    /// The inbox goes up to here, and maybe further.
    pub(super) fn seen(&self, next: u64) {
        self.next.fetch_max(next, Ordering::Relaxed);
    }

    /// The position that comes next, as far as is known.
    pub(super) fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }
}
