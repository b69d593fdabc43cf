//! The delay queue: relayed messages that returned from the broker and are not due yet.
//!
//! They wait here and not in the lanes, so that they do not take space in the window from others (I3).
//! Each message is released when it is due, regardless of its position: because of jitter, the order of
//! a retry topic is not the order of its due times. The queue is bounded (I7). A partition that has used
//! its share is held until some of its messages are released. Only in this case may a message be delayed
//! by an earlier one. The due times are only in the messages, so no state is kept across assignments.
//!
//! A message is due when the clock shows its time. If the clock is set back meanwhile, the message is
//! due when the rest of its delay has passed by the monotonic clock.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use jiff::SignedDuration;
use lazaret_core::relay::Hop;
use lazaret_core::{Message, Timestamp};
use tokio::time::Instant;

use super::task::Intake;
use crate::ages::UnderWay;
use crate::flow::Ticket;
use crate::message_size::memory_size;
use crate::time::{SLEW, due_after_set_back, later, until};

/// The interval at which the clock is read again, because it may have been set.
const CLOCK_CHECK: Duration = Duration::from_secs(1);

/// The waiting messages, ordered by due time.
#[derive(Default)]
pub(super) struct DelayQueue {
    waiting: BinaryHeap<Reverse<Delayed>>,
    /// Messages that are due, but whose stream is paused.
    paused: Vec<Delayed>,
    /// The total number of deliveries of these messages: one per component that receives a message.
    deliveries: usize,
    arrivals: u64,
    /// The clock's time minus the steady time when the due times were last compared with the clock.
    offset: Option<SignedDuration>,
}

/// A message that waits until it is due.
struct Delayed {
    /// The due time by the clock as it is set now.
    due: Timestamp,
    /// The due time by the clock as it was set at arrival.
    due_at_arrival: Timestamp,
    /// The due time in steady time, which is never set.
    steady_due: Timestamp,
    /// The arrival number. Of two messages with the same due time, the earlier arrival is released
    /// first.
    arrival: u64,
    ticket: Ticket,
    deliveries: usize,
    message: Message,
    /// Shows the message's age since its first failed attempt.
    _age: Option<UnderWay>,
}

/// The share of the queue that a partition uses or may use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    messages: usize,
    bytes: usize,
}

impl Usage {
    /// Returns `true` if the usage has reached the limit.
    pub(super) fn reaches(self, limit: Self) -> bool {
        self.messages >= limit.messages || self.bytes >= limit.bytes
    }
}

impl PartialEq for Delayed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Delayed {}

impl PartialOrd for Delayed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Delayed {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.due, self.arrival).cmp(&(other.due, other.arrival))
    }
}

impl DelayQueue {
    /// Returns the number of waiting deliveries. Each message counts once per component that receives
    /// it.
    pub(super) fn deliveries(&self) -> usize {
        self.deliveries
    }

    /// Adjusts the due times if the clock was set since the last call. A message may become due earlier
    /// because the clock was set forward, but never later because it was set back.
    fn heed_clock(&mut self, now: Timestamp, steady: Timestamp) {
        let offset = now.duration_since(steady);
        let before = *self.offset.get_or_insert(offset);
        if (offset - before).unsigned_abs() <= SLEW {
            return;
        }
        self.offset = Some(offset);
        let adjusted = |mut delayed: Delayed| {
            let rest = until(steady, delayed.steady_due);
            delayed.due = delayed.due_at_arrival.min(later(now, rest));
            delayed
        };
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        self.waiting = waiting.map(|Reverse(delayed)| Reverse(adjusted(delayed))).collect();
        self.paused = std::mem::take(&mut self.paused).into_iter().map(adjusted).collect();
    }
}

impl Intake {
    /// Delays a tracked message until it is due.
    pub(super) fn delay(&mut self, ticket: Ticket, message: Message) {
        let (now, steady) = (self.clock.now(), self.guards.steady_now());
        // A redelivered copy is not handled, so it need not wait.
        let hop = message.hop.as_ref().filter(|hop| !hop.twin);
        let due = |hop: &Hop| due_after_set_back(hop.due_at, hop.last_failed_at, now);
        let due = hop.map_or(Timestamp::MIN, |hop| due(hop));
        self.delayed.heed_clock(now, steady);
        let (targets, failed_at) = (self.targets(&message), hop.map(|hop| hop.first_failed_at));
        let deliveries = targets.len();
        let age = failed_at.map(|at| self.components[targets.start].ages.failing.begin(at));
        let share = &mut self.slots[ticket.slot as usize].delayed;
        share.messages += 1;
        share.bytes += memory_size(&message);
        self.delayed.deliveries += deliveries;
        self.delayed.arrivals += 1;
        let arrival = self.delayed.arrivals;
        let (due_at_arrival, steady_due) = (due, later(steady, until(now, due)));
        self.delayed.waiting.push(Reverse(Delayed {
            due,
            due_at_arrival,
            steady_due,
            arrival,
            ticket,
            deliveries,
            message,
            _age: age,
        }));
    }

    /// Returns the share of the queue that each partition may use.
    pub(super) fn delay_share(&self) -> Usage {
        let sharing = self.slots.iter().filter(|slot| slot.delayed.messages > 0).count().max(1);
        let options = &self.options;
        Usage {
            messages: (options.delay_queue / sharing).max(1),
            bytes: (options.delay_queue_bytes / sharing).max(1),
        }
    }

    /// Returns the next time at which a message may be due.
    pub(super) fn next_release(&self) -> Option<Instant> {
        let Reverse(next) = self.delayed.waiting.peek().filter(|_| !self.full)?;
        Some(Instant::now() + until(self.clock.now(), next.due).min(CLOCK_CHECK))
    }

    /// Releases the messages that are due (I12), as far as the window has room.
    pub(super) fn release_due(&mut self) {
        if self.delayed.deliveries == 0 || self.full {
            return;
        }
        let now = self.clock.now();
        self.delayed.heed_clock(now, self.guards.steady_now());
        let mut any = false;
        if self.delayed.paused.iter().any(|delayed| self.is_admitted(delayed)) {
            let paused = std::mem::take(&mut self.delayed.paused);
            self.delayed.waiting.extend(paused.into_iter().map(Reverse));
        }
        let window = self.options.window * self.components.len();
        while self.in_window() < window
            && self.delayed.waiting.peek().is_some_and(|Reverse(next)| next.due <= now)
            && let Some(Reverse(mut delayed)) = self.delayed.waiting.pop()
        {
            if !self.is_admitted(&delayed) {
                self.delayed.paused.push(delayed);
                continue;
            }
            any = true;
            self.remove(&delayed);
            if let Some(hop) = delayed.message.hop.as_mut().filter(|hop| !hop.twin) {
                // The message has waited already: its lane must not wait for the clock.
                hop.due_at = hop.due_at.min(delayed.due);
            }
            self.send(delayed.ticket, delayed.message);
        }
        if any {
            self.hand_over();
            self.update_holds();
        }
    }

    /// Returns `true` if the message's original stream is not paused. In a paused stream the message
    /// would wait in its lane.
    fn is_admitted(&self, delayed: &Delayed) -> bool {
        self.guards.gate.admits_partition(&delayed.message.partition())
    }

    fn remove(&mut self, delayed: &Delayed) {
        self.delayed.deliveries -= delayed.deliveries;
        let share = &mut self.slots[delayed.ticket.slot as usize].delayed;
        share.messages -= 1;
        share.bytes -= memory_size(&delayed.message);
    }

    /// Drops all messages of a partition that is being revoked. They are delivered again to its next
    /// owner.
    pub(super) fn drop_delayed(&mut self, index: usize) {
        if self.slots[index].delayed.messages == 0 {
            return;
        }
        let of = |delayed: &Delayed| delayed.ticket.slot as usize == index;
        let mut gone: Vec<Delayed> = self.delayed.paused.extract_if(.., |delayed| of(delayed)).collect();
        let waiting = std::mem::take(&mut self.delayed.waiting).into_iter().map(|Reverse(delayed)| delayed);
        let (of_it, others): (Vec<Delayed>, Vec<Delayed>) = waiting.partition(of);
        self.delayed.waiting = others.into_iter().map(Reverse).collect();
        gone.extend(of_it);
        for delayed in &gone {
            self.remove(delayed);
            for _ in 0..delayed.deliveries {
                self.in_flight -= 1;
                self.slots[index].tracker.abandon();
            }
        }
    }
}
