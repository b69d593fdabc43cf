//! The values that are drawn. The demo fills them from its own state, `lazaret top` from the API.

use std::time::Duration;

use crate::dialog::Dialog;
use crate::styled_line::{StyledLine, Tone};

/// The content of the screen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Screen {
    /// The left side of the first line.
    pub title: StyledLine,
    /// An address, on the right side of the first line. On a narrow terminal it takes the second line.
    pub address: StyledLine,
    /// Lines below the title.
    pub summary: Vec<StyledLine>,
    /// The consumers, or `None` where there is only one.
    pub consumers: Option<Section<Consumer>>,
    /// The blocked keys with their lanes.
    pub blocked: Section<BlockedKey>,
    /// The groups: letters by cause.
    pub groups: Section<Group>,
    /// The operations. The section is not drawn when it is empty.
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
    /// The text of the heading.
    pub title: String,
    /// Text next to the heading.
    pub note: String,
    /// The rows.
    pub rows: Vec<R>,
    /// The total number of rows, which may exceed `rows`.
    pub total: u64,
    /// The index of the selected row.
    pub selected: Option<usize>,
}

impl<R> Section<R> {
    /// Creates a section that holds all of its rows.
    pub fn new(title: impl Into<String>, rows: Vec<R>) -> Self {
        let total = rows.len() as u64;
        Self { title: title.into(), note: String::new(), rows, total, selected: None }
    }

    /// Sets the text next to the heading.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// Sets the total number of rows, for a section that holds only some of them.
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
    /// The number of letters that are retried automatically.
    pub retrying: u64,
    /// The number of dead letters.
    pub dead: u64,
    /// The number of parked or quarantined letters.
    pub held: u64,
    /// The number of letters that wait behind others.
    pub waiting: u64,
    /// The number of messages not read yet, if known.
    pub lag: Option<u64>,
    /// The number of messages handled per second, if known.
    pub rate: Option<f64>,
    /// A condition that needs attention: a pause, a blown fuse, an open breaker or an error.
    pub note: Option<String>,
}

/// The state of a lane's first letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadState {
    /// The letter is retried automatically.
    Retrying {
        /// The number of the next attempt.
        attempt: u32,
        /// The time until the next attempt, if known.
        due_in: Option<Duration>,
    },
    /// The letter stays in this state until a person acts.
    Held(String),
}

/// A key whose messages wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedKey {
    /// The key: the name of the sequence.
    pub name: String,
    /// The state of the head.
    pub head: HeadState,
    /// The names of the first letters of the lane, the head first.
    pub lane: Vec<String>,
    /// The number of letters in the lane.
    pub letters: u64,
    /// Whether the key is paused.
    pub is_paused: bool,
}

/// Letters with the same cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The number of dead letters.
    pub dead: u64,
    /// The number of letters that are retried automatically.
    pub retrying: u64,
    /// The number of parked or quarantined letters.
    pub held: u64,
    /// The number of letters that wait behind the group's letters.
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
    /// The number of letters that succeeded.
    pub ok: u64,
    /// The number of letters that failed again.
    pub failed_again: u64,
    /// The number of letters that were skipped.
    pub skipped: u64,
    /// A note on the state.
    pub note: Option<String>,
}

/// An entry of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogEntry {
    /// The time of the event.
    pub at: String,
    /// The event.
    pub text: String,
    /// The tone of the text.
    pub tone: Tone,
}

/// A key to press.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyHint {
    /// The key.
    pub key: &'static str,
    /// The effect of the key.
    pub label: String,
    /// Whether the key has an effect now.
    pub is_active: bool,
}

impl KeyHint {
    /// Creates the hint for a key that has an effect now.
    pub fn new(key: &'static str, label: impl Into<String>) -> Self {
        Self { key, label: label.into(), is_active: true }
    }

    /// Sets whether the key has an effect now.
    #[must_use]
    pub fn active(self, is_active: bool) -> Self {
        Self { is_active, ..self }
    }
}
