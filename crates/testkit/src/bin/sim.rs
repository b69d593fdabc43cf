//! Runs the simulation on a store in memory: `sim --seeds N [--from S]`, or one seed: `sim --seed S`.

use std::process::ExitCode;

use lazaret_testkit::sim;

fn main() -> ExitCode {
    sim::command(sim::run)
}
