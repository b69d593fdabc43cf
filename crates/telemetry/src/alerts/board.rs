//! Where observers write down what happened, for the service to read. Writing takes a short lock and never waits for a
//! network (I10); what is written is bounded (I7).

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_core::policy::Limit;
use lazaret_core::store::{ErrorKind, GroupId};
use lazaret_core::{Failure, LetterId, LetterState, Message, Phase, QueueName};
use lazaret_engine::{Event, Observer};
use tokio::sync::Notify;

use super::notice::{Facts, Subject};
use super::rules;
use crate::metrics::scope_name;

/// How many groups are known to have letters. When there are more, new ones are not told.
const GROUPS_LIMIT: usize = 10_000;
/// How many subjects wait to be read.
const NEWS_LIMIT: usize = 10_000;

/// What observers have written down.
#[derive(Default)]
pub(super) struct Board {
    state: Mutex<State>,
    pub(super) changed: Notify,
}

#[derive(Default)]
struct State {
    news: BTreeMap<Subject, News>,
    /// Groups whose first letter is no news any more.
    groups: HashSet<GroupId>,
}

/// What was told of a subject since it was last read.
#[derive(Clone, Debug, Default)]
pub(super) struct News {
    /// How often it happened.
    pub(super) count: u64,
    /// Whether it was over in the end.
    pub(super) over: bool,
    pub(super) facts: Facts,
    pub(super) owner: Option<String>,
    /// The group that it is about.
    pub(super) group: Option<GroupId>,
}

impl Board {
    /// Takes what was written since the last time.
    pub(super) fn take(&self) -> BTreeMap<Subject, News> {
        std::mem::take(&mut self.lock().news)
    }

    /// This group has letters already.
    pub(super) fn know(&self, group: &GroupId) {
        self.is_first(group);
    }

    /// The next letter of this group is news.
    pub(super) fn forget(&self, group: &GroupId) {
        self.lock().groups.remove(group);
    }

    /// Whether the next letter of this group is no news.
    pub(super) fn knows(&self, group: &GroupId) -> bool {
        self.lock().groups.contains(group)
    }

    fn write(&self, subject: Subject, news: impl FnOnce(&mut News)) {
        let mut state = self.lock();
        if state.news.len() >= NEWS_LIMIT && !state.news.contains_key(&subject) {
            return;
        }
        news(state.news.entry(subject).or_default());
        drop(state);
        self.changed.notify_one();
    }

    /// Whether this is the first letter of its group.
    fn is_first(&self, group: &GroupId) -> bool {
        let mut state = self.lock();
        state.groups.len() < GROUPS_LIMIT && state.groups.insert(group.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only whole values are written under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes down what happens to one consumer.
pub(super) struct Writer {
    pub(super) board: Arc<Board>,
    pub(super) consumer: String,
    pub(super) owner: Option<String>,
    /// Whether the first letter of a group is told.
    pub(super) on_first: bool,
}

impl Writer {
    fn happened(&self, event: &'static str, detail: Option<String>, facts: Facts) {
        self.write(event, detail, |news| {
            news.count += 1;
            news.over = false;
            news.facts = facts;
        });
    }

    fn over(&self, event: &'static str, detail: Option<String>) {
        self.write(event, detail, |news| news.over = true);
    }

    fn write(&self, event: &'static str, detail: Option<String>, change: impl FnOnce(&mut News)) {
        let subject = Subject { event, consumer: Some(self.consumer.clone()), detail };
        self.board.write(subject, |news| {
            news.owner.clone_from(&self.owner);
            change(news);
        });
    }

    fn of_queue(&self, event: &'static str, queue: &QueueName, reason: Option<String>) {
        let facts = Facts { queue: Some(queue.to_string()), reason, ..Facts::default() };
        self.happened(event, Some(queue.to_string()), facts);
    }

    /// A letter that will not be tried again by itself.
    fn letter(
        &self,
        queue: &QueueName,
        message: &Message,
        state: LetterState,
        cause: &Failure,
        stored: bool,
    ) {
        let group = GroupId { queue: queue.clone(), fingerprint: cause.fingerprint };
        if state.is_automatic() || !state.is_open() || !self.on_first {
            return;
        }
        // Nobody can look up whether letters that were passed on are still there: every one says that it goes on.
        if stored && !self.board.is_first(&group) {
            return;
        }
        let facts = Facts {
            queue: Some(queue.to_string()),
            reason: Some(cause.reason.to_string()),
            group: Some(group.to_string()),
            letter: stored.then(|| LetterId::of(queue, &message.id).to_string()),
            state: Some(state.as_str()),
            ..Facts::default()
        };
        self.write(rules::FIRST_LETTER, Some(group.to_string()), |news| {
            news.count += 1;
            news.facts = facts;
            news.group = stored.then_some(group);
        });
    }
}

impl Observer for Writer {
    fn on(&self, event: &Event<'_>) {
        match event {
            // A letter that fails in another way when it is replayed may begin a group as well.
            Event::LetterStored { queue, message, state, cause: Some(cause), .. } => {
                self.letter(queue, message, *state, cause, true);
            }
            Event::Relayed { queue, message, state, cause: Some(cause) } => {
                self.letter(queue, message, *state, cause, false);
            }
            Event::Failed { queue, failure, .. } if failure.phase == Phase::Decode => {
                self.of_queue(rules::DECODE_FAILURE, queue, Some(failure.reason.to_string()));
            }
            Event::Poison { queue, .. } => self.of_queue(rules::POISON, queue, None),
            Event::RetryExhausted { queue, limit: Some(Limit::Crashes), reason, .. } => {
                self.of_queue(rules::POISON, queue, Some(reason.to_string()));
            }
            Event::HandOffFailed { queue, kind: ErrorKind::Full, .. } => {
                self.of_queue(rules::QUEUE_FULL, queue, None);
            }
            Event::HandOffFailed { queue, .. } => self.of_queue(rules::STORE_UNAVAILABLE, queue, None),
            Event::FuseBlown { .. } => self.happened(rules::FUSE_BLOWN, None, Facts::default()),
            Event::BreakerOpened { .. } => self.happened(rules::BREAKER_OPENED, None, Facts::default()),
            Event::BreakerClosed => self.over(rules::BREAKER_OPENED, None),
            Event::Paused { scope, .. } => {
                let scope = scope_name(scope);
                let facts = Facts { scope: Some(scope), ..Facts::default() };
                self.happened(rules::PAUSED, Some(scope.to_owned()), facts);
            }
            Event::Resumed { scope } => self.over(rules::PAUSED, Some(scope_name(scope).to_owned())),
            _ => {}
        }
    }
}
