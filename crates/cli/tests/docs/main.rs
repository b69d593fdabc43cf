//! Tests of the documentation: the summary is complete, links resolve, generated pages are up to date, and commands, configurations
//! and the tutorial work.

// Shared modules are test code as well.
#![allow(clippy::unwrap_used)]

mod book;
mod commands;
mod configurations;
mod deploy;
mod generated;
mod pages;
mod rust_code;
#[cfg(unix)]
mod tutorial;
mod words;
