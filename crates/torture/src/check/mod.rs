//! Checks the invariants after the last kill, against the log of attempts and the store.
//!
//! A kill may abort an attempt, and it may come between the handler's success and the commit: both are repeated by the
//! next process. So repetitions across processes are allowed. Within one process they are not, except for the attempt that was
//! dropped because its lease was lost: a process that stalls for longer than the lease may repeat it once for each loss. The note or letter of a failed
//! attempt is durable before the next one starts, so a later process never counts below an attempt that was started.
//!
//! In a fleet, processes that lost their partition or their lease and have not noticed it yet are late. What they still do is not counted
//! against the others: they can settle nothing, which the notes of the database show.

mod log;
mod ownership;
mod state;
mod writes;

use std::fmt;
use std::path::Path;

use lazaret_core::LetterState;
use lazaret_core::policy::RetryPolicy;
use lazaret_core::store::{Audit, Counts, LetterStore, StoreError, Triage};
use lazaret_store_sqlite::{Options, SqliteStore};

use crate::journal;
use crate::plan::{PARTITIONS, Plan};
use crate::worker::{self, Files};

pub(crate) use writes::{Act, Note};

/// The most violations that are kept.
const MOST: usize = 100;

/// The result of the checks.
#[derive(Debug, Default)]
pub struct Findings {
    /// The number of messages.
    pub messages: u64,
    /// Attempts that began.
    pub attempts: u64,
    /// Attempts that were repeated with the same number: aborted, or not yet durable.
    pub repeated: u64,
    /// Attempts that ended without success.
    pub failed: u64,
    /// Leases that were lost because a process stalled.
    pub lost: u64,
    /// Attempts of processes that others had taken over from, and that had not noticed it.
    pub late: u64,
    /// Messages that were handled.
    pub handled: u64,
    /// Crashes that dead and evicted letters are charged with.
    pub crashes: u64,
    /// Letters by state.
    pub letters: Counts,
    /// Entries of the audit.
    pub audit: u64,
    /// Writes to the tables of a fleet that only the owner of a partition, a sequence or an inbox may make.
    pub writes: u64,
    /// The violations, at most a hundred.
    pub violations: Vec<String>,
}

impl Findings {
    fn violated(&mut self, what: impl FnOnce() -> String) {
        if self.violations.len() < MOST {
            self.violations.push(what());
        }
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = [
            ("messages", self.messages),
            ("handled", self.handled),
            ("attempts", self.attempts),
            ("repeated", self.repeated),
            ("failed", self.failed),
            ("lost leases", self.lost),
            ("late attempts", self.late),
            ("charged crashes", self.crashes),
            ("audit entries", self.audit),
            ("owners' writes", self.writes),
            ("open sequences", self.letters.sequences),
        ];
        for (name, number) in numbers {
            writeln!(f, "{name:>22}  {number:>8}")?;
        }
        for state in LetterState::ALL.into_iter().filter(|state| self.letters.of(*state) > 0) {
            writeln!(f, "{:>22}  {:>8}", format!("letters {state}"), self.letters.of(state))?;
        }
        writeln!(f, "{:>22}  {:>8}", "violations", self.violations.len())?;
        for violation in &self.violations {
            writeln!(f, "VIOLATED {violation}")?;
        }
        Ok(())
    }
}

/// What is checked.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) plan: Plan,
    /// The number of partitions over which the keys are spread.
    pub(crate) partitions: u32,
    /// The delays between attempts.
    pub(crate) retry: RetryPolicy,
    /// Several processes consume at the same time.
    pub(crate) fleet: bool,
}

/// Checks the invariants against the log and the store of one consumer.
///
/// # Errors
/// When they cannot be read.
pub fn check(plan: Plan, files: &Files) -> Result<Findings, String> {
    let scope = Scope { plan, partitions: PARTITIONS, retry: worker::retry(), fleet: false };
    let store = SqliteStore::open(files.store(), Options::default()).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| format!("failed to start the runtime: {error}"))?;
    runtime.block_on(async {
        let mut findings = check_in(&scope, &files.journal(), &store, &[]).await?;
        state::check_positions(plan, &store, &mut findings).await.map_err(said)?;
        Ok(findings)
    })
}

/// Checks the log, a store, and what its tables saw.
pub(crate) async fn check_in<S: LetterStore + Triage + Audit>(
    scope: &Scope,
    journal: &Path,
    store: &S,
    notes: &[Note],
) -> Result<Findings, String> {
    let mut findings = Findings { messages: scope.plan.messages, ..Findings::default() };
    writes::check_writes(notes, &mut findings);
    let records = journal::read(journal).map_err(|error| format!("failed to read the log: {error}"))?;
    let records = records.map_err(|line| format!("line {line} of the log cannot be read"))?;
    let observed = log::check_log(scope, &records, &mut findings);
    state::check_store(scope.plan, &observed, store, &mut findings).await.map_err(said)?;
    Ok(findings)
}

fn said(error: StoreError) -> String {
    error.to_string()
}
