//! An in-memory store and source.
//!
//! [`MemoryStore`] implements all of [`lazaret_core::store`] except durability: its content is lost with
//! the process. It is the reference for the other stores. [`MemoryLog`] is a partitioned log with
//! consumer groups, and [`MemorySource`] is one member of such a group.
//!
//! Both are deterministic: the same calls at the same times give the same results in the same order, so
//! a seeded simulation can run on them.
//!
//! `store` is the store: `queue` holds rows and indexes; `intake`, `leases`, `acts` and `operations`
//! load views for the [rules](lazaret_core::store::rules) and apply their effects; `query` and `triage`
//! read. `log`, `group` and `source` are the log, its consumer group and one member of the group.

mod group;
mod log;
mod source;
mod store;

pub use log::{DEFAULT_BATCH, MemberId, MemoryLog, SETTLED_LIMIT};
pub use source::MemorySource;
pub use store::{AUDIT_LIMIT, MemoryStore};
