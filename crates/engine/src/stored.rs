//! The way of a stored sequence: head by head, in order, until one fails or none is left.
//!
//! Retries that became due and replays that somebody asked for go the same way. The lease is renewed beside the work;
//! when it is lost, the work is dropped before anybody else can start.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::handler::Delivery;
use lazaret_core::letter::AttemptKind;
use lazaret_core::policy::{Charge, Decision, Limit, Stage};
use lazaret_core::store::{Certainty, Claim, ErrorKind, Lease, Requeue, Settled, Settlement};
use lazaret_core::{Failure, HandlerError, Letter, LetterState, Message, Timestamp};
use tokio::time::Instant;

use crate::attempt::{self, Outcome};
use crate::decide::Step;
use crate::desks::StoredDesk;
use crate::error::Error;
use crate::events::{Counters, Event};
use crate::gate::Pass;
use crate::hash::SequenceHash;
use crate::judge::{self, Record};
use crate::lanes::OpenSequences;
use crate::shared::{Component, RunGuard, until};

/// Why a stored sequence is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It is due.
    Retry,
    /// Somebody asked for it, in the name of this operation.
    Replay(String),
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunEnd {
    /// Every letter is gone and the sequence is closed.
    Closed,
    /// A letter failed, or may not run now: those behind it wait.
    Held,
    /// The run was broken off: the consumer pauses or drains, or the lease was lost.
    Stopped,
}

/// A claimed sequence about to be run.
pub(crate) struct Run {
    pub(crate) component: Arc<Component>,
    pub(crate) claim: Claim,
    /// When the claim was asked for: the lease lasts at least from here.
    pub(crate) claimed_at: Instant,
    pub(crate) purpose: Purpose,
    /// The shard's knowledge, when a shard runs it.
    pub(crate) open: Option<Arc<OpenSequences>>,
}

impl Run {
    pub(crate) fn hash(&self) -> SequenceHash {
        self.component.shared.hasher.hash(self.claim.lease.sequence.as_str())
    }

    /// Runs the sequence to its end, or until the lease is lost.
    pub(crate) async fn run(self) -> RunEnd {
        let (hash, index) = (self.hash(), self.component.index);
        let (component, open) = (self.component.clone(), self.open.clone());
        let _guard = RunGuard::new(&component);
        if let Some(open) = &open {
            open.run_begins(index, hash);
        }
        let lease = self.claim.lease.clone();
        let claimed_at = self.claimed_at;
        let end = tokio::select! {
            biased;
            end = self.letters(hash) => end,
            () = keep_lease(&component, &lease, claimed_at) => RunEnd::Stopped,
            () = component.shared.cutting() => give_back(&component, &lease).await,
        };
        if let Some(open) = &open {
            open.run_ended(index, hash, end == RunEnd::Closed);
        }
        end
    }

    async fn letters(self, hash: SequenceHash) -> RunEnd {
        let Self { component, claim, purpose, .. } = self;
        let lease = claim.lease;
        let mut next = Some(claim.head);
        while let Some(letter) = next.take() {
            let turn = Turn { component: &component, lease: &lease, purpose: &purpose, hash };
            match turn.take(letter).await {
                Some(Settled::Next(letter)) => next = Some(*letter),
                Some(Settled::Closed) => return RunEnd::Closed,
                Some(Settled::Requeued | Settled::Blocked) => return RunEnd::Held,
                None => return give_back(&component, &lease).await,
            }
        }
        RunEnd::Held
    }
}

/// Gives the lease of a run back that was broken off. Best effort: a lease that is not given back ends by itself.
async fn give_back(component: &Component, lease: &Lease) -> RunEnd {
    let _ = component.shared.store.release(lease).await;
    RunEnd::Stopped
}

/// Renews the lease until that fails. Returns while there is still time left on it, so that the work is dropped before
/// anybody else may claim the sequence (I6).
async fn keep_lease(component: &Component, lease: &Lease, claimed_at: Instant) {
    let length = component.shared.options.lease;
    let mut valid_until = claimed_at + length;
    let mut wait = length / 3;
    loop {
        let safe_until = valid_until - length / 10;
        let asked_at = (Instant::now() + wait).min(safe_until);
        tokio::time::sleep_until(asked_at).await;
        let renewed = tokio::time::timeout_at(safe_until, component.shared.store.renew(lease, length)).await;
        match renewed {
            Ok(Ok(_)) => {
                valid_until = asked_at + length;
                wait = length / 3;
            }
            Ok(Err(error)) if error.kind() == ErrorKind::Fenced => return,
            Err(_) => return,
            Ok(Err(_)) => {
                if Instant::now() >= safe_until {
                    return;
                }
                wait = length / 20;
            }
        }
    }
}

/// One letter's turn at the head.
struct Turn<'a> {
    component: &'a Arc<Component>,
    lease: &'a Lease,
    purpose: &'a Purpose,
    hash: SequenceHash,
}

impl Turn<'_> {
    /// Tries the letter and writes down what became of it. `None` when nothing was written and the run must stop.
    async fn take(&self, mut letter: Letter) -> Option<Settled> {
        let shared = &self.component.shared;
        if let Some(suspect) = shared.flight.charged(&self.component.queue, &letter.message.id) {
            if *self.purpose != Purpose::Retry {
                // A replay that killed the process has failed: it must not kill the next one, too.
                return self.settle(&letter, self.as_crashed(&letter, suspect.crashes)).await;
            }
            letter.attempts += suspect.crashes;
            letter.crash_attempts += suspect.crashes;
            letter.cause = Some(judge::crash(letter.crash_attempts));
            letter.first_failed_at.get_or_insert(shared.now());
        }
        if let Some(due) = letter.due_at
            && *self.purpose == Purpose::Retry
        {
            // I12: the store's clock said that it is due; ours must agree.
            self.sleep_until(due).await?;
        }
        let record = Record::from_letter(&letter);
        if *self.purpose == Purpose::Retry
            && let Some(record) = &record
            && let Some(limit) = self.used_up(&letter.message, record)
        {
            let (queue, message, reason) = (&self.component.queue, &*letter.message, &record.failure.reason);
            shared.tell(&Event::RetryExhausted { queue, message, limit: Some(limit), reason });
            let cause = letter.cause.clone().filter(|_| limit == Limit::Crashes);
            return self.settle(&letter, self.as_dead(&letter, cause)).await;
        }
        let pass = match self.admission(&letter, record.is_some()).await {
            Ok(pass) => pass?,
            Err(ended) => return self.settle(&letter, ended).await,
        };
        let permit = tokio::select! {
            biased;
            () = shared.stopping() => return None,
            permit = shared.permits.acquire() => permit.ok()?,
        };
        let attempt = letter.attempts + letter.replay_attempts + 1;
        if let Some(due) = letter.due_at
            && *self.purpose == Purpose::Retry
        {
            let lateness = until(due, shared.now());
            shared.tell(&Event::RetryStarted { queue: &self.component.queue, attempt, lateness });
        }
        if record.is_some() {
            Counters::add(&shared.counters.retries, 1);
        }
        let letter = Arc::new(letter);
        let wish = Arc::new(StoredDesk::default());
        let delivery = Delivery::for_letter(letter.clone(), self.operation()).with_sink(wish.clone());
        delivery.begin_attempt(attempt);
        let watched = shared.flight.watch(&self.component.queue, &letter.message, attempt).await;
        let started = Instant::now();
        let outcome = match &shared.options.dedupe {
            Some(dedupe) => attempt::run_once(self.component, &delivery, dedupe).await,
            None => attempt::run(self.component, &delivery).await,
        };
        drop(watched);
        drop(permit);
        let settlement = self.judge(&letter, &delivery, outcome, &wish, pass, started.elapsed());
        self.settle(&letter, settlement?).await
    }

    /// Sleeps until then, or until the consumer drains (`None`).
    async fn sleep_until(&self, time: Timestamp) -> Option<()> {
        let shared = &self.component.shared;
        tokio::select! {
            biased;
            () = shared.stopping() => None,
            () = shared.sleep_until(time) => Some(()),
        }
    }

    fn operation(&self) -> Option<String> {
        match self.purpose {
            Purpose::Retry => None,
            Purpose::Replay(operation) => Some(operation.clone()),
        }
    }

    /// Whether the letter may not be tried again by itself, whatever changed since it was written (I4). A letter that
    /// somebody released has no attempts and is tried at least once, however long ago it first failed.
    fn used_up(&self, message: &Message, record: &Record) -> Option<Limit> {
        let retry = judge::retry_policy(self.component, message);
        if retry.too_many_crashes(record.crashes) {
            return Some(Limit::Crashes);
        }
        if record.attempts >= retry.max_attempts {
            return Some(Limit::Attempts);
        }
        let expired = retry.expired(record.first_failed_at, self.component.shared.now());
        (record.attempts > 0 && expired).then_some(Limit::Elapsed)
    }

    /// Whether the attempt may start: `Ok(None)` means not now, `Err` that the letter ends instead.
    async fn admission(&self, letter: &Letter, retried: bool) -> Result<Option<Pass>, Settlement> {
        let shared = &self.component.shared;
        let replay = *self.purpose != Purpose::Retry;
        loop {
            let now = shared.now();
            if shared.is_stopping() {
                return Ok(None);
            }
            let Some(pass) = shared.gate.enter_stored(replay, now) else { return Ok(None) };
            let charge = if retried && !replay {
                shared.charge(now, self.hash, &letter.message)
            } else {
                Charge::Granted
            };
            match charge {
                Charge::Granted => return Ok(Some(pass)),
                Charge::NotBefore(again) => {
                    drop(pass);
                    if self.sleep_until(again).await.is_none() {
                        return Ok(None);
                    }
                }
                Charge::Exhausted(dimension) => {
                    let mut cause = letter.cause.clone();
                    if let Some(Failure { reason, .. }) = &cause {
                        let (queue, message) = (&self.component.queue, &*letter.message);
                        shared.tell(&Event::RetryExhausted { queue, message, limit: None, reason });
                    }
                    if let Some(cause) = &mut cause {
                        cause.message =
                            format!("retry budget {} used up; {}", dimension.as_str(), cause.message);
                    }
                    return Err(self.as_dead(letter, cause));
                }
            }
        }
    }

    /// What became of the attempt. `None` when the consumer stops instead.
    fn judge(
        &self,
        letter: &Arc<Letter>,
        delivery: &Delivery,
        outcome: Outcome,
        wish: &StoredDesk,
        pass: Pass,
        took: Duration,
    ) -> Option<Settlement> {
        let shared = &self.component.shared;
        let kind = match self.purpose {
            Purpose::Retry => AttemptKind::Retry,
            Purpose::Replay(_) => AttemptKind::Replay,
        };
        let error = match outcome {
            Outcome::Failed(error) => error,
            Outcome::SentToDlq => {
                let (reason, why) = wish.take();
                HandlerError::foreign("sent by the handler", why)
                    .reason(reason)
                    .verdict(lazaret_core::Verdict::DeadLetter)
            }
            Outcome::Handled | Outcome::Filtered | Outcome::Duplicate => {
                shared.breaker_hears(outcome.sign(), pass);
                shared.fuse_ok(1);
                let attempt = judge::attempt_record(self.component, kind, delivery.attempt(), took, None);
                return Some(Settlement::Resolve(Some(attempt)));
            }
        };
        let judged = judge::classify(self.component, delivery, &error, delivery.attempt());
        // A replay comes long after the failure: what has happened since then says nothing.
        let retry_since = letter.first_failed_at.filter(|_| *self.purpose == Purpose::Retry);
        shared.breaker_hears(judge::sign(self.component, &judged, retry_since), pass);
        let failure = judged.failure;
        let entry = judge::attempt_record(self.component, kind, delivery.attempt(), took, Some(&failure));
        let replayed = *self.purpose != Purpose::Retry;
        // A replay of a letter that failed before is not an automatic attempt. That of one that only waited is its
        // first.
        let automatic = !replayed || letter.cause.is_none();
        let attempts = letter.attempts + u32::from(automatic);
        let record = Record::failed(Record::from_letter(letter), attempts, entry, failure.clone());
        let step = if !automatic {
            // A replay that fails gives no new automatic attempts: the letter stays what it was (I4).
            let replays = letter.replay_attempts + 1;
            let enough = shared.options.replay.max_replays.is_some_and(|limit| replays >= limit);
            let state = if enough { LetterState::Parked } else { letter.state };
            Step::End { state, why: crate::decide::End::Verdict }
        } else {
            judge::next_step(self.component, delivery, judged.verdict, &record, true)
        };
        let (state, due_at) = match step {
            Step::Wait { due } | Step::Later { due } => (LetterState::Retrying, Some(due)),
            Step::End { state: LetterState::Retrying, .. } => (LetterState::Retrying, letter.due_at),
            Step::End { state: LetterState::Waiting, .. } => (LetterState::Dead, None),
            Step::End { state, .. } => (state, None),
            Step::Skip => return Some(Settlement::Skip(failure.to_string())),
            Step::Duplicate => return Some(Settlement::Resolve(None)),
            Step::Stop => {
                let (message, why) = (letter.message.id.to_string(), "the failure was classified as stop");
                shared.stop(Error::Stopped { message, why, failure: Some(Box::new(failure)) });
                return None;
            }
        };
        let decision = judge::ask_policy(self.component, letter, &failure, Stage::Replay);
        if !decision.keeps() {
            return Some(Settlement::Evict("the enqueue policy gave it up".to_owned()));
        }
        let ignored = decision == Decision::Ignore;
        let mut diagnostics = letter.diagnostics.clone();
        diagnostics.extend(delivery.metadata());
        Some(Settlement::Requeue(Box::new(Requeue {
            state,
            due_at,
            cause: if ignored { None } else { Some(decision.cause().cloned().unwrap_or(failure)) },
            attempts,
            crash_attempts: letter.crash_attempts,
            replay_attempts: letter.replay_attempts + u32::from(replayed),
            poison: judge::is_poison(self.component, &letter.message, &record),
            diagnostics: if ignored {
                letter.diagnostics.clone()
            } else {
                decision.diagnostics().cloned().unwrap_or(diagnostics)
            },
            attempt: record.history.last().cloned(),
            leave_out_payload: self.leaves_out_payload(state),
        })))
    }

    /// The letter as one that will not be tried again by itself.
    fn as_dead(&self, letter: &Letter, cause: Option<Failure>) -> Settlement {
        Settlement::Requeue(Box::new(Requeue {
            state: LetterState::Dead,
            due_at: None,
            cause,
            attempts: letter.attempts,
            crash_attempts: letter.crash_attempts,
            replay_attempts: letter.replay_attempts,
            poison: letter.poison
                || judge::retry_policy(self.component, &letter.message)
                    .too_many_crashes(letter.crash_attempts),
            diagnostics: letter.diagnostics.clone(),
            attempt: None,
            leave_out_payload: self.leaves_out_payload(LetterState::Dead),
        }))
    }

    /// The letter as one whose replay killed the process.
    fn as_crashed(&self, letter: &Letter, crashes: u32) -> Settlement {
        let crash_attempts = letter.crash_attempts + crashes;
        let letter =
            Letter { crash_attempts, replay_attempts: letter.replay_attempts + crashes, ..letter.clone() };
        self.as_dead(&letter, Some(judge::crash(crash_attempts)))
    }

    fn leaves_out_payload(&self, state: LetterState) -> bool {
        let options = &self.component.shared.options.dead_letter;
        options.as_ref().is_some_and(|options| options.leaves_out_payload(state))
    }

    /// Writes the settlement until it is known to be written. `None` when it cannot be, or when it is not known how the
    /// sequence goes on.
    async fn settle(&self, letter: &Letter, settlement: Settlement) -> Option<Settled> {
        let shared = &self.component.shared;
        if let Settlement::Requeue(requeue) = &settlement
            && *self.purpose == Purpose::Retry
            && !requeue.state.is_automatic()
        {
            shared.fuse_terminal();
        }
        let mut delay = Duration::from_millis(20);
        let mut trouble = None;
        let mut maybe_done = false;
        loop {
            match shared.store.settle(self.lease, letter.id, settlement.clone()).await {
                Ok(settled) => {
                    self.tell_settled(letter, &settlement);
                    return Some(settled);
                }
                Err(error) => {
                    maybe_done |= error.certainty() == Certainty::MaybeDone;
                    if !error.kind().is_temporary() {
                        if maybe_done {
                            self.tell_settled(letter, &settlement);
                        }
                        return None;
                    }
                    Counters::add(&shared.counters.hand_off_failures, 1);
                    let text = error.to_string();
                    let (queue, kind) = (&self.component.queue, error.kind());
                    shared.tell(&Event::HandOffFailed { queue, kind, error: &text });
                    trouble.get_or_insert_with(|| shared.gate.trouble());
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(Duration::from_secs(2));
                }
            }
        }
    }

    fn tell_settled(&self, letter: &Letter, settlement: &Settlement) {
        let shared = &self.component.shared;
        let (queue, message) = (&self.component.queue, &*letter.message);
        let replay = match self.purpose {
            Purpose::Retry => None,
            Purpose::Replay(operation) => Some(operation.as_str()),
        };
        shared.flight.forget(queue, &message.id);
        let state = match settlement {
            Settlement::Resolve(_) => {
                Counters::add(&shared.counters.handled, 1);
                Counters::add(&shared.counters.resolved, 1);
                LetterState::Resolved
            }
            Settlement::Evict(_) => LetterState::Evicted,
            Settlement::Skip(_) => {
                Counters::add(&shared.counters.skipped, 1);
                LetterState::Skipped
            }
            Settlement::Requeue(requeue) => {
                let cause = requeue.cause.as_ref().or(letter.cause.as_ref());
                shared.tell(&Event::LetterStored {
                    queue,
                    message,
                    sequence: &letter.sequence,
                    state: requeue.state,
                    before: Some(letter.state),
                    cause,
                    replay,
                });
                return;
            }
        };
        shared.tell(&Event::LetterClosed { queue, message, state, replay });
    }
}
