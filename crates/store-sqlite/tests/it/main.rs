//! The embedded store: its guarantees, its file formats, and its recovery after crashes.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod backup;
mod closing;
mod damaged_row;
mod erasure;
mod file;
mod format;
mod identity;
mod inbox_crash;
mod inbox_source;
mod open_transaction;
mod operations;
mod processes;
mod redo_crash;
mod simulation;
mod suites;
