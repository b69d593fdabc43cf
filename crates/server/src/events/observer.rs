//! From what the engine tells to what listeners may know. Never a payload, a key, a sequence or the text of an error.

use jiff::Timestamp;
use lazaret_api::{Event, EventKind, PauseScope};
use lazaret_core::{LetterId, Message, QueueName, store};
use lazaret_engine::Observer;

use super::feed::Feed;

/// Tells the events of one consumer.
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

    fn about(&self, kind: EventKind, queue: &QueueName, message: &Message) -> Event {
        Event {
            queue: Some(queue.to_string()),
            letter: Some(LetterId::of(queue, &message.id).to_string()),
            event_type: message.event_type.as_deref().map(str::to_owned),
            ..self.event(kind)
        }
    }

    fn of_queue(&self, kind: EventKind, queue: &QueueName) -> Event {
        Event { queue: Some(queue.to_string()), ..self.event(kind) }
    }

    fn translate(&self, told: &lazaret_engine::Event<'_>) -> Option<Event> {
        use lazaret_engine::Event as Told;
        Some(match told {
            Told::Failed { queue, message, attempt, failure, .. } => Event {
                attempt: Some(*attempt),
                reason: Some(failure.reason.to_string()),
                phase: Some(failure.phase.into()),
                group: Some(failure.fingerprint.to_string()),
                ..self.about(EventKind::Failed, queue, message)
            },
            Told::RetryScheduled { queue, message, due, .. } => {
                Event { due_at: Some(*due), ..self.about(EventKind::RetryScheduled, queue, message) }
            }
            Told::RetryExhausted { queue, message, .. } => {
                self.about(EventKind::RetryExhausted, queue, message)
            }
            Told::Poison { queue, message } => self.about(EventKind::Poison, queue, message),
            Told::LetterStored { queue, message, state, .. } => {
                Event { state: Some((*state).into()), ..self.about(EventKind::LetterStored, queue, message) }
            }
            Told::LetterClosed { queue, message, state, .. } => {
                Event { state: Some((*state).into()), ..self.about(EventKind::LetterClosed, queue, message) }
            }
            Told::Duplicate { queue, message } => self.about(EventKind::Duplicate, queue, message),
            Told::HandOffFailed { queue, .. } => self.of_queue(EventKind::HandOffFailed, queue),
            Told::Expired { queue, letters } => {
                Event { letters: Some(*letters), ..self.of_queue(EventKind::Expired, queue) }
            }
            Told::Paused { scope, why } => Event {
                scope: Some(scope_of(scope)),
                why: Some((*why).to_owned()),
                ..self.event(EventKind::Paused)
            },
            Told::Resumed { scope } => {
                Event { scope: Some(scope_of(scope)), ..self.event(EventKind::Resumed) }
            }
            Told::BreakerOpened { until } => {
                Event { due_at: Some(*until), ..self.event(EventKind::BreakerOpened) }
            }
            Told::BreakerClosed => self.event(EventKind::BreakerClosed),
            Told::FuseBlown { why } => {
                Event { why: Some((*why).to_owned()), ..self.event(EventKind::FuseBlown) }
            }
            Told::Assigned { partition } => {
                Event { partition: Some(partition.to_string()), ..self.event(EventKind::Assigned) }
            }
            Told::Revoked { partition, .. } => {
                Event { partition: Some(partition.to_string()), ..self.event(EventKind::Revoked) }
            }
            Told::CommitFailed { .. } => self.event(EventKind::CommitFailed),
            // Lateness is for metrics, and what a later engine tells is for a later server.
            _ => return None,
        })
    }
}

/// The kind of a scope; which sequence it is stays untold, because a sequence is a key.
pub(crate) const fn scope_of(scope: &store::PauseScope) -> PauseScope {
    match scope {
        store::PauseScope::Consumer => PauseScope::Consumer,
        store::PauseScope::Stream(_) => PauseScope::Stream,
        store::PauseScope::Partition(_) => PauseScope::Partition,
        store::PauseScope::Sequence(_) => PauseScope::Sequence,
        store::PauseScope::Replay => PauseScope::Replay,
    }
}

impl Observer for FeedObserver {
    fn on(&self, told: &lazaret_engine::Event<'_>) {
        if let Some(event) = self.translate(told) {
            self.feed.publish(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::{Failure, Position, Reason, Verdict};

    use super::*;

    #[test]
    fn what_is_told_holds_no_payload_no_key_and_no_text_of_an_error() {
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
        use lazaret_engine::Event as Told;
        let told = [
            Told::Failed {
                queue: &queue,
                message: &message,
                attempt: 1,
                failure: &failure,
                verdict: Verdict::Retry,
            },
            Told::LetterStored {
                queue: &queue,
                message: &message,
                sequence: &sequence,
                state: lazaret_core::LetterState::Dead,
                before: None,
                cause: Some(&failure),
                replay: None,
            },
            Told::Paused { scope: &pause, why: "maintenance" },
            Told::HandOffFailed { queue: &queue, kind: store::ErrorKind::Unavailable, error: "secret-text" },
            Told::CommitFailed { error: "secret-text" },
        ];
        told.iter().for_each(|told| observer.on(told));
        let heard = feed.listen(Some("x")).missed;
        assert_eq!(heard.len(), told.len());
        let text = serde_json::to_string(&heard.iter().map(|(_, event)| event.as_ref()).collect::<Vec<_>>())
            .unwrap();
        assert!(!text.contains("secret"), "{text}");
        assert!(text.contains("TIMEOUT") && text.contains("maintenance"), "{text}");
    }
}
