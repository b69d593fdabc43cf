//! Lazaret's own build tasks: `cargo xtask COMMAND`.
//!
//! - `steps`: what `cargo xtask test` runs, in order.
//! - `process`: runs a program and reads along.
//! - `dependencies`, `licence`: what the project may depend on.
//! - `pass_on`: the commands that hand their arguments to a program of the workspace.
//! - `services`: the real services that the tests need.
//! - `book`: the documentation.

mod book;
mod dependencies;
mod licence;
mod pass_on;
mod process;
mod services;
mod steps;

use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
Lazaret's build tasks

usage: cargo xtask COMMAND [ARGUMENTS]

  test                       run every check; the last line says how many tests passed; starts the services that
                             the tests need, unless LAZARET_TEST_KAFKA and the like name them, and stops them
  ci                         the same
  sim [ARGUMENTS]            run the simulation, built for release; it gets all arguments, such as
                               --seeds N   how many seeds
                               --seed S    this seed only
                               --from S    begin with this seed
                               --store S   on this store: memory unless given, or sqlite
  torture [ARGUMENTS]        kill a consumer over and over and check what it leaves behind; it gets all arguments
                               --kills N      how often, 200 unless given
                               --messages N   how many messages, 100000 unless given
                               --seed S       this seed
  story [ARGUMENTS]          run messages through a daemon with a handler in Python, and kill it over and over meanwhile
                               --messages N   how many messages, 10000 unless given
                               --kills N      how often, 50 unless given
  bench [NAME] [ARGUMENTS]   run a benchmark, built for release; it gets all arguments, such as
                               --json FILE   write the results there too
                               --quick       fewer and shorter measurements
                               --only NAME   only this one of the group
                             NAME is core, embedded, kafka or daemon, or all, which it is unless given;
                             services that they need are started
  services                   start the services that the tests need, and print the variables that name them; with
                               eval \"$(cargo xtask services)\"   `cargo test` uses them
  services stop              stop them
  services another-kafka FOLDER
                             start one more Kafka there, on the data of the last one if that was killed; for tests that
                             kill their broker; prints its number and its address
  book                       write the pages of the documentation that are made from the code, and check all pages
  book --build               build the book in HTML; installs mdbook below the target folder if it is not there
  deps                       check licences, banned crates, and what lazaret-core depends on
  help                       this text

exit codes: 0 all is well, 1 a check failed, 2 wrong usage
";

/// Why a task did not succeed.
#[derive(Debug)]
enum Failed {
    /// The command line makes no sense.
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
        return Err(Failed::Usage("a command is missing".to_owned()));
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
            let simulation = pass_on::simulation(rest).map_err(Failed::Usage)?;
            simulation.run().map(|_| ()).map_err(Failed::Check)
        }
        ("torture", _) => pass_on::torture(rest).run().map(|_| ()).map_err(Failed::Check),
        ("story", _) => {
            let story = pass_on::story(rest).map_err(Failed::Usage)?;
            story.run().map(|_| ()).map_err(Failed::Check)
        }
        ("bench", _) => pass_on::run_benchmark(rest).map_err(Failed::Check),
        ("test" | "ci", []) => steps::run().map_err(Failed::Check),
        ("services", []) => services::start().map_err(Failed::Check),
        ("services", [word]) if word == "stop" => services::stop().map_err(Failed::Check),
        ("services", [word, folder]) if word == "another-kafka" => {
            services::start_another_kafka(Path::new(folder)).map_err(Failed::Check)
        }
        ("services", _) => {
            Err(Failed::Usage("services takes no argument but stop, or another-kafka FOLDER".to_owned()))
        }
        ("book", []) => book::write().map_err(Failed::Check),
        ("book", [word]) if word == "--build" => book::build().map_err(Failed::Check),
        ("book", _) => Err(Failed::Usage("book takes no argument but --build".to_owned())),
        ("deps", []) => dependencies::check().map_err(Failed::Check),
        ("test" | "ci" | "deps", _) => Err(Failed::Usage(format!("{command} takes no arguments"))),
        _ => Err(Failed::Usage(format!("there is no command {command:?}"))),
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
    fn a_command_line_that_makes_no_sense_is_a_usage_error() {
        assert_eq!(usage_error(&["fly"]), r#"there is no command "fly""#);
        assert_eq!(usage_error(&["test", "--fast"]), "test takes no arguments");
        assert_eq!(usage_error(&["book", "--print"]), "book takes no argument but --build");
        assert!(usage_error(&["services", "start"]).starts_with("services takes no argument but stop"));
        assert_eq!(usage_error(&[]), "a command is missing");
    }

    #[test]
    fn help_is_no_error() {
        for arguments in [&["help"][..], &["--help"], &["sim", "--help"]] {
            let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
            assert!(run(&arguments).is_ok(), "{arguments:?}");
        }
    }
}
