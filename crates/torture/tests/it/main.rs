//! The short forms of the torture, and messages that crash the process.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod crash_poison;
mod fleet;
mod kill_loop;
