//! The pages over real connections, on a real store and a running consumer. All tests are in one crate,
//! so that it is linked only once.

// Shared test support.
#![allow(clippy::unwrap_used)]

mod access;
mod commands;
mod conditions;
mod edits;
mod guards;
mod hostile;
mod operate;
mod panels;
mod screens;
mod support;
