//! Why an adoption stopped, and how far it had come.

use std::fmt;

use lazaret_core::source::SourceError;
use lazaret_core::store::StoreError;

use super::progress::Report;

/// Why an adoption stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptTrouble {
    /// The topic cannot be read: it does not exist, it is denied, its brokers are away. The error says what to do.
    #[error(transparent)]
    Topic(#[from] SourceError),
    /// The queue has no room for another letter within its limits. There may be room later, or larger limits.
    #[error("the queue is full; make room or raise its limits, then go on: {0}")]
    Full(#[source] StoreError),
    /// The store failed, for longer than the adoption is patient, or for good.
    #[error(transparent)]
    Store(StoreError),
}

/// An adoption that stopped before its end. It goes on where it stopped when it is run again.
#[derive(Debug)]
pub struct AdoptError {
    /// Why.
    pub trouble: AdoptTrouble,
    /// How far it had come.
    pub report: Box<Report>,
}

impl AdoptError {
    pub(super) fn new(trouble: impl Into<AdoptTrouble>, report: &Report) -> Self {
        Self { trouble: trouble.into(), report: Box::new(report.clone()) }
    }
}

impl fmt::Display for AdoptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = &self.report.run;
        write!(
            f,
            "adoption stopped after {} records ({} became letters): {}",
            run.read, run.adopted, self.trouble
        )
    }
}

impl std::error::Error for AdoptError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.trouble)
    }
}
