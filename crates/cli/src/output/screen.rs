//! Writes to standard output and standard error, with the colors and widths of each.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::Tone;
use super::color::ColorChoice;
use super::line::Line;
use super::table::Table;
use crate::error::{Error, Result};
use crate::sanitize::escape_json;

/// The width without a terminal: nothing is truncated in files and pipes.
const UNLIMITED_WIDTH: usize = usize::MAX;
/// The smallest width of a terminal; smaller values are not trusted.
const MIN_WIDTH: usize = 20;

/// The output of a command.
#[derive(Clone, Debug)]
pub struct Screen {
    width: usize,
    out_color: bool,
    out_is_terminal: bool,
    err_color: bool,
    err_is_terminal: bool,
}

impl Screen {
    /// Creates the output on the standard streams of this process.
    pub fn from_stdio(choice: ColorChoice) -> Self {
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

    /// Returns the width available for tables.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns whether standard output is a terminal.
    pub fn stdout_is_terminal(&self) -> bool {
        self.out_is_terminal
    }

    /// Returns whether standard output uses colors.
    pub fn stdout_in_color(&self) -> bool {
        self.out_color
    }

    /// Returns whether standard error is a terminal.
    pub fn stderr_is_terminal(&self) -> bool {
        self.err_is_terminal
    }

    /// Returns the current width available for lines on standard error.
    pub fn stderr_width(&self) -> usize {
        width(terminal_size::terminal_size_of(io::stderr()))
    }

    /// Returns whether standard error uses colors.
    pub fn stderr_in_color(&self) -> bool {
        self.err_color
    }

    /// Prints a line.
    ///
    /// # Errors
    /// When it cannot be written; [`Error::OutputClosed`] when the reader is gone.
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

    /// Prints a value as JSON: indented on a terminal, on one line elsewhere.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn json(&self, value: &impl Serialize) -> Result<()> {
        if !self.out_is_terminal {
            return self.json_line(value);
        }
        let json = serde_json::to_string_pretty(value).map_err(|error| Error::Other(error.to_string()))?;
        self.raw(format!("{}\n", escape_json(&json)).as_bytes())
    }

    /// Prints a value as JSON on one line.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn json_line(&self, value: &impl Serialize) -> Result<()> {
        let json = serde_json::to_string(value).map_err(|error| Error::Other(error.to_string()))?;
        self.raw(format!("{}\n", escape_json(&json)).as_bytes())
    }

    /// Prints raw bytes: output that is sanitized already, or does not go to a terminal.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn raw(&self, bytes: &[u8]) -> Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        Ok(out.flush()?)
    }

    /// Prints a message to standard error.
    pub fn info(&self, text: &str) {
        self.stderr_line(&Line::of(text));
    }

    /// Prints a styled line to standard error.
    pub fn stderr_line(&self, line: &Line) {
        // A closed standard error is no reason to fail.
        let _ = writeln!(io::stderr().lock(), "{}", line.render(self.err_color));
    }

    /// Prints a warning.
    pub fn warn(&self, text: &str) {
        self.stderr_line(&Line::new().add("warning: ", Tone::Warning).plain(text));
    }

    /// Suggests the next command.
    pub fn next_command(&self, command: &str) {
        self.next_commands(&[command.to_owned()]);
    }

    /// Suggests the next commands, one per line, so that they can be copied.
    pub fn next_commands(&self, commands: &[String]) {
        for (index, command) in commands.iter().enumerate() {
            let word = if index == 0 { "next: " } else { "  or: " };
            self.stderr_line(&Line::new().add(word, Tone::Dim).add(command, Tone::Hint));
        }
    }

    /// Prints an error with its hint.
    pub fn error(&self, error: &Error) {
        if matches!(error, Error::OutputClosed) {
            return;
        }
        self.stderr_line(&Line::new().add("error: ", Tone::Bad).plain(error.headline()));
        if let Some((query, mark)) = error.query_marker() {
            self.stderr_line(&Line::of("  ").plain(query));
            self.stderr_line(&Line::of("  ").add(mark, Tone::Bad));
        }
        if let Some(hint) = error.hint() {
            self.stderr_line(&Line::new().add("hint: ", Tone::Hint).plain(hint));
        }
        if let Error::Declined { next } = error {
            self.next_command(next);
        }
    }
}

/// Returns the width from `COLUMNS`, or of the terminal; unlimited without either.
fn width(terminal: Option<(terminal_size::Width, terminal_size::Height)>) -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse::<usize>().ok());
    let terminal = terminal.map(|(terminal_size::Width(width), _)| usize::from(width));
    let widths = [columns, terminal].into_iter().flatten();
    widths.filter(|width| *width > 0).map(|width| width.max(MIN_WIDTH)).next().unwrap_or(UNLIMITED_WIDTH)
}
