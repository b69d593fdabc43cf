//! Reads what observers wrote down, looks at the rest now and then, and tells the webhooks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::policy::BreakerState;
use lazaret_core::store::{Group, GroupId, GroupsRequest, Operation, OperationState, Store};
use lazaret_core::{Clock, Timestamp};
use lazaret_engine::{FuseState, Handle, Observer};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::asking::{self, Answers, Asking, answered, waits_for_somebody};
use super::board::{Board, News, Writer};
use super::ledger::{Ledger, Report};
use super::levels::{Seen, Thresholds, Watch};
use super::notice::{Facts, Notice, Status, Subject};
use super::rules;
use super::webhook::{self, Line, Sender, Webhook};
use crate::error::Error;
use crate::metrics::{Metrics, scope_name};

/// How many groups are asked for in one page at the start.
const GROUPS_PAGE: usize = 500;
/// How many groups are looked at at once.
const GROUPS_AT_ONCE: usize = 200;

/// What lasts until it is over, and what the consumer can be asked about.
const LASTING: [&str; 5] =
    [rules::FUSE_BLOWN, rules::BREAKER_OPENED, rules::PAUSED, rules::STORE_UNAVAILABLE, rules::QUEUE_FULL];

/// How alerts behave.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How often rates, ages and operations are looked at.
    pub every: Duration,
    /// From where on something is worth telling.
    pub thresholds: Thresholds,
}

impl Default for Options {
    /// Every 15 seconds.
    fn default() -> Self {
        Self { every: Duration::from_secs(15), thresholds: Thresholds::default() }
    }
}

/// Where consumers leave their news. Cheap to clone.
#[derive(Clone)]
pub struct Alerts {
    board: Arc<Board>,
}

impl Alerts {
    /// Who writes down what happens to a consumer. `on_first`: whether the first letter of a group is told.
    pub fn observer(&self, consumer: &str, owner: Option<&str>, on_first: bool) -> impl Observer + use<> {
        Writer {
            board: self.board.clone(),
            consumer: consumer.to_owned(),
            owner: owner.map(str::to_owned),
            on_first,
        }
    }
}

/// Tells webhooks.
pub struct Service {
    options: Options,
    board: Arc<Board>,
    metrics: Metrics,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    lines: Vec<Line>,
    senders: Vec<Sender>,
    ledger: Ledger,
    watches: HashMap<String, Watch>,
    /// What was not so any more at the last look, and is over if that is so again: a consumer that has just been started
    /// does not know its pauses yet.
    fading: HashSet<Subject>,
    /// The groups behind subjects that fire.
    groups: BTreeMap<Subject, GroupId>,
    /// The last of them that was looked at, when there are more.
    looked_at: Option<Subject>,
}

impl Service {
    /// Opens the ways to the webhooks. `metrics` knows the consumers that run and, when it is kept fresh, their letters.
    ///
    /// # Errors
    /// When a webhook makes no sense.
    pub fn new(
        webhooks: &[Webhook],
        options: Options,
        metrics: Metrics,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let (mut lines, mut senders) = (Vec::new(), Vec::new());
        for (webhook, number) in webhooks.iter().zip(1..) {
            let (line, sender) =
                webhook::open(webhook, number, metrics.alerts_dropped(number), clock.clone())?;
            lines.push(line);
            senders.push(sender);
        }
        Ok(Self {
            options,
            board: Arc::default(),
            metrics,
            store,
            clock,
            lines,
            senders,
            ledger: Ledger::default(),
            watches: HashMap::new(),
            fading: HashSet::new(),
            groups: BTreeMap::new(),
            looked_at: None,
        })
    }

    /// Where consumers leave their news.
    pub fn alerts(&self) -> Alerts {
        Alerts { board: self.board.clone() }
    }

    /// Learns which groups have letters already: their next letter is not their first, and their end is still to be told
    /// where `tells` says so of the consumer. To be called before consumers run. A store that does not answer makes them news
    /// again.
    pub async fn learn(&mut self, tells: impl Fn(&str) -> bool) {
        let now = self.clock.now();
        let mut request = GroupsRequest { limit: GROUPS_PAGE, ..GroupsRequest::default() };
        loop {
            let page = match self.store.groups(&request).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(kind = ?error.kind(), "the store does not tell its groups; alerts may come again");
                    return;
                }
            };
            for group in page.groups.into_iter().filter(|group| waits_for_somebody(&group.counts) > 0) {
                self.board.know(&group.id);
                if tells(group.id.queue.consumer()) {
                    self.told_before(group, now);
                }
            }
            request.after = page.next;
            if request.after.is_none() {
                return;
            }
        }
    }

    /// Another process has told of this group.
    fn told_before(&mut self, group: Group, now: Timestamp) {
        let consumer = group.id.queue.consumer().to_owned();
        let owner = self.metrics.owner_of(&consumer);
        let facts = Facts {
            queue: Some(group.id.queue.to_string()),
            reason: Some(group.reason.to_string()),
            group: Some(group.id.to_string()),
            ..Facts::default()
        };
        let detail = Some(group.id.to_string());
        let subject = Subject { event: rules::FIRST_LETTER, consumer: Some(consumer), detail };
        let count = waits_for_somebody(&group.counts);
        if self.ledger.fire(&subject, Report { facts, owner, count, quiet: None }, now).is_some() {
            self.groups.insert(subject, group.id);
        }
    }

    /// Tells webhooks until `stop`, and then, for a moment, what is left to tell.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut sending = JoinSet::new();
        for sender in std::mem::take(&mut self.senders) {
            sending.spawn(sender.run(stop.clone()));
        }
        let mut looks = tokio::time::interval(self.options.every);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut asking = None;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.board.changed.notified() => self.read_news(),
                // Asked beside the rest: a store that does not answer is told of, and holds up nobody (I9).
                answers = answered(&mut asking) => self.hear(answers),
                _ = looks.tick() => {
                    self.look();
                    asking.get_or_insert_with(|| self.ask());
                }
            }
        }
        self.read_news();
        // Without their lines, the senders end when they have sent what waits.
        self.lines.clear();
        while sending.join_next().await.is_some() {}
    }

    fn tell(&self, notice: Option<Notice>) {
        let Some(notice) = notice.map(Arc::new) else { return };
        for line in &self.lines {
            line.tell(&notice);
        }
    }

    /// Tells what observers wrote down.
    fn read_news(&mut self) {
        let now = self.clock.now();
        for (subject, news) in self.board.take() {
            let over = news.over;
            if news.count > 0 {
                self.happened(&subject, news, now);
            }
            if over && !self.is_paused_elsewhere(&subject) {
                self.over(&subject, now);
            }
        }
    }

    fn happened(&mut self, subject: &Subject, news: News, now: Timestamp) {
        let News { count, facts, owner, group, .. } = news;
        // What nobody can look up again is over when it has not happened for a while.
        let lasts = LASTING.contains(&subject.event) || group.is_some();
        let quiet = (!lasts).then_some(self.options.thresholds.quiet);
        if let Some(group) = group {
            self.groups.insert(subject.clone(), group);
        }
        let notice = self.ledger.fire(subject, Report { facts, owner, count, quiet }, now);
        self.tell(notice);
    }

    /// Something is over. Ends that have a name of their own are told under that as well.
    fn over(&mut self, subject: &Subject, now: Timestamp) {
        self.fading.remove(subject);
        let Some(notice) = self.ledger.resolve(subject, now) else { return };
        let named = match subject.event {
            rules::BREAKER_OPENED => Some(rules::BREAKER_CLOSED),
            rules::PAUSED => Some(rules::RESUMED),
            _ => None,
        };
        if let Some(rule) = named.and_then(rules::rule) {
            let key = Subject { event: rule.event, ..subject.clone() }.key();
            let notice = Notice {
                key,
                event: rule.event,
                status: Status::Firing,
                severity: rule.severity,
                summary: rule.summary,
                runbook: Notice::runbook(rule),
                ..notice.clone()
            };
            self.tell(Some(notice));
        }
        self.tell(Some(notice));
    }

    /// Looks at everything that nobody tells, but for what only the store knows.
    fn look(&mut self) {
        let now = self.clock.now();
        for notice in self.ledger.quieted(now) {
            self.tell(Some(notice));
        }
        for handle in self.metrics.handles() {
            self.look_at(&handle, now);
        }
    }

    fn look_at(&mut self, handle: &Handle, now: Timestamp) {
        let consumer = handle.name().to_string();
        let owner = self.metrics.owner_of(&consumer);
        let seen = Seen::of(handle, &self.metrics.overview());
        let watch = self.watches.entry(consumer.clone()).or_default();
        for level in watch.look(&seen, &self.options.thresholds, now) {
            let subject = Subject { event: level.event, consumer: Some(consumer.clone()), detail: None };
            let report = Report { facts: level.facts, owner: owner.clone(), count: 1, quiet: None };
            let notice = self.ledger.level(level.up, &subject, report, now);
            self.tell(notice);
        }
        let own = |subject: &Subject| subject.consumer.as_deref() == Some(&*consumer);
        for subject in LASTING.map(|event| self.ledger.of(event)).concat().into_iter().filter(own) {
            if lasts(handle, &subject) {
                self.fading.remove(&subject);
            } else if !self.fading.insert(subject.clone()) {
                self.over(&subject, now);
            }
        }
    }

    /// Whether another part of the same kind is paused. A notice names the kind alone: a sequence is a key.
    fn is_paused_elsewhere(&self, subject: &Subject) -> bool {
        let is_own = |handle: &Handle| subject.consumer.as_deref() == Some(handle.name().as_str());
        subject.event == rules::PAUSED
            && self.metrics.handles().iter().any(|handle| is_own(handle) && lasts(handle, subject))
    }

    /// Asks the store for what only it knows: the operations, and some groups each time.
    fn ask(&mut self) -> Asking {
        let from = self.looked_at.take().map_or(Bound::Unbounded, Bound::Excluded);
        let some = self.groups.range((from, Bound::Unbounded)).take(GROUPS_AT_ONCE);
        let some: Vec<_> = some.map(|(subject, group)| (subject.clone(), group.clone())).collect();
        self.looked_at = some.get(GROUPS_AT_ONCE - 1).map(|(subject, _)| subject.clone());
        asking::ask(self.store.clone(), self.board.clone(), some)
    }

    /// Tells what the store said.
    fn hear(&mut self, answers: Answers) {
        let now = self.clock.now();
        for (subject, group) in answers.ended {
            // It is known again: a letter has come since it was asked for.
            if !self.board.knows(&group) {
                self.groups.remove(&subject);
                self.over(&subject, now);
            }
        }
        if let Some(operations) = answers.operations {
            self.hear_operations(&operations, now);
        }
    }

    fn hear_operations(&mut self, operations: &[Operation], now: Timestamp) {
        let mut firing = Vec::new();
        for operation in operations {
            let stopped = operation.note.as_deref().is_some_and(|note| note.starts_with("stopped:"));
            let event = match operation.state {
                OperationState::AwaitingApproval => rules::APPROVAL_NEEDED,
                OperationState::Paused if stopped => rules::OPERATION_STOPPED,
                _ => continue,
            };
            let id = operation.id.to_string();
            let subject = Subject { event, consumer: None, detail: Some(id.clone()) };
            let facts =
                Facts { operation: Some(id), value: Some(operation.failed_again as f64), ..Facts::default() };
            let notice =
                self.ledger.fire(&subject, Report { facts, owner: None, count: 1, quiet: None }, now);
            self.tell(notice);
            firing.push(subject);
        }
        let over =
            [rules::APPROVAL_NEEDED, rules::OPERATION_STOPPED].map(|event| self.ledger.of(event)).concat();
        for subject in over.iter().filter(|subject| !firing.contains(subject)) {
            self.over(subject, now);
        }
    }
}

/// Whether something that lasts is still so, as the consumer itself says. Events alone do not tell: a consumer that is started
/// anew begins with a closed breaker, and never knew of a pause that was lifted before.
fn lasts(handle: &Handle, subject: &Subject) -> bool {
    match subject.event {
        rules::FUSE_BLOWN => matches!(handle.fuse(), Some(FuseState::Blown { .. })),
        rules::BREAKER_OPENED => !matches!(handle.breaker(), None | Some(BreakerState::Closed)),
        rules::PAUSED => {
            let kind = subject.detail.as_deref();
            handle.pauses().iter().any(|pause| Some(scope_name(&pause.scope)) == kind)
        }
        _ => handle.has_store_trouble(),
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::{Failure, LetterState, Message, Position, QueueName, Reason, SequenceId};
    use lazaret_engine::Event;
    use lazaret_memory::MemoryStore;
    use lazaret_testkit::TokioClock;

    use super::*;

    fn service() -> Service {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let store = Arc::new(MemoryStore::new(clock.clone()));
        Service::new(&[], Options::default(), Metrics::prometheus(), store, clock).unwrap()
    }

    /// Somebody tells the service of a letter that waits for somebody: held, or passed on to another place.
    fn letter(service: &mut Service, is_held: bool) {
        let (queue, message) =
            (QueueName::of("orders", "orders"), Message::new("m-1", "events", Position::new(0, 1)));
        let cause = Failure::new(Reason::TIMEOUT, "TestError", "words");
        let sequence = &SequenceId::new("key");
        let (queue, message, state, cause) = (&queue, &message, LetterState::Dead, Some(&cause));
        let observer = service.alerts().observer("orders", None, true);
        observer.on(&if is_held {
            Event::LetterStored { queue, message, sequence, state, before: None, cause, replay: None }
        } else {
            Event::Relayed { queue, message, state, cause }
        });
        service.read_news();
    }

    #[tokio::test(start_paused = true)]
    async fn a_letter_that_comes_while_its_group_is_asked_for_is_not_lost_in_the_end_of_the_group() {
        let mut service = service();
        letter(&mut service, true);
        // The store has none of that group any more.
        let answers = service.ask().await;
        assert_eq!(answers.ended.len(), 1);
        letter(&mut service, true);
        service.hear(answers);
        assert_eq!(service.ledger.of(rules::FIRST_LETTER).len(), 1, "there is a letter");
        // And when there is none, its end is told, and its next letter is news.
        let answers = service.ask().await;
        service.hear(answers);
        assert!(service.ledger.of(rules::FIRST_LETTER).is_empty());
        letter(&mut service, true);
        assert_eq!(service.ledger.of(rules::FIRST_LETTER).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn letters_that_are_passed_on_are_told_until_none_has_come_for_a_while_and_then_again() {
        let mut service = service();
        let quiet = service.options.thresholds.quiet;
        for _ in 0..3 {
            letter(&mut service, false);
            tokio::time::advance(quiet / 2).await;
            service.look();
            assert_eq!(service.ledger.of(rules::FIRST_LETTER).len(), 1, "they go on");
        }
        tokio::time::advance(quiet).await;
        service.look();
        assert!(service.ledger.of(rules::FIRST_LETTER).is_empty());
        letter(&mut service, false);
        assert_eq!(service.ledger.of(rules::FIRST_LETTER).len(), 1, "it is news again");
    }
}
