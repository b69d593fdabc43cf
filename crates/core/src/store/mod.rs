//! The durable side: what every store promises.
//!
//! A store holds letters in sequences. One row per open sequence makes the hot questions cheap: is it open, append
//! behind it, which is due, advance it. The engine asks; the store keeps order and exclusion:
//!
//! - **Every call is atomic per sequence.** A call that touches several sequences may be cut between two of them by
//!   a failure, never inside one. A store without multi-document transactions can keep this promise.
//! - **Appending and closing exclude each other.** Either the append finds the sequence open and the letter is behind
//!   the others, or it answers [`Placed::NotOpen`]. No letter is stranded, none overtakes.
//! - **Errors say what is known** ([`Certainty`]). Every call that the engine repeats is idempotent: a second
//!   hand-off of one message finds the first letter, a second settlement of one letter is fenced or not found.
//! - **Late owners are fenced.** Leases carry a number that grows with every claim; a write with an old one changes
//!   nothing. So do partition grants.
//! - **The store's clock decides** about leases and due times.
//!
//! The conformance suite of `lazaret-testkit` is the executable form of this text.

mod audit;
mod capabilities;
mod changes;
mod checkpoints;
mod dedupe;
mod error;
#[doc(hidden)]
pub mod forward;
mod key_value;
mod letters;
mod locks;
mod machine;
mod operations;
mod outbox;
pub mod rules;
mod trend;
mod triage;

pub use audit::{Actor, Audit, AuditCheck, AuditEntry, AuditNote};
pub use capabilities::Capabilities;
pub use changes::{COMMENT_BYTES, COMMENTS_LIMIT, EDITS_LIMIT};
pub use checkpoints::{Anchor, Checkpoint, Checkpoints, Reset};
pub use dedupe::{Dedupe, DedupeClaim, dedupe_claim, dedupe_key};
pub use error::{Certainty, ErrorKind, Result, StoreError};
pub use forward::Call;
pub use key_value::{Expect, KeyValue, Reading, Versioned, Written};
pub use letters::{
    Act, AttemptNote, Claim, Cleared, Counts, Grant, GrantFence, HandOff, HeadsPage, Lease, LetterStore,
    Limits, OpenedPage, Pause, PauseScope, Placed, Placement, Requeue, Settled, Settlement,
};
pub use locks::{LockState, Locks};
pub use machine::{OperationMachine, PlanHasher, plan_hash};
pub use operations::{
    Action, Command, Exclusion, InvalidNumber, Item, Operation, OperationId, OperationState, Operations,
    OperationsPage, Outcome, Plan, PlanId, PlanRequest, PolledWork, RolloutPolicy, Selection, WorkItem,
};
pub use outbox::{End, EndsPage, Outbox, is_end};
pub use trend::Trend;
pub use triage::{
    Change, Comment, Expired, GROUP_MESSAGE_BYTES, Group, GroupId, GroupsPage, GroupsRequest, InvalidGroupId,
    LettersPage, Matches, QueueSummary, TREND_BUCKET_SECONDS, TREND_BUCKETS, Triage,
};

/// Everything that an engine needs from a store. Implemented for whatever implements the parts.
pub trait Store: LetterStore + Operations + Triage + Audit {}

impl<S: LetterStore + Operations + Triage + Audit + ?Sized> Store for S {}
