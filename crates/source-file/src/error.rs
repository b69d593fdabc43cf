//! The errors of reading a file.

use std::io;
use std::path::PathBuf;

use lazaret_core::source::SourceError;

/// An error of reading a file.
#[derive(Debug)]
pub(crate) enum FileError {
    /// An I/O error.
    Unreadable(PathBuf, io::Error),
    /// The followed file does not exist yet.
    NotCreatedYet(PathBuf),
    /// The path is not a regular file, but a directory, a pipe or a device.
    NotAFile(PathBuf),
    /// The file was truncated below the settled position.
    Truncated { path: PathBuf, length: u64, read: u64 },
    /// The file was replaced, or settled content was changed.
    Replaced(PathBuf),
    /// The file was removed or renamed.
    Removed(PathBuf),
}

impl From<FileError> for SourceError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Unreadable(path, error) => {
                let what = format!("failed to read {}: {error}", path.display());
                // These errors are permanent. Others, such as an unavailable disk, may be temporary.
                let is_permanent = matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory
                );
                let wrapped = if is_permanent { Self::permanent(what) } else { Self::temporary(what) };
                wrapped.with_source(error)
            }
            FileError::NotCreatedYet(path) => {
                Self::waiting(format!("{} does not exist yet, and `follow` is set", path.display()))
            }
            FileError::NotAFile(path) => Self::permanent(format!(
                "{} is not a regular file, so it has no stable positions",
                path.display()
            )),
            FileError::Truncated { path, length, read } => Self::permanent(format!(
                "{} was truncated: it has {length} bytes, but was read up to {read}; restore it, or read it with a \
                 consumer of another name: messages without an id are identified by their position",
                path.display()
            )),
            FileError::Replaced(path) => Self::permanent(format!(
                "{} was replaced: its content differs from the content read before; restore it, or read it with a consumer of \
                 another name: messages without an id are identified by their position",
                path.display()
            )),
            FileError::Removed(path) => {
                Self::permanent(format!("{} was removed or renamed while it was followed", path.display()))
            }
        }
    }
}
