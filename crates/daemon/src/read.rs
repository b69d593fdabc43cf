//! Reads the configuration file.

use std::io;
use std::path::{Path, PathBuf};

use lazaret_config::{Diagnostics, Loaded, ProcessEnv, load};

use crate::build::capabilities;

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// There is no such file.
    #[error("there is no file {}: name yours with -c, or let `lazaret init` write one to begin with", .0.display())]
    Missing(PathBuf),
    /// The system does not give it.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It has mistakes, or asks for what this build does not have.
    #[error("{}", .0.plain().trim_end())]
    Mistakes(Box<Diagnostics>),
}

/// Reads and checks a file for this build. Variables come from the environment of the process.
///
/// # Errors
/// When it cannot be read, has mistakes, or asks for what this build does not have.
pub fn read(path: &Path) -> Result<Loaded, Unreadable> {
    let bytes = std::fs::read(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Unreadable::Missing(path.to_owned()),
        _ => Unreadable::File { path: path.to_owned(), source },
    })?;
    let name = path.display().to_string();
    load(&name, &bytes, &ProcessEnv, &capabilities()).map_err(|found| Unreadable::Mistakes(Box::new(found)))
}
