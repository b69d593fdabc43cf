//! The consequences of an attempt at a live message: it is settled, waits for the next attempt, or
//! becomes a letter.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::letter::AttemptKind;
use lazaret_core::policy::Stage;
use lazaret_core::relay::Relay;
use lazaret_core::store::{AttemptNote, Placement};
use lazaret_core::{HandlerError, Letter, LetterState, Timestamp};

use super::message::{Ended, LiveMessage};
use crate::admission::Exhausted;
use crate::attempt::Outcome;
use crate::classify::{self, Classified};
use crate::component::Component;
use crate::dedupe;
use crate::error::{Error, StopReason};
use crate::events::Event;
use crate::gate::{MIN_FREE, Pass};
use crate::letters::{LetterWriter, draft};
use crate::limits::End;
use crate::mutation::mutated;
use crate::next_step::Step;
use crate::publish::{Publish, PublishEnd};
use crate::record::FailureRecord;
use crate::store_retry::{Abandoned, StoreRetry, retry_until_ok};
use crate::telemetry::Counters;
use crate::time::{SteadyWait, later};

/// The state of a message after an attempt.
pub(super) enum After {
    TryAgain,
    Settled,
}

impl LiveMessage {
    pub(super) async fn finish_attempt(&mut self, ended: Ended) -> Result<After, Abandoned> {
        let Ended { outcome, pass, took, claim } = ended;
        match outcome {
            Outcome::Failed(error) => {
                let next = {
                    let failed = pin!(self.failed(error, pass, took));
                    dedupe::renewed_during(claim.as_ref(), failed).await?
                };
                dedupe::end(claim).await;
                if let Some(due) = next {
                    return self.wait(due).await;
                }
            }
            Outcome::Deferred(delay) => {
                drop(pass);
                dedupe::end(claim).await;
                let due = self.deferred_until(delay);
                return self.wait(due).await;
            }
            Outcome::Handled => {
                self.succeeded(&outcome, pass);
                if let Some(claim) = claim {
                    claim.handled(&self.component).await?;
                }
            }
            Outcome::Unconfirmed(letter) => {
                drop(pass);
                self.component.guards.record_terminal(&letter.queue, letter.cause.as_ref());
                let stored = pin!(self.store_letter(letter.clone(), Placement::Open));
                dedupe::renewed_during(claim.as_ref(), stored).await?;
                dedupe::end(claim).await;
                if let Some(relay) = self.component.options.relay() {
                    // Boxed because it is rare and would enlarge the future of each message in flight.
                    Box::pin(self.publisher().claim(relay, &letter)).await;
                }
            }
            outcome => {
                self.succeeded(&outcome, pass);
                dedupe::end(claim).await;
            }
        }
        Ok(After::Settled)
    }

    fn succeeded(&self, outcome: &Outcome, pass: Pass) {
        let Component { queue, telemetry, guards, flight, .. } = &*self.component;
        flight.handled(queue, self.delivery.message());
        match outcome {
            Outcome::Handled => {
                Counters::add(&telemetry.counters.handled, 1);
                guards.record_handled();
            }
            Outcome::Filtered => Counters::add(&telemetry.counters.filtered, 1),
            Outcome::Duplicate => self.report_duplicate(),
            Outcome::SentToDlq => guards.record_terminal(queue, None),
            Outcome::Unconfirmed(_) | Outcome::Failed(_) | Outcome::Deferred(_) => {}
        }
        guards.report_health(outcome.health(), pass);
    }

    /// Returns the wait for an attempt that the handler deferred. The lane is held until then, without a
    /// permit (I3).
    fn deferred_until(&mut self, delay: Duration) -> SteadyWait {
        self.hold_lane();
        self.begin_wait(later(self.component.now(), delay))
    }

    /// Begins to wait for the next attempt. The wait begins before anything is written, because the
    /// clock may be set back meanwhile.
    fn begin_wait(&mut self, due: Timestamp) -> SteadyWait {
        let wait = SteadyWait::until(&*self.component.clock, due);
        if let Some(record) = &mut self.record {
            record.due = Some(wait);
        }
        wait
    }

    /// Settles a failed message. If the message waits in memory for a retry, returns that wait.
    async fn failed(
        &mut self,
        error: HandlerError,
        pass: Pass,
        took: Duration,
    ) -> Result<Option<SteadyWait>, Abandoned> {
        self.hold_lane();
        let component = self.component.clone();
        let attempt = self.record.as_ref().map_or(1, |record| record.attempts.saturating_add(1));
        let classified = classify::classify(&component, &self.delivery, &error, attempt);
        let retry_since = self.record.as_ref().map(|record| record.first_failed_at);
        let health = classify::health(&component, &classified, retry_since);
        component.guards.report_failure(health, pass, &classified.failure);
        let Classified { failure, verdict, sent_by_handler } = classified;
        let entry = classify::attempt_record(&component, AttemptKind::Live, attempt, took, Some(&failure));
        let earlier = self.record.take().map(|record| *record);
        // Boxed because it would enlarge the future of each message in flight.
        let mut record = Box::new(FailureRecord::failed(earlier, attempt, entry, failure));
        let decided = classify::decide(&component, &self.delivery, verdict, &record, false);
        let (step, _entering) = decided.await?;
        if let Step::End { why: End::Budget(dimension), .. } = step {
            Exhausted::Budget(dimension).annotate(&mut record.failure.message);
        }
        self.record = Some(record);
        self.show_age();
        match step {
            Step::Wait { due } => return self.note_wait(due).await,
            // Without dead letters there is no queue to wait in, so the lane waits.
            Step::Later { due } if component.options.dead_letter.is_none() => {
                return self.note_wait(due).await;
            }
            Step::Later { due } => self.keep(LetterState::Retrying, Some(due)).await?,
            Step::End { .. } if mutated!(component.options, SkipFailedMessages) => {
                let letter = self.letter(LetterState::Skipped, None);
                self.store_letter(letter, Placement::Closed).await?;
            }
            Step::End { state, .. } => {
                self.record_terminal();
                let discard = component.options.discards(state) && !sent_by_handler;
                self.keep_unless(discard, state, None).await?;
            }
            Step::Skip => {
                let letter = self.letter(LetterState::Skipped, None);
                self.store_letter(letter, Placement::Closed).await?;
            }
            Step::Duplicate => self.report_duplicate(),
            Step::Stop => return Err(self.stop(StopReason::Classified)),
        }
        Ok(None)
    }

    /// Notes the attempts so far. If too many messages are held back in memory, the message moves to the
    /// store instead. The note is durable before the next attempt starts and before the partition is
    /// revoked, so that a restart gives the message no more attempts (I4).
    async fn note_wait(&mut self, due: Timestamp) -> Result<Option<SteadyWait>, Abandoned> {
        let wait = self.begin_wait(due);
        let Component { queue, hand_offs, guards, .. } = &*self.component;
        if self.may_move_to_store()
            && guards.held.is_pressed()
            && let Some(_entering) = guards.backlog.try_enter()
        {
            self.keep(LetterState::Retrying, Some(due)).await?;
            return Ok(None);
        }
        if let Some(note) = self.note(due) {
            retry_until_ok(&self.component, || hand_offs.note(queue, note.clone())).await?;
        }
        Ok(Some(wait))
    }

    /// Waits in memory for the next attempt, or moves to the store if too many messages are held back in
    /// memory.
    async fn wait(&self, wait: SteadyWait) -> Result<After, Abandoned> {
        tokio::select! {
            biased;
            () = self.ownership.closing.cancelled() => return Err(Abandoned::Revoked),
            () = wait.sleep(&*self.component.clock) => {}
            _entering = self.must_move_to_store() => {
                self.keep(LetterState::Retrying, Some(wait.due())).await?;
                return Ok(After::Settled);
            }
        }
        Ok(After::TryAgain)
    }

    /// Returns the note of the attempts so far, or `None` if there were none. Crashes stay in the flight
    /// recorder until the message is settled.
    fn note(&self, due_at: Timestamp) -> Option<AttemptNote> {
        let record = self.record.as_ref().filter(|record| record.attempts > record.crashes)?;
        let message = self.delivery.message();
        let (_, position) = message.place();
        self.ownership.noted(self.component.index, position.offset);
        Some(AttemptNote {
            message: message.id.clone(),
            partition: self.ownership.partition.clone(),
            offset: position.offset,
            attempts: record.attempts - record.crashes,
            first_failed_at: record.first_failed_at,
            failure: record.failure.clone(),
            same_failure: record.same_failure,
            due_at,
        })
    }

    /// Notes the attempts before a write that may take long, because a restart meanwhile must not reset
    /// them (I4). Returns `false` if the store did not accept the note.
    async fn note_attempts(&self, letter: &Letter) -> bool {
        let Component { queue, hand_offs, .. } = &*self.component;
        match self.note(letter.due_at.unwrap_or_else(|| self.component.now())) {
            Some(note) => hand_offs.note(queue, note).await.is_ok(),
            None => true,
        }
    }

    /// Makes a message that gets no more attempts a dead letter.
    pub(super) async fn end_retries(&mut self, exhausted: Exhausted) -> Result<(), Abandoned> {
        if let Some(record) = &mut self.record {
            exhausted.annotate(&mut record.failure.message);
        }
        if let Some(record) = &self.record {
            let (queue, message) = (&self.component.queue, self.delivery.message());
            let (letter, limit, reason) = (None, exhausted.limit(), &record.failure.reason);
            self.component.telemetry.emit(&Event::RetryExhausted { queue, message, letter, limit, reason });
        }
        self.record_terminal();
        self.keep(LetterState::Dead, None).await
    }

    /// Counts the message for the fuse: its last failure is final.
    fn record_terminal(&self) {
        let Component { queue, guards, .. } = &*self.component;
        guards.record_terminal(queue, self.record.as_ref().map(|record| &record.failure));
    }

    /// Moves a message of a paused sequence to the store, so that its lane is free.
    pub(super) async fn hold_in_store(&self) -> Result<(), Abandoned> {
        self.store_letter(self.waiting_letter(), Placement::Open).await
    }

    /// Makes the message a letter, in the store or in the broker, unless the enqueue policy says otherwise.
    pub(super) async fn keep(&self, state: LetterState, due: Option<Timestamp>) -> Result<(), Abandoned> {
        self.keep_unless(self.component.options.discards(state), state, due).await
    }

    /// Like [`keep`](Self::keep), but skips the message if `discard` is `true`.
    async fn keep_unless(
        &self,
        discard: bool,
        state: LetterState,
        due: Option<Timestamp>,
    ) -> Result<(), Abandoned> {
        let component = &*self.component;
        if component.options.dead_letter.is_none() {
            return Err(self.stop(StopReason::DeadLettersDisabled));
        }
        let (letter, placement) = match discard {
            true => (self.letter(LetterState::Skipped, None), Placement::Closed),
            false => self.judged_letter(state, due),
        };
        // Letters that wait for a person stay in the store, where they can be found and changed.
        let publishes = letter.cause.is_some()
            && placement == Placement::Open
            && matches!(letter.state, LetterState::Retrying | LetterState::Dead);
        match component.options.relay().filter(|_| publishes) {
            Some(relay) => Box::pin(self.publish_or_store(relay, letter)).await,
            None => self.store_letter(letter, placement).await,
        }
    }

    /// Returns the letter of the message after the decision of the enqueue policy.
    fn judged_letter(&self, state: LetterState, due: Option<Timestamp>) -> (Box<Letter>, Placement) {
        let component = &*self.component;
        let letter = self.letter(state, due);
        let Some(failure) = letter.cause.clone() else { return (letter, Placement::Open) };
        let decision = draft::apply_enqueue_policy(component, &letter, &failure, Stage::FirstFailure);
        let mut letter = Box::new(decision.apply(*letter, component.now()));
        if decision.keeps() {
            return (letter, Placement::Open);
        }
        (letter.state, letter.due_at) = (LetterState::Skipped, None);
        letter.sequence = component.letter_sequence(self.delivery.message(), self.sequence());
        (letter, Placement::Closed)
    }

    /// Publishes the letter, and stores it if the broker does not accept it.
    async fn publish_or_store(&self, relay: &Arc<dyn Relay>, letter: Box<Letter>) -> Result<(), Abandoned> {
        let publish = self.publisher();
        let closing = &self.ownership.closing;
        let end = publish.until_taken(relay, &letter, closing, || self.note_attempts(&letter)).await?;
        let claim = match end {
            PublishEnd::Relayed => return Ok(()),
            PublishEnd::Refused => (letter.state == LetterState::Dead).then(|| letter.clone()),
            PublishEnd::TimedOut => None,
        };
        self.store_letter(letter, Placement::Open).await?;
        if let Some(letter) = claim {
            publish.claim(relay, &letter).await;
        }
        Ok(())
    }

    fn publisher(&self) -> Publish<'_> {
        Publish {
            component: &self.component,
            message: self.delivery.message(),
            from: &self.ownership.partition,
            same_failure: self.record.as_ref().map_or(0, |record| record.same_failure),
        }
    }

    /// Returns the letter of the message. It is boxed because it would enlarge the future of each
    /// message in flight.
    fn letter(&self, state: LetterState, due: Option<Timestamp>) -> Box<Letter> {
        let (sequence, record) = (self.sequence(), self.record.as_deref());
        Box::new(draft::new_letter(&self.component, &self.delivery, sequence, state, due, record))
    }

    /// Returns a letter that waits in the message's own sequence, whatever the strategy. The message is
    /// held back because of its sequence, not because it failed itself.
    pub(super) fn waiting_letter(&self) -> Box<Letter> {
        let mut letter = self.letter(LetterState::Waiting, None);
        letter.sequence = self.sequence().clone();
        letter
    }

    pub(super) fn writer(&self) -> LetterWriter<'_> {
        LetterWriter {
            component: &self.component,
            open: &self.open,
            message: self.delivery.message(),
            sequence: self.sequence(),
            hash: self.hash,
            grant: Some(self.ownership.grant(self.component.index)),
        }
    }

    /// Writes the letter, and repeats this until it is durable.
    pub(super) async fn store_letter(
        &self,
        letter: Box<Letter>,
        placement: Placement,
    ) -> Result<(), Abandoned> {
        let Component { queue, hand_offs, flight, options, .. } = &*self.component;
        let writer = self.writer();
        if mutated!(options, CommitBeforeHandOff) {
            let (hand_offs, queue) = (hand_offs.clone(), queue.clone());
            let item = writer.hand_off(*letter, placement);
            tokio::spawn(async move { hand_offs.hand_off_one(&queue, item).await });
            return Ok(());
        }
        let mut retry = StoreRetry::new(&self.component);
        let mut noted = false;
        while let Err(error) = writer.write(&letter, placement).await {
            if mutated!(options, DropOnEnqueueError) {
                return Ok(());
            }
            // A full queue may take long to drain. On a disk with only the reserve left, a note would
            // use the reserve.
            noted = noted || (error.limit() != Some(MIN_FREE) && self.note_attempts(&letter).await);
            retry.failed(error).await?;
        }
        flight.forget(queue, &letter.message);
        Ok(())
    }

    fn stop(&self, why: StopReason) -> Abandoned {
        let failure = self.record.as_ref().map(|record| Box::new(record.failure.clone()));
        let message = self.delivery.message().id.to_string();
        self.component.lifecycle.fail(Error::Stopped { message, why, failure });
        Abandoned::Revoked
    }
}
