//! The terminal screen of `lazaret demo` and `lazaret top`: consumers, blocked keys with their lanes, groups, operations and a log.
//!
//! The caller fills a [`Screen`], which holds plain values; [`Terminal`] draws it on a buffer of [`ratatui_core`], sends
//! what changed, and reports keys. Nothing here
//! knows a daemon, a store or a demo. Text is sanitized when it is added to a [`StyledLine`], because messages choose keys, ids and
//! errors.
//!
//! # Modules
//!
//! - `styled_line`: text with tones, truncated or wrapped to a width.
//! - `screen`, `dialog`: the values that are drawn.
//! - `rows`: one line per consumer, blocked key, group, operation and log entry.
//! - `layout`: which rows fit a terminal. Pure, so that every size can be tested.
//! - `widget`: the drawing on a buffer, and a frame as text.
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
