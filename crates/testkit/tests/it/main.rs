//! The suites and the model on the stores and sources in memory, and on wrappers around them.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod forwarding;
mod memory_source;
mod memory_store;
mod model;
mod side_by_side;
