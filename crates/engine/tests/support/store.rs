//! A store that fails, waits and counts as a test wants, and otherwise does what the memory store does.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::query::Query;
use lazaret_core::store::{
    Act, Actor, AttemptNote, Audit, AuditEntry, AuditNote, Change, Claim, Cleared, Command, Counts,
    ErrorKind, Expired, Grant, Group, GroupId, GroupsPage, GroupsRequest, HandOff, HeadsPage, Item, Lease,
    LetterStore, LettersPage, Limits, Matches, OpenedPage, Operation, OperationId, Operations,
    OperationsPage, Pause, PauseScope, Placed, Plan, PlanId, PlanRequest, PolledWork, QueueSummary, Result,
    RolloutPolicy, Settled, Settlement, StoreError, Triage,
};
use lazaret_core::{
    ConsumerName, Letter, LetterId, LetterState, MessageId, Partition, QueueName, SequenceId, Timestamp,
};
use lazaret_memory::MemoryStore;

/// A memory store behind a bad line.
pub(crate) struct FaultyStore {
    inner: MemoryStore,
    behaviour: Mutex<Behaviour>,
}

#[derive(Default)]
struct Behaviour {
    failing: BTreeMap<&'static str, ErrorKind>,
    all_failing: bool,
    slow: BTreeMap<&'static str, Duration>,
    late: BTreeMap<&'static str, Duration>,
    calls: BTreeMap<&'static str, usize>,
}

impl FaultyStore {
    pub(crate) fn new(inner: MemoryStore) -> Self {
        Self { inner, behaviour: Mutex::default() }
    }

    /// The store behind the line, which never fails.
    pub(crate) fn memory(&self) -> &MemoryStore {
        &self.inner
    }

    /// Lets every call fail as unavailable, or no longer.
    pub(crate) fn set_down(&self, down: bool) {
        self.lock().all_failing = down;
    }

    /// Lets one call fail in this way.
    pub(crate) fn fail(&self, operation: &'static str, kind: ErrorKind) {
        self.lock().failing.insert(operation, kind);
    }

    /// Lets one call succeed again.
    pub(crate) fn mend(&self, operation: &'static str) {
        self.lock().failing.remove(operation);
    }

    /// Lets one call take this long before it does anything.
    pub(crate) fn slow_down(&self, operation: &'static str, by: Duration) {
        self.lock().slow.insert(operation, by);
    }

    /// Lets the answer to one call come this long after it was given.
    pub(crate) fn answer_late(&self, operation: &'static str, by: Duration) {
        self.lock().late.insert(operation, by);
    }

    /// How often a call was made.
    pub(crate) fn calls(&self, operation: &str) -> usize {
        self.lock().calls.get(operation).copied().unwrap_or(0)
    }

    async fn pass(&self, operation: &'static str) -> Result<()> {
        let slow = {
            let mut behaviour = self.lock();
            *behaviour.calls.entry(operation).or_default() += 1;
            behaviour.slow.get(operation).copied()
        };
        if let Some(delay) = slow {
            tokio::time::sleep(delay).await;
        }
        let behaviour = self.lock();
        let kind = match behaviour.failing.get(operation) {
            Some(kind) => *kind,
            None if behaviour.all_failing => ErrorKind::Unavailable,
            None => return Ok(()),
        };
        Err(StoreError::not_done(kind, operation, "broken on purpose"))
    }

    async fn on_its_way(&self, operation: &'static str) {
        let late = self.lock().late.get(operation).copied().unwrap_or_default();
        if !late.is_zero() {
            tokio::time::sleep(late).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Behaviour> {
        self.behaviour.lock().expect("no test panics here")
    }
}

/// Writes a trait's implementation that passes every call on, unless it is to fail.
macro_rules! delegate {
    ($trait:ident { $(fn $name:ident(&self $(, $argument:ident: $type:ty)* $(,)?) -> $answer:ty;)+ }) => {
        #[async_trait]
        impl $trait for FaultyStore {
            $(async fn $name(&self $(, $argument: $type)*) -> Result<$answer> {
                self.pass(stringify!($name)).await?;
                let answer = $trait::$name(&self.inner $(, $argument)*).await;
                self.on_its_way(stringify!($name)).await;
                answer
            })+
        }
    };
}

delegate! { LetterStore {
    fn assign(&self, queue: &QueueName, partitions: &[Partition]) -> Vec<Grant>;
    fn opened_since(&self, queue: &QueueName, revision: u64, limit: usize) -> OpenedPage;
    fn hand_off(&self, queue: &QueueName, limits: &Limits, items: Vec<HandOff>) -> Vec<Result<Placed>>;
    fn lookup(&self, queue: &QueueName, messages: &[MessageId]) -> Vec<Option<LetterState>>;
    fn note_attempts(&self, queue: &QueueName, notes: Vec<AttemptNote>) -> ();
    fn attempt_notes(&self, queue: &QueueName, partitions: &[Partition]) -> Vec<AttemptNote>;
    fn forget_attempts(&self, queue: &QueueName, partition: &Partition, up_to: u64) -> ();
    fn claim_due(&self, queue: &QueueName, owner: &str, lease: Duration, limit: usize) -> Vec<Claim>;
    fn next_due(&self, queue: &QueueName) -> Option<Timestamp>;
    fn claim(
        &self, queue: &QueueName, sequence: &SequenceId, owner: &str, lease: Duration,
    ) -> Option<Claim>;
    fn renew(&self, lease: &Lease, duration: Duration) -> Lease;
    fn release(&self, lease: &Lease) -> ();
    fn settle(&self, lease: &Lease, letter: LetterId, settlement: Settlement) -> Settled;
    fn act(&self, queue: &QueueName, letter: LetterId, act: Act, by: &Actor) -> Letter;
    fn get(&self, queue: &QueueName, letter: LetterId) -> Option<Letter>;
    fn sequence(&self, queue: &QueueName, sequence: &SequenceId, from: u64, limit: usize) -> Vec<Letter>;
    fn heads(&self, queue: &QueueName, after: Option<&str>, limit: usize) -> HeadsPage;
    fn counts(&self, queue: &QueueName) -> Counts;
    fn sequence_size(&self, queue: &QueueName, sequence: &SequenceId) -> u64;
    fn is_full(&self, queue: &QueueName, sequence: &SequenceId, limits: &Limits) -> bool;
    fn clear(&self, queue: &QueueName, by: &Actor) -> Cleared;
    fn set_pause(&self, consumer: &ConsumerName, scope: &PauseScope, paused: bool, by: &Actor) -> bool;
    fn pauses(&self, consumer: &ConsumerName) -> Vec<Pause>;
} }

delegate! { Audit {
    fn note(&self, note: &AuditNote, by: &Actor) -> ();
    fn audit(&self, after: u64, limit: usize) -> Vec<AuditEntry>;
} }

delegate! { Triage {
    fn find(&self, query: &Query, after: Option<&str>, limit: usize) -> LettersPage;
    fn count(&self, query: &Query) -> Matches;
    fn groups(&self, request: &GroupsRequest) -> GroupsPage;
    fn group(&self, id: &GroupId) -> Option<Group>;
    fn queues(&self) -> Vec<QueueSummary>;
    fn change(&self, queue: &QueueName, letter: LetterId, change: &Change, by: &Actor) -> Letter;
    fn purge(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> ();
    fn expire(&self, queue: &QueueName, closed_before: Option<Timestamp>, limit: usize) -> Expired;
} }

delegate! { Operations {
    fn freeze(&self, request: &PlanRequest, by: &Actor) -> Plan;
    fn plan(&self, id: PlanId) -> Option<Plan>;
    fn outcomes(&self, plan: PlanId, from: u64, limit: usize) -> Vec<Item>;
    fn begin(&self, plan: PlanId, rollout: &RolloutPolicy, by: &Actor) -> Operation;
    fn operations(&self, before: Option<OperationId>, limit: usize) -> OperationsPage;
    fn command(&self, id: OperationId, command: Command, by: &Actor) -> Operation;
    fn poll_work(&self, queue: &QueueName, owner: &str, lease: Duration, limit: usize) -> PolledWork;
} }
