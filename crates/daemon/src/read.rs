//! Reads the configuration file.

use std::io;
use std::path::{Path, PathBuf};

use lazaret_config::{Diagnostics, Loaded, ProcessEnv, load};

use crate::build::capabilities;

const NAME_ONE: &str = "name yours with -c, or let `lazaret init` write one to begin with";
const LET_IT_BE_READ: &str = "name a file with -c that this user may read";

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// There is no such file.
    #[error("there is no file {}: {NAME_ONE}", .0.display())]
    Missing(PathBuf),
    /// The system does not give it.
    #[error("cannot read {}: {source}; {LET_IT_BE_READ}", path.display())]
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

impl Unreadable {
    /// What is wrong and what to do, apart from each other. Mistakes have both of their own.
    pub fn told(&self) -> (String, &'static str) {
        match self {
            Self::Missing(path) => (format!("there is no file {}", path.display()), NAME_ONE),
            Self::File { path, source } => {
                (format!("cannot read {}: {source}", path.display()), LET_IT_BE_READ)
            }
            Self::Mistakes(found) => (found.to_string(), "correct the file"),
        }
    }
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
