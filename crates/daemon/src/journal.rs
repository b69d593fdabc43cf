//! Writes what happens to a consumer into the log: which reason, which queue, never which words.

use lazaret_engine::{Event, Observer};

/// Logs the events of one consumer.
pub(crate) struct Journal {
    consumer: String,
}

impl Journal {
    pub(crate) fn of(consumer: &str) -> Self {
        Self { consumer: consumer.to_owned() }
    }
}

impl Observer for Journal {
    fn on(&self, event: &Event<'_>) {
        let consumer = self.consumer.as_str();
        match event {
            Event::Failed { message, attempt, failure, verdict, .. } => tracing::debug!(
                consumer, message_id = %message.id, attempt, reason = %failure.reason, %verdict, "an attempt failed"
            ),
            Event::LetterStored { message, state, .. } => {
                tracing::info!(consumer, message_id = %message.id, %state, "a message became a letter");
            }
            Event::Poison { message, .. } => {
                tracing::warn!(consumer, message_id = %message.id, "a message is poison");
            }
            Event::HandOffFailed { error, .. } => {
                tracing::error!(consumer, error, "the store does not take a letter; the source waits");
            }
            Event::CommitFailed { error } => {
                tracing::warn!(consumer, error, "positions could not be committed; it is tried again");
            }
            Event::Paused { scope, .. } => tracing::warn!(consumer, ?scope, "paused"),
            Event::Resumed { scope } => tracing::info!(consumer, ?scope, "resumed"),
            Event::BreakerOpened { until } => {
                tracing::warn!(consumer, %until, "the breaker opened: the handler is left alone");
            }
            Event::BreakerClosed => tracing::info!(consumer, "the breaker closed"),
            Event::FuseBlown { why } => {
                tracing::error!(consumer, why, "the fuse blew: the consumer is paused until it is resumed");
            }
            Event::Assigned { partition } => tracing::info!(consumer, %partition, "reads a partition"),
            Event::Revoked { partition, lost } => {
                tracing::info!(consumer, %partition, lost, "a partition went");
            }
            _ => {}
        }
    }
}
