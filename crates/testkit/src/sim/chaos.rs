//! Those who disturb: engines that are killed and restarted, members that come and go, operators who meddle.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lazaret_core::handler::{Context, Delivery, FromDelivery, Handle as Handler, HandlerFuture};
use lazaret_core::store::{Act, Actor, PauseScope, Store};
use lazaret_core::{HandlerError, Reason, Verdict};
use lazaret_engine::{Consumer, Handle};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::plan::{Script, refusal};
use super::random::Random;
use super::tap::Tap;
use super::wire::{Weather, Wire};
use super::world::{CONSUMER, Life, World};

/// A handler that follows the script of each message.
#[derive(Clone)]
struct Scripted {
    world: Arc<World>,
    life: Life,
    component: usize,
    weather: Arc<Weather>,
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
        let attempt = self.world.begin(&self.life, self.component, message, letter.as_deref(), replay).await;
        let script = self.world.script(message, self.component);
        let tries = self.world.attempts_so_far(self.component, message);
        let mut random = Random::new(self.world.plan.seed).fork(9_000_000 + attempt.number());
        match random.below(6) {
            0 => tokio::time::sleep(random.millis(1, 800)).await,
            1 => tokio::task::yield_now().await,
            _ => {}
        }
        self.crash_point(&mut random).await;
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
            Script::SendsAway => {
                let context = Context::from_delivery(&delivery)?;
                // From here on the message is the letter's: what follows is no work on it.
                attempt.end(false, false);
                let sent = context.send_to_dlq("sent away").await;
                return sent
                    .map_err(|error| HandlerError::from(error).reason(Reason::DEPENDENCY_UNAVAILABLE));
            }
        }
        attempt.end(true, false);
        Ok(())
    }

    /// Perhaps the handler takes the process with it.
    async fn crash_point(&self, random: &mut Random) {
        if !self.weather.calm.load(Ordering::Relaxed) && random.chance(self.world.plan.crash_points) {
            self.world.trace(|| format!("life {} dies in a handler", self.life.number));
            self.life.crash.cancel();
            std::future::pending::<()>().await;
        }
    }
}

/// Starts and ends lives.
pub(crate) struct Nursery {
    world: Arc<World>,
    pub(crate) weather: Arc<Weather>,
    next_life: AtomicU64,
    mutation: Option<super::Mutation>,
}

/// A running engine.
pub(crate) struct Born {
    pub(crate) life: Life,
    pub(crate) handle: Handle,
    pub(crate) drain: CancellationToken,
    task: JoinHandle<Result<lazaret_engine::Stats, lazaret_engine::Error>>,
}

impl Nursery {
    pub(crate) fn new(world: &Arc<World>, mutation: Option<super::Mutation>) -> Self {
        Self { world: world.clone(), weather: Arc::default(), next_life: AtomicU64::new(1), mutation }
    }

    pub(crate) fn bear(&self) -> Born {
        let number = self.next_life.fetch_add(1, Ordering::Relaxed);
        let source = self.world.log.join().with_batch(16);
        let life = Life {
            number,
            member: source.member(),
            crash: CancellationToken::new(),
            leaving_since: Arc::default(),
        };
        let mut options = self.world.plan.options.clone();
        options.instance = format!("life-{number}");
        options.seed = (self.world.plan.seed ^ number << 32) | 1;
        options.mutation = self.mutation.and_then(super::Mutation::of_engine);
        let wire: Arc<dyn Store> = Arc::new(Wire::new(&self.world, life.clone(), self.weather.clone()));
        let mut builder = Consumer::builder(CONSUMER)
            .source(Tap::new(&self.world, life.clone(), source))
            .store(wire)
            .clock(Arc::new(self.world.clock.clone()))
            .options(options);
        for (component, queue) in self.world.queues.iter().enumerate() {
            let handler = Scripted {
                world: self.world.clone(),
                life: life.clone(),
                component,
                weather: self.weather.clone(),
            };
            builder = builder.component(queue.component(), handler);
        }
        let consumer = builder.build().expect("the plan's options are valid");
        let handle = consumer.handle();
        let drain = CancellationToken::new();
        let task = tokio::spawn(consumer.run(drain.clone()));
        self.world.trace(|| format!("life {number} begins as {}", life.member));
        Born { life, handle, drain, task }
    }
}

impl Born {
    /// The end of a process: nothing more runs.
    pub(crate) async fn kill(self, world: &World) {
        world.trace(|| format!("life {} is over", self.life.number));
        self.task.abort();
        let _ = self.task.await;
    }

    /// A shutdown in order.
    pub(crate) async fn drain(mut self, world: &World) {
        world.trace(|| format!("life {} drains", self.life.number));
        world.leaving(&self.life);
        self.drain.cancel();
        let crash = self.life.crash.clone();
        tokio::select! {
            biased;
            () = crash.cancelled() => return self.kill(world).await,
            end = &mut self.task => {
                if let Ok(Err(error)) = end {
                    world.violated("I10", &format!("life {} ended with: {error}", self.life.number));
                }
            }
        }
        world.died(self.life.number, Some(&[]));
    }

    /// Whether the engine has ended by itself.
    pub(crate) fn is_over(&self) -> bool {
        self.task.is_finished()
    }
}

/// One place in the group: an engine that dies, is restarted, leaves and comes back, until the chaos ends.
pub(crate) async fn member(world: Arc<World>, nursery: Arc<Nursery>, place: u64, handles: Arc<Handles>) {
    let mut random = Random::new(world.plan.seed).fork(100 + place);
    let end = Instant::now() + world.plan.chaos;
    while Instant::now() < end {
        let born = nursery.bear();
        handles.put(place, (born.handle.clone(), born.life.crash.clone()));
        let patience = if world.plan.rebalances { random.millis(300, 12_000) } else { world.plan.chaos };
        let crash = born.life.crash.clone();
        tokio::select! {
            biased;
            () = crash.cancelled() => born.kill(&world).await,
            () = tokio::time::sleep_until(end) => born.drain(&world).await,
            () = tokio::time::sleep(patience) => match random.below(4) {
                0 => born.kill(&world).await,
                1 => {
                    world.trace(|| format!("life {} is expelled", born.life.number));
                    world.log.expel(born.life.member);
                    tokio::select! {
                        biased;
                        () = crash.cancelled() => born.kill(&world).await,
                        () = tokio::time::sleep(random.millis(0, 2_000)) => born.drain(&world).await,
                    }
                }
                _ => born.drain(&world).await,
            },
        }
        handles.remove(place);
        tokio::time::sleep(random.millis(0, 1_500)).await;
    }
}

/// The engines that operators can reach.
#[derive(Default)]
pub(crate) struct Handles(Mutex<BTreeMap<u64, Reachable>>);

/// The handle of an engine, and the token that is cancelled when its process dies.
type Reachable = (Handle, CancellationToken);

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

/// The store goes away and comes back.
pub(crate) async fn outages(world: Arc<World>, weather: Arc<Weather>, over: Arc<AtomicBool>) {
    let mut random = Random::new(world.plan.seed).fork(200);
    while !over.load(Ordering::Relaxed) {
        tokio::time::sleep(random.millis(500, 8_000)).await;
        world.trace(|| "the store goes away".to_owned());
        weather.outage.store(true, Ordering::Relaxed);
        tokio::time::sleep(random.millis(50, 3_000)).await;
        weather.outage.store(false, Ordering::Relaxed);
        world.trace(|| "the store is back".to_owned());
    }
}

/// An operator who evicts, parks, releases, replays, pauses and resumes.
pub(crate) async fn operator(world: Arc<World>, handles: Arc<Handles>, over: Arc<AtomicBool>) {
    let mut random = Random::new(world.plan.seed).fork(300);
    let by = Actor::new("operator", "simulation", "to see what happens");
    while !over.load(Ordering::Relaxed) {
        tokio::time::sleep(random.millis(100, 3_000)).await;
        let component = random.below(world.queues.len() as u64) as usize;
        let deed = random.below(9);
        let Some((handle, dead)) = handles.any(&mut random) else { continue };
        let Some(replayer) = handle.replayer(world.queues[component].component()) else { continue };
        // Whatever fails here fails for a reason that the operator would see and live with.
        match deed {
            0..=3 => act(&world, component, &mut random, &by),
            4 => drop(bounded(&dead, replayer.process_any()).await),
            5 => drop(bounded(&dead, replayer.process_all("op")).await),
            6 | 7 => {
                let key = format!("key-{}", random.below(world.plan.keys));
                let scope =
                    if deed == 6 { PauseScope::Sequence(key.as_str().into()) } else { PauseScope::Consumer };
                world.trace(|| format!("operator pauses {scope}"));
                let _ = bounded(&dead, handle.pause(scope.clone(), &by)).await;
                tokio::time::sleep(random.millis(100, 2_500)).await;
                world.trace(|| format!("operator resumes {scope}"));
                let _ = bounded(&dead, handle.resume(&scope, &by)).await;
            }
            _ => {
                let partition = lazaret_core::Partition::new(world.log.stream().clone(), 0);
                let scope = PauseScope::Partition(partition);
                let _ = bounded(&dead, handle.pause(scope.clone(), &by)).await;
                tokio::time::sleep(random.millis(100, 1_500)).await;
                let _ = bounded(&dead, handle.resume(&scope, &by)).await;
            }
        }
    }
}

/// What an operator asks of an engine ends with the engine's process.
async fn bounded<T>(dead: &CancellationToken, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = dead.cancelled() => None,
        done = tokio::time::timeout(Duration::from_secs(20), work) => done.ok(),
    }
}

fn act(world: &Arc<World>, component: usize, random: &mut Random, by: &Actor) {
    let queue = &world.queues[component];
    let Ok(page) = world.ask(world.store.heads(queue, None, 50)) else { return };
    if page.heads.is_empty() {
        return;
    }
    let head = random.pick(&page.heads);
    let act =
        *random.pick(&[Act::Evict, Act::Park, Act::Release, Act::Release, Act::Resolve, Act::Quarantine]);
    let done = world.ask(world.store.act(queue, head.id, act, by)).is_ok();
    world.trace(|| {
        format!("operator: {} {} {}", act.as_str(), head.message.id, if done { "done" } else { "refused" })
    });
    if done {
        let closes = matches!(act, Act::Evict | Act::Resolve);
        world.acted(component, &head.message.id, closes, act == Act::Release);
    }
}
