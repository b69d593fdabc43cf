//! A flight recorder in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use lazaret_core::recorder::{FlightRecorder, Identity, Slot, Suspect};
use lazaret_core::{Message, MessageId, QueueName};

/// A flight recorder that outlives the engine, as a file outlives a process.
#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<State>>);

#[derive(Default)]
pub(crate) struct State {
    pub(crate) flying: BTreeMap<u32, Suspect>,
    next: u32,
    suspects: Vec<Suspect>,
    /// The most that were in flight at once since the last restart.
    peak: usize,
}

impl Recorder {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics here")
    }

    /// What the next process finds.
    pub(crate) fn restart(&self) {
        let mut state = self.state();
        let flying: Vec<Suspect> = std::mem::take(&mut state.flying).into_values().collect();
        let alone = flying.len() == 1;
        for mut suspect in flying {
            let known = state.suspects.iter().position(|known| known.identity == suspect.identity);
            let crashes = known.map_or(0, |at| state.suspects.remove(at).crashes);
            (suspect.alone, suspect.crashes) = (alone, crashes + u32::from(alone));
            state.suspects.push(suspect);
        }
        state.peak = 0;
    }

    pub(crate) fn peak(&self) -> usize {
        self.state().peak
    }

    pub(crate) fn flying(&self) -> Vec<String> {
        self.state().flying.values().map(|suspect| suspect.message.to_string()).collect()
    }
}

impl Recorder {
    /// Makes this message a suspect of a crash in company.
    pub(crate) fn suspect(&self, queue: &QueueName, message: &Message) {
        let slots = [
            self.enter(queue, message, 1),
            self.enter(queue, &Message::new("-", "-", message.position.clone()), 1),
        ];
        assert!(slots.iter().all(|slot| slot.index().is_some()));
        self.restart();
        self.state().suspects.retain(|suspect| suspect.message == message.id);
    }
}

impl FlightRecorder for Recorder {
    fn enter(&self, queue: &QueueName, message: &Message, attempt: u32) -> Slot {
        let mut state = self.state();
        state.next += 1;
        let slot = state.next;
        let suspect = Suspect {
            queue: queue.clone(),
            message: message.id.clone(),
            partition: message.partition(),
            offset: message.position.offset,
            attempt,
            alone: false,
            crashes: 0,
            identity: Identity::of(queue, &message.id),
        };
        state.flying.insert(slot, suspect);
        state.peak = state.peak.max(state.flying.len());
        Slot::at(slot)
    }

    fn leave(&self, slot: Slot) {
        let mut state = self.state();
        if let Some(slot) = slot.index() {
            state.flying.remove(&slot);
        }
    }

    fn rest(&self, slot: &Slot) {
        self.state().flying.remove(&slot.index().expect("all are recorded"));
    }

    fn enter_again(&self, slot: &Slot, queue: &QueueName, message: &Message, attempt: u32) {
        let entered = self.enter(queue, message, attempt).index().expect("all are recorded");
        let mut state = self.state();
        let suspect = state.flying.remove(&entered).expect("it has just entered");
        state.flying.insert(slot.index().expect("all are recorded"), suspect);
    }

    fn suspects(&self) -> Vec<Suspect> {
        self.state().suspects.clone()
    }

    fn crashes(&self, queue: &QueueName, message: &MessageId) -> u32 {
        let state = self.state();
        state.suspects.iter().find(|suspect| suspect.is(queue, message)).map_or(0, |suspect| suspect.crashes)
    }

    fn forget(&self, queue: &QueueName, message: &MessageId) {
        self.state().suspects.retain(|suspect| !suspect.is(queue, message));
    }

    fn unrecorded(&self) -> u64 {
        0
    }
}
