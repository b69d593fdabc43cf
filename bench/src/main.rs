//! Lazaret's benchmarks.
//!
//! `lazaret-bench GROUP [--only NAME] [--json FILE] [--quick]` runs a group (`core`, `embedded`, `kafka`, `mongodb`, `postgres`, `daemon`, `console`, or
//! `all`), or one benchmark of it, in one process: every subject next to its baseline. All but the first two need the feature of that name.
//! It prints a table and writes JSON for scripts. Times depend on the machine, ratios much less, so targets are ratios where
//! possible. A missed target is reported and is not an error.

mod alloc;
#[cfg(feature = "console")]
mod console;
mod consumer;
mod core;
#[cfg(feature = "daemon")]
mod daemon;
mod due;
mod embedded;
#[cfg(any(feature = "mongodb", feature = "postgres"))]
mod fleet;
#[cfg(feature = "kafka")]
mod kafka;
mod letters;
#[cfg(feature = "mongodb")]
mod mongodb;
mod operation;
#[cfg(feature = "postgres")]
mod postgres;
mod source;
mod table;
mod zipf;

use std::path::PathBuf;
use std::process::ExitCode;

use table::{Row, Table};

/// The worker threads of the runtime, for subjects and baselines alike.
const WORKERS: usize = 2;

const USAGE: &str = "usage: lazaret-bench core|embedded|kafka|mongodb|postgres|daemon|console|all [--only NAME] [--json FILE] [--quick]";

/// How much work the benchmarks do.
#[derive(Clone, Copy)]
struct Scale {
    divisor: usize,
}

impl Scale {
    const FULL: Self = Self { divisor: 1 };
    const QUICK: Self = Self { divisor: 20 };

    /// Scales the count of a full run.
    fn count(self, full: usize) -> usize {
        full / self.divisor
    }
}

/// A group of benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Core,
    Embedded,
    #[cfg(feature = "kafka")]
    Kafka,
    #[cfg(feature = "mongodb")]
    Mongodb,
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "daemon")]
    Daemon,
    #[cfg(feature = "console")]
    Console,
}

impl Group {
    /// The groups of this build.
    const ALL: &[Self] = &[
        Self::Core,
        Self::Embedded,
        #[cfg(feature = "kafka")]
        Self::Kafka,
        #[cfg(feature = "mongodb")]
        Self::Mongodb,
        #[cfg(feature = "postgres")]
        Self::Postgres,
        #[cfg(feature = "daemon")]
        Self::Daemon,
        #[cfg(feature = "console")]
        Self::Console,
    ];

    fn named(name: &str) -> Option<&'static [Self]> {
        match name {
            "all" => Some(Self::ALL),
            "core" => Some(&[Self::Core]),
            "embedded" => Some(&[Self::Embedded]),
            #[cfg(feature = "kafka")]
            "kafka" => Some(&[Self::Kafka]),
            #[cfg(feature = "mongodb")]
            "mongodb" => Some(&[Self::Mongodb]),
            #[cfg(feature = "postgres")]
            "postgres" => Some(&[Self::Postgres]),
            #[cfg(feature = "daemon")]
            "daemon" => Some(&[Self::Daemon]),
            #[cfg(feature = "console")]
            "console" => Some(&[Self::Console]),
            _ => None,
        }
    }

    /// Returns the names of its benchmarks.
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Core => &core::NAMES,
            Self::Embedded => &embedded::NAMES,
            #[cfg(feature = "kafka")]
            Self::Kafka => &kafka::NAMES,
            #[cfg(feature = "mongodb")]
            Self::Mongodb => &mongodb::NAMES,
            #[cfg(feature = "postgres")]
            Self::Postgres => &postgres::NAMES,
            #[cfg(feature = "daemon")]
            Self::Daemon => &daemon::NAMES,
            #[cfg(feature = "console")]
            Self::Console => &console::NAMES,
        }
    }

    async fn run(self, scale: Scale, only: Option<&str>) -> Result<Vec<Row>, String> {
        match self {
            Self::Core => Ok(core::run(scale, only).await),
            Self::Embedded => embedded::run(scale, only).await,
            #[cfg(feature = "kafka")]
            Self::Kafka => kafka::run(scale, only).await,
            #[cfg(feature = "mongodb")]
            Self::Mongodb => Box::pin(mongodb::run(scale, only)).await,
            #[cfg(feature = "postgres")]
            Self::Postgres => Box::pin(postgres::run(scale, only)).await,
            #[cfg(feature = "daemon")]
            Self::Daemon => Box::pin(daemon::run(scale, only)).await,
            #[cfg(feature = "console")]
            Self::Console => Box::pin(console::run(scale, only)).await,
        }
    }
}

/// The parsed arguments.
struct Arguments {
    groups: Vec<Group>,
    only: Option<String>,
    json: Option<PathBuf>,
    scale: Scale,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let group = words.next().ok_or("missing group")?;
        let groups = Group::named(&group).ok_or_else(|| match group.as_str() {
            "kafka" | "mongodb" | "postgres" | "daemon" | "console" => {
                format!("built without the feature {group}: run `cargo xtask bench {group}`")
            }
            _ => format!("unknown group {group:?}"),
        })?;
        let mut arguments = Self { groups: groups.to_vec(), only: None, json: None, scale: Scale::FULL };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => arguments.scale = Scale::QUICK,
                "--only" => arguments.only = Some(words.next().ok_or("--only needs a name")?),
                "--json" => arguments.json = Some(words.next().ok_or("--json needs a file")?.into()),
                other => return Err(format!("unknown argument {other:?}")),
            }
        }
        if let Some(only) = &arguments.only {
            arguments.groups.retain(|group| group.names().contains(&only.as_str()));
            if arguments.groups.is_empty() {
                let names: Vec<&str> = groups.iter().flat_map(|group| group.names()).copied().collect();
                return Err(format!("unknown benchmark {only:?}: expected one of {}", names.join(", ")));
            }
        }
        Ok(arguments)
    }
}

fn main() -> ExitCode {
    #[cfg(feature = "daemon")]
    if let Some(child) = memory_child() {
        return child;
    }
    #[cfg(any(feature = "mongodb", feature = "postgres"))]
    if let Some(child) = fleet_child() {
        return child;
    }
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if cfg!(debug_assertions) {
        eprintln!("warning: built with debug assertions; build with --release for meaningful results");
    }
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("failed to start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut rows = Vec::new();
    for group in &arguments.groups {
        match runtime.block_on(group.run(arguments.scale, arguments.only.as_deref())) {
            Ok(more) => rows.extend(more),
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    let table = Table::new(rows);
    print!("{table}");
    if let Some(path) = arguments.json
        && let Err(error) = table.write_json(&path)
    {
        eprintln!("failed to write {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()
}

/// Runs as one process of a fleet, if it was started as one.
#[cfg(any(feature = "mongodb", feature = "postgres"))]
fn fleet_child() -> Option<ExitCode> {
    let mut words = std::env::args().skip(1);
    match words.next()?.as_str() {
        #[cfg(feature = "mongodb")]
        mongodb::fleet::CHILD => Some(runtime().ok()?.block_on(mongodb::fleet::child(words))),
        #[cfg(feature = "postgres")]
        postgres::fleet::CHILD => Some(runtime().ok()?.block_on(postgres::fleet::child(words))),
        _ => None,
    }
}

/// Runs as the measured process of the memory benchmark, if it was started as one.
#[cfg(feature = "daemon")]
fn memory_child() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    (words.next()? == daemon::memory::CHILD).then_some(())?;
    let (events, messages) = (words.next()?, words.next()?);
    Some(daemon::memory::child(events.as_ref(), messages.to_str()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn a_benchmark_is_found_in_its_group() {
        let arguments = parse("embedded --only restart --quick").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((arguments.groups, arguments.only.as_deref()), (vec![Group::Embedded], Some("restart")));
        let arguments = parse("all --only restart").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(arguments.groups, [Group::Embedded]);
        assert_eq!(parse("all").map(|arguments| arguments.groups).as_deref(), Ok(Group::ALL));
        assert!(parse("core --only restart").is_err_and(|error| error.contains("healthy")));
        assert!(parse("fly").is_err());
        assert!(parse("").is_err());
    }
}
