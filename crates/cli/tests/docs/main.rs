//! The documentation holds: pages are found, links lead somewhere, generated pages are those of the code, and whatever can be
//! tried is tried.

// What tests share is part of the tests, too.
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
