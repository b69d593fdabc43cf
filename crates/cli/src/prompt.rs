//! Asks for confirmation and input on a terminal. Without a terminal, nothing is asked.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::error::{Error, Result};
use crate::sanitize::sanitize;

/// Returns whether standard input is a terminal.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal()
}

/// Checks up front that the user can confirm, or has passed `--yes`.
///
/// # Errors
/// When neither holds.
pub(crate) fn needs_yes(yes: bool) -> Result<()> {
    if yes || can_ask() {
        return Ok(());
    }
    Err(Error::usage_hint(
        "confirmation required, but standard input is not a terminal",
        "pass --yes to skip the confirmation",
    ))
}

/// Asks for confirmation; anything but yes means no.
///
/// # Errors
/// When the answer cannot be read.
pub(crate) fn confirm(question: &str) -> Result<bool> {
    let answer = ask(&format!("{question} [y/N] "))?;
    Ok(matches!(answer.to_lowercase().as_str(), "y" | "yes"))
}

/// Asks the user to type a word, for actions that cannot be undone.
///
/// # Errors
/// When the answer cannot be read.
pub(crate) fn confirm_word(question: &str, word: &str) -> Result<bool> {
    Ok(ask(&format!("{question} Type {word} to confirm: "))? == word)
}

/// Asks for a value. Returns the default for an empty answer, and where there is no terminal.
///
/// # Errors
/// When the answer cannot be read.
pub(crate) fn answer(question: &str, default: &str) -> Result<String> {
    if !can_ask() {
        return Ok(default.to_owned());
    }
    let answer = ask(&format!("{question} [{default}]: "))?;
    Ok(if answer.is_empty() { default.to_owned() } else { answer })
}

fn ask(question: &str) -> Result<String> {
    let wrong = |error| Error::io("cannot read the answer", error);
    let mut err = io::stderr().lock();
    write!(err, "{}", sanitize(question)).and_then(|()| err.flush()).map_err(wrong)?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(wrong)?;
    Ok(answer.trim().to_owned())
}
