//! The consumers of this process: their state and replay settings.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;
use lazaret_api::{BrokerCounts, ConsumerState, Event, EventKind};
use lazaret_engine::{Handle, Observer};

use crate::event_feed::{Feed, FeedObserver};

/// Whether a second person must approve replays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Approval {
    /// No approval.
    #[default]
    None,
    /// Operations that retry or release letters of this consumer wait for another person's approval.
    SecondPerson,
}

/// Why the letters of a consumer cannot be used, although the store answers: they cannot be decrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreNotice {
    /// The cause.
    pub why: String,
    /// `false` if this process cannot work on the store at all. Then it is not ready.
    pub is_ready: bool,
}

/// The consumers of this process. Clones share them.
///
/// The process that runs consumers reports their state:
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
    /// The default replay rate, in letters per second.
    rates: Arc<RwLock<BTreeMap<String, Option<f64>>>>,
    /// Why the source of a consumer reads nothing, read at each status.
    sources: Arc<RwLock<BTreeMap<String, SourceNotice>>>,
    /// Why letters of a consumer cannot be used, read at each status and at each readiness check.
    store: Arc<RwLock<Option<LettersNotice>>>,
    /// Whether the source of a consumer has answered, read at each readiness check.
    readiness: Arc<RwLock<BTreeMap<String, SourceReadiness>>>,
    /// What a broker holds of a consumer's messages, read at each status.
    in_broker: Arc<RwLock<BTreeMap<String, CountInBroker>>>,
    /// The addresses of handlers in other processes.
    handlers: Arc<RwLock<BTreeMap<String, String>>>,
    feed: Feed,
}

/// Says whether a source has answered.
type SourceReadiness = Arc<dyn Fn() -> bool + Send + Sync>;

/// Says why a source reads nothing; `None` while it reads.
type SourceNotice = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// Says why letters of a consumer cannot be used; `None` while they can.
type LettersNotice = Arc<dyn Fn(&str) -> Option<StoreNotice> + Send + Sync>;

/// Counts what a broker holds; `None` while it does not answer.
type CountInBroker = Arc<dyn Fn() -> Option<BrokerCounts> + Send + Sync>;

/// The state of a consumer.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) state: ConsumerState,
    pub(crate) error: Option<String>,
    pub(crate) handle: Option<Handle>,
    pub(crate) approval: Approval,
}

impl Registry {
    /// Creates the observer that publishes the events of a consumer. Pass it to the consumer's builder.
    pub fn observer(&self, consumer: &str) -> impl Observer + use<> {
        FeedObserver::new(self.feed.clone(), consumer)
    }

    /// Registers a consumer that is starting.
    pub fn starting(&self, consumer: &str, approval: Approval) {
        let entry = Entry { state: ConsumerState::Starting, error: None, handle: None, approval };
        self.write().insert(consumer.to_owned(), entry);
        self.publish(consumer, ConsumerState::Starting, None);
    }

    /// Registers a consumer that runs in other processes only, with its settings of replays.
    pub fn elsewhere(&self, consumer: &str, approval: Approval) {
        let entry = Entry { state: ConsumerState::Elsewhere, error: None, handle: None, approval };
        self.write().insert(consumer.to_owned(), entry);
    }

    /// Reports what a starting consumer waits for.
    pub fn waiting(&self, consumer: &str, reason: impl Into<String>) {
        if let Some(entry) = self.write().get_mut(consumer)
            && entry.state == ConsumerState::Starting
        {
            entry.error = Some(reason.into());
        }
    }

    /// Registers what says why the source of a consumer reads nothing, such as another instance that reads. It is called at each
    /// status of a running consumer. A later one replaces it.
    pub fn source_notice(&self, consumer: &str, notice: impl Fn() -> Option<String> + Send + Sync + 'static) {
        let mut sources = self.sources.write().unwrap_or_else(PoisonError::into_inner);
        sources.insert(consumer.to_owned(), Arc::new(notice));
    }

    /// Registers what says why letters of a consumer cannot be used. It is called at each status and at each readiness check. A later one
    /// replaces it.
    pub fn store_notice(&self, notice: impl Fn(&str) -> Option<StoreNotice> + Send + Sync + 'static) {
        *self.store.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(notice));
    }

    /// Registers what says whether the source of a consumer has answered. Until then the process is not ready. A later one replaces it.
    pub fn source_readiness(&self, consumer: &str, is_ready: impl Fn() -> bool + Send + Sync + 'static) {
        let mut readiness = self.readiness.write().unwrap_or_else(PoisonError::into_inner);
        readiness.insert(consumer.to_owned(), Arc::new(is_ready));
    }

    /// Registers what counts the messages of a consumer that retry topics and dead-letter topics hold. It is called at each
    /// status. A later one replaces it.
    pub fn in_broker(
        &self,
        consumer: &str,
        count: impl Fn() -> Option<BrokerCounts> + Send + Sync + 'static,
    ) {
        let mut in_broker = self.in_broker.write().unwrap_or_else(PoisonError::into_inner);
        in_broker.insert(consumer.to_owned(), Arc::new(count));
    }

    /// What retry topics and dead-letter topics hold.
    pub(crate) fn count_in_broker(&self, consumer: &str) -> Option<BrokerCounts> {
        let count = self.in_broker.read().unwrap_or_else(PoisonError::into_inner).get(consumer).cloned();
        count.and_then(|count| count())
    }

    /// Registers the address of a consumer's handler, as the status shows it: without credentials. A later one replaces it.
    pub fn handler(&self, consumer: &str, address: impl Into<String>) {
        let mut handlers = self.handlers.write().unwrap_or_else(PoisonError::into_inner);
        handlers.insert(consumer.to_owned(), address.into());
    }

    /// The address of a consumer's handler.
    pub(crate) fn handler_address(&self, consumer: &str) -> Option<String> {
        self.handlers.read().unwrap_or_else(PoisonError::into_inner).get(consumer).cloned()
    }

    /// Whether the source of a consumer has answered. One that registered nothing has.
    pub(crate) fn is_source_ready(&self, consumer: &str) -> bool {
        let is_ready = self.readiness.read().unwrap_or_else(PoisonError::into_inner).get(consumer).cloned();
        is_ready.is_none_or(|is_ready| is_ready())
    }

    /// Why the source of a consumer reads nothing.
    pub(crate) fn notice_of(&self, consumer: &str) -> Option<String> {
        let notice = self.sources.read().unwrap_or_else(PoisonError::into_inner).get(consumer).cloned();
        notice.and_then(|notice| notice())
    }

    /// Why letters of a consumer cannot be used.
    pub(crate) fn store_notice_of(&self, consumer: &str) -> Option<StoreNotice> {
        let notice = self.store.read().unwrap_or_else(PoisonError::into_inner).clone();
        notice.and_then(|notice| notice(consumer))
    }

    /// Sets the default rate of operations on letters of a consumer, in letters per second; `None` for unlimited. Consumers
    /// without a setting use 50 per second.
    pub fn replay_rate(&self, consumer: &str, per_second: Option<f64>) {
        let mut rates = self.rates.write().unwrap_or_else(PoisonError::into_inner);
        rates.insert(consumer.to_owned(), per_second);
    }

    /// The slowest default rate of these consumers; `None` when one of them has no setting.
    pub(crate) fn slowest<'a>(&self, consumers: impl Iterator<Item = &'a str>) -> Option<Option<f64>> {
        let rates = self.rates.read().unwrap_or_else(PoisonError::into_inner);
        let known: Option<Vec<_>> = consumers.map(|name| rates.get(name).copied()).collect();
        let slower = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        known?.into_iter().reduce(slower)
    }

    /// Reports that a consumer is running.
    pub fn running(&self, handle: Handle) {
        let name = handle.name().to_string();
        self.change(&name, ConsumerState::Running, None, Some(handle));
    }

    /// Reports that a consumer stopped without an error.
    pub fn stopped(&self, consumer: &str) {
        self.change(consumer, ConsumerState::Stopped, None, None);
    }

    /// Reports that a consumer waits for what its source is to read, such as a file that does not exist yet.
    pub fn waits_for_source(&self, consumer: &str, reason: impl Into<String>) {
        let reason = reason.into();
        // It is reported at each try, and is an event once.
        let is_known = self.entry(consumer).is_some_and(|entry| {
            entry.state == ConsumerState::Waiting && entry.error.as_deref() == Some(&reason)
        });
        if !is_known {
            self.change(consumer, ConsumerState::Waiting, Some(reason), None);
        }
    }

    /// Reports that a consumer failed.
    pub fn failed(&self, consumer: &str, error: impl Into<String>) {
        self.change(consumer, ConsumerState::Failed, Some(error.into()), None);
    }

    fn change(&self, consumer: &str, state: ConsumerState, error: Option<String>, handle: Option<Handle>) {
        let mut consumers = self.write();
        let known = consumers.get(consumer);
        let entry = Entry {
            state,
            error: error.clone(),
            // The handle stays usable for triage after the run.
            handle: handle.or_else(|| known.and_then(|known| known.handle.clone())),
            approval: known.map_or(Approval::None, |known| known.approval),
        };
        consumers.insert(consumer.to_owned(), entry);
        drop(consumers);
        self.publish(consumer, state, error);
    }

    fn publish(&self, consumer: &str, state: ConsumerState, why: Option<String>) {
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

    /// Returns `true` if replays of this consumer need approval.
    pub(crate) fn needs_approval(&self, consumer: &str) -> bool {
        self.read().get(consumer).is_some_and(|entry| entry.approval == Approval::SecondPerson)
    }

    /// Returns `true` if replays of any consumer need approval.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_of_several_consumers_sets_the_rate() {
        let registry = Registry::default();
        registry.replay_rate("orders", Some(5.0));
        registry.replay_rate("mail", Some(2.0));
        registry.replay_rate("search", None);
        let slowest = |names: &[&'static str]| registry.slowest(names.iter().copied());
        assert_eq!(slowest(&["orders", "mail", "search"]), Some(Some(2.0)));
        assert_eq!(slowest(&["search"]), Some(None));
        assert_eq!(slowest(&["orders", "another"]), None);
        assert_eq!(slowest(&[]), None);
    }
}
