//! The state that the live messages and stored runs of one shard share: open and running sequences,
//! earlier failures.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_core::MessageId;

use crate::blocked::BlockedSet;
use crate::hash::SequenceHash;
use crate::record::FailureRecord;

/// The open sequences of each component in one shard.
#[derive(Debug)]
pub(crate) struct OpenSequences {
    /// Filters in front of each component's set. They answer for most healthy messages without the lock.
    fronts: Vec<Front>,
    state: Mutex<State>,
}

/// The number of words of a front filter: 8 KiB, so that it stays in the cache.
const FRONT_WORDS: usize = 1024;

/// A small bit filter that is read without a lock. Its bits are set together with the set, under the
/// lock, and cleared when the set is empty. With a few thousand open sequences it is full, and every
/// look-up reaches the set.
#[derive(Debug)]
struct Front(Box<[AtomicU64]>);

impl Default for Front {
    fn default() -> Self {
        Self((0..FRONT_WORDS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Front {
    /// Returns the word of a hash and its two bits in that word.
    fn spot(&self, sequence: SequenceHash) -> (&AtomicU64, u64) {
        let bits = 1 << (sequence.low & 63) | 1 << ((sequence.low >> 6) & 63);
        (&self.0[(sequence.low >> 12) as usize % FRONT_WORDS], bits)
    }

    fn maybe(&self, sequence: SequenceHash) -> bool {
        let (word, bits) = self.spot(sequence);
        word.load(Ordering::Acquire) & bits == bits
    }

    fn insert(&self, sequence: SequenceHash) {
        let (word, bits) = self.spot(sequence);
        word.fetch_or(bits, Ordering::AcqRel);
    }

    fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Release));
    }
}

#[derive(Debug)]
struct State {
    blocked: Vec<BlockedSet>,
    /// The stored sequences that run now. The flag is `true` if the sequence was reopened meanwhile.
    running: HashMap<(usize, SequenceHash), bool>,
    /// The highest revision of each queue that was applied from the store's list.
    revisions: Vec<u64>,
    /// The earlier failures of messages that are being retried, for handlers that send them to the dead
    /// letters.
    failures: HashMap<(usize, MessageId), FailureRecord>,
}

/// A message that is being retried until this value is dropped.
pub(crate) struct TryingAgain {
    open: Arc<OpenSequences>,
    key: (usize, MessageId),
}

impl Drop for TryingAgain {
    fn drop(&mut self) {
        self.open.lock().failures.remove(&self.key);
    }
}

impl OpenSequences {
    pub(crate) fn new(components: usize, limit: usize) -> Self {
        Self {
            fronts: (0..components).map(|_| Front::default()).collect(),
            state: Mutex::new(State {
                blocked: (0..components).map(|_| BlockedSet::new(limit)).collect(),
                running: HashMap::new(),
                revisions: vec![0; components],
                failures: HashMap::new(),
            }),
        }
    }

    /// Returns `false` if the sequence is certainly not open.
    pub(crate) fn maybe(&self, component: usize, sequence: SequenceHash) -> bool {
        self.fronts[component].maybe(sequence) && self.lock().blocked[component].maybe(sequence)
    }

    /// Records that this shard wrote a letter of the sequence.
    pub(crate) fn opened(&self, component: usize, sequence: SequenceHash) {
        let mut state = self.lock();
        state.blocked[component].insert(sequence);
        self.fronts[component].insert(sequence);
        // A run that ends later must not close the reopened sequence.
        if let Some(reopened) = state.running.get_mut(&(component, sequence)) {
            *reopened = true;
        }
    }

    /// Records the sequences that the store lists as open, up to this revision.
    pub(crate) fn listed(&self, component: usize, sequences: &[SequenceHash], revision: u64) {
        let mut state = self.lock();
        for sequence in sequences {
            state.blocked[component].insert(*sequence);
            self.fronts[component].insert(*sequence);
            if let Some(reopened) = state.running.get_mut(&(component, *sequence)) {
                *reopened = true;
            }
        }
        state.revisions[component] = state.revisions[component].max(revision);
    }

    /// Records that the sequence was not open in the store at this revision.
    pub(crate) fn not_open(&self, component: usize, sequence: SequenceHash, revision: u64) {
        let mut state = self.lock();
        // A list that is newer than the response may have reopened the sequence.
        if state.revisions[component] <= revision {
            self.remove(&mut state, component, sequence);
        }
    }

    fn remove(&self, state: &mut State, component: usize, sequence: SequenceHash) {
        state.blocked[component].remove(sequence);
        if state.blocked[component].is_empty() {
            self.fronts[component].clear();
        }
    }

    /// Records the start of a stored run.
    pub(crate) fn run_begins(&self, component: usize, sequence: SequenceHash) {
        self.opened(component, sequence);
        self.lock().running.insert((component, sequence), false);
    }

    /// Records the end of a stored run. `closed` means that the run closed the sequence.
    pub(crate) fn run_ended(&self, component: usize, sequence: SequenceHash, closed: bool) {
        let mut state = self.lock();
        let reopened = state.running.remove(&(component, sequence)).unwrap_or(false);
        if closed && !reopened {
            self.remove(&mut state, component, sequence);
        }
    }

    /// Records that a message that failed before is being retried.
    pub(crate) fn trying_again(
        self: &Arc<Self>,
        component: usize,
        message: &MessageId,
        record: FailureRecord,
    ) -> TryingAgain {
        let key = (component, message.clone());
        self.lock().failures.insert(key.clone(), record);
        TryingAgain { open: self.clone(), key }
    }

    /// Returns the earlier failures of a message that is being retried.
    pub(crate) fn earlier_failures(&self, component: usize, message: &MessageId) -> Option<FailureRecord> {
        self.lock().failures.get(&(component, message.clone())).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No user code runs under this lock, and each change is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
