//! The check that the suspects of a crash run alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lazaret_core::recorder::Suspect;
use lazaret_core::{Message, MessageId};
use lazaret_testkit::RecorderFile;
use tokio::time::Instant;

use crate::world::{Process, World};

/// After this time an engine no longer waits for suspects.
const SUSPECT_TIMEOUT: Duration = Duration::from_secs(600);

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
