//! The way between one life of an engine and the store: requests and answers get lost or come late, the store goes
//! away, and the engine may die at any call.

mod operations;
mod triage;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::store::{
    Act, Actor, AttemptNote, Audit, AuditEntry, AuditNote, Claim, Cleared, Counts, ErrorKind, Grant, HandOff,
    HeadsPage, Lease, LetterStore, Limits, OpenedPage, Pause, PauseScope, Placed, Result, Settled,
    Settlement, Store, StoreError,
};
use lazaret_core::{
    ConsumerName, Letter, LetterId, LetterState, MessageId, Partition, QueueName, SequenceId, Timestamp,
};

use super::plan::Faults;
use super::random::Random;
use super::world::{Life, World};

/// How long a caller waits for an answer that does not come.
const PATIENCE: Duration = Duration::from_millis(700);

/// The store as one life sees it.
pub(crate) struct Wire {
    world: Arc<World>,
    store: Arc<dyn Store>,
    life: Life,
    faults: Faults,
    crash_points: u64,
    random: Mutex<Random>,
    weather: Arc<Weather>,
}

/// What is wrong with the store as such.
#[derive(Debug, Default)]
pub(crate) struct Weather {
    pub(crate) outage: AtomicBool,
    /// No more faults of any kind.
    pub(crate) calm: AtomicBool,
}

enum Mishap {
    None,
    LostRequest,
    LostAnswer,
    Late(Duration),
}

impl Wire {
    pub(crate) fn new(world: &Arc<World>, life: Life, weather: Arc<Weather>) -> Self {
        let random = Random::new(world.plan.seed).fork(50_000 + life.number);
        Self {
            world: world.clone(),
            store: world.store.clone(),
            faults: world.plan.faults,
            crash_points: world.plan.crash_points,
            random: Mutex::new(random),
            life,
            weather,
        }
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(&mut self.random.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn mishap(&self, may_be_late: bool) -> Mishap {
        if self.weather.calm.load(Ordering::Relaxed) {
            return Mishap::None;
        }
        let faults = self.faults;
        self.draw(|random| {
            if random.chance(faults.lost_request) {
                Mishap::LostRequest
            } else if random.chance(faults.lost_answer) {
                Mishap::LostAnswer
            } else if may_be_late && random.chance(faults.late_effect) {
                Mishap::Late(random.millis(500, 15_000))
            } else {
                Mishap::None
            }
        })
    }

    async fn latency(&self) {
        let latency = self.faults.latency_millis;
        let delay = self.draw(|random| random.millis(0, latency));
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    /// Perhaps the engine dies here.
    async fn crash_point(&self, operation: &str) {
        let calm = self.weather.calm.load(Ordering::Relaxed);
        if !calm && self.draw(|random| random.chance(self.crash_points)) {
            self.world.trace(|| format!("life {} dies at {operation}", self.life.number));
            self.life.crash.cancel();
            std::future::pending::<()>().await;
        }
    }

    async fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        may_be_late: bool,
        effect: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.crash_point(operation).await;
        self.latency().await;
        let unavailable = |text| Err(StoreError::not_done(ErrorKind::Unavailable, operation, text));
        let unknown = || Err(StoreError::maybe(ErrorKind::Unavailable, operation, "no answer"));
        if self.weather.outage.load(Ordering::Relaxed) {
            return unavailable("outage");
        }
        let answer = match self.mishap(may_be_late) {
            Mishap::None => self.world.ask(effect),
            Mishap::LostRequest => unavailable("refused"),
            Mishap::LostAnswer => {
                let _ = self.world.ask(effect);
                tokio::time::sleep(PATIENCE).await;
                unknown()
            }
            Mishap::Late(delay) => {
                // The request is on its way and cannot be called back: it takes effect even if its sender is dead.
                let world = self.world.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    let answer = world.ask(effect);
                    world.trace(|| {
                        format!(
                            "a late {operation} arrives: {}",
                            if answer.is_ok() { "done" } else { "refused" }
                        )
                    });
                });
                tokio::time::sleep(PATIENCE).await;
                unknown()
            }
        };
        self.latency().await;
        self.crash_point(operation).await;
        answer
    }
}

/// Sends a call over the wire with its arguments made its own.
macro_rules! send {
    ($self:ident, $late:expr, $method:ident ( $($arg:ident),* )) => {{
        let store = $self.store.clone();
        $(let $arg = ToOwned::to_owned($arg);)*
        $self.call(stringify!($method), $late, async move { store.$method($(&$arg),*).await }).await
    }};
}
use send;

#[async_trait]
impl LetterStore for Wire {
    async fn assign(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<Grant>> {
        send!(self, false, assign(queue, partitions))
    }

    async fn opened_since(&self, queue: &QueueName, revision: u64, limit: usize) -> Result<OpenedPage> {
        let (store, queue) = (self.store.clone(), queue.clone());
        self.call("opened_since", false, async move { store.opened_since(&queue, revision, limit).await })
            .await
    }

    async fn hand_off(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>> {
        let (store, queue, limits) = (self.store.clone(), queue.clone(), *limits);
        self.call("hand_off", true, async move { store.hand_off(&queue, &limits, items).await }).await
    }

    async fn lookup(&self, queue: &QueueName, messages: &[MessageId]) -> Result<Vec<Option<LetterState>>> {
        send!(self, false, lookup(queue, messages))
    }

    async fn note_attempts(&self, queue: &QueueName, notes: Vec<AttemptNote>) -> Result<()> {
        self.world.trace(|| {
            let notes: Vec<String> =
                notes.iter().map(|n| format!("{} after {}", n.message, n.attempts)).collect();
            format!("life {} notes in {queue}: {}", self.life.number, notes.join(", "))
        });
        let (store, queue) = (self.store.clone(), queue.clone());
        self.call("note_attempts", true, async move { store.note_attempts(&queue, notes).await }).await
    }

    async fn attempt_notes(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<AttemptNote>> {
        send!(self, false, attempt_notes(queue, partitions))
    }

    async fn forget_attempts(&self, queue: &QueueName, partition: &Partition, up_to: u64) -> Result<()> {
        let (store, queue, partition) = (self.store.clone(), queue.clone(), partition.clone());
        self.call(
            "forget_attempts",
            true,
            async move { store.forget_attempts(&queue, &partition, up_to).await },
        )
        .await
    }

    async fn claim_due(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Claim>> {
        let (store, queue, owner) = (self.store.clone(), queue.clone(), owner.to_owned());
        self.call("claim_due", true, async move { store.claim_due(&queue, &owner, lease, limit).await }).await
    }

    async fn next_due(&self, queue: &QueueName) -> Result<Option<Timestamp>> {
        send!(self, false, next_due(queue))
    }

    async fn claim(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
    ) -> Result<Option<Claim>> {
        let (store, queue, sequence, owner) =
            (self.store.clone(), queue.clone(), sequence.clone(), owner.to_owned());
        self.call("claim", true, async move { store.claim(&queue, &sequence, &owner, lease).await }).await
    }

    async fn renew(&self, lease: &Lease, duration: Duration) -> Result<Lease> {
        let (store, lease) = (self.store.clone(), lease.clone());
        self.call("renew", true, async move { store.renew(&lease, duration).await }).await
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        send!(self, true, release(lease))
    }

    async fn settle(&self, lease: &Lease, letter: LetterId, settlement: Settlement) -> Result<Settled> {
        let (store, lease) = (self.store.clone(), lease.clone());
        self.call("settle", true, async move { store.settle(&lease, letter, settlement).await }).await
    }

    async fn act(&self, queue: &QueueName, letter: LetterId, act: Act, by: &Actor) -> Result<Letter> {
        let (store, queue, by) = (self.store.clone(), queue.clone(), by.clone());
        self.call("act", false, async move { store.act(&queue, letter, act, &by).await }).await
    }

    async fn get(&self, queue: &QueueName, letter: LetterId) -> Result<Option<Letter>> {
        self.world.ask(self.store.get(queue, letter))
    }

    async fn sequence(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Letter>> {
        self.world.ask(self.store.sequence(queue, sequence, from, limit))
    }

    async fn heads(&self, queue: &QueueName, after: Option<&str>, limit: usize) -> Result<HeadsPage> {
        let (store, queue, after) = (self.store.clone(), queue.clone(), after.map(str::to_owned));
        self.call("heads", false, async move { store.heads(&queue, after.as_deref(), limit).await }).await
    }

    async fn counts(&self, queue: &QueueName) -> Result<Counts> {
        send!(self, false, counts(queue))
    }

    async fn sequence_size(&self, queue: &QueueName, sequence: &SequenceId) -> Result<u64> {
        send!(self, false, sequence_size(queue, sequence))
    }

    async fn is_full(&self, queue: &QueueName, sequence: &SequenceId, limits: &Limits) -> Result<bool> {
        send!(self, false, is_full(queue, sequence, limits))
    }

    async fn clear(&self, queue: &QueueName, by: &Actor) -> Result<Cleared> {
        send!(self, false, clear(queue, by))
    }

    async fn set_pause(
        &self,
        consumer: &ConsumerName,
        scope: &PauseScope,
        paused: bool,
        by: &Actor,
    ) -> Result<bool> {
        let (store, consumer, scope, by) = (self.store.clone(), consumer.clone(), scope.clone(), by.clone());
        self.call("set_pause", false, async move { store.set_pause(&consumer, &scope, paused, &by).await })
            .await
    }

    async fn pauses(&self, consumer: &ConsumerName) -> Result<Vec<Pause>> {
        send!(self, false, pauses(consumer))
    }
}

#[async_trait]
impl Audit for Wire {
    async fn note(&self, note: &AuditNote, by: &Actor) -> Result<()> {
        send!(self, false, note(note, by))
    }

    async fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditEntry>> {
        self.world.ask(self.store.audit(after, limit))
    }
}
