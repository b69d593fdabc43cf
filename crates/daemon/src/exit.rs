//! Exit codes of `lazaret run`. Scripts depend on these numbers.

use crate::daemon::Report;

/// Success.
pub const OK: u8 = 0;
/// An error.
pub const ERROR: u8 = 1;
/// With `--until-idle`: letters are open.
pub const LETTERS_REMAIN: u8 = 3;

/// Returns the exit code of a completed run.
///
/// ```
/// use lazaret_daemon::{Report, exit};
/// let report = |failed: &[&str], open: &[(&str, u64)]| Report {
///     failed: failed.iter().map(|name| ((*name).to_owned(), "why".to_owned())).collect(),
///     open_letters: open.iter().map(|(name, letters)| ((*name).to_owned(), *letters)).collect(),
///     drained: false,
/// };
/// assert_eq!(exit::code(&report(&[], &[])), exit::OK);
/// assert_eq!(exit::code(&report(&[], &[("orders", 2)])), exit::LETTERS_REMAIN);
/// assert_eq!(exit::code(&report(&["orders"], &[("orders", 2)])), exit::ERROR);
/// // A requested drain is a success, whatever is left.
/// assert_eq!(exit::code(&Report { drained: true, ..report(&["orders"], &[("orders", 2)]) }), exit::OK);
/// ```
pub fn code(report: &Report) -> u8 {
    match report {
        Report { drained: true, .. } => OK,
        Report { failed, .. } if !failed.is_empty() => ERROR,
        Report { open_letters, .. } if !open_letters.is_empty() => LETTERS_REMAIN,
        Report { .. } => OK,
    }
}
