//! End-to-end tests: the real binary against a real server, store and consumer.

// Shared modules are test code as well.
#![allow(clippy::unwrap_used)]

mod acting;
mod adopt;
mod approval;
mod daemon;
mod daemon_failures;
#[cfg(feature = "demo")]
mod demo;
mod exits;
mod formats;
mod hostile;
mod operations;
mod pages;
mod reading;
#[cfg(all(unix, feature = "postgres"))]
mod serve_postgres;
mod status_watch;
mod support;
#[cfg(unix)]
mod terminal;
#[cfg(unix)]
mod top;
mod transfer;
