//! The traits of [`lazaret_core::store`].

mod letters;
mod operations;
mod outbox;
mod triage;
