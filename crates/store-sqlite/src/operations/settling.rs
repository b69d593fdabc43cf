//! The outcomes of an operation's letters, written in the same transaction as the letters.

use lazaret_core::store::rules::{self, ItemOutcomes, ItemView, Pace, Pending, SequenceRow};
use lazaret_core::store::{Operation, OperationId, OperationMachine, Outcome};
use lazaret_core::{Letter, LetterId, SequenceId};

use super::polling::current_digest_of;
use super::table;
use crate::audit;
use crate::error::{Fault, Work};
use crate::letters::Queue;
use crate::rows::time;

/// The letter that a settlement makes the head of its sequence.
pub(crate) struct NextHead<'a> {
    pub(crate) lid: i64,
    pub(crate) id: LetterId,
    /// The row of the sequence after the settlement.
    pub(crate) row: &'a SequenceRow,
}

/// The letters behind one that was settled under a lease of an operation.
pub(crate) enum Behind {
    /// They are no part of the operation, or it is over.
    Free,
    /// The operation continues with them.
    Reserved,
    /// It has taken the first of them.
    Taken(Box<Letter>),
}

impl Behind {
    /// `true` if the sequence is reserved for the operation.
    pub(crate) const fn is_reserved(&self) -> bool {
        !matches!(self, Self::Free)
    }
}

impl Queue<'_> {
    /// Records the outcome of a letter of this sequence under a lease of an operation, which takes `next`, if it may.
    pub(crate) fn settle_item(
        &mut self,
        operation: OperationId,
        (sequence, letter): (&SequenceId, LetterId),
        outcome: Outcome,
        next: Option<NextHead<'_>>,
    ) -> Work<Behind> {
        let mut machine = self.cache.operations.get(self.connection, operation)?;
        let plan = machine.operation.plan;
        // The head of a leased sequence does not change, so it is the claimed letter.
        let Some(item) = table::pending_letter(self.connection, plan, letter)? else {
            return Ok(Behind::Free);
        };
        let ItemOutcomes { outcomes, continues } = rules::item_outcomes(&item, outcome);
        for (ordinals, outcome) in outcomes {
            let written = table::write_outcomes(self.connection, plan, ordinals, outcome)?;
            machine.count(outcome, written, time(self.now));
        }
        self.advance(&mut machine)?;
        if !continues && sequence.origin().is_some() {
            // The letters behind it are in the sequence that it has left.
            self.unreserve_planned(&machine, &item)?;
        }
        let continues = continues && !machine.operation.state.is_over();
        let taken = match next.filter(|_| continues) {
            Some(next) => self.take_next(&mut machine, &next)?,
            None => None,
        };
        self.cache.operations.set(machine);
        Ok(match taken {
            Some(letter) => Behind::Taken(Box::new(letter)),
            None if continues => Behind::Reserved,
            None => Behind::Free,
        })
    }

    /// The letter that becomes the head, if an operation takes it. The caller stores the machine.
    fn take_next(&self, machine: &mut OperationMachine, next: &NextHead<'_>) -> Work<Option<Letter>> {
        let plan = machine.operation.plan;
        let Some(item) = table::pending_letter(self.connection, plan, next.id)? else { return Ok(None) };
        let letter = match self.whole_undecoded(next.lid)?.decode() {
            // The poll fails that comes to it, and not the settlement of the letter before it.
            Err(Fault::Corrupt(_)) => return Ok(None),
            letter => letter?,
        };
        let view = ItemView {
            letter: Some(&letter),
            digest: current_digest_of(&letter, &item),
            row: Some(next.row),
            in_earlier: table::is_in_earlier(self.connection, next.id, machine.operation.id)?,
            now: time(self.now),
        };
        Ok(rules::takes_next(machine, &item, &view).then_some(letter))
    }

    /// The pace of the letters of a sequence that an operation lets run automatically, from this index on, if it has a rate.
    pub(crate) fn pace_released(
        &mut self,
        operation: OperationId,
        sid: i64,
        from: u64,
    ) -> Work<Option<Pace>> {
        let mut machine = self.cache.operations.get(self.connection, operation)?;
        if !machine.has_rate() {
            return Ok(None);
        }
        let letters = self.released_letters(sid, from)?;
        let pace = machine.pace_released(letters, time(self.now));
        if pace.is_some() {
            self.cache.operations.set(machine);
        }
        Ok(pace)
    }

    /// Handles the release of an operation's lease without a settlement: the letter is polled again, unless the
    /// operation is over.
    pub(crate) fn release_item(&mut self, operation: OperationId, letter: LetterId) -> Work<()> {
        let mut machine = self.cache.operations.get(self.connection, operation)?;
        if !machine.operation.state.is_over() {
            return Ok(());
        }
        if let Some(item) = table::pending_letter(self.connection, machine.operation.plan, letter)? {
            let written = self.write_outcome(&machine, &item, Outcome::SkippedCancelled)?;
            machine.count(Outcome::SkippedCancelled, written, time(self.now));
            self.cache.operations.set(machine);
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

    /// Ends the reservation of the sequence that a letter had when the plan was frozen. The letter may have left it, or may be purged.
    pub(super) fn unreserve_planned(&self, machine: &OperationMachine, item: &Pending) -> Work<()> {
        let Operation { id, plan, .. } = machine.operation;
        match table::planned_sequence(self.connection, plan, item.ordinal)? {
            Some(sequence) => {
                table::unreserve(self.connection, id, Some((self.numbers.qid, sequence.as_str())))
            }
            None => Ok(()),
        }
    }

    /// Advances an operation as far as possible. One that ends keeps no sequence reserved. The caller stores the machine.
    pub(super) fn advance(&self, machine: &mut OperationMachine) -> Work<()> {
        let was_over = machine.operation.state.is_over();
        let pending = table::first_pending(self.connection, machine.operation.plan)?;
        let line = machine.advance(pending, time(self.now));
        if machine.operation.state.is_over() && !was_over {
            table::unreserve(self.connection, machine.operation.id, None)?;
        }
        line.map_or(Ok(()), |line| audit::write(self.connection, self.now, &line))
    }
}
