//! Opens the store, and shows it from all its sides.

use std::sync::Arc;

use lazaret_config::StoreAt;
use lazaret_core::store::{Checkpoints, Dedupe, Store};
use lazaret_memory::MemoryStore;

use crate::error::Error;

/// What the copies of dead letters need: the list of ends, and a lock, so that one of several instances works it down.
#[cfg(feature = "kafka")]
pub(crate) trait Outbox: lazaret_core::store::Outbox + lazaret_core::store::Locks {}

#[cfg(feature = "kafka")]
impl<S: lazaret_core::store::Outbox + lazaret_core::store::Locks> Outbox for S {}

/// One store, by what it is used for.
#[derive(Clone)]
pub(crate) struct Stores {
    pub(crate) letters: Arc<dyn Store>,
    pub(crate) checkpoints: Arc<dyn Checkpoints>,
    /// The idempotent receiver.
    pub(crate) dedupe: Arc<dyn Dedupe>,
    /// Letters that ended, for those who copy them elsewhere.
    #[cfg(feature = "kafka")]
    pub(crate) outbox: Arc<dyn Outbox>,
    /// The same, where the inbox that is a source is kept.
    #[cfg(feature = "sqlite")]
    pub(crate) sqlite: Option<lazaret_store_sqlite::SqliteStore>,
}

impl Stores {
    pub(crate) async fn open(at: &StoreAt) -> Result<Self, Error> {
        match at {
            StoreAt::Memory => Ok(Self::in_memory()),
            #[cfg(feature = "sqlite")]
            StoreAt::Sqlite(path) => Self::in_file(path.clone()).await,
            other => Err(Error::NoSuchStore(other.kind())),
        }
    }

    fn in_memory() -> Self {
        let store = Arc::new(MemoryStore::default());
        Self {
            letters: store.clone(),
            checkpoints: store.clone(),
            #[cfg(feature = "kafka")]
            outbox: store.clone(),
            dedupe: store,
            #[cfg(feature = "sqlite")]
            sqlite: None,
        }
    }

    #[cfg(feature = "sqlite")]
    async fn in_file(path: String) -> Result<Self, Error> {
        use lazaret_store_sqlite::{Options, SqliteStore};
        // Opening touches the disk, and may bring an old file to the current format.
        let opened = tokio::task::spawn_blocking(move || SqliteStore::open(path, Options::default()));
        let store = opened.await.map_err(|lost| Error::Panicked(lost.to_string()))??;
        let shared = Arc::new(store.clone());
        Ok(Self {
            letters: shared.clone(),
            checkpoints: shared.clone(),
            #[cfg(feature = "kafka")]
            outbox: shared.clone(),
            dedupe: shared,
            sqlite: Some(store),
        })
    }

    /// Closes the store, when nobody needs it any more: a copy of its one file is then a copy of everything.
    pub(crate) async fn close(&self) {
        #[cfg(feature = "sqlite")]
        if let Some(store) = &self.sqlite
            && let Err(error) = store.close().await
        {
            // Nothing is lost: the next opening brings in what stands in the logs.
            tracing::warn!(%error, "the store's file does not hold everything yet: its logs belong to it");
        }
    }

    /// The inbox of a consumer; `None` where the store has none.
    #[cfg(feature = "sqlite")]
    pub(crate) fn inbox(&self, consumer: &str) -> Option<lazaret_store_sqlite::InboxLog> {
        let options = lazaret_store_sqlite::InboxOptions::default();
        self.sqlite.as_ref().map(|store| store.inbox_log(consumer, options))
    }
}
