//! The configuration of a consumer. Its policies use types of the core.

use std::time::Duration;

use lazaret_core::policy::{
    BreakerPolicy, BudgetPolicy, CapacityPolicy, Classifier, ErrorTypePattern, FusePolicy, OnDeadPolicy,
    PoisonPolicy, Rate, RetryOverride, RetryPolicy, Rule,
};
use lazaret_core::redaction::Redaction;
use lazaret_core::store::Limits;
use lazaret_core::{Grouping, Reason, Sequencing};

use super::adopt::AdoptTopics;
use super::io::{Handler, Source};
use super::secret::Secret;
use crate::formats::SequenceRule;

/// A named subscription.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Consumer {
    /// The name.
    pub name: String,
    /// The source of messages.
    pub source: Source,
    /// The handler of messages.
    pub handler: Handler,
    /// The ordering guarantee.
    pub order: Order,
    /// The rule that assigns messages to sequences.
    pub sequence: SequenceRule,
    /// The maximum number of concurrent attempts.
    pub concurrency: usize,
    /// The maximum payload size for the handler.
    pub max_payload: Option<usize>,
    /// The retry policy.
    pub retry: Retry,
    /// The classification rules. The first match decides.
    pub rules: Vec<Rule>,
    /// The grouping rules.
    pub grouping: Grouping,
    /// The redaction rules of the file.
    pub redact: Redaction,
    /// The circuit breaker. `None` turns it off.
    pub breaker: Option<BreakerPolicy>,
    /// The fuse. `None` turns it off.
    pub fuse: Option<FusePolicy>,
    /// The poison detection.
    pub poison: PoisonPolicy,
    /// The dead-letter settings. With `None`, a message whose failure is final is discarded, with an
    /// audit entry.
    pub dead_letter: Option<DeadLetter>,
    /// The team that owns the letters, including letters that are kept while dead letters are disabled.
    pub owner: Option<String>,
    /// Whether the first letter of a group sends an alert. This includes letters that are kept while
    /// dead letters are disabled.
    pub alert_on_first: bool,
    /// The window of the duplicate filter. `None` turns it off.
    pub inbox_dedupe: Option<Duration>,
    /// The replay settings.
    pub replay: Replay,
    /// Dead letters of other frameworks that become letters of this consumer.
    pub adopt: Vec<AdoptTopics>,
    /// The tuning parameters.
    pub advanced: Advanced,
}

impl Consumer {
    /// Builds the classifier from the rules and the lists of reasons.
    ///
    /// ```
    /// use lazaret_core::policy::Subject;
    /// use lazaret_core::{Failure, Message, Position, Reason, Verdict};
    /// let text = "
    /// consumers:
    ///   orders:
    ///     source: { inbox: {} }
    ///     handler: { command: { program: [./handle] } }
    ///     classify: [{ when: { reason: TIMEOUT }, then: park }]
    /// ";
    /// let config = lazaret_config::check("f", text.as_bytes(), &lazaret_config::NoEnv).config.unwrap();
    /// let classified = config.consumers[0].classifier().classify(&Subject {
    ///     failure: &Failure::new(Reason::TIMEOUT, "HttpError", "no response"),
    ///     error: None,
    ///     message: &Message::new("m", "s", Position::new(0, 0)),
    ///     attempt: 1,
    ///     asked: None,
    ///     suggested: None,
    /// });
    /// assert_eq!(classified.verdict, Verdict::Park);
    /// ```
    pub fn classifier(&self) -> Classifier {
        let rules = self.rules.iter().cloned().fold(Classifier::default(), Classifier::rule);
        let Retry { retry_on, retry_on_types, no_retry_on, no_retry_on_types, .. } = &self.retry;
        let retried = retry_on.iter().cloned().fold(rules, Classifier::retry_on_reason);
        let retried = retry_on_types.iter().cloned().fold(retried, Classifier::retry_on_error_type);
        let refused = no_retry_on.iter().cloned().fold(retried, Classifier::no_retry_on_reason);
        no_retry_on_types.iter().cloned().fold(refused, Classifier::no_retry_on_error_type)
    }

    /// Returns the sequencing policy for the engine.
    pub fn sequencing(&self) -> Sequencing {
        match (self.order, &self.sequence) {
            (Order::None, _) => Sequencing::Alone,
            (Order::Partition, _) | (Order::Key, SequenceRule::Partition) => Sequencing::Partition,
            (Order::Key, SequenceRule::Key) => Sequencing::Key,
            (Order::Key, SequenceRule::Header(name)) => Sequencing::Header(name.as_str().into()),
            (Order::Key, SequenceRule::Json(pointer)) => Sequencing::Json(pointer.as_str().into()),
        }
    }
}

/// The ordering guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Order {
    /// Per sequence.
    Key,
    /// Per partition.
    Partition,
    /// No order.
    None,
}

/// The retry policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// The schedule.
    pub policy: RetryPolicy,
    /// The schedules for some events or failures. The first match applies.
    pub overrides: Vec<RetryOverride>,
    /// Reasons that are retried. If empty, all retryable reasons are.
    pub retry_on: Vec<Reason>,
    /// Error types that are retried in addition.
    pub retry_on_types: Vec<ErrorTypePattern>,
    /// Reasons that are not retried. They take precedence.
    pub no_retry_on: Vec<Reason>,
    /// Error types that are not retried. They take precedence.
    pub no_retry_on_types: Vec<ErrorTypePattern>,
    /// The retry budget.
    pub budget: BudgetPolicy,
    /// The retry topics of the strategy `topics`.
    pub topics: RetryTopics,
}

/// Retry topics, one for each delay of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryTopics {
    /// Whether missing topics are created.
    pub create: bool,
    /// Whether a message is published and its position committed in one transaction.
    pub transactional: bool,
    /// Whether the headers of Spring Kafka are also written.
    pub spring_headers: bool,
}

/// The dead-letter settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The team that owns the letters.
    pub owner: Option<String>,
    /// The time until an open letter expires. `None` means never.
    pub ttl: Option<Duration>,
    /// The retention time of closed letters. `None` means forever.
    pub keep_closed: Option<Duration>,
    /// Whether payloads are kept.
    pub include_payload: bool,
    /// Whether backtraces are kept.
    pub include_backtrace: bool,
    /// The treatment of later messages of a sequence after a dead letter.
    pub on_dead: OnDeadPolicy,
    /// The strict limits of the queue.
    pub limits: Limits,
    /// The bounds on letters, bytes and free disk.
    pub capacity: CapacityPolicy,
    /// Whether the first letter of a group sends an alert.
    pub alert_on_first: bool,
    /// The Kafka topic that receives a copy of each dead letter.
    pub topic: Option<String>,
    /// The MongoDB collection that receives a copy of each dead letter.
    pub collection: Option<CopiesCollection>,
    /// The automatic replay of dead letters.
    pub reprocess: Reprocess,
}

/// A MongoDB collection that receives copies of dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiesCollection {
    /// The name.
    pub name: String,
    /// The connection string, including the database. `None` uses the store's.
    pub uri: Option<Secret>,
}

/// The automatic replay of dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reprocess {
    /// No automatic replay.
    Manual,
    /// Replays the oldest letters on a schedule.
    Cron {
        /// The schedule in cron notation, in UTC, with or without seconds.
        schedule: String,
        /// The maximum number of letters per run.
        batch_size: u64,
    },
}

/// The replay settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replay {
    /// The required approval.
    pub approval: Approval,
    /// The maximum rate of letters. `None` means unlimited.
    pub rate: Option<Rate>,
    /// The number of failed replays after which a letter is parked. `None` means unlimited.
    pub max_replays: Option<u32>,
}

/// The approval that a replay requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Approval {
    /// No approval.
    None,
    /// Approval by a person other than the requester.
    SecondPerson,
}

/// Tuning parameters that rarely need a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advanced {
    /// The maximum number of messages in flight.
    pub window: usize,
    /// The number of tasks that share the lanes. 0 means one per core.
    pub shards: usize,
    /// The minimum interval between commits.
    pub commit_interval: Duration,
    /// The maximum duration of a drain.
    pub drain_deadline: Duration,
    /// The duration of a lease on a stored sequence.
    pub lease: Duration,
    /// The interval at which the store is polled for changes by others.
    pub refresh: Duration,
    /// The number of open sequences that each shard tracks exactly.
    pub blocked_limit: usize,
}
