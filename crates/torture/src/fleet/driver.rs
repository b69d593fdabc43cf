//! Publishes messages, makes faults between them, waits until everything is settled, and checks.

use std::path::Path;
use std::time::{Duration, Instant};

use lazaret_core::store::{LetterStore, StoreError};
use lazaret_core::{Letter, LetterState};
use lazaret_postgres_testkit::{Cluster, DATABASE};
use lazaret_store_postgres::PostgresStore;
use tokio_util::sync::CancellationToken;

use super::feed::Feed;
use super::plant::ON_ITS_WAY;
use super::processes::Processes;
use super::proxy::Proxy;
use super::witness::Witness;
use super::worker::{self, LEASE};
use super::{DEADLINE, Fault, Files, Fleet, Report};
use crate::check::{Scope, check_in};
use crate::journal::{self, Entry, Journal, Record};
use crate::plan::{Plan, mix, number_of, queue};
use crate::worker::{dead_heads, operator};

/// How often the driver looks after the processes.
const TEND_INTERVAL: Duration = Duration::from_millis(10);
/// How often the driver looks whether everything is settled.
const SETTLED_INTERVAL: Duration = Duration::from_millis(200);
/// How often the operator closes dead letters.
const OPERATOR_INTERVAL: Duration = Duration::from_millis(100);
/// How long a process is stopped: for longer than its leases last, and than the session of its group.
const STALL: Duration = LEASE.saturating_add(Duration::from_millis(3500));
/// The attempts among which the process of a fault is drawn.
const RECENT: usize = 50;
/// How many connections are cut at once.
const CUTS: u32 = 6;
/// The least number of log bytes of a message: one attempt.
const LEAST_BYTES: u64 = 50;
const PAGE: usize = 200;

/// A run.
struct Run {
    plan: Plan,
    /// A fault is planted, which late hand-offs bring out.
    brings_out_plant: bool,
    files: Files,
    journal: Journal,
    /// Ends before the server.
    processes: Processes,
    feed: Feed,
    store: PostgresStore,
    proxy: Proxy,
    cluster: Cluster,
}

pub(super) async fn run(fleet: &Fleet, folder: &Path) -> Result<Report, String> {
    let (plan, started) = (fleet.plan, Instant::now());
    let mut run = Run::start(fleet, folder).await?;
    let over = CancellationToken::new();
    let operating = tokio::spawn(operate(plan, run.store.clone(), run.files.clone(), over.clone()));
    let mut faults = Vec::new();
    let share = |number: u32| plan.messages * u64::from(number) / u64::from(fleet.faults + 1);
    for number in 0..fleet.faults {
        let size = run.files.progress();
        run.feed.publish(plan, share(number)..share(number + 1)).await?;
        // Some of it is done, and some is not.
        let some = size + (share(number + 1) - share(number)) * LEAST_BYTES / 3;
        let is_some = async |run: &Run, _: bool| Ok(run.files.progress() > some);
        run.until("some messages", TEND_INTERVAL, is_some).await?;
        let fault = fleet.fault(number);
        run.make(fault, mix(plan.seed ^ 0xfa17, u64::from(number)) >> 16).await?;
        faults.push(format!("{fault:?}"));
    }
    run.feed.publish(plan, share(fleet.faults)..plan.messages).await?;
    run.until("the end", SETTLED_INTERVAL, async |run: &Run, all_awake: bool| {
        // While the server is away, nothing is known.
        Ok(all_awake && is_settled(plan, &run.store).await.unwrap_or(false) && run.feed.is_consumed().await?)
    })
    .await?;
    over.cancel();
    operating.await.map_err(|error| error.to_string())?;
    run.end()?;
    let retry = worker::retry();
    let scope = Scope { plan, partitions: run.feed.partitions(), retry, fleet: true };
    let notes = Witness::connect(&run.cluster.dsn()).await?.notes().await?;
    let findings = check_in(&scope, &run.files.journal(), &run.store, &notes).await?;
    let (processes, faults) = (run.processes.started, faults.join(" "));
    Ok(Report {
        seed: plan.seed,
        processes,
        faults,
        cuts: run.proxy.cuts(),
        took: started.elapsed(),
        findings,
    })
}

impl Run {
    async fn start(fleet: &Fleet, folder: &Path) -> Result<Self, String> {
        let (plan, files) = (fleet.plan, Files::in_folder(folder));
        let journal = Journal::open(&files.journal(), 0);
        let journal = journal.map_err(|error| format!("failed to make the log: {error}"))?;
        let cluster = Cluster::at_socket()?;
        let proxy = Proxy::start(cluster.socket()).await.map_err(|error| format!("no proxy: {error}"))?;
        let store = worker::open_store(&cluster.dsn()).await.map_err(|error| error.to_string())?;
        Witness::connect(&cluster.dsn()).await?.install().await?;
        let feed = Feed::open(fleet.brokers.as_deref(), &store).await;
        let (stream, of_proxy) = (feed.stream(), format!("host=127.0.0.1 port={} {DATABASE}", proxy.port));
        let processes = Processes::start(fleet, folder, stream, of_proxy)?;
        let brings_out_plant = fleet.plant.is_some();
        Ok(Self { plan, brings_out_plant, files, journal, processes, feed, store, proxy, cluster })
    }

    async fn make(&mut self, fault: Fault, draw: u64) -> Result<(), String> {
        match fault {
            Fault::Kill => self.processes.kill(self.active(draw), &self.journal),
            Fault::Stop if self.brings_out_plant => self.hand_over().await,
            Fault::Stop => {
                let process = self.active(draw);
                // Not while another one is stopped, if that leaves none.
                while !self.processes.stop(process, STALL, &self.journal)? {
                    self.processes.tend(&self.journal)?;
                    tokio::time::sleep(TEND_INTERVAL).await;
                }
                Ok(())
            }
            Fault::Crash => {
                self.cluster.crash()?;
                self.cluster.run()
            }
            Fault::Restart => {
                self.cluster.shut_down()?;
                self.cluster.run()
            }
            Fault::Cut => {
                self.proxy.cut(CUTS);
                Ok(())
            }
        }
    }

    /// The process that made one of the last attempts: those that do most are struck most.
    fn active(&self, draw: u64) -> u32 {
        let records = self.records();
        let attempts = records.iter().rev().filter(|record| matches!(record.entry, Entry::Begin { .. }));
        let processes: Vec<u32> = attempts.take(RECENT).map(|record| record.process).collect();
        processes.get(draw as usize % processes.len().max(1)).copied().unwrap_or_default()
    }

    /// Stops a process that reads until another one has a grant of its partition, and no longer: what it has on its way then comes too
    /// late, and before the other one sends the same.
    async fn hand_over(&mut self) -> Result<(), String> {
        let witness = Witness::connect(&self.cluster.dsn()).await?;
        let reader = self.reader();
        self.until("a hand-off", TEND_INTERVAL, async |run: &Self, _: bool| Ok(run.hands_off(reader)))
            .await?;
        let before = witness.grants_of_others(reader).await?;
        self.processes.stop(reader, DEADLINE, &self.journal)?;
        self.until("another reader", TEND_INTERVAL, async |_: &Self, _: bool| {
            Ok(witness.grants_of_others(reader).await? > before)
        })
        .await?;
        self.processes.wake();
        self.processes.tend(&self.journal).map(|_| ())
    }

    /// The process that got a partition last.
    fn reader(&self) -> u32 {
        let is_assigned = |record: &&Record| matches!(record.entry, Entry::Assigned { .. });
        self.records().iter().rev().find(is_assigned).map_or(0, |record| record.process)
    }

    /// Returns `true` if a message has just failed in this process for the second time: its letter is on its way to the store.
    fn hands_off(&self, process: u32) -> bool {
        let since = journal::now().saturating_sub(ON_ITS_WAY / 2);
        self.records().iter().any(|record| {
            let failed_twice = matches!(record.entry, Entry::End { attempt: 2, handled: false, .. });
            record.process == process && record.at > since && failed_twice
        })
    }

    /// The log so far.
    fn records(&self) -> Vec<Record> {
        journal::read(&self.files.journal()).ok().and_then(Result::ok).unwrap_or_default()
    }

    /// Looks after the processes until this holds. It is told whether all of them are awake.
    async fn until(
        &mut self,
        what: &str,
        interval: Duration,
        holds: impl AsyncFn(&Self, bool) -> Result<bool, String>,
    ) -> Result<(), String> {
        let started = Instant::now();
        loop {
            let all_awake = self.processes.tend(&self.journal)?;
            if holds(&*self, all_awake).await? {
                return Ok(());
            }
            if started.elapsed() > DEADLINE {
                return Err(format!("waited in vain for {what}: {}", self.left().await));
            }
            tokio::time::sleep(interval).await;
        }
    }

    /// What is not settled yet.
    async fn left(&self) -> String {
        let counts = self.store.counts(&queue()).await;
        let consumed = self.feed.is_consumed().await;
        format!(
            "{} of {} messages, {counts:?}, consumed: {consumed:?}",
            self.files.progress(),
            self.plan.messages
        )
    }

    /// Tells all processes to end, and waits for them.
    fn end(&mut self) -> Result<(), String> {
        std::fs::write(self.files.stop(), "").map_err(|error| format!("failed to end the run: {error}"))?;
        self.processes.wait(Instant::now() + DEADLINE)
    }
}

/// Returns `true` when nothing is left but dead letters that are kept, and what waits behind them.
async fn is_settled(plan: Plan, store: &PostgresStore) -> Result<bool, StoreError> {
    let mut after = None;
    loop {
        let page = store.heads(&queue(), after.as_deref(), PAGE).await?;
        let is_kept = |head: &Letter| {
            let key = number_of(&head.message.id).map(|number| plan.key(number));
            head.state == LetterState::Dead && key.is_some_and(|key| plan.keeps_dead_letters(key))
        };
        match page.next {
            _ if !page.heads.iter().all(is_kept) => return Ok(false),
            Some(next) => after = Some(next),
            None => return Ok(true),
        }
    }
}

/// Closes dead letters until the run is over, as a person does who has another connection than the processes. What the server does not
/// take, or what has changed meanwhile, is tried again.
async fn operate(plan: Plan, store: PostgresStore, files: Files, over: CancellationToken) {
    let journal = Journal::open(&files.journal(), 0).expect("the log exists");
    while !over.is_cancelled() {
        for (message, letter, act) in dead_heads(plan, &store).await.unwrap_or_default() {
            journal.write(Entry::Close { message }).expect("the log is writable");
            let _ = store.act(&queue(), letter, act, &operator()).await;
        }
        tokio::time::sleep(OPERATOR_INTERVAL).await;
    }
}
