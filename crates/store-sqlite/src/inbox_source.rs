//! An inbox as a source: posted messages, stored in the file until they are settled.

mod calls;
mod log;
mod options;
mod posts;
mod rows;
mod source;
mod wakeups;

pub use lazaret_core::source::{Backlog, Posted};
pub use log::InboxLog;
pub use options::InboxOptions;
pub(crate) use posts::Posts;
pub use source::InboxSource;
pub(crate) use wakeups::Wakeups;
