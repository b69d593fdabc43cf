//! The lifecycle of a running consumer: drain, abort, the error that ended it, and the work that must
//! finish first.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::error::Error;

/// Tracks whether a consumer is running, draining, aborting or has ended.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    /// Cancelled when the consumer begins to drain.
    pub(crate) drain: CancellationToken,
    /// Cancelled at the drain deadline. Stored sequences that still run are then dropped.
    pub(crate) abort: CancellationToken,
    /// Signals the intake that a stored run ended, or that its gauges are due for an update.
    pub(crate) activity: Notify,
    ended: AtomicBool,
    /// The number of stored sequences that run now.
    runs: AtomicUsize,
    error: Mutex<Option<Error>>,
}

impl Lifecycle {
    /// Drains the consumer and ends its run with this error. The first error wins.
    pub(crate) fn fail(&self, error: Error) {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.drain.cancel();
    }

    /// Removes the error that ended the consumer.
    pub(crate) fn take_error(&self) -> Option<Error> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Marks the run as ended.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Returns `true` between the start of a drain and the end of the run. Replays work before and after
    /// that.
    pub(crate) fn is_draining(&self) -> bool {
        self.drain.is_cancelled() && !self.ended.load(Ordering::Acquire)
    }

    /// Resolves when the consumer drains. After the run it never resolves.
    pub(crate) async fn draining(&self) {
        if self.ended.load(Ordering::Acquire) {
            return std::future::pending().await;
        }
        self.drain.cancelled().await;
    }

    /// Resolves at the drain deadline. After the run it never resolves.
    pub(crate) async fn aborted(&self) {
        if self.ended.load(Ordering::Acquire) {
            return std::future::pending().await;
        }
        self.abort.cancelled().await;
    }

    /// Counts the start of a stored run.
    pub(crate) fn run_started(&self) {
        self.runs.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts the end of a stored run.
    pub(crate) fn run_ended(&self) {
        self.runs.fetch_sub(1, Ordering::AcqRel);
        self.activity.notify_one();
    }

    /// Returns `true` while stored sequences run.
    pub(crate) fn has_runs(&self) -> bool {
        self.runs.load(Ordering::Acquire) > 0
    }
}
