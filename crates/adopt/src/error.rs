//! The error of an adoption that stopped, with its progress.

use std::fmt;

use lazaret_core::source::SourceError;
use lazaret_core::store::StoreError;

use crate::progress::Report;

/// The reason why an adoption stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptErrorKind {
    /// The dead letters cannot be read, because their topic or table does not exist, is denied, or is
    /// unreachable. The error names the remedy.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The queue has reached its limits.
    #[error("the queue is full; free space or raise its limits, then run again: {0}")]
    Full(#[source] StoreError),
    /// The store failed permanently, or temporarily for longer than the timeout.
    #[error(transparent)]
    Store(StoreError),
}

/// An adoption that stopped before its end. The next run continues where it stopped.
#[derive(Debug)]
pub struct AdoptError<C> {
    /// The reason why it stopped.
    pub kind: AdoptErrorKind,
    /// The progress until then.
    pub report: Box<Report<C>>,
}

impl<C: Clone> AdoptError<C> {
    pub(crate) fn new(kind: impl Into<AdoptErrorKind>, report: &Report<C>) -> Self {
        Self { kind: kind.into(), report: Box::new(report.clone()) }
    }
}

impl<C> fmt::Display for AdoptError<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = &self.report.run;
        write!(
            f,
            "adoption stopped after {} records ({} became letters): {}",
            run.read, run.adopted, self.kind
        )
    }
}

impl<C: fmt::Debug> std::error::Error for AdoptError<C> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.kind)
    }
}
