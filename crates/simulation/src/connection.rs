//! The connection between one engine process and the store. Requests and answers are lost or arrive late, the store becomes
//! unavailable, and the process may crash at any call.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lazaret_core::store::{
    AttemptNote, Call, ErrorKind, Lease, Outcome, PolledWork, Result, Settled, Settlement, StoreError,
};
use lazaret_core::{LetterId, QueueName, Timestamp};
use tokio::time::Instant;

use crate::plan::Faults;
use crate::random::Random;
use crate::world::{Process, World};

/// How long a caller waits for an answer before its call times out.
const CALL_TIMEOUT: Duration = Duration::from_millis(700);
/// The longest time that a slow request or answer takes.
const SLOW_MILLIS: u64 = 600;
/// The call that settles a letter and takes the next one.
const SETTLE_AND_CONTINUE: &str = "settle_and_continue";
/// More calls of one process at one moment than any run needs.
const CALLS_AT_ONCE: u32 = 5000;

/// The store as one process reaches it.
pub(crate) struct Connection {
    world: Arc<World>,
    process: Process,
    faults: Faults,
    crash_points: u64,
    random: Mutex<Random>,
    store_state: Arc<StoreState>,
    cuts: Option<Cuts>,
    busy: Mutex<Busy>,
}

/// The calls of a process while the clock stands still.
struct Busy {
    at: Instant,
    calls: u32,
}

/// The state of the store that all connections share.
#[derive(Debug, Default)]
pub(crate) struct StoreState {
    /// Every call fails.
    pub(crate) outage: AtomicBool,
    /// No more faults of any kind.
    pub(crate) calm: AtomicBool,
}

/// When one process cannot reach the store: up to twice as long as a lease.
struct Cuts(Mutex<(Random, Instant, Instant)>);

impl Cuts {
    fn new(mut random: Random) -> Self {
        let start = Instant::now() + random.millis(500, 12_000);
        let end = start + random.millis(100, 20_000);
        Self(Mutex::new((random, start, end)))
    }

    fn is_cut(&self) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (random, start, end) = &mut *state;
        let now = Instant::now();
        while *end <= now {
            *start = *end + random.millis(500, 12_000);
            *end = *start + random.millis(100, 20_000);
        }
        *start <= now
    }
}

enum Fault {
    None,
    LostRequest,
    LostAnswer,
    /// The request takes effect this much later, after its caller has stopped to wait.
    Late(Duration),
}

impl Connection {
    pub(crate) fn new(world: &Arc<World>, process: Process, store_state: Arc<StoreState>) -> Self {
        let random = Random::new(world.plan.seed).fork(50_000 + process.number);
        Self {
            world: world.clone(),
            faults: world.plan.faults,
            crash_points: world.plan.crash_points,
            random: Mutex::new(random),
            cuts: world
                .plan
                .cuts
                .then(|| Cuts::new(Random::new(world.plan.seed).fork(70_000 + process.number))),
            process,
            store_state,
            busy: Mutex::new(Busy { at: Instant::now(), calls: 0 }),
        }
    }

    /// Counts the calls at this moment. A process that never ends to call while nothing changes would keep a core busy, and a real
    /// store writing: it is told, and slowed down so that the run ends.
    async fn count_call(&self, operation: &str) {
        let is_busy = {
            let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            if busy.at != now {
                *busy = Busy { at: now, calls: 0 };
            }
            busy.calls += 1;
            if busy.calls == CALLS_AT_ONCE {
                let number = self.process.number;
                let text = format!("process {number} calls the store without end, with {operation}");
                self.world.violated("busy loop", &text);
            }
            busy.calls >= CALLS_AT_ONCE
        };
        if is_busy {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(&mut self.random.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn fault(&self, may_be_late: bool) -> Fault {
        if self.store_state.calm.load(Ordering::Relaxed) {
            return Fault::None;
        }
        let faults = self.faults;
        self.draw(|random| {
            if random.chance(faults.lost_request) {
                Fault::LostRequest
            } else if random.chance(faults.lost_answer) {
                Fault::LostAnswer
            } else if may_be_late && random.chance(faults.late_effect) {
                Fault::Late(random.millis(500, 15_000))
            } else {
                Fault::None
            }
        })
    }

    fn is_cut(&self) -> bool {
        let calm = self.store_state.calm.load(Ordering::Relaxed);
        !calm && self.cuts.as_ref().is_some_and(Cuts::is_cut)
    }

    async fn latency(&self) {
        let Faults { latency_millis, slow, .. } = self.faults;
        let calm = self.store_state.calm.load(Ordering::Relaxed);
        let delay = self.draw(|random| match !calm && random.chance(slow) {
            true => random.millis(latency_millis, SLOW_MILLIS),
            false => random.millis(0, latency_millis),
        });
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    /// Crashes the process here, by chance.
    async fn crash_point(&self, operation: &str) {
        let calm = self.store_state.calm.load(Ordering::Relaxed);
        if !calm && self.draw(|random| random.chance(self.crash_points)) {
            self.world.trace(|| format!("process {} crashed at {operation}", self.process.number));
            self.process.crash.cancel();
            std::future::pending::<()>().await;
        }
    }

    /// Sends a call, with the faults that are drawn for it.
    pub(crate) async fn send<T: Send + 'static>(
        &self,
        call: Call,
        effect: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let operation = call.operation;
        self.process.goes_on().await;
        self.count_call(operation).await;
        self.crash_point(operation).await;
        self.latency().await;
        let unavailable = |text| Err(StoreError::not_done(ErrorKind::Unavailable, operation, text));
        let unknown = || Err(StoreError::maybe(ErrorKind::Unavailable, operation, "no answer"));
        if self.store_state.outage.load(Ordering::Relaxed) {
            return unavailable("outage");
        }
        if self.is_cut() {
            // It never arrives, and the caller cannot know.
            tokio::time::sleep(CALL_TIMEOUT).await;
            return unknown();
        }
        let answer = match self.fault(may_be_late(call)) {
            Fault::None => self.world.run(effect),
            Fault::LostRequest => unavailable("refused"),
            Fault::LostAnswer => {
                let _ = self.world.run(effect);
                tokio::time::sleep(CALL_TIMEOUT).await;
                unknown()
            }
            Fault::Late(delay) => {
                // The request was sent and cannot be withdrawn: it takes effect even after its sender crashed.
                let world = self.world.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    let outcome = if world.run(effect).is_ok() { "done" } else { "refused" };
                    world.trace(|| format!("late {operation} arrived: {outcome}"));
                });
                tokio::time::sleep(CALL_TIMEOUT).await;
                unknown()
            }
        };
        self.latency().await;
        self.crash_point(operation).await;
        answer
    }

    /// The store's time, where the processes have clocks of their own.
    async fn server_time(&self) -> Result<Option<Timestamp>> {
        if !self.world.plan.drift {
            return Ok(None);
        }
        let world = self.world.clone();
        let effect = async move { Ok(Some(world.store_time())) };
        self.send(Call::new("server_time", false), effect).await
    }

    /// Writes the notes to the trace, and sends them.
    async fn trace_notes(&self, queue: &QueueName, notes: Vec<AttemptNote>) -> Result<()> {
        self.world.trace(|| {
            let notes: Vec<String> =
                notes.iter().map(|note| format!("{} after {}", note.message, note.attempts)).collect();
            format!("process {} noted attempts in {queue}: {}", self.process.number, notes.join(", "))
        });
        let (store, queue) = (self.world.store.clone(), queue.clone());
        let effect = async move { store.note_attempts(&queue, notes).await };
        self.send(Call::new("note_attempts", true), effect).await
    }

    /// Polls operations, and enters what the store gives away in the ledger.
    async fn poll_work(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<PolledWork> {
        let (world, process) = (self.world.clone(), self.process.number);
        let (queue, owner) = (queue.clone(), owner.to_owned());
        let effect = async move {
            let work = world.store.poll_work(&queue, &owner, lease, limit).await?;
            world.polled(process, &queue, &work).await;
            Ok(work)
        };
        self.send(Call::new("poll_work", true), effect).await
    }

    async fn settle(&self, lease: &Lease, letter: LetterId, settlement: Settlement) -> Result<Settled> {
        self.settle_as("settle", lease, letter, settlement).await
    }

    async fn settle_and_continue(
        &self,
        lease: &Lease,
        letter: LetterId,
        settlement: Settlement,
    ) -> Result<Settled> {
        self.settle_as(SETTLE_AND_CONTINUE, lease, letter, settlement).await
    }

    /// Settles a letter, and enters in the ledger what it was for an operation. Operators may have a command for that moment.
    async fn settle_as(
        &self,
        call: &'static str,
        lease: &Lease,
        letter: LetterId,
        settlement: Settlement,
    ) -> Result<Settled> {
        let (world, process, lease) = (self.world.clone(), self.process.number, lease.clone());
        let outcome = match &settlement {
            Settlement::Requeue(_) => Outcome::FailedAgain,
            Settlement::Resolve(_) | Settlement::Evict(_) | Settlement::Skip(_) => Outcome::Ok,
        };
        let effect = async move {
            let operation = world.ledger.operation_of(&lease);
            world.send_armed(operation, true).await;
            let answer = match call {
                SETTLE_AND_CONTINUE => world.store.settle_and_continue(&lease, letter, settlement).await,
                _ => world.store.settle(&lease, letter, settlement).await,
            };
            if let Ok(settled) = &answer {
                world.settled(process, &lease, letter, outcome, settled);
            }
            world.send_armed(operation, false).await;
            answer
        };
        self.send(Call::new(call, true), effect).await
    }
}

/// Writes of the engine may take effect late. Assignments are answered before anything else happens, and operators do not
/// leave before they have an answer.
fn may_be_late(call: Call) -> bool {
    let waits = matches!(
        call.operation,
        "assign"
            | "act"
            | "clear"
            | "pause"
            | "resume"
            | "set_pause"
            | "note"
            | "change"
            | "purge"
            | "relay_retry"
            | "relay_dead"
    );
    call.writes && !waits
}

lazaret_core::forward_store! {
    impl LetterStore for Connection {
        note_attempts => Self::trace_notes;
        server_time => Self::server_time;
        settle => Self::settle;
        settle_and_continue => Self::settle_and_continue;
    }
    impl Operations for Connection {
        poll_work => Self::poll_work;
    }
    impl Triage for Connection {}
    impl Audit for Connection {}

    shared: |this| this.world.store.clone();
    around: |this, call, run| match call.operation {
        // Answered without faults.
        "get" | "sequence" | "audit" => this.world.run(run),
        _ => this.send(call, run).await,
    };
}
