//! Errors of store calls: kind, certainty, operation and context.

use std::error::Error as StdError;
use std::fmt;

/// The category of a store error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store is unreachable or timed out. Temporary.
    Unavailable,
    /// The store is full, or the queue has reached its limits. Temporary.
    Full,
    /// The caller's lease or grant is no longer current: another owner took over.
    Fenced,
    /// The letter, plan or operation does not exist.
    NotFound,
    /// The target's state does not allow the call, or its sequence is leased.
    Conflict,
    /// The request is malformed.
    Invalid,
    /// The caller is not permitted to do this.
    Denied,
    /// Stored data cannot be decoded.
    Corrupt,
}

impl ErrorKind {
    /// `true` if the same call may succeed later.
    pub const fn is_temporary(self) -> bool {
        matches!(self, Self::Unavailable | Self::Full | Self::Conflict)
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "store unavailable",
            Self::Full => "capacity exceeded",
            Self::Fenced => "fenced",
            Self::NotFound => "not found",
            Self::Conflict => "conflict",
            Self::Invalid => "invalid request",
            Self::Denied => "denied",
            Self::Corrupt => "stored data is corrupt",
        }
    }
}

/// The effect of a failed call, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Certainty {
    /// Nothing was changed.
    NotDone,
    /// The outcome is unknown: the response was lost, and the call may have taken effect.
    MaybeDone,
}

/// A failed store call: its kind, and whether it may have taken effect.
///
/// ```
/// use lazaret_core::store::{Certainty, ErrorKind, StoreError};
/// let error = StoreError::maybe(ErrorKind::Unavailable, "hand_off", "connection reset");
/// assert_eq!(error.certainty(), Certainty::MaybeDone);
/// assert_eq!(error.to_string(), "store unavailable during hand_off, outcome unknown: connection reset");
/// ```
#[derive(Debug)]
pub struct StoreError {
    kind: ErrorKind,
    certainty: Certainty,
    operation: &'static str,
    context: String,
    is_leased: bool,
    limit: Option<&'static str>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl StoreError {
    /// An error of a call that changed nothing.
    pub fn not_done(kind: ErrorKind, operation: &'static str, context: impl Into<String>) -> Self {
        let (certainty, context) = (Certainty::NotDone, context.into());
        Self { kind, certainty, operation, context, is_leased: false, limit: None, source: None }
    }

    /// A `Conflict` with a lease: a worker holds the sequence, and the same call succeeds once it is done.
    ///
    /// ```
    /// use lazaret_core::store::{ErrorKind, StoreError};
    /// let error = StoreError::leased("act", "cannot evict letter 7: its sequence is leased");
    /// assert_eq!((error.kind(), error.is_leased()), (ErrorKind::Conflict, true));
    /// ```
    pub fn leased(operation: &'static str, context: impl Into<String>) -> Self {
        Self { is_leased: true, ..Self::not_done(ErrorKind::Conflict, operation, context) }
    }

    /// An error of a call whose outcome is unknown.
    pub fn maybe(kind: ErrorKind, operation: &'static str, context: impl Into<String>) -> Self {
        Self { certainty: Certainty::MaybeDone, ..Self::not_done(kind, operation, context) }
    }

    /// Adds the driver's error as source.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Names the limit of the queue that is reached, by its configuration key. For a `Full`.
    #[must_use]
    pub const fn with_limit(mut self, limit: &'static str) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The limit of the queue that is reached, by its configuration key; `None` if none is named.
    pub const fn limit(&self) -> Option<&'static str> {
        self.limit
    }

    /// The category.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The effect of the call, as far as it is known.
    pub const fn certainty(&self) -> Certainty {
        self.certainty
    }

    /// `true` if nothing but a lease was in the way: the state allows the call.
    pub const fn is_leased(&self) -> bool {
        self.is_leased
    }

    /// The name of the failed call.
    pub const fn operation(&self) -> &'static str {
        self.operation
    }

    /// The details.
    pub fn context(&self) -> &str {
        &self.context
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} during {}", self.kind.as_str(), self.operation)?;
        if self.certainty == Certainty::MaybeDone {
            f.write_str(", outcome unknown")?;
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
