//! The store in MongoDB: its promises, also on clusters and when servers fail.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod batches;
mod commands;
mod connections;
mod encryption;
mod engine;
mod format;
mod members;
mod open;
mod outbox;
mod sharded;
mod suites;
mod support;
mod together;
