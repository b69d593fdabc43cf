//! Lazaret's own build tasks: `cargo xtask COMMAND`.
//!
//! - `steps`: the checks of `cargo xtask test`.
//! - `process`: runs cargo and counts passed tests.
//! - `dependencies`, `licence`: checks of licences and banned crates.
//! - `forward`: commands that forward their arguments to a program of the workspace.
//! - `fuzz`: runs the fuzz targets.
//! - `fuzz_api`: sends generated requests to the API of a daemon, and looks for planted secrets in the responses.
//! - `mutants`: runs generated mutants.
//! - `services`: starts and stops the services that the tests need.
//! - `screenshots`: takes the screenshots of the documentation.
//! - `book`: generates, checks and builds the documentation.
//! - `dist`: packages the program.

mod book;
mod dependencies;
mod dist;
mod forward;
mod fuzz;
mod fuzz_api;
mod licence;
mod mutants;
mod process;
mod programs;
mod screenshots;
mod services;
mod steps;

use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
Lazaret's build tasks

usage: cargo xtask COMMAND [ARGUMENTS]

  test                       run every check and print the number of passed tests on the last line; starts and
                             stops the services of the tests, unless variables such as LAZARET_TEST_KAFKA name them
  ci                         same as test
  sim [ARGUMENTS]            run the simulation in release mode and forward all arguments, such as
                               --seeds N   run N seeds
                               --seed S    run this seed only
                               --from S    start with this seed
                               --fleet     up to 50 processes, each with its own clock and its own network
                               --store S   run on this store, memory, sqlite or postgres; default: memory
  torture [ARGUMENTS]        kill a consumer repeatedly and check its files; forward all arguments, such as
                               --kills N      kill N times; default: 200
                               --messages N   send N messages; default: 100000
                               --seed S       use this seed
  torture fleet [ARGUMENTS]  kill and stop processes that share a PostgreSQL, and crash it; such as
                               --processes N  run N processes; default: 5
                               --faults N     make N faults; default: 40
                               --source S     read kafka or inbox; default: kafka
  story [ARGUMENTS]          run messages through a daemon with a Python handler while killing it repeatedly
                               --messages N   send N messages; default: 10000
                               --kills N      kill N times; default: 50
  bench [GROUP] [ARGUMENTS]  run benchmarks as they are packaged (profile dist) and forward all arguments, such as
                               --json FILE   also write the results to a file
                               --quick       run fewer and shorter measurements
                               --only NAME   run one benchmark of the group
                             GROUP is core, embedded, kafka, mongodb, postgres, daemon, console or all (default);
                             starts the services that the group needs. The rows of mongodb that need a real server
                             run if LAZARET_TEST_MONGODB names a replica set; that of shards starts its own servers,
                             if LAZARET_TEST_MONGOD and LAZARET_TEST_MONGOS name the programs
  fuzz [ARGUMENTS]           run the fuzz targets of all parsers; a short form is part of the tests
                               --target T    run this target only
                               --seconds N   run each target for this long; default: 10
                               --count N     run this many inputs instead
                               --seed S      start with this seed; default: another one each time
  fuzz-api [ARGUMENTS]       start a daemon, plant secrets, send generated requests with several tokens, check the
                             responses against its OpenAPI document, and that no token sees a secret that it may not
                             see; installs Schemathesis below the target folder if it is missing
                               --examples N  send about this many requests per operation; default: 30
                               --seed S      use this seed; default: 1
                               --seconds N   fail if the requests of a token take longer; default: 1800
                               --path P      test this path only
  mutants [ARGUMENTS]        test a sample of generated mutants and print the share caught; installs cargo-mutants below
                             the target folder if it is missing
                               --package P   core, engine or store-sqlite; default: all
                               --file GLOB   mutate these files only
                               --count N     test about this many mutants; default: 40
                               --seed S      choose the sample; default: 1
  services                   start the services of the tests and print their variables; to use them in `cargo test`:
                               eval \"$(cargo xtask services)\"
  services stop              stop the services
  services another-kafka FOLDER
                             start another Kafka in a folder, with the data of a killed one if there is any, and print
                             its process id and address; for tests that kill their broker
  book                       regenerate the generated pages of the documentation and check all pages
  book --build               build the book in HTML; installs mdbook below the target folder if it is missing
  dist                       build and package the program in target/dist/packages: tarball, Debian package, debug
                             information and checksums
                               --binary FILE  package this program instead of building one
  screenshots                take the screenshots of the console below docs/images from a running demo, in both
                             themes; installs Chromium as root on Debian if it is missing
  deps                       check licences, banned crates and the dependencies of lazaret-core
  help                       print this help

exit codes: 0 success, 1 a check failed, 2 usage error
";

/// Why a task failed.
#[derive(Debug)]
enum Failed {
    /// Usage error.
    Usage(String),
    /// A check failed, or a program could not be run.
    Check(String),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed::Check(why)) => {
            eprintln!("{why}");
            ExitCode::from(1)
        }
        Err(Failed::Usage(why)) => {
            eprintln!("{why}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Failed> {
    let Some((command, rest)) = arguments.split_first() else {
        return Err(Failed::Usage("missing command".to_owned()));
    };
    if arguments.iter().any(|argument| matches!(&**argument, "--help" | "-h")) {
        print!("{HELP}");
        return Ok(());
    }
    match (&**command, rest) {
        ("help", _) => {
            print!("{HELP}");
            Ok(())
        }
        ("sim", _) => {
            let simulation = forward::simulation(rest).map_err(Failed::Usage)?;
            forward::run_simulation(simulation, rest).map_err(Failed::Check)
        }
        ("torture", _) => forward::run_torture(rest).map_err(Failed::Check),
        ("story", _) => {
            let story = forward::story(rest).map_err(Failed::Usage)?;
            story.run().map(|_| ()).map_err(Failed::Check)
        }
        ("fuzz", _) => fuzz::Fuzzing::parse(rest).map_err(Failed::Usage)?.run().map_err(Failed::Check),
        ("fuzz-api", _) => {
            fuzz_api::ApiFuzzing::parse(rest).map_err(Failed::Usage)?.run().map_err(Failed::Check)
        }
        ("mutants", _) => mutants::Sample::parse(rest).map_err(Failed::Usage)?.run().map_err(Failed::Check),
        ("bench", _) => forward::run_benchmark(rest).map_err(Failed::Check),
        ("dist", _) => dist::Dist::parse(rest).map_err(Failed::Usage)?.run().map_err(Failed::Check),
        ("screenshots", []) => screenshots::run().map_err(Failed::Check),
        ("test" | "ci", []) => steps::run().map_err(Failed::Check),
        ("services", []) => services::start().map_err(Failed::Check),
        ("services", [word]) if word == "stop" => services::stop().map_err(Failed::Check),
        ("services", [word, folder]) if word == "another-kafka" => {
            services::start_another_kafka(Path::new(folder)).map_err(Failed::Check)
        }
        ("services", _) => {
            Err(Failed::Usage("services accepts only stop and another-kafka FOLDER".to_owned()))
        }
        ("book", []) => book::write().map_err(Failed::Check),
        ("book", [word]) if word == "--build" => book::build().map_err(Failed::Check),
        ("book", _) => Err(Failed::Usage("book accepts only --build".to_owned())),
        ("deps", []) => dependencies::check().map_err(Failed::Check),
        ("test" | "ci" | "deps", _) => Err(Failed::Usage(format!("{command} takes no arguments"))),
        _ => Err(Failed::Usage(format!("unknown command {command:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage_error(arguments: &[&str]) -> String {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        match run(&arguments) {
            Err(Failed::Usage(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn invalid_arguments_are_usage_errors() {
        assert_eq!(usage_error(&["fly"]), r#"unknown command "fly""#);
        assert_eq!(usage_error(&["test", "--fast"]), "test takes no arguments");
        assert_eq!(usage_error(&["book", "--print"]), "book accepts only --build");
        assert!(usage_error(&["services", "start"]).starts_with("services accepts only stop"));
        assert_eq!(usage_error(&[]), "missing command");
    }

    #[test]
    fn help_is_no_error() {
        for arguments in [&["help"][..], &["--help"], &["sim", "--help"]] {
            let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
            assert!(run(&arguments).is_ok(), "{arguments:?}");
        }
    }
}
