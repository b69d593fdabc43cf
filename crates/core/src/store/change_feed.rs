//! Notifications about changes in a store, so that what one process does is seen by the others before they look for it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};

use crate::message::{ConsumerName, QueueName};

/// Something in a store that can change, and that others wait for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Topic {
    /// A sequence of this queue may be due earlier than it was.
    Due(QueueName),
    /// Pauses of this consumer.
    Pauses(ConsumerName),
    /// Operations that were begun or commanded.
    Operations,
    /// The inbox of this consumer.
    Inbox(ConsumerName),
}

/// The side of a store that publishes changes to the subscribers of this process. Clones share it.
///
/// Notifications are hints. Whoever subscribes must also look at the store from time to time, because any notification can
/// be lost.
///
/// ```
/// use lazaret_core::store::{ChangeFeed, Topic};
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let feed = ChangeFeed::default();
/// let mut changes = feed.subscribe(vec![Topic::Operations]);
/// feed.publish(&Topic::Operations);
/// feed.publish(&Topic::Operations);
/// // Completes once for both.
/// changes.changed().await;
/// # });
/// ```
#[derive(Clone, Default)]
pub struct ChangeFeed {
    subscribers: Arc<Mutex<Vec<Subscriber>>>,
}

struct Subscriber {
    topics: BTreeSet<Topic>,
    slot: Weak<Slot>,
}

/// What was published to one subscriber and not seen yet.
#[derive(Default)]
struct Slot(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    changed: bool,
    waker: Option<Waker>,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self) {
        let mut pending = self.lock();
        pending.changed = true;
        let waker = pending.waker.take();
        drop(pending);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl ChangeFeed {
    /// Wakes the subscribers of this topic.
    pub fn publish(&self, topic: &Topic) {
        self.wake(|topics| topics.contains(topic));
    }

    /// Wakes all subscribers: notifications may have been lost.
    pub fn publish_all(&self) {
        self.wake(|_| true);
    }

    fn wake(&self, concerns: impl Fn(&BTreeSet<Topic>) -> bool) {
        let mut subscribers = self.lock();
        subscribers.retain(|subscriber| subscriber.slot.strong_count() > 0);
        let slots: Vec<Arc<Slot>> = subscribers
            .iter()
            .filter(|subscriber| concerns(&subscriber.topics))
            .filter_map(|subscriber| subscriber.slot.upgrade())
            .collect();
        // A waker runs foreign code.
        drop(subscribers);
        slots.iter().for_each(|slot| slot.set());
    }

    /// Subscribes to topics from now on.
    pub fn subscribe(&self, topics: Vec<Topic>) -> Changes {
        let slot = Arc::new(Slot::default());
        let subscriber = Subscriber { topics: topics.into_iter().collect(), slot: Arc::downgrade(&slot) };
        let mut subscribers = self.lock();
        subscribers.retain(|subscriber| subscriber.slot.strong_count() > 0);
        subscribers.push(subscriber);
        Changes { slot: Some(slot) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Subscriber>> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ChangeFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeFeed").field("subscribers", &self.lock().len()).finish()
    }
}

/// A subscription to changes of a store.
#[derive(Default)]
pub struct Changes {
    slot: Option<Arc<Slot>>,
}

impl Changes {
    /// A subscription to a store that sends no notifications.
    pub const fn never() -> Self {
        Self { slot: None }
    }

    /// Waits until something was published since this last completed, or since the subscription. Any number of notifications
    /// count as one. Cancellation safe.
    pub async fn changed(&mut self) {
        std::future::poll_fn(|context| {
            let Some(slot) = &self.slot else { return Poll::Pending };
            let mut pending = slot.lock();
            if std::mem::take(&mut pending.changed) {
                return Poll::Ready(());
            }
            pending.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("subscribed", &self.slot.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn due(queue: &str) -> Topic {
        Topic::Due(QueueName::of(queue, queue))
    }

    async fn is_changed(changes: &mut Changes) -> bool {
        tokio::time::timeout(Duration::ZERO, changes.changed()).await.is_ok()
    }

    #[tokio::test]
    async fn only_subscribers_of_a_topic_are_woken_and_once_for_many_changes() {
        let feed = ChangeFeed::default();
        let mut both = feed.subscribe(vec![due("a"), Topic::Operations]);
        let mut other = feed.subscribe(vec![due("b")]);
        for _ in 0..3 {
            feed.publish(&due("a"));
        }
        assert!(is_changed(&mut both).await && !is_changed(&mut both).await);
        assert!(!is_changed(&mut other).await);
        feed.publish_all();
        assert!(is_changed(&mut both).await && is_changed(&mut other).await);
        assert!(!is_changed(&mut Changes::never()).await);
    }

    #[tokio::test]
    async fn a_waiting_subscriber_is_woken() {
        let feed = ChangeFeed::default();
        let mut changes = feed.subscribe(vec![Topic::Operations]);
        let waiting = tokio::spawn(async move { changes.changed().await });
        tokio::task::yield_now().await;
        feed.publish(&Topic::Operations);
        waiting.await.unwrap();
    }

    #[test]
    fn subscribers_that_are_gone_are_forgotten() {
        // I7
        let feed = ChangeFeed::default();
        drop((0..100).map(|_| feed.subscribe(vec![Topic::Operations])).collect::<Vec<_>>());
        let _kept = feed.subscribe(vec![Topic::Operations]);
        assert_eq!(feed.lock().len(), 1);
    }
}
