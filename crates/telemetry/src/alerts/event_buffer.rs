//! Buffers events from observers until the service drains them. An observer takes a short lock and never waits for a
//! network (I10); the buffer is bounded (I7).

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_core::policy::Limit;
use lazaret_core::store::{ErrorKind, GroupId};
use lazaret_core::{Failure, LetterId, LetterState, Phase, QueueName, Reason};
use lazaret_engine::{Event, Observer};
use tokio::sync::Notify;

use super::notice::{Facts, Subject};
use super::rules::AlertEvent;
use crate::metrics::scope_name;

/// The maximum number of groups known to have letters. Beyond it, new groups do not fire.
const GROUPS_LIMIT: usize = 10_000;
/// The maximum number of buffered subjects.
const SUBJECTS_LIMIT: usize = 10_000;

/// Events that observers have recorded.
#[derive(Default)]
pub(super) struct EventBuffer {
    state: Mutex<State>,
    pub(super) changed: Notify,
}

#[derive(Default)]
struct State {
    pending: BTreeMap<Subject, Pending>,
    /// Groups that already have letters: their next letter does not fire.
    groups: HashSet<GroupId>,
}

/// The events of one subject since the last drain.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    /// The number of occurrences.
    pub(super) count: u64,
    /// Whether the last event ended the condition.
    pub(super) ended: bool,
    pub(super) facts: Facts,
    pub(super) owner: Option<String>,
    /// The group, where the subject is one.
    pub(super) group: Option<GroupId>,
}

impl EventBuffer {
    /// Takes the events since the last drain.
    pub(super) fn drain(&self) -> BTreeMap<Subject, Pending> {
        std::mem::take(&mut self.lock().pending)
    }

    /// Marks a group as having letters.
    pub(super) fn add_group(&self, group: &GroupId) {
        self.is_first(group);
    }

    /// Makes the next letter of this group fire.
    pub(super) fn forget_group(&self, group: &GroupId) {
        self.lock().groups.remove(group);
    }

    /// Returns `true` if the group is marked as having letters.
    pub(super) fn has_group(&self, group: &GroupId) -> bool {
        self.lock().groups.contains(group)
    }

    fn record(&self, subject: Subject, change: impl FnOnce(&mut Pending)) {
        let mut state = self.lock();
        if state.pending.len() >= SUBJECTS_LIMIT && !state.pending.contains_key(&subject) {
            return;
        }
        change(state.pending.entry(subject).or_default());
        drop(state);
        self.changed.notify_one();
    }

    /// Returns `true` for the first letter of a group.
    fn is_first(&self, group: &GroupId) -> bool {
        let mut state = self.lock();
        state.groups.len() < GROUPS_LIMIT && state.groups.insert(group.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only whole values are written under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records the events of one consumer.
pub(super) struct AlertObserver {
    pub(super) buffer: Arc<EventBuffer>,
    pub(super) consumer: String,
    pub(super) owner: Option<String>,
    /// Whether the first letter of a group fires.
    pub(super) on_first: bool,
}

impl AlertObserver {
    fn occurred(&self, event: AlertEvent, detail: Option<String>, facts: Facts) {
        self.record(event, detail, |pending| {
            pending.count += 1;
            pending.ended = false;
            pending.facts = facts;
        });
    }

    fn ended(&self, event: AlertEvent, detail: Option<String>) {
        self.record(event, detail, |pending| pending.ended = true);
    }

    fn record(&self, event: AlertEvent, detail: Option<String>, change: impl FnOnce(&mut Pending)) {
        let subject = Subject { event, consumer: Some(self.consumer.clone()), detail };
        self.buffer.record(subject, |pending| {
            pending.owner.clone_from(&self.owner);
            change(pending);
        });
    }

    fn of_queue(&self, event: AlertEvent, queue: &QueueName, reason: Option<String>) {
        let facts = Facts { queue: Some(queue.to_string()), reason, ..Facts::default() };
        self.occurred(event, Some(queue.to_string()), facts);
    }

    /// Records letters that were closed because their time had passed.
    fn expired(&self, queue: &QueueName, letters: u64) {
        self.record(AlertEvent::LettersExpired, Some(queue.to_string()), |pending| {
            pending.count += letters;
            pending.facts = Facts { queue: Some(queue.to_string()), ..Facts::default() };
        });
    }

    /// Records a letter that is not retried automatically. It has no id if it was relayed to a topic.
    fn letter(&self, queue: &QueueName, letter: Option<LetterId>, state: LetterState, cause: &Failure) {
        let stored = letter.is_some();
        let group = GroupId { queue: queue.clone(), fingerprint: cause.fingerprint };
        if state.is_automatic() || !state.is_open() || !self.on_first {
            return;
        }
        // The store does not know letters that were relayed to a topic: each of them keeps the alert firing.
        if stored && !self.buffer.is_first(&group) {
            return;
        }
        let facts = Facts {
            queue: Some(queue.to_string()),
            reason: Some(cause.reason.to_string()),
            group: Some(group.to_string()),
            letter: letter.map(|letter| letter.to_string()),
            state: Some(state.as_str()),
            ..Facts::default()
        };
        self.record(AlertEvent::FirstLetter, Some(group.to_string()), |pending| {
            pending.count += 1;
            pending.facts = facts;
            pending.group = stored.then_some(group);
        });
    }
}

/// Returns `true` when a failure shows that producer and consumer disagree about the schema: the message cannot be decoded, or the
/// handler says that it is invalid. A message that is too large is no such failure, although it is refused before it is decoded.
fn is_schema_break(failure: &Failure) -> bool {
    let is_undecodable = failure.phase == Phase::Decode && failure.reason != Reason::TOO_LARGE;
    is_undecodable || failure.reason == Reason::INVALID_SCHEMA
}

impl Observer for AlertObserver {
    fn on(&self, event: &Event<'_>) {
        match event {
            // A replayed letter that fails in another way may start a group as well.
            Event::LetterStored { queue, letter, state, cause: Some(cause), .. } => {
                self.letter(queue, Some(*letter), *state, cause);
            }
            Event::Relayed { queue, state, cause: Some(cause), .. } => {
                self.letter(queue, None, *state, cause);
            }
            Event::Failed { queue, failure, .. } if is_schema_break(failure) => {
                self.of_queue(AlertEvent::DecodeFailure, queue, Some(failure.reason.to_string()));
            }
            Event::Poison { queue, .. } => self.of_queue(AlertEvent::Poison, queue, None),
            Event::RetryExhausted { queue, limit: Some(Limit::Crashes), reason, .. } => {
                self.of_queue(AlertEvent::Poison, queue, Some(reason.to_string()));
            }
            Event::Expired { queue, letters } => self.expired(queue, *letters),
            Event::HandOffFailed { queue, kind: ErrorKind::Full, .. } => {
                self.of_queue(AlertEvent::QueueFull, queue, None);
            }
            Event::HandOffFailed { queue, .. } => self.of_queue(AlertEvent::StoreUnavailable, queue, None),
            Event::FuseBlown { .. } => self.occurred(AlertEvent::FuseBlown, None, Facts::default()),
            Event::BreakerOpened { .. } => self.occurred(AlertEvent::BreakerOpened, None, Facts::default()),
            Event::BreakerClosed => self.ended(AlertEvent::BreakerOpened, None),
            Event::Paused { scope, .. } => {
                let scope = scope_name(scope);
                let facts = Facts { scope: Some(scope), ..Facts::default() };
                self.occurred(AlertEvent::Paused, Some(scope.to_owned()), facts);
            }
            Event::Resumed { scope } => self.ended(AlertEvent::Paused, Some(scope_name(scope).to_owned())),
            _ => {}
        }
    }
}
