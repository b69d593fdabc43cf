//! Errors of the driver as errors of the store: their kind, and whether the call may have taken effect.

use std::error::Error as _;
use std::fmt;

use deadpool_postgres::PoolError;
use lazaret_core::store::{Certainty, ErrorKind, StoreError};
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// The failure of work inside a transaction that was not committed. The name of the call is added at the boundary.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The contract refuses the call.
    Refused(StoreError),
    /// An error of the driver or the server.
    Sql(Error),
    /// Stored data cannot be decoded.
    Corrupt(String),
    /// Another transaction was faster: the call is made again.
    Interfered,
}

/// The result of work inside a transaction.
pub(crate) type Work<T> = Result<T, Fault>;

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Sql(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl Fault {
    /// `true` if the same call may succeed at once: a concurrent transaction was in the way, and this one was rolled back.
    pub(crate) fn is_interference(&self) -> bool {
        match self {
            Self::Interfered => true,
            Self::Sql(error) => error.code().is_some_and(is_interference),
            Self::Refused(_) | Self::Corrupt(_) => false,
        }
    }

    /// `true` if the connection should not be used again: the server has become a replica, or shuts down.
    pub(crate) fn spoils_connection(&self) -> bool {
        let Self::Sql(error) = self else { return false };
        error.is_closed() || error.code().is_some_and(spoils_connection)
    }

    /// The error for the caller of `operation`. The transaction was rolled back, or never committed.
    pub(crate) fn into_error(self, operation: &'static str) -> StoreError {
        match self {
            Self::Refused(error) => error,
            Self::Sql(error) => of_driver(error, operation, Certainty::NotDone),
            Self::Corrupt(what) => StoreError::not_done(ErrorKind::Corrupt, operation, what),
            Self::Interfered => StoreError::not_done(
                ErrorKind::Unavailable,
                operation,
                "concurrent transactions were in the way each time",
            ),
        }
    }
}

pub(crate) fn spoils_connection(code: &SqlState) -> bool {
    *code == SqlState::READ_ONLY_SQL_TRANSACTION || code.code().starts_with("57P")
}

fn is_interference(code: &SqlState) -> bool {
    [&SqlState::T_R_SERIALIZATION_FAILURE, &SqlState::T_R_DEADLOCK_DETECTED, &SqlState::UNIQUE_VIOLATION]
        .contains(&code)
}

/// An error of the commit, or of a statement that commits by itself. A response that refuses it is certain. A server that shuts down in
/// the middle of it, or one that no longer responds, may have committed.
pub(crate) fn of_commit(error: Error, operation: &'static str) -> StoreError {
    let certain =
        error.code().is_some_and(|code| !code.code().starts_with("57P") && !code.code().starts_with("08"));
    of_driver(error, operation, if certain { Certainty::NotDone } else { Certainty::MaybeDone })
}

/// An error of the driver, of which this is known.
pub(crate) fn of_driver(error: Error, operation: &'static str, certainty: Certainty) -> StoreError {
    let kind = error.code().map_or_else(|| kind_without_code(&error), kind_of);
    let context = context(&error);
    match certainty {
        Certainty::NotDone => StoreError::not_done(kind, operation, context),
        Certainty::MaybeDone => StoreError::maybe(kind, operation, context),
    }
    .with_source(error)
}

/// An error of the pool: no connection, so nothing was done.
pub(crate) fn of_pool(error: PoolError, operation: &'static str) -> StoreError {
    match error {
        PoolError::Backend(error) => of_driver(error, operation, Certainty::NotDone),
        PoolError::Timeout(_) => StoreError::not_done(
            ErrorKind::Unavailable,
            operation,
            "no connection became free in time: all of the pool are in use, or the server does not respond",
        ),
        other => StoreError::not_done(ErrorKind::Unavailable, operation, other.to_string()),
    }
}

/// What the driver says if `target_session_attrs=read-write` finds no server.
const NO_PRIMARY: &str = "database does not allow writes";

/// The source of an error about a server that was asked and refuses writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefusesWrites;

impl fmt::Display for RefusesWrites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server refuses writes")
    }
}

impl std::error::Error for RefusesWrites {}

/// Returns whether the error of a store is that a server responds, and refuses writes: it is a replica, or read-only. Of several hosts
/// with `target_session_attrs=read-write`, none that responds accepts them.
pub fn refuses_writes(error: &StoreError) -> bool {
    let Some(source) = error.source() else { return false };
    let says_so = |error: &Error| {
        error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
            || error.source().is_some_and(|cause| cause.to_string() == NO_PRIMARY)
    };
    source.is::<RefusesWrites>() || source.downcast_ref::<Error>().is_some_and(says_so)
}

/// A text about an error, for people. It names what to do where the message of the server does not.
fn context(error: &Error) -> String {
    let Some(server) = error.as_db_error() else {
        let cause = error.source().map_or_else(String::new, |cause| format!(": {cause}"));
        let cause = if error.to_string().ends_with(&cause) { "" } else { cause.as_str() };
        let hint = if cause.ends_with(NO_PRIMARY) { "; a replica does when it is promoted" } else { "" };
        return format!("{error}{cause}{hint}");
    };
    let code = server.code();
    let hint = match code {
        code if *code == SqlState::READ_ONLY_SQL_TRANSACTION => {
            "; the server is a replica, or default_transaction_read_only is set: letters need the primary \
             (target_session_attrs=read-write finds it among several hosts)"
        }
        code if *code == SqlState::QUERY_CANCELED => "; see the option statement_timeout",
        code if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
            "; the guide to the PostgreSQL store lists the grants"
        }
        _ => "",
    };
    format!("{} (SQLSTATE {}){hint}", server.message(), code.code())
}

fn kind_without_code(error: &Error) -> ErrorKind {
    let text = error.to_string();
    if text.starts_with("error deserializing") {
        ErrorKind::Corrupt
    } else if text.starts_with("error serializing") || text.starts_with("invalid configuration") {
        ErrorKind::Invalid
    } else {
        ErrorKind::Unavailable
    }
}

/// The kind of an error with this SQLSTATE.
fn kind_of(code: &SqlState) -> ErrorKind {
    let code = code.code();
    match (&code[..2], code) {
        (_, "53100" | "54023") => ErrorKind::Full,
        // The role, its password or its rights.
        ("28", _) | (_, "42501") => ErrorKind::Denied,
        // The database or the schema does not exist, a table was changed, or a value does not fit.
        ("22" | "26" | "34" | "3D" | "3F" | "42" | "54" | "0A", _) => ErrorKind::Invalid,
        // A row that this code has not written.
        ("23", _) | (_, "XX001" | "XX002") => ErrorKind::Corrupt,
        // Connections, rollbacks, resources, shutdowns, a replica, a timeout, and whatever else there is.
        _ => ErrorKind::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sqlstate_has_its_kind() {
        for (code, kind) in [
            (SqlState::T_R_SERIALIZATION_FAILURE, ErrorKind::Unavailable),
            (SqlState::T_R_DEADLOCK_DETECTED, ErrorKind::Unavailable),
            (SqlState::READ_ONLY_SQL_TRANSACTION, ErrorKind::Unavailable),
            (SqlState::ADMIN_SHUTDOWN, ErrorKind::Unavailable),
            (SqlState::QUERY_CANCELED, ErrorKind::Unavailable),
            (SqlState::TOO_MANY_CONNECTIONS, ErrorKind::Unavailable),
            (SqlState::CONNECTION_FAILURE, ErrorKind::Unavailable),
            (SqlState::DISK_FULL, ErrorKind::Full),
            (SqlState::INSUFFICIENT_PRIVILEGE, ErrorKind::Denied),
            (SqlState::INVALID_PASSWORD, ErrorKind::Denied),
            (SqlState::UNDEFINED_TABLE, ErrorKind::Invalid),
            (SqlState::INVALID_CATALOG_NAME, ErrorKind::Invalid),
            (SqlState::NOT_NULL_VIOLATION, ErrorKind::Corrupt),
            (SqlState::DATA_CORRUPTED, ErrorKind::Corrupt),
        ] {
            assert_eq!(kind_of(&code), kind, "{}", code.code());
        }
    }

    #[test]
    fn a_server_that_was_asked_and_refuses_writes_is_told_from_one_that_is_away() {
        let away = || StoreError::not_done(ErrorKind::Unavailable, "open", "connection refused");
        assert!(refuses_writes(&away().with_source(RefusesWrites)));
        assert!(!refuses_writes(&away()));
        assert!(!refuses_writes(
            &away().with_source(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
        ));
    }

    #[test]
    fn interference_is_what_another_transaction_caused() {
        assert!(is_interference(&SqlState::T_R_DEADLOCK_DETECTED));
        assert!(is_interference(&SqlState::UNIQUE_VIOLATION));
        assert!(!is_interference(&SqlState::QUERY_CANCELED));
        assert!(
            spoils_connection(&SqlState::ADMIN_SHUTDOWN)
                && spoils_connection(&SqlState::READ_ONLY_SQL_TRANSACTION)
        );
        assert!(!spoils_connection(&SqlState::UNIQUE_VIOLATION));
    }
}
