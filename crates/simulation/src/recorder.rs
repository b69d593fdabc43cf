//! The flight recorder of one place, which survives the crashes of the processes there, and the check that suspects run alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lazaret_core::recorder::{FlightRecorder, Identity, Slot, Suspect};
use lazaret_core::{Message, MessageId, Partition, QueueName};
use tokio::time::Instant;

use crate::world::{Process, World};

/// After this time an engine no longer waits for suspects.
const SUSPECT_TIMEOUT: Duration = Duration::from_secs(600);

/// What is recorded at one place.
#[derive(Clone, Default)]
pub(crate) struct RecorderFile(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The process that has it open.
    process: Option<u64>,
    flying: BTreeMap<u32, Suspect>,
    next_slot: u32,
    suspects: Vec<Suspect>,
}

/// The recorder as one process has it open.
pub(crate) struct OpenRecorder {
    file: RecorderFile,
    process: u64,
}

impl RecorderFile {
    /// Opens it for a new process: what the last one left in flight is suspect.
    pub(crate) fn open(&self, process: u64) -> OpenRecorder {
        let mut state = self.lock();
        state.process = Some(process);
        let left: Vec<Suspect> = std::mem::take(&mut state.flying).into_values().collect();
        let alone = left.len() == 1;
        for mut suspect in left {
            let known = state.suspects.iter().position(|known| known.identity == suspect.identity);
            let crashes = known.map_or(0, |at| state.suspects.remove(at).crashes);
            (suspect.alone, suspect.crashes) = (alone, crashes + u32::from(alone));
            state.suspects.push(suspect);
        }
        state.suspects.sort_by(|a, b| {
            (&a.partition.stream, a.partition.index, a.offset).cmp(&(
                &b.partition.stream,
                b.partition.index,
                b.offset,
            ))
        });
        drop(state);
        OpenRecorder { file: self.clone(), process }
    }

    /// The process crashed: what it still does is not recorded.
    pub(crate) fn crashed(&self) {
        self.lock().process = None;
    }

    fn is_suspect(&self, queue: &QueueName, message: &MessageId) -> bool {
        self.lock().suspects.iter().any(|suspect| suspect.is(queue, message))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenRecorder {
    /// The state, while the process that opened it runs.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.file.lock();
        (state.process == Some(self.process)).then_some(state)
    }
}

impl FlightRecorder for OpenRecorder {
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
            partition: Partition::new(stream.clone(), position.partition),
            offset: position.offset,
            attempt,
            alone: false,
            crashes: 0,
            identity: Identity::of(queue, &message.id),
        };
        if let (Some(mut state), Some(slot)) = (self.state(), slot.index()) {
            state.flying.insert(slot, suspect);
        }
    }

    fn suspects(&self) -> Vec<Suspect> {
        self.state().map_or_else(Vec::new, |state| state.suspects.clone())
    }

    fn crashes(&self, queue: &QueueName, message: &MessageId) -> u32 {
        let suspects = self.suspects();
        suspects.iter().find(|suspect| suspect.is(queue, message)).map_or(0, |suspect| suspect.crashes)
    }

    fn forget(&self, queue: &QueueName, message: &MessageId) {
        if let Some(mut state) = self.state() {
            state.suspects.retain(|suspect| !suspect.is(queue, message));
        }
    }

    fn unrecorded(&self) -> u64 {
        0
    }
}

/// The suspects that each process has still to run alone.
#[derive(Default)]
pub(crate) struct Isolation(Mutex<BTreeMap<u64, Suspects>>);

struct Suspects {
    file: RecorderFile,
    left: BTreeSet<(usize, MessageId)>,
    until: Instant,
}

impl Isolation {
    /// A process started with these suspects.
    pub(crate) fn started(&self, world: &World, process: u64, file: &RecorderFile, suspects: &[Suspect]) {
        let component = |suspect: &Suspect| world.queues.iter().position(|queue| *queue == suspect.queue);
        let left = suspects.iter().filter_map(|s| Some((component(s)?, s.message.clone()))).collect();
        let until = Instant::now() + SUSPECT_TIMEOUT;
        self.lock().insert(process, Suspects { file: file.clone(), left, until });
    }

    /// An attempt has ended.
    pub(crate) fn ended(&self, process: u64, component: usize, message: &MessageId) {
        if let Some(suspects) = self.lock().get_mut(&process) {
            suspects.left.remove(&(component, message.clone()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Suspects>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    /// A message that was in flight when its process crashed runs alone.
    pub(crate) fn check_isolation(&self, process: &Process, component: usize, message: &Message) {
        let beside: Vec<(usize, MessageId)> = {
            let history = self.history();
            let mine = history.running.iter().filter(|running| running.process == process.number);
            mine.map(|running| (running.component, running.message.clone())).collect()
        };
        let suspect = {
            let all = self.isolation.lock();
            let Some(suspects) = all.get(&process.number) else { return };
            if beside.is_empty() || Instant::now() >= suspects.until {
                return;
            }
            let is_suspect = |(component, id): &(usize, MessageId)| {
                suspects.left.contains(&(*component, id.clone()))
                    && suspects.file.is_suspect(&self.queues[*component], id)
            };
            let this = (component, message.id.clone());
            std::iter::once(&this).chain(&beside).find(|attempt| is_suspect(attempt)).cloned()
        };
        if let Some((_, id)) = suspect {
            self.violated(
                "isolation",
                &format!("{} starts, and the suspect {id} does not run alone", message.id),
            );
        }
    }
}
