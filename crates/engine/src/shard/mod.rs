//! The lanes of some of the sequences, owned by one task.
//!
//! A message arrives, waits until its lane is free, and is tried. If the handler succeeds at its first poll, that is
//! all: no task, no timer, no table entry. Otherwise the message goes on a [`Journey`], and its lane is busy until the
//! journey ends. Every sequence belongs to exactly one shard, so lanes need no locks.

mod work;

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::{BuildHasherDefault, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use lazaret_core::Message;
use lazaret_core::handler::{DeadLetterSink, Delivery};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::attempt::{self, Outcome, Running, Start};
use crate::desks::LiveDesk;
use crate::events::Counters;
use crate::flight::{self, Recorded};
use crate::hash::SequenceHash;
use crate::journey::{Begin, Fate, Journey, append_all};
use crate::lanes::OpenSequences;
use crate::mailbox::Mailbox;
use crate::shared::{Component, mutated};
use crate::stored::Run;
use crate::tenure::Tenure;
use work::{Attempting, Done, Work};

/// How long messages of an open sequence gather before they are handed off.
const GATHERING: Duration = Duration::from_millis(5);
/// How many messages of a lane are handed off in one call at most.
const APPEND_LIMIT: usize = 512;
/// How many messages are started before others get a turn.
const TURN: usize = 256;

/// Names a tracked message of one assignment of one partition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) number: u64,
}

/// What a shard tells the intake about a message: it is settled, or it never will be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice {
    pub(crate) ticket: Ticket,
    pub(crate) fate: Fate,
}

/// A message on its way to the shard of its sequence.
pub(crate) struct Arrival {
    pub(crate) message: Message,
    pub(crate) ticket: Ticket,
    pub(crate) hash: SequenceHash,
    pub(crate) component: u32,
    /// The sequencing policy could not place it.
    pub(crate) misfit: bool,
}

/// One message on its way through a component. It is made by the shard, not by the intake: memory that one thread takes
/// and another gives back costs several times as much.
pub(crate) struct Parcel {
    pub(crate) delivery: Delivery,
    pub(crate) ticket: Ticket,
    pub(crate) hash: SequenceHash,
    pub(crate) component: u32,
    /// The sequencing policy could not place it.
    pub(crate) misfit: bool,
}

/// What a shard is told. In the order of its mailbox.
#[allow(clippy::large_enum_variant, reason = "nearly all are messages, and a box for each would cost more")]
pub(crate) enum ToShard {
    /// A message.
    Message(Arrival),
    /// A partition came; messages of it follow.
    Tenure(Arc<Tenure>),
    /// Sequences that are open in the store, up to a revision.
    Open { component: usize, sequences: Vec<SequenceHash>, revision: u64 },
    /// A stored sequence is due. The permit frees its place when the run ends.
    Run(Box<Run>, OwnedSemaphorePermit),
    /// A partition goes: messages of it that were not started are given up.
    Leave { slot: u32, generation: u32 },
    /// A partition is gone: what still runs of it is dropped.
    Gone,
}

/// A lane: one component's view of one sequence.
type LaneKey = (u32, u64);

/// The messages that queue behind the one that is on its way.
#[derive(Default)]
struct Lane {
    queue: VecDeque<Parcel>,
    /// How many of them are to be taken one by one: the sequence looked open and was not.
    singly: usize,
}

/// A parcel that may start as soon as there is a permit.
struct Ready {
    parcel: Parcel,
    /// It comes from the queue of a lane that is kept for it.
    holds_lane: bool,
}

/// The lane hash is a good hash already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u32(&mut self, n: u32) {
        self.0 ^= u64::from(n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    fn write_u64(&mut self, n: u64) {
        self.0 ^= n;
    }
}

/// The owner of some lanes.
pub(crate) struct Shard {
    components: Vec<Arc<Component>>,
    desks: Vec<Arc<dyn DeadLetterSink>>,
    open: Arc<OpenSequences>,
    mailbox: Arc<Mailbox<ToShard>>,
    notices: Arc<Mailbox<Notice>>,
    tenures: Vec<Option<Arc<Tenure>>>,
    /// Lanes that are busy.
    lanes: HashMap<LaneKey, Lane, BuildHasherDefault<Identity>>,
    ready: VecDeque<Ready>,
    work: FuturesUnordered<Work>,
    /// A permit at hand for messages that end at their first poll.
    permit: Option<OwnedSemaphorePermit>,
    /// Handlers at work here, and how many there would be if all shards had the same.
    attempts: usize,
    share: usize,
    hungry: bool,
    /// Where attempts that end at their first poll stand in the flight recorder.
    seat: Option<Recorded>,
    /// Lanes whose messages gather before they go behind their open sequence, and until when.
    gathered: Vec<LaneKey>,
    gathered_at: Option<Instant>,
    /// When the time of the oldest handler at work may be up.
    next_overdue: Option<Instant>,
    /// Notices not yet handed over.
    pending: Vec<Notice>,
    handled: u64,
    filtered: u64,
}

impl Shard {
    pub(crate) fn new(
        components: Vec<Arc<Component>>,
        open: Arc<OpenSequences>,
        mailbox: Arc<Mailbox<ToShard>>,
        notices: Arc<Mailbox<Notice>>,
    ) -> Self {
        let desk = |component: &Arc<Component>| {
            Arc::new(LiveDesk { component: component.clone(), open: open.clone() }) as Arc<dyn DeadLetterSink>
        };
        Self {
            desks: components.iter().map(desk).collect(),
            open,
            mailbox,
            notices,
            tenures: Vec::new(),
            lanes: HashMap::default(),
            ready: VecDeque::new(),
            work: FuturesUnordered::new(),
            permit: None,
            attempts: 0,
            share: components[0].shared.options.concurrency / components[0].shared.options.shard_count(),
            hungry: false,
            seat: None,
            gathered: Vec::new(),
            gathered_at: None,
            next_overdue: None,
            pending: Vec::new(),
            handled: 0,
            filtered: 0,
            components,
        }
    }

    /// Works for as long as it is polled.
    pub(crate) async fn run(mut self) {
        let permits = self.components[0].shared.permits.clone();
        let mailbox = self.mailbox.clone();
        let mut arrivals = Vec::new();
        let timer = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(timer);
        loop {
            if mailbox.take(&mut arrivals) {
                for arrival in arrivals.drain(..) {
                    self.receive(arrival);
                }
            }
            std::future::poll_fn(|cx| {
                while let Poll::Ready(Some(done)) = self.work.poll_next_unpin(cx) {
                    let handled = matches!(done, Done::Attempted(_, Outcome::Handled, ..));
                    self.finished(done);
                    // The place that has become free is taken at once; after a failure its consequences come first.
                    if handled
                        && self.permit.is_some()
                        && let Some(ready) = self.ready.pop_front()
                    {
                        self.start(ready, cx);
                    }
                }
                self.start_ready(cx);
                Poll::Ready(())
            })
            .await;
            self.hand_over();
            if self.permit.is_some() && !self.ready.is_empty() {
                tokio::task::yield_now().await;
                self.look_at_the_clock();
                continue;
            }
            self.permit = None;
            self.say_whether_hungry();
            let alarm = self.alarm();
            if let Some(at) = alarm.filter(|at| *at != timer.deadline()) {
                timer.as_mut().reset(at);
            }
            tokio::select! {
                biased;
                Some(done) = self.work.next(), if !self.work.is_empty() => self.finished(done),
                () = mailbox.arrived() => {}
                () = &mut timer, if alarm.is_some() => self.look_at_the_clock(),
                permit = permits.clone().acquire_owned(), if !self.ready.is_empty() => self.permit = permit.ok(),
            }
        }
    }

    /// When something must be done that nobody wakes this shard for.
    fn alarm(&self) -> Option<Instant> {
        self.next_overdue.into_iter().chain(self.gathered_at).min()
    }

    fn look_at_the_clock(&mut self) {
        let Some(alarm) = self.alarm() else { return };
        let now = Instant::now();
        if alarm > now {
            return;
        }
        if self.next_overdue.is_some_and(|at| at <= now) {
            self.end_overdue();
        }
        if self.gathered_at.is_some_and(|at| at <= now) {
            self.append_gathered();
        }
    }

    fn receive(&mut self, arrival: ToShard) {
        match arrival {
            ToShard::Message(arrival) => {
                let Arrival { message, ticket, hash, component, misfit } = arrival;
                let delivery = Delivery::live(message, self.desks[component as usize].clone());
                let parcel = Parcel { delivery, ticket, hash, component, misfit };
                self.ready.push_back(Ready { parcel, holds_lane: false });
            }
            ToShard::Tenure(tenure) => {
                let slot = tenure.slot as usize;
                if self.tenures.len() <= slot {
                    self.tenures.resize(slot + 1, None);
                }
                self.open.set_tenure(&tenure);
                self.tenures[slot] = Some(tenure);
            }
            ToShard::Open { component, sequences, revision } => {
                self.open.listed(component, &sequences, revision);
            }
            ToShard::Run(mut run, slot) => {
                run.open = Some(self.open.clone());
                self.work.push(Work::Other(Box::pin(async move {
                    run.run().await;
                    drop(slot);
                    Done::Run
                })));
            }
            // Whatever is pushed is polled, and what is polled sees that its partition is gone.
            ToShard::Gone => self.poll_all(),
            ToShard::Leave { slot, generation } => self.give_up(slot, generation),
        }
    }

    /// Gives up what was not started of a partition that goes. Lanes whose next message was among them move on.
    fn give_up(&mut self, slot: u32, generation: u32) {
        let leaves = |parcel: &Parcel| parcel.ticket.slot == slot && parcel.ticket.generation == generation;
        let pending = &mut self.pending;
        let mut freed = Vec::new();
        self.ready.retain(|ready| {
            let gone = leaves(&ready.parcel);
            if gone {
                pending.push(Notice { ticket: ready.parcel.ticket, fate: Fate::Left });
                if ready.holds_lane {
                    freed.push(lane_of(&ready.parcel));
                }
            }
            !gone
        });
        for lane in self.lanes.values_mut() {
            lane.queue.retain(|parcel| {
                let gone = leaves(parcel);
                if gone {
                    pending.push(Notice { ticket: parcel.ticket, fate: Fate::Left });
                }
                !gone
            });
        }
        for lane in freed {
            self.next_in_lane(lane);
        }
    }

    /// Starts what may start, as far as permits reach.
    fn start_ready(&mut self, cx: &mut Context<'_>) {
        for _ in 0..TURN {
            if self.ready.is_empty() {
                return;
            }
            if self.permit.is_none() {
                let permits = &self.components[0].shared.permits;
                let Ok(permit) = permits.clone().try_acquire_owned() else { return };
                self.permit = Some(permit);
            }
            let Some(ready) = self.ready.pop_front() else { return };
            self.start(ready, cx);
        }
    }

    fn start(&mut self, ready: Ready, cx: &mut Context<'_>) {
        let Ready { parcel, holds_lane } = ready;
        let lane = lane_of(&parcel);
        if !holds_lane
            && !self.lanes.is_empty()
            && let Some(lane) = self.lanes.get_mut(&lane)
        {
            lane.queue.push_back(parcel);
            return;
        }
        let index = parcel.component as usize;
        let Some(tenure) = self.tenures.get(parcel.ticket.slot as usize).and_then(Option::as_ref) else {
            return self.end_at_once(lane, holds_lane, parcel.ticket, Fate::Left);
        };
        // One of an earlier time here comes again in its place; it must not run before those that come again before it (I2).
        if tenure.is_closing() || tenure.generation != parcel.ticket.generation {
            return self.end_at_once(lane, holds_lane, parcel.ticket, Fate::Left);
        }
        let component = &self.components[index];
        let message = parcel.delivery.message();
        let (_, position) = message.place();
        if parcel.misfit {
            return self.depart(parcel, lane, Begin::Misfit);
        }
        let careful = tenure.careful(index, position.offset)
            || message.hop.is_some()
            || !component.shared.gate.is_open()
            || component.shared.flight.is_suspicious()
            || component.shared.options.dedupe.is_some();
        if self.is_blocked(index, parcel.hash) && !holds_lane {
            return self.gather(lane, parcel);
        }
        if careful || (holds_lane && self.is_blocked(index, parcel.hash)) {
            return self.depart(parcel, lane, Begin::Fresh);
        }
        if let Some(recorder) = component.shared.flight.recorder() {
            let (queue, message) = (&component.queue, parcel.delivery.message());
            match &self.seat {
                Some(seat) => seat.again(queue, message, 1),
                None => self.seat = Some(flight::record(recorder, queue, message, 1)),
            }
        }
        let outcome = match attempt::start(component, &parcel.delivery) {
            Start::Ended(outcome) => outcome,
            Start::Running(mut running) => match Pin::new(&mut running).poll(cx) {
                Poll::Ready(result) => attempt::ended(&parcel.delivery, result),
                Poll::Pending => {
                    let recorded = self.seat.take();
                    return self.let_run(parcel, lane, running, recorded);
                }
            },
        };
        if let Some(seat) = &self.seat {
            seat.rest();
        }
        match outcome {
            Outcome::Handled => self.handled += 1,
            Outcome::Filtered => self.filtered += 1,
            outcome => return self.depart(parcel, lane, Begin::Ended(outcome, Duration::ZERO)),
        }
        self.end_at_once(lane, holds_lane, parcel.ticket, Fate::Settled);
    }

    fn is_blocked(&self, component: usize, hash: SequenceHash) -> bool {
        !mutated!(self.components[component].shared, SkipBlockedCheck) && self.open.maybe(component, hash)
    }

    /// The message needs no journey.
    fn end_at_once(&mut self, lane: LaneKey, holds_lane: bool, ticket: Ticket, fate: Fate) {
        self.pending.push(Notice { ticket, fate });
        if holds_lane {
            self.next_in_lane(lane);
        }
    }

    /// Lets the handler work on. The lane of the message is busy until it has answered.
    fn let_run(&mut self, parcel: Parcel, lane: LaneKey, running: Running, recorded: Option<Recorded>) {
        let Some(tenure) = self.tenures.get(parcel.ticket.slot as usize).cloned().flatten() else {
            return self.end_at_once(lane, true, parcel.ticket, Fate::Left);
        };
        self.lanes.entry(lane).or_default();
        let started = Instant::now();
        if let Some(limit) = self.components[0].shared.options.attempt_timeout {
            self.next_overdue.get_or_insert(started + limit);
        }
        let permit = self.permit.take();
        let parcel = Some(parcel);
        let attempting = Attempting { tenure, parcel, running, permit, started, overdue: None, recorded };
        self.attempts += 1;
        self.work.push(Work::Attempt(attempting));
    }

    /// Keeps a permit for the next message here, unless another shard has got too little.
    fn reuse(&mut self, permit: Option<OwnedSemaphorePermit>) {
        let others_hungry =
            self.components[0].shared.hungry.load(Ordering::Relaxed) > usize::from(self.hungry);
        if self.permit.is_none() && !others_hungry {
            self.permit = permit;
        }
    }

    /// Says whether this shard has messages and less than half of its share of the attempts (I3).
    fn say_whether_hungry(&mut self) {
        let hungry = !self.ready.is_empty() && self.attempts < self.share / 2;
        let counter = &self.components[0].shared.hungry;
        match (self.hungry, hungry) {
            (false, true) => _ = counter.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = counter.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
        self.hungry = hungry;
    }

    /// Ends the attempts whose time is up. All have the same limit, so the oldest says when to look again: one timer for
    /// all of them, and none to set and clear for each.
    fn end_overdue(&mut self) {
        self.next_overdue = None;
        let Some(limit) = self.components[0].shared.options.attempt_timeout else { return };
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

    /// Has all work polled, whether it was woken or not.
    fn poll_all(&mut self) {
        self.work = std::mem::take(&mut self.work).into_iter().collect();
    }

    /// Sends the message on its journey. Its lane is busy until then.
    fn depart(&mut self, parcel: Parcel, lane: LaneKey, begin: Begin) {
        let ticket = parcel.ticket;
        let Some(journey) = self.journey(parcel) else {
            return self.end_at_once(lane, true, ticket, Fate::Left);
        };
        self.lanes.entry(lane).or_default();
        let tenure = journey.tenure.clone();
        let future = Box::pin(journey.travel(begin).map(move |fate| Done::Journey(lane, ticket, fate)));
        self.work.push(Work::Journey { tenure, lane, ticket, future });
    }

    fn journey(&self, parcel: Parcel) -> Option<Journey> {
        let index = parcel.component as usize;
        let tenure = self.tenures.get(parcel.ticket.slot as usize)?.clone()?;
        if tenure.generation != parcel.ticket.generation {
            return None;
        }
        let component = self.components[index].clone();
        Some(Journey::new(component, self.open.clone(), tenure, parcel.delivery, parcel.hash))
    }

    fn finished(&mut self, done: Done) {
        match done {
            Done::Attempted(parcel, outcome, started, permit) => {
                self.attempts -= 1;
                self.reuse(permit);
                self.attempted(parcel, outcome, started);
            }
            Done::Dropped(lane, ticket) => {
                self.attempts -= 1;
                self.ended(ticket, Fate::Left);
                self.next_in_lane(lane);
            }
            Done::Journey(lane, ticket, fate) => {
                self.ended(ticket, fate);
                self.next_in_lane(lane);
            }
            Done::Appended(lane, parcels) => {
                let mut ended = Vec::with_capacity(parcels.len());
                let back = self.lanes.entry(lane).or_default();
                for (parcel, fate) in parcels.into_iter().rev() {
                    match fate {
                        Some(fate) => ended.push((parcel.ticket, fate)),
                        None => {
                            back.queue.push_front(parcel);
                            back.singly += 1;
                        }
                    }
                }
                ended.into_iter().for_each(|(ticket, fate)| self.ended(ticket, fate));
                self.next_in_lane(lane);
            }
            Done::Run => {}
        }
    }

    fn attempted(&mut self, parcel: Parcel, outcome: Outcome, started: Instant) {
        let lane = lane_of(&parcel);
        if !matches!(outcome, Outcome::Handled) || self.open.has_uncertain() {
            return self.depart(parcel, lane, Begin::Ended(outcome, started.elapsed()));
        }
        self.handled += 1;
        self.end_at_once(lane, true, parcel.ticket, Fate::Settled);
    }

    /// A message came to its end. One that was not settled ends the whole assignment: nothing may overtake it (I2).
    fn ended(&mut self, ticket: Ticket, fate: Fate) {
        self.pending.push(Notice { ticket, fate });
        let tenure = self.tenures.get(ticket.slot as usize).and_then(Option::as_ref);
        if let Some(tenure) = tenure.filter(|tenure| tenure.generation == ticket.generation)
            && fate != Fate::Settled
        {
            tenure.close();
        }
    }

    /// The lane is free for its next message, or for all of them when the sequence is open in the store.
    fn next_in_lane(&mut self, lane: LaneKey) {
        let Some(queued) = self.lanes.get_mut(&lane) else { return };
        let Some(parcel) = queued.queue.pop_front() else {
            self.lanes.remove(&lane);
            return;
        };
        let singly = queued.singly > 0 || parcel.misfit;
        queued.singly = queued.singly.saturating_sub(1);
        if singly || !self.is_blocked(parcel.component as usize, parcel.hash) {
            self.ready.push_back(Ready { parcel, holds_lane: true });
            return;
        }
        self.gather(lane, parcel);
    }

    /// Lets a message of an open sequence wait a little for company: nobody waits for it, and many in one call cost the
    /// others less (I3).
    fn gather(&mut self, lane: LaneKey, parcel: Parcel) {
        self.lanes.entry(lane).or_default().queue.push_front(parcel);
        self.gathered.push(lane);
        self.gathered_at.get_or_insert_with(|| Instant::now() + GATHERING);
    }

    /// Puts what has gathered behind its sequences, one call for each lane.
    fn append_gathered(&mut self) {
        self.gathered_at = None;
        for lane in std::mem::take(&mut self.gathered) {
            let Some(queued) = self.lanes.get_mut(&lane) else { continue };
            let mut parcels = Vec::new();
            while parcels.len() < APPEND_LIMIT
                && let Some(parcel) = queued.queue.pop_front_if(|parcel| !parcel.misfit)
            {
                parcels.push(parcel);
            }
            match parcels.is_empty() {
                true => self.next_in_lane(lane),
                false => self.append(lane, parcels),
            }
        }
    }

    /// Puts these messages of a lane behind their open sequence, in one call.
    fn append(&mut self, lane: LaneKey, parcels: Vec<Parcel>) {
        let mut journeys = Vec::with_capacity(parcels.len());
        for parcel in parcels {
            let ticket = parcel.ticket;
            match self.journey(parcel) {
                Some(journey) => journeys.push((ticket, journey)),
                None => self.pending.push(Notice { ticket, fate: Fate::Left }),
            }
        }
        let future = Box::pin(async move {
            let ended = append_all(journeys).await.into_iter();
            let parcels = ended.map(|(ticket, journey, fate)| {
                let component = lane.0;
                let Journey { delivery, hash, .. } = journey;
                (Parcel { delivery, ticket, hash, component, misfit: false }, fate)
            });
            Done::Appended(lane, parcels.collect())
        });
        self.work.push(Work::Other(future));
    }

    fn hand_over(&mut self) {
        let shared = &self.components[0].shared;
        if self.handled > 0 {
            Counters::add(&shared.counters.handled, self.handled);
            shared.fuse_ok(self.handled);
            shared.gate.is_well(shared.now());
            self.handled = 0;
        }
        if self.filtered > 0 {
            Counters::add(&shared.counters.filtered, self.filtered);
            self.filtered = 0;
        }
        self.notices.append(&mut self.pending);
    }
}

fn lane_of(parcel: &Parcel) -> LaneKey {
    (parcel.component, parcel.hash.low)
}
