//! The contract of a source: delivers messages and commits positions.

mod ingest;
pub mod jsonl;
mod new_message;
mod ownership;

use std::error::Error as StdError;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;

use crate::incarnation::IncarnationRegistry;
use crate::message::{Message, Partition, Position};
use crate::store::StoreError;

pub use ingest::{Backlog, Ingest};
pub use new_message::{NewMessage, Posted};
pub use ownership::Ownership;

/// A partition that this consumer may read from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The partition.
    pub partition: Partition,
    /// Offsets beyond the committed position that were settled before, as the last commit said. Their messages are
    /// not handled again.
    pub settled: Vec<RangeInclusive<u64>>,
    /// How long the partition is certainly owned. Default: until it is revoked or lost, as nobody else can take it before.
    pub ownership: Ownership,
}

impl Assignment {
    /// An assignment of a partition that nobody else can take before it is revoked or lost.
    ///
    /// ```
    /// use lazaret_core::Partition;
    /// use lazaret_core::source::Assignment;
    /// assert!(Assignment::new(Partition::new("orders", 0), Vec::new()).ownership.is_certain());
    /// ```
    pub fn new(partition: Partition, settled: Vec<RangeInclusive<u64>>) -> Self {
        Self { partition, settled, ownership: Ownership::default() }
    }
}

/// The settled position of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The partition.
    pub partition: Partition,
    /// The last message of the contiguous settled prefix. Everything up to and including it is settled (I1). `None` when
    /// nothing is settled since the assignment but what lies beyond: the committed position stays.
    pub position: Option<Position>,
    /// Offsets beyond it that are settled too, in order, bounded. A source that cannot keep them drops them; that
    /// costs repetitions, nothing else.
    pub settled_beyond: Vec<RangeInclusive<u64>>,
}

/// An event of a source.
#[derive(Debug)]
pub enum SourceEvent {
    /// Messages, of one or several partitions, each partition's in order.
    Messages(Vec<Message>),
    /// Partitions were given to this consumer. Messages of them follow.
    Assigned(Vec<Assignment>),
    /// The streams of these partitions began a new [incarnation](crate::incarnation), which the source has recorded. Their assignment
    /// follows.
    Recreated(Vec<Partition>),
    /// Partitions will be revoked. The engine settles what it can, commits, and calls [`Source::revoked`].
    Revoking(Vec<Partition>),
    /// Partitions are gone already. Nothing may be committed for them.
    Lost(Vec<Partition>),
    /// A finite source was read to its end. Nothing follows but rebalances.
    End,
    /// The result of the commit [started](Source::begin_commit) last. An error, temporary or not, costs repetitions only: the engine
    /// commits these positions again.
    Committed(Result<(), SourceError>),
}

/// The error of a source.
#[derive(Debug)]
pub struct SourceError {
    kind: SourceErrorKind,
    context: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceErrorKind {
    Waiting,
    Temporary,
    Permanent,
}

impl SourceError {
    /// Nothing is wrong: what is to be read does not exist yet, and the source was asked to wait for it. Temporary.
    pub fn waiting(context: impl Into<String>) -> Self {
        Self { kind: SourceErrorKind::Waiting, context: context.into(), source: None }
    }

    /// Trouble that may pass: the engine waits and calls again.
    pub fn temporary(context: impl Into<String>) -> Self {
        Self { kind: SourceErrorKind::Temporary, context: context.into(), source: None }
    }

    /// A permanent error: the consumer stops with it.
    pub fn permanent(context: impl Into<String>) -> Self {
        Self { kind: SourceErrorKind::Permanent, context: context.into(), source: None }
    }

    /// The same error with the driver's error underneath.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns whether a retry may help.
    pub const fn is_temporary(&self) -> bool {
        matches!(self.kind, SourceErrorKind::Waiting | SourceErrorKind::Temporary)
    }

    /// Returns whether the source only waits for what it is to read.
    pub const fn is_waiting(&self) -> bool {
        matches!(self.kind, SourceErrorKind::Waiting)
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            SourceErrorKind::Waiting => f.write_str(&self.context),
            SourceErrorKind::Temporary | SourceErrorKind::Permanent => {
                write!(f, "source failed: {}", self.context)
            }
        }
    }
}

/// A source that keeps something in a store fails with it. What may pass for the store may pass for the source.
impl From<StoreError> for SourceError {
    fn from(error: StoreError) -> Self {
        let context = error.to_string();
        let same =
            if error.kind().is_temporary() { Self::temporary(context) } else { Self::permanent(context) };
        same.with_source(error)
    }
}

impl StdError for SourceError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// A source of messages.
///
/// The engine owns the source and calls it from one task:
/// - [`next`](Self::next) is cancelled and called again at any time; nothing may be lost by that.
/// - The engine goes on calling `next` while everything is paused, so a group member stays alive.
/// - Messages of a partition come in order, from behind the last committed position, after `Assigned` and before
///   `Revoking` or `Lost` of that partition. A source without groups assigns all it has first.
/// - What is not committed is delivered again after the next assignment.
/// - A source that can lose partitions while its process is stopped says in each assignment [how long it is sure](Ownership), and
///   asks its coordinator again in time.
#[async_trait]
pub trait Source: Send + 'static {
    /// Gives the source the [incarnations](crate::incarnation) of streams that its consumer has seen. Called once, before anything else.
    /// A source whose positions can begin anew under the same name keeps it, and puts the number of the incarnation into
    /// each partition and position.
    fn attach(&mut self, registry: Arc<dyn IncarnationRegistry>) {
        drop(registry);
    }

    /// Waits for the next event. Cancellation safe.
    async fn next(&mut self) -> Result<SourceEvent, SourceError>;

    /// Makes positions durable. A commit for a partition that is no longer assigned is ignored.
    /// A commit that was started is complete when this returns, and no longer reported.
    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError>;

    /// Starts a commit without waiting for it, for sources that commit over a network. [`next`](Self::next) reports the result,
    /// once, as [`SourceEvent::Committed`]; no other commit is started before that.
    /// A source that cannot do so gives the commits back, and the engine calls [`commit`](Self::commit).
    fn begin_commit(&mut self, commits: Vec<Commit>) -> Result<(), Vec<Commit>> {
        Err(commits)
    }

    /// Stops delivering messages of these partitions until they are resumed. Idempotent; forgotten when a partition
    /// is assigned again.
    fn pause(&mut self, partitions: &[Partition]);

    /// Delivers messages of these partitions again, going on where it stopped.
    fn resume(&mut self, partitions: &[Partition]);

    /// Delivers these partitions again from behind the last committed position, beginning with a new `Assigned`, as if
    /// they had been revoked. Partitions that are not assigned are ignored. The engine calls it when the store reports that
    /// another instance took a grant while the source still owns the partition.
    fn rewind(&mut self, partitions: &[Partition]);

    /// Confirms that the engine is done with partitions that were [`Revoking`](SourceEvent::Revoking).
    async fn revoked(&mut self, partitions: &[Partition]) -> Result<(), SourceError>;

    /// Leaves: the last call. Positions are committed before it.
    async fn close(&mut self) -> Result<(), SourceError>;

    /// The number of messages that are not delivered yet, if it is known.
    fn lag(&self) -> Option<u64> {
        None
    }
}
