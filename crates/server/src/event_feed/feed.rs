//! The ring of past events, and the channel to current subscribers.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use jiff::Timestamp;
use lazaret_api::{Event, EventKind};
use lazaret_core::redaction::TextRules;
use tokio::sync::{broadcast, watch};

use super::latest::Latest;

/// The number of events a subscriber may lag behind before it is disconnected.
const CHANNEL_CAPACITY: usize = 1024;
/// The default number of past events kept.
const HISTORY: usize = 4096;

/// A published event. Subscribers share it.
pub(crate) struct Published {
    pub(crate) number: u64,
    pub(crate) event: Event,
    /// The event as it is sent, made for the first subscriber. It is the same for all: rights decide who gets an event, not what is in it.
    frame: OnceLock<Bytes>,
}

/// The event feed. Clones share it.
#[derive(Clone)]
pub(crate) struct Feed(Arc<Shared>);

struct Shared {
    /// Distinguishes the events of this process from those of the previous one.
    epoch: u64,
    ring: Mutex<Ring>,
    sender: broadcast::Sender<Arc<Published>>,
    /// The number of the newest event, for those who read the latest events from the ring.
    newest: watch::Sender<u64>,
    /// The rules for texts of errors, known once there is a server.
    texts: OnceLock<TextRules>,
}

struct Ring {
    next: u64,
    past: VecDeque<Arc<Published>>,
    capacity: usize,
}

impl Ring {
    /// The events after this one, as far as they are kept.
    fn after(&self, seen: u64) -> Events {
        let first = self.past.front().map_or(self.next, |first| first.number);
        // Numbers have no gaps.
        let known = usize::try_from((seen + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        Events { lost: seen + 1 < first, events: self.past.iter().skip(known).cloned().collect() }
    }
}

/// A part of the history.
pub(crate) struct Events {
    /// Whether there were more, which are lost.
    pub(crate) lost: bool,
    pub(crate) events: Vec<Arc<Published>>,
}

/// A subscription, resumed from the last received event.
pub(crate) struct Subscription {
    /// The events since then.
    pub(crate) missed: Events,
    /// The events from now on.
    pub(crate) receiver: broadcast::Receiver<Arc<Published>>,
}

impl Default for Feed {
    fn default() -> Self {
        // Two consecutive processes do not start in the same microsecond.
        let epoch = Timestamp::now().as_microsecond().unsigned_abs();
        let ring = Mutex::new(Ring { next: 1, past: VecDeque::new(), capacity: HISTORY });
        let (sender, newest) = (broadcast::channel(CHANNEL_CAPACITY).0, watch::channel(0).0);
        Self(Arc::new(Shared { epoch, ring, sender, newest, texts: OnceLock::new() }))
    }
}

impl Feed {
    /// Sets the number of past events kept.
    pub(crate) fn set_capacity(&self, events: usize) {
        self.ring().capacity = events;
    }

    /// Sets the rules by which texts of errors are redacted. The first ones stay.
    pub(crate) fn set_texts(&self, texts: &TextRules) {
        let _ = self.0.texts.set(texts.clone());
    }

    /// Publishes an event.
    pub(crate) fn publish(&self, event: Event) {
        let mut ring = self.ring();
        let number = ring.next;
        let published = Arc::new(Published { number, event, frame: OnceLock::new() });
        ring.next += 1;
        while ring.past.len() >= ring.capacity.max(1) {
            ring.past.pop_front();
        }
        ring.past.push_back(published.clone());
        // In order: the ring is still locked. Without subscribers the send fails, which is fine.
        let _ = self.0.sender.send(published);
        self.0.newest.send_replace(number);
    }

    /// Returns `true` if there are subscribers.
    pub(crate) fn has_subscribers(&self) -> bool {
        self.0.sender.receiver_count() > 0 || self.followers() > 0
    }

    /// The number of those who read the latest events.
    pub(super) fn followers(&self) -> usize {
        self.0.newest.receiver_count()
    }

    /// Subscribes from now on, or from after the last received event.
    pub(crate) fn subscribe(&self, last: Option<&str>) -> Subscription {
        let ring = self.ring();
        // Under the lock no event is published between the history and the channel.
        let receiver = self.0.sender.subscribe();
        Subscription { missed: self.missed(&ring, last), receiver }
    }

    /// Subscribes to the latest events from now on, or from after the last received one.
    pub(crate) fn follow(&self, last: Option<&str>) -> (Events, Latest) {
        let ring = self.ring();
        let missed = self.missed(&ring, last);
        (missed, Latest::new(self.clone(), ring.next - 1, self.0.newest.subscribe()))
    }

    /// The events after the last received one; none without it.
    fn missed(&self, ring: &Ring, last: Option<&str>) -> Events {
        let Some(last) = last else { return Events { lost: false, events: Vec::new() } };
        match self.number(last).filter(|seen| *seen < ring.next) {
            Some(seen) => ring.after(seen),
            None => Events { lost: true, ..ring.after(0) },
        }
    }

    /// The events after this one, and the number of the newest event.
    pub(super) fn after(&self, seen: u64) -> (Events, u64) {
        let ring = self.ring();
        (ring.after(seen), ring.next - 1)
    }

    /// An event as it is sent. All subscribers share the bytes.
    pub(crate) fn frame(&self, published: &Published) -> Bytes {
        let encode = || frame(Some(&self.id(published.number)), &self.shown(&published.event));
        published.frame.get_or_init(encode).clone()
    }

    /// An event as everybody sees it. A consumer that failed at a message says why in the words of its handler.
    fn shown<'e>(&self, event: &'e Event) -> Cow<'e, Event> {
        match (event.kind, &event.why, self.0.texts.get()) {
            (EventKind::Consumer, Some(why), Some(texts)) => {
                let why = Some(texts.redact(why).into_owned());
                Cow::Owned(Event { why, ..event.clone() })
            }
            _ => Cow::Borrowed(event),
        }
    }

    /// The id of an event on the wire.
    fn id(&self, number: u64) -> String {
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

/// Encodes an event: id, kind and JSON in one line of data.
pub(crate) fn frame(id: Option<&str>, event: &Event) -> Bytes {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    // Serializing plain data cannot fail, and its text has no line breaks.
    let data = serde_json::to_string(event).unwrap_or_default();
    Bytes::from(format!("{id}event: {}\ndata: {data}\n\n", event.kind.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(feed: &Feed, attempt: u32) {
        let event = Event::new(EventKind::Failed, Timestamp::UNIX_EPOCH);
        feed.publish(Event { attempt: Some(attempt), ..event });
    }

    fn attempts(missed: &Events) -> Vec<u32> {
        missed.events.iter().filter_map(|published| published.event.attempt).collect()
    }

    #[test]
    fn a_resumed_subscriber_receives_each_missed_event_once() {
        let feed = Feed::default();
        (1..=5).for_each(|n| publish(&feed, n));
        let mut resumed = feed.subscribe(Some(&feed.id(3)));
        assert_eq!((resumed.missed.lost, attempts(&resumed.missed)), (false, vec![4, 5]));
        publish(&feed, 6);
        assert_eq!(resumed.receiver.try_recv().unwrap().number, 6);
        assert!(resumed.receiver.try_recv().is_err());
        let current = feed.subscribe(Some(&feed.id(6)));
        assert_eq!((current.missed.lost, current.missed.events.len()), (false, 0));
    }

    #[test]
    fn a_gap_is_reported() {
        // I7
        let feed = Feed::default();
        feed.set_capacity(2);
        (1..=5).for_each(|n| publish(&feed, n));
        let late = feed.subscribe(Some(&feed.id(2)));
        assert_eq!((late.missed.lost, attempts(&late.missed)), (true, vec![4, 5]));
        assert!(!feed.subscribe(Some(&feed.id(3))).missed.lost, "the next one is still there");
        for foreign in ["1-3", "", "-", "x", &feed.id(99)] {
            assert!(feed.subscribe(Some(foreign)).missed.lost, "{foreign}");
        }
        let fresh = feed.subscribe(None);
        assert_eq!((fresh.missed.lost, fresh.missed.events.len()), (false, 0));
    }
    #[test]
    fn an_event_is_encoded_once_for_all_subscribers() {
        let feed = Feed::default();
        let (mut first, mut second) = (feed.subscribe(None), feed.subscribe(None));
        publish(&feed, 7);
        let sent = [&mut first, &mut second].map(|to| feed.frame(&to.receiver.try_recv().unwrap()));
        assert_eq!(sent[0].as_ptr(), sent[1].as_ptr(), "the same bytes");
        let missed = feed.subscribe(Some(&feed.id(0))).missed;
        assert_eq!(feed.frame(&missed.events[0]).as_ptr(), sent[0].as_ptr(), "for a resumed one as well");
        let text = std::str::from_utf8(&sent[0]).unwrap();
        let (start, data) = text.split_once("data: ").unwrap();
        assert_eq!(start, format!("id: {}\nevent: failed\n", feed.id(1)));
        let event: Event = serde_json::from_str(data.strip_suffix("\n\n").unwrap()).unwrap();
        assert_eq!(event, missed.events[0].event);
    }
}
