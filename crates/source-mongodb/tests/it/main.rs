//! The source on real servers, on a small one, and on a scripted one.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod engine;
mod faults;
mod fleet;
mod kill;
mod leadership;
mod members;
mod recreated;
mod scripted;
mod sharded;
mod start;
#[cfg(unix)]
mod stopped;
mod strict;
mod suite;
mod support;
