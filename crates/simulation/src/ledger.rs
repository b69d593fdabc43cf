//! The ledger of operations: what the store let each of them do, letter by letter, and the checks that the store tells the same.
//!
//! Every command, poll and settlement is entered at the moment when the store carries it out, whether its caller learns of that or not.
//! For the entries of a replay nothing is read: what a store keeps for later has to survive the calls between. Where the answer to a
//! command follows from the ledger, the store has to give that answer. Otherwise only the store knows it: an operation ends, and its stop
//! rule pauses it, without a command.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lazaret_core::store::{
    Act, Action, Actor, AuditEntry, Command, Item, Lease, Operation, OperationId, Outcome, PauseScope,
    PlanId, PolledWork, Result, Settled,
};
use lazaret_core::{ConsumerName, Letter, LetterId, MessageId, QueueName, SequenceId};

use crate::commanded::Commanded;
use crate::operators::Armed;
use crate::random::Random;
use crate::world::{CONSUMER, Process, World};

/// More letters than one operation has, and more audit entries than all operations of a run have.
pub(crate) const ITEMS_LIMIT: usize = 10_000;

/// The operations of a run.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    operations: BTreeMap<OperationId, Commanded>,
    /// The leases under which letters of operations run. No fence is given twice.
    leases: BTreeMap<(QueueName, SequenceId, u64), OperationId>,
    /// The commands that wait for a settlement.
    armed: BTreeMap<OperationId, Armed>,
}

/// The key of a lease.
fn key(lease: &Lease) -> (QueueName, SequenceId, u64) {
    (lease.queue.clone(), lease.sequence.clone(), lease.fence)
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters an operation that was begun, with the names of the messages of its letters.
    pub(crate) fn begun(
        &self,
        component: usize,
        operation: &Operation,
        messages: BTreeMap<LetterId, MessageId>,
    ) {
        let commanded = Commanded::begun(component, operation, messages);
        self.lock().operations.insert(operation.id, commanded);
    }

    /// Draws an operation for a command, most often one that is not known to be over.
    pub(crate) fn pick(&self, random: &mut Random) -> Option<OperationId> {
        let entries = self.lock();
        let all: Vec<&Commanded> = entries.operations.values().collect();
        let open: Vec<&Commanded> = all.iter().copied().filter(|known| !known.is_over()).collect();
        let from = if random.chance(250) || open.is_empty() { all } else { open };
        if from.is_empty() { None } else { Some(random.pick(&from).id) }
    }

    /// Keeps a command for the next settlement of a letter of the operation.
    pub(crate) fn arm(&self, id: OperationId, armed: Armed) {
        self.lock().armed.insert(id, armed);
    }

    /// The command that was kept for this moment of a settlement, once.
    pub(crate) fn take_armed(&self, id: OperationId, is_before: bool) -> Option<Armed> {
        let mut entries = self.lock();
        entries.armed.get(&id).filter(|armed| armed.is_before == is_before)?;
        entries.armed.remove(&id)
    }

    /// Forgets the commands that were kept.
    pub(crate) fn disarm(&self) {
        self.lock().armed.clear();
    }

    /// The operations that are not known to be over with all of their letters.
    pub(crate) fn unfinished(&self) -> Vec<OperationId> {
        let entries = self.lock();
        entries.operations.values().filter(|known| !known.is_finished).map(|known| known.id).collect()
    }

    /// The operation is over, with all of its letters.
    pub(crate) fn finished(&self, id: OperationId) {
        if let Some(known) = self.lock().operations.get_mut(&id) {
            known.is_finished = true;
        }
    }

    /// Enters the answer to a command. Returns what is wrong with it.
    pub(crate) fn answered(
        &self,
        id: OperationId,
        command: Command,
        by: &Actor,
        answer: &Result<Operation>,
    ) -> Option<String> {
        self.lock().operations.get_mut(&id)?.answered(command, by, answer)
    }

    /// The operation of a lease.
    pub(crate) fn operation_of(&self, lease: &Lease) -> Option<OperationId> {
        self.lock().leases.get(&key(lease)).copied()
    }

    fn ids(&self) -> Vec<OperationId> {
        self.lock().operations.keys().copied().collect()
    }

    /// The operations whose acts a poll of this component may have performed, and their plans.
    fn acting(&self, component: usize) -> Vec<(OperationId, PlanId)> {
        let entries = self.lock();
        let unfinished = entries.operations.values().filter(|known| !known.is_finished);
        let acting = unfinished.filter(|known| known.action != Action::Retry && known.component == component);
        acting.map(|known| (known.id, known.plan)).collect()
    }
}

impl World {
    /// The store gave these letters to a process, and may have performed acts.
    pub(crate) async fn polled(&self, process: u64, queue: &QueueName, work: &PolledWork) {
        for item in &work.items {
            self.ledger.lock().leases.insert(key(&item.claim.lease), item.operation);
            self.sends(item.operation, process, &item.claim.head);
        }
        let Some(component) = self.queues.iter().position(|known| known == queue) else { return };
        if work.settled == 0 {
            return;
        }
        for (id, plan) in self.ledger.acting(component) {
            let items = self.store.outcomes(plan, 0, ITEMS_LIMIT).await.unwrap_or_default();
            self.acts(id, component, &items);
        }
    }

    fn sends(&self, id: OperationId, process: u64, letter: &Letter) {
        let now = self.store_time();
        let fault = match self.ledger.lock().operations.get_mut(&id) {
            Some(known) => known.send(letter.id, process, now),
            None => Some(format!("{id} sends letter {}, and was never begun", letter.id)),
        };
        self.report_operation(fault);
    }

    /// Enters the acts of an operation that are new, as those of an operator.
    fn acts(&self, id: OperationId, component: usize, items: &[Item]) {
        let now = self.store_time();
        let found = {
            let mut entries = self.ledger.lock();
            let known = entries.operations.get_mut(&id);
            known.map(|known| (known.action.act(), known.act(items, now)))
        };
        let Some((act, (messages, fault))) = found else { return };
        self.report_operation(fault);
        for message in &messages {
            self.operator_acted(component, message, act == Some(Act::Evict), act == Some(Act::Release));
        }
    }

    /// The store accepted a settlement.
    pub(crate) fn settled(
        &self,
        process: u64,
        lease: &Lease,
        letter: LetterId,
        outcome: Outcome,
        settled: &Settled,
    ) {
        let Some(id) = self.ledger.operation_of(lease) else { return };
        let fault =
            self.ledger.lock().operations.get_mut(&id).and_then(|known| known.settle(letter, outcome));
        self.report_operation(fault);
        match settled {
            Settled::Next(next) => self.sends(id, process, next),
            Settled::Closed | Settled::Blocked | Settled::Requeued => {
                self.ledger.lock().leases.remove(&key(lease));
            }
        }
    }

    /// A process replays a letter for an operation only if the store gave it to that process.
    pub(crate) fn check_sent(&self, process: &Process, replay: &str, letter: &Letter) {
        // Other replays are no operations of the store.
        let Ok(id) = replay.parse::<OperationId>() else { return };
        let number = process.number;
        let was_sent = {
            let entries = self.ledger.lock();
            let known = entries.operations.get(&id);
            known.is_some_and(|known| known.has_sent(letter.id, number))
        };
        let fault = format!("process {number} replays letter {}, which {id} has not sent to it", letter.id);
        self.report_operation((!was_sent).then_some(fault));
    }

    /// Reports what is wrong with an operation.
    pub(crate) fn report_operation(&self, fault: Option<String>) {
        if let Some(fault) = fault {
            self.violated("operation", &fault);
        }
    }

    /// An operation and its letters.
    pub(crate) fn read_operation(&self, id: OperationId) -> Option<(Operation, Vec<Item>)> {
        let operation = self.run(self.store.operation(id)).ok().flatten()?;
        let items = self.run(self.store.items(id, 0, ITEMS_LIMIT)).ok()?;
        Some((operation, items))
    }

    /// The state and the counters of every operation follow from its commands, and from what happened to its letters.
    pub(crate) fn check_operations(&self) {
        for id in self.ledger.ids() {
            let Some((operation, items)) = self.read_operation(id) else {
                self.report_operation(Some(format!("{id} is gone")));
                continue;
            };
            let faults = match self.ledger.lock().operations.get_mut(&id) {
                Some(known) => known.compare(&operation, &items, self.plan.clock_steps),
                None => Vec::new(),
            };
            faults.into_iter().for_each(|fault| self.report_operation(Some(fault)));
        }
    }

    /// At the end of the run every operation is over, with all of its letters, and the audit has the commands that were accepted, and no
    /// others.
    pub(crate) fn check_ended_operations(&self) {
        self.check_operations();
        let ids = self.ledger.ids();
        if ids.is_empty() {
            return;
        }
        let subjects: Vec<String> = ids.iter().map(OperationId::to_string).collect();
        let mut audit = self.run(self.store.audit_about(&subjects, ITEMS_LIMIT)).unwrap_or_default();
        audit.sort_unstable_by_key(|entry| entry.number);
        for (id, subject) in ids.into_iter().zip(subjects) {
            let Some((operation, items)) = self.read_operation(id) else { continue };
            let (state, left) = (operation.state, items.iter().filter(|item| item.outcome.is_none()).count());
            if !state.is_over() || left > 0 {
                self.report_operation(Some(format!("{id} is {state} at the end, with {left} letters left")));
            }
            let entries: Vec<&AuditEntry> = audit.iter().filter(|entry| entry.subject == subject).collect();
            let fault = match self.ledger.lock().operations.get(&id) {
                Some(known) => known.compare_audit(&operation, &entries),
                None => Some(format!("{id} was never begun")),
            };
            self.report_operation(fault);
        }
    }

    /// At the end of the run no sequence waits for an operation that is over: a head that runs by itself was due, and has run. A sequence
    /// that the store holds back is not due, so nothing else misses it.
    pub(crate) fn check_released(&self) {
        let pauses = self.run(self.store.pauses(&ConsumerName::from(CONSUMER))).unwrap_or_default();
        let scopes: BTreeSet<PauseScope> = pauses.into_iter().map(|pause| pause.scope).collect();
        for queue in &self.queues {
            // What is due, and was not run, is work that was left.
            if self.run(self.store.next_due(queue)).unwrap_or_default().is_some() {
                continue;
            }
            let Ok(page) = self.run(self.store.heads(queue, None, ITEMS_LIMIT)) else { continue };
            let held = page.heads.iter().find(|head| {
                head.state.is_automatic() && !scopes.contains(&PauseScope::Sequence(head.sequence.clone()))
            });
            self.report_operation(held.map(|head| {
                let Letter { message, sequence, state, .. } = head;
                format!("{} is {state} at the head of {sequence} of {queue}, and is never due", message.id)
            }));
        }
    }
}
