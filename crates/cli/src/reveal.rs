//! The options that show redacted values.

use clap::Args;

/// The options that show redacted values.
#[derive(Debug, Args)]
pub(crate) struct Reveal {
    /// Show redacted values; needs the scope reveal, and is recorded in the audit log
    #[arg(long, requires = "reason")]
    reveal: bool,

    /// State the reason for the audit log
    #[arg(long, short = 'r', value_name = "TEXT", requires = "reveal")]
    reason: Option<String>,
}

impl Reveal {
    /// Returns the reason to show redacted values; `None` if they stay redacted.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.as_deref().filter(|_| self.reveal)
    }
}
