//! The console without a browser: its pages, and access to them.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod access;
mod pages;
