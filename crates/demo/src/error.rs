//! The errors of the demo.

use std::io;

/// An error of the demo.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An I/O error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The worker does not keep running.
    #[error("the worker does not stay up: {0}")]
    Worker(String),
    /// An expected event did not happen in time.
    #[error("timed out: {0}")]
    Stuck(String),
    /// The store cannot be read.
    #[error("cannot read the letters: {0}")]
    Letters(String),
    /// The user interrupted the demo.
    #[error("interrupted")]
    Interrupted,
}
