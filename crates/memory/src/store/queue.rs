//! One queue: its letters, a row per open sequence, and the indexes that make the hot questions cheap.
//!
//! A row changes freely; [`Queue::refresh`] then brings the indexes up to date, and drops a row that has become
//! empty. Nothing here walks over all letters.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::store::{
    AttemptNote, Counts, ErrorKind, HeadsPage, Limits, OpenedPage, OperationId, Result, StoreError,
};
use lazaret_core::{Fingerprint, MessageId, Partition, QueueName, SequenceId};

use super::groups::GroupRow;
use super::outbox::Ends;

/// The room between two letters that came one after the other: for those that are delivered again and go before.
pub(super) const INDEX_STEP: u64 = 1 << 20;

pub(super) struct Queue {
    pub(super) name: QueueName,
    /// Every letter, open or closed.
    pub(super) letters: BTreeMap<LetterId, Box<Letter>>,
    /// When each closed letter was closed.
    pub(super) closed_at: BTreeMap<LetterId, Timestamp>,
    /// How the letters ended that were purged since.
    pub(super) traces: BTreeMap<LetterId, LetterState>,
    pub(super) groups: BTreeMap<Fingerprint, GroupRow>,
    /// Every letter by a number that grows with each letter taken into the store, whatever its queue.
    pub(super) arrivals: BTreeMap<u64, LetterId>,
    /// The last of these numbers.
    last_arrival: Arc<AtomicU64>,
    pub(super) open: BTreeMap<SequenceId, Row>,
    pub(super) paused: BTreeSet<SequenceId>,
    /// Sequences that nobody works on and that may run by themselves, by the due time of their head.
    pub(super) due: BTreeSet<(Timestamp, SequenceId)>,
    /// Leased sequences that may run by themselves, by the time when they can be claimed again at the earliest.
    pub(super) busy: BTreeSet<(Timestamp, SequenceId)>,
    /// All open sequences, by the time when their head was last touched.
    touched: BTreeSet<(Timestamp, SequenceId)>,
    /// All open sequences, by the revision at which they were opened or restored.
    opened: BTreeMap<u64, SequenceId>,
    pub(super) revision: u64,
    /// The last lease fence given. One counter for the whole queue, so that it outlives the rows.
    pub(super) fence: u64,
    /// The last index given at an end. One counter for the whole queue, so that a letter that is restored into a sequence
    /// which was closed in the meantime still finds its old place. It goes up by [`INDEX_STEP`].
    pub(super) index: u64,
    by_state: [u64; 9],
    pub(super) grants: BTreeMap<Partition, GrantRow>,
    pub(super) notes: BTreeMap<Partition, BTreeMap<(u64, MessageId), AttemptNote>>,
    /// The ends that were not forgotten; `None` while nobody watches them.
    pub(super) ends: Option<Ends>,
    /// The last number that an end had when somebody last stopped watching.
    pub(super) last_end: u64,
}

/// An open sequence.
pub(super) struct Row {
    /// Its open letters by index; never empty between two calls.
    pub(super) letters: BTreeMap<u64, LetterId>,
    pub(super) lease: Option<LeaseRow>,
    /// The operation that has begun with its letters and goes on with them: until then they do not run by themselves.
    pub(super) reserved: Option<OperationId>,
    revision: u64,
    keys: Keys,
}

pub(super) struct LeaseRow {
    pub(super) owner: String,
    pub(super) fence: u64,
    pub(super) until: Timestamp,
    /// Whether it was taken by `claim`: a replay runs letters in any state.
    pub(super) replay: bool,
    /// The operation for which it was taken.
    pub(super) operation: Option<OperationId>,
}

#[derive(Default)]
pub(super) struct GrantRow {
    pub(super) fence: u64,
    pub(super) horizon: Option<u64>,
    /// The highest turn seen under the current grant.
    pub(super) turn: u64,
}

/// Under which times a row stands in the indexes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Keys {
    due: Option<Timestamp>,
    busy: Option<Timestamp>,
    touched: Option<Timestamp>,
}

impl Row {
    pub(super) fn head(&self) -> LetterId {
        *self.letters.first_key_value().expect("an open sequence has a letter").1
    }

    pub(super) fn head_index(&self) -> u64 {
        *self.letters.first_key_value().expect("an open sequence has a letter").0
    }

    pub(super) fn is_leased(&self, now: Timestamp) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.until > now)
    }
}

/// When this letter may run by itself if it is the head; `None` when it may not.
pub(super) fn due_of(letter: &Letter) -> Option<Timestamp> {
    match letter.state {
        LetterState::Retrying => Some(letter.due_at.unwrap_or(letter.enqueued_at)),
        // At once: since before now.
        LetterState::Waiting => Some(letter.enqueued_at),
        _ => None,
    }
}

impl Queue {
    pub(super) fn new(name: QueueName, paused: BTreeSet<SequenceId>, last_arrival: Arc<AtomicU64>) -> Self {
        Self {
            name,
            letters: BTreeMap::new(),
            closed_at: BTreeMap::new(),
            traces: BTreeMap::new(),
            groups: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            last_arrival,
            open: BTreeMap::new(),
            paused,
            due: BTreeSet::new(),
            busy: BTreeSet::new(),
            touched: BTreeSet::new(),
            opened: BTreeMap::new(),
            revision: 0,
            fence: 0,
            index: 0,
            by_state: [0; 9],
            grants: BTreeMap::new(),
            notes: BTreeMap::new(),
            ends: None,
            last_end: 0,
        }
    }

    pub(super) fn letter(&self, id: LetterId) -> Option<&Letter> {
        self.letters.get(&id).map(Box::as_ref)
    }

    /// How a letter stands, or ended before it was purged.
    pub(super) fn state_of(&self, id: LetterId) -> Option<LetterState> {
        self.letter(id).map(|letter| letter.state).or_else(|| self.traces.get(&id).copied())
    }

    /// The letter that a row names.
    pub(super) fn stored(&self, id: LetterId) -> &Letter {
        self.letters.get(&id).expect("a row names letters that are stored")
    }

    pub(super) fn stored_mut(&mut self, id: LetterId) -> &mut Letter {
        self.letters.get_mut(&id).expect("a row names letters that are stored")
    }

    /// Stores a new letter and counts it.
    pub(super) fn store(&mut self, letter: Letter, now: Timestamp) {
        let id = letter.id;
        self.by_state[letter.state as usize] += 1;
        if !letter.state.is_open() {
            self.closed_at.insert(id, now);
        }
        // The store's lock is held: no two letters come at once.
        let arrival = self.last_arrival.fetch_add(1, Ordering::Relaxed) + 1;
        self.arrivals.insert(arrival, id);
        self.list_end(&letter, None);
        self.letters.insert(id, Box::new(letter));
        self.came_in(id, now);
    }

    /// Counts a letter less that was in this state.
    pub(super) fn uncount(&mut self, state: LetterState) {
        self.by_state[state as usize] -= 1;
    }

    /// Moves a letter to another state, touches it, and gives the state it had.
    pub(super) fn set_state(&mut self, id: LetterId, state: LetterState, now: Timestamp) -> LetterState {
        let letter = self.stored_mut(id);
        let before = std::mem::replace(&mut letter.state, state);
        letter.last_touched_at = now;
        if state != LetterState::Retrying {
            letter.due_at = None;
        }
        if state.is_open() {
            self.closed_at.remove(&id);
        } else {
            self.closed_at.insert(id, now);
        }
        self.by_state[before as usize] -= 1;
        self.by_state[state as usize] += 1;
        before
    }

    /// Closes an open letter and takes it out of its row. The row may be empty after it: refresh.
    pub(super) fn close(&mut self, id: LetterId, state: LetterState, now: Timestamp) -> LetterState {
        let before = self.set_state(id, state, now);
        let letter = self.letters.get(&id).expect("the letter was touched above");
        let row = self.open.get_mut(&letter.sequence).expect("an open letter stands in an open sequence");
        row.letters.remove(&letter.index);
        before
    }

    /// Puts a stored letter into its sequence, which is opened if it is not open. Whether it was opened. Refresh
    /// after it.
    pub(super) fn place(&mut self, sequence: &SequenceId, index: u64, id: LetterId) -> bool {
        if let Some(row) = self.open.get_mut(sequence) {
            row.letters.insert(index, id);
            return false;
        }
        let row = Row {
            letters: BTreeMap::from([(index, id)]),
            lease: None,
            reserved: None,
            revision: 0,
            keys: Keys::default(),
        };
        self.open.insert(sequence.clone(), row);
        self.mark_opened(sequence);
        true
    }

    /// The first index of a sequence from this one on that no open letter has.
    pub(super) fn free_index(&self, sequence: &SequenceId, mut index: u64) -> u64 {
        let Some(row) = self.open.get(sequence) else { return index };
        while row.letters.contains_key(&index) {
            index += 1;
        }
        index
    }

    /// Gives an open sequence a new revision.
    pub(super) fn mark_opened(&mut self, sequence: &SequenceId) {
        let row = self.open.get_mut(sequence).expect("only open sequences are marked");
        self.revision += 1;
        self.opened.remove(&row.revision);
        self.opened.insert(self.revision, sequence.clone());
        row.revision = self.revision;
    }

    /// Brings the indexes in line with a row that has changed, and removes a row without letters.
    pub(super) fn refresh(&mut self, sequence: &SequenceId) {
        let Some(row) = self.open.get_mut(sequence) else {
            return;
        };
        let mut keys = Keys::default();
        if let Some((_, head)) = row.letters.first_key_value() {
            let head = self.letters.get(head).expect("a row names letters that are stored");
            keys.touched = Some(head.last_touched_at);
            let may_run = row.reserved.is_none() && !self.paused.contains(sequence);
            if let Some(due) = due_of(head).filter(|_| may_run) {
                match &row.lease {
                    Some(lease) => keys.busy = Some(due.max(lease.until)),
                    None => keys.due = Some(due),
                }
            }
        }
        let old = std::mem::replace(&mut row.keys, keys);
        if row.letters.is_empty() {
            self.opened.remove(&row.revision);
            self.open.remove(sequence);
        }
        rekey(&mut self.due, old.due, keys.due, sequence);
        rekey(&mut self.busy, old.busy, keys.busy, sequence);
        rekey(&mut self.touched, old.touched, keys.touched, sequence);
    }

    pub(super) fn set_paused(&mut self, sequence: &SequenceId, paused: bool) {
        if paused {
            self.paused.insert(sequence.clone());
        } else {
            self.paused.remove(sequence);
        }
        self.refresh(sequence);
    }

    /// Gives back the sequences that an operation keeps for itself: their letters may run by themselves again.
    pub(super) fn unreserve(&mut self, operation: OperationId) {
        let reserved = self.open.iter().filter(|(_, row)| row.reserved == Some(operation));
        let reserved: Vec<SequenceId> = reserved.map(|(sequence, _)| sequence.clone()).collect();
        for sequence in &reserved {
            self.reserve(sequence, None);
        }
    }

    /// Keeps a sequence for an operation, or for none.
    pub(super) fn reserve(&mut self, sequence: &SequenceId, operation: Option<OperationId>) {
        if let Some(row) = self.open.get_mut(sequence) {
            row.reserved = operation;
            self.refresh(sequence);
        }
    }

    pub(super) fn size_of(&self, sequence: &SequenceId) -> Option<u64> {
        self.open.get(sequence).map(|row| row.letters.len() as u64)
    }

    pub(super) fn is_full(&self, sequence: &SequenceId, limits: &Limits) -> bool {
        match self.size_of(sequence) {
            Some(size) => limits.max_sequence_size.is_some_and(|max| size >= max),
            None => limits.max_sequences.is_some_and(|max| self.open.len() as u64 >= max),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        Counts { sequences: self.open.len() as u64, by_state: self.by_state }
    }

    pub(super) fn opened_since(&self, revision: u64, limit: usize) -> OpenedPage {
        let mut later = self.opened.range((Bound::Excluded(revision), Bound::Unbounded));
        let page: Vec<_> = later.by_ref().take(limit.max(1)).collect();
        let more = later.next().is_some();
        let last = page.last().map_or(self.revision, |(revision, _)| **revision);
        OpenedPage {
            revision: if more { last } else { self.revision.max(revision) },
            sequences: page.into_iter().map(|(_, sequence)| sequence.clone()).collect(),
            more,
        }
    }

    pub(super) fn list(&self, sequence: &SequenceId, from: u64, limit: usize) -> Vec<Letter> {
        let rows = self.open.get(sequence).into_iter().flat_map(|row| row.letters.range(from..));
        rows.take(limit).map(|(_, id)| self.stored(*id).clone()).collect()
    }

    pub(super) fn heads(&self, after: Option<Cursor>, limit: usize) -> HeadsPage {
        let from =
            after.map_or(Bound::Unbounded, |Cursor(touched, sequence)| Bound::Excluded((touched, sequence)));
        let mut rest = self.touched.range((from, Bound::Unbounded));
        let page: Vec<_> = rest.by_ref().take(limit.max(1)).collect();
        let more = rest.next().is_some();
        HeadsPage {
            next: page.last().filter(|_| more).map(|(touched, sequence)| Cursor::text(*touched, sequence)),
            heads: page
                .into_iter()
                .map(|(_, sequence)| self.stored(self.open[sequence].head()).clone())
                .collect(),
        }
    }
}

fn rekey(
    index: &mut BTreeSet<(Timestamp, SequenceId)>,
    old: Option<Timestamp>,
    new: Option<Timestamp>,
    sequence: &SequenceId,
) {
    if old == new {
        return;
    }
    if let Some(old) = old {
        index.remove(&(old, sequence.clone()));
    }
    if let Some(new) = new {
        index.insert((new, sequence.clone()));
    }
}

/// A place in the list of heads: when the last one shown was touched, and its sequence.
pub(super) struct Cursor(Timestamp, SequenceId);

impl Cursor {
    fn text(touched: Timestamp, sequence: &SequenceId) -> String {
        format!("{}/{sequence}", touched.as_nanosecond())
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        let parts = text.split_once('/').and_then(|(touched, sequence)| {
            let touched = Timestamp::from_nanosecond(touched.parse().ok()?).ok()?;
            Some(Self(touched, sequence.into()))
        });
        parts.ok_or_else(|| {
            StoreError::not_done(
                ErrorKind::Invalid,
                "heads",
                format!("{text:?} is not a cursor of this store"),
            )
        })
    }
}
