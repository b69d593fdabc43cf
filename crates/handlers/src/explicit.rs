//! Parses the explicit verdict and reason of a handler.

use std::time::Duration;

use lazaret_core::{Reason, Verdict};

use crate::sanitize::sanitize;

/// The maximum retry delay that a handler can request. The retry policy has its own limit; this one
/// prevents overflows.
pub(crate) const RETRY_AFTER_LIMIT: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// The maximum size of an invalid value that is quoted in a message.
const EXCERPT_BYTES: usize = 200;

/// The valid parts of an explicit verdict and reason.
#[derive(Debug, Default)]
pub(crate) struct ExplicitVerdict {
    pub(crate) verdict: Option<Verdict>,
    /// `true` if the verdict is `handled`.
    pub(crate) handled: bool,
    pub(crate) reason: Option<Reason>,
    /// Notes about invalid values.
    pub(crate) notes: Vec<String>,
}

impl ExplicitVerdict {
    pub(crate) fn parse(verdict: Option<&[u8]>, reason: Option<&[u8]>) -> Self {
        let mut explicit = Self::default();
        if let Some(value) = verdict {
            let word = std::str::from_utf8(value).unwrap_or_default().trim().to_ascii_lowercase();
            match word.parse() {
                Ok(verdict) => explicit.verdict = Some(verdict),
                Err(_) if word == "handled" => explicit.handled = true,
                Err(_) => explicit.ignore("verdict", value),
            }
        }
        if let Some(value) = reason {
            match Reason::new(std::str::from_utf8(value).unwrap_or_default().trim()) {
                Ok(reason) => explicit.reason = Some(reason),
                Err(_) => explicit.ignore("reason", value),
            }
        }
        explicit
    }

    fn ignore(&mut self, what: &str, value: &[u8]) {
        self.notes.push(format!("unknown {what} {:?} was ignored", excerpt(value)));
    }
}

/// Returns the start of a value, sanitized for a message.
pub(crate) fn excerpt(value: &[u8]) -> String {
    sanitize(&value[..value.len().min(EXCERPT_BYTES)])
}
