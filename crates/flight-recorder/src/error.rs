//! Why a recorder cannot be opened.

use std::io;
use std::path::PathBuf;

/// Why a recorder cannot be opened. The file is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process, or another recorder in this one, has the file open.
    #[error("the flight recorder {} is in use by another process", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file was not written by a flight recorder.
    #[error("{} is not a flight recorder's file", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by a version that this one does not know.
    #[error("the flight recorder {} has format version {found}; this program knows version {known}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The version that this program knows.
        known: u64,
    },
    /// The file is shorter than it says.
    #[error("the flight recorder {} is cut off: {found} bytes of {expected}", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// How many bytes it has.
        found: u64,
        /// How many it should have.
        expected: u64,
    },
    /// Zero slots, or more than a file may have.
    #[error("a flight recorder has 1 to {most} slots, not {slots}")]
    Slots {
        /// What was asked for.
        slots: u32,
        /// The most there may be.
        most: u32,
    },
    /// The system says no.
    #[error("cannot {doing} the flight recorder {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}
