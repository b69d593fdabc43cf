//! One attempt at the head of a stored sequence.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::handler::Delivery;
use lazaret_core::letter::AttemptKind;
use lazaret_core::policy::Limit;
use lazaret_core::store::{Settled, Settlement};
use lazaret_core::{HandlerError, Letter, LetterState, Timestamp, Verdict};
use tokio::time::Instant;

use super::lease::RunLease;
use super::place::Place;
use super::run::Purpose;
use crate::admission::{self, Admission, AttemptSlot, Candidate, Exhausted, Permission};
use crate::attempt::{self, Outcome};
use crate::classify::{self, Classified};
use crate::component::Component;
use crate::dead_letter_sink::{GivenUp, StoredSink};
use crate::dedupe::{self, Claim, Claimed};
use crate::error::{Error, StopReason};
use crate::events::Event;
use crate::gate::Pass;
use crate::hash::SequenceHash;
use crate::letters::draft::{self, FailedLetter};
use crate::letters::{ResolvedBy, Settler};
use crate::limits::End;
use crate::mutation::mutated;
use crate::next_step::Step;
use crate::publish::Publish;
use crate::record::{FailureRecord, crash};
use crate::store_retry::StoreRetry;
use crate::telemetry::Counters;
use crate::time::{SteadyWait, later, until};

/// An attempt at the head of a leased sequence.
pub(super) struct HeadAttempt<'a> {
    pub(super) component: &'a Arc<Component>,
    pub(super) lease: &'a RunLease<'a>,
    pub(super) purpose: &'a Purpose,
    pub(super) place: Option<&'a Place>,
    pub(super) hash: SequenceHash,
}

/// An attempt that ended.
struct Ended {
    delivery: Delivery,
    outcome: Outcome,
    sink: Arc<StoredSink>,
    pass: Pass,
    took: Duration,
    /// Its claim in the duplicate filter, if there is one.
    claim: Option<Claim>,
}

/// The work that is left when a letter is settled: nothing of it needs the lease.
#[derive(Default)]
pub(super) struct LeftOver {
    /// The claim of an attempt that did not succeed.
    claim: Option<Claim>,
    /// The letter, if it is dead now.
    dead: Option<Box<Letter>>,
}

impl LeftOver {
    /// Ends the claim, and publishes a claim check for a letter that died in the store although the broker keeps the dead
    /// letters: it did not take the message, for example because it is too large. So whoever reads the dead-letter topic learns
    /// of it.
    pub(super) async fn finish(self, component: &Component) {
        dedupe::end(self.claim).await;
        if let Some((relay, letter)) = component.options.relay().zip(self.dead) {
            let (message, from) = (&*letter.message, letter.message.partition());
            let publish = Publish { component, message, from: &from, same_failure: 1 };
            publish.claim(relay, &letter).await;
        }
    }
}

/// An attempt that may start.
struct Admitted<'a> {
    permission: Permission<'a>,
    claim: Option<Claim>,
}

/// A letter that waits for its attempt.
struct Waiting<'a> {
    letter: &'a Letter,
    record: Option<&'a FailureRecord>,
    /// The wait for the attempt.
    due: Option<SteadyWait>,
    /// The retry budget was charged for it.
    charged: bool,
}

/// What keeps a letter from its attempt.
enum Refused {
    /// It gets no more attempts.
    Exhausted(Exhausted),
    /// A copy of its message was handled.
    Duplicate,
}

impl HeadAttempt<'_> {
    /// Tries the letter and writes the outcome. `None` when nothing was written and the run must stop. `interrupted` says that
    /// the lease before this one ended during a run.
    ///
    /// If the lease ends with the outcome, `left` is the work that remains.
    pub(super) async fn run(
        &self,
        mut letter: Letter,
        interrupted: bool,
        left: &mut LeftOver,
    ) -> Option<Settled> {
        if let Some(suspect) = self.component.flight.charged(&self.component.queue, &letter.message.id) {
            letter.crash_attempts = letter.crash_attempts.saturating_add(suspect.crashes);
            if *self.purpose == Purpose::Retry {
                letter.attempts = letter.attempts.saturating_add(suspect.crashes);
                letter.cause = Some(crash(letter.crash_attempts));
                letter.first_failed_at.get_or_insert(self.component.now());
            } else {
                letter.replay_attempts = letter.replay_attempts.saturating_add(suspect.crashes);
                // Something else may have ended the process, so the replay is repeated, alone. One that crashes the process
                // each time has failed.
                let limits = self.component.limits(&letter.message, None);
                if limits.crashes_too_often_in_replays(letter.crash_attempts) {
                    let cause = Some(crash(letter.crash_attempts));
                    return self.settle(&letter, draft::dead(self.component, &letter, cause), left).await;
                }
            }
        } else if interrupted && *self.purpose == Purpose::Retry {
            // The attempt counts before the next one begins (I4).
            let settlement = draft::interrupted(self.component, &letter);
            return self.settle(&letter, settlement, left).await;
        }
        let record = FailureRecord::from_letter(&letter);
        // It begins before all other waits: the clock may be set back meanwhile.
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
                // It waits without a place among the runs (I3).
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
        let (settlement, by) = self.settlement(&letter, ended, due)?;
        left.claim = claim;
        self.settle_by(&letter, settlement, by, left).await
    }

    /// The wait for the due time of a letter. The store's clock said that it is due; ours must agree (I12).
    fn wait_of(&self, letter: &Letter) -> Option<SteadyWait> {
        // No delay is longer: the clock was set back since the store answered.
        let reason = letter.cause.as_ref().map(|cause| &cause.reason);
        let longest = self.component.retry_policy(&letter.message, reason).longest_delay();
        let latest = later(self.component.now(), longest);
        letter.due_at.map(|due| SteadyWait::until(&*self.component.clock, due.min(latest)))
    }

    /// Waits until the attempt may start, the duplicate filter has no other one, and no suspect of a crash has to run alone:
    /// `Ok(None)` when it may not now. Waits for the claims of others happen without a permit: they are no attempts (I3).
    async fn start(&self, waiting: &mut Waiting<'_>) -> Result<Option<Admitted<'_>>, Refused> {
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
            // From here on it waits, and what it was admitted by may end.
            drop(pass);
            match filter.claim(queue, &waiting.letter.message.id).await {
                Ok(Claimed::Yes(claim)) => {
                    self.lease.attempts().await;
                    match admission::check(self.component, &self.candidate(waiting)) {
                        Admission::Start(pass) => {
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
                    // The store has answered: nothing holds the source back.
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

    /// Confirms a permission after a wait: the lease says that an attempt begins, and nothing holds it back. `None` when a pause or
    /// the breaker began meanwhile.
    async fn confirm<'p>(&self, permission: Permission<'p>, waiting: &Waiting<'_>) -> Option<Permission<'p>> {
        if self.lease.is_for_attempt() {
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

    /// Waits until the attempt may start: `Ok(None)` when it may not now, `Err` when the letter gets no more attempts.
    ///
    /// All other waits come first: nothing that was admitted waits while a pause or the breaker begins.
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

    /// Waits for a place among the runs, and for a slot. `None` when the consumer has ended.
    async fn slot(&self, letter: &Letter) -> Option<AttemptSlot<'_>> {
        if let Some(place) = self.place {
            place.enter().await;
        }
        admission::slot(self.component, &letter.message.id).await
    }

    /// Takes the charge of the retry budget back, for an attempt that was not made.
    fn refund(&self, letter: &Letter, failed_before: bool) {
        if *self.purpose == Purpose::Retry && failed_before {
            self.component.guards.refund(self.hash, &letter.message);
        }
    }

    /// Sleeps for this long, or until the consumer drains.
    async fn sleep(&self, time: Duration) {
        self.lease.waits_for(time).await;
        tokio::select! {
            biased;
            () = self.component.lifecycle.draining() => {}
            () = tokio::time::sleep(time) => {}
        }
    }

    /// Sleeps until then, or until the consumer drains.
    async fn sleep_until(&self, time: Timestamp) {
        self.lease.waits_for(until(self.component.now(), time)).await;
        tokio::select! {
            biased;
            () = self.component.lifecycle.draining() => {}
            () = self.component.sleep_until(time) => {}
        }
    }

    /// Reports the end of the retries of a letter, and makes it a dead one.
    fn exhausted(&self, letter: &Letter, exhausted: Exhausted) -> Settlement {
        let Component { queue, telemetry, .. } = &**self.component;
        let mut cause = letter.cause.clone();
        if let Some(cause) = &mut cause {
            let (message, id, limit) = (&*letter.message, Some(letter.id), exhausted.limit());
            let reason = &cause.reason;
            telemetry.emit(&Event::RetryExhausted { queue, message, letter: id, limit, reason });
            exhausted.annotate(&mut cause.message);
        }
        // A limit of attempts or time leaves the cause as it is stored; a crash or a budget changes it.
        let unchanged = matches!(exhausted, Exhausted::Limit(Limit::Attempts | Limit::Elapsed));
        draft::dead(self.component, letter, cause.filter(|_| !unchanged))
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
        let sink = Arc::new(StoredSink::default());
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

    /// The settlement that follows from the attempt, and what resolves the letter, if it does. `None` when the consumer stops
    /// instead.
    fn settlement(
        &self,
        letter: &Letter,
        ended: Ended,
        due: Option<SteadyWait>,
    ) -> Option<(Settlement, ResolvedBy)> {
        let component = &**self.component;
        let Ended { delivery, outcome, sink, pass, took, .. } = ended;
        let (kind, replayed) = match self.purpose {
            Purpose::Retry => (AttemptKind::Retry, false),
            Purpose::Replay(_) => (AttemptKind::Replay, true),
        };
        let attempt = delivery.attempt();
        let error = match outcome {
            Outcome::Failed(error) => error,
            // It is made again, and has no settlement.
            Outcome::Deferred(_) => return None,
            Outcome::SentToDlq | Outcome::Unconfirmed(_) => {
                let GivenUp { reason, why } = sink.take();
                HandlerError::foreign("sent by the handler", why).reason(reason).verdict(Verdict::DeadLetter)
            }
            Outcome::Handled | Outcome::Filtered | Outcome::Duplicate => {
                component.guards.report_health(outcome.health(), pass);
                let by = match outcome {
                    Outcome::Filtered => ResolvedBy::Filter,
                    Outcome::Duplicate => ResolvedBy::Duplicate,
                    _ => ResolvedBy::Handler,
                };
                // Replays count neither way.
                if !replayed && by == ResolvedBy::Handler {
                    component.guards.record_handled();
                }
                let entry = classify::attempt_record(component, kind, attempt, took, None);
                return Some((Settlement::Resolve(Some(entry)), by));
            }
        };
        let classified = classify::classify(component, &delivery, &error, attempt);
        // A replay comes long after the failure: successes since then say nothing.
        let retry_since = letter.first_failed_at.filter(|_| !replayed);
        let health = classify::health(component, &classified, retry_since);
        component.guards.report_failure(health, pass, &classified.failure);
        let Classified { failure, verdict } = classified;
        let entry = classify::attempt_record(component, kind, attempt, took, Some(&failure));
        // The replay of a letter that failed before is not an automatic attempt. That of a letter that only waited is its
        // first one.
        let automatic = !replayed || letter.cause.is_none();
        let attempts = letter.attempts.saturating_add(u32::from(automatic));
        let earlier = FailureRecord::from_letter(letter);
        let record = FailureRecord::failed(earlier, attempts, entry, failure.clone());
        let step = match automatic {
            true => classify::decide(component, &delivery, verdict, &record, true),
            false => self.after_replay(letter),
        };
        let (state, due_at) = match step {
            Step::Wait { due } | Step::Later { due } => (LetterState::Retrying, Some(due)),
            Step::End { state: LetterState::Retrying, .. } => {
                (LetterState::Retrying, due.map(|due| due.due_by(&*component.clock)))
            }
            Step::End { state: LetterState::Waiting, .. } => (LetterState::Dead, None),
            Step::End { state, .. } => (state, None),
            Step::Skip => return Some((Settlement::Skip(failure.to_string()), ResolvedBy::Handler)),
            Step::Duplicate => return Some((Settlement::Resolve(None), ResolvedBy::Duplicate)),
            Step::Stop => {
                let (message, why) = (letter.message.id.to_string(), StopReason::Classified);
                let failure = Some(Box::new(failure));
                component.lifecycle.fail(Error::Stopped { message, why, failure });
                return None;
            }
        };
        let (delivery, record) = (&delivery, &record);
        let failed = FailedLetter { letter, delivery, failure, record, replayed, state, due_at };
        Some((draft::requeue(component, failed), ResolvedBy::Handler))
    }

    /// A failed replay gives no new automatic attempts: the letter keeps its state (I4), until it is parked.
    fn after_replay(&self, letter: &Letter) -> Step {
        let replays = letter.replay_attempts.saturating_add(1);
        let max_replays = self.component.options.replay.max_replays;
        let enough = max_replays.is_some_and(|limit| replays >= limit);
        let state = if enough { LetterState::Parked } else { letter.state };
        Step::End { state, why: End::Verdict }
    }

    async fn settle(&self, letter: &Letter, settlement: Settlement, left: &mut LeftOver) -> Option<Settled> {
        self.settle_by(letter, settlement, ResolvedBy::Handler, left).await
    }

    async fn settle_by(
        &self,
        letter: &Letter,
        settlement: Settlement,
        resolved_by: ResolvedBy,
        left: &mut LeftOver,
    ) -> Option<Settled> {
        let (component, purpose) = (&**self.component, self.purpose);
        let settler = Settler { component, lease: self.lease.lease, purpose, resolved_by };
        let dead = newly_dead(letter, &settlement);
        self.lease.settlement_begins();
        let settled = settler.settle(letter, settlement).await?;
        left.dead = dead;
        if let Settled::Next(_) = &settled {
            self.lease.continues();
            std::mem::take(left).finish(self.component).await;
        }
        Some(settled)
    }
}

/// Returns the letter as it will be when this settlement makes it a dead one.
fn newly_dead(letter: &Letter, settlement: &Settlement) -> Option<Box<Letter>> {
    let Settlement::Requeue(requeue) = settlement else { return None };
    if requeue.state != LetterState::Dead || letter.state == LetterState::Dead {
        return None;
    }
    Some(Box::new(Letter {
        state: LetterState::Dead,
        due_at: None,
        cause: requeue.cause.clone().or_else(|| letter.cause.clone()),
        attempts: requeue.attempts,
        crash_attempts: requeue.crash_attempts,
        ..letter.clone()
    }))
}
