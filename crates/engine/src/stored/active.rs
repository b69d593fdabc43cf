//! The sequences that this process runs: none of them twice at once (I6).
//!
//! A process that stalls for longer than its lease loses it without noticing, and may claim the sequence again while the
//! handler of the first run is still at work. The second run then stops the first one and waits for its end. The store
//! refuses what the first one may still write.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_core::SequenceId;
use tokio_util::sync::CancellationToken;

/// The sequences of one queue that are being run.
#[derive(Debug, Default)]
pub(crate) struct ActiveRuns(Mutex<HashMap<SequenceId, Arc<Signals>>>);

#[derive(Debug, Default)]
struct Signals {
    superseded: CancellationToken,
    ended: CancellationToken,
}

/// A run, for as long as this lives.
pub(super) struct ActiveRun<'a> {
    runs: &'a ActiveRuns,
    sequence: SequenceId,
    signals: Arc<Signals>,
}

impl ActiveRuns {
    /// Begins a run of a sequence that was just claimed. An earlier run of it has lost its lease: it is stopped first.
    pub(super) async fn begin(&self, sequence: &SequenceId) -> ActiveRun<'_> {
        loop {
            let earlier = match self.lock().entry(sequence.clone()) {
                Entry::Occupied(earlier) => earlier.get().clone(),
                Entry::Vacant(free) => {
                    let signals = free.insert(Arc::default()).clone();
                    return ActiveRun { runs: self, sequence: sequence.clone(), signals };
                }
            };
            earlier.superseded.cancel();
            earlier.ended.cancelled().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SequenceId, Arc<Signals>>> {
        // Each change is one step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ActiveRun<'_> {
    /// Waits until a later claim of the sequence shows that the lease of this run is lost.
    pub(super) async fn superseded(&self) {
        self.signals.superseded.cancelled().await;
    }
}

impl Drop for ActiveRun<'_> {
    fn drop(&mut self) {
        self.runs.lock().remove(&self.sequence);
        self.signals.ended.cancel();
    }
}
