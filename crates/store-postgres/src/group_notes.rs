//! Notes about groups: what a call changes in them.
//!
//! An outage makes all processes fail in the same way, and their calls count in the same groups. If each of them changed the row of the
//! group, they would wait for each other from there to the commit. So a call only inserts what it has changed, and somebody adds these
//! notes to the rows now and then. Whoever reads a group adds those that are left, so its counters are exact.
//!
//! Notes are added in the order of their numbers. A call takes its number when it holds the locks of its letters, and they are only free
//! when the call that changed these letters before was committed, with a lower number. So no counter falls below zero, whatever else is in
//! progress. (The numbers must not be cached: a session that keeps some back would take a low one late.)

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lazaret_core::Fingerprint;
use lazaret_core::store::Result;
use lazaret_core::store::rules::{GroupChanges, GroupRow};
use tokio_postgres::types::ToSql;

use crate::error::Work;
use crate::groups::{GroupArrays, read_group, select_group};
use crate::store::{PostgresStore, first};
use crate::transaction::{Transaction, transaction};
use crate::values::{Columns, from_json, limit as rows_of, lock_key, time, to_json};

/// The key of a group: its queue and its fingerprint.
pub(crate) type GroupKey = (i64, Fingerprint);

/// After how many notes a process has them added.
const LEFT: usize = 256;
/// Number of notes that are added in one transaction (I7).
const BATCH: usize = 2000;

pub(crate) const INSERT_NOTES: &str = "INSERT INTO group_notes (qid, fingerprint, at, open, changes)
    SELECT unnest($1::bigint[]), unnest($2::text[]), $3, unnest($4::bigint[]), unnest($5::text[])::json";
/// One process adds notes; the others need not wait for it.
const LOCK: &str = "SELECT pg_try_advisory_xact_lock($1)";
pub(crate) const TAKE: &str = "WITH taken AS (SELECT qid, fingerprint, number FROM group_notes
        ORDER BY qid, fingerprint, number LIMIT $1)
    DELETE FROM group_notes n USING taken t
    WHERE n.qid = t.qid AND n.fingerprint = t.fingerprint AND n.number = t.number
    RETURNING n.qid, n.fingerprint, n.number, n.at, n.changes::text";
const ROWS: &str = select_group!(
    ", u.place",
    "FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS u (qid, fingerprint, place)
     LEFT JOIN failure_groups g ON g.qid = u.qid AND g.fingerprint = u.fingerprint ORDER BY u.place"
);
const PUT: &str = "INSERT INTO failure_groups AS g (qid, fingerprint, reason, error_type, message, sequences, behind, first_seen,
    last_seen, trend, by_state)
    SELECT qid, fingerprint, reason, error_type, message, sequences, behind, first_seen, last_seen, trend::json,
    by_state::bigint[]
    FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[],
    $9::bigint[], $10::text[], $11::text[])
    AS u (qid, fingerprint, reason, error_type, message, sequences, behind, first_seen, last_seen, trend, by_state)
    ON CONFLICT (qid, fingerprint) DO UPDATE SET reason = excluded.reason, error_type = excluded.error_type,
    message = excluded.message, sequences = excluded.sequences, behind = excluded.behind,
    first_seen = excluded.first_seen, last_seen = excluded.last_seen, trend = excluded.trend,
    by_state = excluded.by_state";
const REMOVE: &str =
    "DELETE FROM failure_groups g USING unnest($1::bigint[], $2::text[]) AS u (qid, fingerprint)
    WHERE g.qid = u.qid AND g.fingerprint = u.fingerprint";

/// The notes of a call, an array for each column.
#[derive(Default)]
pub(crate) struct NoteArrays {
    qid: Vec<i64>,
    fingerprint: Vec<String>,
    at: i64,
    open: Vec<i64>,
    changes: Vec<String>,
}

impl NoteArrays {
    pub(crate) fn of(groups: &BTreeMap<GroupKey, GroupChanges>, at: i64) -> Work<Self> {
        let mut notes = Self { at, ..Self::default() };
        for ((qid, group), changes) in groups.iter().filter(|(_, changes)| !changes.is_empty()) {
            notes.qid.push(*qid);
            notes.fingerprint.push(group.to_string());
            notes.open.push(changes.open());
            notes.changes.push(to_json(changes, "a note about a group")?);
        }
        Ok(notes)
    }

    pub(crate) const fn len(&self) -> usize {
        self.qid.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.qid.is_empty()
    }

    pub(crate) fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        vec![&self.qid, &self.fingerprint, &self.at, &self.open, &self.changes]
    }
}

/// A group with the notes about it, in their order, each with the time of its call. `None` if no letters are left.
pub(crate) fn with_notes(row: Option<GroupRow>, notes: &[(i64, GroupChanges)]) -> Option<GroupRow> {
    notes.iter().fold(row, |row, (at, changes)| {
        let at = time(*at);
        let mut row = row.unwrap_or_else(|| GroupRow::new(at));
        row.add(changes, at);
        Some(row).filter(|row| !row.is_empty())
    })
}

/// The notes that this process has written, and not added yet.
#[derive(Debug, Default)]
pub(crate) struct GroupNotes {
    left: AtomicUsize,
    adding: AtomicBool,
}

/// The task that adds notes. One that is dropped in the middle, with its runtime, lets the next one begin.
struct Adding(PostgresStore);

impl Drop for Adding {
    fn drop(&mut self) {
        self.0.group_notes().adding.store(false, Ordering::Relaxed);
    }
}

impl PostgresStore {
    /// Counts notes that were committed, and has them added when they are many.
    pub(crate) fn count_notes(&self, notes: usize) {
        if notes > 0 && self.group_notes().left.fetch_add(notes, Ordering::Relaxed) + notes >= LEFT {
            self.add_notes_soon();
        }
    }

    /// Adds all notes to their groups, those of other processes, too. One task does it at a time.
    pub(crate) fn add_notes_soon(&self) {
        if self.group_notes().adding.swap(true, Ordering::Relaxed) {
            return;
        }
        self.group_notes().left.store(0, Ordering::Relaxed);
        let adding = Adding(self.clone());
        tokio::spawn(async move {
            if let Err(error) = Box::pin(adding.0.add_notes()).await {
                // They are read, and added after as many again, or beside retention.
                tracing::warn!(%error, "failed to add notes to their groups");
            }
        });
    }

    async fn add_notes(&self) -> Result<()> {
        while transaction!(self, "groups", |tx| tx.add_notes()) == BATCH {}
        Ok(())
    }
}

impl Transaction<'_> {
    /// Adds some notes to their groups, and returns how many. None if another process does it.
    async fn add_notes(&self) -> Work<usize> {
        let key = lock_key(&["lazaret groups", self.store.schema()]);
        let locked = self.query(LOCK, &[&key]).await?;
        if !first(&locked, |row| Ok(row.try_get(0)?))?.unwrap_or(false) {
            return Ok(0);
        }
        let taken = self.query(TAKE, &[&rows_of(BATCH)]).await?;
        if taken.is_empty() {
            return Ok(0);
        }
        let mut notes: BTreeMap<(i64, String), BTreeMap<i64, (i64, GroupChanges)>> = BTreeMap::new();
        for row in &taken {
            let mut c = Columns::of(row);
            let (group, number, at): (_, i64, i64) = ((c.get()?, c.get()?), c.get()?, c.get()?);
            let changes = from_json(&c.get::<String>()?, "a note about a group")?;
            notes.entry(group).or_default().insert(number, (at, changes));
        }
        let (qids, names): (Vec<i64>, Vec<String>) = notes.keys().cloned().unzip();
        let rows = self.query(ROWS, &[&qids, &names]).await?;
        let (mut put, mut removed) = (GroupArrays::default(), (Vec::new(), Vec::new()));
        for (row, ((qid, name), of_group)) in rows.iter().zip(notes) {
            let of_group: Vec<_> = of_group.into_values().collect();
            match with_notes(read_group(&mut Columns::of(row))?, &of_group) {
                Some(group) => put.push(qid, name, &group)?,
                None => {
                    removed.0.push(qid);
                    removed.1.push(name);
                }
            }
        }
        if !put.is_empty() {
            self.query(PUT, &put.parameters()).await?;
        }
        if !removed.0.is_empty() {
            self.query(REMOVE, &[&removed.0, &removed.1]).await?;
        }
        Ok(taken.len())
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::{Failure, LetterState, Reason};

    use super::*;

    #[test]
    fn a_group_ends_with_its_last_letter_and_begins_anew() {
        let note = |at: i64, by: i64| {
            let mut changes = GroupChanges::default();
            if by > 0 {
                changes.enter(&Failure::new(Reason::TIMEOUT, "E", format!("failed at {at}")), time(at));
            }
            changes.count(LetterState::Dead, by);
            (at, changes)
        };
        assert_eq!(with_notes(None, &[]), None);
        assert_eq!(with_notes(None, &[note(1, 1), note(2, -1)]), None);
        let anew = with_notes(None, &[note(1, 1), note(2, -1), note(3, 1)]).unwrap();
        assert_eq!((anew.first_seen, anew.latest.message.as_str()), (time(3), "failed at 3"));
        let kept = with_notes(Some(anew), &[note(4, 1), note(5, -1)]).unwrap();
        assert_eq!((kept.first_seen, kept.latest.message.as_str()), (time(3), "failed at 4"));
        assert_eq!(kept.by_state[LetterState::Dead as usize], 1);
    }
}
