//! How `lazaret run` ends. These numbers are part of the contract with scripts.

use crate::daemon::Report;

/// All is well.
pub const OK: u8 = 0;
/// Something is wrong.
pub const ERROR: u8 = 1;
/// With `--until-idle`: letters are open.
pub const LETTERS_REMAIN: u8 = 3;

/// The exit code after a run that was not cut short by an error of its own.
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
/// // Who is asked to stop and stops has done what was asked, whatever is left.
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
