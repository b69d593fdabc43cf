//! Standard output and standard error, and what is known about them.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::line::{Line, Tone};
use super::table::Table;
use crate::context::ColorChoice;
use crate::error::{Error, Result};
use crate::neutral::json_text;

/// How wide a table is that goes to a file or another program: nothing is cut there.
const WIDTH_ELSEWHERE: usize = usize::MAX;
/// How narrow a terminal is believed to be.
const NARROWEST: usize = 20;

/// Where a command prints.
#[derive(Clone, Debug)]
pub struct Screen {
    width: usize,
    out_color: bool,
    out_is_terminal: bool,
    err_color: bool,
    err_is_terminal: bool,
}

impl Screen {
    /// What this process was given.
    pub fn of_process(choice: ColorChoice) -> Self {
        let (out, err) = (io::stdout(), io::stderr());
        let decide = |auto: anstream::ColorChoice| match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => auto != anstream::ColorChoice::Never,
        };
        Self {
            width: width(terminal_size::terminal_size_of(io::stdout())),
            out_color: decide(anstream::AutoStream::choice(&out)),
            out_is_terminal: out.is_terminal(),
            err_color: decide(anstream::AutoStream::choice(&err)),
            err_is_terminal: err.is_terminal(),
        }
    }

    /// How wide a table may be.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether somebody looks at what goes to standard output.
    pub fn is_terminal(&self) -> bool {
        self.out_is_terminal
    }

    /// Whether standard output may have colours.
    #[cfg(feature = "demo")]
    pub fn is_in_color(&self) -> bool {
        self.out_color
    }

    /// Whether somebody looks at what goes to standard error.
    pub fn talks_to_terminal(&self) -> bool {
        self.err_is_terminal
    }

    /// How wide a line on standard error may be, at this moment.
    pub fn talk_width(&self) -> usize {
        width(terminal_size::terminal_size_of(io::stderr()))
    }

    /// Whether standard error may have colours.
    pub fn talks_in_color(&self) -> bool {
        self.err_color
    }

    /// Prints a line.
    ///
    /// # Errors
    /// When it cannot be written; [`Error::Closed`] when nobody reads it any more.
    pub fn line(&self, line: &Line) -> Result<()> {
        self.raw(format!("{}\n", line.render(self.out_color)).as_bytes())
    }

    /// Prints a table.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn table(&self, table: &Table) -> Result<()> {
        self.raw(table.render(self.width, self.out_color).as_bytes())
    }

    /// Prints a value as JSON: for people to read on a terminal, on one line elsewhere.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn json(&self, value: &impl Serialize) -> Result<()> {
        if !self.out_is_terminal {
            return self.json_line(value);
        }
        let json = serde_json::to_string_pretty(value).map_err(|error| Error::Other(error.to_string()))?;
        self.raw(format!("{}\n", json_text(&json)).as_bytes())
    }

    /// Prints a value as JSON on one line.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn json_line(&self, value: &impl Serialize) -> Result<()> {
        let json = serde_json::to_string(value).map_err(|error| Error::Other(error.to_string()))?;
        self.raw(format!("{}\n", json_text(&json)).as_bytes())
    }

    /// Prints bytes as they are. For what is harmless by construction, or does not go to a terminal.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn raw(&self, bytes: &[u8]) -> Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        Ok(out.flush()?)
    }

    /// Says something to whoever runs the command.
    pub fn say(&self, text: &str) {
        self.talk(&Line::of(text));
    }

    /// Says a line with styles.
    pub fn talk(&self, line: &Line) {
        // Who does not listen is not told.
        let _ = writeln!(io::stderr().lock(), "{}", line.render(self.err_color));
    }

    /// Says that something should be looked at.
    pub fn warn(&self, text: &str) {
        self.talk(&Line::new().add("warning: ", Tone::Warning).plain(text));
    }

    /// Names the next useful command.
    pub fn next(&self, command: &str) {
        self.next_of(&[command.to_owned()]);
    }

    /// Names the next useful commands, each on a line of its own, so that they can be copied.
    pub fn next_of(&self, commands: &[String]) {
        for (index, command) in commands.iter().enumerate() {
            let word = if index == 0 { "next: " } else { "  or: " };
            self.talk(&Line::new().add(word, Tone::Dim).add(command, Tone::Hint));
        }
    }

    /// Says what went wrong, and what to do.
    pub fn error(&self, error: &Error) {
        if matches!(error, Error::Closed) {
            return;
        }
        self.talk(&Line::new().add("error: ", Tone::Bad).plain(error.headline()));
        if let Some((query, mark)) = error.place() {
            self.talk(&Line::of("  ").plain(query));
            self.talk(&Line::of("  ").add(mark, Tone::Bad));
        }
        if let Some(hint) = error.hint() {
            self.talk(&Line::new().add("hint: ", Tone::Hint).plain(hint));
        }
        if let Error::Declined { next } = error {
            self.next(next);
        }
    }
}

/// The width that `COLUMNS` says, or the terminal that was found; elsewhere there is no end.
fn width(found: Option<(terminal_size::Width, terminal_size::Height)>) -> usize {
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse::<usize>().ok());
    let found = found.map(|(terminal_size::Width(width), _)| usize::from(width));
    let widths = [said, found].into_iter().flatten();
    widths.filter(|columns| *columns > 0).map(|width| width.max(NARROWEST)).next().unwrap_or(WIDTH_ELSEWHERE)
}
