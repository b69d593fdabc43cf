//! The checks of `cargo xtask test`, run in order until one fails.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::dependencies;
use crate::process::{Cargo, workspace_root};
use crate::programs;
use crate::services::{Services, Variable};

/// The seeds of the simulation, and of fleets.
const SEEDS: &[&str] = &["--seeds", "300"];
const FLEETS: &[&str] = &["--fleet", "--seeds", "60"];

/// Optional parts of the programs and of the facade. They are tested in the same build as all the rest.
const FEATURES: &str = "lazaret-cli/kafka,lazaret-cli/mongodb,lazaret-cli/postgres,lazaret/full";

/// The duration of each check.
type Times = Vec<(&'static str, Duration)>;

/// One check.
struct Step {
    name: &'static str,
    /// The command that runs this check alone.
    repeat: String,
    work: Work,
}

enum Work {
    Cargo(Cargo),
    /// A call of `cargo test` whose programs run side by side.
    Programs(Cargo),
    Dependencies,
    /// The simulation with these arguments, as the tests have built it: a build in release mode takes longer than the seeds.
    Simulation(&'static [&'static str]),
}

impl Step {
    fn cargo(name: &'static str, call: Cargo) -> Self {
        Self { name, repeat: call.to_string(), work: Work::Cargo(call) }
    }

    fn simulation(name: &'static str, arguments: &'static [&'static str]) -> Self {
        let repeat = format!("cargo xtask sim {}", arguments.join(" "));
        Self { name, repeat, work: Work::Simulation(arguments) }
    }

    /// Runs the check and returns the number of passed tests.
    fn run(&self) -> Result<u64, String> {
        match &self.work {
            Work::Cargo(call) => call.run(),
            Work::Programs(tests) => programs::run(tests),
            Work::Dependencies => dependencies::check().map(|()| 0),
            Work::Simulation(arguments) => simulate(arguments).map(|()| 0),
        }
    }
}

/// Returns all checks in order. The tests get the addresses of the services.
fn steps(services: &[Variable]) -> Vec<Step> {
    // All targets but the benchmarks.
    let tests =
        Cargo::new(&format!("test --workspace --features {FEATURES} --lib --bins --tests --examples"));
    let tests = services.iter().fold(tests, |tests, (name, value)| tests.with_variable(name, value));
    vec![
        Step::cargo("formatting", Cargo::new("fmt --all --check")),
        Step::cargo("lints", Cargo::new("clippy --workspace --all-targets --all-features -- -D warnings")),
        Step { name: "tests", repeat: tests.to_string(), work: Work::Programs(tests) },
        // Before the next build, which has known bugs.
        Step::simulation("simulation", SEEDS),
        Step::simulation("simulation of fleets", FLEETS),
        // A build of its own: known bugs must not be in the engine that the other tests run.
        Step::cargo("mutations", Cargo::new("test -p lazaret-simulation --features mutations")),
        Step::cargo(
            // The guides among them: they are compiled with the facade.
            "examples in the documentation",
            Cargo::new(&format!("test --workspace --features {FEATURES} --doc")),
        ),
        // With all features, as the lints: the dependencies are compiled already.
        Step::cargo(
            "documentation",
            Cargo::new("doc --workspace --all-features --no-deps")
                .with_variable("RUSTDOCFLAGS", "-D warnings"),
        ),
        Step { name: "dependencies", repeat: "cargo xtask deps".to_owned(), work: Work::Dependencies },
        Step::cargo("README example", Cargo::new("run -p lazaret --example orders")),
        Step::cargo(
            "durable example",
            Cargo::new("run -p lazaret --features sqlite,file,flight-recorder --example durable"),
        ),
    ]
}

/// Runs the simulation, which is beside this program.
fn simulate(arguments: &[&str]) -> Result<(), String> {
    let own = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
    let program = own.with_file_name(format!("sim{}", std::env::consts::EXE_SUFFIX));
    let status = Command::new(&program).args(arguments).status();
    let status = status.map_err(|error| format!("failed to start {}: {error}", program.display()))?;
    if status.success() { Ok(()) } else { Err(format!("the simulation failed with {status}")) }
}

/// Runs all checks until the first failure, and prints a summary.
pub(crate) fn run() -> Result<(), String> {
    let root = workspace_root()?;
    std::env::set_current_dir(&root).map_err(|error| format!("failed to enter the workspace: {error}"))?;
    let services = Services::take()?;
    let summary = if !services.missing.is_empty() && must_have_all() {
        Err(format!("services of the tests are unavailable:\n{}", services.missing.join("\n")))
    } else {
        let not_run = [&services.missing[..], &services.not_offered].concat();
        let run = run_all(&steps(&services.variables));
        run.map(|(times, passed)| summary(&times, &not_run, passed))
    };
    // Released in any case; an earlier failure takes precedence.
    let released = services.release();
    println!("\n{}", summary?);
    released
}

/// Returns whether an unavailable service is a failure: in CI.
fn must_have_all() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// Runs these checks. Returns their durations and the number of passed tests.
fn run_all(steps: &[Step]) -> Result<(Times, u64), String> {
    let count = steps.len();
    let mut passed = 0;
    let mut times = Times::new();
    for (number, step) in (1..).zip(steps) {
        println!("\n=== {number}/{count} {}: {}", step.name, step.repeat);
        let started = Instant::now();
        passed += step.run().map_err(|why| {
            let Step { name, repeat, .. } = step;
            format!("\n=== step {number} of {count} failed, {name}: {why}\nrepeat it with: {repeat}")
        })?;
        times.push((step.name, started.elapsed()));
    }
    Ok((times, passed))
}

/// Formats the summary of a successful run.
fn summary(times: &[(&str, Duration)], not_run: &[String], passed: u64) -> String {
    let mut text = String::from("=== all checks passed\n");
    for (name, time) in times {
        text += &format!("{:>7.1} s  {name}\n", time.as_secs_f64());
    }
    match not_run {
        [] => text += "not run: nothing\n",
        not_run => not_run.iter().for_each(|why| text += &format!("not run: the tests that need {why}\n")),
    }
    text + &format!("{passed} passed, 0 failed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_ends_with_the_number_of_tests() {
        let text = summary(&[("tests", Duration::from_millis(1500))], &[], 42);
        let expected = "=== all checks passed\n    1.5 s  tests\nnot run: nothing\n42 passed, 0 failed";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_summary_lists_skipped_tests() {
        let text = summary(&[], &["Kafka: java not found".to_owned()], 42);
        let expected = "=== all checks passed\nnot run: the tests that need Kafka: java not found\n\
            42 passed, 0 failed";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_tests_get_the_addresses_of_the_services() {
        let steps = steps(&[("WHERE".to_owned(), "here".to_owned())]);
        assert!(steps.iter().any(|step| step.repeat.starts_with(r#"WHERE="here" cargo test"#)));
    }

    #[test]
    fn every_step_can_be_repeated_from_its_line() {
        for step in steps(&[]) {
            assert!(step.repeat.contains("cargo "), "{}", step.name);
        }
    }
}
