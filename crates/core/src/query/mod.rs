//! The query language: one parser for the console, the command line, the API and alerts.

use std::fmt;

use jiff::Timestamp;

use crate::letter::Letter;

/// What to look for among letters.
///
/// ```
/// use lazaret_core::query::Query;
/// assert!(Query::parse("").unwrap().is_everything());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    text: String,
}

/// Why a text is not a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryError;

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a query")
    }
}

impl std::error::Error for QueryError {}

impl Query {
    /// Reads a query.
    pub fn parse(text: &str) -> Result<Self, QueryError> {
        if text.is_empty() { Ok(Self { text: String::new() }) } else { Err(QueryError) }
    }

    /// The query that every open letter matches.
    pub fn everything() -> Self {
        Self { text: String::new() }
    }

    /// Whether nothing is asked for: every open letter matches.
    pub fn is_everything(&self) -> bool {
        self.text.is_empty()
    }

    /// The query as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a state is asked for. A query that names none is about open letters.
    pub fn names_state(&self) -> bool {
        false
    }

    /// Whether a letter matches. A query that names no state matches open letters only.
    pub fn matches(&self, letter: &Letter, _now: Timestamp) -> bool {
        letter.state.is_open()
    }
}
