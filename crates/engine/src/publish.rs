//! Publishes failed messages to the broker, with the strategy `topics`.
//!
//! A message that the broker does not accept is published again for a while, then stored as the letter
//! that it would have been. If the store does not accept it either, the source waits (I9). A message
//! that may be in both is found in the store when it returns from the broker, so it runs once.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::relay::{Handover, Relay, RelayError, RelayErrorKind};
use lazaret_core::{Letter, LetterState, Message, Partition};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::component::Component;
use crate::events::Event;
use crate::store_retry::{Abandoned, backoff};
use crate::telemetry::Counters;

const MIN_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(5);
/// The time after which a message goes to the store instead.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(30);

/// The result of publishing a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublishEnd {
    /// The broker accepted the message.
    Relayed,
    /// The broker refuses the message, for example because of its size.
    Refused,
    /// The broker did not accept the message in time.
    TimedOut,
}

/// Returns `true` if the broker will never accept the message. It may accept a claim check in its place.
pub(crate) fn is_refused(error: &RelayError) -> bool {
    matches!(error.kind(), RelayErrorKind::TooLarge | RelayErrorKind::Permanent)
}

/// A message that is published to the broker.
pub(crate) struct Publish<'a> {
    pub(crate) component: &'a Component,
    pub(crate) message: &'a Message,
    /// The current partition of the message.
    pub(crate) from: &'a Partition,
    pub(crate) same_failure: u32,
}

impl Publish<'_> {
    /// Publishes the message until the broker accepts it, refuses it for good, or the time is up. Calls
    /// `note` after the first failure, and again after later failures until it returns `true`.
    pub(crate) async fn until_taken<F: Future<Output = bool>>(
        &self,
        relay: &Arc<dyn Relay>,
        letter: &Letter,
        closing: &CancellationToken,
        note: impl Fn() -> F,
    ) -> Result<PublishEnd, Abandoned> {
        let until = Instant::now() + PUBLISH_TIMEOUT;
        let mut backoff = backoff(MIN_DELAY, MAX_DELAY);
        let mut noted = false;
        loop {
            let Err(error) = self.publish(relay, letter).await else { return Ok(PublishEnd::Relayed) };
            match error.kind() {
                RelayErrorKind::Fenced => return Err(Abandoned::Fenced),
                _ if is_refused(&error) => return Ok(PublishEnd::Refused),
                _ => {}
            }
            let delay = backoff.next().unwrap_or(MAX_DELAY);
            if Instant::now() + delay >= until {
                return Ok(PublishEnd::TimedOut);
            }
            noted = noted || note().await;
            tokio::select! {
                biased;
                // The partition is being revoked: the store answers faster than the broker.
                () = closing.cancelled() => return Ok(PublishEnd::TimedOut),
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    /// Calls the broker once and reports its response.
    pub(crate) async fn publish(&self, relay: &Arc<dyn Relay>, letter: &Letter) -> Result<(), RelayError> {
        // The broker gets the message as it was received. A consumer may omit payloads from its letters,
        // but never from a topic, where a message without a payload would be a tombstone.
        let whole = letter.payload_left_out.then(|| {
            let message = Arc::new(Message { hop: None, ..self.message.clone() });
            Box::new(Letter { message, payload_left_out: false, ..letter.clone() })
        });
        let letter = whole.as_deref().unwrap_or(letter);
        let handover = self.handover(letter);
        let published = match letter.state {
            LetterState::Retrying => relay.retry(handover).await,
            _ => relay.dead(handover).await,
        };
        match &published {
            Ok(()) => {
                let Component { queue, telemetry, flight, .. } = self.component;
                let message = self.message;
                flight.forget(queue, message);
                Counters::add(&telemetry.counters.relayed, 1);
                let (state, cause) = (letter.state, letter.cause.as_ref());
                telemetry.emit(&Event::Relayed { queue, message, state, cause });
            }
            Err(error) => self.report_failed(error),
        }
        published
    }

    /// Publishes a small record in the place of a dead message that the broker did not accept, for
    /// example because it is too large. The letter itself is in the store.
    pub(crate) async fn claim(&self, relay: &Arc<dyn Relay>, letter: &Letter) {
        if let Err(error) = relay.claim(self.handover(letter)).await {
            self.report_failed(&error);
        }
    }

    fn report_failed(&self, error: &RelayError) {
        let Component { queue, telemetry, .. } = self.component;
        Counters::add(&telemetry.counters.relay_failures, 1);
        telemetry.emit(&Event::RelayFailed { queue, message: self.message, error: &error.to_string() });
    }

    fn handover<'b>(&'b self, letter: &'b Letter) -> Handover<'b> {
        let hint = letter.cause.as_ref().and_then(|cause| cause.retry_after);
        let reason = letter.cause.as_ref().map(|cause| &cause.reason);
        let retry = self.component.retry_policy(self.message, reason);
        Handover {
            letter,
            same_failure: self.same_failure,
            usual_delay: retry.usual_delay(letter.attempts, hint),
            from: self.from,
            offset: self.message.place().1.offset,
        }
    }
}
