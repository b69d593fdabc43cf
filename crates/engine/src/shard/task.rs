//! The task of one shard: its mailbox, its timers and its work in progress.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use lazaret_core::handler::{DeadLetterSink, Delivery};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::lane::{Lane, LaneHasher, LaneItem, LaneKey, Ready};
use super::start::START_LIMIT;
use super::work::{Done, Work};
use crate::attempt::Outcome;
use crate::component::Component;
use crate::dead_letter_sink::LiveSink;
use crate::flight::Recorded;
use crate::flow::{Arrival, Notice, ToShard};
use crate::guards::Guards;
use crate::handled::HandledCount;
use crate::held::{NewHold, Usage};
use crate::mailbox::Mailbox;
use crate::open_sequences::OpenSequences;
use crate::options::Options;
use crate::ownership::PartitionOwnership;
use crate::telemetry::Counters;

/// Owns a part of the lanes.
pub(crate) struct Shard {
    pub(super) components: Vec<Arc<Component>>,
    pub(super) options: Arc<Options>,
    pub(super) guards: Arc<Guards>,
    /// The dead-letter sinks of each slot and component, for the handlers.
    pub(super) sinks: Vec<Vec<Arc<dyn DeadLetterSink>>>,
    pub(super) open: Arc<OpenSequences>,
    pub(super) mailbox: Arc<Mailbox<ToShard>>,
    pub(super) notices: Arc<Mailbox<Notice>>,
    pub(super) ownerships: Vec<Option<Arc<PartitionOwnership>>>,
    /// The busy lanes.
    pub(super) lanes: HashMap<LaneKey, Lane, BuildHasherDefault<LaneHasher>>,
    pub(super) ready: VecDeque<Ready>,
    pub(super) work: FuturesUnordered<Work>,
    /// A permit for messages that complete at their first poll.
    pub(super) permit: Option<OwnedSemaphorePermit>,
    /// The number of handlers that run here, and the number if all shards had the same share.
    pub(super) attempts: usize,
    pub(super) share: usize,
    pub(super) starved: bool,
    /// The slot in the flight recorder for attempts that complete at their first poll.
    pub(super) recorder_slot: Option<Recorded>,
    /// The lanes whose messages linger before they are appended to their open sequence, and the time at
    /// which they are appended.
    pub(super) lingering: Vec<LaneKey>,
    pub(super) append_at: Option<Instant>,
    /// The time at which the oldest running handler may time out.
    pub(super) next_overdue: Option<Instant>,
    /// The messages of held lanes, now and as last published.
    pub(super) held: Usage,
    pub(super) held_published: Usage,
    /// Receives the messages that failed or began to wait and therefore hold their lane.
    pub(super) holds: Arc<Mailbox<NewHold>>,
    /// Notices that are not yet in the intake's mailbox.
    pub(super) pending: Vec<Notice>,
    /// The number of messages that were handled at their first poll since the counters were last
    /// published.
    pub(super) handled: u64,
    /// The number of all these messages, for the fuse.
    handled_count: Arc<HandledCount>,
    pub(super) filtered: u64,
}

impl Shard {
    pub(crate) fn new(
        index: usize,
        components: Vec<Arc<Component>>,
        open: Arc<OpenSequences>,
        mailbox: Arc<Mailbox<ToShard>>,
        notices: Arc<Mailbox<Notice>>,
    ) -> Self {
        Self {
            sinks: Vec::new(),
            open,
            mailbox,
            notices,
            ownerships: Vec::new(),
            lanes: HashMap::default(),
            ready: VecDeque::new(),
            work: FuturesUnordered::new(),
            permit: None,
            attempts: 0,
            share: components[0].options.concurrency / components[0].options.shard_count(),
            options: components[0].options.clone(),
            guards: components[0].guards.clone(),
            handled_count: components[0].guards.handled_by_shard(index),
            starved: false,
            recorder_slot: None,
            lingering: Vec::new(),
            append_at: None,
            next_overdue: None,
            held: Usage::default(),
            held_published: Usage::default(),
            holds: Arc::default(),
            pending: Vec::new(),
            handled: 0,
            filtered: 0,
            components,
        }
    }

    /// Runs for as long as it is polled.
    pub(crate) async fn run(mut self) {
        let permits = self.guards.permits.clone();
        let mailbox = self.mailbox.clone();
        let holds = self.holds.clone();
        let mut arrivals = Vec::new();
        let timer = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(timer);
        loop {
            std::future::poll_fn(|cx| {
                let mut started = 0;
                while mailbox.take(&mut arrivals) {
                    self.receive_all(&mut arrivals, &mut started, cx);
                }
                while let Poll::Ready(Some(done)) = self.work.poll_next_unpin(cx) {
                    let handled = matches!(done, Done::Attempted(_, Outcome::Handled, ..));
                    self.finished(done);
                    // A permit that is free again is used at once. After a failure, the consequences
                    // come first.
                    if handled
                        && self.permit.is_some()
                        && let Some(ready) = self.ready.pop_front()
                    {
                        self.start(ready, cx);
                    }
                }
                self.start_ready(cx, START_LIMIT - started);
                Poll::Ready(())
            })
            .await;
            self.hand_over();
            if self.permit.is_some() && !self.ready.is_empty() {
                tokio::task::yield_now().await;
                self.fire_timers();
                continue;
            }
            self.permit = None;
            self.report_starvation();
            let next_timer = self.next_timer();
            if let Some(at) = next_timer.filter(|at| *at != timer.deadline()) {
                timer.as_mut().reset(at);
            }
            tokio::select! {
                biased;
                Some(done) = self.work.next(), if !self.work.is_empty() => self.finished(done),
                () = mailbox.arrived() => {}
                () = holds.arrived() => {}
                () = &mut timer, if next_timer.is_some() => self.fire_timers(),
                permit = permits.clone().acquire_owned(), if !self.ready.is_empty() => self.permit = permit.ok(),
            }
        }
    }

    /// Returns the next time at which this shard must act without being woken.
    fn next_timer(&self) -> Option<Instant> {
        self.next_overdue.into_iter().chain(self.append_at).min()
    }

    fn fire_timers(&mut self) {
        let Some(next_timer) = self.next_timer() else { return };
        let now = Instant::now();
        if next_timer > now {
            return;
        }
        if self.next_overdue.is_some_and(|at| at <= now) {
            self.end_overdue();
        }
        if self.append_at.is_some_and(|at| at <= now) {
            self.append_lingering();
        }
    }

    /// Receives the arrivals and counts the started messages. A message that need not wait for others
    /// starts before the next one is received: its memory is then free again and still in the cache.
    fn receive_all(&mut self, arrivals: &mut Vec<ToShard>, started: &mut usize, cx: &mut Context<'_>) {
        for arrival in arrivals.drain(..) {
            let Some(item) = self.receive(arrival) else { continue };
            let ready = Ready { item, holds_lane: false };
            if *started < START_LIMIT && self.ready.is_empty() && self.has_permit() {
                *started += 1;
                self.start(ready, cx);
            } else {
                self.ready.push_back(ready);
            }
        }
    }

    /// Receives an arrival, and returns it if it is a message.
    fn receive(&mut self, arrival: ToShard) -> Option<LaneItem> {
        match arrival {
            ToShard::Message(arrival) => {
                let Arrival { message, ticket, hash, component, unsequenced } = arrival;
                let sinks = self.sinks.get(ticket.slot as usize);
                let delivery = match sinks.and_then(|sinks| sinks.get(component as usize)) {
                    Some(sink) => Delivery::live(message, sink.clone()),
                    None => Delivery::new(message),
                };
                return Some(LaneItem { delivery, ticket, hash, component, unsequenced });
            }
            ToShard::Assigned(ownership) => {
                let slot = ownership.slot as usize;
                if self.ownerships.len() <= slot {
                    self.ownerships.resize(slot + 1, None);
                    self.sinks.resize(slot + 1, Vec::new());
                }
                // Created for this assignment: a handler that outlives it cannot write under a later
                // grant (I6).
                let sink = |component: &Arc<Component>| -> Arc<dyn DeadLetterSink> {
                    let (component, open) = (component.clone(), self.open.clone());
                    Arc::new(LiveSink { component, open, ownership: ownership.clone() })
                };
                self.sinks[slot] = self.components.iter().map(sink).collect();
                self.ownerships[slot] = Some(ownership);
            }
            ToShard::Open { component, sequences, revision } => {
                self.open.listed(component, &sequences, revision);
            }
            ToShard::Run(mut run) => {
                run.open = Some(self.open.clone());
                self.work.push(Work::Other(Box::pin(async move {
                    run.run().await;
                    Done::Run
                })));
            }
            // Polling the work makes it notice that its partition is revoked.
            ToShard::Revoked => self.poll_all(),
            ToShard::Revoking { slot, generation } => self.abandon_partition(slot, generation),
        }
        None
    }

    /// Counts a message that was handled here. The fuse sees it at once; the other counters follow in
    /// batches.
    pub(super) fn count_handled(&mut self) {
        self.handled += 1;
        self.handled_count.add_one();
    }

    /// Publishes the messages that were handled here. The breaker must know of them before it learns of
    /// a later failure.
    pub(super) fn publish_handled(&mut self) {
        if self.handled > 0 {
            Counters::add(&self.components[0].telemetry.counters.handled, self.handled);
            self.guards.record_success();
            self.handled = 0;
        }
    }

    /// Publishes counters and notices.
    fn hand_over(&mut self) {
        self.publish_handled();
        if self.filtered > 0 {
            Counters::add(&self.components[0].telemetry.counters.filtered, self.filtered);
            self.filtered = 0;
        }
        self.receive_holds();
        self.publish_held();
        self.notices.append(&mut self.pending);
    }
}
