//! A queue between two tasks that is emptied in batches.
//!
//! A mailbox has no capacity of its own: what goes in is bounded by the window of messages in flight, which the
//! intake keeps. In return a push never waits, so the source is polled whatever the other side does.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

/// A queue between two tasks.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    queue: Mutex<Vec<T>>,
    arrived: Notify,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self { queue: Mutex::new(Vec::new()), arrived: Notify::new() }
    }
}

impl<T> Mailbox<T> {
    /// Adds one item.
    pub(crate) fn push(&self, item: T) {
        self.lock().push(item);
        self.arrived.notify_one();
    }

    /// Adds all items, in order, and leaves `items` empty.
    pub(crate) fn append(&self, items: &mut Vec<T>) {
        if items.is_empty() {
            return;
        }
        let mut queue = self.lock();
        match queue.is_empty() {
            // The receiver keeps up: nothing has to be copied.
            true => std::mem::swap(&mut *queue, items),
            false => queue.append(items),
        }
        drop(queue);
        self.arrived.notify_one();
    }

    /// Wakes the receiver without an item.
    pub(crate) fn wake(&self) {
        self.arrived.notify_one();
    }

    /// Moves all items into `into`, which must be empty. Returns `true` when there were any.
    pub(crate) fn take(&self, into: &mut Vec<T>) -> bool {
        debug_assert!(into.is_empty(), "the last batch was processed");
        std::mem::swap(&mut *self.lock(), into);
        !into.is_empty()
    }

    /// Waits until an item was added since the last call.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<T>> {
        // A panic while a Vec is pushed to or swapped leaves it whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
