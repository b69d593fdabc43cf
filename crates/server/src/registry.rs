//! The consumers of this process: how they are doing, and what holds for them.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;
use lazaret_api::{ConsumerState, Event, EventKind};
use lazaret_engine::{Handle, Observer};

use crate::events::{Feed, FeedObserver};

/// Whether a second person must approve what makes handlers run again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Approval {
    /// No.
    #[default]
    None,
    /// Yes: operations that retry or release letters of this consumer wait for somebody else's yes.
    SecondPerson,
}

/// The consumers of this process. Clones share them.
///
/// Whoever runs consumers tells it what becomes of them:
///
/// ```
/// use lazaret_server::{Approval, Registry};
/// let registry = Registry::default();
/// registry.starting("orders", Approval::SecondPerson);
/// registry.failed("orders", "the topic is gone");
/// ```
#[derive(Clone, Default)]
pub struct Registry {
    consumers: Arc<RwLock<BTreeMap<String, Entry>>>,
    feed: Feed,
}

/// What is known of a consumer.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) state: ConsumerState,
    pub(crate) error: Option<String>,
    pub(crate) handle: Option<Handle>,
    pub(crate) approval: Approval,
}

impl Registry {
    /// Who tells the events of a consumer to those who listen. Give it to the consumer's builder.
    pub fn observer(&self, consumer: &str) -> impl Observer + use<> {
        FeedObserver::new(self.feed.clone(), consumer)
    }

    /// A consumer is about to run.
    pub fn starting(&self, consumer: &str, approval: Approval) {
        let entry = Entry { state: ConsumerState::Starting, error: None, handle: None, approval };
        self.write().insert(consumer.to_owned(), entry);
        self.tell(consumer, ConsumerState::Starting, None);
    }

    /// A consumer runs.
    pub fn running(&self, handle: Handle) {
        let name = handle.name().to_string();
        self.change(&name, ConsumerState::Running, None, Some(handle));
    }

    /// A consumer has ended as it should.
    pub fn stopped(&self, consumer: &str) {
        self.change(consumer, ConsumerState::Stopped, None, None);
    }

    /// A consumer has ended with an error.
    pub fn failed(&self, consumer: &str, error: impl Into<String>) {
        self.change(consumer, ConsumerState::Failed, Some(error.into()), None);
    }

    fn change(&self, consumer: &str, state: ConsumerState, error: Option<String>, handle: Option<Handle>) {
        let mut consumers = self.write();
        let known = consumers.get(consumer);
        let entry = Entry {
            state,
            error: error.clone(),
            // Letters can be cared for through the handle after the run, too.
            handle: handle.or_else(|| known.and_then(|known| known.handle.clone())),
            approval: known.map_or(Approval::None, |known| known.approval),
        };
        consumers.insert(consumer.to_owned(), entry);
        drop(consumers);
        self.tell(consumer, state, error);
    }

    fn tell(&self, consumer: &str, state: ConsumerState, why: Option<String>) {
        let event = Event::new(EventKind::Consumer, Timestamp::now());
        let consumer = Some(consumer.to_owned());
        self.feed.publish(Event { consumer, consumer_state: Some(state), why, ..event });
    }

    pub(crate) fn feed(&self) -> &Feed {
        &self.feed
    }

    pub(crate) fn handle(&self, consumer: &str) -> Option<Handle> {
        self.read().get(consumer).and_then(|entry| entry.handle.clone())
    }

    pub(crate) fn entry(&self, consumer: &str) -> Option<Entry> {
        self.read().get(consumer).cloned()
    }

    pub(crate) fn all(&self) -> BTreeMap<String, Entry> {
        self.read().clone()
    }

    /// Whether the letters of this consumer need a second person.
    pub(crate) fn needs_approval(&self, consumer: &str) -> bool {
        self.read().get(consumer).is_some_and(|entry| entry.approval == Approval::SecondPerson)
    }

    /// Whether the letters of any consumer do.
    pub(crate) fn any_needs_approval(&self) -> bool {
        self.read().values().any(|entry| entry.approval == Approval::SecondPerson)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Entry>> {
        self.consumers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<String, Entry>> {
        self.consumers.write().unwrap_or_else(PoisonError::into_inner)
    }
}
