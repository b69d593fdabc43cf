//! A live message: look-ups before its first attempt, admission, attempts.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lazaret_core::handler::Delivery;
use lazaret_core::policy::Strategy;
use lazaret_core::{HandlerError, Letter, LetterId, LetterState, Message, MessageId, Reason, SequenceId};
use tokio::time::Instant;

use super::outcome::After;
use crate::admission::{self, Admission, AttemptOf, AttemptSlot, Candidate, Permission};
use crate::ages::UnderWay;
use crate::attempt::{self, Outcome};
use crate::backlog::Entering;
use crate::component::Component;
use crate::dedupe::{self, Claim, Claimed};
use crate::events::Event;
use crate::flow::Fate;
use crate::gate::{Pass, change_or};
use crate::hash::SequenceHash;
use crate::held::{Holding, NewHold};
use crate::letters;
use crate::mailbox::Mailbox;
use crate::mutation::mutated;
use crate::open_sequences::OpenSequences;
use crate::ownership::PartitionOwnership;
use crate::panics::guarded;
use crate::record::FailureRecord;
use crate::store_retry::{Abandoned, StoreRetry, retry_until_ok};
use crate::telemetry::Counters;
use crate::time::until;

/// The point at which the processing of a live message begins.
pub(crate) enum Begin {
    /// No attempt was made.
    Fresh,
    /// The first attempt ended after this time.
    Ended(Outcome, Duration),
    /// The sequencing policy failed: no attempt is made.
    Unsequenced,
}

/// An attempt that ended.
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) pass: Pass,
    pub(super) took: Duration,
    /// The claim in the duplicate filter, if there is one.
    pub(super) claim: Option<Claim>,
}

/// The result of waiting for the next attempt.
enum Admitted<'c> {
    /// The attempt starts.
    Start { permission: Permission<'c>, claim: Option<Claim> },
    /// The message, or a copy of it, was handled or is a letter.
    Duplicate,
    /// The message was settled instead.
    Settled,
}

/// One live message of one component.
pub(crate) struct LiveMessage {
    pub(crate) component: Arc<Component>,
    pub(crate) open: Arc<OpenSequences>,
    pub(crate) ownership: Arc<PartitionOwnership>,
    pub(crate) delivery: Delivery,
    pub(crate) hash: SequenceHash,
    /// Computed on first use.
    sequence: OnceLock<SequenceId>,
    pub(super) record: Option<Box<FailureRecord>>,
    /// Shows the message's age since its first failed attempt.
    failing: Option<UnderWay>,
    holds: Arc<Mailbox<NewHold>>,
    /// Set while the lane is held.
    pub(super) holding: Option<Holding>,
}

impl LiveMessage {
    pub(crate) fn new(
        component: Arc<Component>,
        open: Arc<OpenSequences>,
        holds: Arc<Mailbox<NewHold>>,
        ownership: Arc<PartitionOwnership>,
        delivery: Delivery,
        hash: SequenceHash,
    ) -> Self {
        Self {
            component,
            open,
            ownership,
            delivery,
            hash,
            sequence: OnceLock::new(),
            record: None,
            failing: None,
            holds,
            holding: None,
        }
    }

    /// Reports that the lane is held until this message is settled or abandoned: the messages behind it
    /// cannot run.
    pub(super) fn hold_lane(&mut self) {
        if self.holding.is_none() {
            let component = self.component.index as u32;
            self.holding = Some(Holding::begin(component, self.hash.low, &self.holds));
        }
    }

    /// Returns `true` if the message may wait in the store instead of in memory.
    pub(super) fn may_move_to_store(&self) -> bool {
        let options = &self.component.options;
        !mutated!(options, NeverMoveEarly)
            && self.record.is_some()
            && options.dead_letter.is_some()
            && options.retry.strategy == Strategy::Ordered
    }

    /// Waits until the message should move to the store, because too many messages are held back in
    /// memory. Never resolves if the message may not move, or while the retry backlog is full.
    pub(super) async fn must_move_to_store(&self) -> Entering<'_> {
        let guards = &self.component.guards;
        match &self.holding {
            Some(_) if self.may_move_to_store() && guards.held.is_pressed() => {}
            Some(holding) if self.may_move_to_store() => holding.must_move().await,
            _ => std::future::pending().await,
        }
        match guards.backlog.try_enter() {
            Some(entering) => entering,
            None => std::future::pending().await,
        }
    }

    pub(super) fn sequence(&self) -> &SequenceId {
        self.sequence.get_or_init(|| {
            let message = self.delivery.message();
            let sequencing = &self.component.options.sequencing;
            guarded(|| sequencing.id(message)).unwrap_or_else(|_| SequenceId::by_key(message))
        })
    }

    /// Processes the message until it is settled or abandoned.
    pub(crate) async fn process(mut self, begin: Begin) -> Fate {
        match self.settle(begin).await {
            Ok(()) => Fate::Settled,
            Err(Abandoned::Revoked) => Fate::Abandoned,
            Err(Abandoned::Fenced) => Fate::Fenced,
        }
    }

    async fn settle(&mut self, begin: Begin) -> Result<(), Abandoned> {
        let mut ended = match begin {
            Begin::Fresh => {
                if self.delivery.message().hop.as_ref().is_some_and(|hop| hop.conflict) {
                    self.report_conflict();
                }
                if self.is_redelivered_copy() || self.was_handed_off().await? {
                    return Ok(());
                }
                self.restore_attempts();
                if self.join_open_sequence().await? {
                    return Ok(());
                }
                None
            }
            Begin::Ended(outcome, took) => Some(Ended { outcome, pass: Pass::free(), took, claim: None }),
            Begin::Unsequenced => {
                let error =
                    HandlerError::msg("the sequencing policy panicked").reason(Reason::SEQUENCING_FAILED);
                let outcome = Outcome::Failed(error);
                Some(Ended { outcome, pass: Pass::free(), took: Duration::ZERO, claim: None })
            }
        };
        loop {
            let attempted = match ended.take() {
                Some(ended) => ended,
                None => match self.attempt().await? {
                    Some(ended) => ended,
                    None => return Ok(()),
                },
            };
            match self.finish_attempt(attempted).await? {
                After::TryAgain => {}
                After::Settled => return Ok(()),
            }
        }
    }

    /// Returns `true` if another copy of the same relayed message was delivered before (I8).
    fn is_redelivered_copy(&self) -> bool {
        let copy = self.delivery.message().hop.as_ref().is_some_and(|hop| hop.twin);
        if copy {
            self.report_duplicate();
        }
        copy
    }

    /// Returns `true` if the message has a letter (I8). Only messages up to the horizon and relayed
    /// messages can have one: if the broker's response was lost, a relayed message was also handed off
    /// to the store.
    async fn was_handed_off(&mut self) -> Result<bool, Abandoned> {
        let component = self.component.clone();
        let Component { store, queue, .. } = &*component;
        loop {
            let message = self.delivery.message();
            let (_, position) = message.place();
            if message.hop.is_none() && !self.ownership.may_have_letter(component.index, position.offset) {
                return Ok(false);
            }
            if !retry_until_ok(&component, || letters::is_known(store, queue, message)).await? {
                return Ok(false);
            }
            let Some(own_id) = self.id_of_conflict().await? else { break };
            self.delivery = self.delivery.with_message_id(own_id);
            self.report_conflict();
        }
        self.report_duplicate();
        Ok(true)
    }

    /// Returns a separate id for a relayed message whose letter holds another message. Producers, or
    /// other writers to a retry topic, may give two messages the same id. Settled as a duplicate, this
    /// message would be lost.
    async fn id_of_conflict(&self) -> Result<Option<MessageId>, Abandoned> {
        let message = self.delivery.message();
        let Some(hop) = &message.hop else { return Ok(None) };
        let own_id = MessageId::from(format!("{}/{}", hop.partition(), hop.position.offset));
        if message.id == own_id {
            return Ok(None);
        }
        let Component { store, queue, .. } = &*self.component;
        let id = LetterId::of(queue, &message.id);
        let letter = retry_until_ok(&self.component, || store.get(queue, id)).await?;
        Ok(letter.filter(|letter| !holds(letter, message)).map(|_| own_id))
    }

    fn report_conflict(&self) {
        let Component { queue, telemetry, .. } = &*self.component;
        telemetry.report_id_conflict(queue, self.delivery.message());
    }

    /// Restores the attempts that were noted before a restart, or that returned with the message, so
    /// that they count (I4).
    pub(super) fn restore_attempts(&mut self) {
        if mutated!(self.component.options, ResetAttemptsOnRestart) {
            return;
        }
        let message = self.delivery.message();
        let note = self.ownership.note(self.component.index, &message.id);
        let hop = message.hop.as_deref();
        // If the note was written after the message was relayed, it is more recent.
        let note = note.filter(|note| hop.is_none_or(|hop| note.attempts >= hop.attempts));
        let clock = &*self.component.clock;
        let note = note.map(|note| FailureRecord::from_note(note, clock));
        let known = note.or_else(|| hop.map(|hop| FailureRecord::from_hop(hop, clock)));
        self.record = known.map(Box::new).or(self.record.take());
        let Component { queue, flight, .. } = &*self.component;
        if let Some(suspect) = flight.charged(queue, self.delivery.message()) {
            let earlier = self.record.take().map(|record| *record);
            let now = self.component.now();
            let mut record = FailureRecord::crashed(earlier, &suspect, now);
            record.failure = self.component.grouped(record.failure, self.delivery.message());
            self.record = Some(Box::new(record));
        }
        self.show_age();
    }

    /// Shows the age of a failed message, from its first failed attempt until it is settled or
    /// abandoned.
    pub(super) fn show_age(&mut self) {
        if let (Some(record), None) = (&self.record, &self.failing) {
            self.failing = Some(self.component.ages.failing.begin(record.first_failed_at));
        }
    }

    /// Makes the next attempt as soon as it may start. Returns `None` if the message was settled
    /// instead.
    async fn attempt(&mut self) -> Result<Option<Ended>, Abandoned> {
        let component = self.component.clone();
        let (permission, claim) = match self.admission_and_claim(&component).await? {
            Admitted::Start { permission, claim } => (permission, claim),
            Admitted::Duplicate => {
                if self.record.is_some() {
                    component.guards.refund(self.hash, self.delivery.message());
                }
                let (outcome, took) = (Outcome::Duplicate, Duration::ZERO);
                return Ok(Some(Ended { outcome, pass: Pass::free(), took, claim: None }));
            }
            Admitted::Settled => return Ok(None),
        };
        let Permission { pass, slot: AttemptSlot { permit, isolation } } = permission;
        let Component { index, queue, telemetry, flight, .. } = &*component;
        let attempt = self.record.as_ref().map_or(1, |record| record.attempts.saturating_add(1));
        let lateness = self
            .record
            .as_ref()
            .map(|record| record.due.map_or(Duration::ZERO, |due| until(due.due(), component.now())));
        self.delivery.begin_attempt(attempt);
        let message = self.delivery.message();
        let _earlier = self.record.clone().map(|record| self.open.trying_again(*index, &message.id, *record));
        let run = pin!(async {
            let watched = flight.watch(isolation, queue, message, attempt);
            let started = Instant::now();
            let outcome = attempt::run(&component, &self.delivery).await;
            drop(watched);
            (outcome, started.elapsed())
        });
        let (outcome, took) = dedupe::renewed_during(claim.as_ref(), run).await;
        drop(permit);
        match lateness {
            Some(_) if matches!(outcome, Outcome::Deferred(_)) => component.guards.refund(self.hash, message),
            Some(lateness) => {
                Counters::add(&telemetry.counters.retries, 1);
                telemetry.emit(&Event::RetryStarted { queue, attempt, lateness });
            }
            None => {}
        }
        Ok(Some(Ended { outcome, pass, took, claim }))
    }

    /// Waits until an attempt may start and the duplicate filter has no other claim. Waits for other
    /// claims do not hold a permit, because they are not attempts (I3).
    async fn admission_and_claim<'c>(&mut self, component: &'c Component) -> Result<Admitted<'c>, Abandoned> {
        let Component { queue, store, .. } = component;
        let Some(filter) = &component.dedupe else {
            return Ok(match self.admission(component, false).await? {
                Some(permission) => Admitted::Start { permission, claim: None },
                None => Admitted::Settled,
            });
        };
        let (mut delays, mut retry) = (filter.delays(), StoreRetry::new(component));
        let mut charged = false;
        loop {
            let Some(permission) = self.admission(component, charged).await? else {
                return Ok(Admitted::Settled);
            };
            charged = true;
            // From here on the message waits, and the reasons for its admission may end.
            let Permission { pass, slot } = permission;
            drop(pass);
            let (message, asked) = (self.delivery.message(), filter.asks());
            let error = match filter.claim(queue, &message.dedupe_id()).await {
                Ok(Claimed::Done) => return Ok(Admitted::Duplicate),
                Ok(Claimed::InFlight) => None,
                // A failed copy keeps its claim until its letter is durable, so a letter is found from
                // here on (I8).
                Ok(Claimed::Yes(claim)) => match letters::is_known(store, queue, message).await {
                    Ok(true) => {
                        claim.end().await;
                        return Ok(Admitted::Duplicate);
                    }
                    Ok(false) => {
                        if let Some(pass) = self.still_admitted().filter(|_| filter.is_safe(asked)) {
                            let permission = Permission { pass, slot };
                            return Ok(Admitted::Start { permission, claim: Some(claim) });
                        }
                        drop(slot);
                        claim.end().await;
                        continue;
                    }
                    Err(error) => {
                        claim.end().await;
                        Some(error)
                    }
                },
                Err(error) => Some(error),
            };
            drop(slot);
            if let Some(error) = error {
                retry.failed(error).await?;
                continue;
            }
            // The store has answered, so nothing holds the source.
            retry = StoreRetry::new(component);
            tokio::select! {
                biased;
                () = self.ownership.closing.cancelled() => return Err(Abandoned::Revoked),
                () = tokio::time::sleep(delays.next()) => {}
            }
        }
    }

    /// Checks again whether a message is admitted that was admitted before and then had to wait for its
    /// claim.
    fn still_admitted(&self) -> Option<Pass> {
        match admission::check(&self.component, &self.candidate(true)) {
            Admission::Start(pass) if !self.ownership.is_closing() && self.is_certain() => Some(pass),
            _ => None,
        }
    }

    fn is_certain(&self) -> bool {
        admission::is_certain(&self.component, &self.ownership)
    }

    /// Waits until the source has confirmed that the partition is still owned. This process may have
    /// been stopped (I6).
    async fn ownership_confirmed(&self) -> Result<(), Abandoned> {
        tokio::select! {
            biased;
            () = self.ownership.closing.cancelled() => Err(Abandoned::Revoked),
            () = self.ownership.confirmed() => Ok(()),
        }
    }

    fn candidate(&self, charged: bool) -> Candidate<'_> {
        Candidate {
            of: AttemptOf::Live,
            message: self.delivery.message(),
            sequence: self.sequence(),
            hash: self.hash,
            record: self.record.as_deref(),
            // I12: the message may have waited elsewhere when this partition was assigned.
            due: self.record.as_ref().and_then(|record| record.due),
            charged,
        }
    }

    /// Waits until an attempt may start. Returns `None` if the message was settled instead.
    ///
    /// All other waits come first: an admitted message never waits while a pause or the breaker begins.
    async fn admission<'c>(
        &mut self,
        component: &'c Component,
        charged: bool,
    ) -> Result<Option<Permission<'c>>, Abandoned> {
        let mut changed = component.guards.gate.watch();
        loop {
            let slot = tokio::select! {
                biased;
                () = self.ownership.closing.cancelled() => return Err(Abandoned::Revoked),
                slot = admission::slot(component, self.delivery.message()) => slot,
            };
            let slot = slot.ok_or(Abandoned::Revoked)?;
            if !self.is_certain() {
                drop(slot);
                // Boxed because it is rare and would enlarge the future of each message in flight.
                Box::pin(self.ownership_confirmed()).await?;
                continue;
            }
            let mut due = None;
            let wait = match admission::check(&self.component, &self.candidate(charged)) {
                Admission::Start(pass) => return Ok(Some(Permission { pass, slot })),
                Admission::Exhausted(exhausted) => {
                    drop(slot);
                    self.end_retries(exhausted).await?;
                    return Ok(None);
                }
                Admission::HoldInStore => {
                    drop(slot);
                    self.hold_in_store().await?;
                    return Ok(None);
                }
                Admission::NotDue(wait) => {
                    self.hold_lane();
                    due = Some(wait.due());
                    Some(wait.rest(&*component.clock))
                }
                Admission::NotBefore(time) => {
                    self.hold_lane();
                    due = Some(time);
                    Some(until(component.now(), time))
                }
                Admission::Held(again) => {
                    // A pause may concern only this partition; the breaker holds all messages.
                    if again.is_none() {
                        self.hold_lane();
                    }
                    again.map(|time| until(component.now(), time))
                }
            };
            drop(slot);
            tokio::select! {
                biased;
                () = self.ownership.closing.cancelled() => return Err(Abandoned::Revoked),
                () = change_or(&mut changed, wait) => {}
                _entering = self.must_move_to_store(), if due.is_some() => {
                    self.keep(LetterState::Retrying, due).await?;
                    return Ok(None);
                }
            }
        }
    }

    pub(super) fn report_duplicate(&self) {
        let Component { queue, telemetry, .. } = &*self.component;
        telemetry.report_duplicate(queue, self.delivery.message());
    }
}

/// Returns `true` if the letter holds this message or a copy of it.
fn holds(letter: &Letter, message: &Message) -> bool {
    let Letter { message: held, payload_left_out, .. } = letter;
    let is_same_place = held.stream == message.stream && held.position == message.position;
    is_same_place || (!payload_left_out && held.key == message.key && held.payload == message.payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of the future that `call` returns, without calling it.
    fn size_of_future<A, F: Future>(_: impl FnOnce(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_message_in_flight_takes_a_few_kilobytes() {
        // I7: there is one of these futures for each message of the window.
        let parts = [
            ("join", size_of_future(|live: &'static LiveMessage| live.join_open_sequence())),
            ("lookup", size_of_future(|live: &'static mut LiveMessage| live.was_handed_off())),
            ("attempt", size_of_future(|live: &'static mut LiveMessage| live.attempt())),
            (
                "finish",
                size_of_future(|(live, ended): (&'static mut LiveMessage, Ended)| live.finish_attempt(ended)),
            ),
            ("letter", size_of::<Letter>()),
            ("live", size_of::<LiveMessage>()),
            ("ended", size_of::<Ended>()),
        ];
        let whole = size_of_future(|(live, begin): (LiveMessage, Begin)| live.process(begin));
        assert!(whole <= 4096, "{whole} bytes: {parts:?}");
    }
}
