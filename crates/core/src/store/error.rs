//! What a store says when it cannot do what it was asked.

use std::error::Error as StdError;
use std::fmt;

/// What kind of trouble it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store cannot be reached, or answered too late. It may come back.
    Unavailable,
    /// The store, or the queue within its limits, has no room. There may be room later.
    Full,
    /// The caller's lease or grant is no longer the current one: somebody else took over.
    Fenced,
    /// There is no such letter.
    NotFound,
    /// The thing is in a state that does not allow this, or somebody else is working on it.
    Conflict,
    /// What was given makes no sense.
    Invalid,
    /// This person may not do that.
    Denied,
    /// What is stored cannot be read.
    Corrupt,
}

impl ErrorKind {
    /// Whether the same call may succeed later without anybody changing it.
    pub const fn is_temporary(self) -> bool {
        matches!(self, Self::Unavailable | Self::Full | Self::Conflict)
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "store unavailable",
            Self::Full => "no room",
            Self::Fenced => "fenced",
            Self::NotFound => "not found",
            Self::Conflict => "conflict",
            Self::Invalid => "invalid request",
            Self::Denied => "denied",
            Self::Corrupt => "stored data is corrupt",
        }
    }
}

/// What is known about the effect of a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Certainty {
    /// Nothing was changed.
    NotDone,
    /// It may have happened: the answer was lost, not the request.
    MaybeDone,
}

/// Why a store call failed, and whether it may have happened all the same.
///
/// ```
/// use lazaret_core::store::{Certainty, ErrorKind, StoreError};
/// let error = StoreError::maybe(ErrorKind::Unavailable, "hand_off", "connection reset");
/// assert_eq!(error.certainty(), Certainty::MaybeDone);
/// assert_eq!(error.to_string(), "store unavailable during hand_off, which may have happened: connection reset");
/// ```
#[derive(Debug)]
pub struct StoreError {
    kind: ErrorKind,
    certainty: Certainty,
    operation: &'static str,
    context: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl StoreError {
    /// An error after which nothing has changed.
    pub fn not_done(kind: ErrorKind, operation: &'static str, context: impl Into<String>) -> Self {
        Self { kind, certainty: Certainty::NotDone, operation, context: context.into(), source: None }
    }

    /// An error after which nobody knows.
    pub fn maybe(kind: ErrorKind, operation: &'static str, context: impl Into<String>) -> Self {
        Self { kind, certainty: Certainty::MaybeDone, operation, context: context.into(), source: None }
    }

    /// The same error with the driver's error underneath.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of trouble it is.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether it may have happened.
    pub const fn certainty(&self) -> Certainty {
        self.certainty
    }

    /// Which call failed.
    pub const fn operation(&self) -> &'static str {
        self.operation
    }

    /// The details in words.
    pub fn context(&self) -> &str {
        &self.context
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} during {}", self.kind.as_str(), self.operation)?;
        if self.certainty == Certainty::MaybeDone {
            f.write_str(", which may have happened")?;
        }
        write!(f, ": {}", self.context)
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// The result of a store call.
pub type Result<T> = std::result::Result<T, StoreError>;
