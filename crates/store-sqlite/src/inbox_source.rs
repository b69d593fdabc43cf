//! An inbox that is a source: messages that were posted, kept in the file until they are settled.

mod bells;
mod log;
mod posts;
mod rows;
mod source;

pub(crate) use bells::Bells;
pub use lazaret_core::source::Posted;
pub use log::{Backlog, InboxLog, InboxOptions};
pub(crate) use posts::Posts;
pub use source::InboxSource;
