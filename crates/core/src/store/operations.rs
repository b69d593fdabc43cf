//! Plans and operations: doing something to many letters, durably and with care.
//!
//! A **plan** is a frozen set of letters: what came after the freeze is never touched. An **operation** carries a plan
//! out, letter by letter. Its state lives in the store and changes in the same step as the letters, so that a process may
//! die at any point: the next one goes on, every letter has exactly one outcome, and the counts are exact.
//!
//! The store decides what may be done now (schedule, approval, pause, ramp, stop rule, rate); the engine does it
//! ([`poll_work`](Operations::poll_work)). Acts are done by the store itself. Replays are handed out as claims under a lease
//! that remembers the operation: [`settle`](super::LetterStore::settle) under it writes the outcome down.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::audit::Actor;
use super::error::Result;
use super::letters::{Act, Claim};
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

/// A text that names no plan or operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} names no {what}, expected {prefix} and a number")]
pub struct InvalidNumber {
    /// The text.
    pub text: String,
    /// What was expected.
    pub what: &'static str,
    /// How it would have begun.
    pub prefix: &'static str,
}

numbered!(
    /// Names a plan.
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
    /// Names an operation.
    OperationId, "op_", "operation"
);

/// What an operation does to each letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Run it through its handler again.
    Retry,
    /// Take it out.
    Evict,
    /// Hold it until it is released.
    Park,
    /// Let the scheduler try it again, with fresh attempts.
    Release,
}

impl Action {
    /// Every action.
    pub const ALL: [Self; 4] = [Self::Retry, Self::Evict, Self::Park, Self::Release];

    /// What the store does to each letter; `None` for a replay, which is the engine's work.
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

/// Which letters a plan is about.
#[derive(Clone, Debug)]
pub enum Selection {
    /// Those that match. A query that names no state selects open letters.
    Query(Query),
    /// These. One that is named twice counts once.
    Letters(Vec<(QueueName, LetterId)>),
}

/// What to freeze.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// What is to be done.
    pub action: Action,
    /// To which letters.
    pub selection: Selection,
    /// How long the plan can be carried out.
    pub valid_for: Duration,
    /// A plan with more letters than this is refused (I7).
    pub max_letters: u64,
}

/// Why a letter that was selected is not part of a plan. The first that holds is the one that is told, in the order of
/// [`Exclusion::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exclusion {
    /// There is no such letter.
    NotFound,
    /// It is closed.
    Closed,
    /// It has been in that state already: parking what is parked.
    Already,
    /// It is part of another operation that is not over, and has no outcome there yet.
    InOperation,
    /// It is quarantined and the query did not ask for a state. Who names a letter has asked for it. Replays only.
    Quarantined,
    /// Its payload was left out, so there is nothing to run. Replays only.
    NoPayload,
    /// An earlier letter of its sequence is open and is not part of the plan, because it was not selected or is excluded
    /// itself: this one may not overtake it (I2). Replays only.
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

/// A frozen set of letters and what is to be done with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its name.
    pub id: PlanId,
    /// What is to be done.
    pub action: Action,
    /// The query as it was written; `None` when letters were named.
    pub query: Option<String>,
    /// How many letters.
    pub letters: u64,
    /// Of how many sequences.
    pub sequences: u64,
    /// How many selected letters are not part of it, by reason, most first, equal ones in the order of
    /// [`Exclusion::ALL`].
    pub excluded: Vec<(Exclusion, u64)>,
    /// Over the action and the ids in their order ([`plan_hash`](super::plan_hash)): two plans with one hash do the same.
    pub hash: String,
    /// Who froze it.
    pub by: Actor,
    /// When.
    pub frozen_at: Timestamp,
    /// Until when it can be carried out.
    pub expires_at: Timestamp,
}

impl Plan {
    /// How long a plan that was not carried out can still be looked at after it has expired.
    pub const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

    /// How many such plans a freeze forgets at most.
    pub const FORGOTTEN_AT_ONCE: usize = 2;
}

/// One letter of a plan or an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its place, from 0: the order in which letters have their turn. Letters of one sequence stand together, in its order;
    /// sequences stand in the order in which their first letters were taken in.
    pub ordinal: u64,
    /// Its queue.
    pub queue: QueueName,
    /// Its sequence.
    pub sequence: SequenceId,
    /// The letter.
    pub letter: LetterId,
    /// What became of it; `None` when its turn has not come, or is not over.
    pub outcome: Option<Outcome>,
}

/// What became of one letter in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Done: handled, or changed as asked. A replayed letter that its enqueue policy evicted or skipped has left the queue
    /// as decided, and counts as done.
    Ok,
    /// The handler failed again.
    FailedAgain,
    /// Not tried: an earlier letter of its sequence failed in this operation.
    SkippedBehindFailed,
    /// Not tried: it was closed, moved or changed by somebody else meanwhile, or was part of an earlier operation.
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

/// How an operation goes about its letters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RolloutPolicy {
    /// Letters per second over all queues and processes; `None` as fast as it goes. What was not used for a while can be
    /// used at once, but never more than a second's worth, or one letter.
    pub rate: Option<f64>,
    /// How many letters each stage takes; what is left after the last stage is a stage of its own. Empty: all at once.
    /// A stage begins when every letter of the stages before has its outcome and the stop rule allows it.
    pub ramp: Vec<u64>,
    /// The operation pauses when more than this share of the letters tried failed again, 0.05 for 5 %. It is looked at
    /// after every stage, and within a stage once 20 letters were tried. When no letter is left, the operation is done,
    /// whatever the share.
    pub stop_at: Option<f64>,
    /// Not before this time.
    pub start_at: Option<Timestamp>,
    /// A second person must approve first.
    pub needs_approval: bool,
}

impl Default for RolloutPolicy {
    /// 50 a second, in stages of 1, 5, 25, 100 and the rest, stopping at 5 %, at once, without approval.
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
    /// How many tries it takes before the stop rule is looked at within a stage.
    pub const STOP_AFTER: u64 = 20;

    /// Everything at once: no rate, no ramp, no stop rule.
    pub const fn unlimited() -> Self {
        Self { rate: None, ramp: Vec::new(), stop_at: None, start_at: None, needs_approval: false }
    }

    /// What is wrong with it, if anything.
    pub fn check(&self) -> std::result::Result<(), String> {
        if let Some(rate) = self.rate.filter(|rate| !rate.is_finite() || *rate <= 0.0) {
            return Err(format!("a rate of {rate} a second would never end; leave it out for no limit"));
        }
        if self.ramp.contains(&0) {
            return Err("a stage of the ramp with 0 letters does nothing".to_owned());
        }
        if let Some(stop_at) = self.stop_at.filter(|share| !(0.0..=1.0).contains(share)) {
            return Err(format!("stop-at is a share between 0 % and 100 %, not {stop_at}"));
        }
        Ok(())
    }

    /// How many of `total` letters may have their turn in the stages up to and including this one, from 0.
    pub fn allowance(&self, stage: usize, total: u64) -> u64 {
        if stage >= self.ramp.len() {
            return total;
        }
        self.ramp[..=stage].iter().fold(0_u64, |sum, letters| sum.saturating_add(*letters)).min(total)
    }

    /// Whether the stop rule says to stop after `failed` of `tried` letters failed again. `stage_over`: every letter of the
    /// stage has its outcome.
    pub fn stops(&self, tried: u64, failed: u64, stage_over: bool) -> bool {
        let Some(stop_at) = self.stop_at else { return false };
        tried > 0 && (stage_over || tried >= Self::STOP_AFTER) && (failed as f64) > stop_at * (tried as f64)
    }
}

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperationState {
    /// A second person must approve it.
    AwaitingApproval,
    /// Its time has not come.
    Scheduled,
    /// Under way.
    Running,
    /// Held by a person or by the stop rule.
    Paused,
    /// Every letter has its outcome.
    Done,
    /// Ended by a person; letters whose turn had not come were left alone.
    Cancelled,
    /// The second person said no.
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

    /// Whether nothing new will be begun in it. Letters that were in work when it was cancelled are still finished and
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

/// A plan that is carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// Its name.
    pub id: OperationId,
    /// The plan.
    pub plan: PlanId,
    /// What is done.
    pub action: Action,
    /// How.
    pub rollout: RolloutPolicy,
    /// Where it stands.
    pub state: OperationState,
    /// Why it stands there, when that needs a word: who paused it, what the stop rule found.
    pub note: Option<String>,
    /// The stage of the ramp that it is in, from 0.
    pub stage: usize,
    /// How many letters it is about.
    pub letters: u64,
    /// How many went well.
    pub ok: u64,
    /// How many failed again.
    pub failed_again: u64,
    /// How many were not tried.
    pub skipped: u64,
    /// Who began it.
    pub by: Actor,
    /// Who approved or rejected it.
    pub approved_by: Option<Actor>,
    /// When it was begun.
    pub created_at: Timestamp,
    /// When the last thing happened in it.
    pub updated_at: Timestamp,
    /// When it was over.
    pub ended_at: Option<Timestamp>,
}

impl Operation {
    /// How many letters were given to their handler, or acted upon.
    pub const fn sent(&self) -> u64 {
        self.ok + self.failed_again
    }
}

/// What a person tells an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// Hold it. Letters that are being tried are finished.
    Pause,
    /// Go on. The stop rule counts anew from here.
    Resume,
    /// End it. Letters that are being tried are finished and counted; all others are skipped.
    Cancel,
    /// Say yes, as a second person.
    Approve,
    /// Say no, as a second person.
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

/// A page of operations, the latest first.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationsPage {
    /// The operations.
    pub operations: Vec<Operation>,
    /// What to pass to get the next page; `None` at the end.
    pub next: Option<OperationId>,
}

/// A letter whose turn in a replay has come. Its sequence is leased: try the head, then settle it under the lease.
///
/// The lease ends with the settlement, which is answered with [`Blocked`](super::Settled::Blocked) when letters are left
/// in the sequence: each has a turn of its own. A lease that is released or runs out leaves the letter without an outcome,
/// and its turn comes again.
#[derive(Clone, Debug)]
pub struct WorkItem {
    /// The operation that it belongs to.
    pub operation: OperationId,
    /// The right to the sequence, and the letter at its head.
    pub claim: Claim,
}

/// What [`Operations::poll_work`] found to do.
#[derive(Clone, Debug, Default)]
pub struct PolledWork {
    /// Letters to try.
    pub items: Vec<WorkItem>,
    /// How many letters got their outcome in this call: acts that were done, letters that were skipped.
    pub settled: u64,
    /// When it is worth asking again, if nothing else happens before: now when `limit` was reached, else the earliest of
    /// schedule and rate, or a little later when letters are in work. `None` when no operation of this queue can go on by
    /// itself.
    pub again_at: Option<Timestamp>,
}

/// How many operations are looked at in one step for those that are under way.
const LOOKED_AT: usize = 500;

/// Plans and operations.
#[async_trait]
pub trait Operations: Send + Sync + 'static {
    /// Freezes a plan, in one step: the letters that are selected at this moment. Changes nothing else.
    ///
    /// For a replay the letters of a sequence must be its first ones without a gap; those behind an open letter that is not
    /// part of the plan are excluded. `Invalid` when more than `max_letters` are left.
    ///
    /// Plans that were not carried out are forgotten some time after they have expired ([`Plan::KEPT_FOR`]), a few with each
    /// freeze (I7).
    async fn freeze(&self, request: &PlanRequest, by: &Actor) -> Result<Plan>;

    /// A plan.
    async fn plan(&self, id: PlanId) -> Result<Option<Plan>>;

    /// The letters of a plan with the outcomes that they have in its operation, if it is carried out: from this ordinal on, in
    /// order, at most `limit`; none when there is no such plan.
    async fn outcomes(&self, plan: PlanId, from: u64, limit: usize) -> Result<Vec<Item>>;

    /// Begins to carry out a plan, once: a plan that was carried out is refused as `Conflict`, and so is one that has
    /// expired; `NotFound` when there is none. Audited. Letters that meanwhile became part of another operation are skipped
    /// as changed if that is not over and they have no outcome there when their turn comes: of two operations, the one
    /// that was begun first has the letter. `Invalid` for a rollout that makes no sense. One about no letters is done at
    /// once.
    async fn begin(&self, plan: PlanId, rollout: &RolloutPolicy, by: &Actor) -> Result<Operation>;

    /// All operations, the latest first, in pages: those before `before`.
    async fn operations(&self, before: Option<OperationId>, limit: usize) -> Result<OperationsPage>;

    /// Tells an operation something, audited with the state before and after. `Conflict` when it does not fit its state;
    /// `Denied` when the person who began it approves or rejects it; `NotFound` when there is none.
    async fn command(&self, id: OperationId, command: Command, by: &Actor) -> Result<Operation>;

    /// Takes the next letters of all operations that have a turn for this queue now, at most `limit`; the operation that was
    /// served longest ago comes first. Moves operations on: from scheduled to running, to the next stage, to paused by the
    /// stop rule (audited in Lazaret's name), to done. So does every settlement under a lease of theirs.
    ///
    /// Acts are done at once, each with its line in the audit (by the person who began the operation, via
    /// `operation op_N`) and its outcome in the same step. A letter whose state does not allow the act any more is skipped
    /// as changed; the head of a sequence that somebody holds is left for later.
    ///
    /// Replays: claims the sequences, one letter each; a sequence that somebody holds, or that is paused, is left for
    /// later. A letter that by now is closed, quarantined or without its payload, or is not the head although its turn has
    /// come, is skipped as changed.
    ///
    /// Once a letter of a sequence went well, those behind it that are part of the same operation are kept for it until
    /// they have their outcomes or it is over: [`claim_due`](super::LetterStore::claim_due) leaves them out, so that
    /// nothing goes around its stages and its rate.
    ///
    /// Only letters that are handed out or acted upon count for the rate, not those that are skipped.
    async fn poll_work(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<PolledWork>;

    /// The letters of a plan as they were frozen, without outcomes.
    async fn plan_items(&self, id: PlanId, from: u64, limit: usize) -> Result<Vec<Item>> {
        let mut items = self.outcomes(id, from, limit).await?;
        items.iter_mut().for_each(|item| item.outcome = None);
        Ok(items)
    }

    /// An operation.
    async fn operation(&self, id: OperationId) -> Result<Option<Operation>> {
        let page = self.operations(Some(OperationId(id.0.saturating_add(1))), 1).await?;
        Ok(page.operations.into_iter().find(|operation| operation.id == id))
    }

    /// The letters of an operation with their outcomes, from this ordinal on, in order, at most `limit`; none when there is
    /// no such operation.
    async fn items(&self, id: OperationId, from: u64, limit: usize) -> Result<Vec<Item>> {
        match self.operation(id).await? {
            Some(operation) => self.outcomes(operation.plan, from, limit).await,
            None => Ok(Vec::new()),
        }
    }

    /// Operations that are not over, the latest first, at most `limit`, however many were begun since.
    ///
    /// Looks through all operations; a store that can tell them apart does better.
    async fn under_way(&self, limit: usize) -> Result<Vec<Operation>> {
        let (mut found, mut before) = (Vec::new(), None);
        loop {
            let page = self.operations(before, LOOKED_AT).await?;
            found.extend(page.operations.into_iter().filter(|operation| !operation.state.is_over()));
            before = page.next;
            if before.is_none() || found.len() >= limit {
                found.truncate(limit);
                return Ok(found);
            }
        }
    }
}
