//! Metrics: events are counted by an observer, the engine's own counters are read at each scrape.
//!
//! The healthy path pays nothing: handled messages are read from [`Handle::stats`](lazaret_engine::Handle::stats).

mod failed;
mod instruments;
mod labels;
mod letters;
mod observer;
mod process;
mod registry;

pub(crate) use labels::scope_name;
pub use labels::{CUSTOM_REASONS, OTHER};
pub use letters::{Overview, QueueOverview};
pub use registry::{BUCKETS, ChangeStreamStats, Metrics};
