//! The traits of [`lazaret_core::store`], as calls of the other modules.

mod letters;
mod operations;
mod outbox;
mod triage;
