//! Starts attempts as far as permits are available.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::lane::{LaneItem, LaneKey, Ready};
use super::task::Shard;
use super::work::{Attempting, Done, Work};
use crate::admission;
use crate::attempt::{self, Outcome, Running, Start};
use crate::flight::{self, Recorded};
use crate::flow::Fate;
use crate::hash::SequenceHash;
use crate::held::Usage;
use crate::live::{Begin, LiveMessage};
use crate::mutation::mutated;

/// The maximum number of messages that are started before other work is polled.
pub(super) const START_LIMIT: usize = 256;

impl Shard {
    /// Starts up to this many ready messages, as far as permits are available.
    pub(super) fn start_ready(&mut self, cx: &mut Context<'_>, limit: usize) {
        for _ in 0..limit {
            if self.ready.is_empty() || !self.has_permit() {
                return;
            }
            let Some(ready) = self.ready.pop_front() else { return };
            self.start(ready, cx);
        }
    }

    /// Returns `true` if there is a permit for the next message.
    pub(super) fn has_permit(&mut self) -> bool {
        if self.permit.is_none() {
            self.permit = self.guards.permits.clone().try_acquire_owned().ok();
        }
        self.permit.is_some()
    }

    pub(super) fn start(&mut self, ready: Ready, cx: &mut Context<'_>) {
        let Ready { mut item, holds_lane } = ready;
        let lane = item.lane();
        if !holds_lane && !self.lanes.is_empty() {
            match self.queue_behind(lane, item) {
                Some(back) => item = back,
                None => return,
            }
        }
        let index = item.component as usize;
        let Some(ownership) = self.ownerships.get(item.ticket.slot as usize).and_then(Option::as_ref) else {
            return self.finish_now(lane, holds_lane, item.ticket, Fate::Abandoned);
        };
        // Messages of an earlier assignment are delivered again. They must not run before the messages
        // ahead of them (I2).
        if ownership.is_closing() || ownership.generation != item.ticket.generation {
            return self.finish_now(lane, holds_lane, item.ticket, Fate::Abandoned);
        }
        let component = &self.components[index];
        if item.unsequenced {
            return self.process(item, lane, Begin::Unsequenced);
        }
        let unconditional = admission::is_unconditional(component, ownership, item.delivery.message());
        if self.is_blocked(index, item.hash) && !holds_lane {
            return self.linger(lane, item);
        }
        if !unconditional || (holds_lane && self.is_blocked(index, item.hash)) {
            return self.process(item, lane, Begin::Fresh);
        }
        if let Some(recorder) = component.flight.recorder() {
            let (queue, message) = (&component.queue, item.delivery.message());
            match &self.recorder_slot {
                Some(slot) => slot.reuse(queue, message, 1),
                None => self.recorder_slot = Some(flight::record(recorder, queue, message, 1)),
            }
        }
        let outcome = match attempt::start(component, &item.delivery) {
            Start::Ended(outcome) => outcome,
            Start::Running(mut running) => match Pin::new(&mut running).poll(cx) {
                Poll::Ready(result) => attempt::ended(&item.delivery, result),
                Poll::Pending => {
                    let recorded = self.recorder_slot.take();
                    return self.keep_running(item, lane, running, recorded);
                }
            },
        };
        if let Some(slot) = &self.recorder_slot {
            slot.idle();
        }
        match outcome {
            Outcome::Handled => self.count_handled(),
            Outcome::Filtered => self.filtered += 1,
            outcome => return self.process(item, lane, Begin::Ended(outcome, Duration::ZERO)),
        }
        self.finish_now(lane, holds_lane, item.ticket, Fate::Settled);
    }

    pub(super) fn is_blocked(&self, component: usize, hash: SequenceHash) -> bool {
        !mutated!(self.options, SkipBlockedCheck) && self.open.maybe(component, hash)
    }

    /// Keeps the handler running. The message's lane is busy until the handler returns.
    fn keep_running(&mut self, item: LaneItem, lane: LaneKey, running: Running, recorded: Option<Recorded>) {
        let Some(ownership) = self.ownerships.get(item.ticket.slot as usize).cloned().flatten() else {
            return self.finish_now(lane, true, item.ticket, Fate::Abandoned);
        };
        self.lanes.entry(lane).or_default();
        let started = Instant::now();
        if let Some(limit) = self.options.attempt_timeout {
            self.next_overdue.get_or_insert(started + limit);
        }
        let permit = self.permit.take();
        let component = &self.components[item.component as usize];
        let _age = component.ages.attempts.begin(component.now());
        let (item, overdue) = (Some(item), None);
        let attempting = Attempting { ownership, item, running, permit, started, _age, overdue, recorded };
        self.attempts += 1;
        self.work.push(Work::Attempt(attempting));
    }

    /// Keeps a permit for this shard's next message, unless another shard has too few.
    pub(super) fn reuse(&mut self, permit: Option<OwnedSemaphorePermit>) {
        let others_starved = self.guards.starved_shards.load(Ordering::Relaxed) > usize::from(self.starved);
        if self.permit.is_none() && !others_starved {
            self.permit = permit;
        }
    }

    /// Reports whether this shard has waiting messages and less than half of its share of the attempts
    /// (I3).
    pub(super) fn report_starvation(&mut self) {
        let starved = !self.ready.is_empty() && self.attempts < self.share / 2;
        let counter = &self.guards.starved_shards;
        match (self.starved, starved) {
            (false, true) => _ = counter.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = counter.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
        self.starved = starved;
    }

    /// Ends the attempts that timed out. All have the same limit, so the oldest one determines the next
    /// check. This needs only one timer, instead of one that is set and cleared for each attempt.
    pub(super) fn end_overdue(&mut self) {
        self.next_overdue = None;
        let Some(limit) = self.options.attempt_timeout else { return };
        let now = Instant::now();
        let mut any = false;
        let mut oldest: Option<Instant> = None;
        for work in self.work.iter_mut() {
            let Work::Attempt(attempting) = work else { continue };
            if attempting.started + limit <= now {
                (attempting.overdue, any) = (Some(limit), true);
            } else {
                oldest = Some(oldest.map_or(attempting.started, |oldest| oldest.min(attempting.started)));
            }
        }
        self.next_overdue = oldest.map(|oldest| oldest + limit);
        if any {
            self.poll_all();
        }
    }

    /// Polls all work, even work that was not woken.
    pub(super) fn poll_all(&mut self) {
        self.work = std::mem::take(&mut self.work).into_iter().collect();
    }

    /// Processes the message beyond its first poll. Its lane is busy meanwhile.
    pub(super) fn process(&mut self, item: LaneItem, lane: LaneKey, begin: Begin) {
        let ticket = item.ticket;
        let Some(live) = self.live_message(item) else {
            return self.finish_now(lane, true, ticket, Fate::Abandoned);
        };
        let usage = Usage::of(live.delivery.message());
        self.change_lane(lane, |lane| lane.processes(usage));
        let ownership = live.ownership.clone();
        let attempted = matches!(begin, Begin::Ended(..) | Begin::Unsequenced);
        let future = Box::pin(live.process(begin).map(move |fate| Done::Live(lane, ticket, fate)));
        let mut work = Work::Live { ownership, lane, ticket, future };
        if attempted {
            // The fuse and the breaker must count a failure before the next attempt starts, and after
            // the successes before it. The first poll reports the failure. The work is polled again as
            // soon as it is in the list.
            self.publish_handled();
            if let Poll::Ready(done) = Pin::new(&mut work).poll(&mut Context::from_waker(Waker::noop())) {
                return self.finished(done);
            }
        }
        self.work.push(work);
    }

    pub(super) fn live_message(&self, item: LaneItem) -> Option<LiveMessage> {
        let index = item.component as usize;
        let ownership = self.ownerships.get(item.ticket.slot as usize)?.clone()?;
        if ownership.generation != item.ticket.generation {
            return None;
        }
        let component = self.components[index].clone();
        let (open, holds) = (self.open.clone(), self.holds.clone());
        Some(LiveMessage::new(component, open, holds, ownership, item.delivery, item.hash))
    }
}
