//! Freezing: exclusions and order of the letters of a plan, once they are [selected](super::selecting).
//!
//! The selected letters are inserted into a temporary table, and from there into the items. Nothing of it is visible before the commit.

use std::collections::BTreeMap;

use lazaret_core::LetterState;
use lazaret_core::store::rules;
use lazaret_core::store::{
    Action, Actor, Exclusion, PayloadDigest, Plan, PlanHasher, PlanId, PlanRequest, Result, Selection,
};
use rusqlite::{Connection, params};

use super::selecting::{self, Candidate, Candidates};
use super::table;
use crate::error::{Fault, Work};
use crate::rows::{bound, later, letter_id, limit as rows_of, time, unsigned};
use crate::step::Step;
use crate::store::SqliteStore;

/// `exclusion` is the index of the reason in [`Exclusion::ALL`]; `gaps` holds, for sequences that are not completely in the
/// plan, the index of the first letter outside of it.
const TABLES: &str = "
    CREATE TEMP TABLE IF NOT EXISTS selected (
        lid INTEGER PRIMARY KEY, qid INTEGER, sid INTEGER, sequence TEXT, place INTEGER, id BLOB, state INTEGER,
        enqueued INTEGER, digest BLOB, exclusion INTEGER
    );
    CREATE TEMP TABLE IF NOT EXISTS gaps (sid INTEGER PRIMARY KEY, place INTEGER);
    DELETE FROM temp.selected;
    DELETE FROM temp.gaps;
";

/// Maximum number of changed letters that the writer selects again itself.
const CHANGED_LIMIT: usize = 16;
/// How often changed letters are selected again on readers. Each time there are fewer.
const ROUNDS: usize = 4;

/// Selects the letters of a plan on readers, and freezes it on the writer.
pub(crate) async fn freeze(store: &SqliteStore, request: &PlanRequest, by: &Actor) -> Result<Plan> {
    let mut selected = store.select(request).await?;
    let mut round = 1;
    loop {
        let (frozen, by) = (request.clone(), by.clone());
        let most = if round < ROUNDS { CHANGED_LIMIT } else { usize::MAX };
        let work = move |step: &mut Step<'_>| write_plan(step, &frozen, &by, selected, most);
        match store.write("freeze", work).await? {
            Written::Plan(plan) => return Ok(plan),
            Written::Changed(earlier, changed) => {
                selected = store.select_again(request, earlier, changed).await?;
            }
        }
        round += 1;
    }
}

/// The result of [`write_plan`].
pub(super) enum Written {
    Plan(Plan),
    /// Nothing was written: the letters in these rows have changed since they were selected.
    Changed(Candidates, Vec<i64>),
}

/// Writes the plan of the selected letters. Selects up to `most` letters again that have changed.
pub(super) fn write_plan(
    step: &Step<'_>,
    request: &PlanRequest,
    by: &Actor,
    mut selected: Candidates,
    most: usize,
) -> Work<Written> {
    let connection = step.connection;
    delete_expired_plans(connection, step.now)?;
    connection.execute_batch(TABLES)?;
    let changed = insert_unchanged(connection, &selected.open)?;
    if changed.len() > most {
        return Ok(Written::Changed(selected, changed));
    }
    if !changed.is_empty() {
        let now = selecting::among(connection, step.now, &request.selection, &changed)?;
        insert_unchanged(connection, &now.open)?;
        selected.closed += now.closed;
    }
    exclude(connection, request)?;
    if request.action == Action::Retry {
        exclude_behind(connection)?;
    }
    let (letters, sequences): (i64, i64) = connection.query_row(
        "SELECT count(*), count(DISTINCT sid) FROM temp.selected WHERE exclusion IS NULL",
        [],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    let followers = followers(connection, request.action, letters)?;
    let counts = (unsigned(letters)?, unsigned(sequences)?, followers, excluded(connection, &selected)?);
    let mut plan = rules::plan(PlanId(0), request, counts, String::new(), by, time(step.now))?;
    plan.id = insert(connection, &plan, step.now, later(step.now, request.valid_for))?;
    write_items(connection, plan.id)?;
    plan.hash = hash(connection, &plan)?;
    connection.execute("UPDATE plans SET hash = ?2 WHERE plan = ?1", params![bound(plan.id.0), plan.hash])?;
    connection.execute_batch("DELETE FROM temp.selected; DELETE FROM temp.gaps")?;
    Ok(Written::Plan(plan))
}

/// Inserts the letters into `selected` that are still as they were selected. Returns the rows of the others.
fn insert_unchanged(connection: &Connection, letters: &[Candidate]) -> Work<Vec<i64>> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO temp.selected (lid, qid, sid, sequence, place, id, state, enqueued, digest)
         SELECT lid, qid, sid, sequence, idx, id, state, enqueued_at, ?3 FROM letters WHERE lid = ?1 AND revision = ?2",
    )?;
    let mut changed = Vec::new();
    for Candidate { lid, revision, digest } in letters {
        if insert.execute(params![lid, revision, digest.as_bytes()])? == 0 {
            changed.push(*lid);
        }
    }
    Ok(changed)
}

/// Number of letters outside of the plan in its sequences, which may run after it.
fn followers(connection: &Connection, action: Action, letters: i64) -> Work<u64> {
    if action == Action::Park {
        return Ok(0);
    }
    let all: i64 = connection.query_row(
        "SELECT coalesce(sum(count), 0) FROM sequences
         WHERE sid IN (SELECT sid FROM temp.selected WHERE exclusion IS NULL)",
        [],
        |row| row.get(0),
    )?;
    unsigned(all.saturating_sub(letters).max(0))
}

/// Deletes some expired plans without an operation, so that the file does not grow with every preview.
fn delete_expired_plans(connection: &Connection, now: i64) -> Work<()> {
    let mut select = connection.prepare_cached(
        "SELECT plan FROM plans WHERE expires_at <= ?1
         AND NOT EXISTS (SELECT 1 FROM operations WHERE operations.plan = plans.plan) ORDER BY expires_at LIMIT ?2",
    )?;
    let before = now.saturating_sub(later(0, Plan::RETENTION));
    let old: rusqlite::Result<Vec<i64>> =
        select.query_map([before, rows_of(Plan::DELETED_PER_FREEZE)], |row| row.get(0))?.collect();
    for plan in old? {
        connection.execute("DELETE FROM items WHERE plan = ?1", [plan])?;
        connection.execute("DELETE FROM plans WHERE plan = ?1", [plan])?;
    }
    Ok(())
}

/// Sets the reason to exclude a selected letter, as far as it depends on the letter alone.
fn exclude(connection: &Connection, request: &PlanRequest) -> Work<()> {
    let retry = request.action == Action::Retry;
    // A query with a state, or a list of ids, selects quarantined letters explicitly.
    let asked = match &request.selection {
        Selection::Query(query) => query.names_state(),
        Selection::Letters(_) => true,
    };
    let mut update = connection.prepare_cached(
        "UPDATE temp.selected SET exclusion = CASE
             WHEN sid IS NULL THEN ?1
             WHEN state = ?2 THEN ?3
             WHEN EXISTS (SELECT 1 FROM items JOIN operations USING (plan)
                          WHERE letter = selected.id AND outcome IS NULL AND ended_at IS NULL) THEN ?4
             WHEN state = ?5 THEN ?6
             WHEN ?7 AND (SELECT json_extract(CAST(substr(body, 2) AS TEXT), '$.payload_left_out')
                          FROM letters WHERE letters.lid = selected.lid) THEN ?8
         END",
    )?;
    let only = |state: LetterState, when: bool| when.then_some(state as i64);
    update.execute(params![
        number(Exclusion::Closed),
        only(LetterState::Parked, request.action == Action::Park),
        number(Exclusion::Already),
        number(Exclusion::InOperation),
        only(LetterState::Quarantined, retry && !asked),
        number(Exclusion::Quarantined),
        retry,
        number(Exclusion::NoPayload),
    ])?;
    Ok(())
}

/// Excludes letters behind an open letter outside of the plan (I2). Reads a sequence only up
/// to the first such letter.
fn exclude_behind(connection: &Connection) -> Work<()> {
    connection.execute(
        "INSERT INTO temp.gaps (sid, place) SELECT sid, (
             SELECT letters.idx FROM letters WHERE letters.sid = touched.sid AND NOT EXISTS (
                 SELECT 1 FROM temp.selected WHERE selected.lid = letters.lid AND exclusion IS NULL)
             ORDER BY letters.idx LIMIT 1)
         FROM (SELECT DISTINCT sid FROM temp.selected WHERE exclusion IS NULL) AS touched",
        [],
    )?;
    connection.execute(
        "UPDATE temp.selected SET exclusion = ?1 WHERE exclusion IS NULL
         AND place > (SELECT gaps.place FROM temp.gaps WHERE gaps.sid = selected.sid)",
        [number(Exclusion::Behind)],
    )?;
    Ok(())
}

fn number(exclusion: Exclusion) -> i64 {
    exclusion as i64
}

/// Number of excluded letters by reason.
fn excluded(connection: &Connection, selected: &Candidates) -> Work<BTreeMap<Exclusion, u64>> {
    let mut counts =
        BTreeMap::from([(Exclusion::NotFound, selected.missing), (Exclusion::Closed, selected.closed)]);
    let mut select = connection.prepare_cached(
        "SELECT exclusion, count(*) FROM temp.selected WHERE exclusion IS NOT NULL GROUP BY exclusion",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let place = usize::from(row.get::<_, u8>(0)?);
        let exclusion = Exclusion::ALL.get(place);
        let exclusion = exclusion.ok_or_else(|| Fault::Corrupt(format!("unknown exclusion {place}")))?;
        *counts.entry(*exclusion).or_default() += unsigned(row.get(1)?)?;
    }
    Ok(counts)
}

fn insert(connection: &Connection, plan: &Plan, now: i64, expires_at: i64) -> Work<PlanId> {
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
        now,
        expires_at,
        bound(plan.followers),
    ])?;
    Ok(PlanId(unsigned(connection.last_insert_rowid())?))
}

/// Writes the items: sequences in the order in which their first letters were enqueued, letters in the order of their sequence.
fn write_items(connection: &Connection, plan: PlanId) -> Work<()> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO items (plan, ordinal, last, qid, sequence, letter, state, digest)
         SELECT ?1, ordinal, max(ordinal) OVER (PARTITION BY sid), qid, sequence, id, state, digest FROM (
             SELECT *, row_number() OVER (ORDER BY born, name, start, sid, place) - 1 AS ordinal FROM (
                 SELECT selected.*, queues.name, first_value(enqueued) OVER along AS born,
                        first_value(place) OVER along AS start
                 FROM temp.selected JOIN queues USING (qid) WHERE exclusion IS NULL
                 WINDOW along AS (PARTITION BY sid ORDER BY place)))
         ORDER BY ordinal",
    )?;
    insert.execute([bound(plan.0)])?;
    Ok(())
}

/// The hash of a plan.
fn hash(connection: &Connection, plan: &Plan) -> Work<String> {
    let mut hasher = PlanHasher::new(plan.action);
    let mut select =
        connection.prepare_cached("SELECT letter, digest FROM items WHERE plan = ?1 ORDER BY ordinal")?;
    let mut rows = select.query([bound(plan.id.0)])?;
    while let Some(row) = rows.next()? {
        let letter = letter_id(row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?)?;
        hasher.add(letter, PayloadDigest::from_bytes(row.get(1)?));
    }
    Ok(hasher.finish())
}
