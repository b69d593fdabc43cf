//! Lanes: the messages of one sequence in one component that queue behind the message in progress.

use std::collections::VecDeque;
use std::hash::Hasher;
use std::sync::Arc;

use lazaret_core::handler::Delivery;

use crate::flow::Ticket;
use crate::hash::SequenceHash;
use crate::held::{LaneHold, Usage};

/// Identifies a lane: one sequence in one component.
pub(super) type LaneKey = (u32, u64);

/// One message in a lane. The shard creates it, not the intake: memory that one thread allocates and
/// another frees costs several times as much.
pub(super) struct LaneItem {
    pub(super) delivery: Delivery,
    pub(super) ticket: Ticket,
    pub(super) hash: SequenceHash,
    pub(super) component: u32,
    /// `true` if the sequencing policy failed for the message.
    pub(super) unsequenced: bool,
}

impl LaneItem {
    pub(super) fn lane(&self) -> LaneKey {
        (self.component, self.hash.low)
    }

    pub(super) fn usage(&self) -> Usage {
        Usage::of(self.delivery.message())
    }
}

/// The messages that queue behind the message in progress.
#[derive(Default)]
pub(super) struct Lane {
    queue: VecDeque<LaneItem>,
    queued: Usage,
    /// The messages in progress, as far as they can hold the lane.
    processing: Usage,
    hold: Hold,
    /// The number of queued messages to process one by one, because the sequence looked open but was
    /// not.
    pub(super) singly: usize,
}

/// The reason why a lane is held.
#[derive(Default)]
enum Hold {
    /// The lane is not held: a handler runs.
    #[default]
    None,
    /// The message in progress holds the lane.
    Message(Arc<LaneHold>),
    /// The lane's sequence is open: the messages are appended to it.
    OpenSequence,
}

impl Lane {
    /// Returns the messages that are held back in this lane.
    pub(super) fn held(&self) -> Usage {
        match self.hold {
            Hold::None => Usage::default(),
            Hold::Message(_) | Hold::OpenSequence => {
                let mut held = self.queued;
                held += self.processing;
                held
            }
        }
    }

    pub(super) fn hold_by_message(&mut self, hold: Arc<LaneHold>) {
        self.hold = Hold::Message(hold);
    }

    pub(super) fn hold_by_open_sequence(&mut self) {
        self.hold = Hold::OpenSequence;
    }

    /// Asks the message that holds the lane, if any, to move to the store.
    pub(super) fn move_to_store(&self) {
        if let Hold::Message(hold) = &self.hold {
            hold.move_to_store();
        }
    }

    /// Ends the hold, because the message in progress has ended.
    pub(super) fn release(&mut self) {
        self.hold = Hold::None;
        self.processing = Usage::default();
    }

    pub(super) fn processes(&mut self, usage: Usage) {
        self.processing = usage;
    }

    pub(super) fn push_back(&mut self, item: LaneItem) {
        self.queued += item.usage();
        self.queue.push_back(item);
    }

    pub(super) fn push_front(&mut self, item: LaneItem) {
        self.queued += item.usage();
        self.queue.push_front(item);
    }

    pub(super) fn pop_front(&mut self) -> Option<LaneItem> {
        self.pop_front_if(|_| true)
    }

    pub(super) fn pop_front_if(&mut self, predicate: impl FnOnce(&LaneItem) -> bool) -> Option<LaneItem> {
        let item = self.queue.pop_front_if(|item| predicate(item))?;
        self.queued -= item.usage();
        Some(item)
    }

    /// Removes the messages for which `stays` returns `false`.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(&LaneItem) -> bool) {
        let queued = &mut self.queued;
        self.queue.retain(|item| {
            let stays = stays(item);
            if !stays {
                *queued -= item.usage();
            }
            stays
        });
    }
}

/// A message that can start as soon as a permit is available.
pub(super) struct Ready {
    pub(super) item: LaneItem,
    /// `true` if the message comes from the queue of a lane that is kept for it.
    pub(super) holds_lane: bool,
}

/// The hasher for lane keys, which are already hashes.
#[derive(Default)]
pub(super) struct LaneHasher(u64);

impl Hasher for LaneHasher {
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
