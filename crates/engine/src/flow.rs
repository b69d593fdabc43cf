//! The values that flow between the intake, the shards and the tasks that feed them.
//!
//! ```text
//! intake ── ToShard ──► shard ── Notice ──► intake
//!              ▲
//!   scheduler, operations (stored runs), sequence sync (open sequences)
//! ```

use std::sync::Arc;

use lazaret_core::Message;

use crate::hash::SequenceHash;
use crate::mailbox::Mailbox;
use crate::ownership::PartitionOwnership;
use crate::stored::Run;

/// The mailboxes of all shards.
pub(crate) type Shards = Arc<[Arc<Mailbox<ToShard>>]>;

/// Identifies a tracked message of one assignment of one partition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) number: u64,
}

/// The outcome of a message's processing here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The message has its final or durable outcome.
    Settled,
    /// The message has no outcome here and will be delivered again.
    Abandoned,
    /// The message has no outcome here, because another instance owns the partition.
    Fenced,
}

/// The fate of a message, for the intake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice {
    pub(crate) ticket: Ticket,
    pub(crate) fate: Fate,
}

/// A message for the shard of its sequence.
pub(crate) struct Arrival {
    pub(crate) message: Message,
    pub(crate) ticket: Ticket,
    pub(crate) hash: SequenceHash,
    pub(crate) component: u32,
    /// `true` if the sequencing policy failed for the message.
    pub(crate) unsequenced: bool,
}

/// An item in the mailbox of a shard. Shards process them in order.
#[allow(clippy::large_enum_variant, reason = "nearly all are messages, and a box for each would cost more")]
pub(crate) enum ToShard {
    /// A message.
    Message(Arrival),
    /// A partition was assigned; its messages follow.
    Assigned(Arc<PartitionOwnership>),
    /// Sequences that are open in the store, up to a revision.
    Open { component: usize, sequences: Vec<SequenceHash>, revision: u64 },
    /// A stored sequence to run.
    Run(Box<Run>),
    /// A partition is being revoked: its messages that were not started are abandoned.
    Revoking { slot: u32, generation: u32 },
    /// A partition is revoked: its attempts that still run are dropped.
    Revoked,
}
