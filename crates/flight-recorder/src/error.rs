//! The errors of opening a recorder.

use std::io;
use std::path::PathBuf;

impl OpenError {
    /// Returns `true` if the content of the file is the problem. Losing the file is harmless: at worst a
    /// crash is not attributed.
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Foreign { .. } | Self::Version { .. } | Self::Truncated { .. })
    }
}

/// An error of opening a recorder. The file is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process, or another recorder in this one, has the file open.
    #[error("the flight recorder {} is in use by another process", path.display())]
    InUse {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file was not written by a flight recorder.
    #[error("{} is not a flight recorder file", path.display())]
    Foreign {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file has an unsupported format version.
    #[error("the flight recorder {} has format version {found}, expected {known}", path.display())]
    Version {
        /// The path of the file.
        path: PathBuf,
        /// The version of the file.
        found: u64,
        /// The supported version.
        known: u64,
    },
    /// The file is truncated.
    #[error("the flight recorder {} is truncated: {found} of {expected} bytes", path.display())]
    Truncated {
        /// The path of the file.
        path: PathBuf,
        /// The actual size in bytes.
        found: u64,
        /// The expected size in bytes.
        expected: u64,
    },
    /// The number of slots is out of range.
    #[error("a flight recorder has 1 to {max} slots, not {slots}")]
    Slots {
        /// The requested number of slots.
        slots: u32,
        /// The maximum number of slots.
        max: u32,
    },
    /// An I/O error.
    #[error("failed to {doing} the flight recorder {}", path.display())]
    Io {
        /// The path of the file.
        path: PathBuf,
        /// The failed operation.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
}
