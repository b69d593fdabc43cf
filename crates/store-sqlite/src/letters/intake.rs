//! Views for hand-offs.

use std::collections::HashMap;

use lazaret_core::store::rules::{
    self, Entry, GrantRow, HandOffRequest, HandOffView, INDEX_STEP, LaterLetter, LetterView, SequenceRow,
    Slot,
};
use lazaret_core::store::{ErrorKind, Grant, Limits, Placed, Result};
use lazaret_core::{Partition, SequenceId};
use rusqlite::{OptionalExtension, params};

use super::{OpenSequence, Queue};
use crate::encoded_letter::{EncodedLetter, Place};
use crate::error::{Fault, Work};
use crate::rows::{self, bound, time, unsigned};

const HAND_OFF: &str = "hand_off";

impl Queue<'_> {
    fn grant(&mut self, partition: &Partition) -> Work<GrantRow> {
        Ok(self.cache.grant(self.connection, self.numbers.qid, partition)?.unwrap_or_default())
    }

    fn set_grant(&mut self, partition: &Partition, before: GrantRow, row: GrantRow) {
        if row != before {
            self.cache.set_grant(self.numbers.qid, partition, row);
        }
    }

    pub(crate) fn assign(&mut self, partitions: &[Partition]) -> Work<Vec<Grant>> {
        let mut grants = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let known = self.grant(partition)?;
            let GrantRow { fence, horizon, .. } = known.granted();
            self.set_grant(partition, known, known.granted());
            grants.push(Grant { partition: partition.clone(), fence, horizon });
        }
        Ok(grants)
    }

    pub(crate) fn hand_off_all(
        &mut self,
        items: &[EncodedLetter],
        limits: &Limits,
    ) -> Work<Vec<Result<Placed>>> {
        // The sequences with a refused item, and the kind of the error.
        let mut refused: HashMap<&SequenceId, ErrorKind> = HashMap::new();
        let mut answers = Vec::with_capacity(items.len());
        for item in items {
            let sequence = &item.sequence;
            let placed = match self.hand_off(item, refused.get(sequence).copied(), limits) {
                Ok(placed) => Ok(placed),
                // Refusals precede any write of the item, so the items before it stand.
                Err(Fault::Refused(error)) => {
                    refused.entry(sequence).or_insert(error.kind());
                    Err(error)
                }
                Err(fault) => return Err(fault),
            };
            answers.push(placed);
        }
        Ok(answers)
    }

    fn hand_off(
        &mut self,
        letter: &EncodedLetter,
        refused: Option<ErrorKind>,
        limits: &Limits,
    ) -> Work<Placed> {
        let partition = letter.place.partition();
        let mut known = self.grant(&partition)?;
        match &letter.grant {
            Some(grant) if grant.partition == partition => {
                rows::number(grant.turn, "turn", HAND_OFF)?;
                let admitted = known.admit(grant)?;
                self.set_grant(&partition, known, admitted);
                known = admitted;
            }
            // A message that returned from a retry topic was read under the grant of that topic.
            Some(grant) => {
                rows::number(grant.turn, "turn", HAND_OFF)?;
                let row = self.grant(&grant.partition)?;
                let admitted = row.admit(grant)?;
                self.set_grant(&grant.partition, row, admitted);
            }
            None => {}
        }
        let offset = letter.place.offset;
        rows::number(offset, "offset", HAND_OFF)?;
        let mut open = self.sequence(&letter.sequence)?;
        let request = HandOffRequest {
            id: letter.id,
            queue: &letter.queue,
            state: letter.state,
            message: &letter.message,
            offset,
            placement: letter.placement,
            granted: letter.grant.is_some(),
        };
        let view = HandOffView {
            queue: self.name,
            held: self.state_of(letter.id)?,
            refused,
            horizon: known.horizon,
            row: open.as_ref().map(|open| &open.row),
            sequences: unsigned(self.numbers.sequences)?,
            revision: unsigned(self.numbers.revision)?,
            limits,
        };
        let entry = rules::hand_off(&request, &view)?;
        let slot = match (entry, &open) {
            (Entry::Insert, Some(open)) => {
                let later = self.first_later(open.sid, &letter.place)?;
                rules::place(&letter.sequence, &open.row, later, self.time())?
            }
            _ => Slot::End,
        };
        let placed = match entry {
            Entry::Held(state) => Placed::Held(state),
            Entry::NotOpen(revision) => Placed::NotOpen(revision),
            Entry::Closed => Placed::Closed,
            Entry::Open => Placed::Opened,
            Entry::Append | Entry::Insert => Placed::Appended,
        };
        if !matches!(placed, Placed::Held(_) | Placed::NotOpen(_)) {
            self.put(letter, slot, open.as_mut())?;
        }
        if entry.raises_horizon(letter.placement) {
            self.set_grant(&partition, known, known.raised(offset));
        }
        Ok(placed)
    }

    /// Stores a letter at its place.
    fn put(&mut self, letter: &EncodedLetter, slot: Slot, mut open: Option<&mut OpenSequence>) -> Work<()> {
        let index = self.index_of(slot, open.as_deref_mut())?;
        let now = self.time();
        let cause = letter.cause.as_ref();
        if !letter.state.is_open() {
            self.audit(&rules::skip_audit(letter.id, letter.state, cause))?;
        }
        let view = LetterView {
            id: letter.id,
            index,
            state: letter.state,
            due_at: letter.due_at.map(time),
            enqueued_at: now,
            touched_at: now,
            group: cause.map(|cause| cause.fingerprint),
        };
        let paused = open.is_none() && letter.state.is_open() && self.is_paused(&letter.sequence)?;
        let row = open.as_ref().map(|open| &open.row);
        let effects = rules::insert(&view, letter.last_failed_at.map(time), row, paused, now);
        self.insert(letter, open.as_deref(), &effects)
    }

    /// The first later letter of this partition in a sequence.
    ///
    /// Letters of one partition are in the order of their offsets, so the search goes from the end to the first one
    /// that is not later: usually the last letter of all.
    pub(super) fn first_later(&self, sid: i64, place: &Place) -> Work<Option<LaterLetter>> {
        let offset = bound(place.offset);
        let mut first: Option<i64> = None;
        let mut select = self.connection.prepare_cached(
            "SELECT idx, position FROM letters WHERE sid = ?1 AND stream = ?2 AND partition = ?3 ORDER BY idx DESC",
        )?;
        let mut letters = select.query(params![sid, place.stream.as_str(), place.partition.stored()])?;
        while let Some(other) = letters.next()? {
            if other.get::<_, i64>(1)? <= offset {
                break;
            }
            first = Some(other.get(0)?);
        }
        let Some(index) = first else { return Ok(None) };
        let mut select = self.connection.prepare_cached(
            "SELECT idx FROM letters WHERE sid = ?1 AND idx < ?2 ORDER BY idx DESC LIMIT 1",
        )?;
        let before: Option<i64> = select.query_row([sid, index], |row| row.get(0)).optional()?;
        Ok(Some(LaterLetter { index: unsigned(index)?, before: before.map(unsigned).transpose()? }))
    }

    fn next_index(&mut self) -> i64 {
        self.numbers.index += bound(INDEX_STEP);
        self.numbers.index
    }

    /// The index of a slot. The row is that of the sequence, if open.
    pub(super) fn index_of(&mut self, slot: Slot, open: Option<&mut OpenSequence>) -> Work<u64> {
        let index = match (slot, open) {
            (Slot::At(index), _) => return Ok(index),
            (Slot::MoveBehind(from), Some(open)) => self.move_behind(open, bound(from))?,
            (Slot::End | Slot::MoveBehind(_), _) => self.next_index(),
        };
        unsigned(index)
    }

    /// Moves all letters of a sequence from this index on to new indexes at the end, in their order, and returns a free index in
    /// front of them.
    fn move_behind(&mut self, open: &mut OpenSequence, from: i64) -> Work<i64> {
        let free = self.next_index();
        let mut select = self.connection.prepare_cached(
            "SELECT lid, idx FROM letters WHERE sid = ?1 AND idx >= ?2 AND idx < ?3 ORDER BY idx",
        )?;
        let letters: rusqlite::Result<Vec<(i64, i64)>> =
            select.query_map([open.sid, from, free], |row| Ok((row.get(0)?, row.get(1)?)))?.collect();
        let mut update = self.connection.prepare_cached("UPDATE letters SET idx = ?2 WHERE lid = ?1")?;
        for (lid, old) in letters? {
            let index = self.next_index();
            update.execute([lid, index])?;
            if unsigned(old)? == open.row.head.index {
                let row = SequenceRow {
                    head: rules::Head { index: unsigned(index)?, ..open.row.head },
                    ..open.row.clone()
                };
                self.write_sequence(None, Some(open), &rules::SequenceChange::Put(row.clone()))?;
                open.row = row;
            }
        }
        Ok(free)
    }
}
