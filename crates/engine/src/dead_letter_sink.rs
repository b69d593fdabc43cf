//! The sinks through which handlers send messages to the dead letters.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::handler::{DeadLetterSink, Delivery};
use lazaret_core::letter::AttemptKind;
use lazaret_core::source::Ownership;
use lazaret_core::store::{Certainty, ErrorKind, Placement, StoreError};
use lazaret_core::{Failure, LetterState, Reason};

use crate::admission;
use crate::classify;
use crate::component::Component;
use crate::letters::{LetterWriter, draft};
use crate::open_sequences::OpenSequences;
use crate::ownership::PartitionOwnership;
use crate::publish::{Publish, is_refused};
use crate::record::FailureRecord;

/// Writes the letter of a live message that its handler sends to the dead letters. The letter is written
/// under the grant of the assignment that delivered the message.
pub(crate) struct LiveSink {
    pub(crate) component: Arc<Component>,
    pub(crate) open: Arc<OpenSequences>,
    pub(crate) ownership: Arc<PartitionOwnership>,
}

/// Returns the error for a handler whose attempt no longer owns the message.
fn over(why: &'static str) -> StoreError {
    StoreError::not_done(ErrorKind::Fenced, "send_to_dlq", why)
}

#[async_trait]
impl DeadLetterSink for LiveSink {
    async fn send_to_dlq(&self, delivery: &Delivery, reason: Reason, why: String) -> Result<(), StoreError> {
        let component = &*self.component;
        let Component { index, options, .. } = component;
        if options.dead_letter.is_none() {
            let text = "dead letters are disabled for this consumer";
            return Err(StoreError::not_done(ErrorKind::Invalid, "send_to_dlq", text));
        }
        if self.ownership.is_revoked() {
            return Err(over("the partition was revoked"));
        }
        let message = delivery.message();
        let sequence = options.sequencing.id(message);
        let failure = Failure::new(reason, "sent by the handler", why).in_phase(delivery.phase());
        let mut failure = component.grouped(failure, message);
        options.redact.apply_to_failure(&mut failure);
        let (attempt, kind) = (delivery.attempt(), AttemptKind::Live);
        let entry = classify::attempt_record(component, kind, attempt, Duration::ZERO, Some(&failure));
        let earlier = self.open.earlier_failures(*index, &message.id);
        let record = FailureRecord::failed(earlier, attempt, entry, failure);
        let state = LetterState::Dead;
        let letter = draft::new_letter(component, delivery, &sequence, state, None, Some(&record));
        // Until the store answers, the letter may or may not exist, even if the handler is dropped while
        // it waits.
        if !delivery.begin_dead_letter(attempt, letter.clone()) {
            return Err(over("the attempt is over"));
        }
        let from = &self.ownership.partition;
        let publish = Publish { component, message, from, same_failure: record.same_failure };
        let mut refused_by = None;
        if let Some(relay) = options.relay() {
            match publish.publish(relay, &letter).await {
                Ok(()) => {
                    delivery.end_dead_letter(attempt, true);
                    return Ok(());
                }
                Err(error) if is_refused(&error) => refused_by = Some(relay),
                Err(_) => {}
            }
        }
        let writer = LetterWriter {
            component,
            open: &self.open,
            message,
            sequence: &sequence,
            hash: component.hash(&sequence),
            grant: Some(self.ownership.grant(*index)),
        };
        let written = writer.write(&letter, Placement::Open).await;
        match &written {
            Ok(()) => delivery.end_dead_letter(attempt, true),
            Err(error) if error.certainty() == Certainty::MaybeDone => {}
            Err(_) => delivery.end_dead_letter(attempt, false),
        }
        if let Some(relay) = refused_by.filter(|_| written.is_ok()) {
            publish.claim(relay, &letter).await;
        }
        written
    }

    fn is_owned(&self) -> bool {
        admission::is_certain(&self.component, &self.ownership)
    }
}

/// Records that a handler sends a message to the dead letters that is a letter already.
pub(crate) struct StoredSink {
    /// The time for which the lease of the run is safe to use.
    lease: Ownership,
    given_up: Mutex<Option<GivenUp>>,
}

/// The reason that a handler gives for sending a message to the dead letters.
pub(crate) struct GivenUp {
    pub(crate) reason: Reason,
    pub(crate) why: String,
}

impl StoredSink {
    pub(crate) fn new(lease: Ownership) -> Self {
        Self { lease, given_up: Mutex::default() }
    }

    /// Removes and returns the reason that the handler gave.
    pub(crate) fn take(&self) -> GivenUp {
        let given_up = self.given_up.lock().unwrap_or_else(PoisonError::into_inner).take();
        given_up.unwrap_or(GivenUp { reason: Reason::MANUAL, why: String::new() })
    }
}

#[async_trait]
impl DeadLetterSink for StoredSink {
    async fn send_to_dlq(&self, delivery: &Delivery, reason: Reason, why: String) -> Result<(), StoreError> {
        // Locked until the delivery is marked: a task that sees the mark also finds the reason.
        let mut given_up = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
        if !delivery.mark_sent(delivery.attempt()) {
            return Err(over("the attempt is over"));
        }
        *given_up = Some(GivenUp { reason, why });
        Ok(())
    }

    fn is_owned(&self) -> bool {
        self.lease.is_certain()
    }
}
