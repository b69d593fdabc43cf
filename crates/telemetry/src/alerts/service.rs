//! Runs alerting: drains the event buffer, evaluates conditions at an interval, and queues notices for the webhooks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::policy::BreakerState;
use lazaret_core::store::{Group, GroupId, GroupsRequest, Operation, Store};
use lazaret_core::{Clock, Timestamp};
use lazaret_engine::{FuseState, Handle, Observer};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::event_buffer::{AlertObserver, EventBuffer, Pending};
use super::firing::{FiringAlerts, Occurrence};
use super::notice::{AuditAnchor, Facts, Notice, Status, Subject};
use super::rules::AlertEvent;
use super::store_poll::{self, Plans, PollResult, StorePoll, finished, needed_decision, needs_action};
use super::thresholds::{Evaluator, Sample, Thresholds};
use super::webhook::{self, NoticeQueue, Sender, Webhook};
use crate::error::Error;
use crate::metrics::{Metrics, scope_name};

/// The page size for reading groups at start-up.
const GROUPS_PAGE: usize = 500;
/// The maximum number of groups per store poll.
const GROUPS_PER_POLL: usize = 200;

/// Events with an end that the consumer's handle reports.
const STATEFUL: [AlertEvent; 5] = [
    AlertEvent::FuseBlown,
    AlertEvent::BreakerOpened,
    AlertEvent::Paused,
    AlertEvent::StoreUnavailable,
    AlertEvent::QueueFull,
];

/// Options of the alerting service.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The interval at which rates, ages and operations are evaluated.
    pub every: Duration,
    /// The thresholds from which conditions fire.
    pub thresholds: Thresholds,
    /// The base URL of the documentation, for the runbook of a notice; `None` for its path in the repository.
    pub docs_url: Option<String>,
}

impl Default for Options {
    /// Every 15 seconds.
    fn default() -> Self {
        Self { every: Duration::from_secs(15), thresholds: Thresholds::default(), docs_url: None }
    }
}

/// Creates observers that feed the alerting service. Cheap to clone.
#[derive(Clone)]
pub struct Alerts {
    buffer: Arc<EventBuffer>,
}

impl Alerts {
    /// Creates the observer of a consumer. `on_first` enables the alert for the first letter of a group.
    pub fn observer(&self, consumer: &str, owner: Option<&str>, on_first: bool) -> impl Observer + use<> {
        AlertObserver {
            buffer: self.buffer.clone(),
            consumer: consumer.to_owned(),
            owner: owner.map(str::to_owned),
            on_first,
        }
    }
}

/// The alerting service.
pub struct Service {
    options: Options,
    buffer: Arc<EventBuffer>,
    metrics: Metrics,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    queues: Vec<NoticeQueue>,
    senders: Vec<Sender>,
    firing: FiringAlerts,
    evaluators: HashMap<String, Evaluator>,
    /// Stateful alerts that had ended at the last evaluation. They are resolved if the next one agrees: a consumer that has
    /// just started does not know its pauses yet.
    ending: HashSet<Subject>,
    /// The groups of the firing first-letter alerts.
    groups: BTreeMap<Subject, GroupId>,
    /// The last entry of the audit at the last store poll.
    audit_head: Option<AuditAnchor>,
    /// Where the next store poll continues, when one poll does not cover all groups.
    poll_after: Option<Subject>,
    /// The consumers of the plans of the operations in progress. A plan never changes.
    plans: Plans,
}

impl Service {
    /// Creates the service. `metrics` provides the running consumers and, while it is kept fresh, their letters.
    ///
    /// # Errors
    /// When a webhook has an unknown event or an invalid URL.
    pub fn new(
        webhooks: &[Webhook],
        options: Options,
        metrics: Metrics,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let (mut queues, mut senders) = (Vec::new(), Vec::new());
        for (webhook, number) in webhooks.iter().zip(1..) {
            let (queue, sender) =
                webhook::open(webhook, number, metrics.alerts_dropped(number), clock.clone())?;
            queues.push(queue);
            senders.push(sender);
        }
        Ok(Self {
            options,
            buffer: Arc::default(),
            metrics,
            store,
            clock,
            queues,
            senders,
            firing: FiringAlerts::default(),
            evaluators: HashMap::new(),
            ending: HashSet::new(),
            groups: BTreeMap::new(),
            audit_head: None,
            poll_after: None,
            plans: Plans::new(),
        })
    }

    /// Returns the factory of the observers that feed this service.
    pub fn alerts(&self) -> Alerts {
        Alerts { buffer: self.buffer.clone() }
    }

    /// Loads the groups that already have letters: their next letter does not fire, and their end is reported if `on_first`
    /// returns `true` for the consumer. Call it before consumers run. When the store fails, those groups fire again.
    pub async fn load_groups(&mut self, on_first: impl Fn(&str) -> bool) {
        let now = self.clock.now();
        let mut request = GroupsRequest { limit: GROUPS_PAGE, ..GroupsRequest::default() };
        loop {
            let page = match self.store.groups(&request).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(kind = ?error.kind(), "groups not loaded, alerts may repeat");
                    return;
                }
            };
            for group in page.groups.into_iter().filter(|group| needs_action(&group.counts) > 0) {
                self.buffer.add_group(&group.id);
                if on_first(group.id.queue.consumer()) {
                    self.add_firing_group(group, now);
                }
            }
            request.after = page.next;
            if request.after.is_none() {
                return;
            }
        }
    }

    /// Adds a group whose alert an earlier process has sent.
    fn add_firing_group(&mut self, group: Group, now: Timestamp) {
        let consumer = group.id.queue.consumer().to_owned();
        let owner = self.metrics.owner_of(&consumer);
        let facts = Facts {
            queue: Some(group.id.queue.to_string()),
            reason: Some(group.reason.to_string()),
            group: Some(group.id.to_string()),
            ..Facts::default()
        };
        let detail = Some(group.id.to_string());
        let subject = Subject { event: AlertEvent::FirstLetter, consumer: Some(consumer), detail };
        let count = needs_action(&group.counts);
        if self.firing.fire(&subject, Occurrence { facts, owner, count, quiet: None }, now).is_some() {
            self.groups.insert(subject, group.id);
        }
    }

    /// Runs until `stop` is cancelled, then sends queued notices within a grace period.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut sending = JoinSet::new();
        for sender in std::mem::take(&mut self.senders) {
            sending.spawn(sender.run(stop.clone()));
        }
        let mut ticks = tokio::time::interval(self.options.every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut poll = None;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.buffer.changed.notified() => self.drain_events(),
                () = self.metrics.failed_changed() => self.evaluate_failed(),
                // The poll runs beside the loop: an unresponsive store is an alert itself and delays none (I9).
                result = finished(&mut poll) => self.apply_poll(result),
                _ = ticks.tick() => {
                    self.evaluate();
                    poll.get_or_insert_with(|| self.poll_store());
                }
            }
        }
        self.drain_events();
        // A process may end because its consumers have failed.
        self.evaluate_failed();
        // The senders end when their queues are closed and empty.
        self.queues.clear();
        while sending.join_next().await.is_some() {}
    }

    fn send(&self, notice: Option<Notice>) {
        let Some(notice) = notice else { return };
        let runbook = Notice::runbook(notice.event, self.options.docs_url.as_deref());
        let notice = Arc::new(Notice { audit_head: self.audit_head.clone(), runbook, ..notice });
        for queue in &self.queues {
            queue.push(&notice);
        }
    }

    /// Fires and resolves alerts from the buffered events.
    fn drain_events(&mut self) {
        let now = self.clock.now();
        for (subject, pending) in self.buffer.drain() {
            let ended = pending.ended;
            if pending.count > 0 {
                self.fire(&subject, pending, now);
            }
            if ended && !self.is_paused_elsewhere(&subject) {
                self.resolve(&subject, now);
            }
        }
    }

    fn fire(&mut self, subject: &Subject, pending: Pending, now: Timestamp) {
        let Pending { count, facts, owner, group, .. } = pending;
        // A condition that cannot be queried is resolved when it has not occurred for a while.
        let can_query = STATEFUL.contains(&subject.event) || group.is_some();
        let quiet = (!can_query).then_some(self.options.thresholds.quiet);
        if let Some(group) = group {
            self.groups.insert(subject.clone(), group);
        }
        let notice = self.firing.fire(subject, Occurrence { facts, owner, count, quiet }, now);
        self.send(notice);
    }

    /// Resolves an alert. Some ends are events of their own and are sent as such, too.
    fn resolve(&mut self, subject: &Subject, now: Timestamp) {
        self.ending.remove(subject);
        let Some(notice) = self.firing.resolve(subject, now) else { return };
        let end_event = match subject.event {
            AlertEvent::BreakerOpened => Some(AlertEvent::BreakerClosed),
            AlertEvent::Paused => Some(AlertEvent::Resumed),
            _ => None,
        };
        if let Some(rule) = end_event.map(AlertEvent::rule) {
            let key = Subject { event: rule.event, ..subject.clone() }.key();
            let notice = Notice {
                key,
                event: rule.event,
                status: Status::Firing,
                severity: rule.severity,
                summary: rule.summary,
                ..notice.clone()
            };
            self.send(Some(notice));
        }
        self.send(Some(notice));
    }

    /// Evaluates the conditions that need no store access.
    fn evaluate(&mut self) {
        let now = self.clock.now();
        for notice in self.firing.resolve_quiet(now) {
            self.send(Some(notice));
        }
        for handle in self.metrics.handles() {
            self.evaluate_consumer(&handle, now);
        }
        self.evaluate_failed();
    }

    /// Fires for consumers that have failed permanently, or are not restarted within a window.
    fn evaluate_failed(&mut self) {
        let (now, window) = (self.clock.now(), self.options.thresholds.window);
        let mut failed = self.metrics.failed_consumers();
        failed.retain(|_, failed| failed.permanently || failed.since.elapsed() >= window);
        for consumer in failed.keys() {
            let subject =
                Subject { event: AlertEvent::ConsumerFailed, consumer: Some(consumer.clone()), detail: None };
            let owner = self.metrics.owner_of(consumer);
            let occurrence = Occurrence { facts: Facts::default(), owner, count: 1, quiet: None };
            let notice = self.firing.fire(&subject, occurrence, now);
            self.send(notice);
        }
        for subject in self.firing.of(AlertEvent::ConsumerFailed) {
            if !subject.consumer.as_ref().is_some_and(|consumer| failed.contains_key(consumer)) {
                self.resolve(&subject, now);
            }
        }
    }

    fn evaluate_consumer(&mut self, handle: &Handle, now: Timestamp) {
        let consumer = handle.name().to_string();
        let owner = self.metrics.owner_of(&consumer);
        let sample = Sample::of(handle, &self.metrics.overview());
        let evaluator = self.evaluators.entry(consumer.clone()).or_default();
        for condition in evaluator.evaluate(&sample, &self.options.thresholds, now) {
            let (event, detail) = (condition.event, condition.detail);
            let subject = Subject { event, consumer: Some(consumer.clone()), detail };
            let occurrence =
                Occurrence { facts: condition.facts, owner: owner.clone(), count: 1, quiet: None };
            let notice = self.firing.set(condition.holds, &subject, occurrence, now);
            self.send(notice);
        }
        let own = |subject: &Subject| subject.consumer.as_deref() == Some(&*consumer);
        for subject in STATEFUL.map(|event| self.firing.of(event)).concat().into_iter().filter(own) {
            if still_holds(handle, &subject) {
                self.ending.remove(&subject);
            } else if !self.ending.insert(subject.clone()) {
                self.resolve(&subject, now);
            }
        }
    }

    /// Returns `true` while another pause of the same scope kind is active. A notice names the kind alone: a sequence is a key.
    fn is_paused_elsewhere(&self, subject: &Subject) -> bool {
        let is_own = |handle: &Handle| subject.consumer.as_deref() == Some(handle.name().as_str());
        subject.event == AlertEvent::Paused
            && self.metrics.handles().iter().any(|handle| is_own(handle) && still_holds(handle, subject))
    }

    /// Starts a store poll for the operations and the next groups.
    fn poll_store(&mut self) -> StorePoll {
        let from = self.poll_after.take().map_or(Bound::Unbounded, Bound::Excluded);
        let some = self.groups.range((from, Bound::Unbounded)).take(GROUPS_PER_POLL);
        let some: Vec<_> = some.map(|(subject, group)| (subject.clone(), group.clone())).collect();
        self.poll_after = some.get(GROUPS_PER_POLL - 1).map(|(subject, _)| subject.clone());
        store_poll::poll(self.store.clone(), self.buffer.clone(), some, self.plans.clone())
    }

    /// Fires and resolves alerts from the result of a store poll.
    fn apply_poll(&mut self, result: PollResult) {
        let now = self.clock.now();
        if let Some(head) = result.audit_head {
            self.audit_head = Some(head);
        }
        for (subject, group) in result.ended {
            // A letter that arrived since the poll started has marked the group again.
            if !self.buffer.has_group(&group) {
                self.groups.remove(&subject);
                self.resolve(&subject, now);
            }
        }
        if let Some((operations, plans)) = result.operations {
            self.plans = plans;
            self.apply_operations(&operations, now);
        }
    }

    fn apply_operations(&mut self, operations: &[Operation], now: Timestamp) {
        let mut current = HashSet::new();
        for operation in operations {
            let Some(event) = needed_decision(operation) else { continue };
            let id = operation.id.to_string();
            let facts = Facts {
                operation: Some(id.clone()),
                value: Some(operation.failed_again as f64),
                ..Facts::default()
            };
            // One notice for each owner that is concerned; for a plan without letters, one without.
            let consumers = self.plans.get(&operation.plan).cloned().unwrap_or_default();
            let consumers = consumers.into_iter().map(Some);
            let nobody = (consumers.len() == 0).then_some(None);
            for consumer in consumers.chain(nobody) {
                let owner = consumer.as_deref().and_then(|consumer| self.metrics.owner_of(consumer));
                let subject = Subject { event, consumer, detail: Some(id.clone()) };
                let occurrence = Occurrence { facts: facts.clone(), owner, count: 1, quiet: None };
                let notice = self.firing.fire(&subject, occurrence, now);
                self.send(notice);
                current.insert(subject);
            }
        }
        let firing = [AlertEvent::ApprovalNeeded, AlertEvent::OperationStopped]
            .map(|event| self.firing.of(event))
            .concat();
        for subject in firing.iter().filter(|subject| !current.contains(*subject)) {
            self.resolve(subject, now);
        }
    }
}

/// Reads from the consumer's handle whether a stateful condition still holds. Events alone do not suffice: a restarted consumer
/// begins with a closed breaker, and emits no event for a pause that was lifted before.
fn still_holds(handle: &Handle, subject: &Subject) -> bool {
    match subject.event {
        AlertEvent::FuseBlown => matches!(handle.fuse(), Some(FuseState::Blown { .. })),
        AlertEvent::BreakerOpened => !matches!(handle.breaker(), None | Some(BreakerState::Closed)),
        AlertEvent::Paused => {
            let kind = subject.detail.as_deref();
            handle.pauses().iter().any(|pause| Some(scope_name(&pause.scope)) == kind)
        }
        _ => handle.is_store_failing(),
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::{Failure, LetterId, LetterState, Message, Position, QueueName, Reason, SequenceId};
    use lazaret_engine::Event;
    use lazaret_memory::MemoryStore;
    use lazaret_testkit::TokioClock;

    use super::*;

    fn service() -> Service {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let store = Arc::new(MemoryStore::new(clock.clone()));
        Service::new(&[], Options::default(), Metrics::prometheus(), store, clock).unwrap()
    }

    /// Reports a dead letter to the service: stored, or relayed to a topic.
    fn letter(service: &mut Service, is_stored: bool) {
        let (queue, message) =
            (QueueName::of("orders", "orders"), Message::new("m-1", "events", Position::new(0, 1)));
        let cause = Failure::new(Reason::TIMEOUT, "TestError", "error text");
        let sequence = &SequenceId::new("key");
        let (queue, message, state, cause) = (&queue, &message, LetterState::Dead, Some(&cause));
        let observer = service.alerts().observer("orders", None, true);
        observer.on(&if is_stored {
            let letter = LetterId::of(queue, &message.id);
            Event::LetterStored { queue, message, letter, sequence, state, before: None, cause, replay: None }
        } else {
            Event::Relayed { queue, message, state, cause }
        });
        service.drain_events();
    }

    #[tokio::test(start_paused = true)]
    async fn a_letter_that_arrives_during_a_store_poll_keeps_its_group_firing() {
        let mut service = service();
        letter(&mut service, true);
        // The store has no letter of that group any more.
        let result = service.poll_store().await;
        assert_eq!(result.ended.len(), 1);
        letter(&mut service, true);
        service.apply_poll(result);
        assert_eq!(service.firing.of(AlertEvent::FirstLetter).len(), 1, "there is a letter");
        // Without a letter the alert is resolved, and the next letter fires again.
        let result = service.poll_store().await;
        service.apply_poll(result);
        assert!(service.firing.of(AlertEvent::FirstLetter).is_empty());
        letter(&mut service, true);
        assert_eq!(service.firing.of(AlertEvent::FirstLetter).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn relayed_letters_fire_until_the_quiet_time_has_passed_and_then_again() {
        let mut service = service();
        let quiet = service.options.thresholds.quiet;
        for _ in 0..3 {
            letter(&mut service, false);
            tokio::time::advance(quiet / 2).await;
            service.evaluate();
            assert_eq!(service.firing.of(AlertEvent::FirstLetter).len(), 1, "still firing");
        }
        tokio::time::advance(quiet).await;
        service.evaluate();
        assert!(service.firing.of(AlertEvent::FirstLetter).is_empty());
        letter(&mut service, false);
        assert_eq!(service.firing.of(AlertEvent::FirstLetter).len(), 1, "it fires again");
    }
}
