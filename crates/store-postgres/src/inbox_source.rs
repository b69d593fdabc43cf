//! An inbox as a source: posted messages, stored in the tables until they are settled. One instance of a fleet reads it.

mod log;
mod options;
mod posts;
mod reader;
mod rows;
mod source;

pub use lazaret_core::source::{Backlog, Posted};
pub use log::InboxLog;
pub use options::InboxOptions;
pub use source::{InboxSource, InboxStatus};
