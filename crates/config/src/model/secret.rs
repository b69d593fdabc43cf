//! A text that debug output never shows.

use std::fmt;

/// A string that debug output never shows.
///
/// ```
/// let secret = lazaret_config::Secret::new("hunter2");
/// assert_eq!(format!("{secret:?}"), "***");
/// assert_eq!(secret.reveal(), "hunter2");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a string.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the string.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
