//! Runs the simulation of whole engines on this store, each seed in a schema of its own. Needs a server: `LAZARET_TEST_POSTGRES`.

#![allow(clippy::unwrap_used, reason = "a simulation that cannot run panics")]

use std::process::ExitCode;

#[allow(dead_code, reason = "the tests use the rest of it")]
#[path = "../tests/it/support/mod.rs"]
mod support;

fn main() -> ExitCode {
    lazaret_simulation::command(support::simulated::run)
}
