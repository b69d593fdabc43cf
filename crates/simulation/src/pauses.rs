//! Checks that what is paused does not start.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lazaret_core::policy::BreakerState;
use lazaret_core::store::PauseScope;
use lazaret_core::{Message, SequenceId};
use lazaret_engine::Handle;

use crate::world::{Process, World};

/// The pauses that engines have confirmed, and the engines themselves.
#[derive(Default)]
pub(crate) struct Pauses(Mutex<State>);

#[derive(Default)]
struct State {
    engines: BTreeMap<u64, Handle>,
    confirmed: Vec<Confirmed>,
}

/// A pause that an engine has confirmed and that no one has begun to end.
struct Confirmed {
    scope: PauseScope,
    /// The process whose engine confirmed it.
    by: u64,
    /// Processes from this number on started later, and load the pause before they start anything.
    later: u64,
}

impl Confirmed {
    fn binds(&self, process: &Process) -> bool {
        process.number == self.by || process.number >= self.later
    }
}

impl Pauses {
    pub(crate) fn started(&self, process: u64, handle: Handle) {
        self.lock().engines.insert(process, handle);
    }

    /// The engine of this process has confirmed the pause.
    pub(crate) fn confirmed(&self, scope: &PauseScope, by: u64) {
        let mut state = self.lock();
        let later = state.engines.last_key_value().map_or(0, |(last, _)| last + 1);
        state.confirmed.push(Confirmed { scope: scope.clone(), by, later });
    }

    /// The pause is about to end.
    pub(crate) fn ending(&self, scope: &PauseScope) {
        self.lock().confirmed.retain(|pause| pause.scope != *scope);
    }

    /// Forgets the engines: their handles keep alive what they ran on, and that keeps alive the world.
    pub(crate) fn clear(&self) {
        *self.lock() = State::default();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns `true` when a pause of this scope holds the attempt. The store holds the letters of paused sequences; one that
/// was claimed before may still run.
fn holds(scope: &PauseScope, message: &Message, live: bool, replay: bool) -> bool {
    match scope {
        PauseScope::Consumer => true,
        PauseScope::Replay => replay,
        PauseScope::Stream(stream) => live && *stream == message.stream,
        // Of whatever incarnation: an operator pauses the partition of the stream.
        PauseScope::Partition(partition) => live && partition.has_place_of(&message.partition()),
        PauseScope::Sequence(sequence) => live && *sequence == SequenceId::by_key(message),
    }
}

impl World {
    /// No attempt starts that a pause or the open breaker of its engine holds.
    pub(crate) fn check_paused(&self, process: &Process, message: &Message, live: bool, replay: bool) {
        let (held, known, breaker) = {
            let state = self.pauses.lock();
            let holds = |scope: &&PauseScope| holds(scope, message, live, replay);
            let confirmed = state.confirmed.iter().filter(|pause| pause.binds(process));
            let held = confirmed.map(|pause| &pause.scope).find(holds).cloned();
            let engine = state.engines.get(&process.number);
            let pauses = engine.map(Handle::pauses).unwrap_or_default();
            let known = pauses.iter().map(|pause| &pause.scope).find(holds).cloned();
            (held, known, engine.and_then(Handle::breaker))
        };
        if let Some(scope) = held.or(known) {
            self.violated("pause", &format!("{} starts while the {scope} is paused", message.id));
        }
        if matches!(breaker, Some(BreakerState::Open { .. })) {
            self.violated("pause", &format!("{} starts while the breaker is open", message.id));
        }
    }
}
