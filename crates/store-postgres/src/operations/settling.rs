//! The outcomes of an operation's letters, written in the same transaction as the letters.

use std::collections::BTreeSet;

use lazaret_core::LetterId;
use lazaret_core::store::rules::{self, ItemOutcomes, Pace, Pending};
use lazaret_core::store::{OperationId, OperationMachine, Outcome};

use crate::error::{Fault, Work};
use crate::store::Queue;
use crate::transaction::Transaction;

/// The outcome of a letter under a lease of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemOutcome {
    pub(crate) operation: OperationId,
    pub(crate) letter: LetterId,
    pub(crate) outcome: Outcome,
}

fn lost(operation: OperationId) -> Fault {
    Fault::Corrupt(format!("operation {operation} of a lease not found"))
}

impl Transaction<'_> {
    /// Records the outcomes of letters of different sequences of a queue, under leases of operations. Returns for each `true` if its operation continues
    /// with the letters behind it.
    pub(crate) async fn settle_items(&mut self, queue: &Queue, settled: &[ItemOutcome]) -> Work<Vec<bool>> {
        let mut continued = vec![false; settled.len()];
        let operations: BTreeSet<OperationId> = settled.iter().map(|item| item.operation).collect();
        // In the order of their numbers, so that two calls never wait for each other.
        for operation in operations {
            let of_operation: Vec<(usize, &ItemOutcome)> =
                settled.iter().enumerate().filter(|(_, item)| item.operation == operation).collect();
            // The head of a leased sequence does not change, so it is the claimed letter.
            let letters: Vec<LetterId> = of_operation.iter().map(|(_, item)| item.letter).collect();
            let (machine, pending) = self.lock_with_letters(operation, &letters).await?;
            let mut machine = machine.ok_or_else(|| lost(operation))?;
            if machine.has_rate() {
                self.unit.paced.insert(operation);
            }
            let plan = machine.operation.plan;
            let mut ranges = Vec::with_capacity(letters.len());
            for (place, item) in of_operation {
                let Some(pending) = pending.get(&item.letter) else { continue };
                let ItemOutcomes { outcomes, continues } = rules::item_outcomes(pending, item.outcome);
                continued[place] = continues;
                ranges.extend(outcomes);
            }
            let (written, next) = self.write_all_outcomes(queue, plan, &ranges).await?;
            for ((_, outcome), written) in ranges.into_iter().zip(written) {
                machine.count(outcome, written, self.now());
            }
            self.unit.audit.extend(machine.advance(next, self.now()));
            self.write_operation(&machine, false).await?;
            if machine.operation.state.is_over() {
                let ended =
                    settled.iter().zip(&mut continued).filter(|(item, _)| item.operation == operation);
                ended.for_each(|(_, continues)| *continues = false);
            }
        }
        Ok(continued)
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
        self.unit.audit.extend(machine.advance(pending, self.now()));
        Ok(())
    }

    async fn machine(&self, operation: OperationId) -> Work<OperationMachine> {
        let machine = self.lock_operation(operation).await?;
        machine.ok_or_else(|| lost(operation))
    }
}
