//! The retry backlog of one consumer: the letters that wait for a retry, counted between two readings of the store, too (I7).
//!
//! The store is read at intervals. From one reading to the next, the consumer adds the letters that it hands off itself. At the
//! limit it reads again before it refuses a letter, because retries succeed meanwhile. Letters of other processes count from the
//! next reading on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_core::policy::BudgetPolicy;
use lazaret_core::store::{self, Store};
use lazaret_core::{LetterState, QueueName};
use tokio::sync::Notify;

use crate::component::Component;
use crate::gate::Gate;
use crate::store_retry::{Abandoned, retry_until_ok};

/// The letters of one consumer that wait for a retry, and their limit.
#[derive(Debug)]
pub(crate) struct RetryBacklog {
    policy: BudgetPolicy,
    queues: Vec<QueueName>,
    size: Mutex<Size>,
    /// Taken by the message that reads the store because the backlog is full.
    reading: tokio::sync::Mutex<()>,
    /// No letter enters the backlog.
    settled: Notify,
    gate: Arc<Gate>,
}

/// The size of the backlog.
#[derive(Debug, Default)]
struct Size {
    /// The number of letters at the last reading; `None` before the first one.
    stored: Option<u64>,
    /// The letters that are being handed off.
    entering: u64,
    /// The letters whose hand-off has ended, since the start.
    entered: u64,
    /// The number of these when the last reading began.
    known: u64,
    /// It has reached its limit: no more messages are read.
    full: bool,
}

impl Size {
    /// The highest possible number of letters; `None` while nothing is known.
    fn most(&self) -> Option<u64> {
        let since = self.entered.saturating_sub(self.known);
        self.stored.map(|stored| stored.saturating_add(self.entering).saturating_add(since))
    }
}

impl RetryBacklog {
    pub(crate) fn new(policy: BudgetPolicy, queues: Vec<QueueName>, gate: Arc<Gate>) -> Self {
        let (size, reading, settled) = Default::default();
        Self { policy, queues, size, reading, settled, gate }
    }

    /// Returns `true` while the backlog has reached its limit.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().full
    }

    /// Adds a letter, unless the backlog is full or its size is unknown.
    pub(crate) fn try_enter(&self) -> Option<Entering<'_>> {
        if self.policy.backlog.is_none() {
            return Some(Entering(None));
        }
        let mut size = self.lock();
        if size.most().is_none_or(|most| self.policy.backlog_full(most)) {
            return None;
        }
        size.entering += 1;
        self.report(&mut size);
        Some(Entering(Some(self)))
    }

    /// Adds a letter. `None` when the backlog is full, as the store says.
    pub(crate) async fn enter(&self, component: &Component) -> Result<Option<Entering<'_>>, Abandoned> {
        match self.try_enter() {
            Some(entering) => Ok(Some(entering)),
            // Boxed: it is rare, and each message in flight has room for it.
            None => Box::pin(self.enter_after_reading(component)).await,
        }
    }

    async fn enter_after_reading(&self, component: &Component) -> Result<Option<Entering<'_>>, Abandoned> {
        let _reading = self.reading.lock().await;
        if let Some(entering) = self.try_enter() {
            return Ok(Some(entering));
        }
        // A letter that is being handed off may be in the store already, and would count twice.
        while self.lock().entering > 0 {
            self.settled.notified().await;
        }
        retry_until_ok(component, || self.read(&*component.store)).await?;
        Ok(self.try_enter())
    }

    /// Counts the letters in the store, if there is a limit.
    pub(crate) async fn read(&self, store: &dyn Store) -> store::Result<()> {
        if self.policy.backlog.is_none() {
            return Ok(());
        }
        let known = self.lock().entered;
        let mut stored = 0;
        for queue in &self.queues {
            stored += store.counts(queue).await?.of(LetterState::Retrying);
        }
        let mut size = self.lock();
        (size.stored, size.known) = (Some(stored), known);
        self.report(&mut size);
        Ok(())
    }

    /// Holds the source back when the limit is reached, and lets it go on when there is room again.
    fn report(&self, size: &mut Size) {
        let backlog = size.most().unwrap_or_default();
        let full = self.policy.backlog_full(backlog);
        if std::mem::replace(&mut size.full, full) == full {
            return;
        }
        let consumer = self.queues.first().map_or("", QueueName::consumer);
        match full {
            true => tracing::warn!(consumer, backlog, "retry backlog full, reading paused"),
            false => tracing::info!(consumer, backlog, "retry backlog below its limit, reading resumed"),
        }
        self.gate.notify_watchers();
    }

    fn lock(&self) -> MutexGuard<'_, Size> {
        // Numbers are only assigned: a panic elsewhere cannot leave them half done.
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A letter that enters the backlog. It counts as entered when this is dropped, whether the store took it or not: the next
/// reading tells.
#[derive(Debug)]
pub(crate) struct Entering<'a>(Option<&'a RetryBacklog>);

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        let Some(backlog) = self.0 else { return };
        let mut size = backlog.lock();
        size.entering -= 1;
        size.entered += 1;
        if size.entering == 0 {
            backlog.settled.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::store::{HandOff, LetterStore, Limits, Placement};
    use lazaret_core::{Letter, Message, Position, SystemClock, Timestamp};
    use lazaret_memory::MemoryStore;

    use super::*;

    fn backlog(limit: Option<u64>) -> RetryBacklog {
        let policy = BudgetPolicy { backlog: limit, ..BudgetPolicy::default() };
        RetryBacklog::new(policy, vec![QueueName::of("shop", "shop")], Arc::new(Gate::new(None)))
    }

    async fn hand_off(store: &MemoryStore, id: &str) {
        let (queue, message) =
            (QueueName::of("shop", "shop"), Message::new(id, "orders", Position::new(0, 0)));
        let mut letter = Letter::new(queue.clone(), id.into(), message.into(), Timestamp::UNIX_EPOCH);
        (letter.state, letter.due_at) = (LetterState::Retrying, Some(Timestamp::UNIX_EPOCH));
        let item = HandOff { letter, placement: Placement::Open, grant: None };
        store.hand_off(&queue, &Limits::NONE, vec![item]).await.unwrap().pop().unwrap().unwrap();
    }

    #[tokio::test]
    async fn letters_handed_off_since_the_last_reading_count() {
        // I7
        let (backlog, store) = (backlog(Some(3)), MemoryStore::new(Arc::new(SystemClock)));
        assert!(backlog.try_enter().is_none(), "nothing is known before the first reading");
        hand_off(&store, "a").await;
        backlog.read(&store).await.unwrap();
        let (first, second) = (backlog.try_enter().unwrap(), backlog.try_enter().unwrap());
        assert!(backlog.is_full() && backlog.try_enter().is_none());
        drop(first);
        assert!(backlog.try_enter().is_none(), "it is in the store now");
        backlog.read(&store).await.unwrap();
        assert!(!backlog.is_full(), "the store has not got it");
        hand_off(&store, "b").await;
        backlog.read(&store).await.unwrap();
        assert!(backlog.is_full(), "two are stored, one is being handed off");
        drop(second);
        backlog.read(&store).await.unwrap();
        assert!(backlog.try_enter().is_some());
    }

    #[tokio::test]
    async fn without_a_limit_nothing_is_counted() {
        let backlog = backlog(None);
        assert!(backlog.try_enter().is_some() && !backlog.is_full());
    }
}
