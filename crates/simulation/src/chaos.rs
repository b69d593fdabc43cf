//! The phase with faults: processes that crash and restart, members that join and leave, outages, and operators.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::SignedDuration;
use lazaret_core::handler::{Context, Delivery, FromDelivery, Handle as Handler, HandlerFuture};
use lazaret_core::store::{Act, Action, Actor, PauseScope, RolloutPolicy, Store};
use lazaret_core::{HandlerError, Reason, Verdict};
use lazaret_engine::{Consumer, DedupeOptions, Handle};
use lazaret_testkit::RecorderFile;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::broker::BrokerConnection;
use crate::connection::{Connection, StoreState};
use crate::drift;
use crate::filter::{self, FilterConnection};
use crate::mutation::{self, Mutation};
use crate::plan::{Script, refusal};
use crate::random::Random;
use crate::source::CheckedSource;
use crate::suspend::Suspensions;
use crate::world::{CONSUMER, Process, World};

/// What a handler may ask for in a replay, whatever its script.
const REPLAY_VERDICTS: [Verdict; 5] =
    [Verdict::DeadLetter, Verdict::Park, Verdict::Quarantine, Verdict::Skip, Verdict::Duplicate];

/// A handler that follows the script of each message.
#[derive(Clone)]
struct Scripted {
    world: Arc<World>,
    process: Process,
    component: usize,
    store_state: Arc<StoreState>,
}

impl Handler for Scripted {
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        let this = self.clone();
        Box::pin(async move { this.follow(delivery).await })
    }
}

impl Scripted {
    async fn follow(&self, delivery: Delivery) -> Result<(), HandlerError> {
        let message = delivery.message();
        let letter = delivery.letter();
        let replay = delivery.replay().is_some();
        let attempt =
            self.world.begin(&self.process, self.component, message, letter.as_deref(), replay).await;
        if let (Some(operation), Some(letter)) = (delivery.replay(), &letter) {
            self.world.check_sent(&self.process, &operation, letter);
        }
        let script = self.world.script(message, self.component);
        let tries = self.world.attempts_so_far(self.component, message);
        let mut random = Random::new(self.world.plan.seed).fork(9_000_000 + attempt.number());
        match random.below(6) {
            0 => tokio::time::sleep(random.millis(1, 800)).await,
            1 => tokio::task::yield_now().await,
            _ => {}
        }
        self.crash_point(&mut random).await;
        if replay && script != Script::Fine && random.chance(250) {
            let verdict = *random.pick(&REPLAY_VERDICTS);
            if verdict == Verdict::Skip {
                self.world.skipped(self.component, message);
            }
            attempt.end(false, verdict == Verdict::Duplicate);
            return Err(refusal(verdict));
        }
        match script {
            Script::Fine => {}
            Script::FailsFirst(times) if tries > times || replay => {}
            Script::FailsFirst(_) | Script::FailsAlways => {
                attempt.end(false, false);
                return Err(HandlerError::msg("not yet").reason(Reason::DEPENDENCY_UNAVAILABLE));
            }
            Script::Refuses(verdict) => {
                attempt.end(false, matches!(verdict, Verdict::Duplicate));
                return Err(refusal(verdict));
            }
            Script::Panics => {
                attempt.end(false, false);
                panic!("simulated");
            }
            Script::Hangs => {
                std::future::pending::<()>().await;
            }
            Script::SendsToDlq => {
                let context = Context::from_delivery(&delivery)?;
                // The letter holds the message from here on, so the attempt is over.
                attempt.end(false, false);
                let sent = context.send_to_dlq("sent to the dead letters").await;
                return sent
                    .map_err(|error| HandlerError::from(error).reason(Reason::DEPENDENCY_UNAVAILABLE));
            }
        }
        attempt.end(true, false);
        Ok(())
    }

    /// Crashes the process here, by chance.
    async fn crash_point(&self, random: &mut Random) {
        if !self.store_state.calm.load(Ordering::Relaxed) && random.chance(self.world.plan.crash_points) {
            self.world.trace(|| format!("process {} crashed in a handler", self.process.number));
            self.process.crash.cancel();
            std::future::pending::<()>().await;
        }
    }
}

/// Starts engine processes.
pub(crate) struct Launcher {
    world: Arc<World>,
    pub(crate) store_state: Arc<StoreState>,
    next_process: AtomicU64,
    mutation: Option<Mutation>,
    /// The flight recorder of each place.
    recorders: Mutex<BTreeMap<u64, RecorderFile>>,
}

/// A running engine.
pub(crate) struct RunningEngine {
    pub(crate) process: Process,
    pub(crate) handle: Handle,
    pub(crate) drain: CancellationToken,
    recorder: Option<RecorderFile>,
    task: JoinHandle<Result<lazaret_engine::Stats, lazaret_engine::Error>>,
}

impl Launcher {
    pub(crate) fn new(world: &Arc<World>, mutation: Option<Mutation>) -> Self {
        Self {
            world: world.clone(),
            store_state: Arc::default(),
            next_process: AtomicU64::new(1),
            mutation,
            recorders: Mutex::default(),
        }
    }

    /// Starts a process at this place.
    pub(crate) fn start(&self, place: u64) -> RunningEngine {
        let number = self.next_process.fetch_add(1, Ordering::Relaxed);
        let source = self.world.log.join().with_batch(16);
        let process = Process::new(number, source.member());
        let mut options = self.world.plan.options.clone();
        options.instance = format!("process-{number}");
        options.suspension = process.suspension.clone();
        options.seed = (self.world.plan.seed ^ number << 32) | 1;
        let connection = Arc::new(Connection::new(&self.world, process.clone(), self.store_state.clone()));
        if self.world.plan.dedupe {
            let filter = FilterConnection { world: self.world.clone(), connection: connection.clone() };
            options.dedupe = Some(DedupeOptions { filter: Arc::new(filter), window: filter::WINDOW });
        }
        if self.world.plan.topics {
            let broker = BrokerConnection { world: self.world.clone(), connection: connection.clone() };
            options.relay = Some(Arc::new(broker));
        }
        let recorder = self.world.plan.recorder.then(|| {
            let mut recorders = self.recorders.lock().unwrap_or_else(PoisonError::into_inner);
            recorders.entry(place).or_default().clone()
        });
        if let Some(file) = &recorder {
            let open = file.open();
            self.world.isolation.started(number, file, &file.suspects());
            options.flight_recorder = Some(Arc::new(open));
        }
        let connection: Arc<dyn Store> = connection;
        let mut builder = Consumer::builder(CONSUMER)
            .source(CheckedSource::new(&self.world, process.clone(), source))
            .store(connection)
            .clock(drift::clock_of(&self.world, number))
            .options(mutation::engine_options(self.mutation, options));
        for (component, queue) in self.world.queues.iter().enumerate() {
            let handler = Scripted {
                world: self.world.clone(),
                process: process.clone(),
                component,
                store_state: self.store_state.clone(),
            };
            builder = builder.component(queue.component(), handler);
        }
        let consumer = builder.build().expect("the plan's options are valid");
        let handle = consumer.handle();
        let drain = CancellationToken::new();
        self.world.pauses.started(number, handle.clone());
        let task = tokio::spawn(process.suspension.clone().hold(consumer.run(drain.clone())));
        self.world.trace(|| format!("process {number} started as {}", process.member));
        RunningEngine { process, handle, drain, task, recorder }
    }
}

impl RunningEngine {
    /// Ends the process at once: nothing more runs.
    pub(crate) async fn kill(self, world: &World) {
        world.trace(|| format!("process {} killed", self.process.number));
        if let Some(recorder) = &self.recorder {
            recorder.crashed();
        }
        world.crashed_with(self.process.number);
        // Requests of operators run in it, too.
        self.process.crash.cancel();
        self.task.abort();
        let _ = self.task.await;
        world.process_ended(self.process.number);
    }

    /// Shuts the engine down gracefully.
    pub(crate) async fn drain(mut self, world: &World) {
        world.trace(|| format!("process {} drains", self.process.number));
        world.leaving(self.process.number, None);
        world.history().draining.insert(self.process.number);
        self.drain.cancel();
        let crash = self.process.crash.clone();
        tokio::select! {
            biased;
            () = crash.cancelled() => return self.kill(world).await,
            end = &mut self.task => {
                if let Ok(Err(error)) = end {
                    world.violated("I10", &format!("process {} ended with: {error}", self.process.number));
                }
            }
        }
        self.process.crash.cancel();
        world.process_lost(self.process.number, Some(&[]));
        world.process_ended(self.process.number);
    }

    /// Returns `true` when the engine has stopped by itself.
    pub(crate) fn is_over(&self) -> bool {
        self.task.is_finished()
    }
}

/// One member of the group: an engine that crashes, restarts, leaves and joins again until the phase ends. Returns the
/// engine that runs then, if the plan is that it stays.
pub(crate) async fn member(
    world: Arc<World>,
    launcher: Arc<Launcher>,
    place: u64,
    handles: Arc<Handles>,
    calm: CancellationToken,
) -> Option<RunningEngine> {
    let mut random = Random::new(world.plan.seed).fork(100 + place);
    let mut suspensions = Suspensions::of(&world, place);
    let end = Instant::now() + world.plan.chaos;
    while Instant::now() < end {
        let engine = launcher.start(place);
        handles.put(place, (engine.handle.clone(), engine.process.clone()));
        let uptime = if world.plan.rebalances { random.millis(300, 12_000) } else { world.plan.chaos };
        let crash = engine.process.crash.clone();
        tokio::select! {
            biased;
            () = crash.cancelled() => engine.kill(&world).await,
            () = tokio::time::sleep_until(end) => {
                if world.plan.stays {
                    return stay(&world, engine, &calm).await;
                }
                engine.drain(&world).await;
            }
            () = suspensions.begin(&world, &engine) => {
                suspensions.end(&world, &engine).await;
                engine.drain(&world).await;
            }
            () = tokio::time::sleep(uptime) => match random.below(4) {
                0 => engine.kill(&world).await,
                1 => {
                    world.expel(&engine.process);
                    tokio::select! {
                        biased;
                        () = crash.cancelled() => engine.kill(&world).await,
                        () = tokio::time::sleep(random.millis(0, 2_000)) => engine.drain(&world).await,
                    }
                }
                _ => engine.drain(&world).await,
            },
        }
        handles.remove(place);
        tokio::time::sleep(random.millis(0, 1_500)).await;
    }
    None
}

/// Keeps an engine running until there are no more faults.
async fn stay(world: &World, engine: RunningEngine, calm: &CancellationToken) -> Option<RunningEngine> {
    let crash = engine.process.crash.clone();
    tokio::select! {
        biased;
        () = crash.cancelled() => {
            engine.kill(world).await;
            None
        }
        () = calm.cancelled() => Some(engine),
    }
}

/// The engines that operators can reach.
#[derive(Default)]
pub(crate) struct Handles(Mutex<BTreeMap<u64, Reachable>>);

/// The handle of an engine, and its process.
type Reachable = (Handle, Process);

impl Handles {
    fn put(&self, place: u64, handle: Reachable) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(place, handle);
    }

    fn remove(&self, place: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&place);
    }

    fn any(&self, random: &mut Random) -> Option<Reachable> {
        let handles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<&Reachable> = handles.values().collect();
        if all.is_empty() { None } else { Some((*random.pick(&all)).clone()) }
    }
}

/// Starts and ends outages of the store.
pub(crate) async fn outages(world: Arc<World>, store_state: Arc<StoreState>, over: Arc<AtomicBool>) {
    let mut random = Random::new(world.plan.seed).fork(200);
    while !over.load(Ordering::Relaxed) {
        tokio::time::sleep(random.millis(500, 8_000)).await;
        world.trace(|| "outage started".to_owned());
        store_state.outage.store(true, Ordering::Relaxed);
        tokio::time::sleep(random.millis(50, 3_000)).await;
        store_state.outage.store(false, Ordering::Relaxed);
        world.trace(|| "outage ended".to_owned());
    }
}

/// Sets the clock of all engines and of the store back, again and again.
pub(crate) async fn set_clock_back(world: Arc<World>, over: Arc<AtomicBool>) {
    let mut random = Random::new(world.plan.seed).fork(400);
    let mut back = Duration::ZERO;
    while !over.load(Ordering::Relaxed) {
        tokio::time::sleep(random.millis(1_000, 15_000)).await;
        let longest = *random.pick(&[100, 2_000, 60_000, 20_000_000]);
        back += random.millis(1, longest);
        world.trace(|| format!("the clock was set back, by {back:?} in total"));
        world.clock.set_skew(-SignedDuration::try_from(back).unwrap_or(SignedDuration::ZERO));
    }
}

/// Acts as an operator: evicts, parks, releases, replays, pauses and resumes.
pub(crate) async fn operator(world: Arc<World>, handles: Arc<Handles>, over: Arc<AtomicBool>) {
    let mut random = Random::new(world.plan.seed).fork(300);
    let by = Actor::new("operator", "simulation", "to disturb the engine");
    while !over.load(Ordering::Relaxed) {
        tokio::time::sleep(random.millis(100, 3_000)).await;
        let component = random.below(world.queues.len() as u64) as usize;
        let choice = random.below(11);
        let Some(engine) = handles.any(&mut random) else { continue };
        let (handle, process) = &engine;
        let Some(replayer) = handle.replayer(world.queues[component].component()) else { continue };
        let pause_millis = random.between(100, 2_500);
        let key = format!("key-{}", random.below(world.plan.keys));
        // An operator accepts failures here: the engine or the store is unavailable, or refuses the act.
        match choice {
            0..=3 => act(&world, component, &mut random, &by),
            4 => drop(Box::pin(bounded(process, replayer.process_any())).await),
            5 => drop(Box::pin(bounded(process, replayer.process_all("op"))).await),
            6 => {
                // With every other seed also letters behind the heads.
                let of_each = if world.plan.seed.is_multiple_of(2) { 8 } else { 1 };
                let rollout = RolloutPolicy::unlimited();
                world.begin_operation(component, of_each, Action::Retry, &rollout, &by);
            }
            7 => hold(&world, &engine, PauseScope::Sequence(key.as_str().into()), pause_millis, &by).await,
            8 => hold(&world, &engine, PauseScope::Consumer, pause_millis, &by).await,
            9 => {
                let during = async {
                    // Ask for replays while they are paused, too.
                    tokio::time::sleep(random.millis(0, 500)).await;
                    Box::pin(bounded(process, replayer.process_all("op"))).await
                };
                let held = hold(&world, &engine, PauseScope::Replay, pause_millis, &by);
                drop(tokio::join!(held, during));
            }
            _ => {
                let partition = lazaret_core::Partition::new(world.log.stream().clone(), 0);
                hold(&world, &engine, PauseScope::Partition(partition), pause_millis, &by).await;
            }
        }
    }
}

/// Pauses for some time.
async fn hold(world: &World, engine: &Reachable, scope: PauseScope, millis: u64, by: &Actor) {
    let (handle, process) = engine;
    world.trace(|| format!("operator pauses the {scope} at process {}", process.number));
    if let Some(Ok(())) = bounded(process, handle.pause(scope.clone(), by)).await {
        world.trace(|| format!("process {} confirmed the pause of the {scope}", process.number));
        world.pauses.confirmed(&scope, process.number);
    }
    tokio::time::sleep(Duration::from_millis(millis)).await;
    world.pauses.ending(&scope);
    world.trace(|| format!("operator resumes the {scope}"));
    let _ = bounded(process, handle.resume(&scope, by)).await;
}

/// Runs an operator's request until it ends, times out, or the engine's process crashes.
async fn bounded<T>(process: &Process, work: impl Future<Output = T>) -> Option<T> {
    let work = process.suspension.clone().hold(work);
    tokio::select! {
        biased;
        () = process.crash.cancelled() => None,
        done = tokio::time::timeout(Duration::from_secs(20), work) => done.ok(),
    }
}

fn act(world: &Arc<World>, component: usize, random: &mut Random, by: &Actor) {
    let queue = &world.queues[component];
    let Ok(page) = world.run(world.store.heads(queue, None, 50)) else { return };
    if page.heads.is_empty() {
        return;
    }
    let head = random.pick(&page.heads);
    let act =
        *random.pick(&[Act::Evict, Act::Park, Act::Release, Act::Release, Act::Resolve, Act::Quarantine]);
    let done = world.run(world.store.act(queue, head.id, act, by)).is_ok();
    world.trace(|| {
        format!("operator: {} {} {}", act.as_str(), head.message.id, if done { "done" } else { "refused" })
    });
    if done {
        let closes = matches!(act, Act::Evict | Act::Resolve);
        world.operator_acted(component, &world.name(&head.message), closes, act == Act::Release);
    }
}
