//! The futures of a shard: pending handlers, live messages, appends and stored runs.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::lane::{LaneItem, LaneKey};
use crate::ages::UnderWay;
use crate::attempt::{self, Outcome, Running};
use crate::flight::Recorded;
use crate::flow::{Fate, Ticket};
use crate::ownership::PartitionOwnership;

/// The result of a future.
pub(super) enum Done {
    /// The handler returned. The `Instant` is the time at which it was started.
    Attempted(LaneItem, Outcome, Instant, Option<OwnedSemaphorePermit>),
    /// The handler was dropped together with the partition.
    Dropped(LaneKey, Ticket),
    Live(LaneKey, Ticket, Fate),
    Appended(LaneKey, Vec<(LaneItem, Option<Fate>)>),
    Run,
}

/// A future of the shard. Work on a message ends with the assignment of its partition.
pub(super) enum Work {
    /// A handler that was pending at its first poll.
    Attempt(Attempting),
    /// A message that is processed beyond its first poll. The other fields are needed to report its end
    /// when its partition is revoked.
    Live { ownership: Arc<PartitionOwnership>, lane: LaneKey, ticket: Ticket, future: Later },
    /// Work that belongs to no particular message.
    Other(Later),
}

pub(super) type Later = Pin<Box<dyn Future<Output = Done> + Send>>;

/// A running handler. It is not boxed, because handlers that wait are the common case.
pub(super) struct Attempting {
    pub(super) ownership: Arc<PartitionOwnership>,
    pub(super) item: Option<LaneItem>,
    pub(super) running: Running,
    pub(super) permit: Option<OwnedSemaphorePermit>,
    pub(super) started: Instant,
    /// Shows the attempt's age to observers of the consumer.
    pub(super) _age: UnderWay,
    /// The entry in the flight recorder, until the handler returns.
    pub(super) recorded: Option<Recorded>,
    /// The time limit, once the attempt has exceeded it.
    pub(super) overdue: Option<Duration>,
}

impl Future for Work {
    type Output = Done;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done> {
        match self.get_mut() {
            Self::Attempt(attempting) => attempting.poll(cx),
            Self::Live { ownership, lane, ticket, .. } if ownership.is_revoked() => {
                Poll::Ready(Done::Live(*lane, *ticket, Fate::Abandoned))
            }
            Self::Live { future, .. } | Self::Other(future) => future.as_mut().poll(cx),
        }
    }
}

impl Drop for Attempting {
    fn drop(&mut self) {
        // The item is taken when the handler has returned.
        if let Some(item) = &self.item {
            item.delivery.cancel();
            drop(attempt::EndOnDrop(&item.delivery));
        }
    }
}

impl Attempting {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Done> {
        let Some(item) = &self.item else { return Poll::Pending };
        if self.ownership.is_revoked() {
            return Poll::Ready(Done::Dropped(item.lane(), item.ticket));
        }
        let outcome = if let Some(limit) = self.overdue {
            attempt::timed_out(&item.delivery, limit)
        } else {
            match Pin::new(&mut self.running).poll(cx) {
                Poll::Ready(result) => attempt::ended(&item.delivery, result),
                Poll::Pending => return Poll::Pending,
            }
        };
        self.recorded = None;
        let permit = self.permit.take();
        match self.item.take() {
            Some(item) => Poll::Ready(Done::Attempted(item, outcome, self.started, permit)),
            None => Poll::Pending,
        }
    }
}
