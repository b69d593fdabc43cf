//! How everything stands at a glance.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::group::StateCounts;
use crate::operation::Operation;
use crate::pause::Pause;

/// How everything stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Status {
    /// The consumers: those of this process, and those whose letters are in the store.
    pub consumers: Vec<Consumer>,
    /// Operations that are not over, the latest first, at most 200.
    pub operations: Vec<Operation>,
}

/// How a consumer stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Consumer {
    /// Its name.
    pub name: String,
    /// Whether it runs.
    pub state: ConsumerState,
    /// Why it stopped, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The pause of the whole consumer.
    pub paused: Option<Pause>,
    /// Everything that is paused, parts included.
    pub pauses: Vec<Pause>,
    /// How many messages are known to lie beyond what was read; `null` when that is not known.
    pub lag: Option<u64>,
    /// Messages that were read and are not settled; `null` for a consumer that runs elsewhere, as all counters are.
    pub in_flight: Option<u64>,
    /// Messages that a handler took since the start.
    pub handled: Option<u64>,
    /// Attempts that failed since the start.
    pub failed: Option<u64>,
    /// Letters that will be tried again.
    pub retrying: u64,
    /// Letters that will not be tried again by themselves.
    pub dead: u64,
    /// Letters that are kept until somebody changes something.
    pub parked: u64,
    /// Letters that are kept apart.
    pub quarantined: u64,
    /// Letters that wait behind the head of their sequence.
    pub waiting: u64,
    /// How long ago the oldest open letter was taken in.
    pub oldest_age_seconds: Option<f64>,
    /// How the fuse stands.
    pub fuse: Fuse,
    /// How the breaker stands.
    pub breaker: Breaker,
    /// Whether the store makes it wait.
    pub store_trouble: bool,
    /// Its queues, one per component.
    pub queues: Vec<QueueStatus>,
}

/// How a queue stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct QueueStatus {
    /// Its name: `consumer/component`.
    pub queue: String,
    /// Open sequences.
    pub sequences: u64,
    /// Letters by state.
    pub states: StateCounts,
    /// When its oldest open letter was taken in.
    pub oldest_at: Option<jiff::Timestamp>,
}

/// Whether a consumer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ConsumerState {
    /// It is about to run.
    Starting,
    /// It runs.
    Running,
    /// It runs, and somebody or its fuse has paused it.
    Paused,
    /// It has ended as it should.
    Stopped,
    /// It has ended with an error.
    Failed,
    /// It does not run in this process; its letters are in the store.
    Elsewhere,
}

impl ConsumerState {
    /// The word used in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Elsewhere => "elsewhere",
        }
    }
}

/// How the fuse stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Fuse {
    /// There is none, or the consumer runs elsewhere.
    None,
    /// It holds.
    Intact,
    /// It has blown and paused the consumer.
    Blown,
}

impl Fuse {
    /// The word used in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Intact => "intact",
            Self::Blown => "blown",
        }
    }
}

/// How the breaker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Breaker {
    /// There is none, or the consumer runs elsewhere.
    None,
    /// Attempts go through.
    Closed,
    /// No attempts for a while.
    Open,
    /// A few attempts find out whether it can close.
    HalfOpen,
}

impl Breaker {
    /// The word used in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
        }
    }
}

/// That the process is alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// The version of Lazaret.
    pub version: String,
}

/// Whether work is done, and why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Readiness {
    /// The store answers, and every consumer runs or is paused on purpose.
    pub ready: bool,
    /// Why not.
    pub reasons: Vec<String>,
}
