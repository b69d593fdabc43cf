//! The side of an inbox where messages are posted.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::ConsumerName;
use lazaret_core::source::{NewMessage, Posted};
use lazaret_core::store::Result;

use super::bells::Bell;
use super::posts::Posts;
use super::source::InboxSource;
use crate::store::SqliteStore;
use crate::write_cache::inboxes::InboxNumbers;

/// How an inbox behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxOptions {
    /// How long the id of a message is remembered after the message was consumed. The same id posted within that time is
    /// not taken again.
    pub window: Duration,
    /// How many messages may wait to be consumed.
    pub max_messages: u64,
    /// How many bytes they may have, all in all. A single message with more is never taken.
    pub max_bytes: u64,
    /// How many messages the source gives at once, at least one.
    pub batch: usize,
    /// How often the source looks for what other processes have posted. What this process posts, it sees at once.
    pub poll: Duration,
}

impl Default for InboxOptions {
    /// Ids for seven days, a million messages, 4 GiB; 512 messages at once, two looks a second.
    fn default() -> Self {
        Self {
            window: Duration::from_secs(7 * 24 * 3600),
            max_messages: 1_000_000,
            max_bytes: 4 * 1024 * 1024 * 1024,
            batch: 512,
            poll: Duration::from_millis(500),
        }
    }
}

/// How much waits in an inbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// How many messages are not consumed.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The inbox of a consumer: messages are posted here, and its [`source`](Self::source) delivers them.
///
/// ```
/// use lazaret_core::source::{NewMessage, Source, SourceEvent};
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
/// // Whoever got no answer posts it again, and it is not taken twice.
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
    pub(super) bell: Arc<Bell>,
}

impl SqliteStore {
    /// The inbox of a consumer. It is there without being made; all who ask for it, here or in another process, mean the
    /// same one.
    pub fn inbox_log(&self, consumer: impl Into<ConsumerName>, options: InboxOptions) -> InboxLog {
        let consumer = consumer.into();
        let bell = self.bells().of(&consumer);
        InboxLog { store: self.clone(), consumer, options, bell }
    }
}

impl InboxLog {
    /// Posts messages, in order. When this returns, those that were taken are durable. Posts that come at the same time
    /// share one write to the disk.
    ///
    /// # Errors
    /// When the store cannot take them: none was taken, or, if the error says so, maybe all. With ids it is safe to post
    /// them again.
    pub async fn post(&self, messages: Vec<NewMessage>) -> Result<Vec<Posted>> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let (answers, next) = self.store.record(Posts::new(&self.consumer, &self.options, messages)?).await?;
        self.bell.seen(next);
        self.bell.rung.notify_waiters();
        Ok(answers)
    }

    /// How much waits to be consumed. What was delivered and is not committed counts.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn backlog(&self) -> Result<Backlog> {
        let consumer = self.consumer.clone();
        let facts =
            self.store.ask("backlog", move |view| InboxNumbers::read(view.connection, &consumer)).await?;
        Ok(facts.map_or_else(Backlog::default, |facts| Backlog {
            messages: facts.messages.unsigned_abs(),
            bytes: facts.bytes.unsigned_abs(),
        }))
    }

    /// The source of a consumer that reads this inbox.
    pub fn source(&self) -> InboxSource {
        InboxSource::new(self.clone())
    }
}
