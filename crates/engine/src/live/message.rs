//! A live message: lookups before its first attempt, admission, attempts.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lazaret_core::handler::Delivery;
use lazaret_core::store::Placement;
use lazaret_core::{HandlerError, Reason, SequenceId};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::outcome::After;
use crate::admission::{self, Admission, AttemptOf, Candidate};
use crate::attempt::{self, Outcome};
use crate::component::Component;
use crate::events::Event;
use crate::flow::Fate;
use crate::gate::{Pass, change_or};
use crate::hash::SequenceHash;
use crate::mutation::mutated;
use crate::open_sequences::OpenSequences;
use crate::ownership::PartitionOwnership;
use crate::panics::guarded;
use crate::record::FailureRecord;
use crate::store_retry::{Abandoned, retry_until_ok};
use crate::telemetry::Counters;
use crate::time::until;

/// The point at which the processing begins.
pub(crate) enum Begin {
    /// No attempt was made.
    Fresh,
    /// The first attempt ended; it took this long.
    Ended(Outcome, Duration),
    /// The sequencing policy failed: no attempt is made.
    Unsequenced,
}

/// An attempt that ended.
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) pass: Pass,
    pub(super) took: Duration,
}

/// One live message of one component.
pub(crate) struct LiveMessage {
    pub(crate) component: Arc<Component>,
    pub(crate) open: Arc<OpenSequences>,
    pub(crate) ownership: Arc<PartitionOwnership>,
    pub(crate) delivery: Delivery,
    pub(crate) hash: SequenceHash,
    /// Computed when it is first needed.
    sequence: OnceLock<SequenceId>,
    pub(super) record: Option<Box<FailureRecord>>,
}

impl LiveMessage {
    pub(crate) fn new(
        component: Arc<Component>,
        open: Arc<OpenSequences>,
        ownership: Arc<PartitionOwnership>,
        delivery: Delivery,
        hash: SequenceHash,
    ) -> Self {
        Self { component, open, ownership, delivery, hash, sequence: OnceLock::new(), record: None }
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
                if self.is_redelivered_copy() || self.was_handed_off().await? {
                    return Ok(());
                }
                self.restore_attempts();
                if self.join_open_sequence().await? {
                    return Ok(());
                }
                None
            }
            Begin::Ended(outcome, took) => Some(Ended { outcome, pass: Pass::free(), took }),
            Begin::Unsequenced => {
                let error =
                    HandlerError::msg("the sequencing policy panicked").reason(Reason::SEQUENCING_FAILED);
                let outcome = Outcome::Failed(error);
                Some(Ended { outcome, pass: Pass::free(), took: Duration::ZERO })
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
            let (index, id) = (self.component.index, &self.delivery.message().id);
            if let Some(letter) = self.open.take_uncertain(index, id) {
                // The handler gave it up and the write may or may not have happened: it must happen.
                drop(attempted.pass);
                return self.store_letter(letter, Placement::Open).await;
            }
            match self.finish_attempt(attempted).await? {
                After::TryAgain => {}
                After::Settled => return Ok(()),
            }
        }
    }

    /// Returns `true` when another copy of the same relayed message was delivered before (I8).
    fn is_redelivered_copy(&self) -> bool {
        let copy = self.delivery.message().hop.as_ref().is_some_and(|hop| hop.twin);
        if copy {
            self.report_duplicate();
        }
        copy
    }

    /// Returns `true` when the message has a letter (I8). Only messages up to the horizon can have one, and those that were
    /// relayed: when the broker's answer was lost, they were handed off to the store as well.
    async fn was_handed_off(&self) -> Result<bool, Abandoned> {
        let message = self.delivery.message();
        let (_, position) = message.place();
        if message.hop.is_none() && !self.ownership.may_have_letter(self.component.index, position.offset) {
            return Ok(false);
        }
        let id = [message.id.clone()];
        let Component { store, queue, .. } = &*self.component;
        let found = retry_until_ok(&self.component, || store.lookup(queue, &id)).await?;
        let handed_off = found.first().copied().flatten().is_some();
        if handed_off {
            self.report_duplicate();
        }
        Ok(handed_off)
    }

    /// Restores the attempts that were noted before a restart, or returned with the message, so that they count (I4).
    pub(super) fn restore_attempts(&mut self) {
        if mutated!(self.component.options, ResetAttemptsOnRestart) {
            return;
        }
        let message = self.delivery.message();
        let note = self.ownership.note(self.component.index, &message.id);
        let hop = message.hop.as_deref();
        // A note that was written after the message was relayed is the later of the two.
        let note = note.filter(|note| hop.is_none_or(|hop| note.attempts >= hop.attempts));
        let known = note.map(FailureRecord::from_note).or_else(|| hop.map(FailureRecord::from_hop));
        self.record = known.map(Box::new).or(self.record.take());
        let Component { queue, flight, .. } = &*self.component;
        if let Some(suspect) = flight.charged(queue, &self.delivery.message().id) {
            let earlier = self.record.take().map(|record| *record);
            let now = self.component.now();
            self.record = Some(Box::new(FailureRecord::crashed(earlier, &suspect, now)));
        }
    }

    /// Makes the next attempt as soon as it may start. `None` when the message was settled instead.
    async fn attempt(&mut self) -> Result<Option<Ended>, Abandoned> {
        let Some((pass, permit)) = self.admission().await? else { return Ok(None) };
        let component = self.component.clone();
        let Component { index, queue, telemetry, flight, .. } = &*component;
        let attempt = self.record.as_ref().map_or(1, |record| record.attempts.saturating_add(1));
        if let Some(record) = &self.record {
            Counters::add(&telemetry.counters.retries, 1);
            let lateness = record.due_at.map_or(Duration::ZERO, |due| until(due, component.now()));
            telemetry.emit(&Event::RetryStarted { queue, attempt, lateness });
        }
        self.delivery.begin_attempt(attempt);
        let message = self.delivery.message();
        let _earlier = self.record.clone().map(|record| self.open.trying_again(*index, &message.id, *record));
        let watched = flight.watch(queue, message, attempt).await;
        let started = Instant::now();
        let outcome = match &component.options.dedupe {
            Some(dedupe) => attempt::run_once(&component, &self.delivery, dedupe).await,
            None => attempt::run(&component, &self.delivery).await,
        };
        drop(watched);
        drop(permit);
        Ok(Some(Ended { outcome, pass, took: started.elapsed() }))
    }

    /// Waits until an attempt may start. `None` when the message was settled instead.
    ///
    /// The permit comes first: nothing that was admitted waits for one while a pause or the breaker begins.
    async fn admission(&mut self) -> Result<Option<(Pass, OwnedSemaphorePermit)>, Abandoned> {
        let mut changed = self.component.guards.gate.watch();
        loop {
            let permits = self.component.guards.permits.clone();
            let permit = tokio::select! {
                biased;
                () = self.ownership.closing.cancelled() => return Err(Abandoned::Revoked),
                permit = permits.acquire_owned() => permit.map_err(|_| Abandoned::Revoked)?,
            };
            let candidate = Candidate {
                of: AttemptOf::Live,
                message: self.delivery.message(),
                sequence: self.sequence(),
                hash: self.hash,
                record: self.record.as_deref(),
                // I12: it was waiting elsewhere when this partition was assigned.
                due_at: self.record.as_ref().and_then(|record| record.due_at),
            };
            let wake_at = match admission::check(&self.component, &candidate) {
                Admission::Start(pass) => return Ok(Some((pass, permit))),
                Admission::Exhausted(exhausted) => {
                    drop(permit);
                    self.end_retries(exhausted).await?;
                    return Ok(None);
                }
                Admission::HoldInStore => {
                    drop(permit);
                    self.hold_in_store().await?;
                    return Ok(None);
                }
                Admission::NotBefore(time) => Some(time),
                Admission::Held(again) => again,
            };
            drop(permit);
            let wait = wake_at.map(|time| until(self.component.now(), time));
            tokio::select! {
                biased;
                () = self.ownership.closing.cancelled() => return Err(Abandoned::Revoked),
                () = change_or(&mut changed, wait) => {}
            }
        }
    }

    pub(super) fn report_duplicate(&self) {
        let Component { queue, telemetry, .. } = &*self.component;
        telemetry.report_duplicate(queue, self.delivery.message());
    }
}
