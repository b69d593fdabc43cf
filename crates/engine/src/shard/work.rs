//! Work of a shard that takes time: handlers that wait, journeys, hand-offs and stored runs.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::{LaneKey, Parcel, Ticket, lane_of};
use crate::attempt::{self, Outcome, Running};
use crate::flight::Recorded;
use crate::journey::Fate;
use crate::tenure::Tenure;

/// What comes back from work that took time.
pub(super) enum Done {
    /// The handler has answered; it was started then.
    Attempted(Parcel, Outcome, Instant, Option<OwnedSemaphorePermit>),
    /// The handler was dropped with the partition.
    Dropped(LaneKey, Ticket),
    Journey(LaneKey, Ticket, Fate),
    Appended(LaneKey, Vec<(Parcel, Option<Fate>)>),
    Run,
}

/// Work that takes time. Work for one message ends with the assignment of its partition.
pub(super) enum Work {
    /// A handler that did not answer at its first poll.
    Attempt(Attempting),
    /// A journey, with what is to be told when its partition is gone.
    Journey { tenure: Arc<Tenure>, lane: LaneKey, ticket: Ticket, future: Later },
    /// Anything that belongs to no single message.
    Other(Later),
}

pub(super) type Later = Pin<Box<dyn Future<Output = Done> + Send>>;

/// A handler at work. Not a future in a box: handlers that wait for something are the common case.
pub(super) struct Attempting {
    pub(super) tenure: Arc<Tenure>,
    pub(super) parcel: Option<Parcel>,
    pub(super) running: Running,
    pub(super) permit: Option<OwnedSemaphorePermit>,
    pub(super) started: Instant,
    /// In the flight recorder until it has answered.
    pub(super) recorded: Option<Recorded>,
    /// The limit that it has passed, once it has.
    pub(super) overdue: Option<Duration>,
}

impl Future for Work {
    type Output = Done;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done> {
        match self.get_mut() {
            Self::Attempt(attempting) => attempting.poll(cx),
            Self::Journey { tenure, lane, ticket, .. } if tenure.is_gone() => {
                Poll::Ready(Done::Journey(*lane, *ticket, Fate::Left))
            }
            Self::Journey { future, .. } | Self::Other(future) => future.as_mut().poll(cx),
        }
    }
}

impl Attempting {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Done> {
        let Some(parcel) = &self.parcel else { return Poll::Pending };
        if self.tenure.is_gone() {
            return Poll::Ready(Done::Dropped(lane_of(parcel), parcel.ticket));
        }
        let outcome = if let Some(limit) = self.overdue {
            attempt::timed_out(&parcel.delivery, limit)
        } else {
            match Pin::new(&mut self.running).poll(cx) {
                Poll::Ready(result) => attempt::ended(&parcel.delivery, result),
                Poll::Pending => return Poll::Pending,
            }
        };
        self.recorded = None;
        let permit = self.permit.take();
        match self.parcel.take() {
            Some(parcel) => Poll::Ready(Done::Attempted(parcel, outcome, self.started, permit)),
            None => Poll::Pending,
        }
    }
}
