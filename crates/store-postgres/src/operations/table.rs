//! The tables of plans, their letters and operations.

use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;

use lazaret_core::store::rules::Pending;
use lazaret_core::store::{
    Action, Actor, Item, Operation, OperationId, OperationMachine, OperationState, OperationsPage, Outcome,
    PayloadDigest, Plan, PlanId, Result,
};
use lazaret_core::{LetterId, QueueName, SequenceId};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::error::{Fault, Work};
use crate::store::{PostgresStore, Queue, first};
use crate::transaction::Transaction;
use crate::values::{
    Columns, bound, from_json, letter_id, limit as rows_of, nanos, state, text, to_json, unsigned,
};

/// A query for [`read_plan`].
macro_rules! select_plan {
    ($rest:literal) => {
        concat!(
            "SELECT plan, action, query, letters, sequences, followers, excluded::text, hash, who, via, why, \
             frozen_at, expires_at FROM plans ",
            $rest
        )
    };
}

pub(super) const PLAN: &str = select_plan!("WHERE plan = $1");
const DRAFTS: &str =
    select_plan!("WHERE NOT carried_out AND expires_at > $1 AND plan < $2 ORDER BY plan DESC LIMIT $3");
const ITEMS: &str = "SELECT i.ordinal, q.name, i.sequence, i.letter, i.digest, i.outcome FROM items i
    JOIN queues q ON q.qid = i.qid WHERE i.plan = $1 AND i.ordinal >= $2 ORDER BY i.ordinal LIMIT $3";
const INSERT_OPERATION: &str = "INSERT INTO operations (plan, action, rollout, state, stage, letters, ok, failed_again, skipped,
    who, via, why, created_at, updated_at, ended_at, counted_ok, counted_failed, released, served_at, note)
    VALUES ($1, $2, $3::text::json, $4, 0, $5, 0, 0, 0, $6, $7, $8, $9, $9, $10, 0, 0, 0, CASE WHEN $5::bigint > 0 THEN 0 END, $11)
    RETURNING operation";
const UPDATE_OPERATION: &str = "UPDATE operations SET state = $2, note = $3, stage = $4, ok = $5, failed_again = $6, skipped = $7,
    approved_by = $8::text::json, updated_at = $9, ended_at = $10, next_at = $11, counted_ok = $12, counted_failed = $13,
    released = $14, served_at = CASE WHEN $15 THEN coalesce($16, served_at) END WHERE operation = $1";
const PLANNED_SEQUENCE: &str = "SELECT sequence FROM items WHERE plan = $1 AND ordinal = $2";
const FIRST_PENDING: &str =
    "SELECT ordinal FROM items WHERE plan = $1 AND outcome IS NULL ORDER BY ordinal LIMIT 1";
const WRITE_OUTCOMES: &str = "WITH written AS (UPDATE items SET outcome = $4
    WHERE plan = $1 AND ordinal BETWEEN $2 AND $3 AND outcome IS NULL RETURNING 1) SELECT count(*) FROM written";
/// The rows are found one by one, by an index that holds all three columns, and written by their place: a server that has not counted
/// the letters of a new plan yet would read all of them.
const WRITE_ALL_OUTCOMES: &str = "WITH found AS (SELECT i.row, u.outcome, u.place
        FROM unnest($3::bigint[], $4::bigint[], $5::smallint[]) WITH ORDINALITY AS u (first, last, outcome, place)
        CROSS JOIN LATERAL (SELECT ctid AS row FROM items WHERE plan = $1 AND qid = $2
            AND ordinal BETWEEN u.first AND u.last AND outcome IS NULL FOR UPDATE) i),
    written AS (UPDATE items i SET outcome = f.outcome FROM found f WHERE i.ctid = f.row RETURNING f.place)
    SELECT place - 1, count(*) FROM written GROUP BY place";
const IN_EARLIER: &str = "SELECT 1 FROM items i JOIN operations o ON o.plan = i.plan
    WHERE i.letter = $1 AND i.outcome IS NULL AND o.operation < $2 AND o.ended_at IS NULL LIMIT 1";

/// A query for [`read_operation`].
macro_rules! select_operation {
    ($rest:literal) => {
        concat!(
            "SELECT o.operation, o.plan, o.action, o.rollout::text, o.state, o.note, o.stage, o.letters, o.ok, o.failed_again, \
             o.skipped, o.who, o.via, o.why, o.approved_by::text, o.created_at, o.updated_at, o.ended_at, o.next_at, \
             o.counted_ok, o.counted_failed, o.released FROM operations o ",
            $rest
        )
    };
}

pub(super) const LOCK_OPERATION: &str = select_operation!("WHERE o.operation = $1 FOR UPDATE");
const OPERATIONS: &str = select_operation!("WHERE o.operation < $1 ORDER BY o.operation DESC LIMIT $2");
/// Each has letters without an outcome, and few others do: those that were cancelled while letters were in flight.
const UNDER_WAY: &str = select_operation!(
    "WHERE o.served_at IS NOT NULL AND o.ended_at IS NULL ORDER BY o.operation DESC LIMIT $1"
);

/// A query for [`read_pending`]. A letter may have left the sequence that it had at the freeze.
macro_rules! select_pending {
    ($rest:literal) => {
        concat!(
            "SELECT i.ordinal, i.last, i.letter, i.state, i.digest, coalesce((SELECT l.sequence FROM letters l \
             WHERE l.id = i.letter AND l.sid IS NOT NULL), i.sequence) FROM items i ",
            $rest
        )
    };
}

const NEXT_PENDING: &str = select_pending!(
    "WHERE i.plan = $1 AND i.qid = $2 AND i.ordinal >= $3 AND i.outcome IS NULL ORDER BY i.ordinal LIMIT $4"
);
/// Of any plan: the caller picks those of its own.
pub(super) const PENDING_LETTERS: &str =
    "SELECT i.ordinal, i.last, i.letter, i.state, i.digest, i.sequence, i.plan FROM items i
    WHERE i.letter = ANY($1) AND i.outcome IS NULL";

fn named<T: Copy>(all: &[T], name: impl Fn(T) -> &'static str, text: &str) -> Work<T> {
    let found = all.iter().copied().find(|one| name(*one) == text);
    found.ok_or_else(|| Fault::Corrupt(format!("unknown value {text:?} of an operation")))
}

/// The stored form of an outcome: its index in [`Outcome::ALL`].
pub(super) const fn outcome_number(outcome: Outcome) -> i16 {
    outcome as i16
}

fn outcome(number: i16) -> Work<Outcome> {
    let outcome = usize::try_from(number).ok().and_then(|place| Outcome::ALL.get(place));
    outcome.copied().ok_or_else(|| Fault::Corrupt(format!("unknown outcome {number}")))
}

fn digest(bytes: Vec<u8>) -> Work<PayloadDigest> {
    let bytes = bytes.try_into().map_err(|_| Fault::Corrupt("a digest has a wrong length".to_owned()))?;
    Ok(PayloadDigest::from_bytes(bytes))
}

pub(super) fn read_plan(row: &Row) -> Work<Plan> {
    let mut c = Columns::of(row);
    Ok(Plan {
        id: PlanId(c.unsigned()?),
        action: named(&Action::ALL, Action::as_str, &c.text()?)?,
        query: c.optional_text()?,
        letters: c.unsigned()?,
        sequences: c.unsigned()?,
        followers: c.unsigned()?,
        excluded: from_json(&c.get::<String>()?, "the exclusions of a plan")?,
        hash: c.text()?,
        by: Actor { who: c.text()?, via: c.text()?, why: c.text()? },
        frozen_at: c.time()?,
        expires_at: c.time()?,
    })
}

fn read_item(row: &Row) -> Work<Item> {
    let mut c = Columns::of(row);
    Ok(Item {
        ordinal: c.unsigned()?,
        queue: QueueName::from(c.text()?),
        sequence: SequenceId::new(c.arc_text()?),
        letter: letter_id(c.get()?)?,
        digest: Some(digest(c.get()?)?),
        outcome: c.get::<Option<i16>>()?.map(outcome).transpose()?,
    })
}

fn read_pending(row: &Row) -> Work<(Pending, SequenceId)> {
    let mut c = Columns::of(row);
    let (ordinal, last, letter) = (c.unsigned()?, c.unsigned()?, letter_id(c.get()?)?);
    let (state, digest) = (state(c.get()?)?, Some(digest(c.get()?)?));
    Ok((Pending { ordinal, last, letter, state, digest }, SequenceId::new(c.arc_text()?)))
}

/// The letters of a plan among the answers to [`PENDING_LETTERS`], with their sequences when it was frozen.
pub(super) fn pending_of(plan: PlanId, rows: &[Row]) -> Work<HashMap<LetterId, (Pending, SequenceId)>> {
    let mut pending = HashMap::with_capacity(rows.len());
    for row in rows {
        if row.try_get::<_, i64>(6)? == bound(plan.0) {
            let (item, sequence) = read_pending(row)?;
            pending.insert(item.letter, (item, sequence));
        }
    }
    Ok(pending)
}

pub(super) fn read_operation(row: &Row) -> Work<OperationMachine> {
    let mut c = Columns::of(row);
    let operation = Operation {
        id: OperationId(c.unsigned()?),
        plan: PlanId(c.unsigned()?),
        action: named(&Action::ALL, Action::as_str, &c.text()?)?,
        rollout: from_json(&c.get::<String>()?, "the rollout of an operation")?,
        state: named(&OperationState::ALL, OperationState::as_str, &c.text()?)?,
        note: c.optional_text()?,
        stage: usize::try_from(c.unsigned()?)
            .map_err(|_| Fault::Corrupt("the stage of an operation is too large".to_owned()))?,
        letters: c.unsigned()?,
        ok: c.unsigned()?,
        failed_again: c.unsigned()?,
        skipped: c.unsigned()?,
        by: Actor { who: c.text()?, via: c.text()?, why: c.text()? },
        approved_by: match c.get::<Option<String>>()? {
            Some(json) => Some(from_json(&json, "the reviewer of an operation")?),
            None => None,
        },
        created_at: c.time()?,
        updated_at: c.time()?,
        ended_at: c.moment()?,
    };
    Ok(OperationMachine {
        operation,
        next_at: c.moment()?,
        counted_ok: c.unsigned()?,
        counted_failed: c.unsigned()?,
        released: c.unsigned()?,
    })
}

impl PostgresStore {
    pub(crate) async fn plan_by_id(&self, id: PlanId) -> Result<Option<Plan>> {
        let rows = self.ask("plan", PLAN, &[&bound(id.0)]).await?;
        first(&rows, read_plan).map_err(|fault| fault.into_error("plan"))
    }

    pub(crate) async fn list_drafts(&self, before: Option<PlanId>, limit: usize) -> Result<Vec<Plan>> {
        let now = self.now("drafts").await?;
        let before = before.map_or(i64::MAX, |before| bound(before.0));
        let rows = self.ask("drafts", DRAFTS, &[&nanos(now), &before, &rows_of(limit)]).await?;
        rows.iter().map(read_plan).collect::<Work<_>>().map_err(|fault| fault.into_error("drafts"))
    }

    pub(crate) async fn list_items(&self, plan: PlanId, from: u64, limit: usize) -> Result<Vec<Item>> {
        let rows = self.ask("outcomes", ITEMS, &[&bound(plan.0), &bound(from), &rows_of(limit)]).await?;
        rows.iter().map(read_item).collect::<Work<_>>().map_err(|fault| fault.into_error("outcomes"))
    }

    pub(crate) async fn list_operations(
        &self,
        before: Option<OperationId>,
        limit: usize,
    ) -> Result<OperationsPage> {
        let limit = limit.max(1);
        let before = before.map_or(i64::MAX, |before| bound(before.0));
        let mut operations = self.read_operations(OPERATIONS, Some(before), limit.saturating_add(1)).await?;
        let more = operations.len() > limit;
        operations.truncate(limit);
        let next = operations.last().filter(|_| more).map(|last| last.id);
        Ok(OperationsPage { operations, next })
    }

    pub(crate) async fn list_under_way(&self, limit: usize) -> Result<Vec<Operation>> {
        self.read_operations(UNDER_WAY, None, limit).await
    }

    async fn read_operations(&self, sql: &str, before: Option<i64>, limit: usize) -> Result<Vec<Operation>> {
        let limit = rows_of(limit);
        let rows = match before {
            Some(before) => self.ask("operations", sql, &[&before, &limit]).await?,
            None => self.ask("operations", sql, &[&limit]).await?,
        };
        let read = |row: &Row| -> Work<Operation> { Ok(read_operation(row)?.operation) };
        rows.iter().map(read).collect::<Work<_>>().map_err(|fault| fault.into_error("operations"))
    }
}

impl Transaction<'_> {
    /// An operation, locked.
    pub(super) async fn lock_operation(&self, id: OperationId) -> Work<Option<OperationMachine>> {
        first(&self.query(LOCK_OPERATION, &[&bound(id.0)]).await?, read_operation)
    }

    /// Stores a new operation and returns its number.
    pub(super) async fn insert_operation(&self, machine: &OperationMachine) -> Work<OperationId> {
        let operation = &machine.operation;
        let rollout = to_json(&operation.rollout, "a rollout")?;
        let Actor { who, via, why } = &operation.by;
        let rows = self
            .query(
                INSERT_OPERATION,
                &[
                    &bound(operation.plan.0),
                    &operation.action.as_str(),
                    &rollout,
                    &operation.state.as_str(),
                    &bound(operation.letters),
                    &text(who),
                    &text(via),
                    &text(why),
                    &nanos(operation.created_at),
                    &operation.ended_at.map(nanos),
                    &operation.note.as_deref().map(text),
                ],
            )
            .await?;
        let number = first(&rows, |row| unsigned(row.try_get(0)?))?;
        Ok(OperationId(number.ok_or_else(|| Fault::Corrupt("an operation got no number".to_owned()))?))
    }

    /// Writes the mutable columns of an operation. `served` is `true` if letters of it were served now.
    pub(super) async fn write_operation(&self, machine: &OperationMachine, served: bool) -> Work<()> {
        let operation = &machine.operation;
        let approved_by = match &operation.approved_by {
            Some(by) => Some(to_json(by, "a reviewer")?),
            None => None,
        };
        self.query(
            UPDATE_OPERATION,
            &[
                &bound(operation.id.0),
                &operation.state.as_str(),
                &operation.note.as_deref().map(text),
                &bound(operation.stage as u64),
                &bound(operation.ok),
                &bound(operation.failed_again),
                &bound(operation.skipped),
                &approved_by,
                &nanos(operation.updated_at),
                &operation.ended_at.map(nanos),
                &machine.next_at.map(nanos),
                &bound(machine.counted_ok),
                &bound(machine.counted_failed),
                &bound(machine.released),
                &(machine.pending() > 0),
                &served.then(|| nanos(self.now())),
            ],
        )
        .await?;
        Ok(())
    }

    /// The lowest ordinal of a plan that has no outcome.
    pub(super) async fn first_pending(&self, plan: PlanId) -> Work<Option<u64>> {
        first(&self.query(FIRST_PENDING, &[&bound(plan.0)]).await?, |row| unsigned(row.try_get(0)?))
    }

    /// The next letters of this queue without an outcome, from this ordinal on, and their sequences.
    pub(super) async fn next_pending(
        &self,
        plan: PlanId,
        qid: i64,
        from: u64,
        limit: usize,
    ) -> Work<VecDeque<(Pending, SequenceId)>> {
        let parameters: &[&(dyn ToSql + Sync)] = &[&bound(plan.0), &qid, &bound(from), &rows_of(limit)];
        self.query(NEXT_PENDING, parameters).await?.iter().map(read_pending).collect()
    }

    /// A letter of a plan, if it has no outcome.
    pub(super) async fn pending_letter(&self, plan: PlanId, letter: LetterId) -> Work<Option<Pending>> {
        let rows = self.query(PENDING_LETTERS, &[&vec![letter.as_uuid()]]).await?;
        Ok(pending_of(plan, &rows)?.remove(&letter).map(|(item, _)| item))
    }

    /// The sequence of a letter when its plan was frozen.
    pub(super) async fn planned_sequence(&self, plan: PlanId, ordinal: u64) -> Work<Option<SequenceId>> {
        let rows = self.query(PLANNED_SEQUENCE, &[&bound(plan.0), &bound(ordinal)]).await?;
        first(&rows, |row| Ok(SequenceId::new(Columns::of(row).arc_text()?)))
    }

    /// `true` if the letter is still pending in an unfinished operation that was started before this one.
    pub(super) async fn is_in_earlier(&self, letter: LetterId, id: OperationId) -> Work<bool> {
        Ok(!self.query(IN_EARLIER, &[&letter.as_uuid(), &bound(id.0)]).await?.is_empty())
    }

    /// Records the outcome of the letters of a plan with these ordinals that have none. Returns their number.
    pub(super) async fn write_outcomes(
        &self,
        plan: PlanId,
        ordinals: RangeInclusive<u64>,
        outcome: Outcome,
    ) -> Work<u64> {
        let (from, to) = ordinals.into_inner();
        let rows = self
            .query(WRITE_OUTCOMES, &[&bound(plan.0), &bound(from), &bound(to), &outcome_number(outcome)])
            .await?;
        Ok(first(&rows, |row| unsigned(row.try_get(0)?))?.unwrap_or_default())
    }

    /// Records outcomes of the letters of a plan and a queue with these ordinals that have none. Returns the number of letters for each,
    /// and the lowest ordinal of the plan that still has no outcome.
    pub(super) async fn write_all_outcomes(
        &self,
        queue: &Queue,
        plan: PlanId,
        outcomes: &[(RangeInclusive<u64>, Outcome)],
    ) -> Work<(Vec<u64>, Option<u64>)> {
        let mut written = vec![0; outcomes.len()];
        if outcomes.is_empty() {
            return Ok((written, self.first_pending(plan).await?));
        }
        let first_ordinals: Vec<i64> =
            outcomes.iter().map(|(ordinals, _)| bound(*ordinals.start())).collect();
        let last_ordinals: Vec<i64> = outcomes.iter().map(|(ordinals, _)| bound(*ordinals.end())).collect();
        let numbers: Vec<i16> = outcomes.iter().map(|(_, outcome)| outcome_number(*outcome)).collect();
        let plan = bound(plan.0);
        let [rows, pending] = self
            .query_all([
                (WRITE_ALL_OUTCOMES, &[&plan, &queue.qid, &first_ordinals, &last_ordinals, &numbers]),
                (FIRST_PENDING, &[&plan]),
            ])
            .await?;
        for row in &rows {
            let mut c = Columns::of(row);
            let place = usize::try_from(c.unsigned()?).unwrap_or(usize::MAX);
            if let Some(of_place) = written.get_mut(place) {
                *of_place = c.unsigned()?;
            }
        }
        Ok((written, first(&pending, |row| unsigned(row.try_get(0)?))?))
    }
}
