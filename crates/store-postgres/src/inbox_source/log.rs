//! The producer side of an inbox.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use lazaret_core::ConsumerName;
use lazaret_core::source::{Backlog, Ingest, NewMessage, Posted};
use lazaret_core::store::{Changes, DigestKey, LetterStore, Result, Topic, stored_digest_key};
use tokio::sync::OnceCell;

use super::options::InboxOptions;
use super::posts::posts;
use crate::store::PostgresStore;

/// The inbox of a consumer: producers post messages here, through any instance, and the [`source`](Self::source) of one instance
/// delivers them.
///
/// ```no_run
/// use lazaret_core::source::{Ingest, NewMessage};
/// use lazaret_store_postgres::{InboxOptions, PostgresStore, PostgresStoreOptions};
///
/// # async fn post() -> Result<(), lazaret_core::store::StoreError> {
/// let dsn = "postgres://lazaret@db.example/shop";
/// let store = PostgresStore::connect(dsn, PostgresStoreOptions::default()).await?;
/// let inbox = store.inbox_log("orders", InboxOptions::default());
/// let message =
///     NewMessage { id: Some("evt-1".into()), payload: Some("{}".into()), ..NewMessage::default() };
/// inbox.post(vec![message]).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct InboxLog {
    pub(super) store: PostgresStore,
    pub(super) consumer: ConsumerName,
    pub(super) options: InboxOptions,
    shared: Arc<Known>,
}

/// What this process knows about an inbox.
#[derive(Debug, Default)]
struct Known {
    /// Its number, which never changes.
    log: OnceCell<i64>,
    /// The next position, as far as this process has seen.
    next: AtomicU64,
    /// The key of the store for the digests of payloads.
    digest_key: OnceCell<DigestKey>,
}

impl PostgresStore {
    /// The inbox of a consumer. It needs no creation; all handles, here or in another process, refer to the same one.
    pub fn inbox_log(&self, consumer: impl Into<ConsumerName>, options: InboxOptions) -> InboxLog {
        InboxLog { store: self.clone(), consumer: consumer.into(), options, shared: Arc::default() }
    }
}

impl InboxLog {
    /// The number of the inbox, which is created if necessary.
    pub(super) async fn number(&self, operation: &'static str) -> Result<i64> {
        let found = self.shared.log.get_or_try_init(|| self.store.inbox_number(operation, &self.consumer));
        found.await.copied()
    }

    /// Records that the inbox extends at least to this position.
    pub(super) fn seen(&self, next: u64) {
        self.shared.next.fetch_max(next, Ordering::Relaxed);
    }

    /// The next position, as far as this process has seen.
    pub(super) fn next(&self) -> u64 {
        self.shared.next.load(Ordering::Relaxed)
    }

    fn topic(&self) -> Topic {
        Topic::Inbox(self.consumer.clone())
    }

    /// Subscribes to posts, and to the end of the lease of another instance.
    pub(super) fn changes(&self) -> Changes {
        self.store.changes(vec![self.topic()])
    }

    /// Tells the others about a change.
    pub(super) fn publish(&self) {
        self.store.publish(self.topic());
    }
}

#[async_trait]
impl Ingest for InboxLog {
    /// Posts to one inbox are committed one after the other; those of one call together. After an error with unknown outcome, the messages may
    /// have been taken: with ids it is safe to post them again.
    async fn post(&self, messages: Vec<NewMessage>) -> Result<Vec<Posted>> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let key = self.shared.digest_key.get_or_try_init(|| stored_digest_key(&self.store)).await?;
        let posts = posts(messages, key)?;
        let (answers, next) = self.store.post(self, &posts).await?;
        self.seen(next);
        if answers.iter().any(|answer| matches!(answer, Posted::Taken { .. })) {
            self.publish();
        }
        Ok(answers)
    }

    async fn backlog(&self) -> Result<Backlog> {
        self.store.inbox_backlog(&self.consumer).await
    }
}
