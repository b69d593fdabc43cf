//! Converts engine events to feed events, without payload, key, sequence or error text.

use jiff::Timestamp;
use lazaret_api::{Event, EventKind, PauseScope};
use lazaret_core::{LetterId, Message, QueueName, store};
use lazaret_engine::Observer;

use super::feed::Feed;

/// Publishes the events of one consumer.
pub(crate) struct FeedObserver {
    feed: Feed,
    consumer: String,
}

impl FeedObserver {
    pub(crate) fn new(feed: Feed, consumer: &str) -> Self {
        Self { feed, consumer: consumer.to_owned() }
    }

    fn event(&self, kind: EventKind) -> Event {
        Event { consumer: Some(self.consumer.clone()), ..Event::new(kind, Timestamp::now()) }
    }

    /// An event of a message and its letter: the one that it is, or will be if it becomes one.
    fn about(
        &self,
        kind: EventKind,
        queue: &QueueName,
        message: &Message,
        letter: Option<LetterId>,
    ) -> Event {
        let letter = letter.unwrap_or_else(|| LetterId::of(queue, &message.id));
        Event {
            queue: Some(queue.to_string()),
            letter: Some(letter.to_string()),
            event_type: message.event_type.as_deref().map(str::to_owned),
            ..self.event(kind)
        }
    }

    fn of_queue(&self, kind: EventKind, queue: &QueueName) -> Event {
        Event { queue: Some(queue.to_string()), ..self.event(kind) }
    }

    fn convert(&self, event: &lazaret_engine::Event<'_>) -> Option<Event> {
        use lazaret_engine::Event as EngineEvent;
        Some(match event {
            EngineEvent::Failed { queue, message, letter, attempt, failure, .. } => Event {
                attempt: Some(*attempt),
                reason: Some(failure.reason.to_string()),
                phase: Some(failure.phase.into()),
                group: Some(failure.fingerprint.to_string()),
                ..self.about(EventKind::Failed, queue, message, *letter)
            },
            EngineEvent::RetryScheduled { queue, message, letter, due, .. } => {
                Event { due_at: Some(*due), ..self.about(EventKind::RetryScheduled, queue, message, *letter) }
            }
            EngineEvent::RetryExhausted { queue, message, letter, .. } => {
                self.about(EventKind::RetryExhausted, queue, message, *letter)
            }
            EngineEvent::Poison { queue, message, letter } => {
                self.about(EventKind::Poison, queue, message, *letter)
            }
            EngineEvent::LetterStored { queue, message, letter, state, .. } => Event {
                state: Some((*state).into()),
                ..self.about(EventKind::LetterStored, queue, message, Some(*letter))
            },
            EngineEvent::LetterClosed { queue, message, letter, state, .. } => Event {
                state: Some((*state).into()),
                ..self.about(EventKind::LetterClosed, queue, message, Some(*letter))
            },
            EngineEvent::Duplicate { queue, message } => {
                self.about(EventKind::Duplicate, queue, message, None)
            }
            EngineEvent::HandOffFailed { queue, .. } => self.of_queue(EventKind::HandOffFailed, queue),
            EngineEvent::Expired { queue, letters } => {
                Event { letters: Some(*letters), ..self.of_queue(EventKind::Expired, queue) }
            }
            EngineEvent::Paused { scope, why } => Event {
                scope: Some(scope_of(scope)),
                why: Some((*why).to_owned()),
                ..self.event(EventKind::Paused)
            },
            EngineEvent::Resumed { scope } => {
                Event { scope: Some(scope_of(scope)), ..self.event(EventKind::Resumed) }
            }
            EngineEvent::BreakerOpened { until, failure } => Event {
                due_at: Some(*until),
                reason: Some(failure.reason.to_string()),
                ..self.event(EventKind::BreakerOpened)
            },
            EngineEvent::BreakerClosed => self.event(EventKind::BreakerClosed),
            EngineEvent::FuseBlown { why } => {
                Event { why: Some((*why).to_owned()), ..self.event(EventKind::FuseBlown) }
            }
            EngineEvent::Assigned { partition } => {
                Event { partition: Some(partition.to_string()), ..self.event(EventKind::Assigned) }
            }
            EngineEvent::Revoked { partition, .. } => {
                Event { partition: Some(partition.to_string()), ..self.event(EventKind::Revoked) }
            }
            EngineEvent::CommitFailed { .. } => self.event(EventKind::CommitFailed),
            // Lateness is a metric; events of later engine versions are for later servers.
            _ => return None,
        })
    }
}

/// The kind of a pause scope. The sequence is left out: it is a key.
const fn scope_of(scope: &store::PauseScope) -> PauseScope {
    match scope {
        store::PauseScope::Consumer => PauseScope::Consumer,
        store::PauseScope::Stream(_) => PauseScope::Stream,
        store::PauseScope::Partition(_) => PauseScope::Partition,
        store::PauseScope::Sequence(_) => PauseScope::Sequence,
        store::PauseScope::Replay => PauseScope::Replay,
    }
}

impl Observer for FeedObserver {
    fn on(&self, event: &lazaret_engine::Event<'_>) {
        if let Some(event) = self.convert(event) {
            self.feed.publish(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::{Failure, Position, Reason, Verdict};

    use super::*;

    #[test]
    fn events_contain_no_payload_key_or_error_text() {
        let feed = Feed::default();
        let message = Message::new("evt-1", "orders", Position::new(0, 0))
            .with_key("secret-key")
            .with_payload("secret-payload")
            .with_header("h", "secret-header");
        let failure = Failure::new(Reason::TIMEOUT, "E", "secret-text");
        let queue = QueueName::of("orders", "orders");
        let sequence = "secret-sequence".into();
        let pause = store::PauseScope::Sequence("secret-sequence".into());
        let observer = FeedObserver::new(feed.clone(), "orders");
        use lazaret_engine::Event as EngineEvent;
        let events = [
            EngineEvent::Failed {
                queue: &queue,
                message: &message,
                letter: None,
                attempt: 1,
                failure: &failure,
                verdict: Verdict::Retry,
            },
            EngineEvent::LetterStored {
                queue: &queue,
                message: &message,
                letter: LetterId::of(&queue, &message.id),
                sequence: &sequence,
                state: lazaret_core::LetterState::Dead,
                before: None,
                cause: Some(&failure),
                replay: None,
            },
            EngineEvent::Paused { scope: &pause, why: "maintenance" },
            EngineEvent::HandOffFailed {
                queue: &queue,
                kind: store::ErrorKind::Unavailable,
                error: "secret-text",
            },
            EngineEvent::CommitFailed { error: "secret-text" },
        ];
        events.iter().for_each(|event| observer.on(event));
        let published = feed.subscribe(Some("x")).missed.events;
        assert_eq!(published.len(), events.len());
        let text =
            serde_json::to_string(&published.iter().map(|published| &published.event).collect::<Vec<_>>())
                .unwrap();
        assert!(!text.contains("secret"), "{text}");
        assert!(text.contains("TIMEOUT") && text.contains("maintenance"), "{text}");
    }
}
