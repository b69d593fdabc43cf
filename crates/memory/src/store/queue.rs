//! One queue: its letters, a row per open sequence, and the indexes for frequent requests.
//!
//! After a change of a row, [`Queue::refresh`] updates the indexes, and drops an empty
//! row. Nothing here scans all letters.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::store::rules::{
    self, ClockWatch, CountChange, Detached, Effects, FIRST_INDEX, GrantRow, GroupRow, Head, INDEX_STEP,
    LetterChange, LetterLookup, LetterView, SequenceChange, SequenceRow, Slot,
};
use lazaret_core::store::{
    AttemptNote, Counts, ErrorKind, Group, GroupId, HeadsPage, OpenedPage, OperationId, Result, StoreError,
};
use lazaret_core::{Fingerprint, MessageId, Partition, QueueName, SequenceId};

use super::Step;
use super::outbox::Ends;

pub(super) struct Queue {
    pub(super) name: QueueName,
    /// Every letter, open or closed.
    pub(super) letters: BTreeMap<LetterId, Box<Letter>>,
    /// When each closed letter was closed.
    pub(super) closed_at: BTreeMap<LetterId, Timestamp>,
    /// The final states of purged letters.
    pub(super) traces: BTreeMap<LetterId, LetterState>,
    pub(super) groups: BTreeMap<Fingerprint, GroupRow>,
    /// Every letter by its number, which grows with each stored letter, across queues.
    pub(super) arrivals: BTreeMap<u64, LetterId>,
    /// The last number.
    last_arrival: Arc<AtomicU64>,
    pub(super) open: BTreeMap<SequenceId, Row>,
    pub(super) paused: BTreeSet<SequenceId>,
    /// Sequences that are not leased and may run automatically, by the due time of their head.
    pub(super) due: BTreeSet<(Timestamp, SequenceId)>,
    /// Leased sequences that may run automatically, by the earliest time of the next claim.
    pub(super) busy: BTreeSet<(Timestamp, SequenceId)>,
    /// All open sequences, by the touch time of their head.
    touched: BTreeSet<(Timestamp, SequenceId)>,
    /// All open sequences, by the revision at which they were opened or restored.
    opened: BTreeMap<u64, SequenceId>,
    pub(super) revision: u64,
    pub(super) clock_watch: ClockWatch,
    /// The last lease fence. One counter for the whole queue, so that it outlives the rows.
    pub(super) fence: u64,
    /// The last index at an end. One counter for the whole queue, so that a letter that is restored into a sequence
    /// which was closed in the meantime still finds its old place. It grows by [`INDEX_STEP`].
    pub(super) index: u64,
    by_state: [u64; 9],
    pub(super) grants: BTreeMap<Partition, GrantRow>,
    pub(super) notes: BTreeMap<Partition, BTreeMap<(u64, MessageId), AttemptNote>>,
    /// The listed ends; `None` while the queue is not watched.
    pub(super) ends: Option<Ends>,
    /// The last number of an end when watching was last stopped.
    pub(super) last_end: u64,
}

/// An open sequence.
pub(super) struct Row {
    pub(super) state: SequenceRow,
    /// Its open letters by index.
    pub(super) letters: BTreeMap<u64, LetterId>,
    revision: u64,
    keys: Keys,
}

/// The times of a row in the indexes.
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
            clock_watch: ClockWatch::default(),
            fence: 0,
            index: FIRST_INDEX,
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

    /// The state of a letter, purged ones included.
    pub(super) fn state_of(&self, id: LetterId) -> Option<LetterState> {
        self.letter(id).map(|letter| letter.state).or_else(|| self.traces.get(&id).copied())
    }

    /// Looks up a letter to change.
    pub(super) fn lookup_letter(&self, id: LetterId) -> LetterLookup<&Letter> {
        match (self.letter(id), self.traces.get(&id)) {
            (Some(letter), _) => LetterLookup::Letter(letter),
            (None, Some(state)) => LetterLookup::Purged(*state),
            (None, None) => LetterLookup::Absent,
        }
    }

    /// The letter with an id from a row.
    pub(super) fn stored(&self, id: LetterId) -> &Letter {
        self.letters.get(&id).expect("the letters of a row are stored")
    }

    /// The row of a sequence, if open.
    pub(super) fn row(&self, sequence: &SequenceId) -> Option<&SequenceRow> {
        self.open.get(sequence).map(|row| &row.state)
    }

    /// The letter behind the one with this index.
    pub(super) fn next(&self, sequence: &SequenceId, index: u64) -> Option<LetterView> {
        let row = self.open.get(sequence)?;
        let (_, next) = row.letters.range(index + 1..).next()?;
        Some(LetterView::of(self.stored(*next)))
    }

    /// Number of letters of an open sequence that run automatically from this index on.
    pub(super) fn released_letters(&self, sequence: &SequenceId, from: u64) -> u64 {
        let letters = self.open.get(sequence).into_iter().flat_map(|row| row.letters.range(from..));
        rules::released_letters(letters.map(|(_, id)| self.stored(*id).state))
    }

    pub(super) fn next_head(&self, letter: &Letter, now: Timestamp) -> Option<Head> {
        self.next(&letter.sequence, letter.index).map(|next| next.head(now))
    }

    /// Stores a new letter and applies its effects.
    pub(super) fn store(&mut self, letter: Letter, effects: Effects, step: &mut Step<'_>) {
        let id = letter.id;
        // The store's lock is held: numbers are assigned one at a time.
        let arrival = self.last_arrival.fetch_add(1, Ordering::Relaxed) + 1;
        self.arrivals.insert(arrival, id);
        self.letters.insert(id, Box::new(letter));
        self.apply(id, effects, step);
    }

    /// Applies the effects of a rule to a letter.
    pub(super) fn apply(&mut self, id: LetterId, effects: Effects, step: &mut Step<'_>) {
        let Effects { letter: change, sequence: row, detached, count_change, failed, audit, ended } = effects;
        let now = step.now;
        let letter = self.letters.get_mut(&id).expect("rules decide about stored letters");
        // A closed letter is in no row: its old index may belong to another letter by now.
        let (sequence, old_index) = (letter.sequence.clone(), letter.state.is_open().then_some(letter.index));
        let (state, attempts) = if matches!(change, LetterChange::Forget) {
            self.closed_at.remove(&id);
            let letter = self.letters.remove(&id).expect("it was found above");
            self.traces.insert(id, letter.state);
            (letter.state, letter.attempts)
        } else {
            change.apply(letter, now);
            if let Some(Detached { sequence, .. }) = &detached {
                letter.sequence = sequence.clone();
            }
            let (new_index, state, attempts) = (letter.index, letter.state, letter.attempts);
            if state.is_open() {
                self.closed_at.remove(&id);
            } else {
                self.closed_at.entry(id).or_insert(now);
            }
            self.change_row(&sequence, row, |letters| {
                if let Some(index) = old_index {
                    letters.remove(&index);
                }
                if state.is_open() && detached.is_none() {
                    letters.insert(new_index, id);
                }
            });
            if let Some(Detached { sequence, row }) = detached {
                self.change_row(&sequence, SequenceChange::Open(row), |letters| {
                    letters.insert(new_index, id);
                });
            }
            (state, attempts)
        };
        if let Some(ends) = self.ends.as_mut().filter(|_| ended) {
            ends.list((id, state, attempts));
        }
        self.count(&count_change, now);
        if let Some(failed) = failed {
            let cause = self.letters.get(&id).and_then(|letter| letter.cause.as_ref());
            if let Some((cause, group)) =
                cause.and_then(|cause| Some((cause, self.groups.get_mut(&cause.fingerprint)?)))
            {
                if failed.enters {
                    group.enter(cause, failed.at, now);
                } else {
                    group.record_failure(cause, failed.at);
                }
            }
        }
        if let Some(line) = audit {
            step.audit.write(now, line);
        }
    }

    /// Updates the counters of a letter and its sequence. A group without letters is removed.
    fn count(&mut self, change: &CountChange, now: Timestamp) {
        for (counted, by) in change.changes() {
            let count = &mut self.by_state[counted.state as usize];
            *count = count.saturating_add_signed(by);
            if let Some(group) = counted.group {
                self.groups.entry(group).or_insert_with(|| GroupRow::new(now)).count(counted.state, by);
            }
        }
        for (blocked, by) in change.blocks() {
            let group = self.groups.entry(blocked.group).or_insert_with(|| GroupRow::new(now));
            group.block(blocked, by);
        }
        if let Some(group) = change.before.and_then(|before| before.group)
            && self.groups.get(&group).is_some_and(GroupRow::is_empty)
        {
            self.groups.remove(&group);
        }
    }

    /// Writes the row of a sequence and its letters, and updates the indexes.
    fn change_row(
        &mut self,
        sequence: &SequenceId,
        change: SequenceChange,
        letters: impl FnOnce(&mut BTreeMap<u64, LetterId>),
    ) {
        let revised = matches!(change, SequenceChange::Open(_) | SequenceChange::Reopen(_));
        match change {
            SequenceChange::Keep => return,
            SequenceChange::Open(state) | SequenceChange::Put(state) | SequenceChange::Reopen(state) => {
                let row = self.open.entry(sequence.clone()).or_insert_with(|| Row {
                    state: state.clone(),
                    letters: BTreeMap::new(),
                    revision: 0,
                    keys: Keys::default(),
                });
                row.state = state;
                letters(&mut row.letters);
                if revised {
                    self.revision += 1;
                    self.opened.remove(&row.revision);
                    self.opened.insert(self.revision, sequence.clone());
                    row.revision = self.revision;
                }
            }
            SequenceChange::Remove => {
                if let Some(row) = self.open.remove(sequence) {
                    self.opened.remove(&row.revision);
                    self.rekey(sequence, row.keys, Keys::default());
                }
                return;
            }
        }
        self.refresh(sequence);
    }

    /// Writes the row of a sequence without a change of its letters.
    pub(super) fn put_row(&mut self, sequence: &SequenceId, row: SequenceRow) {
        self.change_row(sequence, SequenceChange::Put(row), |_| {});
    }

    /// Updates the indexes after a change of a row.
    fn refresh(&mut self, sequence: &SequenceId) {
        let Some(row) = self.open.get_mut(sequence) else { return };
        let schedule = row.state.schedule();
        let keys = Keys { due: schedule.due, busy: schedule.busy, touched: Some(row.state.head.touched) };
        let old = std::mem::replace(&mut row.keys, keys);
        self.rekey(sequence, old, keys);
    }

    fn rekey(&mut self, sequence: &SequenceId, old: Keys, new: Keys) {
        rekey(&mut self.due, old.due, new.due, sequence);
        rekey(&mut self.busy, old.busy, new.busy, sequence);
        rekey(&mut self.touched, old.touched, new.touched, sequence);
    }

    /// The index of a slot.
    pub(super) fn index_of(&mut self, sequence: &SequenceId, slot: Slot) -> u64 {
        match slot {
            Slot::At(index) => index,
            Slot::End => self.next_index(),
            Slot::MoveBehind(from) => {
                let free = self.next_index();
                let moved =
                    self.open.get_mut(sequence).map(|row| row.letters.split_off(&from)).unwrap_or_default();
                for id in moved.into_values() {
                    let index = self.next_index();
                    if let (Some(row), Some(letter)) =
                        (self.open.get_mut(sequence), self.letters.get_mut(&id))
                    {
                        if row.state.head.index == letter.index {
                            row.state.head.index = index;
                        }
                        letter.index = index;
                        row.letters.insert(index, id);
                    }
                }
                free
            }
        }
    }

    fn next_index(&mut self) -> u64 {
        self.index += INDEX_STEP;
        self.index
    }

    pub(super) fn is_paused(&self, sequence: &SequenceId) -> bool {
        self.paused.contains(sequence)
    }

    pub(super) fn set_paused(&mut self, sequence: &SequenceId, paused: bool) {
        if paused {
            self.paused.insert(sequence.clone());
        } else {
            self.paused.remove(sequence);
        }
        if let Some(row) = self.open.get_mut(sequence) {
            row.state.paused = paused;
            self.refresh(sequence);
        }
    }

    /// Ends the reservations of an operation: the letters of its sequences may run automatically again.
    pub(super) fn unreserve(&mut self, operation: OperationId) {
        let reserved = self.open.iter().filter(|(_, row)| row.state.reserved == Some(operation));
        let reserved: Vec<SequenceId> = reserved.map(|(sequence, _)| sequence.clone()).collect();
        for sequence in &reserved {
            self.unreserve_one(sequence, operation);
        }
    }

    /// Ends the reservation of this sequence, if the operation holds it.
    pub(super) fn unreserve_one(&mut self, sequence: &SequenceId, operation: OperationId) {
        if let Some(row) = self.open.get_mut(sequence).filter(|row| row.state.reserved == Some(operation)) {
            row.state.reserved = None;
            self.refresh(sequence);
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

    pub(super) fn group(&self, fingerprint: Fingerprint, now: Timestamp) -> Option<Group> {
        let row = self.groups.get(&fingerprint)?;
        let id = GroupId { queue: self.name.clone(), fingerprint };
        let of_group = |letter: &Letter| LetterView::of(letter).group == Some(fingerprint);
        Some(row.to_group(id, self.oldest(of_group), self.next_expiry(of_group), now))
    }

    /// When the oldest open letter of these was enqueued.
    pub(super) fn oldest(&self, of: impl Fn(&Letter) -> bool) -> Option<Timestamp> {
        let open = self.letters.values().filter(|letter| letter.state.is_open() && of(letter));
        open.map(|letter| letter.enqueued_at).min()
    }

    /// When the next open letter of these expires. Letters that wait do not.
    pub(super) fn next_expiry(&self, of: impl Fn(&Letter) -> bool) -> Option<Timestamp> {
        let open = self.letters.values().filter(|letter| letter.state.is_open() && of(letter));
        open.filter(|letter| letter.state != LetterState::Waiting)
            .filter_map(|letter| letter.expires_at)
            .min()
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

/// A cursor in the list of heads: the touch time and the sequence of the last one returned.
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
            StoreError::not_done(ErrorKind::Invalid, "heads", format!("invalid cursor {text:?}"))
        })
    }
}
