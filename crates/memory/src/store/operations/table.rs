//! The plans, the operations, and what became of each letter.

use std::collections::BTreeMap;

use jiff::Timestamp;
use lazaret_core::letter::{LetterId, LetterState};
use lazaret_core::store::{
    Actor, Item, Operation, OperationId, OperationMachine, OperationsPage, Outcome, Plan, PlanId,
};
use lazaret_core::{QueueName, SequenceId};

use crate::store::audit::AuditLog;
use crate::store::later;

#[derive(Default)]
pub(in crate::store) struct OperationTable {
    plans: BTreeMap<PlanId, PlanRow>,
    last_plan: u64,
    operations: BTreeMap<OperationId, OperationRow>,
}

struct PlanRow {
    plan: Plan,
    items: Vec<ItemRow>,
    /// Where each letter stands.
    places: BTreeMap<LetterId, usize>,
    /// So many items from the first on have their outcome.
    done: usize,
}

pub(super) struct ItemRow {
    pub(super) queue: QueueName,
    pub(super) sequence: SequenceId,
    pub(super) letter: LetterId,
    /// The state of the letter when it was frozen.
    pub(super) state: LetterState,
    /// The ordinal of the last letter of its sequence.
    pub(super) last: usize,
    pub(super) outcome: Option<Outcome>,
}

struct OperationRow {
    machine: OperationMachine,
    /// When a letter last had its turn.
    served_at: Option<Timestamp>,
}

/// One letter of an operation whose turn may come.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    pub(super) ordinal: usize,
    pub(super) last: usize,
    pub(super) letter: LetterId,
    pub(super) state: LetterState,
}

impl PlanRow {
    fn pending(&self, ordinal: usize) -> Option<Pending> {
        let item = self.items.get(ordinal).filter(|item| item.outcome.is_none())?;
        Some(Pending { ordinal, last: item.last, letter: item.letter, state: item.state })
    }
}

impl OperationTable {
    pub(super) fn next_plan(&mut self) -> PlanId {
        self.last_plan += 1;
        PlanId(self.last_plan)
    }

    /// Forgets some plans that nobody can carry out any more.
    pub(super) fn forget_old(&mut self, now: Timestamp) {
        let plans = self.plans.values().map(|row| &row.plan);
        let is_old = |plan: &&Plan| later(plan.expires_at, Plan::KEPT_FOR) <= now;
        let mut old: Vec<(Timestamp, PlanId)> = plans
            .filter(is_old)
            .filter(|plan| !self.is_carried_out(plan.id))
            .map(|plan| (plan.expires_at, plan.id))
            .collect();
        old.sort_unstable();
        for (_, plan) in old.into_iter().take(Plan::FORGOTTEN_AT_ONCE) {
            self.plans.remove(&plan);
        }
    }

    pub(super) fn insert_plan(&mut self, plan: Plan, items: Vec<ItemRow>) {
        let places = items.iter().enumerate().map(|(place, item)| (item.letter, place)).collect();
        self.plans.insert(plan.id, PlanRow { plan, items, places, done: 0 });
    }

    pub(super) fn plan(&self, id: PlanId) -> Option<&Plan> {
        self.plans.get(&id).map(|row| &row.plan)
    }

    pub(super) fn is_carried_out(&self, plan: PlanId) -> bool {
        self.operations.values().any(|row| row.machine.operation.plan == plan)
    }

    pub(super) fn next_operation(&self) -> OperationId {
        OperationId(self.operations.len() as u64 + 1)
    }

    pub(super) fn insert(&mut self, machine: OperationMachine) {
        self.operations.insert(machine.operation.id, OperationRow { machine, served_at: None });
    }

    pub(super) fn machine(&self, id: OperationId) -> Option<&OperationMachine> {
        self.operations.get(&id).map(|row| &row.machine)
    }

    pub(super) fn write(&mut self, machine: OperationMachine) {
        if let Some(row) = self.operations.get_mut(&machine.operation.id) {
            row.machine = machine;
        }
    }

    pub(super) fn mark_served(&mut self, id: OperationId, now: Timestamp) {
        if let Some(row) = self.operations.get_mut(&id) {
            row.served_at = Some(now);
        }
    }

    /// The operations that have letters of this queue without an outcome, the one served longest ago first.
    pub(super) fn live(&self, queue: &QueueName) -> Vec<OperationId> {
        let live = self.operations.values().filter(|row| {
            let plan = row.machine.operation.plan;
            row.machine.pending() > 0 && self.next_pending(plan, queue, 0).is_some()
        });
        let mut live: Vec<_> = live.map(|row| (row.served_at, row.machine.operation.id)).collect();
        live.sort_unstable();
        live.into_iter().map(|(_, id)| id).collect()
    }

    pub(super) fn page(&self, before: Option<OperationId>, limit: usize) -> OperationsPage {
        let before = before.unwrap_or(OperationId(u64::MAX));
        let mut rest = self.operations.range(..before).rev();
        let page = rest.by_ref().take(limit.max(1));
        let operations: Vec<Operation> = page.map(|(_, row)| row.machine.operation.clone()).collect();
        let more = rest.next().is_some();
        let next = operations.last().filter(|_| more).map(|last| last.id);
        OperationsPage { operations, next }
    }

    /// Those that are not over, the latest first.
    pub(super) fn under_way(&self, limit: usize) -> Vec<Operation> {
        let latest_first = self.operations.values().rev().map(|row| &row.machine.operation);
        latest_first.filter(|operation| !operation.state.is_over()).take(limit).cloned().collect()
    }

    pub(super) fn items(&self, plan: PlanId, from: u64, limit: usize) -> Vec<Item> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let items = self.plans.get(&plan).map(|row| row.items.as_slice()).unwrap_or_default();
        let items = items.iter().enumerate().skip(from).take(limit).map(|(ordinal, item)| Item {
            ordinal: ordinal as u64,
            queue: item.queue.clone(),
            sequence: item.sequence.clone(),
            letter: item.letter,
            outcome: item.outcome,
        });
        items.collect()
    }

    /// The next letter of this queue without an outcome, from this ordinal on.
    pub(super) fn next_pending(&self, plan: PlanId, queue: &QueueName, from: usize) -> Option<Pending> {
        let row = self.plans.get(&plan)?;
        let of_queue = |ordinal: &usize| row.items[*ordinal].queue == *queue;
        let mut rest = (from.max(row.done)..row.items.len()).filter(of_queue);
        rest.find_map(|ordinal| row.pending(ordinal))
    }

    /// Every letter without an outcome.
    pub(super) fn all_pending(&self, plan: PlanId) -> Vec<(QueueName, Pending)> {
        let Some(row) = self.plans.get(&plan) else { return Vec::new() };
        let pending = (row.done..row.items.len()).filter_map(|ordinal| row.pending(ordinal));
        pending.map(|item| (row.items[item.ordinal].queue.clone(), item)).collect()
    }

    /// Whether this letter is part of an operation that is not over and has no outcome there yet.
    pub(super) fn holds(&self, letter: LetterId) -> bool {
        self.is_in_earlier(letter, OperationId(u64::MAX))
    }

    /// Whether an operation that was begun before this one, and is not over, has this letter still before it.
    pub(super) fn is_in_earlier(&self, letter: LetterId, id: OperationId) -> bool {
        let earlier = self.operations.range(..id).map(|(_, row)| &row.machine.operation);
        earlier.filter(|operation| !operation.state.is_over()).any(|operation| {
            let plan = self.plans.get(&operation.plan);
            plan.is_some_and(|row| row.places.get(&letter).is_some_and(|place| row.pending(*place).is_some()))
        })
    }

    /// Writes down what became of the letters with these ordinals that have no outcome. How many.
    fn write_outcomes(
        &mut self,
        plan: PlanId,
        ordinals: std::ops::RangeInclusive<usize>,
        outcome: Outcome,
    ) -> u64 {
        let Some(row) = self.plans.get_mut(&plan) else { return 0 };
        let mut written = 0;
        for ordinal in ordinals {
            if let Some(item) = row.items.get_mut(ordinal).filter(|item| item.outcome.is_none()) {
                item.outcome = Some(outcome);
                written += 1;
            }
        }
        while row.items.get(row.done).is_some_and(|item| item.outcome.is_some()) {
            row.done += 1;
        }
        written
    }

    /// Gives one letter its outcome and counts it. Write the machine after it.
    pub(super) fn settle_one(
        &mut self,
        machine: &mut OperationMachine,
        ordinal: usize,
        outcome: Outcome,
        now: Timestamp,
    ) {
        let written = self.write_outcomes(machine.operation.plan, ordinal..=ordinal, outcome);
        machine.count(outcome, written, now);
    }

    /// Moves an operation on as far as it goes. Write the machine after it.
    pub(super) fn advance(&self, machine: &mut OperationMachine, now: Timestamp, audit: &mut AuditLog) {
        let before = machine.operation.state;
        let row = self.plans.get(&machine.operation.plan);
        let pending = row.filter(|row| row.done < row.items.len()).map(|row| row.done as u64);
        if machine.advance(pending, now) {
            let operation = &machine.operation;
            let by = Actor::engine(operation.note.clone().unwrap_or_default());
            let (before, after) = (Some(before.as_str()), Some(operation.state.as_str()));
            audit.write(now, &by, "pause", operation.id.to_string(), before, after);
        }
    }

    /// Writes down what became of a letter under a lease that was taken for an operation. Whether the operation goes on
    /// with the letters behind it.
    pub(in crate::store) fn settle_item(
        &mut self,
        operation: OperationId,
        letter: LetterId,
        outcome: Outcome,
        now: Timestamp,
        audit: &mut AuditLog,
    ) -> bool {
        let Some(mut machine) = self.machine(operation).cloned() else { return false };
        let Some(item) = self.pending_letter(machine.operation.plan, letter) else { return false };
        self.settle_one(&mut machine, item.ordinal, outcome, now);
        if outcome == Outcome::FailedAgain {
            // I2: nothing behind it may overtake it.
            let behind = item.ordinal + 1..=item.last;
            let behind = self.write_outcomes(machine.operation.plan, behind, Outcome::SkippedBehindFailed);
            machine.count(Outcome::SkippedBehindFailed, behind, now);
        }
        self.advance(&mut machine, now, audit);
        let is_over = machine.operation.state.is_over();
        self.write(machine);
        outcome == Outcome::Ok && item.ordinal < item.last && !is_over
    }

    /// A lease that was taken for an operation is given back without a settlement: the turn comes again, unless the
    /// operation is over.
    pub(in crate::store) fn give_back_item(
        &mut self,
        operation: OperationId,
        letter: LetterId,
        now: Timestamp,
    ) {
        let Some(mut machine) = self.machine(operation).cloned() else { return };
        let item = self.pending_letter(machine.operation.plan, letter);
        if let Some(item) = item.filter(|_| machine.operation.state.is_over()) {
            self.settle_one(&mut machine, item.ordinal, Outcome::SkippedCancelled, now);
            self.write(machine);
        }
    }

    fn pending_letter(&self, plan: PlanId, letter: LetterId) -> Option<Pending> {
        let row = self.plans.get(&plan)?;
        row.pending(*row.places.get(&letter)?)
    }
}
