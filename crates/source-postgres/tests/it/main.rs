//! The source for an outbox, on a real server.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod exactly_once;
mod kill;
mod leadership;
mod order;
mod reuse;
mod start;
#[cfg(unix)]
mod stopped;
mod suite;
mod support;
