//! The ring of past events, and the line to those who listen now.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use lazaret_api::Event;
use tokio::sync::broadcast;

/// How many events a listener may lag behind before it is cut off.
const LINE: usize = 1024;
/// How many past events are kept unless somebody says otherwise.
const PAST: usize = 4096;

/// An event and its number.
pub(crate) type Numbered = (u64, Arc<Event>);

/// What happened. Clones share it.
#[derive(Clone)]
pub(crate) struct Feed(Arc<Shared>);

struct Shared {
    /// Tells the events of this process from those of the one before it.
    epoch: u64,
    ring: Mutex<Ring>,
    line: broadcast::Sender<Numbered>,
}

struct Ring {
    next: u64,
    past: VecDeque<Numbered>,
    keep: usize,
}

/// Where a listener stands that has come back.
pub(crate) struct Resumed {
    /// Whether events were lost since it left.
    pub(crate) lost: bool,
    /// What it has missed.
    pub(crate) missed: Vec<Numbered>,
    /// What comes.
    pub(crate) line: broadcast::Receiver<Numbered>,
}

impl Default for Feed {
    fn default() -> Self {
        // Two processes that follow each other do not begin in the same microsecond.
        let epoch = Timestamp::now().as_microsecond().unsigned_abs();
        let ring = Mutex::new(Ring { next: 1, past: VecDeque::new(), keep: PAST });
        Self(Arc::new(Shared { epoch, ring, line: broadcast::channel(LINE).0 }))
    }
}

impl Feed {
    /// Keeps this many past events.
    pub(crate) fn keep(&self, events: usize) {
        self.ring().keep = events;
    }

    /// Tells an event.
    pub(crate) fn publish(&self, event: Event) {
        let mut ring = self.ring();
        let numbered = (ring.next, Arc::new(event));
        ring.next += 1;
        while ring.past.len() >= ring.keep.max(1) {
            ring.past.pop_front();
        }
        ring.past.push_back(numbered.clone());
        // In order, because the ring is still ours. Nobody may listen, and that is fine.
        let _ = self.0.line.send(numbered);
    }

    /// Whether anybody listens.
    pub(crate) fn has_listeners(&self) -> bool {
        self.0.line.receiver_count() > 0
    }

    /// Listens from now on, or from behind the event that was seen last.
    pub(crate) fn listen(&self, last: Option<&str>) -> Resumed {
        let ring = self.ring();
        // Under the lock no event comes between the past and the line.
        let line = self.0.line.subscribe();
        let Some(last) = last else { return Resumed { lost: false, missed: Vec::new(), line } };
        let seen = self.number(last).filter(|seen| *seen < ring.next);
        let first = ring.past.front().map_or(ring.next, |(number, _)| *number);
        let lost = seen.is_none_or(|seen| seen + 1 < first);
        let seen = seen.unwrap_or(0);
        let missed = ring.past.iter().filter(|(number, _)| *number > seen).cloned().collect();
        Resumed { lost, missed, line }
    }

    /// How an event is named to listeners.
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
    fn who_comes_back_gets_what_was_missed_and_nothing_twice() {
        let feed = Feed::default();
        (1..=5).for_each(|n| publish(&feed, n));
        let mut back = feed.listen(Some(&feed.id(3)));
        assert_eq!((back.lost, attempts(&back.missed)), (false, vec![4, 5]));
        publish(&feed, 6);
        assert_eq!(back.line.try_recv().unwrap().0, 6);
        assert!(back.line.try_recv().is_err());
        let current = feed.listen(Some(&feed.id(6)));
        assert_eq!((current.lost, current.missed.len()), (false, 0));
    }

    #[test]
    fn a_gap_is_told() {
        // I7
        let feed = Feed::default();
        feed.keep(2);
        (1..=5).for_each(|n| publish(&feed, n));
        let late = feed.listen(Some(&feed.id(2)));
        assert_eq!((late.lost, attempts(&late.missed)), (true, vec![4, 5]));
        assert!(!feed.listen(Some(&feed.id(3))).lost, "the next one is still there");
        for foreign in ["1-3", "", "-", "x", &feed.id(99)] {
            assert!(feed.listen(Some(foreign)).lost, "{foreign}");
        }
        let fresh = feed.listen(None);
        assert_eq!((fresh.lost, fresh.missed.len()), (false, 0));
    }
}
