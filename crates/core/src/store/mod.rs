//! The store contract: durable letters, sequences, leases, operations and audit.
//!
//! A store holds letters in sequences. One row per open sequence makes the frequent requests cheap: check whether it is open,
//! append to it, find the due ones, advance it. The store guarantees order and exclusion:
//!
//! - **Every call is atomic per sequence.** A failure can interrupt a call that touches several sequences between two of them,
//!   never inside one. Stores without multi-document transactions can implement this.
//! - **Appending and closing exclude each other.** Either the append finds the sequence open and the letter is behind
//!   the others, or the response is [`Placed::NotOpen`]. No letter is stranded, none overtakes.
//! - **Errors state what is known** ([`Certainty`]). Every call that the engine repeats is idempotent: a second
//!   hand-off of one message finds the first letter, a second settlement of one letter is fenced or not found.
//! - **Late owners are fenced.** Leases carry a number that grows with every claim; a write with an old number changes
//!   nothing. The same holds for partition grants.
//! - **The store's clock** determines the end of leases and due times. [Values](KeyValue) expire by the time that passes, whatever that
//!   clock is set to ([`ExpiryClock`]).
//!
//! The conformance suite of `lazaret-testkit` tests this contract.

mod audit;
mod capabilities;
mod change_feed;
mod changes;
mod checkpoints;
mod dedupe;
mod digest_key;
mod draft_limits;
mod error;
mod expiry;
#[doc(hidden)]
pub mod forward;
mod identity;
mod incarnations;
mod instances;
mod key_value;
mod letters;
mod locks;
mod machine;
mod occupancy;
mod operations;
mod outbox;
mod payload_digest;
pub mod rules;
mod trend;
mod triage;

pub use audit::{Actor, Audit, AuditCheck, AuditEntry, AuditHead, AuditNote, audit_hash_text};
pub use capabilities::Capabilities;
pub use change_feed::{ChangeFeed, Changes, Topic};
pub use changes::{COMMENT_CHARS, COMMENTS_LIMIT, EDITS_BYTES, EDITS_LIMIT, KeptEdits};
pub use checkpoints::{Anchor, Checkpoint, Checkpoints, Reset};
pub use dedupe::{Dedupe, DedupeClaim, dedupe_claim, dedupe_key};
pub use digest_key::{DigestKey, stored_digest_key};
pub use draft_limits::{DraftLimits, DraftUnderWay};
pub use error::{Certainty, ErrorKind, Result, StoreError};
pub use expiry::{ExpiryClock, ExpiryTime};
pub use forward::Call;
pub use identity::store_id;
pub use incarnations::{begin_incarnation, read_incarnations};
pub use instances::{Instance, Instances, SeenInstance};
pub use key_value::{Expect, KeyValue, Reading, Versioned, Written};
pub use letters::{
    Act, AttemptNote, Claim, Cleared, Counts, Dismissal, Grant, GrantFence, HandOff, HeadsPage, Lease,
    LeaseUse, LetterStore, Limits, OpenedPage, Pause, PauseScope, Placed, Placement, Requeue, Settled,
    Settlement,
};
pub use locks::{LockState, Locks};
pub use machine::{OperationMachine, PlanHasher, plan_hash};
pub use occupancy::Occupancy;
pub use operations::{
    Action, Command, Exclusion, InvalidNumber, InvalidRollout, Item, Operation, OperationId, OperationState,
    Operations, OperationsPage, Outcome, Plan, PlanId, PlanRequest, PolledWork, RolloutPolicy, Selection,
    WorkItem,
};
pub use outbox::{End, EndsPage, Outbox, is_end};
pub use payload_digest::{InvalidDigest, PayloadDigest};
pub use trend::Trend;
pub use triage::{
    Change, Comment, Expired, GROUP_MESSAGE_BYTES, Group, GroupId, GroupsPage, GroupsRequest, InvalidGroupId,
    LettersPage, Matches, QueueSummary, Scrubbed, TREND_BUCKET_SECONDS, TREND_BUCKETS, Triage,
};

/// Everything that an engine needs from a store. Implemented for whatever implements the parts.
pub trait Store: LetterStore + Operations + Triage + Audit {}

impl<S: LetterStore + Operations + Triage + Audit + ?Sized> Store for S {}
