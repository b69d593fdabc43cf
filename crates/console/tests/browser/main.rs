//! The console in a real browser, headless Chromium over WebDriver, against a daemon in a process of its own.
//!
//! `cargo xtask services` installs the browser and prints its variables. Without them the tests say that they were not run; with
//! `CI=true` they fail.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod accessibility;
mod hostile;
mod http;
mod keyboard;
mod people;
mod recovery;
mod reveal;
mod screens;
mod site;
mod triage;
mod webdriver;
