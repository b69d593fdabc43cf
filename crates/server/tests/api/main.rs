//! The API over a real connection: a real client, a real store, a consumer that runs. One crate, so that it is linked once.

// What tests share is part of the tests, too.
#![allow(clippy::unwrap_used)]

mod access;
mod events;
mod inbox;
mod limits;
mod openapi;
mod operations;
mod support;
mod triage;
