//! Classifies the error of an attempt, derives its meaning for the breaker, and decides the next step.

use std::time::Duration;

use lazaret_core::handler::Delivery;
use lazaret_core::letter::{AttemptKind, AttemptRecord};
use lazaret_core::policy::{Classification, Dimension, Subject};
use lazaret_core::{Failure, HandlerError, LetterState, Phase, Reason, Timestamp, Verdict};

use crate::backlog::Entering;
use crate::component::Component;
use crate::events::Event;
use crate::gate::Health;
use crate::limits::End;
use crate::next_step::{FailedAttempt, Step, next_step};
use crate::panics::guarded;
use crate::record::FailureRecord;
use crate::store_retry::Abandoned;
use crate::telemetry::Counters;

/// A failure with its verdict.
#[derive(Debug)]
pub(crate) struct Classified {
    pub(crate) failure: Failure,
    pub(crate) verdict: Verdict,
    /// `true` if the handler itself sent the message to the dead letters. It is kept even if dead
    /// letters are discarded.
    pub(crate) sent_by_handler: bool,
}

/// Classifies the error of an attempt and reports the failure.
pub(crate) fn classify(
    component: &Component,
    delivery: &Delivery,
    error: &HandlerError,
    attempt: u32,
) -> Classified {
    let options = &component.options;
    // I10: reading an error runs user code along its cause chain.
    let failure = guarded(|| error.failure_in(delivery.phase()))
        .unwrap_or_else(|panic| panic.failure_in(delivery.phase()));
    let mut failure = component.grouped(failure, delivery.message());
    if !options.dead_letter.as_ref().is_some_and(|options| options.include_backtrace) {
        failure.backtrace = None;
    }
    let subject = Subject {
        failure: &failure,
        error: error.error(),
        message: delivery.message(),
        attempt,
        asked: error.asked_verdict(),
        suggested: error.suggested_verdict(),
    };
    // I10: a panic of the classifier is a failure of this message.
    let Classification { verdict, reason, .. } = guarded(|| options.classifier.classify(&subject))
        .unwrap_or_else(|_| Classification {
            verdict: Verdict::DeadLetter,
            reason: Reason::CLASSIFIER_FAILED,
            by: "the classifier panicked".into(),
        });
    failure.reason = reason;
    options.redact.apply_to_failure(&mut failure);
    Counters::add(&component.telemetry.counters.failed, 1);
    component.telemetry.emit(&Event::Failed {
        queue: &component.queue,
        message: delivery.message(),
        letter: delivery.letter().map(|letter| letter.id),
        attempt,
        failure: &failure,
        verdict,
    });
    // The handler's own verdict takes precedence.
    let sent_by_handler =
        error.asked_verdict() == Some(Verdict::DeadLetter) && verdict == Verdict::DeadLetter;
    Classified { failure, verdict, sent_by_handler }
}

/// Returns the health of the handler's dependencies, as shown by a failure. A failure that concerns only
/// the message shows that they respond. `retry_since` is the time of the first failure of a retried
/// message.
pub(crate) fn health(
    component: &Component,
    classified: &Classified,
    retry_since: Option<Timestamp>,
) -> Health {
    match classified.failure.phase {
        // The attempt called no dependency.
        Phase::Decode | Phase::Filter => Health::Unknown,
        _ if classified.verdict != Verdict::Retry => Health::Up,
        _ if retry_since.is_some_and(|since| component.guards.blames_message(since)) => Health::Unknown,
        _ => Health::Down,
    }
}

/// Decides the next step of a failed message. Reports a scheduled retry or the end of the retries. A
/// letter that begins to wait for a retry enters the backlog: keep the returned entry until the letter
/// is durable.
pub(crate) async fn decide<'c>(
    component: &'c Component,
    delivery: &Delivery,
    verdict: Verdict,
    record: &FailureRecord,
    stored: bool,
) -> Result<(Step, Option<Entering<'c>>), Abandoned> {
    let failed = FailedAttempt {
        verdict,
        usage: record.usage(),
        now: component.now(),
        hint: record.failure.retry_after,
        seed: component.identity.jitter_seed(delivery.message()),
    };
    let limits = component.limits(delivery.message(), Some(&record.failure.reason));
    let mut step = next_step(limits, &failed, stored);
    let mut entering = None;
    if matches!(step, Step::Later { .. }) && joins_backlog(component, delivery) {
        entering = component.guards.backlog.enter(component).await?;
        if entering.is_none() {
            step = Step::End { state: LetterState::Dead, why: End::Budget(Dimension::Backlog) };
        }
    }
    let telemetry = &component.telemetry;
    let (queue, message, reason) = (&component.queue, delivery.message(), &record.failure.reason);
    let letter = delivery.letter().map(|letter| letter.id);
    match step {
        Step::End { why: End::Exhausted(limit), .. } => {
            telemetry.emit(&Event::RetryExhausted { queue, message, letter, limit: Some(limit), reason });
        }
        Step::End { why: End::Budget(_), .. } => {
            telemetry.emit(&Event::RetryExhausted { queue, message, letter, limit: None, reason });
        }
        Step::End { why: End::Poison, .. } => {
            telemetry.emit(&Event::Poison { queue, message, letter });
            telemetry.emit(&Event::RetryExhausted { queue, message, letter, limit: None, reason });
        }
        Step::Wait { due } => {
            telemetry.emit(&Event::RetryScheduled { queue, message, letter, due, in_memory: true, reason });
        }
        Step::Later { due } => {
            telemetry.emit(&Event::RetryScheduled { queue, message, letter, due, in_memory: false, reason });
        }
        _ => {}
    }
    Ok((step, entering))
}

/// Returns `true` if a later retry of the message adds a letter to the retry backlog of the store.
fn joins_backlog(component: &Component, delivery: &Delivery) -> bool {
    let options = &component.options;
    let waits_in_store = options.dead_letter.is_some() && options.relay().is_none();
    waits_in_store && delivery.letter().is_none_or(|letter| letter.state != LetterState::Retrying)
}

/// Returns the history entry of the attempt that has just ended.
pub(crate) fn attempt_record(
    component: &Component,
    kind: AttemptKind,
    attempt: u32,
    took: Duration,
    failure: Option<&Failure>,
) -> AttemptRecord {
    AttemptRecord { attempt, kind, at: component.now(), took, failure: failure.cloned() }
}
