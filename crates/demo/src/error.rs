//! Why a demo cannot go on.

use std::io;

/// Why a demo cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system said no.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The worker cannot be kept running.
    #[error("the worker cannot be kept running: {0}")]
    Worker(String),
    /// Something that must happen did not.
    #[error("the story is stuck: {0}")]
    Stuck(String),
    /// The store cannot be read.
    #[error("the letters cannot be read: {0}")]
    Letters(String),
    /// It was asked to end.
    #[error("interrupted")]
    Interrupted,
}
