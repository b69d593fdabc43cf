//! The queue between the engine and the thread that reads ahead.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lazaret_core::Message;
use lazaret_core::source::{SourceError, SourceEvent};
use tokio::sync::Notify;

/// The limit of batches for reading ahead, followed by the limit of bytes. One more batch may be added.
/// The limits are small, so that copied records are still in the processor's cache when they are
/// handled.
const BATCHES: usize = 6;
const BYTES: usize = 4 * 1024 * 1024;

/// The interval at which a live engine asks at least once, and at which the driver checks this.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// The time without a request after which an engine counts as dead until it asks again.
const SILENCE: Duration = Duration::from_secs(2);

/// An item for the engine.
pub(crate) enum Item {
    Event(SourceEvent),
    Error(SourceError),
    /// The outcome of the commit with this number.
    Committed(u64, Result<(), SourceError>),
}

/// Items that were read and not taken yet, in order.
pub(crate) struct ReadAhead {
    queue: Mutex<Queue>,
    arrived: Notify,
    taken: Notify,
    /// The lag of the source, without the queue.
    lag: AtomicU64,
    /// The time of creation, followed by the number of milliseconds from then until the engine last asked.
    created: Instant,
    asked: AtomicU64,
}

#[derive(Default)]
struct Queue {
    /// The items, each with the size of its messages in bytes.
    items: VecDeque<(Item, usize)>,
    /// The totals of batches, then of messages and of bytes.
    batches: usize,
    messages: usize,
    bytes: usize,
    /// Whether the driver has ended.
    closed: bool,
}

impl Queue {
    /// Returns `true` if this error is already queued. The client repeats its errors, and the engine
    /// pauses after each. It should not have to take old errors first.
    fn contains(&self, error: &SourceError) -> bool {
        let error = error.to_string();
        let is_same = |item: &Item| matches!(item, Item::Error(known) if known.to_string() == error);
        self.items.iter().any(|(item, _)| is_same(item))
    }

    /// Returns `true` if more may be read.
    fn has_room(&self) -> bool {
        self.batches < BATCHES && self.bytes < BYTES
    }

    /// Returns `true` if the reader should be woken. It is not woken for every batch, because waking
    /// takes as long as reading one.
    fn is_low(&self) -> bool {
        self.batches <= BATCHES / 2 && self.bytes <= BYTES / 2
    }
}

/// Returns the error for use after the driver has ended.
pub(crate) fn closed_error() -> SourceError {
    SourceError::permanent("the source was closed")
}

/// Returns the approximate size of messages in bytes.
fn size(messages: &[Message]) -> usize {
    messages.iter().map(|message| message.payload_len() + message.headers.byte_size()).sum()
}

impl ReadAhead {
    pub(crate) fn new() -> Self {
        Self {
            queue: Mutex::default(),
            arrived: Notify::new(),
            taken: Notify::new(),
            lag: AtomicU64::new(0),
            created: Instant::now(),
            asked: AtomicU64::new(0),
        }
    }

    fn record_asked(&self) {
        self.asked.store(self.created.elapsed().as_millis() as u64, Ordering::Release);
    }

    /// Returns `true` if the engine has asked recently.
    pub(crate) fn is_engine_alive(&self) -> bool {
        let asked = self.created + Duration::from_millis(self.asked.load(Ordering::Acquire));
        asked.elapsed() < SILENCE
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // No change under this lock is partial.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if more may be read.
    pub(crate) fn has_room(&self) -> bool {
        self.queue().has_room()
    }

    /// Waits until the engine has taken enough items for reading to continue.
    pub(crate) async fn taken(&self) {
        self.taken.notified().await;
    }

    /// Sets the lag of the source, without the queue.
    pub(crate) fn set_lag(&self, lag: u64) {
        self.lag.store(lag, Ordering::Release);
    }

    /// Adds an item. Drops an error that is already queued.
    pub(crate) fn put(&self, item: Item) {
        let bytes = match &item {
            Item::Event(SourceEvent::Messages(messages)) => size(messages),
            _ => 0,
        };
        let mut queue = self.queue();
        if let Item::Event(SourceEvent::Messages(messages)) = &item {
            queue.batches += 1;
            queue.messages += messages.len();
            queue.bytes += bytes;
        }
        if let Item::Error(error) = &item
            && queue.contains(error)
        {
            return;
        }
        queue.items.push_back((item, bytes));
        drop(queue);
        self.arrived.notify_one();
    }

    /// Takes the next item if there is one.
    pub(crate) fn take(&self) -> Option<Item> {
        self.record_asked();
        let mut queue = self.queue();
        let Some((item, bytes)) = queue.items.pop_front() else {
            return queue.closed.then(|| Item::Error(closed_error()));
        };
        if let Item::Event(SourceEvent::Messages(messages)) = &item {
            let was_low = queue.is_low();
            queue.batches -= 1;
            queue.messages -= messages.len();
            queue.bytes -= bytes;
            if !was_low && queue.is_low() {
                self.taken.notify_one();
            }
        }
        Some(item)
    }

    /// Waits until an item is added, but at most one tick.
    pub(crate) async fn arrived(&self) {
        tokio::select! {
            biased;
            () = self.arrived.notified() => {}
            () = tokio::time::sleep(TICK) => {}
        }
    }

    /// Returns the lag of the source, including the messages in the queue.
    pub(crate) fn lag(&self) -> u64 {
        let queued = self.queue().messages as u64;
        self.lag.load(Ordering::Acquire) + queued
    }
}

/// Closes the queue when dropped, however the thread of the driver ends.
pub(crate) struct CloseOnDrop(pub(crate) Arc<ReadAhead>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.queue().closed = true;
        self.0.arrived.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::Position;

    use super::*;

    fn batch(bytes: usize) -> Item {
        let message = Message::new("m", "orders", Position::new(0, 0)).with_payload(vec![0; bytes]);
        Item::Event(SourceEvent::Messages(vec![message]))
    }

    #[test]
    fn a_repeated_error_is_queued_once() {
        let read = ReadAhead::new();
        for text in ["down", "down", "away", "down"] {
            read.put(Item::Error(SourceError::temporary(text)));
        }
        let mut errors = Vec::new();
        while let Some(Item::Error(error)) = read.take() {
            errors.push(error.to_string());
        }
        assert_eq!(errors.len(), 2, "{errors:?}");
        read.put(Item::Error(SourceError::temporary("down")));
        assert!(read.take().is_some(), "an error that was taken may be queued again");
    }

    #[test]
    fn reading_ahead_is_bounded_in_batches_and_bytes() {
        // I7
        let read = ReadAhead::new();
        for _ in 0..BATCHES {
            assert!(read.has_room());
            read.put(batch(1));
        }
        assert!(!read.has_room() && read.lag() == BATCHES as u64);
        while read.take().is_some() {}
        assert!(read.has_room() && read.lag() == 0);
        read.put(batch(BYTES));
        assert!(!read.has_room());
    }

    #[test]
    fn a_closed_queue_returns_a_permanent_error() {
        let read = Arc::new(ReadAhead::new());
        drop(CloseOnDrop(read.clone()));
        assert!(matches!(read.take(), Some(Item::Error(error)) if !error.is_temporary()));
    }
}
