//! Errors of opening a recorder.

use std::io;
use std::path::PathBuf;

impl OpenError {
    /// Returns whether the content of the file is the problem. Its loss is harmless: at worst a crash is not attributed.
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Foreign { .. } | Self::Version { .. } | Self::Truncated { .. })
    }
}

/// The error of opening a recorder. The file is unchanged.
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
    #[error("{} is not a flight recorder file", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file has an unsupported format version.
    #[error("the flight recorder {} has format version {found}, expected {known}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The supported version.
        known: u64,
    },
    /// The file is truncated.
    #[error("the flight recorder {} is truncated: {found} of {expected} bytes", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The actual size.
        found: u64,
        /// The expected size.
        expected: u64,
    },
    /// The number of slots is out of range.
    #[error("a flight recorder has 1 to {max} slots, not {slots}")]
    Slots {
        /// The requested number.
        slots: u32,
        /// The maximum.
        max: u32,
    },
    /// An I/O error.
    #[error("failed to {doing} the flight recorder {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The failed operation.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
}
