//! Letters that are taken in, under grants.

use std::sync::Arc;

use lazaret_core::letter::Letter;
use lazaret_core::store::rules::{
    self, Entry, FIRST_INDEX, GrantRow, HandOffRequest, HandOffView, INDEX_STEP, LaterLetter, LetterView,
    Slot,
};
use lazaret_core::store::{ErrorKind, Grant, HandOff, Limits, Placed, Result};
use lazaret_core::{Partition, QueueName, SequenceId};

use crate::DocumentStore;
use crate::commit::{Change, View, maybe_done};
use crate::database::{GrantDoc, Left};
use crate::effects::last_number;

impl DocumentStore {
    /// Ends every older grant. A hand-off that was admitted before and is still under way must not happen after the answer, so
    /// the sequences concerned are interrupted: it loads again, and is fenced.
    pub(crate) fn grant(&self, queue: &QueueName, partition: &Partition) -> Result<Grant> {
        let key = (queue.clone(), partition.clone());
        loop {
            let stored = self.db.grants.get(&key).unwrap_or_default();
            for sequence in &stored.value.under_way {
                self.interrupt(queue, sequence)?;
            }
            let row = stored.value.row.granted();
            if self.db.grants.put_if_version(&key, stored.version, GrantDoc { row, ..GrantDoc::default() })? {
                return Ok(Grant { partition: partition.clone(), fence: row.fence, horizon: row.horizon });
            }
        }
    }

    pub(crate) fn hand_off_one(
        &self,
        queue: &QueueName,
        item: &HandOff,
        refused: Option<ErrorKind>,
        limits: &Limits,
    ) -> Result<Placed> {
        let HandOff { letter, placement, grant } = item;
        let partition =
            grant.as_ref().map_or_else(|| letter.message.partition(), |grant| grant.partition.clone());
        let offset = letter.message.position.offset;
        let key = (queue.clone(), partition);
        // A message that returned from a retry topic was read under the grant of that topic.
        let own_key = (queue.clone(), letter.message.partition());
        let hand_off = |view: &mut View<'_>| {
            // A sequence that is opened after this view stands behind this number in the log.
            let revision = last_number(&self.db.opened);
            let known = self.db.grants.get(&key).unwrap_or_default();
            let row = grant.as_ref().map_or(Ok(known.value.row), |grant| known.value.row.admit(grant))?;
            let request = HandOffRequest {
                id: letter.id,
                queue: &letter.queue,
                state: letter.state,
                message: &letter.message.id,
                offset,
                placement: *placement,
                granted: grant.is_some(),
            };
            let own =
                if own_key == key { row } else { self.db.grants.get(&own_key).unwrap_or_default().value.row };
            let asked = HandOffView {
                queue,
                held: self.letter_doc(queue, letter.id)?.map(|doc| doc.state),
                refused,
                horizon: own.horizon,
                row: view.doc.row.as_ref(),
                sequences: self.open_sequences(queue),
                revision,
                limits,
            };
            let entry = rules::hand_off(&request, &asked);
            let decided = entry.and_then(|entry| Ok((entry, view.insert(letter, entry)?)));
            // The horizon rises before the letter is stored: one that is too high costs a lookup, one that is too low a letter.
            let (raised, stores) = match &decided {
                Ok((entry, change)) if entry.raises_horizon(*placement) && own_key == key => {
                    (row.raised(offset), change.is_some())
                }
                Ok((entry, change)) if entry.raises_horizon(*placement) => {
                    self.raise_horizon(&own_key, offset)?;
                    (row, change.is_some())
                }
                Ok((_, change)) => (row, change.is_some()),
                Err(_) => (row, false),
            };
            let under_way = (stores && grant.is_some()).then_some(&letter.sequence);
            if !self.admit(&key, (known.version, known.value), raised, under_way)? {
                return Ok((None, None));
            }
            let (entry, change) = decided?;
            Ok((Some(entry), change))
        };
        let entry = loop {
            // `None`: another call has changed the grant meanwhile.
            if let Some(entry) = self.change(queue, &letter.sequence, hand_off)? {
                break entry;
            }
        };
        self.leave(&key, &letter.sequence).map_err(maybe_done)?;
        Ok(match entry {
            Entry::Held(state) => Placed::Held(state),
            Entry::NotOpen(revision) => Placed::NotOpen(revision),
            Entry::Closed => Placed::Closed,
            Entry::Open => Placed::Opened,
            Entry::Append | Entry::Insert => Placed::Appended,
        })
    }

    /// Writes the grant, with the sequence to which a hand-off is under way from now on. Those that are under way under an
    /// earlier turn will not happen any more. `false` when the grant has changed meanwhile.
    fn admit(
        &self,
        key: &(QueueName, Partition),
        (version, known): (u64, GrantDoc),
        row: GrantRow,
        sequence: Option<&SequenceId>,
    ) -> Result<bool> {
        if row == known.row && sequence.is_none() {
            return Ok(true);
        }
        let mut under_way = known.under_way;
        if row.turn > known.row.turn {
            for earlier in std::mem::take(&mut under_way) {
                self.interrupt(&key.0, &earlier)?;
            }
        }
        under_way.extend(sequence.cloned());
        self.db.grants.put_if_version(key, version, GrantDoc { row, under_way })
    }

    /// Raises the horizon of a partition, whoever has its grant.
    fn raise_horizon(&self, key: &(QueueName, Partition), offset: u64) -> Result<()> {
        loop {
            let stored = self.db.grants.get(key).unwrap_or_default();
            let row = stored.value.row.raised(offset);
            if row == stored.value.row
                || self.db.grants.put_if_version(key, stored.version, GrantDoc { row, ..stored.value })?
            {
                return Ok(());
            }
        }
    }

    /// A hand-off is not under way any more.
    fn leave(&self, key: &(QueueName, Partition), sequence: &SequenceId) -> Result<()> {
        while let Some(mut stored) = self.db.grants.get(key) {
            if !stored.value.under_way.remove(sequence)
                || self.db.grants.put_if_version(key, stored.version, stored.value)?
            {
                break;
            }
        }
        Ok(())
    }

    /// The next index at the end of a queue. One that is not used in the end leaves a gap, which means nothing.
    pub(crate) fn next_index(&self, queue: &QueueName) -> Result<u64> {
        loop {
            let stored = self.db.indexes.get(queue).unwrap_or_default();
            let next = stored.value.max(FIRST_INDEX) + INDEX_STEP;
            if self.db.indexes.put_if_version(queue, stored.version, next)? {
                return Ok(next);
            }
        }
    }
}

impl View<'_> {
    /// Stores a new letter in its place, if it gets one.
    fn insert(&mut self, letter: &Letter, entry: Entry) -> Result<Option<Change>> {
        let slot = match (entry, &self.doc.row) {
            (Entry::Held(_) | Entry::NotOpen(_), _) => return Ok(None),
            (Entry::Insert, Some(row)) => {
                rules::place(self.sequence, row, self.first_later(letter), self.now)?
            }
            _ => Slot::End,
        };
        let mut letter = letter.clone();
        let (index, mut left) = self.index_of(slot)?;
        letter.index = index;
        (letter.enqueued_at, letter.last_touched_at) = (self.now, self.now);
        let paused = self.store.is_paused(self.queue, self.sequence);
        let (view, row) = (LetterView::of(&letter), self.doc.row.as_ref());
        let mut effects = rules::insert(&view, letter.last_failed_at, row, paused, self.now);
        if !letter.state.is_open() {
            effects.audit = Some(rules::skip_audit(letter.id, letter.state, letter.cause.as_ref()));
        }
        let (_, mut change) = self.apply(letter, effects);
        left.append(&mut change.left);
        Ok(Some(Change { left, ..change }))
    }

    /// The first open letter that is later in the partition than this one. Letters of one partition stand in the order of their
    /// offsets, so the look begins at the end and stops at the first that is earlier.
    pub(crate) fn first_later(&self, letter: &Letter) -> Option<LaterLetter> {
        let mut first = None;
        for (index, id) in self.doc.letters.iter().rev() {
            let Some(other) = self.letter(*id) else { continue };
            if other.message.partition() == letter.message.partition() {
                if other.message.position.offset <= letter.message.position.offset {
                    break;
                }
                first = Some(*index);
            }
        }
        let before = |index| self.doc.letters.range(..index).next_back().map(|(before, _)| *before);
        first.map(|index| LaterLetter { index, before: before(index) })
    }

    /// The index that a slot names, and the letters that move behind it.
    pub(crate) fn index_of(&mut self, slot: Slot) -> Result<(u64, Vec<Left>)> {
        let from = match slot {
            Slot::At(index) => return Ok((index, Vec::new())),
            Slot::End => return Ok((self.store.next_index(self.queue)?, Vec::new())),
            Slot::MoveBehind(from) => from,
        };
        let free = self.store.next_index(self.queue)?;
        let mut left = Vec::new();
        let moved = Arc::make_mut(&mut self.doc.letters).split_off(&from);
        for id in moved.into_values() {
            let Some(mut letter) = self.letter(id) else { continue };
            let index = self.store.next_index(self.queue)?;
            if let Some(row) = self.doc.row.as_mut().filter(|row| row.head.index == letter.index) {
                row.head.index = index;
            }
            letter.index = index;
            Arc::make_mut(&mut self.doc.letters).insert(index, id);
            left.push(Left::letter(&letter, false, self.now));
        }
        Ok((free, left))
    }
}
