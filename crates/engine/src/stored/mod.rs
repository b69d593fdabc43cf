//! The processing of a stored sequence: head by head, in order, until a letter fails or none remains.
//!
//! Due retries and replays are processed in the same way. The lease is renewed during the work. If it is
//! lost, the work is dropped before another instance can claim the sequence (I6).
//!
//! - `run.rs`: one claimed sequence.
//! - `lease.rs`: its lease.
//! - `active.rs`: the sequences that run now.
//! - `place.rs`: the limit on concurrent runs.
//! - `head.rs`: one attempt at the head of the sequence; `start.rs`: the waits before the attempt;
//!   `outcome.rs`: its consequences.

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
