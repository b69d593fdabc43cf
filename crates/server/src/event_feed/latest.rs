//! The latest events, for those who look from time to time, such as pages. They are not woken for each event, so that their number
//! costs little, however much happens.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::feed::{Events, Feed};

/// The shortest time between two looks.
const PAUSE: Duration = Duration::from_millis(500);
/// The time between two looks of all followers together: each answers with a load of its page.
const PAUSE_OF_ALL: Duration = Duration::from_millis(200);

/// A follower of the feed, until it is dropped.
pub(crate) struct Latest {
    feed: Feed,
    /// The number of the last event that was looked at.
    seen: u64,
    newest: watch::Receiver<u64>,
    /// When to look again.
    next: Instant,
}

impl Latest {
    pub(super) fn new(feed: Feed, seen: u64, newest: watch::Receiver<u64>) -> Self {
        Self { feed, seen, newest, next: Instant::now() }
    }

    /// Waits for events, and returns those since the last look. At most two looks a second, and the fewer the more followers there are.
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn look(&mut self) -> Events {
        let seen = self.seen;
        // An error is not possible: the feed, which is kept here, has the sender.
        _ = self.newest.wait_for(|newest| *newest > seen).await;
        tokio::time::sleep_until(self.next).await;
        let followers = u32::try_from(self.feed.followers()).unwrap_or(u32::MAX);
        self.next = Instant::now() + PAUSE.max(PAUSE_OF_ALL.saturating_mul(followers));
        let (events, newest) = self.feed.after(self.seen);
        self.seen = newest;
        events
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use lazaret_api::{Event, EventKind};

    use super::*;

    fn publish(feed: &Feed, attempt: u32) {
        let event = Event::new(EventKind::Failed, Timestamp::UNIX_EPOCH);
        feed.publish(Event { attempt: Some(attempt), ..event });
    }

    fn attempts(events: &Events) -> Vec<u32> {
        events.events.iter().filter_map(|published| published.event.attempt).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_looks_at_once_and_then_at_all_that_happened() {
        let feed = Feed::default();
        publish(&feed, 1);
        let (missed, mut latest) = feed.follow(None);
        assert!(!missed.lost && missed.events.is_empty());
        publish(&feed, 2);
        let started = Instant::now();
        assert_eq!(attempts(&latest.look().await), [2]);
        assert!(started.elapsed() < PAUSE);
        publish(&feed, 3);
        publish(&feed, 4);
        assert_eq!(attempts(&latest.look().await), [3, 4]);
        assert!(started.elapsed() >= PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_is_given_up_loses_nothing() {
        let feed = Feed::default();
        let mut latest = feed.follow(None).1;
        publish(&feed, 1);
        latest.look().await;
        publish(&feed, 2);
        assert!(tokio::time::timeout(PAUSE / 2, latest.look()).await.is_err());
        assert_eq!(attempts(&latest.look().await), [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_who_missed_too_much_is_told() {
        // I7
        let feed = Feed::default();
        feed.set_capacity(2);
        let mut latest = feed.follow(None).1;
        (1..=5).for_each(|number| publish(&feed, number));
        let events = latest.look().await;
        assert_eq!((events.lost, attempts(&events)), (true, vec![4, 5]));
        publish(&feed, 6);
        let events = latest.look().await;
        assert_eq!((events.lost, attempts(&events)), (false, vec![6]));
    }

    /// The looks of one follower in ten seconds, while something happens all the time.
    async fn looks_in_ten_seconds(feed: &Feed) -> usize {
        let mut latest = feed.follow(None).1;
        let events = feed.clone();
        let publishing = tokio::spawn(async move {
            for number in 0..1100 {
                publish(&events, number);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let end = Instant::now() + Duration::from_secs(10);
        let mut looks = 0;
        while tokio::time::timeout_at(end, latest.look()).await.is_ok() {
            looks += 1;
        }
        publishing.abort();
        looks
    }

    #[tokio::test(start_paused = true)]
    async fn looks_are_at_least_half_a_second_apart() {
        let looks = looks_in_ten_seconds(&Feed::default()).await;
        assert!((15..=21).contains(&looks), "{looks}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_more_followers_there_are_the_rarer_each_looks() {
        let feed = Feed::default();
        let others: Vec<Latest> = (0..24).map(|_| feed.follow(None).1).collect();
        let looks = looks_in_ten_seconds(&feed).await;
        assert!((2..=3).contains(&looks), "{looks}");
        drop(others);
        assert_eq!(feed.followers(), 0, "nobody is left");
    }
}
