//! The simulation: whole engines on a paused clock, in a world that misbehaves, with every invariant checked.
//!
//! A seed decides everything: how many partitions, keys, members and components there are, what each handler does with
//! each message, which store calls are lost, late or answered into the void, where engines die, who is expelled, what
//! operators do meanwhile. Then the world behaves again, and everything must come to its end. The same seed gives the
//! same run, so a seed that fails is a test case.
//!
//! ```
//! let report = lazaret_testkit::sim::run(7, None);
//! assert!(report.violations.is_empty(), "{report}");
//! ```

mod chaos;
mod command;
mod plan;
mod random;
mod tap;
mod wait;
mod wire;
mod world;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lazaret_core::store::{Act, Actor, PauseScope, Store};
use lazaret_core::{Clock, ConsumerName, LetterState};
use lazaret_memory::MemoryStore;

use chaos::{Born, Handles, Nursery};
pub use command::command;
use plan::Plan;
use random::Random;
use world::{CONSUMER, World};

/// How long the world has to come to rest after the chaos, in virtual time.
const REST: Duration = Duration::from_secs(3_600);
/// How many lines of the trace a report shows.
const TRACE_LINES: usize = 400;

/// A bug put in on purpose, to prove that the simulation finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// The engine runs a message although its sequence is open in the store.
    SkipBlockedCheck,
    /// The engine settles a failed message before its letter is durable.
    CommitBeforeHandOff,
    /// The store accepts the writes of late owners.
    ForgetFences,
    /// The engine settles a failed message when the store refuses its letter.
    DropOnEnqueueError,
    /// The engine forgets after a restart how often a message was tried.
    ResetAttemptsOnRestart,
}

impl Mutation {
    /// Every mutation.
    pub const ALL: [Self; 5] = [
        Self::SkipBlockedCheck,
        Self::CommitBeforeHandOff,
        Self::ForgetFences,
        Self::DropOnEnqueueError,
        Self::ResetAttemptsOnRestart,
    ];

    fn of_engine(self) -> Option<lazaret_engine::mutation::Mutation> {
        use lazaret_engine::mutation::Mutation as Engine;
        match self {
            Self::SkipBlockedCheck => Some(Engine::SkipBlockedCheck),
            Self::CommitBeforeHandOff => Some(Engine::CommitBeforeHandOff),
            Self::ForgetFences => None,
            Self::DropOnEnqueueError => Some(Engine::DropOnEnqueueError),
            Self::ResetAttemptsOnRestart => Some(Engine::ResetAttemptsOnRestart),
        }
    }
}

/// What a run found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed, to run it again.
    pub seed: u64,
    /// The invariants that did not hold, in the order they were found.
    pub violations: Vec<String>,
    /// What happened, line by line, with virtual milliseconds.
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

/// Runs one seed on a store in memory. Panics of simulated handlers are kept from the terminal.
pub fn run(seed: u64, mutation: Option<Mutation>) -> Report {
    run_on(seed, mutation, |clock| {
        let store = MemoryStore::new(clock);
        if mutation == Some(Mutation::ForgetFences) {
            store.forget_fences();
        }
        Arc::new(store)
    })
}

/// Runs one seed on another store, which must go by the clock it is given. It may have threads of its own: nothing else
/// happens while it works. [`Mutation::ForgetFences`] is the store's and so does nothing here.
pub fn run_on(
    seed: u64,
    mutation: Option<Mutation>,
    store: impl FnOnce(Arc<dyn Clock>) -> Arc<dyn Store>,
) -> Report {
    quiet_panics();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O can always be built");
    runtime.block_on(live(seed, mutation, store))
}

async fn live(
    seed: u64,
    mutation: Option<Mutation>,
    store: impl FnOnce(Arc<dyn Clock>) -> Arc<dyn Store>,
) -> Report {
    let world = Arc::new(World::new(Plan::draw(seed), store));
    world.trace(|| format!("{:?}", world.plan));
    let nursery = Arc::new(Nursery::new(&world, mutation));
    let handles = Arc::new(Handles::default());
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(publish(world.clone()));
    for place in 0..world.plan.members as u64 {
        tasks.spawn(chaos::member(world.clone(), nursery.clone(), place, handles.clone()));
    }
    let mut disturbers = tokio::task::JoinSet::new();
    if world.plan.faults.outages {
        disturbers.spawn(chaos::outages(world.clone(), nursery.weather.clone(), over.clone()));
    }
    if world.plan.operators {
        disturbers.spawn(chaos::operator(world.clone(), handles.clone(), over.clone()));
    }
    tasks.join_all().await;
    over.store(true, Ordering::Relaxed);
    disturbers.join_all().await;
    nursery.weather.outage.store(false, Ordering::Relaxed);
    nursery.weather.calm.store(true, Ordering::Relaxed);
    come_to_rest(&world, &nursery).await;
    world.check_end().await;
    let (violations, trace) = world.verdict();
    Report { seed, violations, trace }
}

/// Publishes the messages of the plan over the time of the chaos, some in bursts.
async fn publish(world: Arc<World>) {
    let mut random = Random::new(world.plan.seed).fork(2);
    let pace = world.plan.chaos.as_millis() as u64 / world.plan.messages.max(1);
    for number in 0..world.plan.messages {
        let key = random.below(world.plan.keys);
        let partition = (key % u64::from(world.plan.partitions)) as u32;
        let gap = if random.chance(100) { random.between(1, 5) } else { 0 };
        world.publish(number, &format!("key-{key}"), partition, gap);
        if random.chance(300) {
            tokio::time::sleep(random.millis(0, pace * 5)).await;
        }
    }
    world.log.close();
}

/// One engine in a world that behaves: everything must come to its end. An operator makes room where limits are tight,
/// and lifts pauses that nobody lifted.
async fn come_to_rest(world: &Arc<World>, nursery: &Arc<Nursery>) {
    world.trace(|| "the world behaves from here on".to_owned());
    let by = Actor::new("operator", "simulation", "to finish");
    let born = nursery.bear();
    let handle = born.handle.clone();
    let resting = async {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            for pause in world.ask(world.store.pauses(&ConsumerName::from(CONSUMER))).unwrap_or_default() {
                world.trace(|| format!("operator lifts the pause of {}", pause.scope));
                let _ = handle.resume(&pause.scope, &by).await;
            }
            if is_at_rest(world, &born).await {
                return;
            }
            make_room(world, &by).await;
        }
    };
    if tokio::time::timeout(REST, resting).await.is_err() {
        world.violated("I9", &format!("no rest after {REST:?}: {}", what_is_left(world, &handle).await));
    }
    if born.is_over() {
        world.violated("I10", "the last engine ended by itself");
    }
    born.drain(world).await;
}

async fn is_at_rest(world: &World, born: &Born) -> bool {
    for partition in 0..world.plan.partitions {
        let last = world.last_offset(partition);
        if last.is_some() && world.log.committed(partition) != last {
            return born.is_over();
        }
    }
    for queue in &world.queues {
        if world.ask(world.store.next_due(queue)).unwrap_or_default().is_some() {
            return born.is_over();
        }
    }
    true
}

/// Evicts a dead head when a queue is at its limits, as an operator who is paged for that would.
async fn make_room(world: &World, by: &Actor) {
    let limits = world.plan.options.dead_letter.as_ref().map(|options| options.limits);
    if limits.is_none_or(|limits| limits.max_sequences.is_none() && limits.max_sequence_size.is_none()) {
        return;
    }
    for (component, queue) in world.queues.iter().enumerate() {
        let Ok(page) = world.ask(world.store.heads(queue, None, 1)) else { continue };
        for head in page.heads.iter().filter(|head| !head.state.is_automatic()) {
            if world.ask(world.store.act(queue, head.id, Act::Evict, by)).is_ok() {
                world.trace(|| format!("operator: evict {} to make room", head.message.id));
                world.acted(component, &head.message.id, true, false);
            }
        }
    }
}

async fn what_is_left(world: &World, handle: &lazaret_engine::Handle) -> String {
    let mut left = String::new();
    for partition in 0..world.plan.partitions {
        let (committed, last) = (world.log.committed(partition), world.last_offset(partition));
        left.push_str(&format!("partition {partition} committed {committed:?} of {last:?}; "));
    }
    for queue in &world.queues {
        let counts = world.ask(world.store.counts(queue)).unwrap_or_default();
        let due = world.ask(world.store.next_due(queue)).unwrap_or_default();
        let (retrying, waiting) = (counts.of(LetterState::Retrying), counts.of(LetterState::Waiting));
        left.push_str(&format!("{queue}: {retrying} retrying, {waiting} waiting, next due {due:?}; "));
    }
    let paused = world.ask(world.store.pauses(&ConsumerName::from(CONSUMER))).unwrap_or_default();
    let paused = paused.iter().filter(|pause| pause.scope != PauseScope::Replay).count();
    let (held, breaker, stats) = (handle.pauses().len(), handle.breaker(), handle.stats());
    left.push_str(&format!("{paused} pauses; the engine: {held} pauses, breaker {breaker:?}, {stats:?}"));
    left
}

/// Simulated panics are part of the plan: they are caught by the engine and need no words on the terminal.
fn quiet_panics() {
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
