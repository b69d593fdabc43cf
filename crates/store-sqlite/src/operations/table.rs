//! The tables of plans, their letters and operations.

use std::ops::RangeInclusive;

use lazaret_core::store::rules::Pending;
use lazaret_core::store::{
    Action, Actor, Item, Operation, OperationId, OperationMachine, OperationState, OperationsPage, Outcome,
    PayloadDigest, Plan, PlanId,
};
use lazaret_core::{LetterId, QueueName, SequenceId};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Fault, Work};
use crate::letters::set_schedule;
use crate::rows::{bound, first, id_bytes, letter_id, limit as rows_of, nanos, state, time, unsigned};

pub(super) fn to_json<T: Serialize>(value: &T) -> Work<String> {
    serde_json::to_string(value)
        .map_err(|error| Fault::Corrupt(format!("failed to encode an operation: {error}")))
}

fn from_json<T: DeserializeOwned>(text: &str) -> Work<T> {
    serde_json::from_str(text)
        .map_err(|error| Fault::Corrupt(format!("failed to decode an operation: {error}")))
}

fn named<T: Copy>(all: &[T], name: impl Fn(T) -> &'static str, text: &str) -> Work<T> {
    let found = all.iter().copied().find(|one| name(*one) == text);
    found.ok_or_else(|| Fault::Corrupt(format!("unknown value {text:?} of an operation")))
}

/// The stored form of an outcome: its index in [`Outcome::ALL`].
pub(super) fn outcome_number(outcome: Outcome) -> i64 {
    outcome as i64
}

fn outcome(number: i64) -> Work<Outcome> {
    let outcome = usize::try_from(number).ok().and_then(|place| Outcome::ALL.get(place));
    outcome.copied().ok_or_else(|| Fault::Corrupt(format!("unknown outcome {number}")))
}

/// A query for [`read_plan`].
macro_rules! select_plan {
    ($rest:literal) => {
        concat!(
            "SELECT plan, action, query, letters, sequences, excluded, hash, who, via, why, frozen_at, expires_at, \
             followers FROM plans ",
            $rest
        )
    };
}

fn read_plan(row: &Row<'_>) -> Work<Plan> {
    Ok(Plan {
        id: PlanId(unsigned(row.get(0)?)?),
        action: named(&Action::ALL, Action::as_str, &row.get::<_, String>(1)?)?,
        query: row.get(2)?,
        letters: unsigned(row.get(3)?)?,
        sequences: unsigned(row.get(4)?)?,
        excluded: from_json(&row.get::<_, String>(5)?)?,
        hash: row.get(6)?,
        by: Actor { who: row.get(7)?, via: row.get(8)?, why: row.get(9)? },
        frozen_at: time(row.get(10)?),
        expires_at: time(row.get(11)?),
        followers: unsigned(row.get(12)?)?,
    })
}

/// A plan that was written completely. Until then, and again while it is deleted, it has no hash ([`super::drafting`]).
pub(crate) fn plan(connection: &Connection, id: PlanId) -> Work<Option<Plan>> {
    let mut select = connection.prepare_cached(select_plan!("WHERE plan = ?1 AND hash <> ''"))?;
    first(select.query([bound(id.0)])?, read_plan)
}

/// The plans from which an operation can be started, the latest first. Few plans have not expired.
pub(crate) fn drafts(
    connection: &Connection,
    before: Option<PlanId>,
    limit: usize,
    now: i64,
) -> Work<Vec<Plan>> {
    let mut select = connection.prepare_cached(select_plan!(
        "INDEXED BY plans_expired WHERE expires_at > ?1 AND plan < ?2 AND hash <> ''
         AND NOT EXISTS (SELECT 1 FROM operations WHERE operations.plan = plans.plan)
         ORDER BY plan DESC LIMIT ?3"
    ))?;
    let before = before.map_or(i64::MAX, |before| bound(before.0));
    let mut rows = select.query([now, before, rows_of(limit)])?;
    let mut plans = Vec::new();
    while let Some(row) = rows.next()? {
        plans.push(read_plan(row)?);
    }
    Ok(plans)
}

pub(crate) fn items(connection: &Connection, id: PlanId, from: u64, limit: usize) -> Work<Vec<Item>> {
    let mut select = connection.prepare_cached(
        "SELECT ordinal, queues.name, sequence, letter, outcome, digest FROM items JOIN queues USING (qid)
         WHERE plan = ?1 AND ordinal >= ?2 AND EXISTS (SELECT 1 FROM plans WHERE plans.plan = ?1 AND hash <> '')
         ORDER BY ordinal LIMIT ?3",
    )?;
    let mut rows = select.query([bound(id.0), bound(from), rows_of(limit)])?;
    let mut items = Vec::new();
    while let Some(row) = rows.next()? {
        items.push(Item {
            ordinal: unsigned(row.get(0)?)?,
            queue: QueueName::from(row.get::<_, String>(1)?),
            sequence: SequenceId::new(row.get::<_, String>(2)?),
            letter: letter_id(row.get_ref(3)?.as_blob().map_err(rusqlite::Error::from)?)?,
            outcome: row.get::<_, Option<i64>>(4)?.map(outcome).transpose()?,
            digest: digest(row, 5)?,
        });
    }
    Ok(items)
}

/// A query for [`read_operation`].
macro_rules! select_operation {
    ($rest:literal) => {
        concat!(
            "SELECT operation, plan, action, conduct, state, note, stage, letters, ok, failed_again, skipped, who, via, \
             why, approved_by, created_at, updated_at, ended_at, next_at, counted_ok, counted_failed, \
             released \
             FROM operations ",
            $rest
        )
    };
}

fn read_operation(row: &Row<'_>) -> Work<OperationMachine> {
    let number = |column| -> Work<u64> { unsigned(row.get(column)?) };
    let moment = |column| -> Work<_> { Ok(row.get::<_, Option<i64>>(column)?.map(time)) };
    let text = |column| -> Work<String> { Ok(row.get(column)?) };
    let stage = usize::try_from(number(6)?);
    let operation = Operation {
        id: OperationId(number(0)?),
        plan: PlanId(number(1)?),
        action: named(&Action::ALL, Action::as_str, &text(2)?)?,
        rollout: from_json(&text(3)?)?,
        state: named(&OperationState::ALL, OperationState::as_str, &text(4)?)?,
        note: row.get(5)?,
        stage: stage.map_err(|_| Fault::Corrupt("the stage of an operation is too large".to_owned()))?,
        letters: number(7)?,
        ok: number(8)?,
        failed_again: number(9)?,
        skipped: number(10)?,
        by: Actor { who: text(11)?, via: text(12)?, why: text(13)? },
        approved_by: row.get::<_, Option<String>>(14)?.map(|text| from_json(&text)).transpose()?,
        created_at: time(row.get(15)?),
        updated_at: time(row.get(16)?),
        ended_at: moment(17)?,
    };
    Ok(OperationMachine {
        operation,
        next_at: moment(18)?,
        counted_ok: number(19)?,
        counted_failed: number(20)?,
        released: number(21)?,
    })
}

pub(crate) fn machine(connection: &Connection, id: OperationId) -> Work<Option<OperationMachine>> {
    let mut select = connection.prepare_cached(select_operation!("WHERE operation = ?1"))?;
    first(select.query([bound(id.0)])?, read_operation)
}

/// The operations that have letters of this queue without an outcome, the least recently served first.
pub(super) fn live(connection: &Connection, qid: i64) -> Work<Vec<OperationMachine>> {
    let mut select = connection.prepare_cached(select_operation!(
        "INDEXED BY operations_live WHERE served_at IS NOT NULL
         AND EXISTS (SELECT 1 FROM items INDEXED BY items_of_queue
                     WHERE items.plan = operations.plan AND qid = ?1 AND outcome IS NULL)
         ORDER BY served_at, operation"
    ))?;
    let mut rows = select.query([qid])?;
    let mut machines = Vec::new();
    while let Some(row) = rows.next()? {
        machines.push(read_operation(row)?);
    }
    Ok(machines)
}

/// `true` if an operation has letters of this queue without an outcome.
pub(crate) fn has_live(connection: &Connection, queue: &QueueName) -> Work<bool> {
    let mut select = connection.prepare_cached(
        "SELECT 1 FROM operations INDEXED BY operations_live WHERE served_at IS NOT NULL AND EXISTS (
             SELECT 1 FROM items INDEXED BY items_of_queue WHERE items.plan = operations.plan AND outcome IS NULL
             AND qid = (SELECT qid FROM queues WHERE name = ?1))",
    )?;
    Ok(select.exists([queue.as_str()])?)
}

pub(crate) fn operations(
    connection: &Connection,
    before: Option<OperationId>,
    limit: usize,
) -> Work<OperationsPage> {
    let limit = limit.max(1);
    let mut select = connection
        .prepare_cached(select_operation!("WHERE operation < ?1 ORDER BY operation DESC LIMIT ?2"))?;
    let before = before.map_or(i64::MAX, |before| bound(before.0));
    let mut rows = select.query([before, rows_of(limit.saturating_add(1))])?;
    let mut operations = Vec::new();
    while let Some(row) = rows.next()? {
        operations.push(read_operation(row)?.operation);
    }
    let more = operations.len() > limit;
    operations.truncate(limit);
    let next = operations.last().filter(|_| more).map(|last| last.id);
    Ok(OperationsPage { operations, next })
}

/// The unfinished operations, the latest first. Each has letters without an outcome, and few others do: those that were
/// cancelled while letters were in flight.
pub(crate) fn under_way(connection: &Connection, limit: usize) -> Work<Vec<Operation>> {
    let mut select = connection.prepare_cached(select_operation!(
        "INDEXED BY operations_live WHERE served_at IS NOT NULL AND ended_at IS NULL
         ORDER BY operation DESC LIMIT ?1"
    ))?;
    let mut rows = select.query([rows_of(limit)])?;
    let mut operations = Vec::new();
    while let Some(row) = rows.next()? {
        operations.push(read_operation(row)?.operation);
    }
    Ok(operations)
}

/// Stores a new operation and returns its number.
pub(crate) fn insert_operation(connection: &Connection, machine: &OperationMachine) -> Work<OperationId> {
    let operation = &machine.operation;
    let mut insert = connection.prepare_cached(
        "INSERT INTO operations (plan, action, conduct, state, stage, letters, ok, failed_again, skipped, who, via,
         why, created_at, updated_at, ended_at, counted_ok, counted_failed, served_at, note)
         VALUES (?1, ?2, ?3, ?4, 0, ?5, 0, 0, 0, ?6, ?7, ?8, ?9, ?9, ?10, 0, 0, CASE WHEN ?5 > 0 THEN 0 END, ?11)",
    )?;
    insert.execute(params![
        bound(operation.plan.0),
        operation.action.as_str(),
        to_json(&operation.rollout)?,
        operation.state.as_str(),
        bound(operation.letters),
        operation.by.who,
        operation.by.via,
        operation.by.why,
        nanos(operation.created_at),
        operation.ended_at.map(nanos),
        operation.note,
    ])?;
    Ok(OperationId(unsigned(connection.last_insert_rowid())?))
}

/// Writes the mutable columns of an operation.
pub(crate) fn write_operation(connection: &Connection, machine: &OperationMachine) -> Work<()> {
    let operation = &machine.operation;
    let mut update = connection.prepare_cached(
        "UPDATE operations SET state = ?2, note = ?3, stage = ?4, ok = ?5, failed_again = ?6, skipped = ?7,
         approved_by = ?8, updated_at = ?9, ended_at = ?10, next_at = ?11, counted_ok = ?12, counted_failed = ?13,
         released = ?14 WHERE operation = ?1",
    )?;
    update.execute(params![
        bound(operation.id.0),
        operation.state.as_str(),
        operation.note,
        bound(operation.stage as u64),
        bound(operation.ok),
        bound(operation.failed_again),
        bound(operation.skipped),
        operation.approved_by.as_ref().map(to_json).transpose()?,
        nanos(operation.updated_at),
        operation.ended_at.map(nanos),
        machine.next_at.map(nanos),
        bound(machine.counted_ok),
        bound(machine.counted_failed),
        bound(machine.released),
    ])?;
    if machine.pending() == 0 {
        // Apart from the others: it is indexed, and only the last outcome changes it.
        let mut end =
            connection.prepare_cached("UPDATE operations SET served_at = NULL WHERE operation = ?1")?;
        end.execute([bound(operation.id.0)])?;
    }
    Ok(())
}

/// Records that letters of an operation were served now.
pub(super) fn mark_served(connection: &Connection, id: OperationId, now: i64) -> Work<()> {
    let mut update = connection.prepare_cached(
        "UPDATE operations SET served_at = ?2 WHERE operation = ?1 AND served_at IS NOT NULL",
    )?;
    update.execute([bound(id.0), now])?;
    Ok(())
}

/// The lowest ordinal of a plan that has no outcome.
pub(super) fn first_pending(connection: &Connection, plan: PlanId) -> Work<Option<u64>> {
    let mut select = connection.prepare_cached(
        "SELECT ordinal FROM items INDEXED BY items_pending WHERE plan = ?1 AND outcome IS NULL
         ORDER BY ordinal LIMIT 1",
    )?;
    let ordinal: Option<i64> = select.query_row([bound(plan.0)], |row| row.get(0)).optional()?;
    ordinal.map(unsigned).transpose()
}

/// A query for [`read_pending`].
macro_rules! select_pending {
    ($rest:literal) => {
        concat!("SELECT ordinal, last, letter, state, digest ", $rest)
    };
}

fn read_pending(row: &Row<'_>) -> Work<Pending> {
    Ok(Pending {
        ordinal: unsigned(row.get(0)?)?,
        last: unsigned(row.get(1)?)?,
        letter: letter_id(row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?)?,
        state: state(row.get(3)?)?,
        digest: digest(row, 4)?,
    })
}

/// The digest of a payload at the freeze; `None` in a plan of an earlier version.
fn digest(row: &Row<'_>, column: usize) -> Work<Option<PayloadDigest>> {
    Ok(row.get::<_, Option<[u8; 32]>>(column)?.map(PayloadDigest::from_bytes))
}

/// Returns `true` if the payload of a letter was ever edited.
pub(super) fn is_edited(connection: &Connection, lid: i64) -> Work<bool> {
    let mut select = connection.prepare_cached("SELECT edits > 0 FROM letters WHERE lid = ?1")?;
    Ok(select.query_row([lid], |row| row.get(0))?)
}

/// The payload of a letter now.
pub(super) fn payload_digest(connection: &Connection, lid: i64) -> Work<PayloadDigest> {
    let mut select = connection.prepare_cached("SELECT payload FROM payloads WHERE lid = ?1")?;
    let digest = select.query_row([lid], |row| payload_of(row, 0)).optional()?;
    Ok(digest.unwrap_or_else(|| PayloadDigest::of(None)))
}

/// The digest of the payload in this column.
pub(super) fn payload_of(row: &Row<'_>, column: usize) -> rusqlite::Result<PayloadDigest> {
    Ok(PayloadDigest::of(row.get_ref(column)?.as_blob_or_null()?))
}

/// Removes what tells the payload of an erased letter from the plans that have it. A plan without a hash is being written or deleted.
pub(crate) fn erase_digests(connection: &Connection, letter: LetterId) -> Work<()> {
    let letter = id_bytes(letter);
    let mut plans = connection.prepare_cached(
        "UPDATE plans SET hash = 'erased:' || plan WHERE hash <> ''
         AND plan IN (SELECT plan FROM items INDEXED BY items_letter WHERE letter = ?1)",
    )?;
    plans.execute([letter])?;
    let mut items = connection
        .prepare_cached("UPDATE items INDEXED BY items_letter SET digest = ?2 WHERE letter = ?1")?;
    items.execute(params![letter, PayloadDigest::of(None).as_bytes()])?;
    Ok(())
}

/// The sequence of a letter when its plan was frozen.
pub(super) fn planned_sequence(connection: &Connection, plan: PlanId, ordinal: u64) -> Work<Option<String>> {
    let mut select =
        connection.prepare_cached("SELECT sequence FROM items WHERE plan = ?1 AND ordinal = ?2")?;
    Ok(select.query_row([bound(plan.0), bound(ordinal)], |row| row.get(0)).optional()?)
}

/// The next letter of this queue without an outcome, from this ordinal on.
pub(super) fn next_pending(
    connection: &Connection,
    plan: PlanId,
    qid: i64,
    from: u64,
) -> Work<Option<Pending>> {
    let mut select = connection.prepare_cached(select_pending!(
        "FROM items INDEXED BY items_of_queue
         WHERE plan = ?1 AND qid = ?2 AND ordinal >= ?3 AND outcome IS NULL ORDER BY ordinal LIMIT 1"
    ))?;
    first(select.query([bound(plan.0), qid, bound(from)])?, read_pending)
}

/// The next letter of this queue without an outcome, from this ordinal on, in a sequence that is not leased for this operation.
pub(super) fn next_not_in_flight(
    connection: &Connection,
    operation: &Operation,
    qid: i64,
    from: u64,
    now: i64,
) -> Work<Option<Pending>> {
    let mut select = connection.prepare_cached(select_pending!(
        "FROM items INDEXED BY items_of_queue
         WHERE plan = ?1 AND qid = ?2 AND ordinal >= ?3 AND outcome IS NULL AND NOT EXISTS (
             SELECT 1 FROM sequences INDEXED BY sequences_name
             WHERE sequences.qid = ?2 AND name = items.sequence AND lease_operation = ?4 AND lease_until > ?5)
         ORDER BY ordinal LIMIT 1"
    ))?;
    let parameters = [bound(operation.plan.0), qid, bound(from), bound(operation.id.0), now];
    first(select.query(parameters)?, read_pending)
}

/// A letter of a plan, if it has no outcome.
pub(super) fn pending_letter(
    connection: &Connection,
    plan: PlanId,
    letter: LetterId,
) -> Work<Option<Pending>> {
    let mut select = connection.prepare_cached(select_pending!(
        "FROM items INDEXED BY items_letter WHERE letter = ?1 AND plan = ?2 AND outcome IS NULL"
    ))?;
    first(select.query(params![id_bytes(letter), bound(plan.0)])?, read_pending)
}

/// `true` if the letter is still pending in an unfinished operation that was started before this one.
pub(super) fn is_in_earlier(connection: &Connection, letter: LetterId, id: OperationId) -> Work<bool> {
    let mut select = connection.prepare_cached(
        "SELECT 1 FROM items INDEXED BY items_letter JOIN operations USING (plan)
         WHERE letter = ?1 AND outcome IS NULL AND operation < ?2 AND ended_at IS NULL",
    )?;
    Ok(select.exists(params![id_bytes(letter), bound(id.0)])?)
}

/// Records the outcome of the letters of a plan with these ordinals that have none. Returns their number.
pub(super) fn write_outcomes(
    connection: &Connection,
    plan: PlanId,
    ordinals: RangeInclusive<u64>,
    outcome: Outcome,
) -> Work<u64> {
    let (first, last) = ordinals.into_inner();
    let mut update = connection.prepare_cached(
        "UPDATE items SET outcome = ?4 WHERE plan = ?1 AND ordinal BETWEEN ?2 AND ?3 AND outcome IS NULL",
    )?;
    let written =
        update.execute(params![bound(plan.0), bound(first), bound(last), outcome_number(outcome)])?;
    Ok(written as u64)
}

/// Ends some reservations of an operation, at most `limit`. Returns their number.
pub(super) fn unreserve_page(connection: &Connection, id: OperationId, limit: usize) -> Work<usize> {
    let mut update = connection.prepare_cached(concat!(
        "UPDATE sequences SET reserved = NULL, ",
        set_schedule!("paused", "NULL"),
        "WHERE sid IN (SELECT sid FROM sequences INDEXED BY sequences_reserved WHERE reserved = ?1 LIMIT ?2)",
    ))?;
    Ok(update.execute([bound(id.0), rows_of(limit)])?)
}

/// Ends the reservations of an operation, or the one of this sequence: their letters may run automatically
/// again.
pub(super) fn unreserve(connection: &Connection, id: OperationId, sequence: Option<(i64, &str)>) -> Work<()> {
    let mut update = connection.prepare_cached(concat!(
        "UPDATE sequences SET reserved = NULL, ",
        set_schedule!("paused", "NULL"),
        "WHERE reserved = ?1 AND (?2 IS NULL OR (qid = ?2 AND name = ?3))",
    ))?;
    update.execute(params![bound(id.0), sequence.map(|(qid, _)| qid), sequence.map(|(_, name)| name)])?;
    Ok(())
}
