//! From a failed attempt to the next step: classify, decide, and write the letter.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::handler::Delivery;
use lazaret_core::letter::{AttemptKind, AttemptRecord, Diagnostics, HISTORY_LIMIT};
use lazaret_core::policy::{Classification, Decision, RetryPolicy, Stage, Subject, run_length};
use lazaret_core::recorder::Suspect;
use lazaret_core::relay::Hop;
use lazaret_core::store::AttemptNote;
use lazaret_core::{
    Failure, HandlerError, Letter, LetterState, Message, Phase, Reason, SequenceId, Timestamp, Verdict,
};

use crate::attempt::guarded;
use crate::decide::{End, Facts, Step, decide};
use crate::events::{Counters, Event};
use crate::gate::Sign;
use crate::shared::{Component, later};

/// What is known about the failures of one message.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Automatic attempts so far.
    pub(crate) attempts: u32,
    /// Attempts of these that ended with the death of the process.
    pub(crate) crashes: u32,
    pub(crate) first_failed_at: Timestamp,
    pub(crate) last_failed_at: Timestamp,
    pub(crate) failure: Failure,
    /// How often in a row it failed in the same way.
    pub(crate) same_failure: u32,
    /// When the next attempt may start, if that was decided elsewhere.
    pub(crate) due_at: Option<Timestamp>,
    pub(crate) history: Vec<AttemptRecord>,
}

impl Record {
    /// What was noted before a restart.
    pub(crate) fn from_note(note: AttemptNote) -> Self {
        Self {
            attempts: note.attempts,
            crashes: 0,
            first_failed_at: note.first_failed_at,
            last_failed_at: note.first_failed_at,
            failure: note.failure,
            same_failure: note.same_failure,
            due_at: Some(note.due_at),
            history: Vec::new(),
        }
    }

    /// What came back with a message that was passed on.
    pub(crate) fn from_hop(hop: &Hop) -> Self {
        Self {
            attempts: hop.attempts,
            crashes: hop.crashes,
            first_failed_at: hop.first_failed_at,
            last_failed_at: hop.last_failed_at,
            failure: hop.failure.clone(),
            same_failure: hop.same_failure,
            due_at: Some(hop.due_at),
            history: Vec::new(),
        }
    }

    /// What a letter says about itself; `None` when it never failed.
    pub(crate) fn from_letter(letter: &Letter) -> Option<Self> {
        let failure = letter.cause.clone()?;
        let fingerprint = failure.fingerprint;
        let same = letter.history.iter().rev();
        let same =
            same.take_while(|a| a.failure.as_ref().is_some_and(|f| f.fingerprint == fingerprint)).count();
        Some(Self {
            attempts: letter.attempts,
            crashes: letter.crash_attempts,
            first_failed_at: letter.first_failed_at.unwrap_or(letter.enqueued_at),
            last_failed_at: letter.last_failed_at.unwrap_or(letter.enqueued_at),
            failure,
            // Somebody who released it gave it fresh attempts: what was before them does not count.
            same_failure: u32::try_from(same).unwrap_or(u32::MAX).min(letter.attempts),
            due_at: None,
            history: Vec::new(),
        })
    }

    /// An attempt failed; `attempts` is how many automatic ones there were with it.
    pub(crate) fn failed(
        earlier: Option<Self>,
        attempts: u32,
        attempt: AttemptRecord,
        failure: Failure,
    ) -> Self {
        let previous = earlier.as_ref().map(|r| (r.failure.fingerprint, r.same_failure));
        let same_failure = run_length(previous, failure.fingerprint);
        let first_failed_at = earlier.as_ref().map_or(attempt.at, |r| r.first_failed_at);
        let crashes = earlier.as_ref().map_or(0, |r| r.crashes);
        let mut history = earlier.map(|r| r.history).unwrap_or_default();
        if history.len() == HISTORY_LIMIT {
            history.remove(1);
        }
        let last_failed_at = attempt.at;
        history.push(attempt);
        Self {
            attempts,
            crashes,
            first_failed_at,
            last_failed_at,
            failure,
            same_failure,
            due_at: None,
            history,
        }
    }

    /// The process died while this message alone was in flight. Attempts that were cut off in company do not count, so the
    /// number of the last one says nothing: every charged crash is one attempt.
    pub(crate) fn crashed(earlier: Option<Self>, suspect: &Suspect, now: Timestamp) -> Self {
        let attempts = earlier.as_ref().map_or(0, |r| r.attempts) + suspect.crashes;
        let first_failed_at = earlier.as_ref().map_or(now, |r| r.first_failed_at);
        // Those before it was passed on stand in its headers and not in the recorder.
        let crashes = earlier.as_ref().map_or(0, |r| r.crashes) + suspect.crashes;
        Self {
            attempts,
            crashes,
            first_failed_at,
            last_failed_at: now,
            failure: crash(crashes),
            same_failure: crashes,
            due_at: earlier.as_ref().and_then(|r| r.due_at),
            history: earlier.map(|r| r.history).unwrap_or_default(),
        }
    }
}

/// The failure of a message that killed the process.
pub(crate) fn crash(times: u32) -> Failure {
    let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
    let text = format!("the process died {times} while this message alone was being handled");
    Failure::new(Reason::CRASHED, "process died", text)
}

/// A failure with its classification.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) failure: Failure,
    pub(crate) verdict: Verdict,
}

/// Classifies the error of an attempt and tells observers.
pub(crate) fn classify(
    component: &Component,
    delivery: &Delivery,
    error: &HandlerError,
    attempt: u32,
) -> Judged {
    let shared = &component.shared;
    // I10: reading an error runs the user's code down its cause chain.
    let mut failure = guarded(|| error.failure_in(delivery.phase()))
        .unwrap_or_else(|panic| panic.failure_in(delivery.phase()));
    if !shared.options.dead_letter.as_ref().is_some_and(|options| options.include_backtrace) {
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
    // I10: a classifier that panics is this message's failure.
    let Classification { verdict, reason, .. } = guarded(|| shared.options.classifier.classify(&subject))
        .unwrap_or_else(|_| Classification {
            verdict: Verdict::DeadLetter,
            reason: Reason::CLASSIFIER_FAILED,
            by: "the classifier panicked".into(),
        });
    failure.reason = reason;
    Counters::add(&shared.counters.failed, 1);
    shared.tell(&Event::Failed {
        queue: &component.queue,
        message: delivery.message(),
        attempt,
        failure: &failure,
        verdict,
    });
    Judged { failure, verdict }
}

/// What a failure says about the dependencies of the handler: one that concerns the message alone shows them well.
/// `retry_since` is when the message of a retry first failed.
pub(crate) fn sign(component: &Component, judged: &Judged, retry_since: Option<Timestamp>) -> Sign {
    let shared = &component.shared;
    match judged.failure.phase {
        // Nobody was asked.
        Phase::Decode | Phase::Filter => Sign::None,
        _ if judged.verdict != Verdict::Retry => Sign::Well,
        _ if retry_since.is_some_and(|since| shared.gate.blames_message(since, shared.now())) => Sign::None,
        _ => Sign::Sick,
    }
}

/// Decides where the message goes, and tells observers when its retries ended.
pub(crate) fn next_step(
    component: &Component,
    delivery: &Delivery,
    verdict: Verdict,
    record: &Record,
    stored: bool,
) -> Step {
    let shared = &component.shared;
    let facts = Facts {
        verdict,
        attempts: record.attempts,
        same_failure: record.same_failure,
        first_failed_at: record.first_failed_at,
        now: shared.now(),
        hint: record.failure.retry_after,
        seed: shared.jitter_seed(delivery.message()),
    };
    let step = decide(retry_policy(component, delivery.message()), &shared.options.poison, &facts, stored);
    let (queue, message, reason) = (&component.queue, delivery.message(), &record.failure.reason);
    match step {
        Step::End { why: End::Exhausted(limit), .. } => {
            shared.tell(&Event::RetryExhausted { queue, message, limit: Some(limit), reason });
        }
        Step::End { why: End::Poison, .. } => {
            shared.tell(&Event::Poison { queue, message });
            shared.tell(&Event::RetryExhausted { queue, message, limit: None, reason });
        }
        Step::Wait { due } => {
            shared.tell(&Event::RetryScheduled { queue, message, due, in_memory: true, reason });
        }
        Step::Later { due } => {
            shared.tell(&Event::RetryScheduled { queue, message, due, in_memory: false, reason });
        }
        _ => {}
    }
    step
}

/// The attempt that has just ended, for the history.
pub(crate) fn attempt_record(
    component: &Component,
    kind: AttemptKind,
    attempt: u32,
    took: Duration,
    failure: Option<&Failure>,
) -> AttemptRecord {
    AttemptRecord { attempt, kind, at: component.shared.now(), took, failure: failure.cloned() }
}

/// A new letter for a live message.
pub(crate) fn write_letter(
    component: &Component,
    delivery: &Delivery,
    sequence: &SequenceId,
    state: LetterState,
    due_at: Option<Timestamp>,
    record: Option<&Record>,
) -> Letter {
    let shared = &component.shared;
    let now = shared.now();
    let message = delivery.message();
    let placed = component.letter_sequence(message, sequence);
    let kept = Arc::new(Message { hop: None, ..message.clone() });
    let mut letter = Letter::new(component.queue.clone(), placed, kept, now);
    letter.state = state;
    letter.due_at = due_at;
    letter.diagnostics = delivery.metadata();
    if let Some(options) = &shared.options.dead_letter {
        letter.owner.clone_from(&options.owner);
        if options.leaves_out_payload(state) {
            letter.message = Arc::new(Message { payload: None, hop: None, ..message.clone() });
            letter.payload_left_out = true;
        }
        letter.expires_at = options.ttl.map(|ttl| later(now, ttl));
    }
    if let Some(record) = record {
        letter.cause = Some(record.failure.clone());
        letter.attempts = record.attempts;
        letter.crash_attempts = record.crashes;
        letter.first_failed_at = Some(record.first_failed_at);
        letter.last_failed_at = Some(record.last_failed_at);
        letter.history.clone_from(&record.history);
        letter.poison = is_poison(component, message, record);
    }
    letter
}

/// Whether the message failed too often in the same way, or killed the process too often.
pub(crate) fn is_poison(component: &Component, message: &Message, record: &Record) -> bool {
    component.shared.options.poison.is_poison(record.same_failure)
        || retry_policy(component, message).too_many_crashes(record.crashes)
}

/// The retry policy for this message: that of its route, or else the consumer's. A handler that panics here has none (I10).
pub(crate) fn retry_policy<'a>(component: &'a Component, message: &Message) -> &'a RetryPolicy {
    let of_route = guarded(|| component.handler.retry_policy(message)).ok().flatten();
    of_route.unwrap_or(&component.shared.options.retry)
}

/// What the user's enqueue policy makes of a letter. A policy that panics is taken to say "enqueue" (I10).
pub(crate) fn ask_policy(
    component: &Component,
    letter: &Letter,
    failure: &Failure,
    stage: Stage,
) -> Decision {
    let policy = &component.shared.options.enqueue;
    guarded(|| policy.decide(letter, failure, stage)).unwrap_or_else(|_| {
        let mut diagnostics: Diagnostics = letter.diagnostics.clone();
        diagnostics.insert("enqueue-policy".to_owned(), "panicked".to_owned());
        Decision::Enqueue { cause: None, diagnostics: Some(diagnostics) }
    })
}
