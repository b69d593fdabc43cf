//! What can be wrong with a file.

use std::io;
use std::path::PathBuf;

use lazaret_core::source::SourceError;

/// What is wrong with the file.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The system says no.
    Unreadable(PathBuf, io::Error),
    /// It is to be followed and was not made yet.
    NotThereYet(PathBuf),
    /// A directory, a pipe, a device.
    NotAFile(PathBuf),
    /// It was cut after it was read.
    Shorter { path: PathBuf, length: u64, read: u64 },
    /// Another file stands there, or what was read has changed.
    Replaced(PathBuf),
    /// It was removed or renamed.
    Gone(PathBuf),
}

impl From<Trouble> for SourceError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Unreadable(path, error) => {
                let what = format!("cannot read {}: {error}", path.display());
                // These stay until somebody does something about them. Others, like a disk that does not answer, may pass.
                let stays = matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory
                );
                let told = if stays { Self::permanent(what) } else { Self::temporary(what) };
                told.with_source(error)
            }
            Trouble::NotThereYet(path) => Self::temporary(format!(
                "{} is not there yet; it is looked for again, because it is to be followed",
                path.display()
            )),
            Trouble::NotAFile(path) => Self::permanent(format!(
                "{} is not a regular file, so no position in it would last",
                path.display()
            )),
            Trouble::Shorter { path, length, read } => Self::permanent(format!(
                "{} was cut: it has {length} bytes and was read up to {read}; put it back, or read it with a \
                 consumer of another name: messages without an id are known by their position",
                path.display()
            )),
            Trouble::Replaced(path) => Self::permanent(format!(
                "{} is not the file that was read before; put that back, or read this one with a consumer of \
                 another name: messages without an id are known by their position",
                path.display()
            )),
            Trouble::Gone(path) => {
                Self::permanent(format!("{} was removed or renamed while it was followed", path.display()))
            }
        }
    }
}
