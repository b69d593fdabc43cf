//! Decides whether an attempt may start: limits, due time, pauses, breaker, retry budget.
//!
//! All attempts are decided here: live messages, retries and replays. Callers differ in how they handle
//! an answer other than [`Start`](Admission::Start): a live message waits in its lane, a stored run
//! returns its lease.

use lazaret_core::policy::{Charge, Dimension, Limit};
use lazaret_core::{Message, SequenceId, Timestamp};
use tokio::sync::OwnedSemaphorePermit;

use crate::component::Component;
use crate::flight::Isolation;
use crate::gate::{Entry, Pass};
use crate::hash::SequenceHash;
use crate::mutation::mutated;
use crate::ownership::PartitionOwnership;
use crate::record::FailureRecord;
use crate::time::SteadyWait;

/// The kind of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptOf {
    /// A message that the source delivered.
    Live,
    /// A letter that is due.
    Retry,
    /// A letter that an operation or a person replays. Limits, due times and budgets do not apply.
    Replay,
}

/// An attempt that requests admission.
pub(crate) struct Candidate<'a> {
    pub(crate) of: AttemptOf,
    pub(crate) message: &'a Message,
    pub(crate) sequence: &'a SequenceId,
    pub(crate) hash: SequenceHash,
    /// The failures of the message so far; `None` for a first attempt.
    pub(crate) record: Option<&'a FailureRecord>,
    /// The wait for the attempt.
    pub(crate) due: Option<SteadyWait>,
    /// `true` if the retry budget was already charged for the attempt.
    pub(crate) charged: bool,
}

/// The answer to a [`Candidate`].
#[derive(Debug)]
pub(crate) enum Admission {
    /// The attempt may start. Report its end through the pass.
    Start(Pass),
    /// The attempt is not due before this wait is over (I12).
    NotDue(SteadyWait),
    /// The retry budget is used up until this time.
    NotBefore(Timestamp),
    /// A pause or the breaker holds the attempt. Check again when the gate changes, and at this time at
    /// the latest.
    Held(Option<Timestamp>),
    /// The sequence is paused. The message should wait in the store, so that its lane is free.
    HoldInStore,
    /// The message gets no more attempts.
    Exhausted(Exhausted),
}

/// The limit that ended the attempts of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exhausted {
    /// A limit of the message itself (I4).
    Limit(Limit),
    /// The retry budget that the message shares with others.
    Budget(Dimension),
}

impl Exhausted {
    /// Returns the limit of the message itself, if that ended the attempts.
    pub(crate) const fn limit(self) -> Option<Limit> {
        match self {
            Self::Limit(limit) => Some(limit),
            Self::Budget(_) => None,
        }
    }

    /// Adds the exhausted budget to the failure message that the letter will show.
    pub(crate) fn annotate(self, text: &mut String) {
        if let Self::Budget(dimension) = self {
            *text = format!("retry budget {} used up; {text}", dimension.as_str());
        }
    }
}

/// The resources that an attempt needs besides its admission: a permit for one of the concurrent
/// attempts, and isolation from suspects of a crash.
pub(crate) struct AttemptSlot<'a> {
    pub(crate) permit: OwnedSemaphorePermit,
    pub(crate) isolation: Isolation<'a>,
}

/// The permission to start an attempt at once.
pub(crate) struct Permission<'a> {
    pub(crate) pass: Pass,
    pub(crate) slot: AttemptSlot<'a>,
}

/// Waits for a slot. Returns `None` if the consumer has ended.
pub(crate) async fn slot<'a>(component: &'a Component, message: &Message) -> Option<AttemptSlot<'a>> {
    let Component { queue, guards, flight, .. } = component;
    let permit = guards.permits.clone().acquire_owned().await.ok()?;
    Some(AttemptSlot { permit, isolation: flight.isolate(queue, message).await })
}

/// Returns the answer to a candidate as of now.
pub(crate) fn check(component: &Component, candidate: &Candidate<'_>) -> Admission {
    let now = component.now();
    let automatic = candidate.of != AttemptOf::Replay;
    if let Some(record) = candidate.record.filter(|_| automatic)
        && let Some(limit) =
            component.limits(candidate.message, Some(&record.failure.reason)).reached(&record.usage(), now)
    {
        return Admission::Exhausted(Exhausted::Limit(limit));
    }
    if let Some(due) = candidate.due.filter(|due| automatic && !due.is_over(&*component.clock)) {
        return Admission::NotDue(due);
    }
    let (gate, steady) = (&component.guards.gate, component.guards.steady_now());
    let entry = match candidate.of {
        AttemptOf::Live => gate.enter(candidate.message, candidate.sequence, steady),
        _ if mutated!(component.options, IgnoreConsumerPauses) => Entry::Go(Pass::free()),
        AttemptOf::Retry => gate.enter_stored(false, steady),
        AttemptOf::Replay => gate.enter_stored(!mutated!(component.options, IgnoreReplayPauses), steady),
    };
    let pass = match entry {
        Entry::Go(pass) => pass,
        Entry::HoldInStore => return Admission::HoldInStore,
        Entry::Wait(again) => return Admission::Held(again.map(|steady| component.guards.by_clock(steady))),
    };
    let charge = match candidate.record.filter(|_| automatic && !candidate.charged) {
        Some(_) => component.guards.charge(candidate.hash, candidate.message),
        None => Charge::Granted,
    };
    match charge {
        Charge::Granted => Admission::Start(pass),
        Charge::NotBefore(again) => Admission::NotBefore(again),
        Charge::Exhausted(dimension) => Admission::Exhausted(Exhausted::Budget(dimension)),
    }
}

/// Checks that stored sequences may be claimed now. `Err` says when to check again at the latest.
pub(crate) fn may_claim(component: &Component, of: AttemptOf) -> Result<(), Option<Timestamp>> {
    if mutated!(component.options, IgnoreConsumerPauses) {
        return Ok(());
    }
    let replay = of == AttemptOf::Replay && !mutated!(component.options, IgnoreReplayPauses);
    let guards = &component.guards;
    let allowed = guards.gate.allows_stored(replay, guards.steady_now());
    allowed.map_err(|again| again.map(|steady| guards.by_clock(steady)))
}

/// Returns `true` if a live message needs neither a [check](check) nor a look-up in the store: nothing
/// is paused or suspected, no duplicate filter is configured, the message cannot have been delivered
/// before, and its partition is certainly owned.
pub(crate) fn is_unconditional(
    component: &Component,
    ownership: &PartitionOwnership,
    message: &Message,
) -> bool {
    let (_, position) = message.place();
    !ownership.needs_lookup(component.index, position.offset)
        && message.hop.is_none()
        && component.guards.gate.is_open()
        && !component.flight.is_suspicious()
        && component.options.dedupe.is_none()
        && is_certain(component, ownership)
}

/// Returns `true` if the ownership of the partition allows an attempt at a live message to start (I6).
pub(crate) fn is_certain(component: &Component, ownership: &PartitionOwnership) -> bool {
    mutated!(component.options, TrustStaleOwnership) || ownership.is_certain()
}
