//! Hand-off of letters and attempt notes.

use std::collections::BTreeMap;

use lazaret_core::letter::Letter;
use lazaret_core::store::rules::{self, Entry, HandOffRequest, HandOffView, LaterLetter, LetterView};
use lazaret_core::store::{AttemptNote, ErrorKind, Grant, HandOff, Limits, Placed, Result};
use lazaret_core::{Partition, SequenceId};

use super::Step;
use super::queue::Queue;

impl Queue {
    pub(super) fn assign(&mut self, partitions: &[Partition]) -> Vec<Grant> {
        let grants = partitions.iter().map(|partition| {
            let row = self.grants.entry(partition.clone()).or_default();
            *row = row.granted();
            Grant { partition: partition.clone(), fence: row.fence, horizon: row.horizon }
        });
        grants.collect()
    }

    pub(super) fn horizons(&self, partitions: &[Partition]) -> Vec<Option<u64>> {
        partitions.iter().map(|partition| self.grants.get(partition)?.horizon).collect()
    }

    pub(super) fn hand_off_all(
        &mut self,
        items: Vec<HandOff>,
        limits: &Limits,
        step: &mut Step<'_>,
    ) -> Vec<Result<Placed>> {
        // The sequences with a refused item, and the kind of the error.
        let mut refused: BTreeMap<SequenceId, ErrorKind> = BTreeMap::new();
        let answers = items.into_iter().map(|item| {
            let sequence = item.letter.sequence.clone();
            let placed = self.hand_off(item, refused.get(&sequence).copied(), limits, step);
            if let Err(error) = &placed {
                refused.entry(sequence).or_insert(error.kind());
            }
            placed
        });
        answers.collect()
    }

    fn hand_off(
        &mut self,
        item: HandOff,
        refused: Option<ErrorKind>,
        limits: &Limits,
        step: &mut Step<'_>,
    ) -> Result<Placed> {
        let HandOff { letter, placement, grant } = item;
        if let Some(grant) = grant.as_ref().filter(|_| step.fences_hold) {
            let row = self.grants.get(&grant.partition).copied().unwrap_or_default();
            self.grants.insert(grant.partition.clone(), row.admit(grant)?);
        }
        // A message that returned from a retry topic was read under the grant of that topic.
        let partition = letter.message.partition();
        let own_row = self.grants.get(&partition).copied().unwrap_or_default();
        let offset = letter.message.position.offset;
        let row = self.row(&letter.sequence);
        let request = HandOffRequest {
            id: letter.id,
            queue: &letter.queue,
            state: letter.state,
            message: &letter.message.id,
            offset,
            placement,
            granted: grant.is_some(),
        };
        let view = HandOffView {
            queue: &self.name,
            held: self.state_of(letter.id),
            refused,
            horizon: own_row.horizon,
            row,
            sequences: self.open.len() as u64,
            revision: self.revision,
            limits,
        };
        let entry = rules::hand_off(&request, &view)?;
        let slot = match (entry, row) {
            (Entry::Insert, Some(row)) => {
                rules::place(&letter.sequence, row, self.first_later(&letter), step.now)?
            }
            _ => rules::Slot::End,
        };
        let placed = match entry {
            Entry::Held(state) => Placed::Held(state),
            Entry::NotOpen(revision) => Placed::NotOpen(revision),
            Entry::Closed => Placed::Closed,
            Entry::Open => Placed::Opened,
            Entry::Append | Entry::Insert => Placed::Appended,
        };
        if !matches!(placed, Placed::Held(_) | Placed::NotOpen(_)) {
            self.insert(letter, slot, step);
        }
        if entry.raises_horizon(placement) {
            self.grants.insert(partition, own_row.raised(offset));
        }
        Ok(placed)
    }

    /// Stores a letter at its place.
    fn insert(&mut self, mut letter: Letter, slot: rules::Slot, step: &mut Step<'_>) {
        letter.index = self.index_of(&letter.sequence, slot);
        (letter.enqueued_at, letter.last_touched_at) = (step.now, step.now);
        if !letter.state.is_open() {
            step.audit.write(step.now, rules::skip_audit(letter.id, letter.state, letter.cause.as_ref()));
        }
        let (view, paused) = (LetterView::of(&letter), self.is_paused(&letter.sequence));
        let row = self.row(&letter.sequence);
        let effects = rules::insert(&view, letter.last_failed_at, row, paused, step.now);
        self.store(letter, effects, step);
    }

    /// The first later letter of a message's partition in its sequence. The offsets of other incarnations say nothing about its place.
    pub(super) fn first_later(&self, letter: &Letter) -> Option<LaterLetter> {
        let row = self.open.get(&letter.sequence)?;
        let position = &letter.message.position;
        let is_of_partition = |other: &&Letter| {
            let theirs = &other.message.position;
            other.message.stream == letter.message.stream
                && theirs.partition_number() == position.partition_number()
        };
        let of_partition = row.letters.values().rev().map(|id| self.stored(*id)).filter(is_of_partition);
        let later = of_partition.take_while(|other| other.message.position.offset > position.offset);
        let index = later.last()?.index;
        let before = row.letters.range(..index).next_back().map(|(before, _)| *before);
        Some(LaterLetter { index, before })
    }

    pub(super) fn note_attempts(&mut self, notes: Vec<AttemptNote>) {
        for note in notes {
            let key = (note.offset, note.message.clone());
            let notes = self.notes.entry(note.partition.clone()).or_default();
            if notes.get(&key).is_none_or(|stored| stored.attempts <= note.attempts) {
                notes.insert(key, note);
            }
        }
    }

    pub(super) fn attempt_notes(&self, partitions: &[Partition]) -> Vec<AttemptNote> {
        let notes = partitions.iter().filter_map(|partition| self.notes.get(partition));
        notes.flat_map(|notes| notes.values().cloned()).collect()
    }

    pub(super) fn forget_attempts(&mut self, partition: &Partition, up_to: u64) {
        let Some(notes) = self.notes.get_mut(partition) else {
            return;
        };
        while let Some(entry) = notes.first_entry().filter(|entry| entry.key().0 <= up_to) {
            entry.remove();
        }
        if notes.is_empty() {
            self.notes.remove(partition);
        }
    }
}
