//! Starts operations, and applies commands.

use lazaret_core::store::rules::{SequenceChange, SequenceRow};
use lazaret_core::store::{
    Actor, Command, Operation, OperationId, OperationMachine, Outcome, PlanId, RolloutPolicy,
};
use lazaret_core::{QueueName, SequenceId};

use super::table::{PLAN, outcome_number, read_plan};
use crate::error::Work;
use crate::sequence_row::{OpenSequence, select_sequence};
use crate::store::{Queue, first};
use crate::transaction::Transaction;
use crate::values::{bound, nanos, unsigned};

/// Of two processes that start a plan at once, one waits here.
const CARRY_OUT: &str = "UPDATE plans SET carried_out = true WHERE plan = $1";
const LOCK_PLAN: &str = "SELECT carried_out FROM plans WHERE plan = $1 FOR UPDATE";
/// Every letter without an outcome except those in flight.
const CANCEL: &str = "WITH cancelled AS (UPDATE items SET outcome = $2 WHERE plan = $1 AND outcome IS NULL
        AND letter NOT IN (SELECT l.id FROM sequences s JOIN letters l ON l.sid = s.sid AND l.idx = s.head_idx
            WHERE s.lease_operation = $3 AND s.lease_until > $4) RETURNING 1)
    SELECT count(*) FROM cancelled";
/// Sequences are locked before operations. A call in which an operation ends by itself finds at most those that it has locked before.
const LOCK_RESERVED: &str =
    select_sequence!("FROM sequences s WHERE s.reserved = $1 ORDER BY s.qid, s.hash FOR UPDATE");

impl Transaction<'_> {
    pub(crate) async fn begin_plan(
        &mut self,
        id: PlanId,
        rollout: &RolloutPolicy,
        by: &Actor,
    ) -> Work<Operation> {
        let number = bound(id.0);
        let [locked, plan] = self.query_all([(LOCK_PLAN, &[&number]), (PLAN, &[&number])]).await?;
        self.read_clock().await?;
        let carried_out = first(&locked, |row| Ok(row.try_get(0)?))?.unwrap_or_default();
        let plan = first(&plan, read_plan)?;
        // The row assigns its number.
        let (plan, new) = ((id, plan.as_ref()), OperationId(0));
        let mut machine = OperationMachine::begin_plan(plan, carried_out, new, rollout, by, self.now())?;
        self.query(CARRY_OUT, &[&number]).await?;
        machine.operation.id = self.insert_operation(&machine).await?;
        self.unit.audit.push(machine.operation.audit(by, "begin", None));
        Ok(machine.operation)
    }

    pub(crate) async fn command(&mut self, id: OperationId, command: Command, by: &Actor) -> Work<Operation> {
        self.query(LOCK_RESERVED, &[&bound(id.0)]).await?;
        let machine = self.lock_operation(id).await?;
        self.read_clock().await?;
        let mut machine = OperationMachine::found(machine, id)?;
        let line = machine.command(command, by, self.now())?;
        if machine.operation.state.is_over() {
            let cancelled = self.cancel_pending(&machine.operation).await?;
            machine.count(Outcome::SkippedCancelled, cancelled, self.now());
            self.unit.ended.insert(id);
        }
        self.write_operation(&machine, false).await?;
        self.unit.audit.push(line);
        Ok(machine.operation)
    }

    async fn cancel_pending(&self, operation: &Operation) -> Work<u64> {
        let cancelled = outcome_number(Outcome::SkippedCancelled);
        let (plan, id, now) = (bound(operation.plan.0), bound(operation.id.0), nanos(self.now()));
        let rows = self.query(CANCEL, &[&plan, &cancelled, &id, &now]).await?;
        Ok(first(&rows, |row| unsigned(row.try_get(0)?))?.unwrap_or_default())
    }

    /// Ends the reservations of the operations that end with this call: their letters may run automatically again.
    pub(crate) async fn release_ended(&mut self) -> Work<()> {
        for id in std::mem::take(&mut self.unit.ended) {
            for row in self.query(LOCK_RESERVED, &[&bound(id.0)]).await? {
                let open = OpenSequence::read(&row)?;
                // The name is not needed for a change of the row.
                let queue = Queue { qid: open.qid, name: QueueName::from("") };
                self.unit.hold(open.clone());
                self.unreserve(&queue, &open.name, id)?;
            }
        }
        Ok(())
    }

    /// Ends the reservation of a sequence for this operation. The sequence is held.
    pub(crate) fn unreserve(&mut self, queue: &Queue, sequence: &SequenceId, id: OperationId) -> Work<()> {
        let Some(open) = self.unit.sequence(queue, sequence) else { return Ok(()) };
        if open.row.reserved != Some(id) {
            return Ok(());
        }
        let row = SequenceRow { reserved: None, ..open.row.clone() };
        self.unit.change_sequence(queue, sequence, None, SequenceChange::Put(row))
    }
}
