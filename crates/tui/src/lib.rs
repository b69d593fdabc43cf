//! The terminal screen of `lazaret demo` and `lazaret top`. It shows consumers, blocked keys with their
//! lanes, groups, operations and a log.
//!
//! The caller fills a [`Screen`], which holds plain values. [`Terminal`] draws it on a buffer of
//! [`ratatui_core`], sends the changes to the terminal, and reports keys. This crate does not depend on
//! a daemon, a store or the demo. [`StyledLine`] sanitizes text when it is added, because messages
//! choose keys, ids and errors.
//!
//! # Modules
//!
//! - `styled_line`: text with tones, truncated or wrapped to a width.
//! - `screen`, `dialog`: the values that are drawn.
//! - `rows`: one line per consumer, blocked key, group, operation and log entry.
//! - `layout`: selects the rows that fit a terminal. Pure, so that every size can be tested.
//! - `widget`: draws on a buffer, or a frame as text.
//! - `terminal`, `key`: raw mode, the alternate screen and the keyboard.

mod dialog;
mod key;
mod layout;
mod rows;
mod screen;
mod styled_line;
mod terminal;
mod widget;

pub use dialog::{Dialog, Input};
pub use key::Key;
pub use screen::{BlockedKey, Consumer, Group, HeadState, KeyHint, LogEntry, Operation, Screen, Section};
pub use styled_line::{StyledLine, Tone};
pub use terminal::{Terminal, is_terminal};
pub use widget::{ScreenWidget, frame_text};
