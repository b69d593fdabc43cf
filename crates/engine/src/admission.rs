//! Decides whether an attempt may start: limits, due time, pauses, breaker, retry budget.
//!
//! The only place that does, for live messages, retries and replays. Callers differ in what they do when the answer is not
//! [`Start`](Admission::Start): a live message waits in its lane, a stored run returns its lease.

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

/// An attempt that asks for admission.
pub(crate) struct Candidate<'a> {
    pub(crate) of: AttemptOf,
    pub(crate) message: &'a Message,
    pub(crate) sequence: &'a SequenceId,
    pub(crate) hash: SequenceHash,
    /// Its failures so far; `None` for a first attempt.
    pub(crate) record: Option<&'a FailureRecord>,
    /// The wait for the attempt.
    pub(crate) due: Option<SteadyWait>,
    /// The retry budget was charged for it before.
    pub(crate) charged: bool,
}

/// The answer to a candidate.
#[derive(Debug)]
pub(crate) enum Admission {
    /// The attempt may start. Report its end with the pass.
    Start(Pass),
    /// Not before this wait is over: it is not due (I12).
    NotDue(SteadyWait),
    /// Not before this time: the retry budget is used up until then.
    NotBefore(Timestamp),
    /// Not while a pause or the breaker holds it. Ask again when the gate changes, or at this time at the latest.
    Held(Option<Timestamp>),
    /// Its sequence is paused: it is to wait in the store, so that its lane is free.
    HoldInStore,
    /// It gets no more attempts.
    Exhausted(Exhausted),
}

/// The limit that ended the attempts of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exhausted {
    /// A limit of its own (I4).
    Limit(Limit),
    /// The retry budget that it shares with others.
    Budget(Dimension),
}

impl Exhausted {
    /// The limit of its own, if it was one.
    pub(crate) const fn limit(self) -> Option<Limit> {
        match self {
            Self::Limit(limit) => Some(limit),
            Self::Budget(_) => None,
        }
    }

    /// Adds the budget to the message of the failure that the letter will show.
    pub(crate) fn annotate(self, text: &mut String) {
        if let Self::Budget(dimension) = self {
            *text = format!("retry budget {} used up; {text}", dimension.as_str());
        }
    }
}

/// What an attempt needs besides its admission: one of the attempts that may run at once, and that no suspect of a crash has to run
/// alone.
pub(crate) struct AttemptSlot<'a> {
    pub(crate) permit: OwnedSemaphorePermit,
    pub(crate) isolation: Isolation<'a>,
}

/// The permission for an attempt that starts at once.
pub(crate) struct Permission<'a> {
    pub(crate) pass: Pass,
    pub(crate) slot: AttemptSlot<'a>,
}

/// Waits for a slot. `None` when the consumer has ended.
pub(crate) async fn slot<'a>(component: &'a Component, message: &Message) -> Option<AttemptSlot<'a>> {
    let Component { queue, guards, flight, .. } = component;
    let permit = guards.permits.clone().acquire_owned().await.ok()?;
    Some(AttemptSlot { permit, isolation: flight.isolate(queue, message).await })
}

/// Answers a candidate as of now.
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

/// Checks that stored sequences may be claimed at all now; `Err` says when to ask again at the latest.
pub(crate) fn may_claim(component: &Component, of: AttemptOf) -> Result<(), Option<Timestamp>> {
    if mutated!(component.options, IgnoreConsumerPauses) {
        return Ok(());
    }
    let replay = of == AttemptOf::Replay && !mutated!(component.options, IgnoreReplayPauses);
    let guards = &component.guards;
    let allowed = guards.gate.allows_stored(replay, guards.steady_now());
    allowed.map_err(|again| again.map(|steady| guards.by_clock(steady)))
}

/// Returns `true` when a live message needs no [check](check) and no look at the store: nothing is paused or suspected, no
/// duplicate filter is configured, the message cannot have been here before, and its partition is certainly owned.
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

/// Returns `true` when an attempt at a live message may start as far as the ownership of its partition goes (I6).
pub(crate) fn is_certain(component: &Component, ownership: &PartitionOwnership) -> bool {
    mutated!(component.options, TrustStaleOwnership) || ownership.is_certain()
}
