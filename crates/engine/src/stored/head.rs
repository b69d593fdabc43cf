//! One attempt at the head of a stored sequence.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::handler::Delivery;
use lazaret_core::store::{Settled, Settlement};
use lazaret_core::{Failure, Letter, LetterState};
use tokio::time::Instant;

use super::lease::RunLease;
use super::outcome::LeftOver;
use super::place::Place;
use super::run::Purpose;
use super::start::{Admitted, Refused, Waiting};
use crate::admission::{AttemptSlot, Permission};
use crate::attempt::{self, Outcome};
use crate::component::Component;
use crate::dead_letter_sink::StoredSink;
use crate::dedupe::{self, Claim};
use crate::events::Event;
use crate::gate::Pass;
use crate::hash::SequenceHash;
use crate::letters::ResolvedBy;
use crate::letters::draft;
use crate::record::{FailureRecord, crash};
use crate::telemetry::Counters;
use crate::time::{Moment, SteadyWait, later, until};

/// An attempt at the head of a leased sequence.
pub(super) struct HeadAttempt<'a> {
    pub(super) component: &'a Arc<Component>,
    pub(super) lease: &'a RunLease<'a>,
    /// The time of the claim.
    pub(super) claimed_at: Moment,
    pub(super) purpose: &'a Purpose,
    pub(super) place: Option<&'a Place>,
    pub(super) hash: SequenceHash,
}

/// An attempt that ended.
pub(super) struct Ended {
    pub(super) delivery: Delivery,
    pub(super) outcome: Outcome,
    pub(super) sink: Arc<StoredSink>,
    pub(super) pass: Pass,
    pub(super) took: Duration,
    /// The claim in the duplicate filter, if there is one.
    pub(super) claim: Option<Claim>,
}

impl HeadAttempt<'_> {
    /// Tries the letter and writes the outcome. Returns `None` if nothing was written and the run must
    /// stop. `interrupted` means that the previous lease ended during a run.
    ///
    /// If the lease ends with the outcome, `left` holds the remaining work.
    pub(super) async fn run(
        &self,
        mut letter: Letter,
        interrupted: bool,
        left: &mut LeftOver,
    ) -> Option<Settled> {
        if let Some(suspect) = self.component.flight.charged(&self.component.queue, &letter.message) {
            letter.crash_attempts = letter.crash_attempts.saturating_add(suspect.crashes);
            if *self.purpose == Purpose::Retry {
                letter.attempts = letter.attempts.saturating_add(suspect.crashes);
                letter.cause = Some(self.crashed(&letter));
                letter.first_failed_at.get_or_insert(self.component.now());
            } else {
                letter.replay_attempts = letter.replay_attempts.saturating_add(suspect.crashes);
                // Something else may have ended the process, so the replay is repeated alone. A replay
                // that crashes the process every time has failed.
                let limits = self.component.limits(&letter.message, None);
                if limits.crashes_too_often_in_replays(letter.crash_attempts) {
                    let cause = Some(self.crashed(&letter));
                    return self.settle(&letter, draft::dead(self.component, &letter, cause), left).await;
                }
            }
        } else if interrupted && *self.purpose == Purpose::Retry {
            // The interrupted attempt counts before the next one begins (I4).
            let settlement = draft::interrupted(self.component, &letter);
            return self.settle(&letter, settlement, left).await;
        }
        let record = FailureRecord::from_letter(&letter);
        // The wait begins before all others, because the clock may be set back meanwhile.
        let due = self.wait_of(&letter);
        let letter = Arc::new(letter);
        let mut ended = loop {
            let mut waiting = Waiting { letter: &letter, record: record.as_ref(), due, charged: false };
            let started = self.start(&mut waiting).await;
            if waiting.charged && !matches!(started, Ok(Some(_))) {
                self.refund(&letter, record.is_some());
            }
            let admitted = match started {
                Ok(admitted) => admitted?,
                Err(Refused::Exhausted(exhausted)) => {
                    return self.settle(&letter, self.exhausted(&letter, exhausted), left).await;
                }
                Err(Refused::Duplicate) => {
                    let (settlement, by) = (Settlement::Resolve(None), ResolvedBy::Duplicate);
                    return self.settle_by(&letter, settlement, by, left).await;
                }
            };
            let mut ended = self.attempt(&letter, record.is_some(), admitted).await;
            let Outcome::Deferred(delay) = ended.outcome else { break ended };
            dedupe::end(ended.claim.take()).await;
            if *self.purpose == Purpose::Retry && letter.state == LetterState::Retrying {
                // The letter waits without a place among the runs (I3).
                let due = later(self.component.now(), delay);
                return self.settle(&letter, draft::deferred(&letter, due), left).await;
            }
            self.sleep(delay).await;
        };
        let mut claim = ended.claim.take();
        if matches!(ended.outcome, Outcome::Handled)
            && let Some(claim) = claim.take()
        {
            claim.handled(self.component).await.ok()?;
        }
        let mut entering = None;
        let (settlement, by) = self.settlement(&letter, ended, due, &mut entering).await?;
        left.claim = claim;
        self.settle_by(&letter, settlement, by, left).await
    }

    /// Returns the failure of a letter whose message crashed the process.
    fn crashed(&self, letter: &Letter) -> Failure {
        self.component.grouped(crash(letter.crash_attempts), &letter.message)
    }

    /// Returns the wait for the due time of a letter. It is due by the store's clock; our clock must
    /// agree (I12).
    fn wait_of(&self, letter: &Letter) -> Option<SteadyWait> {
        // No delay is longer than this, so a later due time means that the clock was set back since the
        // store answered.
        let reason = letter.cause.as_ref().map(|cause| &cause.reason);
        let longest = self.component.retry_policy(&letter.message, reason).longest_delay();
        let latest = later(self.component.now(), longest);
        letter.due_at.map(|due| SteadyWait::until(&*self.component.clock, due.min(latest)))
    }

    /// Makes the attempt.
    async fn attempt(&self, letter: &Arc<Letter>, failed_before: bool, admitted: Admitted<'_>) -> Ended {
        let Admitted { permission: Permission { pass, slot }, claim } = admitted;
        let AttemptSlot { permit, isolation } = slot;
        let component = &**self.component;
        let Component { queue, telemetry, flight, .. } = component;
        let attempt = letter.attempts.saturating_add(letter.replay_attempts).saturating_add(1);
        let is_retry = *self.purpose == Purpose::Retry;
        let lateness = letter.due_at.filter(|_| is_retry).map(|due| until(due, component.now()));
        let sink = Arc::new(StoredSink::new(self.lease.ownership.clone()));
        let operation = self.purpose.operation().map(str::to_owned);
        let delivery = Delivery::for_letter(letter.clone(), operation).with_sink(sink.clone());
        delivery.begin_attempt(attempt);
        let (outcome, took) = {
            let run = pin!(async {
                let watched = flight.watch(isolation, queue, &letter.message, attempt);
                let started = Instant::now();
                let outcome = attempt::run(component, &delivery).await;
                drop(watched);
                (outcome, started.elapsed())
            });
            dedupe::renewed_during(claim.as_ref(), run).await
        };
        drop(permit);
        if let Some(place) = self.place {
            place.leave();
        }
        if let Outcome::Deferred(_) = outcome {
            self.refund(letter, failed_before);
        } else {
            if let Some(lateness) = lateness {
                telemetry.emit(&Event::RetryStarted { queue, attempt, lateness });
            }
            if failed_before {
                Counters::add(&telemetry.counters.retries, 1);
            }
        }
        Ended { delivery, outcome, sink, pass, took, claim }
    }
}
