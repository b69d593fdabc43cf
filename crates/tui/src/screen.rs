//! The values that are drawn: filled by the demo from its own state, and by `lazaret top` from the API.

use std::time::Duration;

use crate::dialog::Dialog;
use crate::styled_line::{StyledLine, Tone};

/// A screen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Screen {
    /// The first line, on the left.
    pub title: StyledLine,
    /// The first line, on the right: an address. It has the next line for itself where the terminal is narrow.
    pub address: StyledLine,
    /// Lines below the title.
    pub summary: Vec<StyledLine>,
    /// The consumers; `None` where there is only one to speak of.
    pub consumers: Option<Section<Consumer>>,
    /// The blocked keys, each with its lane.
    pub blocked: Section<BlockedKey>,
    /// The groups: letters by cause.
    pub groups: Section<Group>,
    /// The operations. Without any, the section is not drawn.
    pub operations: Section<Operation>,
    /// The log, the latest entry last.
    pub log: Section<LogEntry>,
    /// Lines above the keys.
    pub footer: Vec<StyledLine>,
    /// The keys to press.
    pub keys: Vec<KeyHint>,
    /// A dialog over the screen.
    pub dialog: Option<Dialog>,
}

/// A section of the screen: a heading and rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Section<R> {
    /// The heading.
    pub title: String,
    /// Text beside the heading.
    pub note: String,
    /// The rows.
    pub rows: Vec<R>,
    /// The number of all rows, where not all of them are given.
    pub total: u64,
    /// The selected row.
    pub selected: Option<usize>,
}

impl<R> Section<R> {
    /// Creates a section with all of its rows.
    pub fn new(title: impl Into<String>, rows: Vec<R>) -> Self {
        let total = rows.len() as u64;
        Self { title: title.into(), note: String::new(), rows, total, selected: None }
    }

    /// Sets the text beside the heading.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// Sets the number of all rows, of which only some are given.
    #[must_use]
    pub fn total(self, total: u64) -> Self {
        Self { total: total.max(self.rows.len() as u64), ..self }
    }

    /// Selects a row.
    #[must_use]
    pub fn select(self, selected: Option<usize>) -> Self {
        Self { selected, ..self }
    }
}

impl<R> Default for Section<R> {
    fn default() -> Self {
        Self::new("", Vec::new())
    }
}

/// A consumer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Consumer {
    /// The name.
    pub name: String,
    /// The state.
    pub state: String,
    /// The tone of the state.
    pub tone: Tone,
    /// Letters that are retried automatically.
    pub retrying: u64,
    /// Dead letters.
    pub dead: u64,
    /// Letters that are parked or quarantined.
    pub held: u64,
    /// Letters that wait behind others.
    pub waiting: u64,
    /// Messages that are not read yet, if known.
    pub lag: Option<u64>,
    /// Messages handled per second, if known.
    pub rate: Option<f64>,
    /// What needs attention: a pause, a blown fuse, an open breaker, an error.
    pub note: Option<String>,
}

/// The state of the first letter of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadState {
    /// It is retried.
    Retrying {
        /// The number of the next attempt.
        attempt: u32,
        /// The time until then, if known.
        due_in: Option<Duration>,
    },
    /// It is in this state, and stays there until a person acts.
    Held(String),
}

/// A key whose messages wait, with its lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedKey {
    /// The key: the name of the sequence.
    pub name: String,
    /// The state of the head.
    pub head: HeadState,
    /// Names of the first letters of the lane, the head first.
    pub lane: Vec<String>,
    /// The number of letters in the lane.
    pub letters: u64,
    /// Whether the key is paused.
    pub is_paused: bool,
}

/// Letters with the same cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Dead letters.
    pub dead: u64,
    /// Letters that are retried automatically.
    pub retrying: u64,
    /// Letters that are parked or quarantined.
    pub held: u64,
    /// Letters that wait behind them.
    pub behind: u64,
    /// The reason code.
    pub reason: String,
    /// The error.
    pub message: String,
}

/// An operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operation {
    /// The id.
    pub id: String,
    /// The state.
    pub state: String,
    /// The tone of the state.
    pub tone: Tone,
    /// The number of letters.
    pub letters: u64,
    /// Letters that succeeded.
    pub ok: u64,
    /// Letters that failed again.
    pub failed_again: u64,
    /// Letters that were skipped.
    pub skipped: u64,
    /// A note on the state.
    pub note: Option<String>,
}

/// An entry of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogEntry {
    /// When it happened.
    pub at: String,
    /// What happened.
    pub text: String,
    /// The tone of the text.
    pub tone: Tone,
}

/// A key to press.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyHint {
    /// The key.
    pub key: &'static str,
    /// What it does.
    pub label: String,
    /// Whether it does something now.
    pub is_active: bool,
}

impl KeyHint {
    /// Creates the hint for a key that does something now.
    pub fn new(key: &'static str, label: impl Into<String>) -> Self {
        Self { key, label: label.into(), is_active: true }
    }

    /// Sets whether the key does something now.
    #[must_use]
    pub fn active(self, is_active: bool) -> Self {
        Self { is_active, ..self }
    }
}
