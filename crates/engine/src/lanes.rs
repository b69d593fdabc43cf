//! What the journeys and runs of one shard know together: which sequences are open, which are being run.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_core::{Letter, MessageId, Partition};

use crate::blocked::BlockedSet;
use crate::hash::SequenceHash;
use crate::judge::Record;
use crate::tenure::Tenure;

/// The open sequences of each component, as far as one shard is concerned.
#[derive(Debug)]
pub(crate) struct OpenSequences {
    /// Before each component's set: turns most healthy messages away without the lock.
    fronts: Vec<Front>,
    /// How many letters nobody knows of whether they were written.
    uncertainties: AtomicUsize,
    state: Mutex<State>,
}

/// How many words a front has: 8 KiB, so that it stays in the cache.
const FRONT_WORDS: usize = 1024;

/// A small bit filter that is read without a lock. Bits are set with the set, under its lock, and cleared when that is
/// empty. With a few thousand open sequences it is full and lets everything through to the set.
#[derive(Debug)]
struct Front(Box<[AtomicU64]>);

impl Default for Front {
    fn default() -> Self {
        Self((0..FRONT_WORDS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Front {
    /// The word of a hash, and its two bits there.
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
    /// Stored sequences that are run here now; the flag says that the sequence was opened anew meanwhile.
    running: HashMap<(usize, SequenceHash), bool>,
    /// The highest revision of each queue that was applied from the store's list.
    revisions: Vec<u64>,
    tenures: HashMap<Partition, Arc<Tenure>>,
    /// Letters that handlers asked for, of which nobody knows whether they were written.
    uncertain: HashMap<(usize, MessageId), Letter>,
    /// How messages failed before that are being tried again now, for handlers that give them up.
    failures: HashMap<(usize, MessageId), Record>,
}

/// A message is being tried again as long as this lives.
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
            uncertainties: AtomicUsize::new(0),
            state: Mutex::new(State {
                blocked: (0..components).map(|_| BlockedSet::new(limit)).collect(),
                running: HashMap::new(),
                revisions: vec![0; components],
                tenures: HashMap::new(),
                uncertain: HashMap::new(),
                failures: HashMap::new(),
            }),
        }
    }

    /// Whether the sequence may be open. `false` is certain.
    pub(crate) fn maybe(&self, component: usize, sequence: SequenceHash) -> bool {
        self.fronts[component].maybe(sequence) && self.lock().blocked[component].maybe(sequence)
    }

    /// This shard put a letter into the sequence.
    pub(crate) fn opened(&self, component: usize, sequence: SequenceHash) {
        let mut state = self.lock();
        state.blocked[component].insert(sequence);
        self.fronts[component].insert(sequence);
        // The end of a run may be on its way to us while the sequence is open again: it must not close this one.
        if let Some(reopened) = state.running.get_mut(&(component, sequence)) {
            *reopened = true;
        }
    }

    /// The store lists these sequences as open, up to this revision.
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

    /// The store said at this revision that the sequence is not open.
    pub(crate) fn not_open(&self, component: usize, sequence: SequenceHash, revision: u64) {
        let mut state = self.lock();
        // A list that is newer than the answer may have opened it again.
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

    /// A run of the stored sequence begins here.
    pub(crate) fn run_begins(&self, component: usize, sequence: SequenceHash) {
        self.opened(component, sequence);
        self.lock().running.insert((component, sequence), false);
    }

    /// A run ended; `closed` says that it emptied the sequence.
    pub(crate) fn run_ended(&self, component: usize, sequence: SequenceHash, closed: bool) {
        let mut state = self.lock();
        let reopened = state.running.remove(&(component, sequence)).unwrap_or(false);
        if closed && !reopened {
            self.remove(&mut state, component, sequence);
        }
    }

    /// A message that failed before is being tried again.
    pub(crate) fn trying_again(
        self: &Arc<Self>,
        component: usize,
        message: &MessageId,
        record: Record,
    ) -> TryingAgain {
        let key = (component, message.clone());
        self.lock().failures.insert(key.clone(), record);
        TryingAgain { open: self.clone(), key }
    }

    /// How the message that is being tried failed before.
    pub(crate) fn earlier_failures(&self, component: usize, message: &MessageId) -> Option<Record> {
        self.lock().failures.get(&(component, message.clone())).cloned()
    }

    /// A handler asked for this letter, and the store has not answered.
    pub(crate) fn uncertain(&self, component: usize, letter: Letter) {
        self.uncertainties.fetch_add(1, Ordering::AcqRel);
        self.lock().uncertain.insert((component, letter.message.id.clone()), letter);
    }

    /// The letter of this message of which nobody knows whether it was written, if there is one.
    pub(crate) fn take_uncertain(&self, component: usize, message: &MessageId) -> Option<Letter> {
        if !self.has_uncertain() {
            return None;
        }
        let letter = self.lock().uncertain.remove(&(component, message.clone()));
        if letter.is_some() {
            self.uncertainties.fetch_sub(1, Ordering::AcqRel);
        }
        letter
    }

    /// Whether there is any letter of which nobody knows whether it was written.
    pub(crate) fn has_uncertain(&self) -> bool {
        self.uncertainties.load(Ordering::Acquire) > 0
    }

    pub(crate) fn set_tenure(&self, tenure: &Arc<Tenure>) {
        self.lock().tenures.insert(tenure.partition.clone(), tenure.clone());
    }

    pub(crate) fn tenure(&self, partition: &Partition) -> Option<Arc<Tenure>> {
        self.lock().tenures.get(partition).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here runs user code; each change is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
