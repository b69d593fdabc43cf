//! The source on a real broker, on simulated ones, and on none.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod chained;
mod chaos;
mod chaos_processes;
mod engine;
mod errors;
mod faults;
mod positions;
mod rebalance;
mod records;
mod recreated;
mod restart;
mod scenarios;
#[cfg(unix)]
mod stopped;
mod suite;
mod support;
mod topics;
mod topics_errors;
mod transactions;
