//! The in-memory store: one state behind one lock.
//!
//! Every call takes the lock once and releases it before it returns, so every call is atomic as a whole, which is
//! more than the contract requires. The parts: [`queue`] holds the rows and their indexes, [`intake`] stores letters,
//! [`leases`] claims and settles them, [`acts`] applies operators' acts, [`operations`] executes plans,
//! [`query`] finds letters, [`triage`] lists groups and queues. None of them decides anything: the rules of
//! [`lazaret_core::store::rules`] do.

mod acts;
mod audit;
mod intake;
mod key_value;
mod leases;
mod operations;
mod outbox;
mod query;
mod queue;
mod triage;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_core::incarnation::{Beginning, Incarnations};
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::store::rules;
use lazaret_core::store::{
    Act, Actor, AttemptNote, Capabilities, ChangeFeed, Changes, Claim, Cleared, Counts, ExpiryClock, Grant,
    HandOff, HeadsPage, Lease, LeaseUse, LetterStore, Limits, OpenedPage, OperationId, Pause, PauseScope,
    Placed, Result, Settled, Settlement, Topic, begin_incarnation, read_incarnations,
};
use lazaret_core::{Clock, ConsumerName, MessageId, Partition, QueueName, SequenceId, SystemClock};

pub use audit::AUDIT_LIMIT;
use audit::AuditLog;
use key_value::Values;
use operations::OperationTable;
use queue::Queue;

/// An in-memory store. Clones share their content.
///
/// A redelivered message whose letter was closed must be recognized (I8), so at least id and state of a closed letter
/// are kept as long as the store lives. The audit keeps its newest [`AUDIT_LIMIT`] entries.
///
/// ```
/// use std::sync::Arc;
/// use lazaret_core::store::{HandOff, LetterStore, Limits, Placed, Placement};
/// use lazaret_core::{Letter, LetterState, Message, Position, QueueName, Timestamp};
/// use lazaret_memory::MemoryStore;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let store = MemoryStore::default();
/// let queue = QueueName::of("orders", "orders");
/// let message = Arc::new(Message::new("evt-1", "orders", Position::new(0, 0)).with_key("order-7"));
/// let mut letter = Letter::new(queue.clone(), "order-7".into(), message, Timestamp::now());
/// letter.state = LetterState::Dead;
/// let item = HandOff { letter, placement: Placement::Open, grant: None };
/// let answers = store.hand_off(&queue, &Limits::default(), vec![item]).await.unwrap();
/// assert_eq!(answers[0].as_ref().unwrap(), &Placed::Opened);
/// assert_eq!(store.sequence_size(&queue, &"order-7".into()).await.unwrap(), 1);
/// # });
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    expiry: ExpiryClock,
    state: Mutex<State>,
    feed: ChangeFeed,
}

#[derive(Default)]
struct State {
    queues: BTreeMap<QueueName, Queue>,
    /// The number of the last stored letter.
    last_arrival: Arc<AtomicU64>,
    pauses: BTreeMap<ConsumerName, BTreeMap<PauseScope, Pause>>,
    audit: AuditLog,
    values: Values,
    operations: OperationTable,
    fences_forgotten: bool,
}

/// The context of a change of a queue: the time, the audit, the operations, and `true` for fencing.
struct Step<'a> {
    now: Timestamp,
    audit: &'a mut AuditLog,
    operations: &'a mut OperationTable,
    fences_hold: bool,
}

impl MemoryStore {
    /// The capabilities of every store of this kind, known before one is opened.
    pub const CAPABILITIES: Capabilities = {
        let mut capabilities = Capabilities::NONE;
        capabilities.outbox = true;
        capabilities
    };

    /// Creates an empty store with this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let expiry = ExpiryClock::new(clock.clone());
        let shared = Shared { clock, expiry, state: Mutex::default(), feed: ChangeFeed::default() };
        Self { shared: Arc::new(shared) }
    }

    /// The feed of [`changes`](LetterStore::changes). The store itself publishes nothing, because its consumers are in one process; a test
    /// decides which notifications arrive, and which are lost.
    pub fn feed(&self) -> &ChangeFeed {
        &self.shared.feed
    }

    /// Disables fencing: the store accepts settlements under old leases and hand-offs under old grants. For the test that
    /// the simulation detects it.
    #[cfg(feature = "mutations")]
    pub fn forget_fences(&self) {
        self.begin().0.fences_forgotten = true;
    }

    /// Makes each refused command take back the counts of the last settlement of its operation. For the test that the simulation
    /// detects it.
    #[cfg(feature = "mutations")]
    pub fn lose_counts_on_refusal(&self) {
        self.begin().0.operations.loses_counts = true;
    }

    /// Makes polls return letters of operations that people have paused. For the test that the simulation detects it.
    #[cfg(feature = "mutations")]
    pub fn ignore_operation_pauses(&self) {
        self.begin().0.operations.ignores_pauses = true;
    }

    /// Keeps sequences reserved for operations that are over. For the test that the simulation detects it.
    #[cfg(feature = "mutations")]
    pub fn keep_reservations(&self) {
        self.begin().0.operations.keeps_reservations = true;
    }

    /// Takes the lock and then reads the time, so that times follow the order of the calls.
    fn begin(&self) -> (MutexGuard<'_, State>, Timestamp) {
        // No call leaves the state half changed, so it is consistent after a panic, too.
        let state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.shared.clock.now();
        (state, now)
    }

    /// Runs a change on a queue, which is created if necessary.
    fn change<T>(&self, queue: &QueueName, change: impl FnOnce(&mut Queue, Step<'_>) -> T) -> T {
        let (mut state, now) = self.begin();
        let (queue, step) = state.queue_mut(queue, now);
        let answer = change(queue, step);
        state.release_ended();
        answer
    }

    /// Runs a query on a queue; one that does not exist is empty.
    fn ask<T: Default>(&self, queue: &QueueName, question: impl FnOnce(&Queue) -> T) -> T {
        let (state, _) = self.begin();
        state.queues.get(queue).map(question).unwrap_or_default()
    }
}

impl Default for MemoryStore {
    /// Creates an empty store with the system clock.
    fn default() -> Self {
        Self::new(Arc::new(SystemClock))
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (state, now) = self.begin();
        f.debug_struct("MemoryStore")
            .field("now", &now)
            .field("queues", &state.queues.keys())
            .finish_non_exhaustive()
    }
}

impl State {
    fn queue_mut(&mut self, name: &QueueName, now: Timestamp) -> (&mut Queue, Step<'_>) {
        if !self.queues.contains_key(name) {
            let pauses = self.pauses.get(&ConsumerName::from(name.consumer()));
            let paused = pauses.into_iter().flat_map(BTreeMap::keys).filter_map(|scope| match scope {
                PauseScope::Sequence(sequence) => Some(sequence.clone()),
                _ => None,
            });
            let queue = Queue::new(name.clone(), paused.collect(), self.last_arrival.clone());
            self.queues.insert(name.clone(), queue);
        }
        let queue = self.queues.get_mut(name).expect("the queue was made above");
        let fences_hold = !self.fences_forgotten;
        (queue, Step { now, audit: &mut self.audit, operations: &mut self.operations, fences_hold })
    }

    /// Ends the reservations of the operations that ended in this call, in whatever queues they are.
    fn release_ended(&mut self) {
        for id in self.operations.take_ended() {
            self.unreserve(id);
        }
    }

    /// Ends the reservations of an operation that is over.
    fn unreserve(&mut self, id: OperationId) {
        if !self.operations.keeps_reservations {
            self.queues.values_mut().for_each(|queue| queue.unreserve(id));
        }
    }

    /// Marks a sequence as paused or resumed in every queue of the consumer.
    fn mark_sequence(&mut self, consumer: &ConsumerName, sequence: &SequenceId, paused: bool) {
        for queue in self.queues.values_mut().filter(|queue| queue.name.consumer() == consumer.as_str()) {
            queue.set_paused(sequence, paused);
        }
    }
}

#[async_trait]
impl LetterStore for MemoryStore {
    async fn assign(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<Grant>> {
        Ok(self.change(queue, |queue, _| queue.assign(partitions)))
    }

    async fn horizons(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<Option<u64>>> {
        let horizons = self.ask(queue, |queue| Some(queue.horizons(partitions)));
        Ok(horizons.unwrap_or_else(|| vec![None; partitions.len()]))
    }

    async fn opened_since(&self, queue: &QueueName, revision: u64, limit: usize) -> Result<OpenedPage> {
        let page = self.ask(queue, |queue| Some(queue.opened_since(revision, limit)));
        Ok(page.unwrap_or(OpenedPage { sequences: Vec::new(), revision, more: false }))
    }

    async fn hand_off(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>> {
        Ok(self.change(queue, |queue, mut step| queue.hand_off_all(items, limits, &mut step)))
    }

    async fn lookup(&self, queue: &QueueName, messages: &[MessageId]) -> Result<Vec<Option<LetterState>>> {
        // The ids are hashes: computed before the lock is taken.
        let ids: Vec<LetterId> = messages.iter().map(|message| LetterId::of(queue, message)).collect();
        let states = self.ask(queue, |queue| Some(ids.iter().map(|id| queue.state_of(*id)).collect()));
        Ok(states.unwrap_or_else(|| vec![None; messages.len()]))
    }

    async fn note_attempts(&self, queue: &QueueName, notes: Vec<AttemptNote>) -> Result<()> {
        self.change(queue, |queue, _| queue.note_attempts(notes));
        Ok(())
    }

    async fn attempt_notes(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<AttemptNote>> {
        Ok(self.ask(queue, |queue| queue.attempt_notes(partitions)))
    }

    async fn forget_attempts(&self, queue: &QueueName, partition: &Partition, up_to: u64) -> Result<()> {
        self.change(queue, |queue, _| queue.forget_attempts(partition, up_to));
        Ok(())
    }

    async fn claim_due(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Claim>> {
        Ok(self.change(queue, |queue, step| queue.claim_due(owner, lease, limit, step.now)))
    }

    async fn next_due(&self, queue: &QueueName) -> Result<Option<Timestamp>> {
        Ok(self.ask(queue, Queue::next_due))
    }

    async fn claim(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
    ) -> Result<Option<Claim>> {
        Ok(self.change(queue, |queue, step| queue.claim(sequence, owner, lease, step.now)))
    }

    async fn renew(&self, lease: &Lease, duration: Duration, used_for: LeaseUse) -> Result<Lease> {
        self.change(&lease.queue, |queue, step| queue.renew(lease, duration, used_for, &step))
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.change(&lease.queue, |queue, step| queue.release(lease, step));
        Ok(())
    }

    async fn settle(&self, lease: &Lease, letter: LetterId, settlement: Settlement) -> Result<Settled> {
        self.change(&lease.queue, |queue, step| queue.settle(lease, letter, settlement, false, step))
    }

    async fn settle_and_continue(
        &self,
        lease: &Lease,
        letter: LetterId,
        settlement: Settlement,
    ) -> Result<Settled> {
        self.change(&lease.queue, |queue, step| queue.settle(lease, letter, settlement, true, step))
    }

    async fn act(&self, queue: &QueueName, letter: LetterId, act: Act, by: &Actor) -> Result<Letter> {
        self.change(queue, |queue, mut step| queue.act(letter, act, by, &mut step))
    }

    async fn get(&self, queue: &QueueName, letter: LetterId) -> Result<Option<Letter>> {
        Ok(self.ask(queue, |queue| queue.letter(letter).cloned()))
    }

    async fn sequence(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Letter>> {
        Ok(self.ask(queue, |queue| queue.list(sequence, from, limit)))
    }

    async fn heads(&self, queue: &QueueName, after: Option<&str>, limit: usize) -> Result<HeadsPage> {
        let after = after.map(queue::Cursor::parse).transpose()?;
        let page = self.ask(queue, |queue| Some(queue.heads(after, limit)));
        Ok(page.unwrap_or(HeadsPage { heads: Vec::new(), next: None }))
    }

    async fn counts(&self, queue: &QueueName) -> Result<Counts> {
        Ok(self.ask(queue, Queue::counts))
    }

    fn changes(&self, topics: Vec<Topic>) -> Changes {
        self.shared.feed.subscribe(topics)
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        Ok(Self::CAPABILITIES)
    }

    async fn sequence_size(&self, queue: &QueueName, sequence: &SequenceId) -> Result<u64> {
        Ok(self.ask(queue, |queue| queue.row(sequence).map_or(0, |row| row.count)))
    }

    async fn clear(&self, queue: &QueueName, by: &Actor) -> Result<Cleared> {
        Ok(self.change(queue, |queue, step| queue.clear(by, step)))
    }

    async fn set_pause(
        &self,
        consumer: &ConsumerName,
        scope: &PauseScope,
        paused: bool,
        by: &Actor,
    ) -> Result<bool> {
        let (mut state, now) = self.begin();
        let scopes = state.pauses.entry(consumer.clone()).or_default();
        let before = match paused {
            true => {
                let pause = Pause { scope: scope.clone(), by: by.clone(), since: now };
                scopes.insert(scope.clone(), pause).is_some()
            }
            false => scopes.remove(scope).is_some(),
        };
        if let PauseScope::Sequence(sequence) = scope {
            state.mark_sequence(consumer, sequence, paused);
        }
        if let Some(line) = rules::pause_audit(consumer, scope, before, paused, by) {
            state.audit.write(now, line);
        }
        Ok(before)
    }

    async fn pauses(&self, consumer: &ConsumerName) -> Result<Vec<Pause>> {
        let (state, _) = self.begin();
        Ok(state.pauses.get(consumer).map(|scopes| scopes.values().cloned().collect()).unwrap_or_default())
    }

    async fn incarnations(&self, consumer: &ConsumerName) -> Result<Incarnations> {
        read_incarnations(self, consumer).await
    }

    async fn begin_incarnation(
        &self,
        consumer: &ConsumerName,
        beginning: &Beginning,
    ) -> Result<Incarnations> {
        begin_incarnation(self, consumer, beginning).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_can_be_shared_between_threads() {
        fn shareable<T: Clone + Send + Sync + 'static>(_: &T) {}
        shareable(&MemoryStore::default());
    }
}
