//! Builds new letters, and the changes to letters that failed again.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::handler::Delivery;
use lazaret_core::letter::{AttemptKind, AttemptRecord, Diagnostics};
use lazaret_core::policy::{Decision, Stage};
use lazaret_core::store::{Dismissal, Requeue, Settlement};
use lazaret_core::{Failure, Letter, LetterState, Message, Reason, SequenceId, Timestamp};

use crate::classify;
use crate::component::Component;
use crate::limits::AttemptUsage;
use crate::mutation::mutated;
use crate::panics::guarded;
use crate::record::{FailureRecord, lost_lease};
use crate::time::later;

/// Builds a new letter for a live message.
pub(crate) fn new_letter(
    component: &Component,
    delivery: &Delivery,
    sequence: &SequenceId,
    state: LetterState,
    due_at: Option<Timestamp>,
    record: Option<&FailureRecord>,
) -> Letter {
    let now = component.now();
    let message = delivery.message();
    let placed = component.letter_sequence(message, sequence);
    let mut kept = Arc::new(Message { hop: None, ..message.clone() });
    component.options.redact.apply_to_message(&mut kept);
    let mut letter = Letter::new(component.queue.clone(), placed, kept, now);
    letter.state = state;
    letter.due_at = due_at;
    letter.diagnostics = delivery.metadata();
    component.options.redact.apply_to_diagnostics(&mut letter.diagnostics);
    if let Some(options) = &component.options.dead_letter {
        letter.owner.clone_from(&options.owner);
        if options.leaves_out_payload(state) {
            letter.message = Arc::new(Message { payload: None, ..(*letter.message).clone() });
            letter.payload_left_out = true;
        }
        // A letter that waits behind others has not failed, so it does not expire yet.
        letter.expires_at = expiry(component, now).filter(|_| state != LetterState::Waiting);
    }
    if let Some(record) = record {
        letter.cause = Some(record.failure.clone());
        letter.attempts = record.attempts;
        letter.crash_attempts = record.crashes;
        letter.first_failed_at = Some(record.first_failed_at);
        letter.last_failed_at = Some(record.last_failed_at);
        letter.history.clone_from(&record.history);
        letter.poison = component.limits(message, None).is_poison(&record.usage());
    }
    if component.options.detaches(state, message, reason_of(&letter)) {
        letter.sequence = letter.sequence.detached(letter.id);
    }
    letter
}

/// Returns the expiry time of a letter that fails now.
fn expiry(component: &Component, now: Timestamp) -> Option<Timestamp> {
    let ttl = component.options.dead_letter.as_ref()?.ttl?;
    let share = if mutated!(component.options, ExpireEarly) { 2 } else { 1 };
    Some(later(now, ttl / share))
}

fn reason_of(letter: &Letter) -> Option<&Reason> {
    letter.cause.as_ref().map(|cause| &cause.reason)
}

/// Asks the user's enqueue policy about a letter. If the policy panics, the decision is "enqueue" (I10).
pub(crate) fn apply_enqueue_policy(
    component: &Component,
    letter: &Letter,
    failure: &Failure,
    stage: Stage,
) -> Decision {
    let policy = &component.options.enqueue;
    let decision = guarded(|| policy.decide(letter, failure, stage)).unwrap_or_else(|_| {
        let mut diagnostics: Diagnostics = letter.diagnostics.clone();
        diagnostics.insert("enqueue-policy".to_owned(), "panicked".to_owned());
        Decision::Enqueue { cause: None, diagnostics: Some(diagnostics) }
    });
    redacted(component, decision)
}

/// Redacts the cause and the diagnostics that an enqueue policy may have set in its decision.
fn redacted(component: &Component, mut decision: Decision) -> Decision {
    let rules = &component.options.redact;
    if let Decision::Enqueue { cause, diagnostics } | Decision::Requeue { cause, diagnostics } = &mut decision
    {
        cause.iter_mut().for_each(|cause| {
            rules.apply_to_failure(cause);
        });
        diagnostics.iter_mut().for_each(|diagnostics| {
            rules.apply_to_diagnostics(diagnostics);
        });
    }
    decision
}

/// A letter whose attempt failed, and its next state.
pub(crate) struct FailedLetter<'a> {
    pub(crate) letter: &'a Letter,
    pub(crate) delivery: &'a Delivery,
    pub(crate) failure: Failure,
    pub(crate) record: &'a FailureRecord,
    pub(crate) replayed: bool,
    /// `true` if the handler sent the message to the dead letters.
    pub(crate) sent_by_handler: bool,
    pub(crate) state: LetterState,
    pub(crate) due_at: Option<Timestamp>,
}

/// Requeues a letter after a failed attempt, unless the enqueue policy evicts it.
pub(crate) fn requeue(component: &Component, failed: FailedLetter<'_>) -> Settlement {
    let FailedLetter { letter, delivery, failure, record, replayed, sent_by_handler, state, due_at } = failed;
    if !sent_by_handler && discards(component, letter, state) {
        return discarded(record.history.last().cloned());
    }
    let decision = apply_enqueue_policy(component, letter, &failure, Stage::Replay);
    if !decision.keeps() {
        let attempt = record.history.last().cloned();
        return Settlement::Evict(Dismissal::after(attempt, "evicted by the enqueue policy"));
    }
    let ignored = decision == Decision::Ignore;
    let mut diagnostics = letter.diagnostics.clone();
    // Redacted before the merge: a redacted name replaces the name of the previous attempt.
    let mut reported = delivery.metadata();
    component.options.redact.apply_to_diagnostics(&mut reported);
    diagnostics.extend(reported);
    component.options.redact.apply_to_diagnostics(&mut diagnostics);
    let detach = component.options.detaches(state, &letter.message, Some(&failure.reason));
    Settlement::Requeue(Box::new(Requeue {
        state,
        due_at,
        cause: if ignored { None } else { Some(decision.cause().cloned().unwrap_or(failure)) },
        attempts: record.attempts,
        replay_attempts: letter.replay_attempts.saturating_add(u32::from(replayed)),
        poison: component.limits(&letter.message, None).is_poison(&record.usage()),
        diagnostics: if ignored {
            letter.diagnostics.clone()
        } else {
            decision.diagnostics().cloned().unwrap_or(diagnostics)
        },
        attempt: record.history.last().cloned(),
        leave_out_payload: leaves_out_payload(component, state),
        detach,
        expires_at: expiry(component, component.now()),
        ..Requeue::of(letter)
    }))
}

/// Ends the automatic attempts of a letter.
pub(crate) fn dead(component: &Component, letter: &Letter, cause: Option<Failure>) -> Settlement {
    if discards(component, letter, LetterState::Dead) {
        return discarded(None);
    }
    let usage = AttemptUsage {
        attempts: letter.attempts,
        crashes: letter.crash_attempts,
        same_failure: 0,
        first_failed_at: letter.first_failed_at.unwrap_or(letter.enqueued_at),
    };
    let reason = cause.as_ref().map(|cause| &cause.reason).or_else(|| reason_of(letter));
    Settlement::Requeue(Box::new(Requeue {
        state: LetterState::Dead,
        due_at: None,
        detach: component.options.detaches(LetterState::Dead, &letter.message, reason),
        cause,
        poison: letter.poison || component.limits(&letter.message, None).is_poison(&usage),
        leave_out_payload: leaves_out_payload(component, LetterState::Dead),
        expires_at: expiry(component, component.now()),
        ..Requeue::of(letter)
    }))
}

/// Returns `true` if a letter that ends in this state is discarded. A letter that is already dead was
/// kept on purpose, so a failed replay does not discard it.
fn discards(component: &Component, letter: &Letter, state: LetterState) -> bool {
    letter.state != LetterState::Dead && component.options.discards(state)
}

/// Returns the settlement of a letter that failed for good while dead letters are disabled.
fn discarded(attempt: Option<AttemptRecord>) -> Settlement {
    Settlement::Evict(Dismissal::after(attempt, "dead letters are disabled"))
}

/// Counts an attempt whose end is unknown because its lease was lost. The letter is due at once, unless
/// that was the last attempt.
///
/// The attempt counts as a crash only if no flight recorder tells which message crashed the process. A
/// flight recorder does not blame messages that were merely in flight at the same time.
pub(crate) fn interrupted(component: &Component, letter: &Letter) -> Settlement {
    let (now, limits) = (component.now(), component.limits(&letter.message, reason_of(letter)));
    let may_be_crash = component.flight.recorder().is_none();
    let crash_attempts = letter.crash_attempts.saturating_add(u32::from(may_be_crash));
    let attempts = limits.attempts_after_lost_lease(letter.attempts);
    let cause = component.grouped(lost_lease(), &letter.message);
    let counted = Letter { attempts, crash_attempts, ..letter.clone() };
    let usage = AttemptUsage {
        attempts,
        crashes: crash_attempts,
        same_failure: 0,
        first_failed_at: letter.first_failed_at.unwrap_or(now),
    };
    if limits.reached(&usage, now).is_some() {
        return dead(component, &counted, Some(cause));
    }
    let number = letter.attempts.saturating_add(letter.replay_attempts).saturating_add(1);
    let kind = AttemptKind::Retry;
    let attempt = classify::attempt_record(component, kind, number, Duration::ZERO, Some(&cause));
    Settlement::Requeue(Box::new(Requeue {
        state: LetterState::Retrying,
        // The lease has already delayed the letter.
        due_at: Some(now),
        cause: Some(cause),
        attempt: Some(attempt),
        expires_at: expiry(component, now),
        ..Requeue::of(&counted)
    }))
}

/// Requeues a letter whose attempt the handler did not make. Only its due time changes.
pub(crate) fn deferred(letter: &Letter, due_at: Timestamp) -> Settlement {
    Settlement::Requeue(Box::new(Requeue {
        state: LetterState::Retrying,
        due_at: Some(due_at),
        ..Requeue::of(letter)
    }))
}

fn leaves_out_payload(component: &Component, state: LetterState) -> bool {
    component.options.dead_letter.as_ref().is_some_and(|options| options.leaves_out_payload(state))
}
