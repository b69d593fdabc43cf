//! The consumers that have failed, for alerts.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

/// The consumers of this process that have failed and do not run. There are no more than consumers (I7).
#[derive(Debug, Default)]
pub(super) struct FailedConsumers {
    failed: Mutex<BTreeMap<String, FailedConsumer>>,
    changed: Notify,
}

/// A consumer that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailedConsumer {
    /// The time of its first failure since it last ran.
    pub(crate) since: Instant,
    /// Whether it is not restarted before a person acts.
    pub(crate) permanently: bool,
}

impl FailedConsumers {
    /// Records a failure. The time of an earlier one stays.
    pub(super) fn fails(&self, consumer: &str, permanently: bool) {
        let mut failed = self.lock();
        let since = failed.get(consumer).map_or_else(Instant::now, |earlier| earlier.since);
        failed.insert(consumer.to_owned(), FailedConsumer { since, permanently });
        drop(failed);
        self.changed.notify_one();
    }

    /// Records that a consumer runs, or waits for its source.
    pub(super) fn runs(&self, consumer: &str) {
        if self.lock().remove(consumer).is_some() {
            self.changed.notify_one();
        }
    }

    pub(super) fn all(&self) -> BTreeMap<String, FailedConsumer> {
        self.lock().clone()
    }

    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, FailedConsumer>> {
        // Only whole values are written under this lock.
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
