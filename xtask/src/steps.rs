//! What `cargo xtask test` runs: every check, in order, until one fails.

use std::time::{Duration, Instant};

use crate::dependencies;
use crate::pass_on;
use crate::process::{Cargo, workspace_root};

/// How many seeds the simulation gets.
const SEEDS: &str = "300";

/// One check.
struct Step {
    name: &'static str,
    /// What to type to run this check alone.
    repeat: String,
    work: Work,
}

enum Work {
    Cargo(Cargo),
    Dependencies,
}

impl Step {
    fn cargo(name: &'static str, call: Cargo) -> Self {
        Self { name, repeat: call.to_string(), work: Work::Cargo(call) }
    }

    /// Does it, and says how many tests passed in it.
    fn run(&self) -> Result<u64, String> {
        match &self.work {
            Work::Cargo(call) => call.run(),
            Work::Dependencies => dependencies::check().map(|()| 0),
        }
    }
}

/// All checks, in the order in which they run.
fn steps() -> Result<Vec<Step>, String> {
    let simulation = pass_on::simulation(&["--seeds".to_owned(), SEEDS.to_owned()])?;
    Ok(vec![
        Step::cargo("formatting", Cargo::new("fmt --all --check")),
        Step::cargo("lints", Cargo::new("clippy --workspace --all-targets -- -D warnings")),
        // All targets but the benchmarks.
        Step::cargo("tests", Cargo::new("test --workspace --lib --bins --tests --examples")),
        Step::cargo("examples in the documentation", Cargo::new("test --workspace --doc")),
        Step::cargo(
            "documentation",
            Cargo::new("doc --workspace --no-deps").with_variable("RUSTDOCFLAGS", "-D warnings"),
        ),
        Step { name: "dependencies", repeat: "cargo xtask deps".to_owned(), work: Work::Dependencies },
        Step::cargo("the example of the README", Cargo::new("run -p lazaret --example orders")),
        Step {
            name: "simulation",
            repeat: format!("cargo xtask sim --seeds {SEEDS}"),
            work: Work::Cargo(simulation),
        },
    ])
}

/// Runs all checks, stops at the first that fails, and sums up.
pub(crate) fn run() -> Result<(), String> {
    let root = workspace_root()?;
    std::env::set_current_dir(&root).map_err(|error| format!("failed to enter the workspace: {error}"))?;
    let steps = steps()?;
    let count = steps.len();
    let mut passed = 0;
    let mut times = Vec::new();
    for (number, step) in (1..).zip(&steps) {
        println!("\n=== {number}/{count} {}: {}", step.name, step.repeat);
        let started = Instant::now();
        passed += step.run().map_err(|why| {
            let Step { name, repeat, .. } = step;
            format!("\n=== failed at step {number} of {count}, {name}: {why}\nrepeat it with: {repeat}")
        })?;
        times.push((step.name, started.elapsed()));
    }
    println!("\n{}", summary(&times, passed));
    Ok(())
}

/// The last lines of a run without failures.
fn summary(times: &[(&str, Duration)], passed: u64) -> String {
    let mut text = String::from("=== all checks passed\n");
    for (name, time) in times {
        text += &format!("{:>7.1} s  {name}\n", time.as_secs_f64());
    }
    // Nothing needs an external service so far. What does must say here when it was left out.
    text + &format!("not run: nothing\n{passed} passed, 0 failed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_ends_with_the_number_of_tests() {
        let text = summary(&[("tests", Duration::from_millis(1500))], 42);
        let expected = "=== all checks passed\n    1.5 s  tests\nnot run: nothing\n42 passed, 0 failed";
        assert_eq!(text, expected);
    }

    #[test]
    fn every_step_can_be_repeated_from_its_line() {
        for step in steps().unwrap() {
            assert!(step.repeat.contains("cargo "), "{}", step.name);
        }
    }
}
