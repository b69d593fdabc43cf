//! Several processes on one PostgreSQL, with Kafka or the inbox: killed, stopped for longer than their leases, each with a clock of its
//! own, while the server is killed and connections are cut.
//!
//! - [`worker`]: one process, the consumer.
//! - `processes`: starts, kills, stops and wakes them.
//! - `proxy`: the network before the server.
//! - `feed`: the sender.
//! - `witness`: notes in the database who takes and who writes what.
//! - `plant`: faults that the checks must find.
//! - `driver`: publishes, makes faults, waits for the end, and checks.

mod driver;
mod feed;
mod plant;
mod processes;
mod proxy;
mod witness;
pub mod worker;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use plant::Plant;

use crate::check::Findings;
use crate::plan::{Plan, mix};

/// How long anything may take that must happen. Found when it never does; a busy machine is not mistaken for that.
const DEADLINE: Duration = Duration::from_secs(600);
/// The kinds of faults.
const FAULTS: [Fault; 5] = [Fault::Kill, Fault::Stop, Fault::Crash, Fault::Restart, Fault::Cut];

/// Where the messages of a fleet come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stream {
    /// A topic, whose partitions the processes share.
    Kafka {
        /// The brokers.
        brokers: String,
        /// The topic.
        topic: String,
    },
    /// The inbox of the store, which one process reads at a time.
    Inbox,
}

/// The files of a run.
#[derive(Clone, Debug)]
struct Files {
    folder: PathBuf,
}

impl Files {
    fn in_folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    fn journal(&self) -> PathBuf {
        self.folder.join("journal.log")
    }

    /// The size of the log.
    fn progress(&self) -> u64 {
        std::fs::metadata(self.journal()).map_or(0, |log| log.len())
    }

    fn recorder(&self, place: u32) -> PathBuf {
        self.folder.join(format!("place-{place}.flight"))
    }

    /// The file that tells all processes to end.
    fn stop(&self) -> PathBuf {
        self.folder.join("stop")
    }
}

/// What happens to a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A process is killed, and started again.
    Kill,
    /// A process is stopped for longer than its leases, and goes on.
    Stop,
    /// The server is killed, and started again.
    Crash,
    /// The server is shut down, and started again: it ends sessions in the middle of a call, with a message.
    Restart,
    /// Connections are cut behind statements that were sent.
    Cut,
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// The executable of the processes.
    pub program: PathBuf,
    /// The messages.
    pub plan: Plan,
    /// The number of processes.
    pub processes: u32,
    /// The brokers of Kafka; `None` for the inbox.
    pub brokers: Option<String>,
    /// The number of faults: each kind in turn, in an order by the seed.
    pub faults: u32,
    /// A fault of the processes, which the checks must find. All others are stops then, which bring it out.
    pub plant: Option<Plant>,
}

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// The seed of the run.
    pub seed: u64,
    /// The number of started processes.
    pub processes: u32,
    /// The faults, in their order.
    pub faults: String,
    /// Connections that were cut behind a statement.
    pub cuts: u32,
    /// The duration of the run.
    pub took: Duration,
    /// What the checks found.
    pub findings: Findings,
}

impl Fleet {
    /// Returns whether the programs of PostgreSQL are installed.
    pub fn has_server() -> bool {
        lazaret_postgres_testkit::is_installed()
    }

    /// Runs in this folder.
    ///
    /// # Errors
    /// When a process or the server cannot be run, when a process fails by itself, and when the work does not end.
    pub fn run(&self, folder: &Path) -> Result<Report, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|error| format!("failed to start the runtime: {error}"))?;
        runtime.block_on(driver::run(self, folder))
    }

    /// The fault with this number: each kind once in a round of all of them, in an order by the seed.
    fn fault(&self, number: u32) -> Fault {
        if self.plant.is_some() {
            return Fault::Stop;
        }
        let mut kinds = FAULTS.to_vec();
        let count = FAULTS.len() as u32;
        let mut draw = mix(self.plan.seed ^ 0x0bad, u64::from(number / count)) >> 16;
        for _ in 0..number % count {
            kinds.remove((draw % kinds.len() as u64) as usize);
            draw /= 7;
        }
        kinds[(draw % kinds.len() as u64) as usize]
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
        let Self { seed, processes, faults, cuts, took, findings } = self;
        let seconds = took.as_secs_f64();
        writeln!(f, "seed {seed}: {processes} processes, faults {faults}, {cuts} cuts, {seconds:.0} s")?;
        write!(f, "{findings}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_of_faults_has_every_kind() {
        let mut orders = std::collections::HashSet::new();
        for seed in 0..20 {
            let plan = Plan { seed, messages: 1, keys: 1 };
            let (program, brokers) = (PathBuf::new(), None);
            let fleet = Fleet { program, plan, processes: 2, brokers, faults: 10, plant: None };
            for round in [0, 5] {
                let kinds: Vec<Fault> = (round..round + 5).map(|number| fleet.fault(number)).collect();
                assert!(FAULTS.iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
                orders.insert(format!("{kinds:?}"));
            }
        }
        assert!(orders.len() > 5, "{orders:?}");
    }
}
