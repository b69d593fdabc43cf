//! Logs the events of a consumer with reason and queue, without error texts by default.

use lazaret_core::LetterState;
use lazaret_core::redaction::TextRules;
use lazaret_core::store::PauseScope;
use lazaret_engine::{Event, Observer};

use crate::log_throttle::{LineKind, LogThrottle};
use crate::metrics::scope_name;

/// Logs the events of one consumer.
///
/// Repeated lines are limited per second and kind, to ten about letters and one about anything else, with the number of `suppressed`
/// ones, so that a failure storm does not fill a disk. Suppressed lines about letters are logged at level `debug`, and so are all
/// failed attempts.
pub struct LogObserver {
    consumer: String,
    handler: Option<String>,
    with_errors: bool,
    redact: TextRules,
    throttle: LogThrottle,
}

impl LogObserver {
    /// Creates the observer of a consumer.
    pub fn new(consumer: &str) -> Self {
        let throttle = LogThrottle::default();
        let redact = TextRules::default();
        Self { consumer: consumer.to_owned(), handler: None, with_errors: false, redact, throttle }
    }

    /// Names the address of the handler where it cannot be reached. It must not contain credentials.
    #[must_use]
    pub fn with_handler(mut self, address: Option<String>) -> Self {
        self.handler = address;
        self
    }

    /// Includes error texts. They may contain message contents.
    #[must_use]
    pub fn with_error_messages(mut self, with_errors: bool) -> Self {
        self.with_errors = with_errors;
        self
    }

    /// Redacts error texts by these rules.
    #[must_use]
    pub fn with_redaction(mut self, rules: TextRules) -> Self {
        self.redact = rules;
        self
    }

    /// The error text, if it may be logged.
    fn loggable(&self, error: &str) -> Option<String> {
        self.with_errors.then(|| self.redact.redact(error).into_owned())
    }

    /// Logs an event that concerns the consumer rather than a message.
    fn on_consumer_event(&self, event: &Event<'_>) {
        let consumer = self.consumer.as_str();
        match event {
            // Errors of stores and brokers name places and sizes, never message contents.
            Event::HandOffFailed { queue, error, .. } => {
                if let Some(suppressed) = self.throttle.admit(LineKind::HandOff) {
                    tracing::error!(consumer, %queue, error, suppressed, "letter hand-off failed, source held");
                }
            }
            Event::RelayFailed { queue, error, .. } => {
                if let Some(suppressed) = self.throttle.admit(LineKind::Publish) {
                    tracing::warn!(
                        consumer, %queue, error, suppressed, "message publish failed, letter kept in the store"
                    );
                }
            }
            Event::CommitFailed { error } => {
                if let Some(suppressed) = self.throttle.admit(LineKind::Commit) {
                    tracing::warn!(consumer, error, suppressed, "position commit failed, retry pending");
                }
            }
            Event::Paused { scope, .. } => {
                let (scope, place) = (scope_name(scope), place(scope));
                tracing::warn!(consumer, scope, place, "consumer paused");
            }
            Event::Resumed { scope } => {
                let (scope, place) = (scope_name(scope), place(scope));
                tracing::info!(consumer, scope, place, "consumer resumed");
            }
            Event::BreakerOpened { until, failure } => {
                let error = self.loggable(&failure.message);
                tracing::warn!(
                    consumer, next_probe = %until, handler = self.handler, reason = %failure.reason,
                    error_type = failure.error_type, status = failure.status, error,
                    "circuit breaker opened, handler calls suspended"
                );
            }
            Event::BreakerClosed => {
                tracing::info!(consumer, "circuit breaker closed, handler calls resumed");
            }
            Event::FuseBlown { why } => {
                tracing::error!(consumer, why, "fuse blown, consumer paused until resumed");
            }
            Event::Expired { queue, letters } => tracing::info!(consumer, %queue, letters, "letters expired"),
            Event::IncarnationBegan { partition } => {
                tracing::warn!(consumer, %partition, "stream recreated, its messages are read from the beginning");
            }
            Event::Assigned { partition } => tracing::info!(consumer, %partition, "partition assigned"),
            Event::Revoked { partition, lost } => {
                tracing::info!(consumer, %partition, lost, "partition revoked");
            }
            _ => {}
        }
    }
}

impl Observer for LogObserver {
    fn on(&self, event: &Event<'_>) {
        let consumer = self.consumer.as_str();
        match event {
            Event::Failed { queue, message, attempt, failure, verdict, .. } => tracing::debug!(
                consumer, %queue, message_id = %message.id, attempt, reason = %failure.reason, phase = %failure.phase,
                %verdict, error = self.loggable(&failure.message), "attempt failed"
            ),
            Event::RetryScheduled { queue, message, due, reason, .. } => tracing::debug!(
                consumer, %queue, message_id = %message.id, %due, %reason, "retry scheduled"
            ),
            Event::RetryExhausted { queue, message, limit, reason, .. } => {
                let limit = limit.map(|limit| limit.as_str());
                match self.throttle.admit(LineKind::Exhausted) {
                    Some(suppressed) => tracing::info!(
                        consumer, %queue, message_id = %message.id, limit, %reason, suppressed, "retries exhausted"
                    ),
                    None => tracing::debug!(
                        consumer, %queue, message_id = %message.id, limit, %reason, "retries exhausted"
                    ),
                }
            }
            Event::LetterStored { queue, message, letter, state, cause, replay, .. } => {
                let (reason, operation) = (cause.map(|cause| cause.reason.as_str()), *replay);
                let error = cause.and_then(|cause| self.loggable(&cause.message));
                if *state == LetterState::Waiting {
                    // One of many behind a head that was logged at level `info`.
                    tracing::debug!(
                        consumer, %queue, message_id = %message.id, %letter, %state, "letter queued behind its head"
                    );
                } else if let Some(suppressed) = self.throttle.admit(LineKind::Letter(*state)) {
                    tracing::info!(
                        consumer, %queue, message_id = %message.id, %letter, %state, reason, error, operation, suppressed,
                        "letter {}", past_tense(*state)
                    );
                } else {
                    tracing::debug!(
                        consumer, %queue, message_id = %message.id, %letter, %state, reason, error, operation,
                        "letter {}", past_tense(*state)
                    );
                }
            }
            Event::LetterClosed { queue, message, letter, state, replay } => {
                match self.throttle.admit(LineKind::Letter(*state)) {
                    Some(suppressed) => tracing::info!(
                        consumer, %queue, message_id = %message.id, %letter, %state, operation = *replay, suppressed,
                        "letter closed"
                    ),
                    None => tracing::debug!(
                        consumer, %queue, message_id = %message.id, %letter, %state, operation = *replay, "letter closed"
                    ),
                }
            }
            Event::Relayed { queue, message, state, .. } => {
                tracing::debug!(consumer, %queue, message_id = %message.id, %state, "message published");
            }
            Event::Poison { queue, message, .. } => {
                tracing::warn!(consumer, %queue, message_id = %message.id, "poison message detected");
            }
            _ => self.on_consumer_event(event),
        }
    }
}

/// The transition into a state, as a log line names it.
const fn past_tense(state: LetterState) -> &'static str {
    match state {
        LetterState::Retrying => "stored for retry",
        LetterState::Dead => "dead-lettered",
        LetterState::Parked => "parked",
        LetterState::Quarantined => "quarantined",
        LetterState::Waiting => "queued behind its head",
        LetterState::Resolved => "resolved",
        LetterState::Evicted => "evicted",
        LetterState::Skipped => "skipped",
        LetterState::Expired => "expired",
    }
}

/// The paused stream or partition. A sequence is a key and is not logged.
fn place(scope: &PauseScope) -> Option<String> {
    match scope {
        PauseScope::Stream(stream) => Some(stream.to_string()),
        PauseScope::Partition(partition) => Some(partition.to_string()),
        PauseScope::Consumer | PauseScope::Sequence(_) | PauseScope::Replay => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use lazaret_core::Partition;

    use super::*;

    /// What the subscriber writes.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that an observer of `orders` logs about events.
    fn logged(events: &[Event<'_>]) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false);
        let observer = LogObserver::new("orders");
        tracing::subscriber::with_default(subscriber.without_time().finish(), || {
            events.iter().for_each(|event| observer.on(event));
        });
        let lines = lines.0.lock().unwrap();
        String::from_utf8_lossy(&lines).into_owned()
    }

    #[test]
    fn a_recreated_stream_is_logged_as_a_warning_with_its_partition() {
        let partition = &Partition::new("events", 3);
        let line = logged(&[Event::IncarnationBegan { partition }]);
        let warning = "stream recreated, its messages are read from the beginning";
        assert!(line.starts_with(&format!(" WARN lazaret_telemetry::log_observer: {warning}")), "{line}");
        assert!(line.ends_with(" consumer=\"orders\" partition=events/3\n"), "{line}");
        let again = logged(&[Event::IncarnationBegan { partition }, Event::IncarnationBegan { partition }]);
        assert_eq!(
            again,
            format!("{line}{line}"),
            "none is suppressed: each is another partition or another life"
        );
    }
}
