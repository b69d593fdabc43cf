//! The outcomes of an operation's letters, written in the same transaction as the letters.

use std::collections::{BTreeSet, HashMap, HashSet};

use lazaret_core::store::rules::{self, ItemOutcomes, ItemView, Pace, Pending, SequenceRow};
use lazaret_core::store::{OperationId, OperationMachine, Outcome, PayloadDigest};
use lazaret_core::{LetterId, SequenceId};
use uuid::Uuid;

use super::ahead::IN_EARLIER;
use super::table::{LOCK_OPERATION, PENDING_LETTERS, pending_of, read_operation};
use crate::error::{Fault, Work};
use crate::letter_row::HeldLetter;
use crate::store::{Queue, first};
use crate::transaction::Transaction;
use crate::values::{bound, letter_id};

/// The outcome of a letter under a lease of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemOutcome<'a> {
    pub(crate) operation: OperationId,
    /// The sequence of the letter.
    pub(crate) sequence: &'a SequenceId,
    pub(crate) letter: LetterId,
    pub(crate) outcome: Outcome,
    /// The letter that its operation takes, if it may.
    pub(crate) next: Option<NextHead<'a>>,
}

/// The letter that a settlement makes the head of its sequence, whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextHead<'a> {
    pub(crate) held: &'a HeldLetter,
    /// The row of the sequence after the settlement.
    pub(crate) row: &'a SequenceRow,
}

impl NextHead<'_> {
    /// The payload now: without edits it is the frozen one.
    fn digest(&self, item: &Pending) -> PayloadDigest {
        let letter = &self.held.letter;
        match item.digest {
            Some(frozen) if self.held.edits == 0 && !letter.payload_left_out => frozen,
            _ => PayloadDigest::of(letter.message.payload.as_deref()),
        }
    }
}

/// The letters behind one that was settled under a lease of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Behind {
    /// They are no part of the operation, or it is over.
    #[default]
    Free,
    /// The same, and they are in the sequence that the letter had when the plan was frozen, and has left.
    Left,
    /// The operation continues with them.
    Reserved,
    /// It has taken the first of them.
    Taken,
}

/// An operation that is locked, with letters of its plan.
struct LockedOperation {
    machine: OperationMachine,
    /// Those that have no outcome, with their sequences when the plan was frozen.
    pending: HashMap<LetterId, (Pending, SequenceId)>,
    /// Those that are pending in an unfinished operation that was started earlier, too.
    in_earlier: HashSet<LetterId>,
}

fn lost(operation: OperationId) -> Fault {
    Fault::Corrupt(format!("operation {operation} of a lease not found"))
}

impl Transaction<'_> {
    /// Records the outcomes of letters of different sequences of a queue, under leases of operations. Returns for each what becomes of
    /// the letters behind it.
    pub(crate) async fn settle_items(
        &mut self,
        queue: &Queue,
        settled: &[ItemOutcome<'_>],
    ) -> Work<Vec<Behind>> {
        let mut behind = vec![Behind::Free; settled.len()];
        let operations: BTreeSet<OperationId> = settled.iter().map(|item| item.operation).collect();
        // In the order of their numbers, so that two calls never wait for each other.
        for operation in operations {
            let of_operation: Vec<(usize, &ItemOutcome<'_>)> =
                settled.iter().enumerate().filter(|(_, item)| item.operation == operation).collect();
            // The head of a leased sequence does not change, so it is the claimed letter.
            let letters: Vec<LetterId> = of_operation.iter().map(|(_, item)| item.letter).collect();
            let next = of_operation.iter().filter_map(|(_, item)| Some(item.next?.held.letter.id));
            let next: Vec<LetterId> = next.collect();
            let LockedOperation { mut machine, pending, in_earlier } =
                self.lock_with_letters(operation, &letters, &next).await?;
            if machine.has_rate() {
                self.unit.paced.insert(operation);
            }
            let plan = machine.operation.plan;
            let mut ranges = Vec::with_capacity(letters.len());
            let mut continued = Vec::with_capacity(letters.len());
            for (place, item) in of_operation {
                let Some((pending, planned)) = pending.get(&item.letter) else { continue };
                let ItemOutcomes { outcomes, continues } = rules::item_outcomes(pending, item.outcome);
                if continues {
                    continued.push((place, item.next));
                } else if planned != item.sequence {
                    behind[place] = Behind::Left;
                }
                ranges.extend(outcomes);
            }
            let (written, next) = self.write_all_outcomes(queue, plan, &ranges).await?;
            for ((_, outcome), written) in ranges.into_iter().zip(written) {
                machine.count(outcome, written, self.now());
            }
            self.move_on(&mut machine, next);
            if machine.operation.state.is_over() {
                continued.clear();
            }
            for (place, next) in continued {
                let takes = next.is_some_and(|next| {
                    let letter = &next.held.letter;
                    pending.get(&letter.id).is_some_and(|(item, _)| {
                        let view = ItemView {
                            letter: Some(letter),
                            digest: next.digest(item),
                            row: Some(next.row),
                            in_earlier: in_earlier.contains(&letter.id),
                            now: self.now(),
                        };
                        rules::takes_next(&mut machine, item, &view)
                    })
                });
                behind[place] = if takes { Behind::Taken } else { Behind::Reserved };
            }
            self.write_operation(&machine, false).await?;
        }
        Ok(behind)
    }

    /// An operation, locked, with letters of its plan: those that were settled, and those that it may take next.
    async fn lock_with_letters(
        &self,
        id: OperationId,
        settled: &[LetterId],
        next: &[LetterId],
    ) -> Work<LockedOperation> {
        let operation = bound(id.0);
        let next: Vec<Uuid> = next.iter().map(LetterId::as_uuid).collect();
        let ids: Vec<Uuid> = settled.iter().map(LetterId::as_uuid).chain(next.iter().copied()).collect();
        let [machine, pending, earlier] = self
            .query_all([
                (LOCK_OPERATION, &[&operation]),
                (PENDING_LETTERS, &[&ids]),
                (IN_EARLIER, &[&operation, &next]),
            ])
            .await?;
        let machine = first(&machine, read_operation)?.ok_or_else(|| lost(id))?;
        let pending = pending_of(machine.operation.plan, &pending)?;
        let in_earlier = earlier.iter().map(|row| letter_id(row.try_get(0)?)).collect::<Work<_>>()?;
        Ok(LockedOperation { machine, pending, in_earlier })
    }

    /// The pace of the letters of a sequence that an operation lets run automatically, from this index on. The operation has a rate.
    pub(crate) async fn pace_released(
        &self,
        operation: OperationId,
        sid: i64,
        from: u64,
    ) -> Work<Option<Pace>> {
        let mut machine = self.machine(operation).await?;
        let letters = self.released_letters(sid, from).await?;
        let pace = machine.pace_released(letters, self.now());
        if pace.is_some() {
            self.write_operation(&machine, false).await?;
        }
        Ok(pace)
    }

    /// Handles the release of an operation's lease without a settlement: the letter is polled again, unless the operation is over.
    pub(crate) async fn release_item(&self, operation: OperationId, letter: LetterId) -> Work<()> {
        let mut machine = self.machine(operation).await?;
        if !machine.operation.state.is_over() {
            return Ok(());
        }
        if let Some(item) = self.pending_letter(machine.operation.plan, letter).await? {
            let written = self.write_outcome(&machine, &item, Outcome::SkippedCancelled).await?;
            machine.count(Outcome::SkippedCancelled, written, self.now());
            self.write_operation(&machine, false).await?;
        }
        Ok(())
    }

    /// Records the outcome of one letter. Returns the number of letters that had none before: one or zero.
    pub(super) async fn write_outcome(
        &self,
        machine: &OperationMachine,
        item: &Pending,
        outcome: Outcome,
    ) -> Work<u64> {
        self.write_outcomes(machine.operation.plan, item.ordinal..=item.ordinal, outcome).await
    }

    /// Advances an operation as far as possible. The caller stores the machine.
    pub(super) async fn advance(&mut self, machine: &mut OperationMachine) -> Work<()> {
        let pending = self.first_pending(machine.operation.plan).await?;
        self.move_on(machine, pending);
        Ok(())
    }

    /// Advances an operation of which this is the first letter without an outcome. One that ends keeps no sequence reserved.
    fn move_on(&mut self, machine: &mut OperationMachine, pending: Option<u64>) {
        let was_over = machine.operation.state.is_over();
        self.unit.audit.extend(machine.advance(pending, self.now()));
        if machine.operation.state.is_over() && !was_over {
            self.unit.ended.insert(machine.operation.id);
        }
    }

    async fn machine(&self, operation: OperationId) -> Work<OperationMachine> {
        let machine = self.lock_operation(operation).await?;
        machine.ok_or_else(|| lost(operation))
    }
}
