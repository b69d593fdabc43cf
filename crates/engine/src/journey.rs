//! The way of one live message, from its lane to its settlement, written in the order in which it happens.
//!
//! Most messages never come here: a handler that succeeds at its first poll is settled by the shard itself. A journey
//! begins when something needs time or care: the handler waits, it failed, the sequence may be open, the message may
//! have been here before.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lazaret_core::handler::Delivery;
use lazaret_core::letter::AttemptKind;
use lazaret_core::policy::{Charge, Limit, Stage};
use lazaret_core::store::{AttemptNote, ErrorKind, HandOff, Placed, Placement};
use lazaret_core::{Failure, HandlerError, Letter, LetterState, Reason, SequenceId, Timestamp};
use tokio::time::Instant;

use crate::attempt::{self, Outcome};
use crate::decide::Step;
use crate::error::Error;
use crate::events::{Counters, Event};
use crate::gate::{Entry, Pass, change_or};
use crate::hash::SequenceHash;
use crate::judge::{self, Record};
use crate::lanes::OpenSequences;
use crate::patience::{Left, Waiting, patiently};
use crate::shared::{Component, mutated, until};
use crate::tenure::Tenure;

/// How a journey ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The message has its final or durable outcome.
    Settled,
    /// It has none here; it will be delivered again.
    Left,
    /// It has none here, because somebody else took over the partition.
    Fenced,
}

/// How far a message has come when its journey begins.
pub(crate) enum Begin {
    /// Nothing was tried.
    Fresh,
    /// The first attempt is over; it took this long.
    Ended(Outcome, Duration),
    /// The sequencing policy failed: there is nothing to try.
    Misfit,
}

/// One live message of one component on its way.
pub(crate) struct Journey {
    pub(crate) component: Arc<Component>,
    pub(crate) open: Arc<OpenSequences>,
    pub(crate) tenure: Arc<Tenure>,
    pub(crate) delivery: Delivery,
    pub(crate) hash: SequenceHash,
    /// Found when it is first needed.
    sequence: OnceLock<SequenceId>,
    record: Option<Box<Record>>,
}

/// What follows a failed attempt.
enum After {
    TryAgain,
    Settled,
}

impl Journey {
    pub(crate) fn new(
        component: Arc<Component>,
        open: Arc<OpenSequences>,
        tenure: Arc<Tenure>,
        delivery: Delivery,
        hash: SequenceHash,
    ) -> Self {
        Self { component, open, tenure, delivery, hash, sequence: OnceLock::new(), record: None }
    }

    fn sequence(&self) -> &SequenceId {
        self.sequence.get_or_init(|| {
            let message = self.delivery.message();
            let sequencing = &self.component.shared.options.sequencing;
            attempt::guarded(|| sequencing.id(message)).unwrap_or_else(|_| SequenceId::by_key(message))
        })
    }

    /// Travels to the end.
    pub(crate) async fn travel(mut self, begin: Begin) -> Fate {
        match self.go(begin).await {
            Ok(()) => Fate::Settled,
            Err(Left::Gone) => Fate::Left,
            Err(Left::Fenced) => Fate::Fenced,
        }
    }

    async fn go(&mut self, begin: Begin) -> Result<(), Left> {
        let mut ended = match begin {
            Begin::Fresh => {
                if self.is_twin() || self.was_handed_off().await? {
                    return Ok(());
                }
                self.remember_attempts();
                if self.joins_open_sequence().await? {
                    return Ok(());
                }
                None
            }
            Begin::Ended(outcome, took) => Some((outcome, Pass::free(), took)),
            Begin::Misfit => {
                let error =
                    HandlerError::msg("the sequencing policy panicked").reason(Reason::SEQUENCING_FAILED);
                Some((Outcome::Failed(error), Pass::free(), Duration::ZERO))
            }
        };
        loop {
            let (outcome, pass, took) = match ended.take() {
                Some(ended) => ended,
                None => match self.attempt().await? {
                    Some(ended) => ended,
                    None => return Ok(()),
                },
            };
            if let Some(letter) = self.open.take_uncertain(self.component.index, &self.delivery.message().id)
            {
                // The handler gave it up and nobody knows whether that was written: what may have happened must happen.
                drop(pass);
                return self.store_letter(letter, Placement::Open).await;
            }
            let Outcome::Failed(error) = outcome else {
                self.succeeded(&outcome, pass);
                return Ok(());
            };
            match self.failed(error, pass, took).await? {
                After::TryAgain => {}
                After::Settled => return Ok(()),
            }
        }
    }

    /// Whether a copy of the same handover came before, which is on its way or settled (I8).
    fn is_twin(&self) -> bool {
        let twin = self.delivery.message().hop.as_ref().is_some_and(|hop| hop.twin);
        if twin {
            self.tell_duplicate();
        }
        twin
    }

    /// Whether the message has a letter from before (I8). Only messages up to the horizon can, and those that were passed on:
    /// when nobody knew whether the broker had taken them, they went to the store as well.
    async fn was_handed_off(&self) -> Result<bool, Left> {
        let message = self.delivery.message();
        let (_, position) = message.place();
        if message.hop.is_none() && !self.tenure.may_have_letter(self.component.index, position.offset) {
            return Ok(false);
        }
        let id = [message.id.clone()];
        let found =
            patiently(&self.component, || self.component.shared.store.lookup(&self.component.queue, &id));
        match found.await?.first().copied().flatten() {
            None => Ok(false),
            Some(_) => {
                self.tell_duplicate();
                Ok(true)
            }
        }
    }

    /// Takes up what was noted before a restart, or came back with the message, so that attempts are counted across it (I4).
    fn remember_attempts(&mut self) {
        if mutated!(self.component.shared, ResetAttemptsOnRestart) {
            return;
        }
        let note = self.tenure.note(self.component.index, &self.delivery.message().id);
        let hop = self.delivery.message().hop.as_deref();
        // What was noted since it was passed on is the later of the two.
        let note = note.filter(|note| hop.is_none_or(|hop| note.attempts >= hop.attempts));
        let known = note.map(Record::from_note).or_else(|| hop.map(Record::from_hop));
        self.record = known.map(Box::new).or(self.record.take());
        let shared = &self.component.shared;
        if let Some(suspect) = shared.flight.charged(&self.component.queue, &self.delivery.message().id) {
            let earlier = self.record.take().map(|record| *record);
            self.record = Some(Box::new(Record::crashed(earlier, &suspect, shared.now())));
        }
    }

    /// Puts the message behind its sequence if that is open in the store (I2). The set in memory may say "maybe"
    /// wrongly, so the store has the last word.
    async fn joins_open_sequence(&self) -> Result<bool, Left> {
        if !self.sequence_may_be_open() {
            return Ok(false);
        }
        let mut waiting = Waiting::new(&self.component);
        loop {
            let item = self.follower();
            let placed = self.component.shared.hand_offs.hand_off_one(&self.component.queue, item).await;
            match placed {
                Ok(placed) => return Ok(self.was_appended(placed)),
                Err(error) => waiting.after(error).await?,
            }
        }
    }

    fn sequence_may_be_open(&self) -> bool {
        !mutated!(self.component.shared, SkipBlockedCheck) && self.open.maybe(self.component.index, self.hash)
    }

    /// The message as a letter that waits behind others.
    fn follower(&self) -> HandOff {
        let letter = self.waiting();
        HandOff { letter, placement: Placement::Behind, grant: Some(self.tenure.grant(self.component.index)) }
    }

    /// Whether the store took the message behind its sequence.
    fn was_appended(&self, placed: Placed) -> bool {
        match placed {
            Placed::NotOpen(revision) => {
                self.open.not_open(self.component.index, self.hash, revision);
                false
            }
            Placed::Held(_) => {
                self.tell_duplicate();
                true
            }
            Placed::Opened | Placed::Appended | Placed::Closed => {
                Counters::add(&self.component.shared.counters.appended, 1);
                self.tell_stored(LetterState::Waiting, None);
                true
            }
        }
    }

    /// Makes the next attempt as soon as it may start. `None` when the message was settled instead.
    async fn attempt(&mut self) -> Result<Option<(Outcome, Pass, Duration)>, Left> {
        let Some(pass) = self.admission().await? else { return Ok(None) };
        let attempt = self.record.as_ref().map_or(1, |record| record.attempts + 1);
        if let Some(record) = &self.record {
            let shared = &self.component.shared;
            Counters::add(&shared.counters.retries, 1);
            let lateness = record.due_at.map_or(Duration::ZERO, |due| until(due, shared.now()));
            shared.tell(&Event::RetryStarted { queue: &self.component.queue, attempt, lateness });
        }
        let permits = self.component.shared.permits.clone();
        let permit = tokio::select! {
            biased;
            () = self.tenure.leaving.cancelled() => return Err(Left::Gone),
            permit = permits.acquire_owned() => permit.map_err(|_| Left::Gone)?,
        };
        self.delivery.begin_attempt(attempt);
        let index = self.component.index;
        let _again = self
            .record
            .clone()
            .map(|record| self.open.trying_again(index, &self.delivery.message().id, *record));
        let flight = &self.component.shared.flight;
        let watched = flight.watch(&self.component.queue, self.delivery.message(), attempt).await;
        let started = Instant::now();
        let outcome = match &self.component.shared.options.dedupe {
            Some(dedupe) => attempt::run_once(&self.component, &self.delivery, dedupe).await,
            None => attempt::run(&self.component, &self.delivery).await,
        };
        drop(watched);
        drop(permit);
        Ok(Some((outcome, pass, started.elapsed())))
    }

    /// Waits until an attempt may start: limits, pauses, breaker, budget. `None` when the message was settled instead.
    async fn admission(&mut self) -> Result<Option<Pass>, Left> {
        let shared = self.component.shared.clone();
        let mut changed = shared.gate.watch();
        loop {
            let now = shared.now();
            if let Some(limit) = self.limit_reached(now) {
                self.end_retries(Some(limit)).await?;
                return Ok(None);
            }
            let due = self.record.as_ref().and_then(|record| record.due_at).filter(|due| *due > now);
            let wait = match due {
                // I12: it was waiting elsewhere when this partition came.
                Some(due) => Some(until(now, due)),
                None => match shared.gate.enter(self.delivery.message(), self.sequence(), now) {
                    Entry::Sidetrack => {
                        self.sidetrack().await?;
                        return Ok(None);
                    }
                    Entry::Wait(again) => again.map(|again| until(now, again)),
                    Entry::Go(pass) => match self.charge(now) {
                        Charge::Granted => return Ok(Some(pass)),
                        Charge::NotBefore(again) => Some(until(now, again)),
                        Charge::Exhausted(dimension) => {
                            self.note_budget(dimension.as_str());
                            self.end_retries(None).await?;
                            return Ok(None);
                        }
                    },
                },
            };
            tokio::select! {
                biased;
                () = self.tenure.leaving.cancelled() => return Err(Left::Gone),
                () = change_or(&mut changed, wait) => {}
            }
        }
    }

    /// The limit that ends the retries of this message before another attempt (I4).
    fn limit_reached(&self, now: Timestamp) -> Option<Limit> {
        let record = self.record.as_ref()?;
        let retry = judge::retry_policy(&self.component, self.delivery.message());
        if retry.too_many_crashes(record.crashes) {
            Some(Limit::Crashes)
        } else if record.attempts >= retry.max_attempts {
            Some(Limit::Attempts)
        } else {
            retry.expired(record.first_failed_at, now).then_some(Limit::Elapsed)
        }
    }

    fn charge(&self, now: Timestamp) -> Charge {
        match &self.record {
            None => Charge::Granted,
            Some(_) => self.component.shared.charge(now, self.hash, self.delivery.message()),
        }
    }

    fn note_budget(&mut self, dimension: &'static str) {
        if let Some(record) = &mut self.record {
            record.failure.message = format!("retry budget {dimension} used up; {}", record.failure.message);
        }
    }

    async fn end_retries(&self, limit: Option<Limit>) -> Result<(), Left> {
        let message = self.delivery.message();
        let queue = &self.component.queue;
        if let Some(record) = &self.record {
            let reason = &record.failure.reason;
            self.component.shared.tell(&Event::RetryExhausted { queue, message, limit, reason });
        }
        self.keep(LetterState::Dead, None).await
    }

    /// The sequence is paused: the message waits for its end in the store, so that the lane is free.
    async fn sidetrack(&self) -> Result<(), Left> {
        self.store_letter(self.waiting(), Placement::Open).await
    }

    fn succeeded(&self, outcome: &Outcome, pass: Pass) {
        let shared = &self.component.shared;
        shared.flight.handled(&self.component.queue, &self.delivery.message().id);
        match outcome {
            Outcome::Handled => {
                Counters::add(&shared.counters.handled, 1);
                shared.fuse_ok(1);
            }
            Outcome::Filtered => Counters::add(&shared.counters.filtered, 1),
            Outcome::Duplicate => self.tell_duplicate(),
            Outcome::SentToDlq => shared.fuse_terminal(),
            Outcome::Failed(_) => {}
        }
        shared.breaker_hears(outcome.sign(), pass);
    }

    async fn failed(&mut self, error: HandlerError, pass: Pass, took: Duration) -> Result<After, Left> {
        let shared = self.component.shared.clone();
        let attempt = self.record.as_ref().map_or(1, |record| record.attempts + 1);
        let judged = judge::classify(&self.component, &self.delivery, &error, attempt);
        let retry_since = self.record.as_ref().map(|record| record.first_failed_at);
        shared.breaker_hears(judge::sign(&self.component, &judged, retry_since), pass);
        let entry =
            judge::attempt_record(&self.component, AttemptKind::Live, attempt, took, Some(&judged.failure));
        let record = Record::failed(self.record.take().map(|record| *record), attempt, entry, judged.failure);
        let step = judge::next_step(&self.component, &self.delivery, judged.verdict, &record, false);
        self.record = Some(Box::new(record));
        let stays = shared.options.dead_letter.is_none();
        match step {
            Step::Wait { due } => self.wait(due).await,
            // Without dead letters there is no queue to wait in: the lane waits.
            Step::Later { due } if stays => self.wait(due).await,
            Step::Later { due } => {
                self.keep(LetterState::Retrying, Some(due)).await?;
                Ok(After::Settled)
            }
            Step::End { state, .. } => {
                shared.fuse_terminal();
                self.keep(state, None).await?;
                Ok(After::Settled)
            }
            Step::Skip => {
                self.skip().await?;
                Ok(After::Settled)
            }
            Step::Duplicate => {
                self.tell_duplicate();
                Ok(After::Settled)
            }
            Step::Stop => Err(self.stop("the failure was classified as stop")),
        }
    }

    /// Waits in memory for the next attempt. The attempts so far are durable before the next one starts, and before
    /// the partition goes: nobody gets more attempts by restarting (I4).
    async fn wait(&mut self, due: Timestamp) -> Result<After, Left> {
        if let Some(record) = &mut self.record {
            record.due_at = Some(due);
        }
        let shared = &self.component.shared;
        if let Some(note) = self.note(due) {
            patiently(&self.component, || shared.hand_offs.note(&self.component.queue, note.clone())).await?;
        }
        tokio::select! {
            biased;
            () = self.tenure.leaving.cancelled() => Err(Left::Gone),
            () = shared.sleep_until(due) => Ok(After::TryAgain),
        }
    }

    /// What is to be remembered of the attempts so far; `None` when there were none. Crashes stand in the flight recorder
    /// until the message is settled.
    pub(crate) fn note(&self, due_at: Timestamp) -> Option<AttemptNote> {
        let record = self.record.as_ref().filter(|record| record.attempts > record.crashes)?;
        let message = self.delivery.message();
        let (_, position) = message.place();
        self.tenure.noted(self.component.index, position.offset);
        Some(AttemptNote {
            message: message.id.clone(),
            partition: self.tenure.partition.clone(),
            offset: position.offset,
            attempts: record.attempts - record.crashes,
            first_failed_at: record.first_failed_at,
            failure: record.failure.clone(),
            same_failure: record.same_failure,
            due_at,
        })
    }

    /// How often in a row the message failed in the same way.
    pub(crate) fn same_failure(&self) -> u32 {
        self.record.as_ref().map_or(0, |record| record.same_failure)
    }

    /// Makes the message a letter, in the store or in the broker, unless the enqueue policy says otherwise.
    async fn keep(&self, state: LetterState, due: Option<Timestamp>) -> Result<(), Left> {
        if self.component.shared.options.dead_letter.is_none() {
            return Err(self.stop("it failed for good and dead letters are disabled"));
        }
        let letter = self.letter(state, due);
        let Some(failure) = letter.cause.clone() else {
            return self.store_letter(letter, Placement::Open).await;
        };
        let decision = judge::ask_policy(&self.component, &letter, &failure, Stage::FirstFailure);
        let mut letter = decision.apply(letter, self.component.shared.now());
        if decision.keeps() {
            // Letters that wait for a person are not for a topic: somebody has to find them and to act on them.
            let passes = matches!(letter.state, LetterState::Retrying | LetterState::Dead);
            return match self.component.shared.options.relay().filter(|_| passes) {
                Some(relay) => self.pass_on(relay, letter).await,
                None => self.store_letter(letter, Placement::Open).await,
            };
        }
        letter.state = LetterState::Skipped;
        letter.due_at = None;
        self.store_letter(letter, Placement::Closed).await
    }

    async fn skip(&self) -> Result<(), Left> {
        self.store_letter(self.letter(LetterState::Skipped, None), Placement::Closed).await
    }

    fn letter(&self, state: LetterState, due: Option<Timestamp>) -> Letter {
        judge::write_letter(
            &self.component,
            &self.delivery,
            self.sequence(),
            state,
            due,
            self.record.as_deref(),
        )
    }

    /// The message as a letter that waits in its own sequence, whatever the strategy: it is held back as one of its
    /// sequence, not for a failure of its own.
    fn waiting(&self) -> Letter {
        let mut letter = self.letter(LetterState::Waiting, None);
        letter.sequence = self.sequence().clone();
        letter
    }

    /// Hands the letter off until it is durable.
    pub(crate) async fn store_letter(&self, letter: Letter, placement: Placement) -> Result<(), Left> {
        let shared = &self.component.shared;
        let state = letter.state;
        let grant = Some(self.tenure.grant(self.component.index));
        let item = HandOff { letter, placement, grant };
        if mutated!(shared, CommitBeforeHandOff) {
            let (hand_offs, queue) = (shared.hand_offs.clone(), self.component.queue.clone());
            tokio::spawn(async move { hand_offs.hand_off_one(&queue, item).await });
            return Ok(());
        }
        let mut waiting = Waiting::new(&self.component);
        let mut noted = false;
        let placed = loop {
            match shared.hand_offs.hand_off_one(&self.component.queue, item.clone()).await {
                Ok(placed) => break placed,
                Err(_) if mutated!(shared, DropOnEnqueueError) => return Ok(()),
                Err(error) => {
                    if !noted
                        && let Some(note) = self.note(item.letter.due_at.unwrap_or_else(|| shared.now()))
                    {
                        // A queue that is full may take long. What was tried must not be forgotten meanwhile (I4).
                        noted = shared.hand_offs.note(&self.component.queue, note).await.is_ok();
                    }
                    waiting.after(error).await?;
                }
            }
        };
        shared.flight.forget(&self.component.queue, &item.letter.message.id);
        if placement == Placement::Open && item.letter.sequence == *self.sequence() {
            self.open.opened(self.component.index, self.hash);
        }
        match placed {
            Placed::Held(_) => self.tell_duplicate(),
            Placed::Closed => {
                Counters::add(&shared.counters.skipped, 1);
                let (queue, message) = (&self.component.queue, self.delivery.message());
                shared.tell(&Event::LetterClosed { queue, message, state, replay: None });
            }
            Placed::Opened | Placed::Appended | Placed::NotOpen(_) => {
                Counters::add(&shared.counters.handed_off, 1);
                self.tell_stored(state, item.letter.cause.as_ref());
            }
        }
        if state.is_automatic() {
            self.component.due.notify_one();
        }
        Ok(())
    }

    fn stop(&self, why: &'static str) -> Left {
        let failure = self.record.as_ref().map(|record| Box::new(record.failure.clone()));
        let message = self.delivery.message().id.to_string();
        self.component.shared.stop(Error::Stopped { message, why, failure });
        Left::Gone
    }

    fn tell_duplicate(&self) {
        Counters::add(&self.component.shared.counters.duplicates, 1);
        let (queue, message) = (&self.component.queue, self.delivery.message());
        self.component.shared.tell(&Event::Duplicate { queue, message });
    }

    fn tell_stored(&self, state: LetterState, cause: Option<&Failure>) {
        let (queue, message, sequence) = (&self.component.queue, self.delivery.message(), self.sequence());
        let (before, replay) = (None, None);
        let event = Event::LetterStored { queue, message, sequence, state, before, cause, replay };
        self.component.shared.tell(&event);
    }
}

/// Puts all messages that queue in a lane behind their open sequence, in one call. Returns how each one ended: settled,
/// left, or (`None`) not open, to be tried live. Those come back in their order. Each journey keeps the tag it came with.
///
/// Messages come in the order of the lane; the store keeps the order of a call, so a message that fails is sent again
/// with all those behind it.
pub(crate) async fn append_all<T>(mut journeys: Vec<(T, Journey)>) -> Vec<(T, Journey, Option<Fate>)> {
    let mut ended = Vec::with_capacity(journeys.len());
    let Some(component) = journeys.first().map(|(_, journey)| journey.component.clone()) else {
        return ended;
    };
    for (_, journey) in &mut journeys {
        journey.remember_attempts();
    }
    let mut waiting = Waiting::new(&component);
    let mut rest = journeys;
    loop {
        let items = rest.iter().map(|(_, journey)| journey.follower()).collect();
        let answers = component.shared.hand_offs.hand_off(&component.queue, items).await;
        let mut again = Vec::new();
        let mut trouble = None;
        for ((tag, journey), answer) in rest.into_iter().zip(answers) {
            match answer {
                Ok(placed) => {
                    let fate = journey.was_appended(placed).then_some(Fate::Settled);
                    ended.push((tag, journey, fate));
                }
                // Somebody else owns its partition now; those of other partitions go on.
                Err(error) if error.kind() == ErrorKind::Fenced => {
                    ended.push((tag, journey, Some(Fate::Fenced)));
                }
                Err(error) => {
                    trouble = Some(error);
                    again.push((tag, journey));
                }
            }
        }
        let Some(error) = trouble else { return ended };
        let over = waiting.after(error).await.is_err();
        let (stay, leave): (Vec<_>, Vec<_>) =
            again.into_iter().partition(|(_, journey)| !over && !journey.tenure.is_gone());
        ended.extend(leave.into_iter().map(|(tag, journey)| (tag, journey, Some(Fate::Left))));
        if stay.is_empty() {
            return ended;
        }
        rest = stay;
    }
}
