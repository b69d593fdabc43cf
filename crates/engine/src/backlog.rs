//! The retry backlog of one consumer: the letters that wait for a retry, also counted between two reads
//! of the store (I7).
//!
//! The store is read at intervals. Between two reads, the consumer adds the letters that it hands off
//! itself. At the limit it reads again before it refuses a letter, because retries succeed meanwhile.
//! Letters of other processes count from the next read on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_core::policy::BudgetPolicy;
use lazaret_core::store::{self, Store};
use lazaret_core::{LetterState, QueueName};
use tokio::sync::Notify;

use crate::component::Component;
use crate::gate::Gate;
use crate::store_retry::{Abandoned, retry_until_ok};

/// Counts the letters of one consumer that wait for a retry, up to their limit.
#[derive(Debug)]
pub(crate) struct RetryBacklog {
    policy: BudgetPolicy,
    queues: Vec<QueueName>,
    size: Mutex<Size>,
    /// Held by the message that reads the store because the backlog is full.
    reading: tokio::sync::Mutex<()>,
    /// Notified when no letter is entering the backlog.
    settled: Notify,
    gate: Arc<Gate>,
}

/// The size of the backlog.
#[derive(Debug, Default)]
struct Size {
    /// The number of letters at the last read; `None` before the first read.
    stored: Option<u64>,
    /// The number of letters that are being handed off.
    entering: u64,
    /// The number of letters whose hand-off has ended since the start.
    entered: u64,
    /// The value of `entered` at the start of the last read.
    known: u64,
    /// `true` if the backlog has reached its limit: no more messages are read.
    full: bool,
}

impl Size {
    /// Returns the highest possible number of letters, or `None` before the first read.
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

    /// Adds a letter. Returns `None` if the backlog is full according to the store.
    pub(crate) async fn enter(&self, component: &Component) -> Result<Option<Entering<'_>>, Abandoned> {
        match self.try_enter() {
            Some(entering) => Ok(Some(entering)),
            // Boxed because it is rare and would enlarge the future of each message in flight.
            None => Box::pin(self.enter_after_reading(component)).await,
        }
    }

    async fn enter_after_reading(&self, component: &Component) -> Result<Option<Entering<'_>>, Abandoned> {
        let _reading = self.reading.lock().await;
        if let Some(entering) = self.try_enter() {
            return Ok(Some(entering));
        }
        // A letter that is being handed off may already be in the store and would count twice.
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

    /// Holds the source at the limit, and releases it when there is room again.
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
        // The numbers are only assigned, so a panic elsewhere cannot leave them inconsistent.
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A letter that enters the backlog. When this value is dropped, the letter counts as entered, whether
/// or not the store accepted it. The next read corrects the number.
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
