//! A queue between two tasks that is filled and emptied in batches.
//!
//! A mailbox has no capacity of its own: the window of messages in flight, which the intake maintains,
//! bounds its content. In return a push never waits, so the source is polled whatever the receiver does.
//!
//! Batches stay as they were added: when a receiver falls behind, the sender does not copy waiting
//! items.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

/// The number of emptied batches that are kept for reuse.
const SPARES: usize = 4;

/// A queue between two tasks.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    queue: Mutex<Queue<T>>,
    arrived: Notify,
}

#[derive(Debug)]
struct Queue<T> {
    /// Non-empty batches.
    batches: VecDeque<Vec<T>>,
    /// Emptied batches, whose memory is reused while it is in the cache.
    spares: Vec<Vec<T>>,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        let queue = Queue { batches: VecDeque::new(), spares: Vec::new() };
        Self { queue: Mutex::new(queue), arrived: Notify::new() }
    }
}

impl<T> Mailbox<T> {
    /// Adds an item.
    pub(crate) fn push(&self, item: T) {
        let mut queue = self.lock();
        match queue.batches.back_mut() {
            Some(last) => last.push(item),
            None => {
                let mut batch = queue.spares.pop().unwrap_or_default();
                batch.push(item);
                queue.batches.push_back(batch);
            }
        }
        drop(queue);
        self.arrived.notify_one();
    }

    /// Adds all items in order and leaves `items` empty.
    pub(crate) fn append(&self, items: &mut Vec<T>) {
        if items.is_empty() {
            return;
        }
        let mut queue = self.lock();
        let spare = queue.spares.pop().unwrap_or_default();
        queue.batches.push_back(std::mem::replace(items, spare));
        drop(queue);
        self.arrived.notify_one();
    }

    /// Wakes the receiver without adding an item.
    pub(crate) fn wake(&self) {
        self.arrived.notify_one();
    }

    /// Moves the oldest batch into `into`, which must be empty. Returns `false` if there is none. A
    /// receiver calls this until it returns `false`, because one notification may stand for several
    /// batches.
    pub(crate) fn take(&self, into: &mut Vec<T>) -> bool {
        debug_assert!(into.is_empty(), "the last batch was processed");
        let mut queue = self.lock();
        let Some(batch) = queue.batches.pop_front() else { return false };
        let emptied = std::mem::replace(into, batch);
        if emptied.capacity() > 0 && queue.spares.len() < SPARES {
            queue.spares.push(emptied);
        }
        true
    }

    /// Waits until an item has been added since the last call.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Queue<T>> {
        // No change under this lock is partial.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_taken_in_the_order_in_which_they_were_added() {
        // I2
        let mailbox = Mailbox::default();
        mailbox.push(1);
        mailbox.append(&mut vec![2, 3]);
        mailbox.append(&mut Vec::new());
        mailbox.push(4);
        mailbox.append(&mut vec![5]);
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        while mailbox.take(&mut batch) {
            assert!(!batch.is_empty());
            all.append(&mut batch);
        }
        assert_eq!(all, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn few_emptied_batches_are_kept() {
        // I7
        let mailbox = Mailbox::default();
        for round in 0..100 {
            mailbox.append(&mut vec![round; 10]);
        }
        let mut batch = Vec::new();
        while mailbox.take(&mut batch) {
            batch.clear();
        }
        assert_eq!(mailbox.lock().spares.len(), SPARES);
    }
}
