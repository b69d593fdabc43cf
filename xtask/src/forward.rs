//! Commands that forward their arguments to a program of the workspace.

use crate::process::Cargo;
use crate::services::{self, Services};

/// The name of all benchmark groups.
const ALL: &str = "all";
/// The benchmark groups that need a server and its client.
const KAFKA: &str = "kafka";
const MONGODB: &str = "mongodb";
const POSTGRES: &str = "postgres";
/// The kill loop of several consumers.
const FLEET: &str = "fleet";

/// Returns the call of the simulation. It always runs in release mode; `--mutation` needs a build with the known bugs.
///
/// # Errors
/// When the store has no simulation.
pub(crate) fn simulation(arguments: &[String]) -> Result<Cargo, String> {
    let mut rest = Vec::new();
    let mut store = "memory";
    let mut words = arguments.iter().filter(|argument| *argument != "--release");
    while let Some(word) = words.next() {
        match word.as_str() {
            "--store" => store = words.next().ok_or("--store needs a name")?,
            _ => rest.push(word.clone()),
        }
    }
    let package = match store {
        "memory" => "-p lazaret-simulation --bin sim",
        "sqlite" => "-p lazaret-store-sqlite --example simulation",
        POSTGRES => "-p lazaret-store-postgres --example simulation",
        other => {
            return Err(format!("unknown store {other:?}: expected memory, sqlite or postgres"));
        }
    };
    let features = match store {
        _ if !rest.iter().any(|argument| argument == "--mutation") => "",
        "memory" => " --features mutations",
        _ => " --features lazaret-simulation/mutations",
    };
    Ok(Cargo::new(&format!("run --release {package}{features} --")).with_arguments(rest))
}

/// Runs the simulation, with a server for the store that needs one.
pub(crate) fn run_simulation(simulation: Cargo, arguments: &[String]) -> Result<(), String> {
    if arguments.iter().any(|argument| argument == POSTGRES) {
        return run_with_services(simulation, &[services::POSTGRES]);
    }
    simulation.run().map(|_| ())
}

/// Returns the call of the kill loop: of one consumer, or of a fleet.
pub(crate) fn torture(arguments: &[String]) -> Cargo {
    let (command, rest) = match arguments.split_first() {
        Some((first, rest)) if first == FLEET => (FLEET, rest),
        _ => ("drive", arguments),
    };
    Cargo::new("run --release -p lazaret-torture --")
        .with_arguments([command.to_owned()])
        .with_arguments(rest.iter().cloned())
}

/// Runs the kill loop. A fleet needs a broker; it starts its PostgreSQL itself.
pub(crate) fn run_torture(arguments: &[String]) -> Result<(), String> {
    let torture = torture(arguments);
    if arguments.first().is_some_and(|first| first == FLEET) {
        return run_with_services(torture, &[services::KAFKA]);
    }
    torture.run().map(|_| ())
}

/// Returns the call of the daemon's kill test, with more messages and kills than in a test run.
///
/// # Errors
/// When a number is missing or invalid.
pub(crate) fn story(arguments: &[String]) -> Result<Cargo, String> {
    let (mut messages, mut kills) = (10_000_u64, 50_u64);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let number = match word.as_str() {
            "--messages" => &mut messages,
            "--kills" => &mut kills,
            other => return Err(format!("unknown argument {other:?}: expected --messages N or --kills N")),
        };
        let value = words.next().ok_or_else(|| format!("{word} needs a number"))?;
        *number = value.parse().map_err(|_| format!("{word} needs a number, not {value:?}"))?;
    }
    let test = Cargo::new("test -p lazaret-daemon story -- --nocapture");
    Ok(test.with_variable("LAZARET_STORY", &format!("{messages},{kills}")))
}

/// Returns the call of a benchmark group; default: all.
pub(crate) fn benchmark(arguments: &[String]) -> Cargo {
    let (name, rest) = match arguments.split_first() {
        Some((name, rest)) if !name.starts_with('-') => (name.clone(), rest),
        _ => (ALL.to_owned(), arguments),
    };
    let program = match name.as_str() {
        ALL => "run --profile dist -p lazaret-bench --features kafka,mongodb,postgres,daemon,console --",
        KAFKA => "run --profile dist -p lazaret-bench --features kafka --",
        MONGODB => "run --profile dist -p lazaret-bench --features mongodb --",
        POSTGRES => "run --profile dist -p lazaret-bench --features postgres --",
        "daemon" => "run --profile dist -p lazaret-bench --features daemon --",
        "console" => "run --profile dist -p lazaret-bench --features console --",
        _ => "run --profile dist -p lazaret-bench --",
    };
    Cargo::new(program).with_arguments([name]).with_arguments(rest.to_vec())
}

/// Runs a benchmark group with the services that it needs.
pub(crate) fn run_benchmark(arguments: &[String]) -> Result<(), String> {
    let benchmark = benchmark(arguments);
    let name = arguments.first().filter(|name| !name.starts_with('-')).map_or(ALL, String::as_str);
    match services_of(name) {
        [] => benchmark.run().map(|_| ()),
        services => run_with_services(benchmark, services),
    }
}

/// Returns the services that a benchmark group needs.
fn services_of(group: &str) -> &'static [&'static str] {
    match group {
        ALL => &[services::KAFKA, services::MONGODB, services::POSTGRES],
        KAFKA => &[services::KAFKA],
        MONGODB => &[services::MONGODB],
        POSTGRES => &[services::POSTGRES],
        _ => &[],
    }
}

/// Runs a program with these services.
fn run_with_services(program: Cargo, needed: &[&str]) -> Result<(), String> {
    let services = Services::take_only(needed)?;
    let run = if services.missing.is_empty() {
        let variables = services.variables.iter();
        variables.fold(program, |run, (name, value)| run.with_variable(name, value)).run().map(|_| ())
    } else {
        Err(format!("services are unavailable:\n{}", services.missing.join("\n")))
    };
    // Released in any case; an earlier failure takes precedence.
    let released = services.release();
    run.and(released)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn arguments_are_forwarded_to_the_simulation() {
        let call = simulation(&words("--release --seeds 300")).unwrap();
        assert_eq!(call.to_string(), "cargo run --release -p lazaret-simulation --bin sim -- --seeds 300");
        let call = simulation(&words("--seeds 9 --store sqlite")).unwrap();
        let expected = "cargo run --release -p lazaret-store-sqlite --example simulation -- --seeds 9";
        assert_eq!(call.to_string(), expected);
        let call = simulation(&words("--store postgres --fleet")).unwrap();
        let expected = "cargo run --release -p lazaret-store-postgres --example simulation -- --fleet";
        assert_eq!(call.to_string(), expected);
        let call = simulation(&words("--mutation ForgetFences"));
        let expected = "cargo run --release -p lazaret-simulation --bin sim --features mutations -- \
            --mutation ForgetFences";
        assert_eq!(call.unwrap().to_string(), expected);
        assert!(simulation(&words("--store paper")).unwrap_err().contains("paper"));
        assert!(simulation(&words("--store")).is_err());
    }

    #[test]
    fn a_benchmark_group_gets_the_services_that_it_needs_and_no_others() {
        assert_eq!(services_of("mongodb"), ["MongoDB"]);
        assert_eq!(services_of("kafka"), ["Kafka"]);
        assert_eq!(services_of("postgres"), ["PostgreSQL"]);
        assert_eq!(services_of("all"), ["Kafka", "MongoDB", "PostgreSQL"]);
        for group in ["core", "embedded", "daemon", "console"] {
            assert!(services_of(group).is_empty(), "{group}");
        }
    }

    #[test]
    fn arguments_are_forwarded_to_the_kill_loop() {
        let call = torture(&words("--kills 15"));
        assert_eq!(call.to_string(), "cargo run --release -p lazaret-torture -- drive --kills 15");
        let call = torture(&words("fleet --processes 5"));
        assert_eq!(call.to_string(), "cargo run --release -p lazaret-torture -- fleet --processes 5");
    }

    #[test]
    fn the_kill_test_gets_its_numbers() {
        let call = |text: &str| story(&words(text)).map(|call| call.to_string());
        let expected = |numbers: &str| {
            Ok(format!("LAZARET_STORY={numbers:?} cargo test -p lazaret-daemon story -- --nocapture"))
        };
        assert_eq!(call(""), expected("10000,50"));
        assert_eq!(call("--kills 3 --messages 200"), expected("200,3"));
        assert!(call("--kills").is_err() && call("--kills x").is_err() && call("--fast").is_err());
    }

    #[test]
    fn the_default_group_is_all() {
        for (given, passed) in [("", "all"), ("--json results.json", "all --json results.json")] {
            let expected = format!(
                "cargo run --profile dist -p lazaret-bench --features kafka,mongodb,postgres,daemon,console -- {passed}"
            );
            assert_eq!(benchmark(&words(given)).to_string(), expected);
        }
        let table = [
            ("core --quick", "core --quick"),
            ("embedded --json results.json", "embedded --json results.json"),
        ];
        for (given, passed) in table {
            let expected = format!("cargo run --profile dist -p lazaret-bench -- {passed}");
            assert_eq!(benchmark(&words(given)).to_string(), expected);
        }
        let call = benchmark(&words("daemon --only http"));
        let expected = "cargo run --profile dist -p lazaret-bench --features daemon -- daemon --only http";
        assert_eq!(call.to_string(), expected);
        let expected = "cargo run --profile dist -p lazaret-bench --features kafka -- kafka --quick";
        assert_eq!(benchmark(&words("kafka --quick")).to_string(), expected);
        let expected =
            "cargo run --profile dist -p lazaret-bench --features postgres -- postgres --only drain";
        assert_eq!(benchmark(&words("postgres --only drain")).to_string(), expected);
    }
}
