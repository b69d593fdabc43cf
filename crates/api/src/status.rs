//! The status of consumers and operations, health and readiness.

use lazaret_core::StreamName;
use lazaret_core::incarnation::{Incarnation, Incarnations};
use lazaret_core::policy::{self, OnDeadPolicy};
use lazaret_core::store::{Capabilities, SeenInstance};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::failure::LetterError;
use crate::group::StateCounts;
use crate::operation::Operation;
use crate::pause::Pause;

/// What happens to the sequences of dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnDead {
    /// Later messages wait behind a dead letter.
    Hold,
    /// Later messages go on. A replay of a dead letter is out of order.
    Continue,
    /// It depends on the event type or the reason.
    Mixed,
}

impl From<&OnDeadPolicy> for OnDead {
    fn from(policy: &OnDeadPolicy) -> Self {
        match policy.on_dead {
            _ if policy.overrides.iter().any(|over| over.on_dead != policy.on_dead) => Self::Mixed,
            policy::OnDead::Hold => Self::Hold,
            policy::OnDead::Continue => Self::Continue,
        }
    }
}

/// The status of all consumers and operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Status {
    /// The consumers of this process, and those with letters in the store.
    pub consumers: Vec<Consumer>,
    /// Operations that are not over, the latest first, at most 200.
    pub operations: Vec<Operation>,
    /// The capabilities of the store.
    pub store: StoreCapabilities,
    /// The processes that share the store, this one included.
    #[serde(default)]
    pub instances: Vec<Instance>,
    /// What the store has still to do after an erasure, or why it failed; absent if none of its files holds erased content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erasure: Option<String>,
}

/// A process that shares the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Instance {
    /// Its name: the host and the process.
    pub instance: String,
    /// The version of Lazaret that it runs.
    pub version: String,
    /// The consumers that it runs; none for an instance that only serves the API.
    pub consumers: Vec<String>,
    /// The partitions that it reads.
    pub partitions: Vec<InstancePartition>,
    /// When it started, by its own clock.
    pub started_at: jiff::Timestamp,
    /// When it last reported, by the store's clock.
    pub last_seen: jiff::Timestamp,
}

/// A partition that an instance reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct InstancePartition {
    /// The consumer.
    pub consumer: String,
    /// The stream.
    pub stream: String,
    /// The number of the partition.
    pub partition: u32,
}

/// The processes that share a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct InstanceList {
    /// The instances, by name.
    pub instances: Vec<Instance>,
}

impl From<&SeenInstance> for Instance {
    fn from(seen: &SeenInstance) -> Self {
        let partitions = seen.instance.consumers.iter().flat_map(|(consumer, partitions)| {
            partitions.iter().map(|partition| InstancePartition {
                consumer: consumer.to_string(),
                stream: partition.stream.to_string(),
                partition: partition.index,
            })
        });
        Self {
            instance: seen.instance.name.clone(),
            version: seen.instance.version.clone(),
            consumers: seen.instance.consumers.keys().map(ToString::to_string).collect(),
            partitions: partitions.collect(),
            started_at: seen.instance.started_at,
            last_seen: seen.last_seen,
        }
    }
}

/// The capabilities of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct StoreCapabilities {
    /// Acknowledged writes survive a crash of the process.
    pub durable: bool,
    /// Several processes on one machine can share it.
    pub shared_by_processes: bool,
    /// Several machines can share it.
    pub shared_by_machines: bool,
    /// The audit is a hash chain that can be verified.
    pub audit_chain: bool,
    /// It lists ended letters, which can be mirrored to a topic.
    pub outbox: bool,
    /// It provides inboxes that messages can be posted to.
    pub inbox: bool,
}

impl From<&Capabilities> for StoreCapabilities {
    fn from(capabilities: &Capabilities) -> Self {
        let Capabilities {
            durable, shared_by_processes, shared_by_machines, audit_chain, outbox, inbox, ..
        } = *capabilities;
        Self { durable, shared_by_processes, shared_by_machines, audit_chain, outbox, inbox }
    }
}

/// The status of a consumer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Consumer {
    /// The name.
    pub name: String,
    /// The state.
    pub state: ConsumerState,
    /// The error, if it failed, waits for its source to start, or runs while its source fails or another instance reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The pause of the whole consumer.
    pub paused: Option<Pause>,
    /// All active pauses, parts included.
    pub pauses: Vec<Pause>,
    /// The number of unread messages in the source; `null` if unknown.
    pub lag: Option<u64>,
    /// Messages read and not settled; `null`, like all counters, for a consumer that runs elsewhere.
    pub in_flight: Option<u64>,
    /// Messages handled since the start.
    pub handled: Option<u64>,
    /// Failed attempts since the start.
    pub failed: Option<u64>,
    /// Letters that are retried automatically.
    pub retrying: u64,
    /// Letters that are not retried automatically.
    pub dead: u64,
    /// Letters held until a person or a deployment changes something.
    pub parked: u64,
    /// Isolated letters.
    pub quarantined: u64,
    /// Letters blocked behind the head of their sequence.
    pub waiting: u64,
    /// The age of the oldest open letter, or of the oldest message that failed and waits in memory, since its first failure.
    pub oldest_age_seconds: Option<f64>,
    /// The age of the oldest running attempt; `null` while none runs.
    #[serde(default)]
    pub attempt_age_seconds: Option<f64>,
    /// The fuse.
    pub fuse: Fuse,
    /// The circuit breaker.
    pub breaker: Breaker,
    /// Why the fuse has blown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fuse_why: Option<String>,
    /// Why the circuit breaker is not closed; absent while it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker_cause: Option<BreakerCause>,
    /// The address of the handler, without credentials and parameters; absent if it is part of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
    /// What happens to the sequences of dead letters; absent for a consumer that runs elsewhere, or has no dead letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_dead: Option<OnDead>,
    /// Whether messages wait because store writes fail.
    pub store_trouble: bool,
    /// The streams that were recreated since the consumer first read them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incarnations: Vec<StreamIncarnation>,
    /// What retry topics and dead-letter topics hold, counted in the broker every few seconds. The other counts are of the store.
    /// Absent without such topics, for a consumer that runs elsewhere, and while the broker does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_broker: Option<BrokerCounts>,
    /// The limit that is reached, so that no more messages are read: `max-letters`, `max-bytes`, `min-free`, `max-sequences`,
    /// `max-sequence-size`, `budget.backlog`, or `disk` if the store says no more than that it is full. `error` has the details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// The queues, one per component.
    pub queues: Vec<QueueStatus>,
}

impl Consumer {
    /// Returns the number of dead letters in the store plus the records of dead-letter topics in the broker.
    pub fn dead_with_topics(&self) -> u64 {
        self.dead.saturating_add(self.in_broker.map_or(0, |counts| counts.dead))
    }

    /// Returns the age in seconds of the oldest open letter, message in memory, record of a dead-letter
    /// topic, or attempt that has been running for at least a second.
    pub fn oldest_with_topics(&self, now: jiff::Timestamp) -> Option<f64> {
        let in_topics = self.in_broker.and_then(|counts| counts.oldest_dead_at);
        let in_topics = in_topics.map(|at| now.duration_since(at).as_secs_f64().max(0.0));
        let attempt = self.attempt_age_seconds.filter(|age| *age >= 1.0);
        [self.oldest_age_seconds, in_topics, attempt].into_iter().flatten().reduce(f64::max)
    }

    /// Returns when the consumer's next letter expires, if that is within a day.
    pub fn expires_soon(&self, now: jiff::Timestamp) -> Option<jiff::Timestamp> {
        within_a_day(self.queues.iter().filter_map(|queue| queue.next_expiry_at).min(), now)
    }
}

/// Returns the time of the next expiry if it is within a day.
pub(crate) fn within_a_day(next: Option<jiff::Timestamp>, now: jiff::Timestamp) -> Option<jiff::Timestamp> {
    next.filter(|at| at.duration_since(now) <= jiff::SignedDuration::from_hours(24))
}

/// A stream that was deleted and created again, or a partition whose log began anew. What was known by position before is not applied to
/// its messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct StreamIncarnation {
    /// The stream.
    pub stream: String,
    /// The partition; absent for the whole stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// The number of its incarnation; the first one is 0.
    pub incarnation: u32,
    /// The id of the incarnation, such as the topic id of Kafka.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// When it was first seen.
    pub since: jiff::Timestamp,
}

impl StreamIncarnation {
    /// Returns `true` if the incarnation was first seen within the last day.
    pub fn is_recent(&self, now: jiff::Timestamp) -> bool {
        now.duration_since(self.since) < jiff::SignedDuration::from_hours(24)
    }

    /// Returns the name of the stream, or of the partition and its stream.
    pub fn name(&self) -> String {
        match self.partition {
            Some(partition) => format!("partition {partition} of {}", self.stream),
            None => self.stream.clone(),
        }
    }

    /// Returns the incarnations in `seen` that are not the first of their stream or partition.
    pub fn recreated(seen: &Incarnations) -> Vec<Self> {
        let of = |stream: &StreamName, partition, life: &Incarnation| Self {
            stream: stream.to_string(),
            partition,
            incarnation: life.number,
            id: life.id.as_deref().map(str::to_owned),
            since: life.since,
        };
        let lives = seen.0.iter().flat_map(|(stream, lives)| {
            let parts = lives.partitions.iter().map(move |(index, life)| of(stream, Some(*index), life));
            std::iter::once(of(stream, None, &lives.stream)).chain(parts)
        });
        lives.filter(|life| life.incarnation > 0).collect()
    }
}

/// Messages in the topics of the strategy `topics`, counted in the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BrokerCounts {
    /// Records of retry topics that are not settled.
    pub retrying: u64,
    /// Records of dead-letter topics, read or not.
    pub dead: u64,
    /// When the oldest record of a dead-letter topic first failed; absent without records, and where the topic cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_dead_at: Option<jiff::Timestamp>,
}

/// The status of a queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct QueueStatus {
    /// The name: `consumer/component`.
    pub queue: String,
    /// The number of open sequences.
    pub sequences: u64,
    /// Letters by state.
    pub states: StateCounts,
    /// When the oldest open letter was enqueued.
    pub oldest_at: Option<jiff::Timestamp>,
    /// When the next open letter expires; absent if none does. Letters that wait behind others do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_expiry_at: Option<jiff::Timestamp>,
}

/// The state of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ConsumerState {
    /// Starting.
    Starting,
    /// Running.
    Running,
    /// Running, paused by a person or by its fuse.
    Paused,
    /// Waiting for what its source is to read, such as a file that does not exist yet.
    Waiting,
    /// Stopped without an error.
    Stopped,
    /// Stopped with an error.
    Failed,
    /// Not running in this process; its letters are in the store.
    Elsewhere,
}

impl ConsumerState {
    /// Returns the name in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Waiting => "waiting",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Elsewhere => "elsewhere",
        }
    }
}

/// The state of the fuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Fuse {
    /// Not configured, or the consumer runs elsewhere.
    None,
    /// Intact.
    Intact,
    /// Blown: the consumer is paused.
    Blown,
}

impl Fuse {
    /// Returns the name in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Intact => "intact",
            Self::Blown => "blown",
        }
    }
}

/// The state of the circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Breaker {
    /// Not configured, or the consumer runs elsewhere.
    None,
    /// Closed: attempts run.
    Closed,
    /// Open: attempts are suspended.
    Open,
    /// Half-open: probe attempts decide whether it closes.
    HalfOpen,
}

impl Breaker {
    /// Returns the name in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
        }
    }
}

/// The failure that opened a circuit breaker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BreakerCause {
    /// The reason code.
    pub reason: String,
    /// The error.
    pub error: LetterError,
    /// When it opened the circuit breaker.
    pub opened_at: jiff::Timestamp,
    /// When the handler is called again to probe it; `null` while probes run.
    pub next_probe_at: Option<jiff::Timestamp>,
}

/// The response of the liveness check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// The version of Lazaret.
    pub version: String,
}

/// The response of the readiness check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Readiness {
    /// Whether the store responds and every consumer is running or deliberately paused.
    pub ready: bool,
    /// The reasons why not.
    pub reasons: Vec<String>,
}
