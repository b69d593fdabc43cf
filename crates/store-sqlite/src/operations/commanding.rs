//! Beginning operations, and what people tell them.

use lazaret_core::store::{
    Actor, Command, ErrorKind, Operation, OperationId, OperationMachine, Outcome, PlanId, RolloutPolicy,
    StoreError,
};
use rusqlite::params;

use super::table;
use crate::audit;
use crate::error::{Fault, Work};
use crate::rows::{bound, time};
use crate::writer::Step;

fn refused<T>(kind: ErrorKind, operation: &'static str, context: String) -> Work<T> {
    Err(Fault::Refused(StoreError::not_done(kind, operation, context)))
}

pub(super) fn begin(step: &Step<'_>, id: PlanId, rollout: &RolloutPolicy, by: &Actor) -> Work<Operation> {
    let connection = step.connection;
    let Some(plan) = table::plan(connection, id)? else {
        return refused(ErrorKind::NotFound, "begin", format!("there is no plan {id}"));
    };
    let mut select = connection.prepare_cached("SELECT 1 FROM operations WHERE plan = ?1")?;
    if select.exists([bound(id.0)])? {
        return refused(ErrorKind::Conflict, "begin", format!("plan {id} is carried out already"));
    }
    // Its number comes with its row.
    let mut machine = OperationMachine::begin(OperationId(0), &plan, rollout, by, time(step.now))?;
    machine.operation.id = table::insert_course(connection, &machine)?;
    let operation = machine.operation;
    let (subject, after) = (operation.id.to_string(), Some(operation.state.as_str()));
    audit::write(connection, step.now, by, "begin", &subject, None, after)?;
    Ok(operation)
}

pub(super) fn command(step: &Step<'_>, id: OperationId, command: Command, by: &Actor) -> Work<Operation> {
    let connection = step.connection;
    let Some(mut machine) = table::machine(connection, id)? else {
        return refused(ErrorKind::NotFound, "command", format!("there is no operation {id}"));
    };
    let (now, before) = (time(step.now), machine.operation.state);
    machine.command(command, by, now)?;
    if machine.operation.state.is_over() {
        let cancelled = cancel_pending(step, &machine.operation)?;
        machine.count(Outcome::SkippedCancelled, cancelled, now);
        table::unreserve(connection, id, None)?;
    }
    table::write_course(connection, &machine)?;
    let (before, after) = (Some(before.as_str()), Some(machine.operation.state.as_str()));
    audit::write(connection, step.now, by, command.as_str(), &id.to_string(), before, after)?;
    Ok(machine.operation)
}

/// Skips every letter without an outcome but those that are being tried. How many.
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
