//! The console in a real browser: headless Chromium over WebDriver, against a daemon in a separate process.
//!
//! `cargo xtask services` installs the browser and prints its variables. Without them, the tests print
//! that they did not run. With `CI=true`, they fail instead.

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
