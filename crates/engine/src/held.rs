//! Counts the messages that failing, throttled and paused sequences hold back in memory (I3, I7).
//!
//! A lane is held from the first failure of its message, or from the time at which the message has to
//! wait, until the message is settled. The messages behind it cannot run. If they counted towards the
//! window, a few failing keys would fill it and stop all others. They are therefore counted separately,
//! with a limit of their own. At half of the limit, lanes of the strategy `ordered` move to the store
//! instead of waiting in memory. Messages above the limit count towards the window again.

use std::ops::{AddAssign, SubAssign};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lazaret_core::Message;
use tokio::sync::Notify;

use crate::mailbox::Mailbox;
use crate::message_size::memory_size;

/// A number of messages and their size in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl Usage {
    /// Returns the usage of one message.
    pub(crate) fn of(message: &Message) -> Self {
        Self { messages: 1, bytes: memory_size(message) }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

impl SubAssign for Usage {
    fn sub_assign(&mut self, other: Self) {
        self.messages -= other.messages;
        self.bytes -= other.bytes;
    }
}

/// The held messages of one consumer in all shards.
#[derive(Debug)]
pub(crate) struct Held {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    limit: Usage,
}

impl Held {
    pub(crate) fn new(limit: Usage) -> Self {
        Self { messages: AtomicUsize::new(0), bytes: AtomicUsize::new(0), limit }
    }

    /// Publishes the change of one shard's usage.
    pub(crate) fn publish(&self, before: Usage, now: Usage) {
        self.messages.fetch_add(now.messages.wrapping_sub(before.messages), Ordering::AcqRel);
        self.bytes.fetch_add(now.bytes.wrapping_sub(before.bytes), Ordering::AcqRel);
    }

    fn usage(&self) -> Usage {
        Usage { messages: self.messages.load(Ordering::Acquire), bytes: self.bytes.load(Ordering::Acquire) }
    }

    /// Returns the number of held messages that do not count towards the window.
    pub(crate) fn beside_window(&self) -> usize {
        let Usage { messages, bytes } = self.usage();
        let Usage { messages: most, bytes: most_bytes } = self.limit;
        let by_bytes = match bytes > most_bytes {
            // The share of them that fits, as if all had the same size.
            true => (messages as u128 * most_bytes as u128 / bytes as u128) as usize,
            false => messages,
        };
        messages.min(most).min(by_bytes)
    }

    /// Returns `true` if lanes should move to the store instead of waiting in memory.
    pub(crate) fn is_pressed(&self) -> bool {
        let Usage { messages, bytes } = self.usage();
        messages >= self.limit.messages.div_ceil(2) || bytes >= self.limit.bytes.div_ceil(2)
    }
}

/// Tells a shard of a lane that a message holds.
pub(crate) struct NewHold {
    pub(crate) component: u32,
    pub(crate) hash: u64,
    pub(crate) hold: Arc<LaneHold>,
}

/// The hold of a lane.
#[derive(Debug, Default)]
pub(crate) struct LaneHold {
    ended: AtomicBool,
    wanted: Notify,
}

impl LaneHold {
    /// Returns `true` if the message that held the lane is settled or abandoned.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Asks the message to move to the store, if it is waiting.
    pub(crate) fn move_to_store(&self) {
        self.wanted.notify_one();
    }
}

/// The hold of a lane, owned by the message that holds it. The hold ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Holding(Arc<LaneHold>);

impl Holding {
    /// Holds the lane and reports the hold to its shard.
    pub(crate) fn begin(component: u32, hash: u64, holds: &Mailbox<NewHold>) -> Self {
        let hold = Arc::new(LaneHold::default());
        holds.push(NewHold { component, hash, hold: hold.clone() });
        Self(hold)
    }

    /// Waits until the shard asks the message to move to the store.
    pub(crate) async fn must_move(&self) {
        self.0.wanted.notified().await;
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(messages: usize, bytes: usize) -> Usage {
        Usage { messages, bytes }
    }

    #[test]
    fn what_exceeds_the_limit_takes_part_in_the_window() {
        let held = Held::new(usage(10, 1000));
        held.publish(usage(0, 0), usage(4, 400));
        assert_eq!((held.beside_window(), held.is_pressed()), (4, false));
        held.publish(usage(0, 0), usage(3, 300));
        assert_eq!((held.beside_window(), held.is_pressed()), (7, true), "two shards add up");
        held.publish(usage(3, 300), usage(9, 300));
        assert_eq!(held.beside_window(), 10);
        held.publish(usage(9, 300), usage(1, 1600));
        assert_eq!(held.beside_window(), 2, "half of the bytes fit");
        held.publish(usage(1, 1600), usage(0, 0));
        assert_eq!((held.beside_window(), held.is_pressed()), (4, false));
    }
}
