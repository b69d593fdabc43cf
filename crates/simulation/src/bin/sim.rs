//! Runs the simulation on the memory store: `sim --seeds N [--from S]`, or one seed: `sim --seed S`.

use std::process::ExitCode;

fn main() -> ExitCode {
    lazaret_simulation::command(lazaret_simulation::run_at)
}
