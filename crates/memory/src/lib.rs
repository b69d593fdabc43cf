//! An in-memory store and source.
//!
//! [`MemoryStore`] implements all of [`lazaret_core::store`] except durability: its content is lost with the process. It is
//! the reference for the other stores. [`MemoryLog`] is a partitioned log with consumer groups,
//! and [`MemorySource`] one member of such a group.
//!
//! Both are deterministic: the same calls at the same times give the same results in the same order, so a seeded
//! simulation can run on them.

mod group;
mod log;
mod source;
mod store;

pub use log::{DEFAULT_BATCH, MemberId, MemoryLog, SETTLED_LIMIT};
pub use source::MemorySource;
pub use store::{AUDIT_LIMIT, MemoryStore};
