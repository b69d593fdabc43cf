//! What a handler demands in words of its own, whichever way it says them.

use std::time::Duration;

use lazaret_core::{Reason, Verdict};

use crate::words::words;

/// The longest wait that is passed on. The retry policy has a limit of its own; this one keeps numbers sane.
pub(crate) const RETRY_AFTER_LIMIT: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// How much of what makes no sense is repeated in a message.
const REPEATED_BYTES: usize = 200;

/// A verdict and a reason, as far as they can be understood.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    pub(crate) verdict: Option<Verdict>,
    /// The handler said in so many words that all is well.
    pub(crate) handled: bool,
    pub(crate) reason: Option<Reason>,
    /// What it said that makes no sense.
    pub(crate) remarks: Vec<String>,
}

impl Demand {
    pub(crate) fn read(verdict: Option<&[u8]>, reason: Option<&[u8]>) -> Self {
        let mut demand = Self::default();
        if let Some(value) = verdict {
            let word = std::str::from_utf8(value).unwrap_or_default().trim().to_ascii_lowercase();
            match word.parse() {
                Ok(verdict) => demand.verdict = Some(verdict),
                Err(_) if word == "handled" => demand.handled = true,
                Err(_) => demand.ignore("verdict", value),
            }
        }
        if let Some(value) = reason {
            match Reason::new(std::str::from_utf8(value).unwrap_or_default().trim()) {
                Ok(reason) => demand.reason = Some(reason),
                Err(_) => demand.ignore("reason", value),
            }
        }
        demand
    }

    fn ignore(&mut self, what: &str, value: &[u8]) {
        self.remarks.push(format!("the {what} {:?} is unknown and was ignored", repeated(value)));
    }
}

/// As much of what a handler said as is repeated in a message.
pub(crate) fn repeated(value: &[u8]) -> String {
    words(&value[..value.len().min(REPEATED_BYTES)])
}
