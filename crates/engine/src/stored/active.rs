//! The sequences that this process runs. No sequence runs twice at the same time (I6).
//!
//! A process that stalls for longer than its lease loses the lease without noticing. It may then claim
//! the sequence again while the handler of the first run is still at work. The second run then stops the
//! first one and waits for its end. The store refuses further writes of the first run.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_core::SequenceId;
use tokio_util::sync::CancellationToken;

/// The sequences of one queue that run now.
#[derive(Debug, Default)]
pub(crate) struct ActiveRuns(Mutex<HashMap<SequenceId, Arc<Signals>>>);

#[derive(Debug, Default)]
struct Signals {
    superseded: CancellationToken,
    ended: CancellationToken,
}

/// A run, until this value is dropped.
pub(super) struct ActiveRun<'a> {
    runs: &'a ActiveRuns,
    sequence: SequenceId,
    signals: Arc<Signals>,
}

impl ActiveRuns {
    /// Begins a run of a sequence that was just claimed. An earlier run of the sequence has lost its
    /// lease and is stopped first.
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
        // Each change is a single step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ActiveRun<'_> {
    /// Waits until a later claim of the sequence shows that this run has lost its lease.
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
