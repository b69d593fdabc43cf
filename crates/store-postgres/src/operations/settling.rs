//! The outcomes of an operation's letters, written in the same transaction as the letters.

use lazaret_core::LetterId;
use lazaret_core::store::rules::{self, ItemOutcomes, Pace, Pending};
use lazaret_core::store::{OperationId, OperationMachine, Outcome};

use crate::error::{Fault, Work};
use crate::transaction::Transaction;

impl Transaction<'_> {
    /// Records the outcome of a letter under a lease of an operation. Returns `true` if the operation continues with the letters behind
    /// it.
    pub(crate) async fn settle_item(
        &mut self,
        operation: OperationId,
        letter: LetterId,
        outcome: Outcome,
    ) -> Work<bool> {
        let mut machine = self.machine(operation).await?;
        let plan = machine.operation.plan;
        // The head of a leased sequence does not change, so it is the claimed letter.
        let Some(item) = self.pending_letter(plan, letter).await? else { return Ok(false) };
        let ItemOutcomes { outcomes, continues } = rules::item_outcomes(&item, outcome);
        for (ordinals, outcome) in outcomes {
            let written = self.write_outcomes(plan, ordinals, outcome).await?;
            machine.count(outcome, written, self.now());
        }
        self.advance(&mut machine).await?;
        self.write_operation(&machine, false).await?;
        Ok(continues && !machine.operation.state.is_over())
    }

    /// The pace of the letters of a sequence that an operation lets run automatically, from this index on, if it has a rate.
    pub(crate) async fn pace_released(
        &self,
        operation: OperationId,
        sid: i64,
        from: u64,
    ) -> Work<Option<Pace>> {
        let mut machine = self.machine(operation).await?;
        if !machine.has_rate() {
            return Ok(None);
        }
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
        machine.ok_or_else(|| Fault::Corrupt(format!("operation {operation} of a lease not found")))
    }
}
