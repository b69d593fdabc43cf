//! Reads the configuration file.

use std::io;
use std::path::{Path, PathBuf};

use lazaret_config::{Diagnostics, Loaded, ProcessEnv, load};

use crate::build::capabilities;

const MISSING_HINT: &str = "pass the path with -c, or run `lazaret init` to write a starter file";
const FILE_HINT: &str = "pass a file with -c that this user may read";

/// The error of reading a configuration file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file does not exist.
    #[error("no such file: {}; {MISSING_HINT}", .0.display())]
    Missing(PathBuf),
    /// The file cannot be read.
    #[error("failed to read {}: {source}; {FILE_HINT}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The configuration is invalid, or requires a capability that this build lacks.
    #[error("{}", .0.plain().trim_end())]
    Invalid(Box<Diagnostics>),
}

impl ReadError {
    /// Returns the message and the hint separately. Diagnostics have their own hints.
    pub fn message_and_hint(&self) -> (String, &'static str) {
        match self {
            Self::Missing(path) => (format!("no such file: {}", path.display()), MISSING_HINT),
            Self::File { path, source } => {
                (format!("failed to read {}: {source}", path.display()), FILE_HINT)
            }
            Self::Invalid(found) => (found.to_string(), "correct the file"),
        }
    }
}

/// Reads and checks a file for this build, with the environment of the process.
///
/// # Errors
/// Fails if the file cannot be read, is invalid, or requires a capability that this build lacks.
pub fn read(path: &Path) -> Result<Loaded, ReadError> {
    let bytes = std::fs::read(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => ReadError::Missing(path.to_owned()),
        _ => ReadError::File { path: path.to_owned(), source },
    })?;
    let name = path.display().to_string();
    load(&name, &bytes, &ProcessEnv, &capabilities()).map_err(|found| ReadError::Invalid(Box::new(found)))
}
