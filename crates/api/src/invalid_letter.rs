//! The error for a letter that cannot be imported.

use std::fmt;

/// The error for an exported line that cannot be imported as a letter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidLetter {
    /// The name of the field.
    pub field: &'static str,
    /// The problem with the field.
    pub why: String,
}

impl InvalidLetter {
    pub(crate) fn of(field: &'static str, why: impl fmt::Display) -> Self {
        Self { field, why: why.to_string() }
    }
}
