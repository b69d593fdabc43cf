//! The daemon without the CLI: `lazaret-daemon run|check|doctor -c FILE [--until-idle] [--check]`, for tests and small images.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use lazaret_daemon::{Options, program};

const USAGE: &str = "usage: lazaret-daemon run|check|doctor -c FILE [--until-idle] [--check]";

struct Arguments {
    verb: String,
    file: PathBuf,
    until_idle: bool,
    check: bool,
}

fn main() -> ExitCode {
    let Some(asked) = arguments(std::env::args().skip(1)) else {
        print(USAGE);
        return ExitCode::from(2);
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            print(&format!("failed to start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let code = match asked.verb.as_str() {
        "run" if !asked.check => {
            let options = Options { until_idle: asked.until_idle, ..Options::default() };
            runtime.block_on(program::run(&asked.file, options))
        }
        "run" | "check" => program::check(&asked.file),
        "doctor" => runtime.block_on(program::doctor(&asked.file)),
        _ => {
            print(USAGE);
            2
        }
    };
    ExitCode::from(code)
}

/// Prints a line on standard error. A closed pipe is ignored.
fn print(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

fn arguments(mut given: impl Iterator<Item = String>) -> Option<Arguments> {
    let verb = given.next()?;
    let mut asked = Arguments { verb, file: PathBuf::from("lazaret.yaml"), until_idle: false, check: false };
    while let Some(word) = given.next() {
        match word.as_str() {
            "-c" => asked.file = given.next()?.into(),
            "--until-idle" => asked.until_idle = true,
            "--check" => asked.check = true,
            _ => return None,
        }
    }
    Some(asked)
}
