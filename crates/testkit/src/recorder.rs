//! A flight recorder in memory, for tests of what uses one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_core::recorder::{FlightRecorder, Identity, Slot, Suspect};
use lazaret_core::{Message, MessageId, QueueName};

/// The content of a flight recorder. It outlives the processes that open it, one after the other, as a file does.
///
/// ```
/// use lazaret_core::recorder::{FlightRecorder, Identity};
/// use lazaret_core::{Message, Position, QueueName};
/// use lazaret_testkit::RecorderFile;
///
/// let (file, queue) = (RecorderFile::default(), QueueName::of("orders", "orders"));
/// let process = file.open();
/// let _slot = process.enter(&queue, &Message::new("evt-1", "orders", Position::new(0, 0)), 1);
/// file.crashed();
/// let identity = Identity::of(&queue, &"evt-1".into());
/// assert_eq!(file.open().crashes(identity), 1, "it was alone in flight");
/// ```
#[derive(Clone, Debug, Default)]
pub struct RecorderFile(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The process that has it open, or had it when it crashed.
    process: u64,
    flying: BTreeMap<u32, Suspect>,
    next_slot: u32,
    suspects: Vec<Suspect>,
    /// The most messages that were in flight at once in this process.
    peak: usize,
}

/// The recorder as one process has it open. It records nothing once the process has [crashed](RecorderFile::crashed), or another
/// process has opened the file.
#[derive(Clone, Debug)]
pub struct MemoryRecorder {
    file: RecorderFile,
    process: u64,
}

impl RecorderFile {
    /// Opens it for a new process: what the last one left in flight is suspect.
    pub fn open(&self) -> MemoryRecorder {
        self.crashed();
        self.current()
    }

    /// The recorder as the current process has it open.
    pub fn current(&self) -> MemoryRecorder {
        MemoryRecorder { file: self.clone(), process: self.lock().process }
    }

    /// The process crashed: what is in flight is suspect, and what the process still does is not recorded.
    pub fn crashed(&self) {
        let mut state = self.lock();
        (state.process, state.peak) = (state.process + 1, 0);
        let left: Vec<Suspect> = std::mem::take(&mut state.flying).into_values().collect();
        let alone = left.len() == 1;
        for mut suspect in left {
            let known = state.suspects.iter().position(|known| known.identity == suspect.identity);
            let crashes = known.map_or(0, |at| state.suspects.remove(at).crashes);
            (suspect.alone, suspect.crashes) = (alone, crashes + u32::from(alone));
            state.suspects.push(suspect);
        }
        state.suspects.sort_by_key(|suspect| (suspect.partition.clone(), suspect.offset));
    }

    /// The messages in flight.
    pub fn flying(&self) -> Vec<MessageId> {
        self.lock().flying.values().map(|suspect| suspect.message.clone()).collect()
    }

    /// The most messages that were in flight at once, since the file was opened or the process crashed.
    pub fn peak(&self) -> usize {
        self.lock().peak
    }

    /// The suspects.
    pub fn suspects(&self) -> Vec<Suspect> {
        self.lock().suspects.clone()
    }

    /// `true` if the message with this identity is a suspect.
    pub fn is_suspect(&self, message: Identity) -> bool {
        self.lock().suspects.iter().any(|suspect| suspect.identity == message)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change leaves a valid state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryRecorder {
    /// The state, while the process that opened it runs.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.file.lock();
        (state.process == self.process).then_some(state)
    }
}

impl FlightRecorder for MemoryRecorder {
    fn enter(&self, queue: &QueueName, message: &Message, attempt: u32) -> Slot {
        let Some(mut state) = self.state() else { return Slot::NOT_RECORDED };
        state.next_slot += 1;
        let slot = Slot::at(state.next_slot);
        drop(state);
        self.enter_again(&slot, queue, message, attempt);
        slot
    }

    fn leave(&self, slot: Slot) {
        self.rest(&slot);
    }

    fn rest(&self, slot: &Slot) {
        if let (Some(mut state), Some(slot)) = (self.state(), slot.index()) {
            state.flying.remove(&slot);
        }
    }

    fn enter_again(&self, slot: &Slot, queue: &QueueName, message: &Message, attempt: u32) {
        let (stream, position) = message.place();
        let suspect = Suspect {
            queue: queue.clone(),
            message: message.id.clone(),
            partition: position.partition_of(stream),
            offset: position.offset,
            attempt,
            alone: false,
            crashes: 0,
            identity: Identity::of_message(queue, message),
        };
        if let (Some(mut state), Some(slot)) = (self.state(), slot.index()) {
            state.flying.insert(slot, suspect);
            state.peak = state.peak.max(state.flying.len());
        }
    }

    fn suspects(&self) -> Vec<Suspect> {
        self.state().map_or_else(Vec::new, |state| state.suspects.clone())
    }

    fn crashes(&self, message: Identity) -> u32 {
        let suspects = self.suspects();
        suspects.iter().find(|suspect| suspect.identity == message).map_or(0, |suspect| suspect.crashes)
    }

    fn forget(&self, message: Identity) {
        if let Some(mut state) = self.state() {
            state.suspects.retain(|suspect| suspect.identity != message);
        }
    }

    fn unrecorded(&self) -> u64 {
        0
    }
}
