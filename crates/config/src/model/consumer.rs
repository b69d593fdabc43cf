//! A consumer as values: the policies are those of the core.

use std::time::Duration;

use lazaret_core::policy::{
    BreakerPolicy, BudgetPolicy, Classifier, FusePolicy, PoisonPolicy, Rate, RetryPolicy, Rule,
};
use lazaret_core::store::Limits;
use lazaret_core::{Reason, Sequencing};

use super::{Handler, Source};
use crate::forms::SequenceRule;

/// A named subscription.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Consumer {
    /// Its name.
    pub name: String,
    /// Where messages come from.
    pub source: Source,
    /// Who handles them.
    pub handler: Handler,
    /// Which order is kept.
    pub order: Order,
    /// What makes messages a sequence.
    pub sequence: SequenceRule,
    /// How many attempts may run at once.
    pub concurrency: usize,
    /// The largest payload that a handler gets to see.
    pub max_payload: Option<usize>,
    /// When and how often to try again.
    pub retry: Retry,
    /// What failures are; the first that fits decides.
    pub rules: Vec<Rule>,
    /// When to stop calling a sick handler.
    pub breaker: Option<BreakerPolicy>,
    /// When to pause, rather than to dead-letter everything.
    pub fuse: Option<FusePolicy>,
    /// When retries end early because nothing changes.
    pub poison: PoisonPolicy,
    /// What holds for dead letters; `None` when there are none, and the consumer stops instead.
    pub dead_letter: Option<DeadLetter>,
    /// How long handled messages are remembered; `None` when they are not.
    pub inbox_dedupe: Option<Duration>,
    /// What holds for replays.
    pub replay: Replay,
    /// What hardly anybody needs to change.
    pub advanced: Advanced,
}

impl Consumer {
    /// What decides about failures: the rules, and the lists of reasons.
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
    /// let said = config.consumers[0].classifier().classify(&Subject {
    ///     failure: &Failure::new(Reason::TIMEOUT, "HttpError", "no answer"),
    ///     error: None,
    ///     message: &Message::new("m", "s", Position::new(0, 0)),
    ///     attempt: 1,
    ///     asked: None,
    ///     suggested: None,
    /// });
    /// assert_eq!(said.verdict, Verdict::Park);
    /// ```
    pub fn classifier(&self) -> Classifier {
        let rules = self.rules.iter().cloned().fold(Classifier::default(), Classifier::rule);
        let retried = self.retry.retry_on.iter().cloned().fold(rules, Classifier::retry_on_reason);
        self.retry.no_retry_on.iter().cloned().fold(retried, Classifier::no_retry_on_reason)
    }

    /// How a message finds its sequence.
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

/// Which order is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// That of each sequence.
    Key,
    /// That of each partition.
    Partition,
    /// None.
    None,
}

/// When and how often to try again.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// The schedule.
    pub policy: RetryPolicy,
    /// Reasons that are retried; empty for all that are retryable.
    pub retry_on: Vec<Reason>,
    /// Reasons that are not. It wins.
    pub no_retry_on: Vec<Reason>,
    /// How much retrying may cost.
    pub budget: BudgetPolicy,
    /// The retry topics of strategy `topics`.
    pub topics: RetryTopics,
}

/// Retry topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryTopics {
    /// One topic per delay, none shorter than the one before.
    pub delays: Vec<Duration>,
    /// Whether to create topics that are missing.
    pub create: bool,
    /// Whether moving a message and committing its position are one transaction.
    pub transactional: bool,
    /// Whether to write Spring Kafka's headers as well.
    pub spring_headers: bool,
}

/// What holds for dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The team that owns them.
    pub owner: Option<String>,
    /// How long a letter may stay open; `None` for ever.
    pub ttl: Option<Duration>,
    /// How long a closed letter can be looked at; `None` for ever.
    pub keep_closed: Option<Duration>,
    /// Whether payloads are kept.
    pub include_payload: bool,
    /// Whether backtraces are kept.
    pub include_backtrace: bool,
    /// How large a queue may grow.
    pub limits: Limits,
    /// Whether the first letter of a group is an event for alerts.
    pub alert_on_first: bool,
    /// A Kafka topic that gets a copy of each letter.
    pub topic: Option<String>,
    /// What happens to letters that nobody asks for.
    pub reprocess: Reprocess,
}

/// What happens to dead letters that nobody asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reprocess {
    /// They wait for a person.
    Manual,
    /// At set times the oldest of them are replayed.
    Cron {
        /// The times, in cron notation and UTC, with or without seconds.
        schedule: String,
        /// How many letters at a time, at most.
        batch_size: u64,
    },
}

/// What holds for replays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replay {
    /// Who has to agree.
    pub approval: Approval,
    /// Letters in a time; `None` as fast as it goes.
    pub rate: Option<Rate>,
    /// A letter that failed again in so many replays is parked; `None` for no limit.
    pub max_replays: Option<u32>,
}

/// Who has to agree to a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Approval {
    /// Nobody.
    None,
    /// Somebody else than who asks for it.
    SecondPerson,
}

/// What hardly anybody needs to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advanced {
    /// How many messages may be in flight.
    pub window: usize,
    /// How many tasks share the lanes; 0 is one per core.
    pub shards: usize,
    /// How often positions are committed at most.
    pub commit_interval: Duration,
    /// How long a drain may take.
    pub drain_deadline: Duration,
    /// How long the right to a stored sequence lasts.
    pub lease: Duration,
    /// How often the store is asked for what others changed.
    pub refresh: Duration,
    /// How many open sequences each shard keeps exactly in memory.
    pub blocked_limit: usize,
}
