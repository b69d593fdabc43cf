//! The source for files: its contract, and every kind of line and file.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod lines;
mod suite;
