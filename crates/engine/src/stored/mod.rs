//! The processing of a stored sequence: head by head, in order, until a letter fails or none is left.
//!
//! Retries that are due and replays are processed in the same way. The lease is renewed beside the work; when it is lost,
//! the work is dropped before another instance can claim the sequence (I6).
//!
//! - `run.rs`: one claimed sequence.
//! - `lease.rs`: its lease.
//! - `active.rs`: the sequences that are being run.
//! - `place.rs`: how many of them at once.
//! - `head.rs`: one attempt at the head of it; `start.rs`: the waits before it; `outcome.rs`: what follows from it.

mod active;
mod head;
mod lease;
mod outcome;
mod place;
mod run;
mod start;

pub(crate) use active::ActiveRuns;
pub(crate) use lease::RENEW_INTERVAL;
pub(crate) use place::Places;
pub(crate) use run::{Purpose, Run, RunEnd};
