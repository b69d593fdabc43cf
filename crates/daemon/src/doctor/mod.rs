//! Runs preflight checks on a configuration.
//!
//! The checks change nothing: they send no message to a handler, create or migrate no file, and join no group.

mod disk;
mod encryption;
mod finding;
mod handler;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "kafka")]
mod kafka_records;
mod listen;
#[cfg(feature = "mongodb")]
mod mongodb;
#[cfg(feature = "mongodb")]
mod mongodb_answers;
#[cfg(feature = "mongodb")]
mod mongodb_sharding;
#[cfg(feature = "postgres")]
mod postgres;
mod preflight;
mod source;
mod store;

pub use finding::{Finding, Health};
pub use preflight::preflight;
