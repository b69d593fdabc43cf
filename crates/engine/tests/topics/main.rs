//! Strategy `topics`: the broker holds what failed, brings it back when it is due, and the store is the second line.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod broker;
mod delays;
mod retries;
mod second_line;
#[path = "../support/mod.rs"]
mod support;
