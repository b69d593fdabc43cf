//! Maps SQLite's errors to store errors: the kind, and the effect as far as it is known.

use std::io;
use std::path::Path;

use lazaret_core::LetterId;
use lazaret_core::store::{Certainty, ErrorKind, StoreError};
use rusqlite::ErrorCode;

/// The failure of work inside a transaction. The name of the call is added at the boundary.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The contract refuses the call. Nothing was written before.
    Refused(StoreError),
    /// An error of SQLite.
    Sql(rusqlite::Error),
    /// Stored data cannot be decoded.
    Corrupt(String),
    /// The query took too long, or its caller has stopped waiting.
    TimedOut,
}

const TIMED_OUT: &str = "the query took too long and was interrupted";

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
    /// The same fault, with the letter whose data cannot be decoded.
    pub(crate) fn of_letter(self, id: LetterId) -> Self {
        match self {
            Self::Corrupt(what) => Self::Corrupt(format!("letter {id}: {what}")),
            other => other,
        }
    }

    /// An error of the file system for this file.
    pub(crate) fn of_file(path: &Path, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Full,
            _ => ErrorKind::Unavailable,
        };
        let context = format!("file {}: {error}", path.display());
        Self::Refused(StoreError::not_done(kind, "redo", context))
    }

    /// The error for a redo log with records of a newer version.
    pub(crate) fn newer_redo_log(path: &Path, version: u32, known: u32) -> Self {
        let context = format!(
            "file {} holds records of version {version}, newer than the supported version {known}",
            path.display()
        );
        Self::Refused(StoreError::not_done(ErrorKind::Invalid, "redo", context))
    }

    /// The error for the caller of `operation`, after a rollback.
    pub(crate) fn into_error(self, operation: &'static str) -> StoreError {
        match self {
            Self::Refused(error) => error,
            Self::TimedOut => StoreError::not_done(ErrorKind::Unavailable, operation, TIMED_OUT),
            Self::Sql(rusqlite::Error::SqliteFailure(failure, _))
                if failure.code == ErrorCode::OperationInterrupted =>
            {
                Self::TimedOut.into_error(operation)
            }
            Self::Sql(error) => of_sqlite(error, operation, Certainty::NotDone),
            Self::Corrupt(what) => StoreError::not_done(ErrorKind::Corrupt, operation, what),
        }
    }
}

/// The kind of an SQLite error.
pub(crate) fn kind_of(error: &rusqlite::Error) -> ErrorKind {
    match error {
        rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
            ErrorCode::DiskFull => ErrorKind::Full,
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => ErrorKind::Corrupt,
            ErrorCode::TooBig | ErrorCode::ReadOnly => ErrorKind::Invalid,
            // A constraint failed: the stored data was not written by this code.
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

/// Converts an SQLite error.
pub(crate) fn of_sqlite(error: rusqlite::Error, operation: &'static str, certainty: Certainty) -> StoreError {
    let (kind, context) = (kind_of(&error), error.to_string());
    let converted = match certainty {
        Certainty::NotDone => StoreError::not_done(kind, operation, context),
        Certainty::MaybeDone => StoreError::maybe(kind, operation, context),
    };
    converted.with_source(error)
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
