//! The error of a letter that cannot be imported.

use std::fmt;

/// Why an exported line cannot be imported as a letter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidLetter {
    /// The field.
    pub field: &'static str,
    /// What is wrong with it.
    pub why: String,
}

impl InvalidLetter {
    pub(crate) fn of(field: &'static str, why: impl fmt::Display) -> Self {
        Self { field, why: why.to_string() }
    }
}
