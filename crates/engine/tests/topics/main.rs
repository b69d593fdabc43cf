//! Strategy `topics`: the broker holds failed messages and returns them when they are due. The store is
//! the second line.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod broker;
mod delays;
mod retries;
mod second_line;
#[path = "../support/mod.rs"]
mod support;
