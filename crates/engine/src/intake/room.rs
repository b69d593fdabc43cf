//! The waiting room: messages that were passed on, came back, and are not due yet.
//!
//! They wait here and not in the lanes, so that they take nothing of the window from others (I3). Each one leaves when it is
//! due, whoever came before it: with jitter the order of a retry topic is not that of its due times. The room is bounded (I7).
//! A partition that has its share of it is held until some of its messages have left; only then may a message behind them wait
//! for one before it. What is due when stands in the messages alone, so nothing has to be remembered across assignments.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use lazaret_core::relay::Hop;
use lazaret_core::{Message, Timestamp};
use tokio::time::Instant;

use super::Intake;
use crate::shard::Ticket;
use crate::shared::until;

/// How long to wait at most before the clock is read again: it may have been set.
const LOOK: Duration = Duration::from_secs(1);

/// What a message takes besides its bytes.
const FIXED: usize = size_of::<Guest>() + size_of::<Hop>();

/// What waits, the next one first.
#[derive(Default)]
pub(super) struct Room {
    waiting: BinaryHeap<Reverse<Guest>>,
    /// Due, but their stream is paused.
    stopped: Vec<Guest>,
    /// How many components all of them are for.
    deliveries: usize,
    arrivals: u64,
}

/// One message that waits.
struct Guest {
    due: Timestamp,
    /// Of two that are due at once, the one that came first goes first.
    arrival: u64,
    ticket: Ticket,
    deliveries: usize,
    message: Message,
}

/// How much of the room is taken by one partition, or may be.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    messages: usize,
    bytes: usize,
}

impl Share {
    /// Whether this is at least that much.
    pub(super) fn reaches(self, limit: Self) -> bool {
        self.messages >= limit.messages || self.bytes >= limit.bytes
    }
}

impl PartialEq for Guest {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Guest {}

impl PartialOrd for Guest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Guest {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.due, self.arrival).cmp(&(other.due, other.arrival))
    }
}

impl Room {
    /// How many deliveries wait: messages, each as often as it has components that it is for.
    pub(super) fn deliveries(&self) -> usize {
        self.deliveries
    }
}

/// About how much memory a message takes.
fn size(message: &Message) -> usize {
    let key = message.key.as_ref().map_or(0, |key| key.len());
    let failure =
        message.hop.as_ref().map_or(0, |hop| hop.failure.message.len() + hop.failure.error_type.len());
    message.payload_len() + key + message.headers.byte_size() + message.id.as_str().len() + failure + FIXED
}

impl Intake {
    /// Lets a tracked message wait until it is due.
    pub(super) fn let_wait(&mut self, ticket: Ticket, message: Message) {
        // A copy does not run, so it waits for nothing.
        let due = message.hop.as_ref().filter(|hop| !hop.twin).map_or(Timestamp::MIN, |hop| hop.due_at);
        let deliveries = self.targets(&message).len();
        let share = &mut self.slots[ticket.slot as usize].room;
        share.messages += 1;
        share.bytes += size(&message);
        self.room.deliveries += deliveries;
        self.room.arrivals += 1;
        let arrival = self.room.arrivals;
        self.room.waiting.push(Reverse(Guest { due, arrival, ticket, deliveries, message }));
    }

    /// How much of the room each partition may take.
    pub(super) fn room_share(&self) -> Share {
        let sharing = self.slots.iter().filter(|slot| slot.room.messages > 0).count().max(1);
        let options = &self.shared.options;
        Share {
            messages: (options.delay_queue / sharing).max(1),
            bytes: (options.delay_queue_bytes / sharing).max(1),
        }
    }

    /// When to look into the room again.
    pub(super) fn room_alarm(&self) -> Option<Instant> {
        let Reverse(next) = self.room.waiting.peek().filter(|_| !self.full)?;
        Some(Instant::now() + until(self.shared.now(), next.due).min(LOOK))
    }

    /// Sends on their way those that are due (I12), as far as the window reaches.
    pub(super) fn call_in(&mut self) {
        if self.room.deliveries == 0 || self.full {
            return;
        }
        let now = self.shared.now();
        let mut any = false;
        if self.room.stopped.iter().any(|guest| self.is_admitted(guest)) {
            let stopped = std::mem::take(&mut self.room.stopped);
            self.room.waiting.extend(stopped.into_iter().map(Reverse));
        }
        let window = self.shared.options.window * self.components.len();
        while self.in_flight - self.room.deliveries < window
            && self.room.waiting.peek().is_some_and(|Reverse(next)| next.due <= now)
            && let Some(Reverse(guest)) = self.room.waiting.pop()
        {
            if !self.is_admitted(&guest) {
                self.room.stopped.push(guest);
                continue;
            }
            any = true;
            self.leaves(&guest);
            self.send(guest.ticket, guest.message);
        }
        if any {
            self.hand_over();
            self.update_holds();
        }
    }

    /// Whether the stream that the message came on at first may flow. Were it sent on, it would wait in its lane.
    fn is_admitted(&self, guest: &Guest) -> bool {
        self.shared.gate.admits_partition(&guest.message.partition())
    }

    fn leaves(&mut self, guest: &Guest) {
        self.room.deliveries -= guest.deliveries;
        let share = &mut self.slots[guest.ticket.slot as usize].room;
        share.messages -= 1;
        share.bytes -= size(&guest.message);
    }

    /// Gives up all that waits of a partition that goes: it comes again to whoever gets it.
    pub(super) fn send_away(&mut self, index: usize) {
        if self.slots[index].room.messages == 0 {
            return;
        }
        let of = |guest: &Guest| guest.ticket.slot as usize == index;
        let mut gone: Vec<Guest> = self.room.stopped.extract_if(.., |guest| of(guest)).collect();
        let waiting = std::mem::take(&mut self.room.waiting).into_iter().map(|Reverse(guest)| guest);
        let (of_it, others): (Vec<Guest>, Vec<Guest>) = waiting.partition(of);
        self.room.waiting = others.into_iter().map(Reverse).collect();
        gone.extend(of_it);
        for guest in &gone {
            self.leaves(guest);
            for _ in 0..guest.deliveries {
                self.in_flight -= 1;
                self.slots[index].tracker.give_up();
            }
        }
    }
}
