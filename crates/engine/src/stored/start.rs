//! The waits before an attempt at the head of a stored sequence.

use std::pin::pin;
use std::time::Duration;

use lazaret_core::{Letter, LetterState, Timestamp};

use super::head::HeadAttempt;
use super::run::Purpose;
use crate::admission::{self, Admission, AttemptSlot, Candidate, Exhausted, Permission};
use crate::component::Component;
use crate::dedupe::{Claim, Claimed};
use crate::gate::Pass;
use crate::mutation::mutated;
use crate::record::FailureRecord;
use crate::store_retry::StoreRetry;
use crate::time::{SteadyWait, until};

/// An attempt that may start.
pub(super) struct Admitted<'a> {
    pub(super) permission: Permission<'a>,
    pub(super) claim: Option<Claim>,
}

/// A letter that waits for its attempt.
pub(super) struct Waiting<'a> {
    pub(super) letter: &'a Letter,
    pub(super) record: Option<&'a FailureRecord>,
    /// The wait for the attempt.
    pub(super) due: Option<SteadyWait>,
    /// `true` if the retry budget was charged for the attempt.
    pub(super) charged: bool,
}

/// The reason why a letter gets no attempt.
pub(super) enum Refused {
    /// The letter gets no more attempts.
    Exhausted(Exhausted),
    /// A copy of the message was handled.
    Duplicate,
}

impl HeadAttempt<'_> {
    /// Waits until the attempt may start, the duplicate filter has no other claim, and no suspect of a
    /// crash has to run alone. Returns `Ok(None)` if the attempt may not start now. Waits for other
    /// claims do not hold a permit, because they are not attempts (I3).
    pub(super) async fn start(&self, waiting: &mut Waiting<'_>) -> Result<Option<Admitted<'_>>, Refused> {
        let Component { queue, dedupe, .. } = &**self.component;
        let Some(filter) = dedupe else {
            loop {
                let admitted = self.admission(waiting).await.map_err(Refused::Exhausted)?;
                let Some(permission) = admitted else { return Ok(None) };
                if let Some(permission) = self.confirm(permission, waiting).await {
                    return Ok(Some(Admitted { permission, claim: None }));
                }
            }
        };
        let (mut delays, mut retry) = (filter.delays(), StoreRetry::new(self.component));
        loop {
            let admitted = self.admission(waiting).await.map_err(Refused::Exhausted)?;
            let Some(Permission { pass, slot }) = admitted else { return Ok(None) };
            // From here on the letter waits, and the reasons for its admission may end.
            drop(pass);
            let asked = filter.asks();
            match filter.claim(queue, &waiting.letter.dedupe_id()).await {
                Ok(Claimed::Yes(claim)) => {
                    if !self.lease.begins_at_once() {
                        self.lease.attempts().await;
                    }
                    match admission::check(self.component, &self.candidate(waiting)) {
                        Admission::Start(pass) if filter.is_safe(asked) => {
                            let permission = Permission { pass, slot };
                            return Ok(Some(Admitted { permission, claim: Some(claim) }));
                        }
                        _ => drop(slot),
                    }
                    claim.end().await;
                }
                Ok(Claimed::Done) => return Err(Refused::Duplicate),
                Ok(Claimed::InFlight) => {
                    drop(slot);
                    // The store has answered, so nothing holds the source.
                    retry = StoreRetry::new(self.component);
                    self.sleep(delays.next()).await;
                }
                Err(error) => {
                    drop(slot);
                    if self.lease.wait(pin!(retry.failed(error))).await.is_err() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Confirms a permission after a wait: the lease records that an attempt begins, and nothing holds
    /// it back. Returns `None` if a pause or the breaker began meanwhile.
    async fn confirm<'p>(&self, permission: Permission<'p>, waiting: &Waiting<'_>) -> Option<Permission<'p>> {
        if self.lease.begins_at_once() {
            return Some(permission);
        }
        let Permission { pass, slot } = permission;
        drop(pass);
        self.lease.attempts().await;
        match admission::check(self.component, &self.candidate(waiting)) {
            Admission::Start(pass) => Some(Permission { pass, slot }),
            _ => None,
        }
    }

    fn candidate<'a>(&self, waiting: &Waiting<'a>) -> Candidate<'a> {
        let Waiting { letter, record, due, charged } = *waiting;
        let due = due.filter(|_| !mutated!(self.component.options, TrustStoreClock));
        Candidate {
            of: self.purpose.attempt_of(),
            message: &letter.message,
            sequence: &letter.sequence,
            hash: self.hash,
            record,
            due,
            charged,
        }
    }

    /// Waits until the attempt may start. Returns `Ok(None)` if it may not start now, and `Err` if the
    /// letter gets no more attempts.
    ///
    /// All other waits come first: an admitted letter never waits while a pause or the breaker begins.
    async fn admission(&self, waiting: &mut Waiting<'_>) -> Result<Option<Permission<'_>>, Exhausted> {
        let lifecycle = &self.component.lifecycle;
        while !lifecycle.is_draining() {
            let slot = async {
                tokio::select! {
                    biased;
                    () = lifecycle.draining() => None,
                    slot = self.slot(waiting.letter) => slot,
                }
            };
            let Some(slot) = self.lease.wait(pin!(slot)).await else { return Ok(None) };
            match admission::check(self.component, &self.candidate(waiting)) {
                Admission::Start(pass) => {
                    waiting.charged = true;
                    return Ok(Some(Permission { pass, slot }));
                }
                Admission::Exhausted(exhausted) => return Err(exhausted),
                Admission::Held(_)
                    if waiting.letter.state == LetterState::Waiting
                        && mutated!(self.component.options, IgnoreGateWithinRuns) =>
                {
                    return Ok(Some(Permission { pass: Pass::free(), slot }));
                }
                Admission::Held(_) | Admission::HoldInStore => return Ok(None),
                Admission::NotDue(wait) => {
                    drop(slot);
                    self.sleep(wait.rest(&*self.component.clock)).await;
                }
                Admission::NotBefore(time) => {
                    drop(slot);
                    self.sleep_until(time).await;
                }
            }
        }
        Ok(None)
    }

    /// Waits for a place among the runs, and for a slot. Returns `None` if the consumer has ended.
    async fn slot(&self, letter: &Letter) -> Option<AttemptSlot<'_>> {
        if let Some(place) = self.place {
            place.enter().await;
        }
        admission::slot(self.component, &letter.message).await
    }

    /// Refunds the charge of the retry budget for an attempt that was not made.
    pub(super) fn refund(&self, letter: &Letter, failed_before: bool) {
        if *self.purpose == Purpose::Retry && failed_before {
            self.component.guards.refund(self.hash, &letter.message);
        }
    }

    /// Sleeps for this duration, or until the consumer drains.
    pub(super) async fn sleep(&self, time: Duration) {
        self.lease.waits_for(time).await;
        tokio::select! {
            biased;
            () = self.component.lifecycle.draining() => {}
            () = tokio::time::sleep(time) => {}
        }
    }

    /// Sleeps until this time, or until the consumer drains.
    async fn sleep_until(&self, time: Timestamp) {
        self.lease.waits_for(until(self.component.now(), time)).await;
        tokio::select! {
            biased;
            () = self.component.lifecycle.draining() => {}
            () = self.component.sleep_until(time) => {}
        }
    }
}
