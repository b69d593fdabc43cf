//! What became of the letters of an operation, written in the same transaction as the letters.

use lazaret_core::store::{Actor, OperationId, OperationMachine, Outcome};

use super::table;
use crate::audit;
use crate::error::{Fault, Work};
use crate::letters::Queue;
use crate::rows::{time, unsigned};

impl Queue<'_> {
    /// Writes down what became of a letter under a lease that was taken for an operation. Whether the operation goes on
    /// with the letters behind it.
    pub(crate) fn settle_item(&self, operation: i64, letter: [u8; 16], outcome: Outcome) -> Work<bool> {
        let mut machine = self.machine(operation)?;
        let plan = machine.operation.plan;
        // The head of a leased sequence stays where it is, so it is the letter whose turn it was.
        let Some(item) = table::pending_letter(self.connection, plan, letter)? else { return Ok(false) };
        let now = time(self.now);
        table::write_outcomes(self.connection, plan, (item.ordinal, item.ordinal), outcome)?;
        machine.count(outcome, 1, now);
        if outcome == Outcome::FailedAgain {
            // I2: nothing behind it may overtake it.
            let behind = (item.ordinal + 1, item.last);
            let behind = table::write_outcomes(self.connection, plan, behind, Outcome::SkippedBehindFailed)?;
            machine.count(Outcome::SkippedBehindFailed, behind, now);
        }
        self.advance(&mut machine)?;
        table::write_course(self.connection, &machine)?;
        Ok(outcome == Outcome::Ok && item.ordinal < item.last && !machine.operation.state.is_over())
    }

    /// A lease that was taken for an operation is given back without a settlement: the turn comes again, unless the
    /// operation is over.
    pub(crate) fn give_back_item(&self, operation: i64, letter: [u8; 16]) -> Work<()> {
        let mut machine = self.machine(operation)?;
        if !machine.operation.state.is_over() {
            return Ok(());
        }
        if let Some(item) = table::pending_letter(self.connection, machine.operation.plan, letter)? {
            self.skip(&mut machine, item.ordinal, Outcome::SkippedCancelled)?;
            table::write_course(self.connection, &machine)?;
        }
        Ok(())
    }

    /// Leaves one letter out. Write the machine after it.
    pub(super) fn skip(&self, machine: &mut OperationMachine, ordinal: i64, outcome: Outcome) -> Work<()> {
        let plan = machine.operation.plan;
        let skipped = table::write_outcomes(self.connection, plan, (ordinal, ordinal), outcome)?;
        machine.count(outcome, skipped, time(self.now));
        Ok(())
    }

    /// Moves an operation on as far as it goes. Write the machine after it.
    pub(super) fn advance(&self, machine: &mut OperationMachine) -> Work<()> {
        let before = machine.operation.state;
        let pending = table::first_pending(self.connection, machine.operation.plan)?;
        if machine.advance(pending, time(self.now)) {
            let operation = &machine.operation;
            let by = Actor::engine(operation.note.clone().unwrap_or_default());
            let (before, after) = (Some(before.as_str()), Some(operation.state.as_str()));
            let subject = operation.id.to_string();
            audit::write(self.connection, self.now, &by, "pause", &subject, before, after)?;
        }
        Ok(())
    }

    fn machine(&self, operation: i64) -> Work<OperationMachine> {
        let machine = table::machine(self.connection, OperationId(unsigned(operation)?))?;
        machine.ok_or_else(|| {
            Fault::Corrupt(format!("a lease was taken for operation {operation}, which is not"))
        })
    }
}
