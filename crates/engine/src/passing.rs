//! Passes failed messages on to the broker, and falls back on the store when it does not take them.
//!
//! The way of a message that the broker does not take: again and again for a while, then into the store as the letter that
//! it would have been, then, when the store does not take it either, the source waits (I9). A message that may be in both is
//! found in the store when it comes back, so it runs once.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::relay::{Handover, Relay, RelayError, RelayTrouble};
use lazaret_core::store::Placement;
use lazaret_core::{Letter, LetterState, Message, Partition};
use tokio::time::Instant;

use crate::events::{Counters, Event};
use crate::journey::Journey;
use crate::judge;
use crate::patience::Left;
use crate::shared::Component;

const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(5);
/// How long the broker is asked before a message goes to the store instead.
const PATIENCE: Duration = Duration::from_secs(30);

impl Journey {
    /// Passes the message on. It is settled afterwards.
    pub(crate) async fn pass_on(&self, relay: &Arc<dyn Relay>, letter: Letter) -> Result<(), Left> {
        let passing = Passing {
            component: &self.component,
            message: self.delivery.message(),
            from: &self.tenure.partition,
            same_failure: self.same_failure(),
        };
        let until = Instant::now() + PATIENCE;
        let mut delay = FIRST_DELAY;
        let mut noted = false;
        let trouble = loop {
            let Err(error) = passing.pass(relay, &letter).await else { return Ok(()) };
            let again = match error.trouble() {
                RelayTrouble::Fenced => return Err(Left::Fenced),
                RelayTrouble::Permanent | RelayTrouble::TooLarge => false,
                RelayTrouble::Temporary => Instant::now() + delay < until,
            };
            if !again {
                break error.trouble();
            }
            if !noted {
                noted = self.take_note(&letter).await;
            }
            tokio::select! {
                biased;
                // There is no time to wait for the broker; the store is nearer.
                () = self.tenure.leaving.cancelled() => break error.trouble(),
                () = tokio::time::sleep(delay) => {}
            }
            delay = (delay * 2).min(LONGEST_DELAY);
        };
        let too_large = trouble == RelayTrouble::TooLarge;
        let claim = (too_large && letter.state == LetterState::Dead).then(|| letter.clone());
        self.store_letter(letter, Placement::Open).await?;
        if let Some(letter) = claim {
            passing.claim(relay, &letter).await;
        }
        Ok(())
    }

    /// Writes down what was tried, if the store takes it: the broker may be away for long, and a restart meanwhile must not
    /// give the message its attempts again (I4).
    async fn take_note(&self, letter: &Letter) -> bool {
        let shared = &self.component.shared;
        let Some(note) = self.note(letter.due_at.unwrap_or_else(|| shared.now())) else { return true };
        shared.hand_offs.note(&self.component.queue, note).await.is_ok()
    }
}

/// A message on its way to the broker.
pub(crate) struct Passing<'a> {
    pub(crate) component: &'a Component,
    pub(crate) message: &'a Message,
    /// Where it came from, now.
    pub(crate) from: &'a Partition,
    pub(crate) same_failure: u32,
}

impl Passing<'_> {
    /// Asks the broker once, and tells observers what came of it.
    pub(crate) async fn pass(&self, relay: &Arc<dyn Relay>, letter: &Letter) -> Result<(), RelayError> {
        let shared = &self.component.shared;
        // The broker gets the message as it came. A consumer may leave payloads out of its letters, never out of a topic:
        // there it would be a tombstone.
        let whole = letter.payload_left_out.then(|| {
            let message = Arc::new(Message { hop: None, ..self.message.clone() });
            Letter { message, payload_left_out: false, ..letter.clone() }
        });
        let letter = whole.as_ref().unwrap_or(letter);
        let handover = self.handover(letter);
        let passed = match letter.state {
            LetterState::Retrying => relay.retry(handover).await,
            _ => relay.dead(handover).await,
        };
        let (queue, message) = (&self.component.queue, self.message);
        match &passed {
            Ok(()) => {
                shared.flight.forget(queue, &message.id);
                Counters::add(&shared.counters.passed_on, 1);
                let (state, cause) = (letter.state, letter.cause.as_ref());
                shared.tell(&Event::PassedOn { queue, message, state, cause });
            }
            Err(error) => {
                Counters::add(&shared.counters.passing_failures, 1);
                shared.tell(&Event::PassingFailed { queue, message, error: &error.to_string() });
            }
        }
        passed
    }

    /// Leaves a small record in the place of one that is too large. The letter itself is in the store.
    async fn claim(&self, relay: &Arc<dyn Relay>, letter: &Letter) {
        if let Err(error) = relay.claim(self.handover(letter)).await {
            let (queue, message) = (&self.component.queue, self.message);
            Counters::add(&self.component.shared.counters.passing_failures, 1);
            self.component.shared.tell(&Event::PassingFailed { queue, message, error: &error.to_string() });
        }
    }

    fn handover<'b>(&'b self, letter: &'b Letter) -> Handover<'b> {
        let hint = letter.cause.as_ref().and_then(|cause| cause.retry_after);
        Handover {
            letter,
            same_failure: self.same_failure,
            usual_delay: judge::retry_policy(self.component, &letter.message)
                .usual_delay(letter.attempts, hint),
            from: self.from,
            offset: self.message.place().1.offset,
        }
    }
}
