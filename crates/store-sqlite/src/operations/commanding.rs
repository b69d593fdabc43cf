//! Starts operations, and applies commands.

use lazaret_core::store::{
    Actor, Command, Operation, OperationId, OperationMachine, Outcome, PlanId, Result, RolloutPolicy,
    StoreError,
};
use rusqlite::Connection;

use super::drafting::PAGE;
use super::table;
use crate::audit;
use crate::error::Work;
use crate::rows::{bound, limit as rows_of, time};
use crate::step::Step;
use crate::store::SqliteStore;

const COMMAND: &str = "command";

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

/// Applies a command. One that ends the operation is in effect after the first step: no letter is taken any more, by anybody. What
/// is left then is written in pages, and between two pages the writer serves other calls.
pub(crate) async fn command(
    store: &SqliteStore,
    id: OperationId,
    command: Command,
    by: &Actor,
) -> Result<Operation> {
    let by = by.clone();
    let operation = store.write(COMMAND, move |step| apply(step, id, command, &by)).await?;
    if operation.state.is_over() { finish(store, operation).await } else { Ok(operation) }
}

/// Frees the letters of an operation that a command has ended. A caller that stops waiting, and a crash, leave the rest to the
/// [polls](super::polling) of its queues.
async fn finish(store: &SqliteStore, mut operation: Operation) -> Result<Operation> {
    let id = operation.id;
    loop {
        let page = store.write(COMMAND, move |step| finish_page(step, id)).await;
        let (freed, is_last) = page.map_err(|error| {
            let context = format!(
                "the operation is {}, but not all of its letters have their outcomes yet: {}",
                operation.state,
                error.context()
            );
            StoreError::maybe(error.kind(), COMMAND, context).with_source(error)
        })?;
        operation = freed;
        if is_last {
            return Ok(operation);
        }
    }
}

/// Changes the state of an operation.
fn apply(step: &mut Step<'_>, id: OperationId, command: Command, by: &Actor) -> Work<Operation> {
    let connection = step.connection;
    step.cache.operations.give_back(connection)?;
    let mut machine = OperationMachine::found(table::machine(connection, id)?, id)?;
    let line = machine.command(command, by, time(step.now))?;
    table::write_operation(connection, &machine)?;
    audit::write(connection, step.now, &line)?;
    Ok(machine.operation)
}

/// Writes a page of what is left of an operation that is over. Returns whether it was the last one.
fn finish_page(step: &mut Step<'_>, id: OperationId) -> Work<(Operation, bool)> {
    let connection = step.connection;
    step.cache.operations.give_back(connection)?;
    let mut machine = OperationMachine::found(table::machine(connection, id)?, id)?;
    let page = free_page(connection, &machine.operation, None, step.now)?;
    if page.skipped > 0 {
        machine.count(Outcome::SkippedCancelled, page.skipped, time(step.now));
        table::write_operation(connection, &machine)?;
    }
    Ok((machine.operation, page.is_last))
}

/// A page of letters that an operation has given up.
pub(super) struct FreedPage {
    /// The number of letters that were skipped. The caller counts them.
    pub(super) skipped: u64,
    /// `true` if only letters in flight are left.
    pub(super) is_last: bool,
}

/// Skips some letters of an operation without an outcome, except those in flight.
macro_rules! skip_page {
    ($index:literal, $and:literal) => {
        concat!(
            "UPDATE items SET outcome = ?2 WHERE plan = ?1 AND ordinal IN (
                 SELECT ordinal FROM items INDEXED BY ",
            $index,
            " WHERE plan = ?1 AND outcome IS NULL ",
            $and,
            " AND letter NOT IN (
                     SELECT letters.id FROM sequences JOIN letters ON letters.sid = sequences.sid AND idx = head_idx
                     WHERE lease_operation = ?3 AND lease_until > ?4)
                 ORDER BY ordinal LIMIT ?5)"
        )
    };
}

/// Ends some reservations of an operation that is over, and, when there are none, skips some of its letters without an outcome, of one
/// queue or of all, except those in flight. In this order, an operation with reservations is among those that polls find.
pub(super) fn free_page(
    connection: &Connection,
    operation: &Operation,
    qid: Option<i64>,
    now: i64,
) -> Work<FreedPage> {
    if table::unreserve_page(connection, operation.id, PAGE)? == PAGE {
        return Ok(FreedPage { skipped: 0, is_last: false });
    }
    let (plan, id, page) = (bound(operation.plan.0), bound(operation.id.0), rows_of(PAGE));
    let outcome = table::outcome_number(Outcome::SkippedCancelled);
    let written = match qid {
        Some(qid) => {
            let mut skip = connection.prepare_cached(skip_page!("items_of_queue", "AND qid = ?6"))?;
            skip.execute([plan, outcome, id, now, page, qid])?
        }
        None => {
            let mut skip = connection.prepare_cached(skip_page!("items_pending", ""))?;
            skip.execute([plan, outcome, id, now, page])?
        }
    };
    Ok(FreedPage { skipped: written as u64, is_last: written < PAGE })
}

#[cfg(test)]
mod tests;
