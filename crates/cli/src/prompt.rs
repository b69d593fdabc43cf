//! Questions to the person at the terminal. Where there is no terminal, nothing is asked.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::error::{Error, Result};
use crate::neutral::neutral;

/// Whether somebody can be asked.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal()
}

/// Makes sure, before anything is done, that somebody can be asked or has said yes.
///
/// # Errors
/// When neither is so.
pub(crate) fn needs_yes(yes: bool) -> Result<()> {
    if yes || can_ask() {
        return Ok(());
    }
    Err(Error::usage_hint(
        "this asks before it acts, and there is no terminal to ask at",
        "say --yes if it is meant",
    ))
}

/// Asks; anything but yes is no.
///
/// # Errors
/// When the answer cannot be read.
pub(crate) fn confirm(question: &str) -> Result<bool> {
    let answer = ask(&format!("{question} [y/N] "))?;
    Ok(matches!(answer.to_lowercase().as_str(), "y" | "yes"))
}

/// Asks for a word that has to be typed as it is, for what cannot be undone.
///
/// # Errors
/// When the answer cannot be read.
pub(crate) fn confirm_word(question: &str, word: &str) -> Result<bool> {
    Ok(ask(&format!("{question} Type {word} to go on: "))? == word)
}

fn ask(question: &str) -> Result<String> {
    let wrong = |error| Error::io("the answer cannot be read", error);
    let mut err = io::stderr().lock();
    write!(err, "{}", neutral(question)).and_then(|()| err.flush()).map_err(wrong)?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(wrong)?;
    Ok(answer.trim().to_owned())
}
