//! Handlers of changes.

pub(crate) mod bulk;
pub(crate) mod drafts;
pub(crate) mod import;
mod imported;
pub(crate) mod letters;
pub(crate) mod operations;
pub(crate) mod pauses;
mod publish;
pub(crate) mod reason;
pub(crate) mod reveal;
mod selection;
