//! `torture drive`: kills a consumer repeatedly and checks the invariants. `torture work`: the consumer.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lazaret_torture::driver::{RESTART, Torture};
use lazaret_torture::plan::Plan;
use lazaret_torture::worker::{self, Ended, Files};

const USAGE: &str = "\
usage: torture drive [--kills N] [--stalls N] [--messages N] [--keys N] [--seed S] [--folder FOLDER]
       torture work --folder FOLDER --process N [--messages N] [--keys N] [--seed S]";

/// The parsed command line.
struct Arguments {
    plan: Plan,
    kills: u32,
    stalls: u32,
    process: u32,
    folder: Option<PathBuf>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let plan = Plan { seed: fresh_seed(), messages: 100_000, keys: 1000 };
        let mut arguments = Self { plan, kills: 200, stalls: 5, process: 1, folder: None };
        while let Some(name) = words.next() {
            let value = words.next().ok_or_else(|| format!("{name} needs a value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{name} needs a number, not {value:?}"));
            let small = || u32::try_from(number()?).map_err(|_| format!("{value} is too large for {name}"));
            match name.as_str() {
                "--seed" => arguments.plan.seed = number()?,
                "--messages" => arguments.plan.messages = number()?,
                "--keys" => arguments.plan.keys = small()?.max(1),
                "--kills" => arguments.kills = small()?,
                "--stalls" => arguments.stalls = small()?,
                "--process" => arguments.process = small()?,
                "--folder" => arguments.folder = Some(value.into()),
                _ => return Err(format!("unknown argument {name:?}")),
            }
        }
        Ok(arguments)
    }
}

fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) >> 32
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let done = Arguments::parse(words).and_then(|arguments| match (&*command, &arguments.folder) {
        ("drive", _) => Ok(drive(&arguments)),
        ("work", Some(folder)) => Ok(work(&arguments, folder)),
        ("work", None) => Err("work needs a folder".to_owned()),
        _ => Err(format!("there is no command {command:?}")),
    });
    done.unwrap_or_else(|error| {
        eprintln!("{error}\n{USAGE}");
        ExitCode::from(2)
    })
}

fn drive(arguments: &Arguments) -> ExitCode {
    let driven = || {
        let program =
            std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
        let torture =
            Torture { program, plan: arguments.plan, kills: arguments.kills, stalls: arguments.stalls };
        eprintln!("seed {}", arguments.plan.seed);
        match &arguments.folder {
            Some(folder) => {
                let made = std::fs::create_dir_all(folder);
                made.map_err(|error| format!("failed to make {}: {error}", folder.display()))?;
                torture.run(folder)
            }
            None => {
                let folder = tempfile::tempdir();
                let folder = folder.map_err(|error| format!("failed to make a temporary folder: {error}"))?;
                let report = torture.run(folder.path());
                if !report.as_ref().is_ok_and(|report| report.is_clean()) {
                    eprintln!("the files are kept in {}", folder.keep().display());
                }
                report
            }
        }
    };
    match driven() {
        Ok(report) => {
            print!("{report}");
            if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("{error}\nseed {}", arguments.plan.seed);
            ExitCode::FAILURE
        }
    }
}

fn work(arguments: &Arguments, folder: &Path) -> ExitCode {
    let worked = || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
        runtime.block_on(worker::work(arguments.plan, arguments.process, &Files::in_folder(folder)))
    };
    match worked() {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::More) => ExitCode::from(RESTART),
        Err(error) => {
            eprintln!("process {}: {error}", arguments.process);
            ExitCode::FAILURE
        }
    }
}
