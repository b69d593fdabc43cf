//! Taking letters in: grants, hand-offs and the notes on attempts.

use std::collections::BTreeMap;

use lazaret_core::letter::LetterState;
use lazaret_core::store::{
    Actor, AttemptNote, ErrorKind, Grant, GrantFence, HandOff, Limits, Placed, Placement, Result, StoreError,
};
use lazaret_core::{Letter, Partition};

use super::Step;
use super::queue::Queue;

const HAND_OFF: &str = "hand_off";

impl Queue {
    pub(super) fn assign(&mut self, partitions: &[Partition]) -> Vec<Grant> {
        let grants = partitions.iter().map(|partition| {
            let row = self.grants.entry(partition.clone()).or_default();
            row.fence += 1;
            Grant { partition: partition.clone(), fence: row.fence, horizon: row.horizon }
        });
        grants.collect()
    }

    pub(super) fn hand_off_all(
        &mut self,
        items: Vec<HandOff>,
        limits: &Limits,
        step: &mut Step<'_>,
    ) -> Vec<Result<Placed>> {
        // Which sequences had an item refused, and why: what is behind it must not overtake it (I2).
        let mut broken = BTreeMap::new();
        let answers = items.into_iter().map(|item| {
            let sequence = item.letter.sequence.clone();
            let placed = self.hand_off(item, broken.get(&sequence).copied(), limits, step);
            if let Err(error) = &placed {
                broken.entry(sequence).or_insert(error.kind());
            }
            placed
        });
        answers.collect()
    }

    fn hand_off(
        &mut self,
        item: HandOff,
        broken: Option<ErrorKind>,
        limits: &Limits,
        step: &mut Step<'_>,
    ) -> Result<Placed> {
        let HandOff { letter, placement, grant } = item;
        self.check_grant(grant.as_ref(), step)?;
        self.check_letter(&letter, placement)?;
        let offset = letter.message.position.offset;
        let placed = match (self.letter(letter.id), broken) {
            (Some(held), _) => Placed::Held(held.state),
            (None, None) => self.put(letter, placement, limits, step)?,
            (None, Some(kind)) => {
                let context = format!("an earlier message of {} was refused in this call", letter.sequence);
                return Err(StoreError::not_done(kind, HAND_OFF, context));
            }
        };
        // A message that has a letter raises the horizon too: it must be found again after the next assignment.
        if let (Some(grant), true) = (grant, !matches!(placed, Placed::NotOpen(_))) {
            let row = self.grants.entry(grant.partition).or_default();
            row.horizon = row.horizon.max(Some(offset));
        }
        Ok(placed)
    }

    fn check_grant(&self, grant: Option<&GrantFence>, step: &Step<'_>) -> Result<()> {
        let Some(grant) = grant.filter(|_| step.fences_hold) else {
            return Ok(());
        };
        let current = self.grants.get(&grant.partition).map(|row| row.fence);
        if current == Some(grant.fence) {
            return Ok(());
        }
        let context = format!("grant {} of {} is not the current one", grant.fence, grant.partition);
        Err(StoreError::not_done(ErrorKind::Fenced, HAND_OFF, context))
    }

    fn check_letter(&self, letter: &Letter, placement: Placement) -> Result<()> {
        let invalid = |context: String| Err(StoreError::not_done(ErrorKind::Invalid, HAND_OFF, context));
        if letter.queue != self.name {
            return invalid(format!(
                "letter {} belongs to queue {}, not {}",
                letter.id, letter.queue, self.name
            ));
        }
        if letter.state.is_open() == (placement == Placement::Closed) {
            return invalid(format!(
                "letter {} is {}, which does not fit {placement:?}",
                letter.id, letter.state
            ));
        }
        Ok(())
    }

    fn put(
        &mut self,
        letter: Letter,
        placement: Placement,
        limits: &Limits,
        step: &mut Step<'_>,
    ) -> Result<Placed> {
        if placement == Placement::Closed {
            write_closed(&letter, step);
            self.keep(letter, step);
            return Ok(Placed::Closed);
        }
        let is_open = self.open.contains_key(&letter.sequence);
        if !is_open && placement == Placement::Behind {
            return Ok(Placed::NotOpen(self.revision));
        }
        if self.is_full(&letter.sequence, limits) {
            let what = if is_open { "the sequence" } else { "the queue" };
            let context =
                format!("{what} has no room for message {} of {}", letter.message.id, letter.sequence);
            return Err(StoreError::not_done(ErrorKind::Full, HAND_OFF, context));
        }
        let (sequence, id) = (letter.sequence.clone(), letter.id);
        let index = self.keep(letter, step);
        if self.place(&sequence, index, id) {
            self.refresh(&sequence);
            return Ok(Placed::Opened);
        }
        // The head is the same, so the indexes are.
        Ok(Placed::Appended)
    }

    /// Stores a new letter with its index and its times.
    fn keep(&mut self, mut letter: Letter, step: &Step<'_>) -> u64 {
        self.index += 1;
        letter.index = self.index;
        letter.enqueued_at = step.now;
        letter.last_touched_at = step.now;
        self.store(letter);
        self.index
    }

    pub(super) fn note_attempts(&mut self, notes: Vec<AttemptNote>) {
        for note in notes {
            let key = (note.offset, note.message.clone());
            self.notes.entry(note.partition.clone()).or_default().insert(key, note);
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

/// Writes into the audit that a message was closed without ever being open (I11).
fn write_closed(letter: &Letter, step: &mut Step<'_>) {
    let action = match letter.state {
        LetterState::Resolved => "resolve",
        LetterState::Evicted => "evict",
        LetterState::Expired => "expire",
        _ => "skip",
    };
    let why = letter.cause.as_ref().map_or_else(|| "handed off closed".to_owned(), ToString::to_string);
    let after = Some(letter.state.as_str());
    step.audit.write(step.now, &Actor::engine(why), action, letter.id.to_string(), None, after);
}
