//! An inbox that is a source: messages that were posted, kept in the file until they are settled.

mod bells;
mod calls;
mod log;
mod options;
mod posts;
mod rows;
mod source;

pub(crate) use bells::Bells;
pub use lazaret_core::source::{Backlog, Posted};
pub use log::InboxLog;
pub use options::InboxOptions;
pub(crate) use posts::Posts;
pub use source::InboxSource;
