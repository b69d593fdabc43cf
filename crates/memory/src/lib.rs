//! A store and a source that live in memory.
//!
//! [`MemoryStore`] keeps every promise of [`lazaret_core::store`] but durability: it dies with the process. It is the
//! reference that the other stores are measured against. [`MemoryLog`] is a partitioned log with consumer groups,
//! and [`MemorySource`] one member of such a group.
//!
//! Both are deterministic: the same calls at the same times give the same answers in the same order, so a seeded
//! simulation can run on them.

mod group;
mod log;
mod source;
mod store;

pub use log::{DEFAULT_BATCH, MemberId, MemoryLog, SETTLED_LIMIT};
pub use source::MemorySource;
pub use store::{AUDIT_LIMIT, MemoryStore};
