//! Errors of an outbox.

use std::fmt;

use lazaret_core::source::SourceError;
use lazaret_core::store::StoreError;

/// The reason why an outbox cannot be read, now or at all.
#[derive(Debug)]
pub(crate) enum OutboxError {
    /// An error of the server or the connection.
    Server(StoreError),
    /// The server is unsuitable now, but may become suitable.
    Passing(String),
    /// Ids of rows that were read refer to other rows, or will. The next leader decides how to continue.
    Replaced(String),
    /// The table, the role or the position is unsuitable. A person has to change something.
    Refused(String),
}

impl OutboxError {
    pub(crate) fn refused(why: impl Into<String>) -> Self {
        Self::Refused(why.into())
    }

    pub(crate) fn passing(why: impl Into<String>) -> Self {
        Self::Passing(why.into())
    }

    /// Returns `true` if another attempt may help.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Self::Server(error) => error.kind().is_temporary(),
            Self::Passing(_) | Self::Replaced(_) => true,
            Self::Refused(_) => false,
        }
    }
}

impl From<StoreError> for OutboxError {
    fn from(error: StoreError) -> Self {
        Self::Server(error)
    }
}

impl From<OutboxError> for SourceError {
    fn from(error: OutboxError) -> Self {
        match error {
            OutboxError::Server(error) => Self::from(error),
            OutboxError::Passing(why) | OutboxError::Replaced(why) => Self::temporary(why),
            OutboxError::Refused(why) => Self::permanent(why),
        }
    }
}

impl fmt::Display for OutboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(error) => error.fmt(f),
            Self::Passing(why) | Self::Replaced(why) | Self::Refused(why) => f.write_str(why),
        }
    }
}
