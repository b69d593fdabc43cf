//! The API over a real connection: a real client, a real store, a consumer that runs. One crate, so that it is linked once.

mod access;
mod events;
mod inbox;
mod limits;
mod openapi;
mod operations;
mod support;
mod triage;
