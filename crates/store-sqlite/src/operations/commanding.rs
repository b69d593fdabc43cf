//! Starts operations, and applies commands.

use lazaret_core::store::{
    Actor, Command, Operation, OperationId, OperationMachine, Outcome, PlanId, RolloutPolicy,
};
use rusqlite::params;

use super::table;
use crate::audit;
use crate::error::Work;
use crate::rows::{bound, time};
use crate::step::Step;

pub(crate) fn begin(step: &Step<'_>, id: PlanId, rollout: &RolloutPolicy, by: &Actor) -> Work<Operation> {
    let connection = step.connection;
    let plan = table::plan(connection, id)?;
    let mut select = connection.prepare_cached("SELECT 1 FROM operations WHERE plan = ?1")?;
    let carried_out = select.exists([bound(id.0)])?;
    // The row assigns its number.
    let (plan, number) = ((id, plan.as_ref()), OperationId(0));
    let mut machine = OperationMachine::begin_plan(plan, carried_out, number, rollout, by, time(step.now))?;
    machine.operation.id = table::insert_operation(connection, &machine)?;
    audit::write(connection, step.now, &machine.operation.audit(by, "begin", None))?;
    Ok(machine.operation)
}

pub(crate) fn command(step: &mut Step<'_>, id: OperationId, command: Command, by: &Actor) -> Work<Operation> {
    let connection = step.connection;
    step.cache.operations.give_back(connection)?;
    let mut machine = OperationMachine::found(table::machine(connection, id)?, id)?;
    let line = machine.command(command, by, time(step.now))?;
    if machine.operation.state.is_over() {
        let cancelled = cancel_pending(step, &machine.operation)?;
        machine.count(Outcome::SkippedCancelled, cancelled, time(step.now));
        table::unreserve(connection, id, None)?;
    }
    table::write_operation(connection, &machine)?;
    audit::write(connection, step.now, &line)?;
    Ok(machine.operation)
}

/// Skips every letter without an outcome except those in flight. Returns their number.
fn cancel_pending(step: &Step<'_>, operation: &Operation) -> Work<u64> {
    let mut update = step.connection.prepare_cached(
        "UPDATE items SET outcome = ?2 WHERE plan = ?1 AND outcome IS NULL AND letter NOT IN (
             SELECT letters.id FROM sequences JOIN letters ON letters.sid = sequences.sid AND idx = head_idx
             WHERE lease_operation = ?3 AND lease_until > ?4)",
    )?;
    let cancelled = table::outcome_number(Outcome::SkippedCancelled);
    let written =
        update.execute(params![bound(operation.plan.0), cancelled, bound(operation.id.0), step.now])?;
    Ok(written as u64)
}
