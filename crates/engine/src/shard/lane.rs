//! Lanes: the messages of one sequence in one component that queue behind the one being processed.

use std::collections::VecDeque;
use std::hash::Hasher;

use lazaret_core::handler::Delivery;

use crate::flow::Ticket;
use crate::hash::SequenceHash;

/// A lane: one sequence in one component.
pub(super) type LaneKey = (u32, u64);

/// One message in a lane. The shard makes it, not the intake: memory that one thread allocates and another frees costs
/// several times as much.
pub(super) struct LaneItem {
    pub(super) delivery: Delivery,
    pub(super) ticket: Ticket,
    pub(super) hash: SequenceHash,
    pub(super) component: u32,
    /// The sequencing policy failed for it.
    pub(super) unsequenced: bool,
}

impl LaneItem {
    pub(super) fn lane(&self) -> LaneKey {
        (self.component, self.hash.low)
    }
}

/// The messages that queue behind the one that is being processed.
#[derive(Default)]
pub(super) struct Lane {
    pub(super) queue: VecDeque<LaneItem>,
    /// The number of them to process one by one: the sequence looked open and was not.
    pub(super) singly: usize,
}

/// A message that may start as soon as there is a permit.
pub(super) struct Ready {
    pub(super) item: LaneItem,
    /// It comes from the queue of a lane that is kept for it.
    pub(super) holds_lane: bool,
}

/// The hasher of lane keys: they are hashes already.
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
