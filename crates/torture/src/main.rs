//! `torture drive`: kills a consumer repeatedly and checks the invariants. `torture work`: the consumer. `torture fleet`: the same with
//! several consumers on one PostgreSQL. `torture serve`: one of them.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lazaret_torture::driver::{RESTART, Torture};
use lazaret_torture::fleet::worker::Member;
use lazaret_torture::fleet::{Fleet, Plant, Stream};
use lazaret_torture::plan::Plan;
use lazaret_torture::worker::{self, Ended, Files};

const USAGE: &str = "\
usage: torture drive [--kills N] [--stalls N] [--messages N] [--keys N] [--seed S] [--folder FOLDER]
       torture work --folder FOLDER --process N [--messages N] [--keys N] [--seed S]
       torture fleet [--processes N] [--faults N] [--source kafka|inbox] [--messages N] [--keys N] [--seed S] [--folder FOLDER]
                     [--plant ignored-grants]
       torture serve --folder FOLDER --store DSN --process N --place N [--skew SECONDS] [--brokers B --topic T]
                     [--messages N] [--keys N] [--seed S] [--plant ignored-grants]";
/// The variable that names the broker of a fleet.
const BROKER: &str = "LAZARET_TEST_KAFKA";

/// The parsed command line.
struct Arguments {
    plan: Plan,
    kills: u32,
    stalls: u32,
    process: u32,
    folder: Option<PathBuf>,
    processes: u32,
    faults: u32,
    source: String,
    place: u32,
    skew_seconds: i64,
    store: String,
    stream: Stream,
    plant: Option<Plant>,
}

impl Arguments {
    fn parse(command: &str, mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (messages, keys) = if command == "fleet" { (40_000, 200) } else { (100_000, 1000) };
        let mut arguments = Self {
            plan: Plan { seed: fresh_seed(), messages, keys },
            kills: 200,
            stalls: 5,
            process: 1,
            folder: None,
            processes: 5,
            faults: 40,
            source: "kafka".to_owned(),
            place: 0,
            skew_seconds: 0,
            store: String::new(),
            stream: Stream::Inbox,
            plant: None,
        };
        let (mut brokers, mut topic) = (String::new(), None);
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
                "--processes" => arguments.processes = small()?.max(2),
                "--faults" => arguments.faults = small()?,
                "--source" if value == "kafka" || value == "inbox" => arguments.source = value,
                "--place" => arguments.place = small()?,
                "--skew" => {
                    arguments.skew_seconds =
                        value.parse().map_err(|_| format!("{name} needs seconds, not {value:?}"))?;
                }
                "--store" => arguments.store = value,
                "--brokers" => brokers = value,
                "--topic" => topic = Some(value),
                "--plant" => {
                    let plant = Plant::named(&value);
                    arguments.plant = Some(plant.ok_or_else(|| format!("there is no fault {value:?}"))?);
                }
                _ => return Err(format!("unknown argument {name:?}")),
            }
        }
        if let Some(topic) = topic {
            arguments.stream = Stream::Kafka { brokers, topic };
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
    let done = Arguments::parse(&command, words).and_then(|arguments| match (&*command, &arguments.folder) {
        ("drive", _) => Ok(drive(&arguments)),
        ("fleet", _) => fleet(&arguments),
        ("work", Some(folder)) => Ok(work(&arguments, folder)),
        ("serve", Some(folder)) => Ok(serve(&arguments, folder)),
        ("work" | "serve", None) => Err(format!("{command} needs a folder")),
        _ => Err(format!("there is no command {command:?}")),
    });
    done.unwrap_or_else(|error| {
        eprintln!("{error}\n{USAGE}");
        ExitCode::from(2)
    })
}

fn drive(arguments: &Arguments) -> ExitCode {
    let Arguments { plan, kills, stalls, .. } = *arguments;
    run(arguments, |program, folder| {
        let report = Torture { program, plan, kills, stalls }.run(folder)?;
        Ok((report.is_clean(), report))
    })
}

fn fleet(arguments: &Arguments) -> Result<ExitCode, String> {
    let Arguments { plan, processes, faults, plant, .. } = *arguments;
    let brokers = match &*arguments.source {
        "kafka" => Some(std::env::var(BROKER).map_err(|_| format!("{BROKER} is not set"))?),
        _ => None,
    };
    Ok(run(arguments, |program, folder| {
        let report = Fleet { program, plan, processes, brokers, faults, plant }.run(folder)?;
        Ok((report.is_clean(), report))
    }))
}

/// Runs in the given folder, or in a temporary one that is kept if something is wrong. Prints the report.
fn run<R: Display>(
    arguments: &Arguments,
    run: impl FnOnce(PathBuf, &Path) -> Result<(bool, R), String>,
) -> ExitCode {
    let driven = || {
        let program =
            std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
        eprintln!("seed {}", arguments.plan.seed);
        match &arguments.folder {
            Some(folder) => {
                let made = std::fs::create_dir_all(folder);
                made.map_err(|error| format!("failed to make {}: {error}", folder.display()))?;
                run(program, folder)
            }
            None => {
                let folder = tempfile::tempdir();
                let folder = folder.map_err(|error| format!("failed to make a temporary folder: {error}"))?;
                let done = run(program, folder.path());
                if !done.as_ref().is_ok_and(|(is_clean, _)| *is_clean) {
                    eprintln!("the files are kept in {}", folder.keep().display());
                }
                done
            }
        }
    };
    match driven() {
        Ok((is_clean, report)) => {
            print!("{report}");
            if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("{error}\nseed {}", arguments.plan.seed);
            ExitCode::FAILURE
        }
    }
}

fn serve(arguments: &Arguments, folder: &Path) -> ExitCode {
    let member = Member {
        plan: arguments.plan,
        place: arguments.place,
        process: arguments.process,
        skew_seconds: arguments.skew_seconds,
        stream: arguments.stream.clone(),
        dsn: arguments.store.clone(),
        plant: arguments.plant,
    };
    let worked = || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(member.work(folder))
    };
    match worked() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(RESTART),
        Err(error) => {
            eprintln!("process {}: {error}", arguments.process);
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
