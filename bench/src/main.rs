//! Lazaret's benchmarks.
//!
//! `lazaret-bench core [--only NAME] [--json FILE] [--quick]` runs the group in one process, or one benchmark of it:
//! every subject beside its baseline. It prints a table and writes the JSON that scripts read. Times depend on the
//! machine, ratios much less: bars stand on ratios wherever the issue asks for one. A bar that is missed is said loudly
//! and is no error.

mod alloc;
mod core;
mod source;
mod table;
mod zipf;

use std::path::PathBuf;
use std::process::ExitCode;

use table::Table;

/// The worker threads of the runtime, for subjects and baselines alike.
const WORKERS: usize = 2;

const USAGE: &str = "usage: lazaret-bench core [--only NAME] [--json FILE] [--quick]";

/// How much work the benchmarks do.
#[derive(Clone, Copy)]
struct Scale {
    divisor: usize,
}

impl Scale {
    const FULL: Self = Self { divisor: 1 };
    const QUICK: Self = Self { divisor: 20 };

    /// The count of a full run, at this scale.
    fn count(self, full: usize) -> usize {
        full / self.divisor
    }
}

/// What the command line asks for.
struct Arguments {
    only: Option<String>,
    json: Option<PathBuf>,
    scale: Scale,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        match words.next().as_deref() {
            Some("core") => {}
            Some(other) => return Err(format!("there is no group {other:?}")),
            None => return Err("name a group".to_owned()),
        }
        let mut arguments = Self { only: None, json: None, scale: Scale::FULL };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => arguments.scale = Scale::QUICK,
                "--only" => arguments.only = Some(words.next().ok_or("--only needs a name")?),
                "--json" => arguments.json = Some(words.next().ok_or("--json needs a file")?.into()),
                other => return Err(format!("unknown argument {other:?}")),
            }
        }
        match &arguments.only {
            Some(name) if !core::NAMES.contains(&name.as_str()) => {
                Err(format!("there is no benchmark {name:?}, but {}", core::NAMES.join(", ")))
            }
            _ => Ok(arguments),
        }
    }
}

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if cfg!(debug_assertions) {
        eprintln!(
            "warning: built with debug assertions; build with --release for numbers that mean something"
        );
    }
    let runtime =
        match tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_time().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                eprintln!("failed to start the runtime: {error}");
                return ExitCode::FAILURE;
            }
        };
    let table = Table::new(runtime.block_on(core::run(arguments.scale, arguments.only.as_deref())));
    print!("{table}");
    if let Some(path) = arguments.json
        && let Err(error) = table.write_json(&path)
    {
        eprintln!("failed to write {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
