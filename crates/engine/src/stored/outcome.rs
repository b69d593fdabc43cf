//! The consequences of an attempt at the head of a stored sequence: its settlement, and the work
//! afterwards.

use std::time::Duration;

use lazaret_core::letter::AttemptKind;
use lazaret_core::policy::Limit;
use lazaret_core::store::{Dismissal, Settled, Settlement};
use lazaret_core::{HandlerError, Letter, LetterState, Verdict};

use super::head::{Ended, HeadAttempt};
use super::run::Purpose;
use crate::admission::{self, AttemptOf, Exhausted};
use crate::attempt::Outcome;
use crate::backlog::Entering;
use crate::classify::{self, Classified};
use crate::component::Component;
use crate::dead_letter_sink::GivenUp;
use crate::dedupe::{self, Claim};
use crate::error::{Error, StopReason};
use crate::events::Event;
use crate::letters::draft::{self, FailedLetter};
use crate::letters::{ResolvedBy, Settler};
use crate::limits::End;
use crate::next_step::{Step, step_after_replay};
use crate::publish::Publish;
use crate::record::FailureRecord;
use crate::time::SteadyWait;

/// The time for which a run of an operation takes one letter after another. Afterwards it polls, which
/// also serves other operations.
const TURN: Duration = Duration::from_millis(500);

/// The work that remains after a letter is settled. It does not need the lease.
#[derive(Default)]
pub(super) struct LeftOver {
    /// The claim of an attempt that did not succeed.
    pub(super) claim: Option<Claim>,
    /// The letter, if it is now dead.
    pub(super) dead: Option<Box<Letter>>,
}

impl LeftOver {
    /// Ends the claim. If a letter died in the store although the broker keeps the dead letters,
    /// publishes a claim check for it: the broker did not accept the message, for example because it is
    /// too large. So readers of the dead-letter topic learn of the letter.
    pub(super) async fn finish(self, component: &Component) {
        dedupe::end(self.claim).await;
        if let Some((relay, letter)) = component.options.relay().zip(self.dead) {
            let (message, from) = (&*letter.message, letter.message.partition());
            let same_failure = letter.same_failures().max(1);
            let publish = Publish { component, message, from: &from, same_failure };
            publish.claim(relay, &letter).await;
        }
    }
}

impl HeadAttempt<'_> {
    /// Reports the end of a letter's retries and makes it a dead letter.
    pub(super) fn exhausted(&self, letter: &Letter, exhausted: Exhausted) -> Settlement {
        let Component { queue, telemetry, .. } = &**self.component;
        let mut cause = letter.cause.clone();
        if let Some(cause) = &mut cause {
            let (message, id, limit) = (&*letter.message, Some(letter.id), exhausted.limit());
            let reason = &cause.reason;
            telemetry.emit(&Event::RetryExhausted { queue, message, letter: id, limit, reason });
            exhausted.annotate(&mut cause.message);
        }
        // If a limit of attempts or time is reached, the stored cause stays. A crash or a budget changes
        // it.
        let unchanged = matches!(exhausted, Exhausted::Limit(Limit::Attempts | Limit::Elapsed));
        draft::dead(self.component, letter, cause.filter(|_| !unchanged))
    }

    /// Returns the settlement that follows from the attempt, and the reason why it resolves the letter,
    /// if it does. Returns `None` if the attempt was deferred or the consumer stops.
    ///
    /// A letter that begins to wait for a retry sets `entering`: keep its value until the letter is
    /// settled.
    pub(super) async fn settlement<'s>(
        &'s self,
        letter: &Letter,
        ended: Ended,
        due: Option<SteadyWait>,
        entering: &mut Option<Entering<'s>>,
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
            // The attempt is repeated and has no settlement.
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
                // Replays do not count for the fuse, neither as successes nor as failures.
                if !replayed && by == ResolvedBy::Handler {
                    component.guards.record_handled();
                }
                let entry = classify::attempt_record(component, kind, attempt, took, None);
                return Some((Settlement::Resolve(Some(entry)), by));
            }
        };
        let classified = classify::classify(component, &delivery, &error, attempt);
        // A replay takes place long after the failure, so successes since then say nothing.
        let retry_since = letter.first_failed_at.filter(|_| !replayed);
        let health = classify::health(component, &classified, retry_since);
        component.guards.report_failure(health, pass, &classified.failure);
        let Classified { failure, verdict, sent_by_handler } = classified;
        let entry = classify::attempt_record(component, kind, attempt, took, Some(&failure));
        // The replay of a letter that failed before is not an automatic attempt. The replay of a letter
        // that only waited is its first automatic attempt.
        let automatic = !replayed || letter.cause.is_none();
        let attempts = letter.attempts.saturating_add(u32::from(automatic));
        let earlier = FailureRecord::from_letter(letter);
        let record = Box::new(FailureRecord::failed(earlier, attempts, entry, failure.clone()));
        let mut failure = Box::new(failure);
        let step = match automatic {
            true => {
                let decided = classify::decide(component, &delivery, verdict, &record, true);
                let (step, enters) = decided.await.ok()?;
                *entering = enters;
                step
            }
            false => self.after_replay(letter, verdict),
        };
        if let Step::End { why: End::Budget(dimension), .. } = step {
            Exhausted::Budget(dimension).annotate(&mut failure.message);
        }
        let (state, due_at) = match step {
            Step::Wait { due } | Step::Later { due } => (LetterState::Retrying, Some(due)),
            Step::End { state: LetterState::Retrying, .. } => {
                (LetterState::Retrying, due.map(|due| due.due_by(&*component.clock)))
            }
            Step::End { state: LetterState::Waiting, .. } => (LetterState::Dead, None),
            Step::End { state, .. } => (state, None),
            Step::Skip => {
                let dismissal = Dismissal::after(record.history.last().cloned(), failure.headline());
                return Some((Settlement::Skip(dismissal), ResolvedBy::Handler));
            }
            // The history shows that the attempt was not a success.
            Step::Duplicate => {
                let attempt = record.history.last().cloned();
                return Some((Settlement::Resolve(attempt), ResolvedBy::Duplicate));
            }
            Step::Stop => {
                let (message, why) = (letter.message.id.to_string(), StopReason::Classified);
                let failure = Some(failure);
                component.lifecycle.fail(Error::Stopped { message, why, failure });
                return None;
            }
        };
        let (delivery, record, failure) = (&delivery, &*record, *failure);
        let failed =
            FailedLetter { letter, delivery, failure, record, replayed, sent_by_handler, state, due_at };
        Some((draft::requeue(component, failed), ResolvedBy::Handler))
    }

    fn after_replay(&self, letter: &Letter, verdict: Verdict) -> Step {
        let replays = letter.replay_attempts.saturating_add(1);
        step_after_replay(verdict, letter.state, replays, self.component.options.replay.max_replays)
    }

    pub(super) async fn settle(
        &self,
        letter: &Letter,
        settlement: Settlement,
        left: &mut LeftOver,
    ) -> Option<Settled> {
        self.settle_by(letter, settlement, ResolvedBy::Handler, left).await
    }

    pub(super) async fn settle_by(
        &self,
        letter: &Letter,
        settlement: Settlement,
        resolved_by: ResolvedBy,
        left: &mut LeftOver,
    ) -> Option<Settled> {
        let (component, purpose) = (&**self.component, self.purpose);
        let (lease, take_next) = (self.lease.lease, self.takes_next());
        let settler = Settler { component, lease, purpose, resolved_by, take_next };
        let dead = newly_dead(letter, &settlement);
        self.lease.settlement_begins();
        let settled = settler.settle(letter, settlement).await?;
        left.dead = dead;
        if let Settled::Next(_) = &settled {
            self.lease.continues().await;
            std::mem::take(left).finish(self.component).await;
        }
        Some(settled)
    }

    /// Returns `true` if an operation may take the next letter together with the settlement, in one
    /// write. It may not if a poll for that letter would have to wait.
    fn takes_next(&self) -> bool {
        let of_operation = self.place.is_some() && *self.purpose != Purpose::Retry;
        of_operation
            && self.claimed_at.instant().elapsed() < TURN
            && !self.component.lifecycle.is_draining()
            && admission::may_claim(self.component, AttemptOf::Replay).is_ok()
    }
}

/// Returns the letter as it will be if this settlement makes it a dead letter.
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
