//! The plans, the operations, and the outcomes of their letters.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use jiff::Timestamp;
use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::store::rules::{
    self, Frozen, FrozenItem, ItemOutcomes, ItemView, Pending, SequenceRow, later,
};
use lazaret_core::store::{
    Item, Operation, OperationId, OperationMachine, OperationState, OperationsPage, Outcome, PayloadDigest,
    Plan, PlanId,
};
use lazaret_core::{QueueName, SequenceId};

use crate::store::audit::AuditLog;

#[derive(Default)]
pub(in crate::store) struct OperationTable {
    plans: BTreeMap<PlanId, PlanRow>,
    last_plan: u64,
    operations: BTreeMap<OperationId, OperationRow>,
    /// A known bug: a refused command takes back the counts of the last settlement.
    pub(in crate::store) loses_counts: bool,
    /// A known bug: letters of operations that people have paused are polled.
    pub(in crate::store) ignores_pauses: bool,
    /// A known bug: sequences stay reserved for operations that are over.
    pub(in crate::store) keeps_reservations: bool,
    /// The operations that ended in this call.
    ended: Vec<OperationId>,
}

struct PlanRow {
    plan: Plan,
    items: Vec<FrozenItem>,
    /// The outcome of each.
    outcomes: Vec<Option<Outcome>>,
    /// The index of each letter.
    places: BTreeMap<LetterId, usize>,
    /// Number of leading items that have their outcome.
    done: usize,
}

struct OperationRow {
    machine: OperationMachine,
    /// When a letter of it was last tried or acted upon.
    served_at: Option<Timestamp>,
    /// The counters before the last settlement: ok, failed again, skipped. Only for the bug that takes them back.
    counts_before: Option<[u64; 3]>,
}

impl PlanRow {
    fn pending(&self, ordinal: usize) -> Option<Pending> {
        let item = self.items.get(ordinal).filter(|_| self.outcomes[ordinal].is_none())?;
        let FrozenItem { last, letter, state, digest, .. } = *item;
        Some(Pending { ordinal: ordinal as u64, last, letter, state, digest: Some(digest) })
    }
}

/// An ordinal as an index.
fn place(ordinal: u64) -> usize {
    usize::try_from(ordinal).unwrap_or(usize::MAX)
}

impl OperationTable {
    /// The pace of letters that an operation lets run automatically, if it has a rate.
    pub(in crate::store) fn pace_released(
        &mut self,
        id: OperationId,
        letters: u64,
        now: Timestamp,
    ) -> Option<rules::Pace> {
        self.operations.get_mut(&id)?.machine.pace_released(letters, now)
    }

    pub(super) fn next_plan(&self) -> PlanId {
        PlanId(self.last_plan + 1)
    }

    /// Deletes some expired plans without an operation.
    pub(super) fn delete_expired_plans(&mut self, now: Timestamp) {
        let plans = self.plans.values().map(|row| &row.plan);
        let is_old = |plan: &&Plan| later(plan.expires_at, Plan::RETENTION) <= now;
        let mut old: Vec<(Timestamp, PlanId)> = plans
            .filter(is_old)
            .filter(|plan| !self.is_carried_out(plan.id))
            .map(|plan| (plan.expires_at, plan.id))
            .collect();
        old.sort_unstable();
        for (_, plan) in old.into_iter().take(Plan::DELETED_PER_FREEZE) {
            self.plans.remove(&plan);
        }
    }

    pub(super) fn insert_plan(&mut self, frozen: Frozen) {
        let Frozen { plan, items } = frozen;
        self.last_plan = plan.id.0;
        let places = items.iter().enumerate().map(|(place, item)| (item.letter, place)).collect();
        let outcomes = vec![None; items.len()];
        self.plans.insert(plan.id, PlanRow { plan, items, outcomes, places, done: 0 });
    }

    pub(super) fn plan(&self, id: PlanId) -> Option<&Plan> {
        self.plans.get(&id).map(|row| &row.plan)
    }

    /// The plans from which an operation can be started, the latest first.
    pub(super) fn drafts(&self, before: Option<PlanId>, limit: usize, now: Timestamp) -> Vec<Plan> {
        let plans = self.plans.range(..before.unwrap_or(PlanId(u64::MAX))).rev().map(|(_, row)| &row.plan);
        let drafts = plans.filter(|plan| !plan.is_expired(now) && !self.is_carried_out(plan.id));
        drafts.take(limit).cloned().collect()
    }

    pub(super) fn is_carried_out(&self, plan: PlanId) -> bool {
        self.operations.values().any(|row| row.machine.operation.plan == plan)
    }

    pub(super) fn next_operation(&self) -> OperationId {
        OperationId(self.operations.len() as u64 + 1)
    }

    pub(super) fn insert(&mut self, machine: OperationMachine) {
        self.operations
            .insert(machine.operation.id, OperationRow { machine, served_at: None, counts_before: None });
    }

    pub(super) fn machine(&self, id: OperationId) -> Option<&OperationMachine> {
        self.operations.get(&id).map(|row| &row.machine)
    }

    pub(super) fn write(&mut self, machine: OperationMachine) {
        if let Some(row) = self.operations.get_mut(&machine.operation.id) {
            row.machine = machine;
        }
    }

    /// A command to this operation was refused, which changes nothing without the known bug.
    pub(super) fn refused(&mut self, id: OperationId) {
        let Some(row) = self.operations.get_mut(&id) else { return };
        let Some([ok, failed_again, skipped]) = row.counts_before.take() else { return };
        let OperationMachine { operation, counted_ok, counted_failed, .. } = &mut row.machine;
        (operation.ok, operation.failed_again, operation.skipped) = (ok, failed_again, skipped);
        // The stop rule subtracts these.
        (*counted_ok, *counted_failed) = (ok.min(*counted_ok), failed_again.min(*counted_failed));
    }

    /// `true` with the known bug, for an operation that a person has paused.
    pub(super) fn ignores_pause_of(&self, operation: &Operation) -> bool {
        self.ignores_pauses && operation.state == OperationState::Paused && !operation.is_stopped()
    }

    pub(super) fn mark_served(&mut self, id: OperationId, now: Timestamp) {
        if let Some(row) = self.operations.get_mut(&id) {
            row.served_at = Some(now);
        }
    }

    /// The operations that have letters of this queue without an outcome, the least recently served first.
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

    /// The unfinished ones, the latest first.
    pub(super) fn under_way(&self, limit: usize) -> Vec<Operation> {
        let latest_first = self.operations.values().rev().map(|row| &row.machine.operation);
        latest_first.filter(|operation| !operation.state.is_over()).take(limit).cloned().collect()
    }

    pub(super) fn items(&self, plan: PlanId, from: u64, limit: usize) -> Vec<Item> {
        let Some(row) = self.plans.get(&plan) else { return Vec::new() };
        let items = row.items.iter().zip(&row.outcomes).enumerate().skip(place(from)).take(limit);
        let items = items.map(|(ordinal, (item, outcome))| Item {
            ordinal: ordinal as u64,
            queue: item.queue.clone(),
            sequence: item.sequence.clone(),
            letter: item.letter,
            digest: Some(item.digest),
            outcome: *outcome,
        });
        items.collect()
    }

    /// The sequence of a letter of an operation when the plan was frozen. The letter may have left it, or may be purged.
    pub(in crate::store) fn planned_sequence(&self, id: OperationId, letter: LetterId) -> Option<SequenceId> {
        let row = self.plans.get(&self.machine(id)?.operation.plan)?;
        Some(row.items[*row.places.get(&letter)?].sequence.clone())
    }

    /// Removes what tells the payload of an erased letter from the plans that have it.
    pub(in crate::store) fn erase_digests(&mut self, letter: LetterId) {
        for row in self.plans.values_mut() {
            let Some(place) = row.places.get(&letter) else { continue };
            row.items[*place].digest = PayloadDigest::of(None);
            row.plan.hash = Plan::erased_hash(row.plan.id);
        }
    }

    /// The operations that ended in this call.
    pub(in crate::store) fn take_ended(&mut self) -> Vec<OperationId> {
        std::mem::take(&mut self.ended)
    }

    /// The next letter of this queue without an outcome, from this ordinal on.
    pub(super) fn next_pending(&self, plan: PlanId, queue: &QueueName, from: u64) -> Option<Pending> {
        let row = self.plans.get(&plan)?;
        let of_queue = |ordinal: &usize| row.items[*ordinal].queue == *queue;
        let mut rest = (place(from).max(row.done)..row.items.len()).filter(of_queue);
        rest.find_map(|ordinal| row.pending(ordinal))
    }

    /// Every letter without an outcome.
    pub(super) fn all_pending(&self, plan: PlanId) -> Vec<(QueueName, Pending)> {
        let Some(row) = self.plans.get(&plan) else { return Vec::new() };
        let pending = (row.done..row.items.len()).filter_map(|ordinal| row.pending(ordinal));
        pending.map(|item| (row.items[place(item.ordinal)].queue.clone(), item)).collect()
    }

    /// `true` if this letter is part of an unfinished operation and has no outcome there yet.
    pub(super) fn holds(&self, letter: LetterId) -> bool {
        self.is_in_earlier(letter, OperationId(u64::MAX))
    }

    /// `true` if the letter is still pending in an unfinished operation that was started before this one.
    pub(super) fn is_in_earlier(&self, letter: LetterId, id: OperationId) -> bool {
        let earlier = self.operations.range(..id).map(|(_, row)| &row.machine.operation);
        earlier.filter(|operation| !operation.state.is_over()).any(|operation| {
            let plan = self.plans.get(&operation.plan);
            plan.is_some_and(|row| row.places.get(&letter).is_some_and(|place| row.pending(*place).is_some()))
        })
    }

    /// Records the outcome of the letters with these ordinals that have none. Returns their number.
    pub(super) fn write_outcomes(
        &mut self,
        plan: PlanId,
        ordinals: RangeInclusive<u64>,
        outcome: Outcome,
    ) -> u64 {
        let Some(row) = self.plans.get_mut(&plan) else { return 0 };
        let mut written = 0;
        for ordinal in ordinals {
            if let Some(open @ None) = row.outcomes.get_mut(place(ordinal)) {
                *open = Some(outcome);
                written += 1;
            }
        }
        while row.outcomes.get(row.done).is_some_and(Option::is_some) {
            row.done += 1;
        }
        written
    }

    /// Advances an operation as far as possible. The caller stores the machine.
    pub(super) fn advance(&mut self, machine: &mut OperationMachine, now: Timestamp, audit: &mut AuditLog) {
        let was_over = machine.operation.state.is_over();
        let row = self.plans.get(&machine.operation.plan);
        let pending = row.filter(|row| row.done < row.items.len()).map(|row| row.done as u64);
        if let Some(line) = machine.advance(pending, now) {
            audit.write(now, line);
        }
        if machine.operation.state.is_over() && !was_over {
            self.ended.push(machine.operation.id);
        }
    }

    /// Records the outcome of a letter under a lease of an operation. Returns `true` if the operation continues
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
        if self.loses_counts
            && let Some(row) = self.operations.get_mut(&operation)
        {
            let Operation { ok, failed_again, skipped, .. } = machine.operation;
            row.counts_before = Some([ok, failed_again, skipped]);
        }
        let ItemOutcomes { outcomes, continues } = rules::item_outcomes(&item, outcome);
        for (ordinals, outcome) in outcomes {
            let written = self.write_outcomes(machine.operation.plan, ordinals, outcome);
            machine.count(outcome, written, now);
        }
        self.advance(&mut machine, now, audit);
        let is_over = machine.operation.state.is_over();
        self.write(machine);
        continues && !is_over
    }

    /// Lets an operation take the letter that a settlement made the head of its sequence, if it may.
    pub(in crate::store) fn take_next(
        &mut self,
        operation: OperationId,
        letter: &Letter,
        row: &SequenceRow,
        now: Timestamp,
    ) -> bool {
        let Some(mut machine) = self.machine(operation).cloned() else { return false };
        let Some(item) = self.pending_letter(machine.operation.plan, letter.id) else { return false };
        let digest = PayloadDigest::of(letter.message.payload.as_deref());
        let in_earlier = self.is_in_earlier(letter.id, operation);
        let view = ItemView { letter: Some(letter), digest, row: Some(row), in_earlier, now };
        let takes = rules::takes_next(&mut machine, &item, &view);
        self.write(machine);
        takes
    }

    /// Handles the release of an operation's lease without a settlement: the letter is polled again, unless the
    /// operation is over.
    pub(in crate::store) fn release_item(
        &mut self,
        operation: OperationId,
        letter: LetterId,
        now: Timestamp,
    ) {
        let Some(mut machine) = self.machine(operation).cloned() else { return };
        let plan = machine.operation.plan;
        let item = self.pending_letter(plan, letter);
        if let Some(Pending { ordinal, .. }) = item.filter(|_| machine.operation.state.is_over()) {
            let written = self.write_outcomes(plan, ordinal..=ordinal, Outcome::SkippedCancelled);
            machine.count(Outcome::SkippedCancelled, written, now);
            self.write(machine);
        }
    }

    fn pending_letter(&self, plan: PlanId, letter: LetterId) -> Option<Pending> {
        let row = self.plans.get(&plan)?;
        row.pending(*row.places.get(&letter)?)
    }
}
