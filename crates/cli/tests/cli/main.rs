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
#[cfg(all(unix, feature = "demo"))]
mod demo_console;
mod erasing;
mod exits;
mod formats;
mod hostile;
#[cfg(unix)]
#[allow(dead_code, reason = "the tests of the console need more of it")]
#[path = "../../../console/tests/browser/http.rs"]
mod http;
mod keys;
mod operations;
mod pages;
#[cfg(all(feature = "mongodb", feature = "postgres"))]
mod passwords;
mod payloads;
mod reading;
#[cfg(all(unix, feature = "postgres"))]
mod serve_postgres;
mod status_text;
mod status_watch;
mod support;
#[cfg(unix)]
mod terminal;
#[cfg(unix)]
mod top;
mod transfer;
#[cfg(all(unix, feature = "demo"))]
#[allow(dead_code, reason = "the tests of the console need more of it")]
#[path = "../../../console/tests/browser/webdriver.rs"]
mod webdriver;
