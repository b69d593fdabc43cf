//! The contracts of [`lazaret_core::store`], as requests to the writer and queries to the readers.

mod audit;
mod key_value;
mod letters;
mod operations;
mod outbox;
mod triage;
