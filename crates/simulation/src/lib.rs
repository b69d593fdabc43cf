//! The simulation: whole engines on a paused clock with injected faults, and every invariant checked.
//!
//! A seed decides everything: how many partitions, keys, members and components there are, what each handler does with
//! each message, which store calls are lost or late, where processes crash or stop, which members are expelled, when the stream is
//! recreated, and what operators do to letters, engines and operations. After that phase there are no more faults, and the engine has
//! to finish all work, operations included. The same seed gives the same run, so a seed that fails is a test case.
//!
//! ```
//! let report = lazaret_simulation::run(7, None);
//! assert!(report.violations.is_empty(), "{report}");
//! ```
//!
//! The feature `mutations` adds known bugs ([`Mutation`]) to the engine and to the memory store. It is for this crate's own
//! tests and off by default: cargo unifies the features of one build, so a build that has it gives it to every engine.
//!
//! - `plan`, `random`: a run, drawn from its seed.
//! - `world`, `history`: the state that outlives processes, and the record of every attempt.
//! - `chaos`, `connection`, `source`, `drift`: the phase with faults: crashes, lost answers, cuts, rebalances, operators, wrong clocks.
//! - `publish`: the messages. `recreate`: streams that are deleted and created again.
//! - `suspend`: processes that are stopped for longer than their session, and go on.
//! - `operators`: people who begin operations and approve, reject, pause, resume and cancel them, often when the store has to refuse it.
//!   `ledger`, `commanded`: what the store let each operation do, and the checks of its answers, counters, states and audit, and of what it
//!   leaves behind.
//! - `broker`, `filter`, `recorder`: the retry topic, the duplicate filter and the flight recorders, with their checks.
//! - `invariants`: the checks. `isolation`: a scenario of its own, for I3.
//! - `mutation`: the known bugs. `command`: the command line (`cargo xtask sim`).

mod block_on;
mod broker;
mod chaos;
mod command;
mod commanded;
mod connection;
mod drift;
mod filter;
mod history;
mod invariants;
mod isolation;
mod ledger;
mod mutation;
mod operators;
mod pauses;
mod plan;
mod publish;
mod random;
mod recorder;
mod recreate;
mod source;
mod suspend;
mod world;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lazaret_core::store::{Act, Actor, PauseScope, Store};
use lazaret_core::{Clock, ConsumerName, LetterState};
use lazaret_memory::MemoryStore;

use chaos::{Handles, Launcher, RunningEngine};
pub use command::command;
pub use mutation::Mutation;
use plan::Plan;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use world::{CONSUMER, World};

/// How long the engine has to finish all work after the last fault, in virtual time.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(7_200);
/// How many lines of the trace a report shows.
const TRACE_LINES: usize = 400;

/// The result of one run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed of the run.
    pub seed: u64,
    /// The violated invariants, in the order in which they were found.
    pub violations: Vec<String>,
    /// The events of the run, one a line, with virtual milliseconds.
    pub trace: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {} violations", self.seed, self.violations.len())?;
        for violation in &self.violations {
            writeln!(f, "  {violation}")?;
        }
        if !self.violations.is_empty() {
            let from = self.trace.len().saturating_sub(TRACE_LINES);
            for line in &self.trace[from..] {
                writeln!(f, "  | {line}")?;
            }
        }
        Ok(())
    }
}

/// How many processes take part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// One to three, on one machine: they share a clock.
    #[default]
    Group,
    /// Up to fifty, each with its own clock and its own network.
    Fleet,
}

/// Runs one seed on the memory store. Panics of simulated handlers are not printed.
pub fn run(seed: u64, mutation: Option<Mutation>) -> Report {
    run_at(Scale::Group, seed, mutation)
}

/// Runs one seed on the memory store at this scale.
pub fn run_at(scale: Scale, seed: u64, mutation: Option<Mutation>) -> Report {
    run_on(scale, seed, mutation, |clock| {
        let store = MemoryStore::new(clock);
        mutation::apply_to_store(mutation, &store);
        Arc::new(store)
    })
}

/// Runs one seed on another store, which must use the given clock. The store may have threads of its own: nothing else runs
/// during a call of it. Mutations of the memory store have no effect here.
pub fn run_on(
    scale: Scale,
    seed: u64,
    mutation: Option<Mutation>,
    store: impl FnOnce(Arc<dyn Clock>) -> Arc<dyn Store>,
) -> Report {
    silence_simulated_panics();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O can always be built");
    let plan = match scale {
        Scale::Group => Plan::draw(seed),
        Scale::Fleet => Plan::draw_fleet(seed),
    };
    runtime.block_on(simulate(plan, mutation, store))
}

async fn simulate(
    plan: Plan,
    mutation: Option<Mutation>,
    store: impl FnOnce(Arc<dyn Clock>) -> Arc<dyn Store>,
) -> Report {
    let world = Arc::new(World::new(plan, store));
    mutation::apply_to_log(mutation, &world.log);
    world.trace(|| format!("{:?}", world.plan));
    let launcher = Arc::new(Launcher::new(&world, mutation));
    let handles = Arc::new(Handles::default());
    let over = Arc::new(AtomicBool::new(false));
    let calm = CancellationToken::new();
    let end = Instant::now() + world.plan.chaos;
    let mut members = tokio::task::JoinSet::new();
    let publishing = tokio::spawn(publish::run(world.clone()));
    for place in 0..world.plan.members as u64 {
        members.spawn(chaos::member(world.clone(), launcher.clone(), place, handles.clone(), calm.clone()));
    }
    let mut faults = tokio::task::JoinSet::new();
    if world.plan.faults.outages {
        faults.spawn(chaos::outages(world.clone(), launcher.store_state.clone(), over.clone()));
    }
    if world.plan.operators {
        faults.spawn(chaos::operator(world.clone(), handles.clone(), over.clone()));
    }
    if world.plan.commands {
        faults.spawn(operators::run(world.clone(), over.clone()));
    }
    if world.plan.clock_steps {
        faults.spawn(chaos::set_clock_back(world.clone(), over.clone()));
    }
    publishing.await.expect("publishing does not panic");
    tokio::time::sleep_until(end).await;
    let mut staying = Vec::new();
    if !world.plan.stays {
        // They drain while there are faults.
        staying.extend(members.join_all().await.into_iter().flatten());
        members = tokio::task::JoinSet::new();
    }
    over.store(true, Ordering::Relaxed);
    faults.join_all().await;
    launcher.store_state.outage.store(false, Ordering::Relaxed);
    launcher.store_state.calm.store(true, Ordering::Relaxed);
    calm.cancel();
    staying.extend(members.join_all().await.into_iter().flatten());
    quiesce(&world, &launcher, staying).await;
    world.check_end().await;
    world.check_kept();
    world.check_ended_operations();
    world.check_released();
    world.pauses.clear();
    let (mut violations, trace) = world.findings();
    let seed = world.plan.seed;
    violations.extend(isolation::check(seed, mutation).await);
    Report { seed, violations, trace }
}

/// Runs the engines that are left, or a new one, without faults until all work is finished. An operator evicts letters
/// where limits are reached, resumes what is still paused, and approves what waits for it.
async fn quiesce(world: &Arc<World>, launcher: &Arc<Launcher>, mut engines: Vec<RunningEngine>) {
    world.trace(|| "no more faults".to_owned());
    let by = Actor::new("operator", "simulation", "to finish");
    if engines.is_empty() {
        engines.push(launcher.start(0));
    }
    let handle = engines[0].handle.clone();
    let quiescing = async {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            for pause in world.run(world.store.pauses(&ConsumerName::from(CONSUMER))).unwrap_or_default() {
                world.trace(|| format!("operator resumed {}", pause.scope));
                let _ = handle.resume(&pause.scope, &by).await;
            }
            if is_quiescent(world, &engines).await {
                return;
            }
            free_space(world, &by).await;
        }
    };
    if tokio::time::timeout(QUIESCE_TIMEOUT, quiescing).await.is_err() {
        world.violated(
            "I9",
            &format!("work left after {QUIESCE_TIMEOUT:?}: {}", remaining(world, &handle).await),
        );
    }
    for engine in engines {
        if engine.is_over() {
            world.violated("I10", &format!("process {} stopped by itself", engine.process.number));
        }
        engine.drain(world).await;
    }
}

async fn is_quiescent(world: &World, engines: &[RunningEngine]) -> bool {
    let over = engines.iter().all(RunningEngine::is_over);
    if !world.finish_operations() {
        return over;
    }
    for partition in 0..world.log.partitions() {
        let last = world.last_offset(partition);
        if last.is_some() && world.log.committed(partition) != last {
            return over;
        }
    }
    for queue in &world.queues {
        if world.run(world.store.next_due(queue)).unwrap_or_default().is_some() {
            return over;
        }
    }
    true
}

/// Evicts the dead heads of a queue with limits, as an operator does after an alert.
async fn free_space(world: &World, by: &Actor) {
    let limits = world.plan.options.dead_letter.as_ref().map(|options| options.limits);
    if limits.is_none_or(|limits| limits.max_sequences.is_none() && limits.max_sequence_size.is_none()) {
        return;
    }
    for (component, queue) in world.queues.iter().enumerate() {
        let Ok(page) = world.run(world.store.heads(queue, None, 1)) else { continue };
        for head in page.heads.iter().filter(|head| !head.state.is_automatic()) {
            if world.run(world.store.act(queue, head.id, Act::Evict, by)).is_ok() {
                world.trace(|| format!("operator evicted {} to free space", head.message.id));
                world.operator_acted(component, &world.name(&head.message), true, false);
            }
        }
    }
}

async fn remaining(world: &World, handle: &lazaret_engine::Handle) -> String {
    let mut text = String::new();
    for partition in 0..world.log.partitions() {
        let (committed, last) = (world.log.committed(partition), world.last_offset(partition));
        text.push_str(&format!("partition {partition} committed {committed:?} of {last:?}; "));
    }
    for queue in &world.queues {
        let counts = world.run(world.store.counts(queue)).unwrap_or_default();
        let due = world.run(world.store.next_due(queue)).unwrap_or_default();
        let (retrying, waiting) = (counts.of(LetterState::Retrying), counts.of(LetterState::Waiting));
        text.push_str(&format!("{queue}: {retrying} retrying, {waiting} waiting, next due {due:?}; "));
    }
    text.push_str(&world.unfinished_operations());
    let paused = world.run(world.store.pauses(&ConsumerName::from(CONSUMER))).unwrap_or_default();
    let paused = paused.iter().filter(|pause| pause.scope != PauseScope::Replay).count();
    let (held, breaker, stats) = (handle.pauses().len(), handle.breaker(), handle.stats());
    text.push_str(&format!("{paused} pauses; the engine: {held} pauses, breaker {breaker:?}, {stats:?}"));
    text
}

/// Keeps simulated panics from the terminal: the engine catches them, and they are part of the plan.
fn silence_simulated_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<&str>() != Some(&"simulated") {
                previous(info);
            }
        }));
    });
}
