//! From SQLite's errors to the store's: what kind of trouble it is, and what is known about the effect.

use std::io;
use std::path::Path;

use lazaret_core::store::{Certainty, ErrorKind, StoreError};
use rusqlite::ErrorCode;

/// Why a piece of work inside a transaction did not succeed. It learns the name of the call at the boundary.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The contract says no. Nothing was written before this was found out.
    Refused(StoreError),
    /// SQLite says no.
    Sql(rusqlite::Error),
    /// What is stored makes no sense.
    Corrupt(String),
}

/// The result of work inside a transaction.
pub(crate) type Work<T> = Result<T, Fault>;

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl Fault {
    /// The file system says no to something with this file.
    pub(crate) fn of_file(path: &Path, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Full,
            _ => ErrorKind::Unavailable,
        };
        let context = format!("the file {}: {error}", path.display());
        Self::Refused(StoreError::not_done(kind, "redo", context))
    }

    /// Letters wait in a redo log that this code cannot read.
    pub(crate) fn newer_redo_log(path: &Path, version: u32, known: u32) -> Self {
        let context = format!(
            "the file {} holds letters in version {version}; this version of Lazaret knows up to {known}",
            path.display()
        );
        Self::Refused(StoreError::not_done(ErrorKind::Invalid, "redo", context))
    }

    /// The error for the caller of `operation`. The work was rolled back.
    pub(crate) fn into_error(self, operation: &'static str) -> StoreError {
        match self {
            Self::Refused(error) => error,
            Self::Sql(error) => of_sqlite(error, operation, Certainty::NotDone),
            Self::Corrupt(what) => StoreError::not_done(ErrorKind::Corrupt, operation, what),
        }
    }
}

/// What kind of trouble an error of SQLite is.
pub(crate) fn kind_of(error: &rusqlite::Error) -> ErrorKind {
    match error {
        rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
            ErrorCode::DiskFull => ErrorKind::Full,
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => ErrorKind::Corrupt,
            ErrorCode::TooBig | ErrorCode::ReadOnly => ErrorKind::Invalid,
            // A rule of the schema was broken: what stands there is not what this code has written.
            ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch => ErrorKind::Corrupt,
            _ => ErrorKind::Unavailable,
        },
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::Utf8Error(..) => ErrorKind::Corrupt,
        _ => ErrorKind::Unavailable,
    }
}

/// An error of SQLite in the store's words.
pub(crate) fn of_sqlite(error: rusqlite::Error, operation: &'static str, certainty: Certainty) -> StoreError {
    let (kind, context) = (kind_of(&error), error.to_string());
    let told = match certainty {
        Certainty::NotDone => StoreError::not_done(kind, operation, context),
        Certainty::MaybeDone => StoreError::maybe(kind, operation, context),
    };
    told.with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_its_kind() {
        let of = |code: i32| kind_of(&rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
        use rusqlite::ffi;
        assert_eq!(of(ffi::SQLITE_BUSY), ErrorKind::Unavailable);
        assert_eq!(of(ffi::SQLITE_LOCKED), ErrorKind::Unavailable);
        assert_eq!(of(ffi::SQLITE_IOERR), ErrorKind::Unavailable);
        assert_eq!(of(ffi::SQLITE_FULL), ErrorKind::Full);
        assert_eq!(of(ffi::SQLITE_CORRUPT), ErrorKind::Corrupt);
        assert_eq!(of(ffi::SQLITE_NOTADB), ErrorKind::Corrupt);
    }
}
