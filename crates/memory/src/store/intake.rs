//! Taking letters in: grants, hand-offs and the notes on attempts.

use std::collections::BTreeMap;

use lazaret_core::letter::LetterState;
use lazaret_core::store::{
    Actor, AttemptNote, ErrorKind, Grant, GrantFence, HandOff, Limits, Placed, Placement, Result, StoreError,
};
use lazaret_core::{Letter, Partition, SequenceId, Timestamp};

use super::Step;
use super::queue::{INDEX_STEP, Queue};

const HAND_OFF: &str = "hand_off";

impl Queue {
    pub(super) fn assign(&mut self, partitions: &[Partition]) -> Vec<Grant> {
        let grants = partitions.iter().map(|partition| {
            let row = self.grants.entry(partition.clone()).or_default();
            row.fence += 1;
            row.turn = 0;
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
        if let Some(grant) = &grant {
            self.grants.entry(grant.partition.clone()).or_default().turn = grant.turn;
        }
        self.check_letter(&letter, placement)?;
        let offset = letter.message.position.offset;
        let partition = grant.as_ref().map_or_else(|| letter.message.partition(), |g| g.partition.clone());
        let placed = match (self.state_of(letter.id), broken) {
            (Some(held), _) => Placed::Held(held),
            (None, None) => {
                let known = self.grants.get(&partition).and_then(|row| row.horizon);
                // Whatever was handed off, under a grant or not, is at or below the horizon: beyond it nothing is later.
                let again = known.is_some_and(|horizon| offset <= horizon);
                self.put(letter, placement, again, limits, step)?
            }
            (None, Some(kind)) => {
                let context = "an earlier message of its sequence was refused in this call";
                return Err(StoreError::not_done(kind, HAND_OFF, context));
            }
        };
        // A message that has a letter raises the horizon too: it must be found again after the next assignment.
        if !matches!(placed, Placed::NotOpen(_)) {
            let row = self.grants.entry(partition).or_default();
            row.horizon = row.horizon.max(Some(offset));
        }
        Ok(placed)
    }

    fn check_grant(&self, grant: Option<&GrantFence>, step: &Step<'_>) -> Result<()> {
        let Some(grant) = grant.filter(|_| step.fences_hold) else {
            return Ok(());
        };
        let context = match self.grants.get(&grant.partition) {
            Some(row) if row.fence == grant.fence && row.turn <= grant.turn => return Ok(()),
            Some(row) if row.fence == grant.fence => {
                format!(
                    "turn {} under the grant of {} comes after turn {}",
                    grant.turn, grant.partition, row.turn
                )
            }
            _ => format!("grant {} of {} is not the current one", grant.fence, grant.partition),
        };
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
        again: bool,
        limits: &Limits,
        step: &mut Step<'_>,
    ) -> Result<Placed> {
        if placement == Placement::Closed {
            write_closed(&letter, step);
            let index = self.next_index();
            self.keep(letter, index, step);
            return Ok(Placed::Closed);
        }
        let is_open = self.open.contains_key(&letter.sequence);
        if !is_open && placement == Placement::Behind {
            return Ok(Placed::NotOpen(self.revision));
        }
        if self.is_full(&letter.sequence, limits) {
            let what = if is_open { "the sequence" } else { "the queue" };
            let context = format!("{what} has no room for message {}", letter.message.id);
            return Err(StoreError::not_done(ErrorKind::Full, HAND_OFF, context));
        }
        let (sequence, id) = (letter.sequence.clone(), letter.id);
        // Only what was delivered before can be earlier than what is there: the usual append looks at nothing.
        let later = if again { self.first_later(&letter, step.now)? } else { None };
        let index = match later {
            Some(later) => self.index_before(&sequence, later),
            None => self.next_index(),
        };
        self.keep(letter, index, step);
        let opened = self.place(&sequence, index, id);
        // Behind others nothing changes at the head, and so nothing in the indexes.
        if opened || later.is_some() {
            self.refresh(&sequence);
        }
        Ok(if opened { Placed::Opened } else { Placed::Appended })
    }

    pub(super) fn next_index(&mut self) -> u64 {
        self.index += INDEX_STEP;
        self.index
    }

    /// The index of the first letter of the message's sequence that is later in its partition; `None` when there is none.
    pub(super) fn first_later(&self, letter: &Letter, now: Timestamp) -> Result<Option<u64>> {
        let Some(row) = self.open.get(&letter.sequence) else { return Ok(None) };
        let position = &letter.message.position;
        let is_later = |other: &Letter| {
            let theirs = &other.message.position;
            other.message.stream == letter.message.stream
                && theirs.partition == position.partition
                && theirs.offset > position.offset
        };
        let Some((later, _)) = row.letters.iter().find(|(_, id)| is_later(self.stored(**id))) else {
            return Ok(None);
        };
        if *later == row.head_index() && row.is_leased(now) {
            let context = format!("somebody is working on a later message of {}", letter.sequence);
            return Err(StoreError::not_done(ErrorKind::Conflict, HAND_OFF, context));
        }
        Ok(Some(*later))
    }

    /// A free index right before this one. Those that are delivered again come in order, so each leaves most of the room to
    /// the next; where there is none left, the letters from here on move to the end.
    pub(super) fn index_before(&mut self, sequence: &SequenceId, later: u64) -> u64 {
        let row = self.open.get_mut(sequence).expect("the sequence holds a later letter");
        let before = row.letters.range(..later).next_back().map_or(0, |(index, _)| *index);
        let room = later - before;
        if room > 1 {
            return before + (room / 1024).max(1);
        }
        for (_, id) in row.letters.split_off(&later) {
            self.index += INDEX_STEP;
            row.letters.insert(self.index, id);
            self.letters.get_mut(&id).expect("a row names letters that are stored").index = self.index;
        }
        before + 1
    }

    /// Stores a new letter with its index and its times.
    fn keep(&mut self, mut letter: Letter, index: u64, step: &Step<'_>) {
        letter.index = index;
        letter.enqueued_at = step.now;
        letter.last_touched_at = step.now;
        self.store(letter, step.now);
    }

    pub(super) fn note_attempts(&mut self, notes: Vec<AttemptNote>) {
        for note in notes {
            let key = (note.offset, note.message.clone());
            let notes = self.notes.entry(note.partition.clone()).or_default();
            if notes.get(&key).is_none_or(|known| known.attempts <= note.attempts) {
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
