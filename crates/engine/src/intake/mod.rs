//! Reads the source, hands messages to the shards, and commits what is settled.
//!
//! The intake owns the source and the watermarks. It never waits for handlers or the store: it goes on polling while
//! everything is held back, so a member of a group stays alive.

mod partitions;
mod room;

use std::future::Future;
use std::ops::{Range, RangeInclusive};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use lazaret_core::source::{Commit, SourceError, SourceEvent};
use lazaret_core::store::{AttemptNote, Grant};
use lazaret_core::{Message, Partition, Sequencing, Source};
use tokio::time::Instant;
use tokio_util::sync::DropGuard;

use crate::attempt::guarded;
use crate::error::Error;
use crate::events::{Counters, Event};
use crate::feed::Shards;
use crate::journey::Fate;
use crate::mailbox::Mailbox;
use crate::shard::{Arrival, Notice, Ticket, ToShard};
use crate::shared::{Component, Shared};
use crate::tenure::Tenure;
use crate::tracker::Tracker;
use room::{Room, Share};

/// How long to wait for cancelled work to be gone after a drain's deadline.
const GRACE: Duration = Duration::from_secs(1);
/// How long to wait before a partition that somebody took over is asked for again.
const REWIND_PAUSE: Duration = Duration::from_secs(1);
/// How long to wait after the source had trouble.
const SOURCE_PAUSE: Duration = Duration::from_millis(200);
/// How often it is told that a source has trouble, while it has.
const TROUBLE_AGAIN: Duration = Duration::from_secs(30);

/// A partition from its coming to its going.
struct Slot {
    partition: Partition,
    generation: u32,
    stage: Stage,
    tracker: Tracker,
    /// Offsets that were settled before this assignment.
    settled: Vec<RangeInclusive<u64>>,
    /// The source was told to hold this partition.
    held: bool,
    /// What waits of it in the waiting room.
    room: Share,
}

enum Stage {
    /// Nobody's.
    Free,
    /// The store is being asked; messages that are here already wait. Dropping the guard ends the asking.
    Preparing { waiting: Vec<Message>, _unwanted: DropGuard },
    /// Messages flow.
    Live(Arc<Tenure>),
    /// On its way out; `revoked` says that the source waits for it.
    Leaving { tenure: Option<Arc<Tenure>>, deadline: Instant, revoked: bool },
}

/// What the store knows of a partition that came: one entry per component.
type Known = Vec<(Grant, Vec<AttemptNote>)>;

/// A partition whose position is being committed.
struct Moved {
    slot: usize,
    generation: u32,
    /// The position; none when it has not moved since the assignment.
    offset: Option<u64>,
}

/// Something that took time and is done.
enum Chore {
    /// The store said what it knows of a partition that came.
    Prepared(usize, u32, Known),
    /// A partition that somebody else took over may be asked for again.
    Rewind { slot: usize, generation: u32 },
    /// Nothing follows from it.
    Done,
}

/// The reader of one consumer's source.
pub(crate) struct Intake {
    source: Box<dyn Source>,
    shared: Arc<Shared>,
    components: Vec<Arc<Component>>,
    shards: Shards,
    notices: Arc<Mailbox<Notice>>,
    slots: Vec<Slot>,
    /// Slots by partition number; names are compared.
    by_number: Vec<Vec<usize>>,
    routed: Vec<Vec<ToShard>>,
    /// Messages that are neither settled nor given up, those in the waiting room included.
    in_flight: usize,
    /// Messages that were passed on and are not due yet.
    room: Room,
    full: bool,
    chores: FuturesUnordered<Pin<Box<dyn Future<Output = Chore> + Send>>>,
    next_commit: Option<Instant>,
    /// What a commit that was begun is about, until the source tells what came of it.
    committing: Option<Vec<Moved>>,
    /// The source was read to its end.
    ended: bool,
    draining: bool,
    /// When a drain must be over.
    drain_until: Option<Instant>,
    source_rest: Option<Instant>,
    /// When it was last told that the source has trouble, which has not ended.
    trouble_told: Option<Instant>,
    idle_check: Option<Pin<Box<dyn Future<Output = bool> + Send>>>,
    next_idle_check: Instant,
}

impl Intake {
    pub(crate) fn new(
        source: Box<dyn Source>,
        components: Vec<Arc<Component>>,
        shards: Shards,
        notices: Arc<Mailbox<Notice>>,
    ) -> Self {
        Self {
            source,
            shared: components[0].shared.clone(),
            routed: shards.iter().map(|_| Vec::new()).collect(),
            components,
            shards,
            notices,
            slots: Vec::new(),
            by_number: Vec::new(),
            in_flight: 0,
            room: Room::default(),
            full: false,
            chores: FuturesUnordered::new(),
            next_commit: None,
            committing: None,
            ended: false,
            draining: false,
            drain_until: None,
            source_rest: None,
            trouble_told: None,
            idle_check: None,
            next_idle_check: Instant::now(),
        }
    }

    /// Reads until the consumer is drained.
    pub(crate) async fn run(mut self) {
        let drain = self.shared.drain.clone();
        let notices = self.notices.clone();
        let shared = self.shared.clone();
        let mut changed = shared.gate.watch();
        let mut batch = Vec::new();
        shared.gauges.publish_lag(self.source.lag());
        loop {
            if notices.take(&mut batch) {
                self.note(&mut batch);
            }
            self.call_in();
            self.leave_empty_slots().await;
            shared.gauges.publish_in_flight(self.in_flight);
            if self.draining && self.is_drained() {
                break;
            }
            self.start_idle_check();
            let deadline = self.deadline();
            let alarm = self.room_alarm();
            tokio::select! {
                biased;
                () = drain.cancelled(), if !self.draining => self.begin_drain(),
                () = at(self.next_commit) => self.begin_commit().await,
                () = at(deadline) => self.deadline_passed(),
                () = at(alarm) => {}
                Some(chore) = self.chores.next(), if !self.chores.is_empty() => self.finished(chore),
                () = changed.changed() => self.update_holds(),
                idle = check(&mut self.idle_check) => self.idle_checked(idle),
                event = self.source.next(), if !self.draining && self.source_rest.is_none() => self.on(event),
                () = at(self.source_rest) => self.source_rest = None,
                () = notices.arrived() => {}
                // Asking costs the source a look at every partition, so it is not asked at every turn.
                () = shared.calmer.notified() => shared.gauges.publish_lag(self.source.lag()),
                () = tokio::time::sleep_until(self.next_idle_check), if self.waits_for_idle() => {}
            }
        }
        self.commit().await;
        shared.gauges.publish_in_flight(0);
        shared.gauges.publish_lag(self.source.lag());
        if let Err(error) = self.source.close().await {
            tracing::warn!(%error, "the source did not close cleanly");
        }
    }

    fn on(&mut self, event: Result<SourceEvent, SourceError>) {
        if event.is_ok() && self.trouble_told.take().is_some() {
            tracing::info!(consumer = self.shared.name.as_str(), "the source answers again");
        }
        match event {
            Ok(SourceEvent::Messages(messages)) => self.take_in(messages),
            Ok(SourceEvent::Assigned(assignments)) => self.assigned(assignments),
            Ok(SourceEvent::Revoking(partitions)) => self.revoking(&partitions),
            Ok(SourceEvent::Lost(partitions)) => self.lost(&partitions),
            Ok(SourceEvent::End) => self.ended = true,
            Ok(SourceEvent::Committed(outcome)) => {
                let moved = self.committing.take().unwrap_or_default();
                self.committed(&moved, outcome);
            }
            Err(error) if error.is_temporary() => {
                let now = Instant::now();
                if self.trouble_told.is_none_or(|told| now - told >= TROUBLE_AGAIN) {
                    tracing::warn!(consumer = self.shared.name.as_str(), %error, "the source has trouble");
                    self.trouble_told = Some(now);
                }
                self.source_rest = Some(now + SOURCE_PAUSE);
            }
            Err(error) => self.shared.stop(Error::Source(error)),
        }
    }

    // Messages on their way in.

    fn take_in(&mut self, messages: Vec<Message>) {
        self.ended = false;
        Counters::add(&self.shared.counters.read, messages.len() as u64);
        let mut last = usize::MAX;
        for message in messages {
            let Some(slot) = self.slot_of(&message, last) else {
                let (stream, position) = message.place();
                tracing::warn!(%stream, %position, "a message of a partition that is not assigned");
                continue;
            };
            last = slot;
            match &mut self.slots[slot].stage {
                Stage::Preparing { waiting, .. } => waiting.push(message),
                Stage::Live(_) => self.route(slot, message),
                // It will be delivered again to whoever comes next.
                Stage::Free | Stage::Leaving { .. } => {}
            }
        }
        self.hand_over();
        if self.room.deliveries() > 0 {
            self.update_holds();
        }
    }

    fn slot_of(&self, message: &Message, last: usize) -> Option<usize> {
        let (stream, position) = message.place();
        let fits = |slot: usize| {
            let partition = &self.slots[slot].partition;
            partition.index == position.partition && partition.stream == *stream
        };
        if last < self.slots.len() && fits(last) {
            return Some(last);
        }
        self.by_number.get(position.partition as usize)?.iter().copied().find(|slot| fits(*slot))
    }

    /// Tracks a message and sends it on its way, once for every component: to the shard of its sequence, or to the waiting
    /// room if it was passed on.
    #[inline]
    fn route(&mut self, slot: usize, message: Message) {
        let count = self.targets(&message).len();
        let entry = &mut self.slots[slot];
        let (_, position) = message.place();
        let offset = position.offset;
        // The ranges stand in order and do not touch.
        let range = entry.settled.partition_point(|range| *range.end() < offset);
        if entry.settled.get(range).is_some_and(|range| range.contains(&offset)) {
            entry.tracker.push(position, 0);
            self.next_commit.get_or_insert_with(|| Instant::now() + self.shared.options.commit_interval);
            return;
        }
        let number = entry.tracker.push(position, count as u32);
        let ticket = Ticket { slot: slot as u32, generation: entry.generation, number };
        self.in_flight += count;
        match message.hop {
            Some(_) => self.let_wait(ticket, message),
            None => self.send(ticket, message),
        }
    }

    /// The components that a message is for: one that was passed on comes back to whoever failed. Should that be gone, then
    /// to all rather than to nobody.
    fn targets(&self, message: &Message) -> Range<usize> {
        let all = 0..self.components.len();
        let Some(hop) = &message.hop else { return all };
        let found = self.components.iter().position(|component| component.queue == hop.queue);
        found.map_or(all, |index| index..index + 1)
    }

    /// Sends a tracked message to the shard of its sequence.
    #[inline]
    fn send(&mut self, ticket: Ticket, message: Message) {
        let targets = self.targets(&message);
        let sequencing = &self.shared.options.sequencing;
        let hasher = &self.shared.hasher;
        let placed = match sequencing {
            Sequencing::Custom(_) => guarded(|| hasher.hash(&sequencing.text(&message))),
            _ => Ok(hasher.hash(&sequencing.text(&message))),
        };
        let misfit = placed.is_err();
        // I10: a policy that panics costs this message its place among its own, nothing else.
        let hash = placed.unwrap_or_else(|_| hasher.hash(&Sequencing::Key.text(&message)));
        let routed = &mut self.routed[hash.shard(self.shards.len())];
        let first = targets.start as u32;
        for component in first + 1..targets.end as u32 {
            let message = message.clone();
            routed.push(ToShard::Message(Arrival { message, ticket, hash, component, misfit }));
        }
        routed.push(ToShard::Message(Arrival { message, ticket, hash, component: first, misfit }));
    }

    fn hand_over(&mut self) {
        for (shard, routed) in self.shards.iter().zip(&mut self.routed) {
            shard.append(routed);
        }
        self.update_window();
    }

    // Messages on their way out.

    fn note(&mut self, notices: &mut Vec<Notice>) {
        let mut fenced = Vec::new();
        for Notice { ticket, fate } in notices.drain(..) {
            let slot = &mut self.slots[ticket.slot as usize];
            if slot.generation != ticket.generation {
                continue;
            }
            self.in_flight -= 1;
            match fate {
                Fate::Settled => slot.tracker.settle(ticket.number),
                Fate::Left => slot.tracker.give_up(),
                Fate::Fenced => {
                    slot.tracker.give_up();
                    fenced.push(ticket.slot as usize);
                }
            }
        }
        fenced.into_iter().for_each(|slot| self.fenced(slot));
        self.next_commit.get_or_insert_with(|| Instant::now() + self.shared.options.commit_interval);
        self.update_window();
    }

    /// Makes the watermarks durable (I1), beside the reading if the source can.
    async fn begin_commit(&mut self) {
        if self.committing.is_some() {
            // One at a time. This one has its turn when that is over.
            self.next_commit = Some(Instant::now() + self.shared.options.commit_interval);
            return;
        }
        self.next_commit = None;
        let (moved, commits) = self.take_moved(&self.owned());
        if commits.is_empty() {
            return;
        }
        match self.source.begin_commit(commits) {
            Ok(()) => self.committing = Some(moved),
            Err(commits) => self.commit_now(moved, commits).await,
        }
    }

    /// Makes the watermarks durable, and waits for it.
    async fn commit(&mut self) {
        self.next_commit = None;
        self.commit_slots(&self.owned()).await;
    }

    fn owned(&self) -> Vec<usize> {
        (0..self.slots.len()).filter(|slot| self.is_owned(*slot)).collect()
    }

    fn is_owned(&self, slot: usize) -> bool {
        matches!(self.slots[slot].stage, Stage::Live(_) | Stage::Leaving { .. })
    }

    async fn commit_slots(&mut self, slots: &[usize]) {
        // Nobody will tell what came of one that was begun. What it was about counts as not committed.
        let begun = self.committing.take().unwrap_or_default();
        self.not_committed(&begun);
        let (moved, commits) = self.take_moved(slots);
        if !commits.is_empty() {
            self.commit_now(moved, commits).await;
        }
    }

    /// The positions of those of these partitions where something was settled since that was last asked.
    fn take_moved(&mut self, slots: &[usize]) -> (Vec<Moved>, Vec<Commit>) {
        let (mut moved, mut commits) = (Vec::new(), Vec::new());
        for index in slots {
            let slot = &mut self.slots[*index];
            if let Some(position) = slot.tracker.take_moved() {
                let settled_beyond = slot.tracker.settled_beyond();
                let offset = position.as_ref().map(|position| position.offset);
                moved.push(Moved { slot: *index, generation: slot.generation, offset });
                commits.push(Commit { partition: slot.partition.clone(), position, settled_beyond });
            }
        }
        (moved, commits)
    }

    async fn commit_now(&mut self, moved: Vec<Moved>, commits: Vec<Commit>) {
        let outcome = self.source.commit(commits).await.map_err(|error| error.to_string());
        self.committed(&moved, outcome);
    }

    fn committed(&mut self, moved: &[Moved], outcome: Result<(), String>) {
        match outcome {
            Ok(()) => {
                Counters::add(&self.shared.counters.commits, 1);
                self.forget_notes(moved);
            }
            Err(error) => {
                self.shared.tell(&Event::CommitFailed { error: &error });
                self.not_committed(moved);
            }
        }
    }

    /// What was not committed is to be committed the next time.
    fn not_committed(&mut self, moved: &[Moved]) {
        for Moved { slot, generation, .. } in moved {
            let slot = &mut self.slots[*slot];
            if slot.generation == *generation {
                slot.tracker.not_committed();
            }
        }
        if !moved.is_empty() {
            let later = Instant::now() + self.shared.options.commit_interval;
            self.next_commit.get_or_insert(later);
        }
    }

    /// Notes on messages that will not come again are of no more use. Losing the race against a crash costs nothing.
    fn forget_notes(&self, committed: &[Moved]) {
        for Moved { slot, generation, offset } in committed {
            let Some(offset) = offset else { continue };
            let slot = &self.slots[*slot];
            if slot.generation != *generation {
                continue;
            }
            self.shared.flight.committed(&slot.partition, *offset);
            let (Stage::Live(tenure) | Stage::Leaving { tenure: Some(tenure), .. }) = &slot.stage else {
                continue;
            };
            for component in &self.components {
                if !tenure.may_forget(component.index, *offset) {
                    continue;
                }
                let (component, partition, offset) = (component.clone(), slot.partition.clone(), *offset);
                self.chores.push(Box::pin(async move {
                    let store = &component.shared.store;
                    if let Err(error) = store.forget_attempts(&component.queue, &partition, offset).await {
                        tracing::debug!(%error, "old notes could not be removed");
                    }
                    Chore::Done
                }));
            }
        }
    }

    // Holding the source back.

    fn update_window(&mut self) {
        let window = self.shared.options.window * self.components.len();
        let in_flight = self.in_flight - self.room.deliveries();
        let full = if self.full { in_flight > window / 4 * 3 } else { in_flight >= window };
        if full != self.full {
            self.full = full;
            self.update_holds();
        }
    }

    /// Tells the source which partitions to hold and which to deliver.
    fn update_holds(&mut self) {
        let gate = &self.shared.gate;
        let all = self.full
            || self.draining
            || gate.has_store_trouble()
            || self.shared.backlog_full.load(Ordering::Acquire);
        let (mut hold, mut deliver) = (Vec::new(), Vec::new());
        let share = self.room_share();
        for slot in &mut self.slots {
            let held = match slot.stage {
                Stage::Live(_) => all || slot.room.reaches(share) || !gate.admits_partition(&slot.partition),
                Stage::Preparing { .. } | Stage::Leaving { .. } => true,
                Stage::Free => continue,
            };
            if held != slot.held {
                slot.held = held;
                if held { &mut hold } else { &mut deliver }.push(slot.partition.clone());
            }
        }
        if !hold.is_empty() {
            self.source.pause(&hold);
        }
        if !deliver.is_empty() {
            self.source.resume(&deliver);
        }
    }

    // The end.

    fn begin_drain(&mut self) {
        self.draining = true;
        for index in 0..self.slots.len() {
            self.leave(index, false);
        }
        self.drain_until = Some(Instant::now() + self.shared.options.drain_deadline);
        self.update_holds();
    }

    fn is_drained(&self) -> bool {
        let over = || self.drain_until.is_some_and(|until| Instant::now() >= until + GRACE);
        self.slots.iter().all(|slot| matches!(slot.stage, Stage::Free))
            && (self.shared.runs.load(Ordering::Acquire) == 0 || over())
    }

    fn waits_for_idle(&self) -> bool {
        self.shared.options.until_idle
            && self.ended
            && !self.draining
            && self.in_flight == 0
            && self.idle_check.is_none()
            && self.shared.runs.load(Ordering::Acquire) == 0
    }

    /// Asks the store whether anything will still become due.
    fn start_idle_check(&mut self) {
        if !self.waits_for_idle() || Instant::now() < self.next_idle_check {
            return;
        }
        let components = self.components.clone();
        self.idle_check = Some(Box::pin(async move {
            if components[0].shared.options.relay().is_some_and(|relay| relay.is_expecting()) {
                return false;
            }
            for component in components {
                if component.operating.load(Ordering::Acquire) {
                    return false;
                }
                match component.shared.store.next_due(&component.queue).await {
                    Ok(None) => {}
                    Ok(Some(_)) | Err(_) => return false,
                }
            }
            true
        }));
    }

    fn idle_checked(&mut self, idle: bool) {
        self.idle_check = None;
        self.next_idle_check = Instant::now() + self.shared.options.refresh.min(Duration::from_millis(50));
        if idle && self.waits_for_idle() {
            self.shared.drain.cancel();
        }
    }
}

/// Waits until this time; for ever when there is none.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

async fn check(idle: &mut Option<Pin<Box<dyn Future<Output = bool> + Send>>>) -> bool {
    match idle {
        Some(check) => check.await,
        None => std::future::pending().await,
    }
}
