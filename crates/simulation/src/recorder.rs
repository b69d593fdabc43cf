//! The check that the suspects of a crash run alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lazaret_core::Message;
use lazaret_core::recorder::{Identity, Suspect};
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
    left: BTreeSet<Identity>,
    until: Instant,
}

impl Isolation {
    /// A process started with these suspects.
    pub(crate) fn started(&self, process: u64, file: &RecorderFile, suspects: &[Suspect]) {
        let left = suspects.iter().map(|suspect| suspect.identity).collect();
        let until = Instant::now() + SUSPECT_TIMEOUT;
        self.lock().insert(process, Suspects { file: file.clone(), left, until });
    }

    /// An attempt at the message with this identity has ended.
    pub(crate) fn ended(&self, process: u64, message: Identity) {
        if let Some(suspects) = self.lock().get_mut(&process) {
            suspects.left.remove(&message);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Suspects>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    /// A message that was in flight when its process crashed runs alone.
    pub(crate) fn check_isolation(&self, process: &Process, component: usize, message: &Message) {
        let beside: Vec<_> = {
            let history = self.history();
            let mine = history.running.iter().filter(|running| running.process == process.number);
            mine.map(|running| (running.identity, running.message.clone())).collect()
        };
        let suspect = {
            let all = self.isolation.lock();
            let Some(suspects) = all.get(&process.number) else { return };
            if beside.is_empty() || Instant::now() >= suspects.until {
                return;
            }
            let this = (Identity::of_message(&self.queues[component], message), message.id.clone());
            let is_suspect =
                |identity: Identity| suspects.left.contains(&identity) && suspects.file.is_suspect(identity);
            std::iter::once(&this).chain(&beside).find(|(identity, _)| is_suspect(*identity)).cloned()
        };
        if let Some((_, id)) = suspect {
            self.violated(
                "isolation",
                &format!("{} starts, and the suspect {id} does not run alone", message.id),
            );
        }
    }
}
