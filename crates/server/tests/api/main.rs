//! The API over real connections, with a real store and a running consumer; and the store contract, kept through it. One
//! crate, linked once.

// Shared test support.
#![allow(clippy::unwrap_used)]

mod access;
mod anonymous;
mod conformance;
mod connections;
mod events;
mod facets;
mod held;
mod inbox;
mod limited;
mod limits;
mod openapi;
mod operations;
mod parsing;
mod redacted_texts;
mod redaction;
mod scans;
mod secrets;
mod security_page;
mod status;
mod support;
mod triage;
