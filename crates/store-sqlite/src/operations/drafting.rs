//! Writes plans, and deletes old ones, in pages. Between two pages the writer serves other calls.
//!
//! While a plan is written, its row has no hash and has expired: nobody finds it, and no operation can start from it. Each
//! page postpones the time of the row, the last one sets the hash and the expiry. What a crash or a caller that gave up leaves is deleted
//! when the row was not touched for [`ABANDONED`]. A plan that is deleted loses its hash first.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::store::{ErrorKind, Plan, PlanId, Result, StoreError};
use rusqlite::{Connection, params};

use super::freezing::{Frozen, FrozenLetter};
use super::selecting::FREEZE;
use super::table;
use crate::error::Work;
use crate::rows::{bound, id_bytes, later, limit as rows_of, nanos, unsigned};
use crate::step::Step;
use crate::store::SqliteStore;

/// Number of letters that one step of the writer inserts or deletes.
pub(super) const PAGE: usize = 1000;
/// How long after its last page a plan counts as abandoned by its author.
pub(super) const ABANDONED: Duration = Duration::from_secs(600);

/// A plan that is being written.
pub(super) struct Draft {
    frozen: Arc<Frozen>,
    /// Its number, once it has one.
    id: Option<PlanId>,
    written: usize,
}

impl Draft {
    pub(super) fn new(frozen: Frozen) -> Self {
        Self { frozen: Arc::new(frozen), id: None, written: 0 }
    }

    /// Writes all of it.
    pub(super) async fn write(mut self, store: &SqliteStore) -> Result<Plan> {
        loop {
            if let Some(plan) = self.write_page(store).await? {
                return Ok(plan);
            }
        }
    }

    /// Writes the next page in one step of the writer. Returns the plan after the last one.
    pub(super) async fn write_page(&mut self, store: &SqliteStore) -> Result<Option<Plan>> {
        let (frozen, id, from) = (self.frozen.clone(), self.id, self.written);
        let to = frozen.letters.len().min(from + PAGE);
        let is_last = to == frozen.letters.len();
        let work = move |step: &mut Step<'_>| -> Work<PlanId> {
            let connection = step.connection;
            let id = match id {
                Some(id) => touch(connection, id, step.now)?,
                None => insert_plan(connection, &frozen.plan, step.now)?,
            };
            insert_items(connection, id, from, &frozen.letters[from..to])?;
            if is_last {
                complete(connection, id, &frozen.plan)?;
            }
            Ok(id)
        };
        let id = store.write(FREEZE, work).await?;
        (self.id, self.written) = (Some(id), to);
        Ok(is_last.then(|| Plan { id, ..self.frozen.plan.clone() }))
    }
}

/// Inserts the row of a plan, which nobody finds yet.
fn insert_plan(connection: &Connection, plan: &Plan, now: i64) -> Work<PlanId> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO plans (action, query, letters, sequences, excluded, hash, who, via, why, frozen_at, expires_at,
                            followers)
         VALUES (?1, ?2, ?3, ?4, ?5, '', ?6, ?7, ?8, ?9, ?10, ?11)",
    )?;
    insert.execute(params![
        plan.action.as_str(),
        plan.query,
        bound(plan.letters),
        bound(plan.sequences),
        table::to_json(&plan.excluded)?,
        plan.by.who,
        plan.by.via,
        plan.by.why,
        nanos(plan.frozen_at),
        now,
        bound(plan.followers),
    ])?;
    Ok(PlanId(unsigned(connection.last_insert_rowid())?))
}

fn insert_items(connection: &Connection, plan: PlanId, from: usize, letters: &[FrozenLetter]) -> Work<()> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO items (plan, ordinal, last, qid, sequence, letter, state, digest)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    for (ordinal, letter) in (from as u64..).zip(letters) {
        insert.execute(params![
            bound(plan.0),
            bound(ordinal),
            bound(letter.last),
            letter.qid,
            &*letter.sequence,
            id_bytes(letter.id),
            letter.state as i64,
            letter.digest.as_bytes(),
        ])?;
    }
    Ok(())
}

/// Makes a plan visible.
fn complete(connection: &Connection, id: PlanId, plan: &Plan) -> Work<()> {
    let mut update =
        connection.prepare_cached("UPDATE plans SET hash = ?2, expires_at = ?3 WHERE plan = ?1")?;
    update.execute(params![bound(id.0), plan.hash, nanos(plan.expires_at)])?;
    Ok(())
}

/// The expiry of a plan that is being deleted.
const DELETED: i64 = i64::MIN;

/// Records that a plan is still being written, unless it counted as abandoned in the meantime.
fn touch(connection: &Connection, id: PlanId, now: i64) -> Work<PlanId> {
    let mut update = connection.prepare_cached(
        "UPDATE plans SET expires_at = ?2 WHERE plan = ?1 AND hash = '' AND expires_at > ?3",
    )?;
    if update.execute([bound(id.0), now, DELETED])? == 1 {
        return Ok(id);
    }
    let context = "the plan took too long to write, and was deleted: freeze it again";
    Err(StoreError::not_done(ErrorKind::Unavailable, FREEZE, context).into())
}

/// Deletes some plans that nobody can start any more, so that the file does not grow with every preview, and some that were abandoned
/// while they were written.
pub(super) async fn delete_old(store: &SqliteStore) -> Result<()> {
    let mut old = store.ask(FREEZE, |view| old_plans(view.connection, view.now)).await?;
    while !old.is_empty() {
        old = store.write(FREEZE, move |step| delete_page(step.connection, old, step.now)).await?;
    }
    Ok(())
}

/// The condition for a plan to be deleted: it expired some time before `?1`, or was abandoned before `?2`.
macro_rules! is_old {
    () => {
        "expires_at <= ?1 AND (hash <> '' OR expires_at <= ?2) \
         AND NOT EXISTS (SELECT 1 FROM operations WHERE operations.plan = plans.plan)"
    };
}

/// The times before which plans are old, and abandoned.
fn cuts(now: i64) -> [i64; 2] {
    [now.saturating_sub(later(0, Plan::RETENTION)), now.saturating_sub(later(0, ABANDONED))]
}

fn old_plans(connection: &Connection, now: i64) -> Work<Vec<i64>> {
    let mut select = connection.prepare_cached(concat!(
        "SELECT plan FROM plans WHERE ",
        is_old!(),
        " ORDER BY expires_at LIMIT ?3"
    ))?;
    let [expired, abandoned] = cuts(now);
    let parameters = [expired, abandoned, rows_of(Plan::DELETED_PER_FREEZE)];
    let plans: rusqlite::Result<Vec<i64>> = select.query_map(parameters, |row| row.get(0))?.collect();
    Ok(plans?)
}

/// Deletes some items of the first of these plans that are still old. Returns the plans that are left.
fn delete_page(connection: &Connection, mut plans: Vec<i64>, now: i64) -> Work<Vec<i64>> {
    let mut hide = connection.prepare_cached(concat!(
        "UPDATE plans SET hash = '', expires_at = ?3 WHERE plan = ?4 AND ",
        is_old!()
    ))?;
    let mut delete = connection.prepare_cached(
        "DELETE FROM items WHERE plan = ?1
         AND ordinal < (SELECT ordinal FROM items WHERE plan = ?1 ORDER BY ordinal LIMIT 1) + ?2",
    )?;
    let [expired, abandoned] = cuts(now);
    let mut left = PAGE;
    while let Some(plan) = plans.first().copied()
        && left > 0
    {
        // Another process may have deleted it, or its author goes on after all.
        let is_old = hide.execute([expired, abandoned, DELETED, plan])? == 1;
        let deleted = if is_old { delete.execute([plan, rows_of(left)])? } else { 0 };
        left = left.saturating_sub(deleted);
        if deleted > 0 && left == 0 {
            break;
        }
        if is_old {
            connection.prepare_cached("DELETE FROM plans WHERE plan = ?1")?.execute([plan])?;
        }
        plans.remove(0);
    }
    Ok(plans)
}

#[cfg(test)]
mod tests;
