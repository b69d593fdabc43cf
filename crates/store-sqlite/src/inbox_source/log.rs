//! The producer side of an inbox.

use std::sync::Arc;

use async_trait::async_trait;
use lazaret_core::ConsumerName;
use lazaret_core::source::{Backlog, Ingest, NewMessage, Posted};
use lazaret_core::store::Result;

use super::options::InboxOptions;
use super::posts::{OPERATION, Posts};
use super::wakeups::Wakeup;
use crate::store::SqliteStore;
use crate::write_cache::inboxes::InboxNumbers;

/// The inbox of a consumer: producers post messages here, and its [`source`](Self::source) delivers them.
///
/// ```
/// use lazaret_core::source::{Ingest, NewMessage, Source, SourceEvent};
/// use lazaret_store_sqlite::{InboxOptions, Options, Posted, SqliteStore};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("lazaret.db");
/// let store = SqliteStore::open(&path, Options::default()).unwrap();
/// let inbox = store.inbox_log("orders", InboxOptions::default());
/// let message =
///     NewMessage { id: Some("evt-1".into()), payload: Some("{}".into()), ..NewMessage::default() };
/// let posted = inbox.post(vec![message.clone()]).await.unwrap();
/// assert!(matches!(&posted[0], Posted::Taken { position, .. } if position.offset == 0));
///
/// // After a lost response, post again: the message is not taken twice.
/// let again = inbox.post(vec![message]).await.unwrap();
/// assert!(matches!(&again[0], Posted::Known { position, .. } if position.offset == 0));
///
/// let mut source = inbox.source();
/// assert!(matches!(source.next().await.unwrap(), SourceEvent::Assigned(_)));
/// let SourceEvent::Messages(messages) = source.next().await.unwrap() else { panic!() };
/// assert_eq!(messages[0].id.as_str(), "evt-1");
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct InboxLog {
    pub(super) store: SqliteStore,
    pub(super) consumer: ConsumerName,
    pub(super) options: InboxOptions,
    pub(super) wakeup: Arc<Wakeup>,
}

impl SqliteStore {
    /// The inbox of a consumer. It needs no creation; all handles, here or in another process, refer to the
    /// same one.
    pub fn inbox_log(&self, consumer: impl Into<ConsumerName>, options: InboxOptions) -> InboxLog {
        let consumer = consumer.into();
        let wakeup = self.wakeups().of(&consumer);
        InboxLog { store: self.clone(), consumer, options, wakeup }
    }
}

#[async_trait]
impl Ingest for InboxLog {
    /// Concurrent posts share one write to the disk. After an error with unknown outcome, the messages may have been taken: with
    /// ids it is safe to post them again.
    async fn post(&self, messages: Vec<NewMessage>) -> Result<Vec<Posted>> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let posts = Posts::new(&self.consumer, &self.options, messages)?;
        if posts.has_ids() {
            self.store.create_digest_key().await?;
        }
        let _admitted = self.store.admit(OPERATION, posts.to_write()).await?;
        let (answers, next) = self.store.record(posts).await?;
        self.wakeup.seen(next);
        self.wakeup.notify.notify_waiters();
        Ok(answers)
    }

    async fn backlog(&self) -> Result<Backlog> {
        let consumer = self.consumer.clone();
        let numbers =
            self.store.ask("backlog", move |view| InboxNumbers::read(view.connection, &consumer)).await?;
        Ok(numbers.map_or_else(Backlog::default, |numbers| Backlog {
            messages: numbers.messages.unsigned_abs(),
            bytes: numbers.bytes.unsigned_abs(),
        }))
    }
}
