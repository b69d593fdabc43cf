//! Plans and operations: bulk changes of letters, durable and rate-limited.
//!
//! A **plan** is a frozen set of letters: letters that arrive after the freeze are never touched. An **operation** executes a
//! plan, letter by letter. Its state is stored and changes in the same transaction as the letters, so that a process may
//! crash at any point: the next one continues, every letter has exactly one outcome, and the counts are exact.
//!
//! The store decides which letters may run now (schedule, approval, pause, ramp, stop rule, rate); the engine runs them
//! ([`poll_work`](Operations::poll_work)). The store performs acts itself. Replays are returned as claims under a lease
//! that refers to the operation: [`settle`](super::LetterStore::settle) under it records the outcome, and
//! [`settle_and_continue`](super::LetterStore::settle_and_continue) also takes the next letter of the sequence.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::audit::Actor;
use super::error::Result;
use super::letters::{Act, Claim};
use super::payload_digest::PayloadDigest;
use crate::letter::LetterId;
use crate::message::QueueName;
use crate::query::Query;
use crate::sequence::SequenceId;

macro_rules! numbered {
    ($(#[$text:meta])* $name:ident, $prefix:literal, $what:literal) => {
        $(#[$text])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidNumber;

            fn from_str(text: &str) -> std::result::Result<Self, InvalidNumber> {
                let number = text.strip_prefix($prefix).and_then(|number| number.parse().ok());
                let wrong = || InvalidNumber { text: text.to_owned(), what: $what, prefix: $prefix };
                number.map(Self).ok_or_else(wrong)
            }
        }
    };
}

/// A text that is not the id of a plan or operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {what} id {text:?}, expected {prefix} and a number")]
pub struct InvalidNumber {
    /// The text.
    pub text: String,
    /// The expected kind of id.
    pub what: &'static str,
    /// The expected prefix.
    pub prefix: &'static str,
}

numbered!(
    /// The id of a plan.
    ///
    /// ```
    /// use lazaret_core::store::PlanId;
    /// assert_eq!(PlanId(7).to_string(), "p_7");
    /// assert_eq!("p_7".parse::<PlanId>().unwrap(), PlanId(7));
    /// assert!("7".parse::<PlanId>().is_err());
    /// ```
    PlanId, "p_", "plan"
);
numbered!(
    /// The id of an operation.
    OperationId, "op_", "operation"
);

/// The action of an operation on each letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Run it through its handler again.
    Retry,
    /// Remove it from its sequence.
    Evict,
    /// Hold it until it is released.
    Park,
    /// Let the scheduler retry it, with fresh attempts.
    Release,
}

impl Action {
    /// Every action.
    pub const ALL: [Self; 4] = [Self::Retry, Self::Evict, Self::Park, Self::Release];

    /// The store's act on each letter; `None` for a replay, which the engine performs.
    pub const fn act(self) -> Option<Act> {
        match self {
            Self::Retry => None,
            Self::Evict => Some(Act::Evict),
            Self::Park => Some(Act::Park),
            Self::Release => Some(Act::Release),
        }
    }

    /// The name used in output and the audit.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Evict => "evict",
            Self::Park => "park",
            Self::Release => "release",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The letters that a plan selects.
#[derive(Clone, Debug)]
pub enum Selection {
    /// Letters that match. A query without a state selects open letters.
    Query(Query),
    /// These letters. Duplicates count once.
    Letters(Vec<(QueueName, LetterId)>),
}

/// A request to freeze a plan.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// The action.
    pub action: Action,
    /// The selected letters.
    pub selection: Selection,
    /// How long an operation can be started from the plan.
    pub valid_for: Duration,
    /// A plan with more letters is refused (I7).
    pub max_letters: u64,
}

/// The reason why a selected letter is not part of a plan. If several hold, the first in the order of
/// [`Exclusion::ALL`] is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exclusion {
    /// It does not exist.
    NotFound,
    /// It is closed.
    Closed,
    /// It is in the target state already, for example parked.
    Already,
    /// It is part of another unfinished operation and has no outcome there yet.
    InOperation,
    /// It is quarantined, and was selected by a query without a state. Replays only.
    Quarantined,
    /// Its payload was left out, so it cannot run. Replays only.
    NoPayload,
    /// An earlier letter of its sequence is open and not part of the plan, because it was not selected or is excluded
    /// itself: this letter may not overtake it (I2). Replays only.
    Behind,
}

impl Exclusion {
    /// Every reason.
    pub const ALL: [Self; 7] = [
        Self::NotFound,
        Self::Closed,
        Self::Already,
        Self::InOperation,
        Self::Quarantined,
        Self::NoPayload,
        Self::Behind,
    ];

    /// The name used in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Behind => "behind",
            Self::InOperation => "in-operation",
            Self::Quarantined => "quarantined",
            Self::NoPayload => "no-payload",
            Self::Already => "already",
            Self::NotFound => "not-found",
        }
    }
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A frozen set of letters and the action on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its id.
    pub id: PlanId,
    /// The action.
    pub action: Action,
    /// The query text; `None` if letters were selected by id.
    pub query: Option<String>,
    /// Number of letters.
    pub letters: u64,
    /// Number of sequences.
    pub sequences: u64,
    /// Number of open letters behind those of the plan in the same sequences, which may run after them; 0 for `park`.
    pub followers: u64,
    /// Number of excluded letters by reason, most frequent first, ties in the order of
    /// [`Exclusion::ALL`].
    pub excluded: Vec<(Exclusion, u64)>,
    /// Hash of the action, and of the ids and payloads in order ([`plan_hash`](super::plan_hash)): plans with equal hashes are
    /// equivalent. [`erased_hash`](Self::erased_hash) after one of its letters was erased.
    pub hash: String,
    /// The author.
    pub by: Actor,
    /// When it was frozen.
    pub frozen_at: Timestamp,
    /// Until when an operation can be started from it.
    pub expires_at: Timestamp,
}

impl Plan {
    /// How long a plan without an operation is kept after it has expired. Short: an expired plan counts for no limit, and it is as large
    /// as its letters are many.
    pub const RETENTION: Duration = Duration::from_secs(60);

    /// Maximum number of such plans that one freeze deletes.
    pub const DELETED_PER_FREEZE: usize = 2;

    /// The hash of a plan after one of its letters was [erased](super::Triage::erase). The hash that it had covers the payload, so a guess
    /// could be compared with it.
    pub fn erased_hash(id: PlanId) -> String {
        format!("erased:{}", id.0)
    }

    /// Returns `true` if no operation can be started from it any more, because its time is over.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at <= now
    }
}

/// One letter of a plan or an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its position, from 0: the order of execution. Letters of one sequence are adjacent, in its order;
    /// sequences are in the order in which their first letters were enqueued.
    pub ordinal: u64,
    /// Its queue.
    pub queue: QueueName,
    /// Its sequence.
    pub sequence: SequenceId,
    /// The letter.
    pub letter: LetterId,
    /// Its payload when the plan was frozen; a letter with another payload is skipped as changed. That of no payload after the letter was
    /// [erased](super::Triage::erase). `None` in a plan of an earlier version, which recorded none.
    pub digest: Option<PayloadDigest>,
    /// Its outcome; `None` before its attempt and while it is in flight.
    pub outcome: Option<Outcome>,
}

/// The outcome of one letter in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Done: handled, or changed as requested. Includes a replayed letter that its enqueue policy evicted or skipped.
    Ok,
    /// The handler failed again.
    FailedAgain,
    /// Not tried: an earlier letter of its sequence failed in this operation.
    SkippedBehindFailed,
    /// Not tried: it was closed, moved or changed meanwhile, or was part of an earlier operation.
    SkippedChanged,
    /// Not tried: the operation was cancelled or rejected.
    SkippedCancelled,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 5] = [
        Self::Ok,
        Self::FailedAgain,
        Self::SkippedBehindFailed,
        Self::SkippedChanged,
        Self::SkippedCancelled,
    ];

    /// The name used in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::FailedAgain => "failed-again",
            Self::SkippedBehindFailed => "skipped-behind-failed",
            Self::SkippedChanged => "skipped-changed",
            Self::SkippedCancelled => "skipped-cancelled",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The pace and the safeguards of an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RolloutPolicy {
    /// Letters per second over all queues and processes, including those behind the letters of the plan, which run after them;
    /// `None` for no limit. Unused allowance accumulates up to one letter and a quarter of what a second has beyond that: 3 letters for 9
    /// a second.
    pub rate: Option<f64>,
    /// Number of letters in each stage; the letters after the last stage are a stage of their own. Empty: a single stage.
    /// A stage starts when every letter of the stages before has its outcome and the stop rule allows it.
    pub ramp: Vec<u64>,
    /// The operation pauses if more than this share of the letters tried failed again, 0.05 for 5 %. It is evaluated
    /// after every stage, and within a stage after 20 letters. Without remaining letters, the operation is done,
    /// whatever the share.
    pub stop_at: Option<f64>,
    /// Earliest start.
    pub start_at: Option<Timestamp>,
    /// A second person must approve first.
    pub needs_approval: bool,
}

impl Default for RolloutPolicy {
    /// 50 a second, in stages of 1, 5, 25, 100 and the rest, stop at 5 %, immediate start, no approval.
    fn default() -> Self {
        Self {
            rate: Some(50.0),
            ramp: vec![1, 5, 25, 100],
            stop_at: Some(0.05),
            start_at: None,
            needs_approval: false,
        }
    }
}

impl RolloutPolicy {
    /// Number of letters after which the stop rule is evaluated within a stage.
    pub const STOP_AFTER: u64 = 20;

    /// All letters at once: no rate, no ramp, no stop rule.
    pub const fn unlimited() -> Self {
        Self { rate: None, ramp: Vec::new(), stop_at: None, start_at: None, needs_approval: false }
    }

    /// Validates the policy.
    pub fn check(&self) -> std::result::Result<(), InvalidRollout> {
        if let Some(rate) = self.rate.filter(|rate| !rate.is_finite() || *rate <= 0.0) {
            return Err(InvalidRollout::Rate(rate));
        }
        if self.ramp.contains(&0) {
            return Err(InvalidRollout::EmptyStage);
        }
        if let Some(stop_at) = self.stop_at.filter(|share| !(0.0..=1.0).contains(share)) {
            return Err(InvalidRollout::StopAt(stop_at));
        }
        Ok(())
    }

    /// How many of `total` letters may run in the stages up to and including this one, from 0.
    pub fn allowance(&self, stage: usize, total: u64) -> u64 {
        if stage >= self.ramp.len() {
            return total;
        }
        self.ramp[..=stage].iter().fold(0_u64, |sum, letters| sum.saturating_add(*letters)).min(total)
    }

    /// `true` if the stop rule applies after `failed` of `tried` letters failed again. `stage_over`: every letter of the
    /// stage has its outcome.
    pub fn stops(&self, tried: u64, failed: u64, stage_over: bool) -> bool {
        let Some(stop_at) = self.stop_at else { return false };
        tried > 0 && (stage_over || tried >= Self::STOP_AFTER) && (failed as f64) > stop_at * (tried as f64)
    }
}

/// A value that a [`RolloutPolicy`] cannot have.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRollout {
    /// The rate.
    #[error("rate must be above 0 and finite, not {0}; omit it for no limit")]
    Rate(f64),
    /// A stage of the ramp has no letters.
    #[error("ramp must not contain a stage with 0 letters")]
    EmptyStage,
    /// The share of failures.
    #[error("stop-at must be between 0 % and 100 %, not {0}")]
    StopAt(f64),
}

/// The state of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperationState {
    /// A second person must approve it.
    AwaitingApproval,
    /// Its start time has not been reached.
    Scheduled,
    /// In progress.
    Running,
    /// Paused by a person or by the stop rule.
    Paused,
    /// Every letter has its outcome.
    Done,
    /// Ended by a person; letters that had not started were left unchanged.
    Cancelled,
    /// The second person rejected it.
    Rejected,
}

impl OperationState {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::AwaitingApproval,
        Self::Scheduled,
        Self::Running,
        Self::Paused,
        Self::Done,
        Self::Cancelled,
        Self::Rejected,
    ];

    /// The name used in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AwaitingApproval => "awaiting-approval",
            Self::Scheduled => "scheduled",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Rejected => "rejected",
        }
    }

    /// `true` if it starts no more letters. Letters that were in flight at its cancellation are still finished and
    /// counted.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Cancelled | Self::Rejected)
    }
}

impl fmt::Display for OperationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The first word of the note of an operation that the stop rule paused. Notes of people start with their command.
pub(super) const STOPPED: &str = "stopped";

/// How the reason begins for which Lazaret holds a scheduled operation.
pub(super) const HELD: &str = "held: ";

/// How the note begins of an operation that was approved after it was held.
pub(super) const APPROVED_AGAIN: &str = "approved again";

/// The execution of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// Its id.
    pub id: OperationId,
    /// The plan.
    pub plan: PlanId,
    /// The action.
    pub action: Action,
    /// The pace and the safeguards.
    pub rollout: RolloutPolicy,
    /// Its state.
    pub state: OperationState,
    /// The reason of the state, if any: who paused it, the stop rule's figures, or why there are no letters.
    pub note: Option<String>,
    /// The current stage of the ramp, from 0.
    pub stage: usize,
    /// Number of letters.
    pub letters: u64,
    /// Number of successes.
    pub ok: u64,
    /// Number of letters that failed again.
    pub failed_again: u64,
    /// Number of letters that were not tried.
    pub skipped: u64,
    /// The person who started it.
    pub by: Actor,
    /// The person who approved or rejected it.
    pub approved_by: Option<Actor>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

impl Operation {
    /// Number of letters that ran or were acted upon.
    pub const fn sent(&self) -> u64 {
        self.ok + self.failed_again
    }

    /// Who holds a scheduled operation, and why: nobody runs it for a person who may not start it any more. A held operation is
    /// [paused](Command::Pause) by this actor. Resumed, it asks for approval again.
    pub fn holder(why: &str) -> Actor {
        Actor::engine(format!("{HELD}{why}"))
    }

    /// `true` if Lazaret [holds](Self::holder) it.
    pub fn is_held(&self) -> bool {
        self.state == OperationState::Paused && self.held_note().is_some()
    }

    /// `true` if a second person has approved it after Lazaret held it.
    pub fn is_approved_again(&self) -> bool {
        self.note.as_deref().is_some_and(|note| note.starts_with(APPROVED_AGAIN))
    }

    /// Why it was held, from the note of the pause.
    pub(super) fn held_note(&self) -> Option<&str> {
        let by_lazaret = format!("paused by {}: ", Actor::engine("").who);
        self.note.as_deref()?.strip_prefix(&by_lazaret).filter(|why| why.starts_with(HELD))
    }

    /// `true` if the stop rule paused it, and no person.
    pub fn is_stopped(&self) -> bool {
        let by_rule = |note: &str| note.strip_prefix(STOPPED).is_some_and(|rest| rest.starts_with(": "));
        self.state == OperationState::Paused && self.note.as_deref().is_some_and(by_rule)
    }
}

/// A person's command to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// Pause it. Letters in flight are finished.
    Pause,
    /// Resume it. The stop rule is reset.
    Resume,
    /// Cancel it. Letters in flight are finished and counted; all others are skipped.
    Cancel,
    /// Approve it, as a second person.
    Approve,
    /// Reject it, as a second person.
    Reject,
}

impl Command {
    /// The name used in output and the audit.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
            Self::Approve => "approve",
            Self::Reject => "reject",
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A page of operations, the latest first.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationsPage {
    /// The operations.
    pub operations: Vec<Operation>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<OperationId>,
}

/// A letter to replay. Its sequence is leased: run the head, then settle it under the lease.
///
/// The lease ends with the settlement, whose result is [`Blocked`](super::Settled::Blocked) if letters remain
/// in the sequence: each is polled separately, or taken by the settlement of the one before it
/// ([`settle_and_continue`](super::LetterStore::settle_and_continue)). A lease that is released or expires leaves the letter without an
/// outcome, and it is polled again.
#[derive(Clone, Debug)]
pub struct WorkItem {
    /// The operation.
    pub operation: OperationId,
    /// The lease of the sequence, and the letter at its head.
    pub claim: Claim,
}

/// The result of [`Operations::poll_work`].
#[derive(Clone, Debug, Default)]
pub struct PolledWork {
    /// Letters to run.
    pub items: Vec<WorkItem>,
    /// Number of letters that got their outcome in this call: acts that were performed, letters that were skipped.
    pub settled: u64,
    /// When to poll again, unless something changes before: now if `limit` was reached, else the earliest of
    /// schedule and rate, or a short interval if letters are in flight. `None` if no operation of this queue can continue
    /// without a command.
    pub again_at: Option<Timestamp>,
}

/// Page size of the default search for unfinished operations.
const PAGE_SIZE: usize = 500;

/// Plans and operations.
#[async_trait]
pub trait Operations: Send + Sync + 'static {
    /// Freezes a plan of the currently selected letters. Changes nothing else.
    ///
    /// The plan is as the letters were at one time during the call. It exists completely or not at all: a store may write it in
    /// steps, so that other calls do not wait for a large one, but nothing of it is visible before the last step. What a crash leaves of an
    /// unfinished plan is deleted by later calls.
    ///
    /// For a replay the letters of a sequence must be its first ones without a gap; those behind an open letter outside of
    /// the plan are excluded. `Invalid` if more than `max_letters` remain.
    ///
    /// Plans without an operation are deleted some time after they have expired ([`Plan::RETENTION`]), a few with each
    /// freeze (I7).
    async fn freeze(&self, request: &PlanRequest, by: &Actor) -> Result<Plan>;

    /// The plan, if it exists.
    async fn plan(&self, id: PlanId) -> Result<Option<Plan>>;

    /// The plans from which an operation can be started: those that have none and have not expired
    /// ([`Plan::is_expired`]). Only those before `before`, the latest first, at most `limit`.
    async fn drafts(&self, before: Option<PlanId>, limit: usize) -> Result<Vec<Plan>>;

    /// The letters of a plan with their outcomes in its operation, if there is one: from this ordinal on, in
    /// order, at most `limit`; empty if the plan does not exist.
    async fn outcomes(&self, plan: PlanId, from: u64, limit: usize) -> Result<Vec<Item>>;

    /// Starts the operation of a plan, once and audited: `Conflict` for a plan that already has an operation or has
    /// expired; `NotFound` if it does not exist. Letters that are also part of another unfinished operation and have no
    /// outcome there are skipped as changed: of two operations, the one that was started first gets the letter.
    /// `Invalid` for an invalid rollout. An operation without letters is done at once, and its note says why it has none.
    async fn begin(&self, plan: PlanId, rollout: &RolloutPolicy, by: &Actor) -> Result<Operation>;

    /// All operations before `before`, the latest first, in pages.
    async fn operations(&self, before: Option<OperationId>, limit: usize) -> Result<OperationsPage>;

    /// Applies a command to an operation, audited with the state before and after. `Conflict` if its state does not allow it;
    /// `Denied` if the person who started it approves or rejects it; `NotFound` if it does not exist.
    async fn command(&self, id: OperationId, command: Command, by: &Actor) -> Result<Operation>;

    /// Takes the next letters of all operations that may run in this queue now, at most `limit`; the least recently
    /// served operation comes first. Advances operations: from scheduled to running, to the next stage, to paused by the
    /// stop rule (audited in Lazaret's name), to done. So does every settlement under one of their leases.
    ///
    /// Acts are performed at once, each with its audit line (by the person who started the operation, via
    /// `operation op_N`) and its outcome in the same transaction. A letter whose state no longer allows the act is skipped
    /// as changed, and so is one whose payload was edited; the head of a leased sequence is postponed.
    ///
    /// Replays: claims the sequences, one letter each; leased and paused sequences are
    /// postponed. A letter that is now closed, quarantined, edited or without its payload, or is not the head,
    /// is skipped as changed.
    ///
    /// After a success, the letters behind it that are part of the same operation are reserved for it until
    /// they have their outcomes or it is over: [`claim_due`](super::LetterStore::claim_due) skips them, so that
    /// they cannot bypass its stages and rate.
    ///
    /// Letters that run automatically because the operation closed or released the letters before them are no part of it and get no
    /// outcome, but its rate bounds their calls as well: they become due one after another.
    ///
    /// Only letters that run or are acted upon count against the rate, not skipped ones.
    async fn poll_work(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<PolledWork>;

    /// The letters of a plan as frozen, without outcomes.
    async fn plan_items(&self, id: PlanId, from: u64, limit: usize) -> Result<Vec<Item>> {
        let mut items = self.outcomes(id, from, limit).await?;
        items.iter_mut().for_each(|item| item.outcome = None);
        Ok(items)
    }

    /// The operation, if it exists.
    async fn operation(&self, id: OperationId) -> Result<Option<Operation>> {
        let page = self.operations(Some(OperationId(id.0.saturating_add(1))), 1).await?;
        Ok(page.operations.into_iter().find(|operation| operation.id == id))
    }

    /// The letters of an operation with their outcomes, from this ordinal on, in order, at most `limit`; empty if
    /// the operation does not exist.
    async fn items(&self, id: OperationId, from: u64, limit: usize) -> Result<Vec<Item>> {
        match self.operation(id).await? {
            Some(operation) => self.outcomes(operation.plan, from, limit).await,
            None => Ok(Vec::new()),
        }
    }

    /// Unfinished operations, the latest first, at most `limit`, however many were started since.
    ///
    /// The default reads all operations; stores with an index should override it.
    async fn under_way(&self, limit: usize) -> Result<Vec<Operation>> {
        let (mut found, mut before) = (Vec::new(), None);
        loop {
            let page = self.operations(before, PAGE_SIZE).await?;
            found.extend(page.operations.into_iter().filter(|operation| !operation.state.is_over()));
            before = page.next;
            if before.is_none() || found.len() >= limit {
                found.truncate(limit);
                return Ok(found);
            }
        }
    }
}
