//! Where handlers send messages that they give up on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::handler::{DeadLetterSink, Delivery};
use lazaret_core::letter::AttemptKind;
use lazaret_core::store::{Certainty, ErrorKind, HandOff, Placement, StoreError};
use lazaret_core::{Failure, LetterState, Partition, Reason};

use crate::events::{Counters, Event};
use crate::judge::{self, Record};
use crate::lanes::OpenSequences;
use crate::passing::Passing;
use crate::shared::Component;

/// Where a live handler sends a message that it gives up on.
pub(crate) struct LiveDesk {
    pub(crate) component: Arc<Component>,
    pub(crate) open: Arc<OpenSequences>,
}

#[async_trait]
impl DeadLetterSink for LiveDesk {
    async fn send_to_dlq(&self, delivery: &Delivery, reason: Reason, why: String) -> Result<(), StoreError> {
        let shared = &self.component.shared;
        if shared.options.dead_letter.is_none() {
            let text = "dead letters are disabled for this consumer";
            return Err(StoreError::not_done(ErrorKind::Invalid, "send_to_dlq", text));
        }
        let message = delivery.message();
        let sequence = shared.options.sequencing.id(message);
        let failure = Failure::new(reason, "sent by the handler", why).in_phase(delivery.phase());
        let entry = judge::attempt_record(
            &self.component,
            AttemptKind::Live,
            delivery.attempt(),
            Duration::ZERO,
            Some(&failure),
        );
        let earlier = self.open.earlier_failures(self.component.index, &message.id);
        let record = Record::failed(earlier, delivery.attempt(), entry, failure);
        let state = LetterState::Dead;
        let letter = judge::write_letter(&self.component, delivery, &sequence, state, None, Some(&record));
        let (stream, position) = message.place();
        let from = Partition { stream: stream.clone(), index: position.partition };
        let tenure = self.open.tenure(&from);
        let grant = tenure.map(|tenure| tenure.grant(self.component.index));
        let blocks = letter.sequence == sequence;
        let item = HandOff { letter, placement: Placement::Open, grant };
        // From here on nobody knows, also when the handler is dropped while it waits, until the store has answered.
        self.open.uncertain(self.component.index, item.letter.clone());
        if let Some(relay) = shared.options.relay() {
            let component = &*self.component;
            let passing = Passing { component, message, from: &from, same_failure: record.same_failure };
            if passing.pass(relay, &item.letter).await.is_ok() {
                self.open.take_uncertain(self.component.index, &message.id);
                return Ok(());
            }
        }
        let placed = shared.hand_offs.hand_off_one(&self.component.queue, item).await;
        if !matches!(&placed, Err(error) if error.certainty() == Certainty::MaybeDone) {
            self.open.take_uncertain(self.component.index, &message.id);
        }
        placed?;
        if blocks {
            self.open.opened(self.component.index, shared.hasher.hash(sequence.as_str()));
        }
        Counters::add(&shared.counters.handed_off, 1);
        let (queue, sequence, cause) = (&self.component.queue, &sequence, Some(&record.failure));
        let (before, replay) = (None, None);
        shared.tell(&Event::LetterStored { queue, message, sequence, state, before, cause, replay });
        Ok(())
    }
}

/// Takes down a handler's wish to give up on a message that is a letter already.
#[derive(Default)]
pub(crate) struct StoredDesk(Mutex<Option<(Reason, String)>>);

impl StoredDesk {
    /// What was wished for.
    pub(crate) fn take(&self) -> (Reason, String) {
        let wish = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        wish.unwrap_or((Reason::MANUAL, String::new()))
    }
}

#[async_trait]
impl DeadLetterSink for StoredDesk {
    async fn send_to_dlq(&self, _: &Delivery, reason: Reason, why: String) -> Result<(), StoreError> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((reason, why));
        Ok(())
    }
}
