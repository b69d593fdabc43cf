//! Starts and kills workers until every message is settled.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::check::{self, Findings};
use crate::journal::{Entry, Journal, Record};
use crate::plan::{Plan, mix};
use crate::worker::{Files, LEASE};

/// The exit code of a worker that has to be started again.
pub const RESTART: u8 = 3;
/// How often the driver polls its worker.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// One of this many kills comes shortly after the start, during opening and recovery.
const EARLY: u64 = 4;
/// The time within which such a kill comes.
const EARLY_WITHIN: Duration = Duration::from_millis(60);
/// The least number of log bytes of a message: one attempt, without repetitions.
const BYTES_EACH: u64 = 40;
/// The longest run of one process. One that stands still is found; one on a busy machine is not mistaken for it.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(1200);
/// How long a worker is stopped: its leases expire meanwhile.
const STALL: Duration = LEASE.saturating_add(Duration::from_millis(500));
/// How often a worker is stopped at most.
const MAX_STALLS: u32 = 20;
/// The time between two stops.
const STALL_INTERVAL: Duration = Duration::from_millis(150);
/// The most processes that may exit by themselves.
const MAX_EXITS: u32 = 100;

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Torture {
    /// The worker's executable.
    pub program: PathBuf,
    /// The messages.
    pub plan: Plan,
    /// The number of kills.
    pub kills: u32,
    /// How often the last worker, which is not killed, is stopped for longer than its leases last.
    pub stalls: u32,
}

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// The seed of the run.
    pub seed: u64,
    /// The number of kills. Fewer than requested when the work was done earlier.
    pub kills: u32,
    /// The number of started processes.
    pub processes: u32,
    /// The duration of the run.
    pub took: Duration,
    /// What the checks found.
    pub findings: Findings,
}

impl Torture {
    /// Runs in this folder.
    ///
    /// # Errors
    /// When a worker cannot be run, fails by itself or times out, and when its files cannot be read.
    pub fn run(&self, folder: &Path) -> Result<Report, String> {
        let (files, started) = (Files::in_folder(folder), Instant::now());
        let (mut kills, mut processes, mut exits) = (0, 0, 0);
        let mut stalls = self.stalls;
        loop {
            processes += 1;
            let mut worker = self.start(processes, folder).map_err(|error| format!("no worker: {error}"))?;
            let kill_time = (kills < self.kills).then(|| self.kill_time(kills, &files));
            let ended = match kill_time {
                None if stalls > 0 => stall(&mut worker, std::mem::take(&mut stalls), &files),
                _ => Ok(()),
            };
            let ended = ended.and_then(|()| wait(&mut worker, kill_time, &files));
            let ended = ended.map_err(|error| format!("worker: {error}"))?;
            match ended {
                None => {
                    kills += 1;
                    let journal = Journal::open(&files.journal(), 0);
                    let written = journal.and_then(|journal| journal.write_of(processes, Entry::Killed));
                    written.map_err(|error| format!("failed to write the log: {error}"))?;
                    if kills.is_multiple_of(20) {
                        eprintln!("{kills} kills, {:.0} s", started.elapsed().as_secs_f64());
                    }
                }
                Some(status) if status.success() => break,
                Some(status) if status.code() == Some(i32::from(RESTART)) && exits < MAX_EXITS => {
                    exits += 1;
                }
                Some(status) => return Err(format!("process {processes} ended with {status}")),
            }
        }
        let findings = check::check(self.plan, &files)?;
        Ok(Report { seed: self.plan.seed, kills, processes, took: started.elapsed(), findings })
    }

    fn start(&self, process: u32, folder: &Path) -> io::Result<Child> {
        let Plan { seed, messages, keys } = self.plan;
        Command::new(&self.program)
            .arg("work")
            .args(["--seed", &seed.to_string(), "--messages", &messages.to_string()])
            .args(["--keys", &keys.to_string(), "--process", &process.to_string()])
            .arg("--folder")
            .arg(folder)
            .spawn()
    }

    /// Draws the next kill: after some time, or after some work, so that kills are spread over the run.
    fn kill_time(&self, kill: u32, files: &Files) -> KillTime {
        let draw = mix(self.plan.seed ^ 0x0c11, u64::from(kill));
        if draw.is_multiple_of(EARLY) {
            let within = EARLY_WITHIN.as_micros() as u64;
            return KillTime::At(Instant::now() + Duration::from_micros((draw >> 16) % within));
        }
        // The rest of the log is divided among the remaining kills, so that each of them finds a running worker.
        let size = size(files);
        let left = (self.plan.messages * BYTES_EACH).saturating_sub(size);
        let share = left / u64::from(self.kills - kill);
        KillTime::After(size + (draw >> 16) % (2 * share).max(1))
    }
}

enum KillTime {
    /// At this time.
    At(Instant),
    /// When the log has this many bytes.
    After(u64),
}

fn size(files: &Files) -> u64 {
    std::fs::metadata(files.journal()).map_or(0, |log| log.len())
}

/// Stops the worker for longer than its leases last, and lets it go on, this many times, and then until it has lost a lease: on a busy
/// machine, a stop may find it without one.
fn stall(worker: &mut Child, times: u32, files: &Files) -> io::Result<()> {
    let process = Pid::from_child(worker);
    for stop in 0..MAX_STALLS.max(times) {
        if stop >= times && has_lost(files)? {
            return Ok(());
        }
        std::thread::sleep(STALL_INTERVAL);
        // The process exists until it is waited for.
        if worker.try_wait()?.is_some() {
            return Ok(());
        }
        kill_process(process, Signal::STOP)?;
        std::thread::sleep(STALL);
        kill_process(process, Signal::CONT)?;
    }
    Ok(())
}

/// Returns `true` if a lost lease is in the log. Its last line may be half written.
fn has_lost(files: &Files) -> io::Result<bool> {
    let log = std::fs::read_to_string(files.journal())?;
    let mut records = log.lines().filter_map(Record::parse);
    Ok(records.any(|record| matches!(record.entry, Entry::Lost { .. })))
}

/// Waits for the worker, and kills it at its time. Returns `None` when it was killed.
fn wait(worker: &mut Child, kill_time: Option<KillTime>, files: &Files) -> io::Result<Option<ExitStatus>> {
    let started = Instant::now();
    loop {
        if let Some(status) = worker.try_wait()? {
            return Ok(Some(status));
        }
        let overdue = started.elapsed() > PROCESS_TIMEOUT;
        let now = match kill_time {
            Some(KillTime::At(time)) => Instant::now() >= time,
            Some(KillTime::After(bytes)) => size(files) >= bytes,
            None => false,
        };
        if now || overdue {
            worker.kill()?;
            worker.wait()?;
            let late = || io::Error::new(io::ErrorKind::TimedOut, "the worker timed out");
            return if overdue { Err(late()) } else { Ok(None) };
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

impl Report {
    /// Returns `true` when every invariant held.
    pub fn is_clean(&self) -> bool {
        self.findings.violations.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64();
        writeln!(
            f,
            "seed {}: {} kills, {} processes, {seconds:.0} s",
            self.seed, self.kills, self.processes
        )?;
        write!(f, "{}", self.findings)
    }
}
