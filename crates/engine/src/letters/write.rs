//! Hands off the letters of live messages and records the results.

use lazaret_core::store::{self, GrantFence, HandOff, Placed, Placement};
use lazaret_core::{Failure, Letter, LetterId, LetterState, Message, SequenceId};

use crate::component::Component;
use crate::events::Event;
use crate::hash::SequenceHash;
use crate::mutation::mutated;
use crate::open_sequences::OpenSequences;
use crate::telemetry::Counters;

/// Writes the letters of one live message.
pub(crate) struct LetterWriter<'a> {
    pub(crate) component: &'a Component,
    pub(crate) open: &'a OpenSequences,
    pub(crate) message: &'a Message,
    /// The sequence of the message, which may differ from the sequence of its letter.
    pub(crate) sequence: &'a SequenceId,
    pub(crate) hash: SequenceHash,
    /// The grant of the message's partition.
    pub(crate) grant: Option<GrantFence>,
}

impl LetterWriter<'_> {
    /// Asks the store once to accept the letter. On success the letter is durable.
    pub(crate) async fn write(&self, letter: &Letter, placement: Placement) -> store::Result<()> {
        let item = self.hand_off(letter.clone(), placement);
        let placed = self.component.hand_offs.hand_off_one(&self.component.queue, item).await?;
        self.stored(letter, placement, placed);
        Ok(())
    }

    /// Returns the hand-off request for this letter.
    pub(crate) fn hand_off(&self, letter: Letter, placement: Placement) -> HandOff {
        HandOff { letter, placement, grant: self.grant.clone() }
    }

    /// Records a letter that the store accepted.
    fn stored(&self, letter: &Letter, placement: Placement, placed: Placed) {
        let Component { index, queue, telemetry, .. } = self.component;
        if placement == Placement::Open && letter.sequence == *self.sequence {
            self.open.opened(*index, self.hash);
        }
        match placed {
            Placed::Held(_) => telemetry.report_duplicate(queue, self.message),
            Placed::Closed => {
                Counters::add(&telemetry.counters.skipped, 1);
                let (message, letter, state) = (self.message, letter.id, letter.state);
                telemetry.emit(&Event::LetterClosed { queue, message, letter, state, replay: None });
            }
            Placed::Opened | Placed::Appended | Placed::NotOpen(_) => {
                Counters::add(&telemetry.counters.handed_off, 1);
                self.report_stored(letter.id, letter.state, letter.cause.as_ref());
            }
        }
        if letter.state.is_automatic() {
            self.component.signals.retry.notify_one();
        }
    }

    /// Records the store's response to a letter that should wait behind its sequence. Returns `false` if
    /// the sequence is not open and nothing was written.
    pub(crate) fn appended(&self, placed: Placed) -> bool {
        let Component { index, queue, telemetry, .. } = self.component;
        match placed {
            Placed::NotOpen(revision) => {
                let stale = mutated!(self.component.options, TrustStaleAnswers);
                let revision = if stale { u64::MAX } else { revision };
                self.open.not_open(*index, self.hash, revision);
                return false;
            }
            Placed::Held(_) => telemetry.report_duplicate(queue, self.message),
            Placed::Opened | Placed::Appended | Placed::Closed => {
                Counters::add(&telemetry.counters.appended, 1);
                self.report_stored(LetterId::of(queue, &self.message.id), LetterState::Waiting, None);
            }
        }
        true
    }

    fn report_stored(&self, letter: LetterId, state: LetterState, cause: Option<&Failure>) {
        let (queue, message, sequence) = (&self.component.queue, self.message, self.sequence);
        let (before, replay) = (None, None);
        let event = Event::LetterStored { queue, message, letter, sequence, state, before, cause, replay };
        self.component.telemetry.emit(&event);
    }
}
