//! The outcomes of an operation's letters, written in the same transaction as the letters.

use lazaret_core::LetterId;
use lazaret_core::store::rules::{self, ItemOutcomes, Pace, Pending};
use lazaret_core::store::{OperationId, OperationMachine, Outcome};

use super::table;
use crate::audit;
use crate::error::{Fault, Work};
use crate::letters::Queue;
use crate::rows::time;

impl Queue<'_> {
    /// Records the outcome of a letter under a lease of an operation. Returns `true` if the operation continues
    /// with the letters behind it.
    pub(crate) fn settle_item(
        &self,
        operation: OperationId,
        letter: LetterId,
        outcome: Outcome,
    ) -> Work<bool> {
        let mut machine = self.machine(operation)?;
        let plan = machine.operation.plan;
        // The head of a leased sequence does not change, so it is the claimed letter.
        let Some(item) = table::pending_letter(self.connection, plan, letter)? else { return Ok(false) };
        let ItemOutcomes { outcomes, continues } = rules::item_outcomes(&item, outcome);
        for (ordinals, outcome) in outcomes {
            let written = table::write_outcomes(self.connection, plan, ordinals, outcome)?;
            machine.count(outcome, written, time(self.now));
        }
        self.advance(&mut machine)?;
        table::write_operation(self.connection, &machine)?;
        Ok(continues && !machine.operation.state.is_over())
    }

    /// The pace of the letters of a sequence that an operation lets run automatically, from this index on, if it has a rate.
    pub(crate) fn pace_released(&self, operation: OperationId, sid: i64, from: u64) -> Work<Option<Pace>> {
        let mut machine = self.machine(operation)?;
        if !machine.has_rate() {
            return Ok(None);
        }
        let letters = self.released_letters(sid, from)?;
        let pace = machine.pace_released(letters, time(self.now));
        if pace.is_some() {
            table::write_operation(self.connection, &machine)?;
        }
        Ok(pace)
    }

    /// Handles the release of an operation's lease without a settlement: the letter is polled again, unless the
    /// operation is over.
    pub(crate) fn release_item(&self, operation: OperationId, letter: LetterId) -> Work<()> {
        let mut machine = self.machine(operation)?;
        if !machine.operation.state.is_over() {
            return Ok(());
        }
        if let Some(item) = table::pending_letter(self.connection, machine.operation.plan, letter)? {
            let written = self.write_outcome(&machine, &item, Outcome::SkippedCancelled)?;
            machine.count(Outcome::SkippedCancelled, written, time(self.now));
            table::write_operation(self.connection, &machine)?;
        }
        Ok(())
    }

    /// Records the outcome of one letter. Returns the number of letters that had none before: one or zero.
    pub(super) fn write_outcome(
        &self,
        machine: &OperationMachine,
        item: &Pending,
        outcome: Outcome,
    ) -> Work<u64> {
        let ordinals = item.ordinal..=item.ordinal;
        table::write_outcomes(self.connection, machine.operation.plan, ordinals, outcome)
    }

    /// Advances an operation as far as possible. The caller stores the machine.
    pub(super) fn advance(&self, machine: &mut OperationMachine) -> Work<()> {
        let pending = table::first_pending(self.connection, machine.operation.plan)?;
        let line = machine.advance(pending, time(self.now));
        line.map_or(Ok(()), |line| audit::write(self.connection, self.now, &line))
    }

    fn machine(&self, operation: OperationId) -> Work<OperationMachine> {
        let machine = table::machine(self.connection, operation)?;
        machine.ok_or_else(|| Fault::Corrupt(format!("operation {operation} of a lease not found")))
    }
}
