//! Starts workers, kills them, and goes on until everything has its end.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::check::{self, Findings};
use crate::plan::{Plan, mix};
use crate::worker::Files;

/// The code with which a worker ends when another life is needed.
pub const MORE: u8 = 3;
/// How often the driver looks at its worker.
const LOOK: Duration = Duration::from_millis(1);
/// One kill in so many comes shortly after the start, in the midst of opening and recovery.
const EARLY: u64 = 4;
/// Such a kill comes within this time.
const EARLY_WITHIN: Duration = Duration::from_millis(60);
/// How many bytes of log a message leaves at least: one attempt, without repetitions.
const BYTES_EACH: u64 = 40;
/// How long one life may take before something is wrong.
const PATIENCE: Duration = Duration::from_secs(300);
/// How many lives may end by themselves before something is wrong.
const MOST_ENDINGS: u32 = 100;

/// What to do.
#[derive(Clone, Debug)]
pub struct Torture {
    /// The program that plays the worker.
    pub program: PathBuf,
    /// The messages.
    pub plan: Plan,
    /// How often to kill.
    pub kills: u32,
}

/// What was done and found.
#[derive(Debug)]
pub struct Report {
    /// The seed, to do the same again.
    pub seed: u64,
    /// How often a worker was killed. Less than asked for when the work was done before.
    pub kills: u32,
    /// How often one was started.
    pub lives: u32,
    /// How long it took.
    pub took: Duration,
    /// What the log and the store say.
    pub findings: Findings,
}

impl Torture {
    /// Does it, in this folder.
    ///
    /// # Errors
    /// When a worker cannot be run, fails by itself or does not come to an end, and when its files cannot be read.
    pub fn run(&self, folder: &Path) -> Result<Report, String> {
        let (files, started) = (Files::in_folder(folder), Instant::now());
        let (mut kills, mut lives, mut endings) = (0, 0, 0);
        loop {
            lives += 1;
            let mut worker = self.start(lives, folder).map_err(|error| format!("no worker: {error}"))?;
            let moment = (kills < self.kills).then(|| self.moment(kills, &files));
            let ended = wait(&mut worker, moment, &files).map_err(|error| format!("worker: {error}"))?;
            match ended {
                None => {
                    kills += 1;
                    if kills.is_multiple_of(20) {
                        eprintln!("{kills} kills, {:.0} s", started.elapsed().as_secs_f64());
                    }
                }
                Some(status) if status.success() => break,
                Some(status) if status.code() == Some(i32::from(MORE)) && endings < MOST_ENDINGS => {
                    endings += 1;
                }
                Some(status) => return Err(format!("life {lives} ended with {status}")),
            }
        }
        let findings = check::check(self.plan, &files)?;
        Ok(Report { seed: self.plan.seed, kills, lives, took: started.elapsed(), findings })
    }

    fn start(&self, life: u32, folder: &Path) -> io::Result<Child> {
        let Plan { seed, messages, keys } = self.plan;
        Command::new(&self.program)
            .arg("work")
            .args(["--seed", &seed.to_string(), "--messages", &messages.to_string()])
            .args(["--keys", &keys.to_string(), "--life", &life.to_string()])
            .arg("--folder")
            .arg(folder)
            .spawn()
    }

    /// When to kill next: after some time, or after some work, so that kills are spread over all of it.
    fn moment(&self, kill: u32, files: &Files) -> Moment {
        let draw = mix(self.plan.seed ^ 0x0c11, u64::from(kill));
        if draw.is_multiple_of(EARLY) {
            let within = EARLY_WITHIN.as_micros() as u64;
            return Moment::At(Instant::now() + Duration::from_micros((draw >> 16) % within));
        }
        // What is left of the log is shared among the kills that are left, so that all of them find a living worker.
        let size = size(files);
        let left = (self.plan.messages * BYTES_EACH).saturating_sub(size);
        let share = left / u64::from(self.kills - kill);
        Moment::After(size + (draw >> 16) % (2 * share).max(1))
    }
}

enum Moment {
    /// At this time.
    At(Instant),
    /// When the log has so many bytes.
    After(u64),
}

fn size(files: &Files) -> u64 {
    std::fs::metadata(files.journal()).map_or(0, |log| log.len())
}

/// Waits for the worker, and kills it at the moment; `None` when it was killed.
fn wait(worker: &mut Child, moment: Option<Moment>, files: &Files) -> io::Result<Option<ExitStatus>> {
    let started = Instant::now();
    loop {
        if let Some(status) = worker.try_wait()? {
            return Ok(Some(status));
        }
        let overdue = started.elapsed() > PATIENCE;
        let now = match moment {
            Some(Moment::At(time)) => Instant::now() >= time,
            Some(Moment::After(bytes)) => size(files) >= bytes,
            None => false,
        };
        if now || overdue {
            worker.kill()?;
            worker.wait()?;
            let late = || io::Error::new(io::ErrorKind::TimedOut, "it did not come to its end");
            return if overdue { Err(late()) } else { Ok(None) };
        }
        std::thread::sleep(LOOK);
    }
}

impl Report {
    /// Whether every invariant held.
    pub fn is_clean(&self) -> bool {
        self.findings.violations.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64();
        writeln!(f, "seed {}: {} kills, {} lives, {seconds:.0} s", self.seed, self.kills, self.lives)?;
        write!(f, "{}", self.findings)
    }
}
