//! The command line of the simulation.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::{Mutation, Report, Scale};

const HELP: &str = "\
Run whole engines on a paused clock with injected faults, and check every invariant.

usage: sim [--seeds N] [--from S] [--seed S] [--fleet] [--mutation NAME] [--trace]

  --seeds N        the number of seeds; default: 2000
  --from S         the first seed; default: 1
  --seed S         one seed alone
  --fleet          up to 50 processes, each with its own clock and its own network
  --mutation NAME  add a known bug; needs a build with the feature `mutations`
  --trace          print the events of each run

Violations go to standard output, progress to standard error. The exit code is 1 when a seed failed.";

/// The number of seeds between two lines of progress.
const PROGRESS: u64 = 10_000;

/// Parses the program's arguments, runs the seeds and prints the violations: `--seeds N`, `--from S`, `--seed S`,
/// `--fleet`, `--mutation NAME`, `--trace`.
pub fn command(simulate: impl Fn(Scale, u64, Option<Mutation>) -> Report + Sync) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        print_line(HELP);
        return ExitCode::SUCCESS;
    }
    match Request::parse(&arguments) {
        Ok(request) => request.run(simulate),
        Err(error) => {
            eprintln!(
                "error: {error}\nusage: sim [--seeds N] [--from S] [--seed S] [--fleet] [--mutation NAME] [--trace]"
            );
            ExitCode::from(2)
        }
    }
}

/// The parsed arguments.
struct Request {
    from: u64,
    seeds: u64,
    scale: Scale,
    mutation: Option<Mutation>,
    trace: bool,
}

impl Request {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut request = Self { from: 1, seeds: 2_000, scale: Scale::Group, mutation: None, trace: false };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            if argument == "--trace" {
                request.trace = true;
                continue;
            }
            if argument == "--fleet" {
                request.scale = Scale::Fleet;
                continue;
            }
            let value = rest.next().ok_or_else(|| format!("{argument} needs a value"))?;
            let number =
                || value.parse::<u64>().map_err(|_| format!("{argument} needs a number, not {value:?}"));
            match argument.as_str() {
                "--seeds" => request.seeds = number()?,
                "--from" => request.from = number()?,
                "--seed" => (request.from, request.seeds) = (number()?, 1),
                "--mutation" => {
                    let known = Mutation::ALL.iter().find(|mutation| format!("{mutation:?}") == *value);
                    request.mutation = Some(*known.ok_or_else(|| unknown_mutation(value))?);
                }
                other => return Err(format!("unknown argument {other:?}")),
            }
        }
        Ok(request)
    }

    /// Runs the seeds on all cores.
    fn run(self, simulate: impl Fn(Scale, u64, Option<Mutation>) -> Report + Sync) -> ExitCode {
        let started = Instant::now();
        let next = AtomicU64::new(self.from);
        let end = self.from.saturating_add(self.seeds);
        let failed = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= end {
                            return;
                        }
                        let report = simulate(self.scale, seed, self.mutation);
                        if self.trace {
                            report.trace.iter().for_each(|line| print_line(line));
                        }
                        if !report.violations.is_empty() {
                            let mut failed = failed.lock().expect("no thread panics while it holds this");
                            if failed.is_empty() {
                                print_line(&report.to_string());
                            } else {
                                print_line(&format!("seed {seed}: {}", report.violations[0]));
                            }
                            failed.push(seed);
                        }
                        let done = seed - self.from + 1;
                        if done.is_multiple_of(PROGRESS) {
                            let seconds = started.elapsed().as_secs();
                            eprintln!("about {done} of {} seeds in {seconds} s", self.seeds);
                        }
                    }
                });
            }
        });
        let mut failed = failed.into_inner().expect("all threads have ended");
        failed.sort_unstable();
        let seconds = started.elapsed().as_secs_f64();
        print_line(&format!("{} seeds in {seconds:.1} s, {} failed {failed:?}", self.seeds, failed.len()));
        if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Prints a line. A reader that has seen enough, such as `head`, is no error: the exit code tells the result.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn unknown_mutation(name: &str) -> String {
    match Mutation::ALL {
        [] => format!("unknown mutation {name:?}: this build is without the feature `mutations`"),
        all => format!("unknown mutation {name:?}: expected one of {all:?}"),
    }
}
