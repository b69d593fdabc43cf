//! The command line as users have it: the real binary against a real server, store and consumer.

// What tests share is part of the tests, too.
#![allow(clippy::unwrap_used)]

mod acting;
mod approval;
mod daemon;
#[cfg(feature = "demo")]
mod demo;
mod exits;
mod formats;
mod hostile;
mod operations;
mod pages;
mod reading;
mod support;
#[cfg(unix)]
mod terminal;
mod transfer;
mod trouble;
