//! The result of a check.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// The timeout of a network check.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// Passed.
    Ok,
    /// Passed with a warning.
    Warn,
    /// Failed.
    Fail,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        })
    }
}

/// The result of one check. Its JSON always has all four keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The subject: `store`, `shop handler`.
    pub subject: String,
    /// The outcome.
    #[serde(rename = "outcome")]
    pub health: Health,
    /// The details.
    pub detail: String,
    /// The recommended action.
    pub advice: Option<String>,
}

impl Finding {
    pub(super) fn ok(subject: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { subject: subject.into(), health: Health::Ok, detail: detail.into(), advice: None }
    }

    pub(super) fn warn(
        subject: impl Into<String>,
        detail: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { health: Health::Warn, advice: Some(advice.into()), ..Self::ok(subject, detail) }
    }

    pub(super) fn fail(
        subject: impl Into<String>,
        detail: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { health: Health::Fail, ..Self::warn(subject, detail, advice) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<4}  {}: {}", self.health, self.subject, self.detail)?;
        self.advice.iter().try_for_each(|advice| write!(f, "\n      {advice}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_is_on_a_separate_line() {
        let found = Finding::fail("store", "it is not there", "make it");
        assert_eq!(found.to_string(), "FAIL  store: it is not there\n      make it");
    }
}
