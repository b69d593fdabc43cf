//! The progress of a source in its file, for observers outside the source.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The part of a source that observers can read.
#[derive(Debug)]
pub(crate) struct Progress {
    file: Arc<File>,
    /// The offset up to which content was delivered.
    delivered: AtomicU64,
}

impl Progress {
    pub(crate) fn new(file: Arc<File>, delivered: u64) -> Arc<Self> {
        Arc::new(Self { file, delivered: delivered.into() })
    }

    pub(crate) fn deliver_up_to(&self, offset: u64) {
        self.delivered.store(offset, Ordering::Relaxed);
    }
}

/// Reports how far a [`FileSource`](crate::FileSource) has read. It is cheap to clone and keeps neither
/// the source nor its file open.
#[derive(Clone, Debug)]
pub struct FileProgress(Weak<Progress>);

impl FileProgress {
    pub(crate) fn of(progress: &Arc<Progress>) -> Self {
        Self(Arc::downgrade(progress))
    }

    /// Returns the number of bytes that are not delivered yet, from the current length of the file.
    /// Returns `None` if the source no longer exists.
    pub fn bytes_behind(&self) -> Option<u64> {
        let progress = self.0.upgrade()?;
        let length = progress.file.metadata().ok()?.len();
        Some(length.saturating_sub(progress.delivered.load(Ordering::Relaxed)))
    }
}
