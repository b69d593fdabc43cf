//! Encrypted stores: they pass the conformance suites, and show no content.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod sealed;
mod suites;
