//! The engine on a log and a store in memory, with a paused clock.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod bad_input;
mod breaker;
mod clock;
mod crashes;
mod dead_letter_sink;
mod dedupe;
mod fuse;
mod grouping;
mod guards;
mod incarnations;
mod isolation;
mod layers;
mod leases;
mod live;
mod on_dead;
mod operations;
mod ownership;
mod positions;
mod redaction;
mod replay;
mod retry;
mod support;
mod topics;
