//! Writes the outcome of an attempt at a letter.

use std::time::Duration;

use lazaret_core::store::{Certainty, ErrorKind, Lease, Result, Settled, Settlement};
use lazaret_core::{Letter, LetterId, LetterState};

use crate::component::Component;
use crate::events::Event;
use crate::store_retry::StoreRetry;
use crate::stored::Purpose;
use crate::telemetry::Counters;

/// The maximum delay between two calls. The lease ends while they continue.
const MAX_DELAY: Duration = Duration::from_secs(2);

/// The reason why a letter is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResolvedBy {
    /// The handler succeeded.
    Handler,
    /// The filter rejected the message.
    Filter,
    /// The message, or a copy of it, was handled before.
    Duplicate,
}

/// Settles the heads of one leased sequence.
pub(crate) struct Settler<'a> {
    pub(crate) component: &'a Component,
    pub(crate) lease: &'a Lease,
    pub(crate) purpose: &'a Purpose,
    /// The reason for a settlement that resolves the letter.
    pub(crate) resolved_by: ResolvedBy,
    /// If `true`, the operation of the lease takes the next letter together with the settlement, if it
    /// may.
    pub(crate) take_next: bool,
}

impl Settler<'_> {
    /// Writes the settlement, and repeats this until it is known to be written. Returns `None` if it
    /// cannot be written, or if it is unknown how the sequence continues.
    pub(crate) async fn settle(&self, letter: &Letter, settlement: Settlement) -> Option<Settled> {
        if let Settlement::Requeue(requeue) = &settlement
            && *self.purpose == Purpose::Retry
            && !requeue.state.is_automatic()
        {
            let cause = requeue.cause.as_ref().or(letter.cause.as_ref());
            self.component.guards.record_terminal(&letter.queue, cause);
        }
        let mut retry = StoreRetry::with_max_delay(self.component, MAX_DELAY);
        let mut maybe_done = false;
        loop {
            match self.send(letter.id, settlement.clone()).await {
                Ok(settled) => {
                    self.report(letter, &settlement);
                    return Some(settled);
                }
                Err(error) => {
                    maybe_done |= error.certainty() == Certainty::MaybeDone;
                    if error.kind() == ErrorKind::Fenced && !maybe_done {
                        let Lease { queue, sequence, .. } = self.lease;
                        self.component.telemetry.report_lost_lease(queue, sequence);
                    }
                    if !error.kind().is_temporary() {
                        if maybe_done {
                            self.report(letter, &settlement);
                        }
                        return None;
                    }
                    retry.wait(&error).await;
                }
            }
        }
    }

    async fn send(&self, letter: LetterId, settlement: Settlement) -> Result<Settled> {
        let store = &self.component.store;
        match self.take_next {
            true => store.settle_and_continue(self.lease, letter, settlement).await,
            false => store.settle(self.lease, letter, settlement).await,
        }
    }

    fn report(&self, letter: &Letter, settlement: &Settlement) {
        let Component { queue, telemetry, flight, .. } = self.component;
        let message = &*letter.message;
        let replay = match self.purpose {
            Purpose::Retry => None,
            Purpose::Replay(operation) => Some(operation.as_str()),
        };
        flight.forget(queue, message);
        let state = match settlement {
            Settlement::Resolve(_) => {
                match self.resolved_by {
                    ResolvedBy::Handler => {
                        Counters::add(&telemetry.counters.handled, 1);
                        Counters::add(&telemetry.counters.resolved, 1);
                    }
                    ResolvedBy::Filter => Counters::add(&telemetry.counters.filtered, 1),
                    ResolvedBy::Duplicate => telemetry.report_duplicate(queue, message),
                }
                LetterState::Resolved
            }
            Settlement::Evict(_) => LetterState::Evicted,
            Settlement::Skip(_) => {
                Counters::add(&telemetry.counters.skipped, 1);
                LetterState::Skipped
            }
            // A deferred attempt changes nothing.
            Settlement::Requeue(requeue)
                if requeue.state == letter.state && requeue.cause.is_none() && requeue.attempt.is_none() =>
            {
                return;
            }
            Settlement::Requeue(requeue) => {
                let cause = requeue.cause.as_ref().or(letter.cause.as_ref());
                telemetry.emit(&Event::LetterStored {
                    queue,
                    message,
                    letter: letter.id,
                    sequence: &letter.sequence,
                    state: requeue.state,
                    before: Some(letter.state),
                    cause,
                    replay,
                });
                return;
            }
        };
        telemetry.emit(&Event::LetterClosed { queue, message, letter: letter.id, state, replay });
    }
}
