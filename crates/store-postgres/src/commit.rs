//! Writes what a call has changed, an array for each column, and commits it.
//!
//! All transactions take locks in the same order: grants, sequences, letters, operations, audit, queues, watched queues, counters. The last four
//! are busy rows, and locked only for the last round trips of a call. Groups, which are as busy, need no lock: see
//! [`group_notes`](crate::group_notes).

use std::sync::atomic::{AtomicU16, Ordering};

use bytes::Bytes;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::audit;
use crate::ends::{EndArrays, LIST_ENDS};
use crate::error::Work;
use crate::group_notes::{INSERT_NOTES, NoteArrays};
use crate::letter_arrays::{EditArrays, INSERT_LETTERS, LetterArrays, PayloadArrays, UPDATE_LETTERS};
use crate::letter_row::NO_BODY;
use crate::sequence_row::SequenceArrays;
use crate::statements as sql;
use crate::transaction::{Query, Transaction};
use crate::unit::{HeldGrant, NewEdit, NewLetter, Unit};
use crate::values::{bound, encode_headers, nanos, text};

/// Over how many rows the counters of a queue are spread.
const STRIPES: u16 = 8;

/// The statements of a step, with what their parameters refer to.
#[derive(Default)]
struct Statements<'a>(Vec<(&'static str, Vec<&'a (dyn ToSql + Sync)>)>);

impl<'a> Statements<'a> {
    fn push(&mut self, sql: &'static str, parameters: Vec<&'a (dyn ToSql + Sync)>) {
        self.0.push((sql, parameters));
    }

    fn queries(&self) -> Vec<Query<'_>> {
        self.0.iter().map(|(sql, parameters)| (*sql, parameters.as_slice())).collect()
    }
}

#[derive(Default)]
struct GrantArrays {
    qid: Vec<i64>,
    stream: Vec<String>,
    partition: Vec<i64>,
    fence: Vec<i64>,
    turn: Vec<i64>,
    horizon: Vec<Option<i64>>,
}

impl GrantArrays {
    fn statement(&self) -> Vec<&(dyn ToSql + Sync)> {
        vec![&self.qid, &self.stream, &self.partition, &self.fence, &self.turn, &self.horizon]
    }
}

/// The rows of letters and sequences that a step writes.
#[derive(Default)]
struct Rows {
    new: LetterArrays,
    new_payloads: PayloadArrays,
    changed: LetterArrays,
    payloads: (Vec<i64>, Vec<Option<Vec<u8>>>),
    edits: EditArrays,
    purged: Vec<i64>,
    erased: Vec<i64>,
    erased_ids: Vec<Uuid>,
    now: i64,
    deleted_sequences: Vec<i64>,
    changed_sequences: SequenceArrays,
}

impl Rows {
    /// Takes the rows out of the unit. Sequences with a new revision stay: the queue is locked for them at the end only.
    fn take(unit: &mut Unit, now: i64) -> Work<Self> {
        let mut rows = Self { now, ..Self::default() };
        let vector = |bytes: &Bytes| bytes.to_vec();
        for NewLetter { lid, qid, sid, letter } in unit.new_letters.drain(..) {
            let closed_at = sid.is_none().then(|| nanos(letter.enqueued_at));
            let edits = i64::try_from(letter.edits.len()).unwrap_or(i64::MAX);
            rows.new.push((lid, qid, sid, edits), &letter, closed_at)?;
            let message = &letter.message;
            rows.new_payloads.lid.push(lid);
            rows.new_payloads.key.push(message.key.as_ref().map(vector));
            rows.new_payloads.headers.push(encode_headers(&message.headers));
            rows.new_payloads.payload.push(message.payload.as_ref().map(vector));
            let mut kept = 0;
            for (number, edit) in (1..).zip(letter.edits) {
                kept += edit.original.as_ref().map_or(0, Bytes::len);
                unit.edits.push(NewEdit { lid, number, kept, edit });
            }
        }
        for held in std::mem::take(&mut unit.letters).into_values() {
            let closed_at = held.closed_at.map(nanos);
            rows.changed.push((held.lid, held.qid, held.sid, held.edits), &held.letter, closed_at)?;
        }
        for (lid, payload) in unit.payloads.drain(..) {
            rows.payloads.0.push(lid);
            rows.payloads.1.push(payload.as_ref().map(vector));
        }
        unit.edits.drain(..).for_each(|edit| rows.edits.push(&edit));
        rows.purged = std::mem::take(&mut unit.purged);
        rows.erased = std::mem::take(&mut unit.erased);
        rows.erased_ids = std::mem::take(&mut unit.erased_ids);
        for slot in unit.sequences.values_mut().filter(|slot| slot.changed && !slot.revised) {
            match (&slot.current, slot.stored) {
                (Some(open), _) => rows.changed_sequences.push(open, None),
                (None, Some(sid)) => {
                    rows.deleted_sequences.push(sid);
                    slot.stored = None;
                }
                (None, None) => {}
            }
            slot.changed = false;
        }
        Ok(rows)
    }

    fn statements<'a>(&'a self, to: &mut Statements<'a>) {
        if !self.new.is_empty() {
            to.push(&INSERT_LETTERS, self.new.insert());
            let PayloadArrays { lid, key, headers, payload } = &self.new_payloads;
            to.push(sql::INSERT_PAYLOADS, vec![lid, key, headers, payload]);
        }
        if !self.changed.is_empty() {
            to.push(&UPDATE_LETTERS, self.changed.update());
        }
        if !self.payloads.0.is_empty() {
            to.push(sql::UPDATE_PAYLOADS, vec![&self.payloads.0, &self.payloads.1]);
        }
        if !self.edits.lid.is_empty() {
            let EditArrays { lid, number, who, at, why, kept, original } = &self.edits;
            to.push(sql::INSERT_EDITS, vec![lid, number, who, at, why, kept, original]);
        }
        if !self.erased.is_empty() {
            to.push(sql::ERASE_PAYLOADS, vec![&self.erased]);
            to.push(sql::PURGE_EDITS, vec![&self.erased]);
            to.push(sql::ERASE_DIGESTS, vec![&self.erased_ids]);
            to.push(sql::ERASE_PLAN_HASHES, vec![&self.erased_ids]);
        }
        if !self.purged.is_empty() {
            to.push(sql::PURGE_LETTERS, vec![&self.purged, &self.now, &NO_BODY]);
            to.push(sql::PURGE_PAYLOADS, vec![&self.purged]);
            to.push(sql::PURGE_EDITS, vec![&self.purged]);
        }
        if !self.deleted_sequences.is_empty() {
            to.push(sql::DELETE_SEQUENCES, vec![&self.deleted_sequences]);
        }
        if !self.changed_sequences.is_empty() {
            to.push(sql::UPDATE_SEQUENCES, self.changed_sequences.parameters());
        }
    }
}

/// The rows that are written last.
#[derive(Default)]
struct LastRows {
    new_grants: GrantArrays,
    grants: GrantArrays,
    revisions: (Vec<i64>, Vec<i64>),
    replaced: Vec<i64>,
    opened: SequenceArrays,
    reopened: SequenceArrays,
    notes: NoteArrays,
    counts: [Vec<i64>; 11],
    stripe: i16,
    audit: audit::AuditArrays,
    ends: EndArrays,
}

impl LastRows {
    fn take(unit: &mut Unit) -> Self {
        let mut rows = Self { stripe: next_stripe(), ..Self::default() };
        for ((qid, partition), HeldGrant { stored, changed, row }) in std::mem::take(&mut unit.grants) {
            if !changed {
                continue;
            }
            let to = if stored { &mut rows.grants } else { &mut rows.new_grants };
            to.qid.push(qid);
            to.stream.push(text(partition.stream.as_str()).into_owned());
            to.partition.push(partition.number().stored());
            to.fence.push(bound(row.fence));
            to.turn.push(bound(row.turn));
            to.horizon.push(row.horizon.map(bound));
        }
        let mut opened: std::collections::BTreeMap<i64, i64> = std::collections::BTreeMap::new();
        for slot in unit.sequences.values_mut().filter(|slot| slot.revised) {
            let Some(open) = &slot.current else { continue };
            let back = opened.entry(open.qid).or_default();
            match slot.stored {
                Some(sid) if sid == open.sid => rows.reopened.push(open, Some(*back)),
                stored => {
                    rows.replaced.extend(stored);
                    rows.opened.push(open, Some(*back));
                }
            }
            *back += 1;
            (slot.revised, slot.changed, slot.stored) = (false, false, Some(open.sid));
        }
        rows.revisions = opened.into_iter().unzip();
        rows.ends = EndArrays::of(std::mem::take(&mut unit.ends));
        for (qid, counted) in std::mem::take(&mut unit.counts) {
            if counted.sequences == 0 && counted.by_state == [0; 9] {
                continue;
            }
            let [of_queue, sequences, by_state @ ..] = &mut rows.counts;
            of_queue.push(qid);
            sequences.push(counted.sequences);
            for (column, by) in by_state.iter_mut().zip(counted.by_state) {
                column.push(by);
            }
        }
        rows
    }

    fn statements<'a>(&'a self, to: &mut Statements<'a>) {
        if !self.new_grants.qid.is_empty() {
            to.push(sql::INSERT_GRANTS, self.new_grants.statement());
        }
        if !self.grants.qid.is_empty() {
            to.push(sql::UPDATE_GRANTS, self.grants.statement());
        }
        if !self.notes.is_empty() {
            to.push(INSERT_NOTES, self.notes.parameters());
        }
        if !self.audit.is_empty() {
            to.push(audit::INSERT, self.audit.parameters());
        }
        if !self.revisions.0.is_empty() {
            to.push(sql::RAISE_REVISIONS, vec![&self.revisions.0, &self.revisions.1]);
        }
        if !self.replaced.is_empty() {
            to.push(sql::DELETE_SEQUENCES, vec![&self.replaced]);
        }
        if !self.opened.is_empty() {
            to.push(sql::INSERT_SEQUENCES, self.opened.parameters());
        }
        if !self.reopened.is_empty() {
            to.push(sql::UPDATE_SEQUENCES, self.reopened.parameters());
        }
        if !self.ends.is_empty() {
            to.push(LIST_ENDS, self.ends.parameters());
        }
        if !self.counts[0].is_empty() {
            let [qid, rest @ ..] = &self.counts;
            let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![qid, &self.stripe];
            parameters.extend(rest.iter().map(|column| column as &(dyn ToSql + Sync)));
            to.push(sql::ADD_COUNTS, parameters);
        }
    }
}

/// Calls of this process that count at the same time use different rows.
fn next_stripe() -> i16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    (NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES).cast_signed()
}

impl Transaction<'_> {
    /// Writes the letters and sequences that were changed so far, so that the next step of the call finds them, in one round trip. Their
    /// counters, groups and audit lines are written by [`commit`](Self::commit).
    pub(crate) async fn write_rows(&mut self) -> Work<()> {
        let now = nanos(self.now());
        let rows = Rows::take(&mut self.unit, now)?;
        let mut statements = Statements::default();
        rows.statements(&mut statements);
        self.send(&statements.queries(), None).await?;
        Ok(())
    }

    /// Writes all that was changed, and commits.
    pub(crate) async fn commit(&mut self) -> Work<()> {
        if !self.unit.ended.is_empty() {
            Box::pin(self.release_ended()).await?;
        }
        let changes = std::mem::take(&mut self.unit.groups);
        let lines = std::mem::take(&mut self.unit.audit);
        let mut last = LastRows::take(&mut self.unit);
        let now = nanos(self.now());
        last.notes = NoteArrays::of(&changes, now)?;
        if !lines.is_empty() {
            last.audit = self.next_audit_entries(lines).await?;
        }
        let rows = Rows::take(&mut self.unit, now)?;
        let mut statements = Statements::default();
        rows.statements(&mut statements);
        last.statements(&mut statements);
        self.send_and_commit(&statements.queries()).await?;
        self.store.count_notes(last.notes.len());
        Ok(())
    }
}
