//! Writes what happens to a consumer into the log: which reason, which queue, never which words unless somebody asks.

use lazaret_core::store::PauseScope;
use lazaret_core::{LetterId, LetterState};
use lazaret_engine::{Event, Observer};

use crate::metrics::scope_name;
use crate::pace::Pace;

/// Logs the events of one consumer.
///
/// Lines that repeat are written once a second and kind, with `left_out` for those in between; each failed attempt is a
/// line at level `debug`, so that a storm does not fill a disk.
pub struct Journal {
    consumer: String,
    with_errors: bool,
    pace: Pace,
}

impl Journal {
    /// The journal of a consumer.
    pub fn of(consumer: &str) -> Self {
        Self { consumer: consumer.to_owned(), with_errors: false, pace: Pace::default() }
    }

    /// Whether the words of failures are logged as well. They may hold what messages hold.
    #[must_use]
    pub fn with_error_messages(mut self, with_errors: bool) -> Self {
        self.with_errors = with_errors;
        self
    }

    /// What a failure said, if that may be told.
    fn words<'a>(&self, error: &'a str) -> Option<&'a str> {
        self.with_errors.then_some(error)
    }
}

impl Observer for Journal {
    fn on(&self, event: &Event<'_>) {
        let consumer = self.consumer.as_str();
        match event {
            Event::Failed { queue, message, attempt, failure, verdict } => tracing::debug!(
                consumer, %queue, message_id = %message.id, attempt, reason = %failure.reason, phase = %failure.phase,
                %verdict, error = self.words(&failure.message), "an attempt failed"
            ),
            Event::RetryScheduled { queue, message, due, reason, .. } => tracing::debug!(
                consumer, %queue, message_id = %message.id, %due, %reason, "a retry is scheduled"
            ),
            Event::RetryExhausted { queue, message, limit, reason } => {
                let limit = limit.map(|limit| limit.as_str());
                tracing::info!(consumer, %queue, message_id = %message.id, limit, %reason, "retries are used up");
            }
            Event::LetterStored { queue, message, state, cause, replay, .. } => {
                let letter = LetterId::of(queue, &message.id);
                let (reason, operation) = (cause.map(|cause| cause.reason.as_str()), *replay);
                let error = cause.and_then(|cause| self.words(&cause.message));
                if *state == LetterState::Waiting {
                    // One of many behind a head that was told of.
                    tracing::debug!(consumer, %queue, message_id = %message.id, %letter, %state, "a message waits behind its head");
                } else {
                    tracing::info!(
                        consumer, %queue, message_id = %message.id, %letter, %state, reason, error, operation,
                        "a message became a letter"
                    );
                }
            }
            Event::LetterClosed { queue, message, state, replay } => {
                let letter = LetterId::of(queue, &message.id);
                tracing::info!(
                    consumer, %queue, message_id = %message.id, %letter, %state, operation = *replay, "a letter left"
                );
            }
            Event::Relayed { queue, message, state, .. } => {
                tracing::debug!(consumer, %queue, message_id = %message.id, %state, "a message was passed on");
            }
            Event::Poison { queue, message } => {
                tracing::warn!(consumer, %queue, message_id = %message.id, "a message is poison");
            }
            _ => self.trouble(event),
        }
    }
}

impl Journal {
    /// What concerns the consumer rather than a message.
    fn trouble(&self, event: &Event<'_>) {
        let consumer = self.consumer.as_str();
        match event {
            // What a store or a broker says names places and sizes, never what a message holds.
            Event::HandOffFailed { queue, error, .. } => {
                if let Some(left_out) = self.pace.admit("hand-off") {
                    tracing::error!(consumer, %queue, error, left_out, "the store does not take a letter; the source waits");
                }
            }
            Event::RelayFailed { queue, error, .. } => {
                if let Some(left_out) = self.pace.admit("passing") {
                    tracing::warn!(consumer, %queue, error, left_out, "a message could not be passed on; the store keeps it");
                }
            }
            Event::CommitFailed { error } => {
                if let Some(left_out) = self.pace.admit("commit") {
                    tracing::warn!(
                        consumer,
                        error,
                        left_out,
                        "positions could not be committed; it is tried again"
                    );
                }
            }
            Event::Paused { scope, .. } => {
                let (scope, place) = (scope_name(scope), place(scope));
                tracing::warn!(consumer, scope, place, "paused");
            }
            Event::Resumed { scope } => {
                let (scope, place) = (scope_name(scope), place(scope));
                tracing::info!(consumer, scope, place, "resumed");
            }
            Event::BreakerOpened { until } => {
                tracing::warn!(consumer, %until, "the breaker opened: the handler is left alone");
            }
            Event::BreakerClosed => tracing::info!(consumer, "the breaker closed"),
            Event::FuseBlown { why } => {
                tracing::error!(consumer, why, "the fuse blew: the consumer is paused until it is resumed");
            }
            Event::Expired { queue, letters } => tracing::info!(consumer, %queue, letters, "letters expired"),
            Event::Assigned { partition } => tracing::info!(consumer, %partition, "reads a partition"),
            Event::Revoked { partition, lost } => {
                tracing::info!(consumer, %partition, lost, "a partition went");
            }
            _ => {}
        }
    }
}

/// Which stream or partition is paused. Which sequence it is stays untold: a sequence is a key.
fn place(scope: &PauseScope) -> Option<String> {
    match scope {
        PauseScope::Stream(stream) => Some(stream.to_string()),
        PauseScope::Partition(partition) => Some(partition.to_string()),
        PauseScope::Consumer | PauseScope::Sequence(_) | PauseScope::Replay => None,
    }
}
