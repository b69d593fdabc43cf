//! The ring of past events, and the channel to current subscribers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use lazaret_api::Event;
use tokio::sync::broadcast;

/// The number of events a subscriber may lag behind before it is disconnected.
const CHANNEL_CAPACITY: usize = 1024;
/// The default number of past events kept.
const HISTORY: usize = 4096;

/// An event and its number.
pub(crate) type Numbered = (u64, Arc<Event>);

/// The event feed. Clones share it.
#[derive(Clone)]
pub(crate) struct Feed(Arc<Shared>);

struct Shared {
    /// Distinguishes the events of this process from those of the previous one.
    epoch: u64,
    ring: Mutex<Ring>,
    sender: broadcast::Sender<Numbered>,
}

struct Ring {
    next: u64,
    past: VecDeque<Numbered>,
    capacity: usize,
}

/// A subscription, resumed from the last received event.
pub(crate) struct Subscription {
    /// Whether events since then were lost.
    pub(crate) lost: bool,
    /// The events since then.
    pub(crate) missed: Vec<Numbered>,
    /// The events from now on.
    pub(crate) receiver: broadcast::Receiver<Numbered>,
}

impl Default for Feed {
    fn default() -> Self {
        // Two consecutive processes do not start in the same microsecond.
        let epoch = Timestamp::now().as_microsecond().unsigned_abs();
        let ring = Mutex::new(Ring { next: 1, past: VecDeque::new(), capacity: HISTORY });
        Self(Arc::new(Shared { epoch, ring, sender: broadcast::channel(CHANNEL_CAPACITY).0 }))
    }
}

impl Feed {
    /// Sets the number of past events kept.
    pub(crate) fn set_capacity(&self, events: usize) {
        self.ring().capacity = events;
    }

    /// Publishes an event.
    pub(crate) fn publish(&self, event: Event) {
        let mut ring = self.ring();
        let numbered = (ring.next, Arc::new(event));
        ring.next += 1;
        while ring.past.len() >= ring.capacity.max(1) {
            ring.past.pop_front();
        }
        ring.past.push_back(numbered.clone());
        // In order: the ring is still locked. Without subscribers the send fails, which is fine.
        let _ = self.0.sender.send(numbered);
    }

    /// Returns `true` if there are subscribers.
    pub(crate) fn has_subscribers(&self) -> bool {
        self.0.sender.receiver_count() > 0
    }

    /// Subscribes from now on, or from after the last received event.
    pub(crate) fn subscribe(&self, last: Option<&str>) -> Subscription {
        let ring = self.ring();
        // Under the lock no event is published between the history and the channel.
        let receiver = self.0.sender.subscribe();
        let Some(last) = last else { return Subscription { lost: false, missed: Vec::new(), receiver } };
        let seen = self.number(last).filter(|seen| *seen < ring.next);
        let first = ring.past.front().map_or(ring.next, |(number, _)| *number);
        let lost = seen.is_none_or(|seen| seen + 1 < first);
        let seen = seen.unwrap_or(0);
        let missed = ring.past.iter().filter(|(number, _)| *number > seen).cloned().collect();
        Subscription { lost, missed, receiver }
    }

    /// The id of an event on the wire.
    pub(crate) fn id(&self, number: u64) -> String {
        format!("{:x}-{number}", self.0.epoch)
    }

    fn number(&self, id: &str) -> Option<u64> {
        let (epoch, number) = id.split_once('-')?;
        let ours = u64::from_str_radix(epoch, 16).is_ok_and(|epoch| epoch == self.0.epoch);
        ours.then(|| number.parse().ok())?
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.0.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use lazaret_api::EventKind;

    use super::*;

    fn publish(feed: &Feed, attempt: u32) {
        let event = Event::new(EventKind::Failed, Timestamp::UNIX_EPOCH);
        feed.publish(Event { attempt: Some(attempt), ..event });
    }

    fn attempts(missed: &[Numbered]) -> Vec<u32> {
        missed.iter().filter_map(|(_, event)| event.attempt).collect()
    }

    #[test]
    fn a_resumed_subscriber_receives_each_missed_event_once() {
        let feed = Feed::default();
        (1..=5).for_each(|n| publish(&feed, n));
        let mut resumed = feed.subscribe(Some(&feed.id(3)));
        assert_eq!((resumed.lost, attempts(&resumed.missed)), (false, vec![4, 5]));
        publish(&feed, 6);
        assert_eq!(resumed.receiver.try_recv().unwrap().0, 6);
        assert!(resumed.receiver.try_recv().is_err());
        let current = feed.subscribe(Some(&feed.id(6)));
        assert_eq!((current.lost, current.missed.len()), (false, 0));
    }

    #[test]
    fn a_gap_is_reported() {
        // I7
        let feed = Feed::default();
        feed.set_capacity(2);
        (1..=5).for_each(|n| publish(&feed, n));
        let late = feed.subscribe(Some(&feed.id(2)));
        assert_eq!((late.lost, attempts(&late.missed)), (true, vec![4, 5]));
        assert!(!feed.subscribe(Some(&feed.id(3))).lost, "the next one is still there");
        for foreign in ["1-3", "", "-", "x", &feed.id(99)] {
            assert!(feed.subscribe(Some(foreign)).lost, "{foreign}");
        }
        let fresh = feed.subscribe(None);
        assert_eq!((fresh.lost, fresh.missed.len()), (false, 0));
    }
}
