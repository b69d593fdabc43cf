//! Opens the store, and exposes its traits.

use std::sync::Arc;

use lazaret_config::{Consumer as ConsumerConfig, Encryption, StoreLocation};
#[cfg(feature = "sqlite")]
use lazaret_core::policy::CapacityPolicy;
use lazaret_core::store::{Capabilities, Checkpoints, Dedupe, KeyValue, Store};
use lazaret_memory::MemoryStore;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use lazaret_sealing::SealedInbox;
use lazaret_sealing::{KeyRing, PlainStore, SealedStore};
use lazaret_server::Builder;

use super::encryption;
use crate::error::Error;

/// The traits that copies of dead letters use: the outbox, a lock, so that one of several instances works on it, and letters.
#[cfg(any(feature = "kafka", feature = "mongodb"))]
pub(crate) trait Outbox:
    lazaret_core::store::Outbox + lazaret_core::store::Locks + lazaret_core::store::LetterStore
{
}

#[cfg(any(feature = "kafka", feature = "mongodb"))]
impl<S> Outbox for S where
    S: lazaret_core::store::Outbox + lazaret_core::store::Locks + lazaret_core::store::LetterStore
{
}

/// The traits that an adoption uses: letters, and the checkpoint of its progress.
#[cfg(any(feature = "kafka", feature = "mongodb", feature = "postgres"))]
pub(crate) trait AdoptionStore: lazaret_core::store::LetterStore + Checkpoints {}

#[cfg(any(feature = "kafka", feature = "mongodb", feature = "postgres"))]
impl<S: lazaret_core::store::LetterStore + Checkpoints> AdoptionStore for S {}

/// One store, by trait.
#[derive(Clone)]
pub(crate) struct Stores {
    pub(crate) letters: Arc<dyn Store>,
    pub(crate) checkpoints: Arc<dyn Checkpoints>,
    /// The duplicate filter.
    pub(crate) dedupe: Arc<dyn Dedupe>,
    /// The outbox of letters that ended, for their copies; `None` if the store has none.
    #[cfg(any(feature = "kafka", feature = "mongodb"))]
    pub(crate) outbox: Option<Arc<dyn Outbox>>,
    /// Values with compare-and-set: reports of instances, positions and leases of change streams.
    pub(crate) values: Arc<dyn KeyValue>,
    /// The data keys. Without encryption there are none, and those that another instance adds are recognized.
    pub(crate) keys: Arc<KeyRing>,
    /// Letters and checkpoints, for adoptions.
    #[cfg(any(feature = "kafka", feature = "mongodb", feature = "postgres"))]
    pub(crate) adoption: Arc<dyn AdoptionStore>,
    /// The id of the store, which Kafka keeps with the positions.
    #[cfg(feature = "kafka")]
    pub(crate) id: Arc<str>,
    /// Ids that no other process uses.
    #[cfg(feature = "kafka")]
    pub(crate) own_ids: super::member::OwnIds,
    /// The SQLite store, which also has inboxes.
    #[cfg(feature = "sqlite")]
    pub(crate) sqlite: Option<lazaret_store_sqlite::SqliteStore>,
    /// The PostgreSQL store, which also has inboxes.
    #[cfg(feature = "postgres")]
    pub(crate) postgres: Option<lazaret_store_postgres::PostgresStore>,
    /// The URI of the store, if it is in MongoDB: copies of dead letters may be in its database.
    #[cfg(feature = "mongodb")]
    pub(crate) mongodb_uri: Option<Arc<str>>,
}

/// Returns the capabilities of the store at this location, without opening it; `None` if this build does not support it.
pub(crate) fn store_capabilities(at: &StoreLocation) -> Option<Capabilities> {
    match at {
        StoreLocation::Memory => Some(MemoryStore::CAPABILITIES),
        #[cfg(feature = "sqlite")]
        StoreLocation::Sqlite(_) => Some(lazaret_store_sqlite::SqliteStore::CAPABILITIES),
        #[cfg(feature = "mongodb")]
        StoreLocation::Mongodb(_) => Some(lazaret_store_mongodb::MongoStore::CAPABILITIES),
        #[cfg(feature = "postgres")]
        StoreLocation::Postgres(_) => Some(lazaret_store_postgres::PostgresStore::CAPABILITIES),
        _ => None,
    }
}

impl Stores {
    /// Opens a store. One that holds encrypted values is refused without the keys.
    pub(crate) async fn open(at: &StoreLocation, encryption: Option<&Encryption>) -> Result<Self, Error> {
        match at {
            StoreLocation::Memory => Self::over(Arc::new(MemoryStore::default()), encryption).await,
            #[cfg(feature = "sqlite")]
            StoreLocation::Sqlite(path) => Self::in_file(path.clone(), encryption).await,
            #[cfg(feature = "mongodb")]
            StoreLocation::Mongodb(uri) => Self::in_mongodb(uri, encryption).await,
            #[cfg(feature = "postgres")]
            StoreLocation::Postgres(dsn) => Self::in_postgres(dsn, encryption).await,
            other => Err(Error::NoSuchStore(other.kind())),
        }
    }

    /// The traits of a store. What holds letters goes through its encryption, or, without keys, through what recognizes the encryption of
    /// other instances; all other values hold no content.
    async fn over<S>(store: Arc<S>, encryption: Option<&Encryption>) -> Result<Self, Error>
    where
        S: Store + KeyValue + lazaret_core::store::Outbox,
    {
        match encryption {
            Some(config) => {
                let keys = encryption::keys(config).await?;
                let sealed = Arc::new(SealedStore::open(store.clone(), keys).await?);
                let keys = sealed.keys().clone();
                Ok(Self::through(sealed, store, keys))
            }
            None => {
                KeyRing::require_none(&*store).await?;
                let plain = Arc::new(PlainStore::new(store.clone()));
                let keys = plain.keys().clone();
                Ok(Self::through(plain, store, keys))
            }
        }
    }

    fn through<L, S>(letters: Arc<L>, values: Arc<S>, keys: Arc<KeyRing>) -> Self
    where
        L: Store + KeyValue + lazaret_core::store::Outbox,
        S: KeyValue,
    {
        Self {
            checkpoints: values.clone(),
            dedupe: values.clone(),
            values,
            keys,
            #[cfg(any(feature = "kafka", feature = "mongodb"))]
            outbox: Some(letters.clone()),
            #[cfg(any(feature = "kafka", feature = "mongodb", feature = "postgres"))]
            adoption: letters.clone(),
            letters,
            #[cfg(feature = "kafka")]
            id: lazaret_source_kafka::MEMORY_STORE.into(),
            #[cfg(feature = "kafka")]
            own_ids: super::member::OwnIds::default(),
            #[cfg(feature = "sqlite")]
            sqlite: None,
            #[cfg(feature = "postgres")]
            postgres: None,
            #[cfg(feature = "mongodb")]
            mongodb_uri: None,
        }
    }

    /// The same store with the id that it keeps.
    #[cfg(all(feature = "kafka", any(feature = "sqlite", feature = "mongodb", feature = "postgres")))]
    async fn with_id(self) -> Result<Self, Error> {
        let id = lazaret_core::store::store_id(&*self.values, &new_id()).await?.into();
        Ok(Self { id, ..self })
    }

    /// Without Kafka, nothing keeps the id of a store.
    #[cfg(all(not(feature = "kafka"), any(feature = "sqlite", feature = "mongodb", feature = "postgres")))]
    async fn with_id(self) -> Result<Self, Error> {
        Ok(self)
    }

    #[cfg(feature = "sqlite")]
    async fn in_file(path: String, encryption: Option<&Encryption>) -> Result<Self, Error> {
        use lazaret_store_sqlite::{Options, SqliteStore};
        // Opening blocks on the disk, and may migrate an old file.
        let opened = tokio::task::spawn_blocking(move || SqliteStore::open(path, Options::default()));
        let store = opened.await.map_err(|error| Error::Panicked(error.to_string()))??;
        let stores = Self::over(Arc::new(store.clone()), encryption).await?.with_id().await?;
        Ok(Self { sqlite: Some(store), ..stores })
    }

    #[cfg(feature = "mongodb")]
    async fn in_mongodb(uri: &str, encryption: Option<&Encryption>) -> Result<Self, Error> {
        let store = super::mongodb::store(uri).await?;
        let stores = Self::over(Arc::new(store), encryption).await?.with_id().await?;
        Ok(Self { mongodb_uri: Some(uri.into()), ..stores })
    }

    #[cfg(feature = "postgres")]
    async fn in_postgres(dsn: &str, encryption: Option<&Encryption>) -> Result<Self, Error> {
        let store = super::postgres::store(dsn).await?;
        let stores = Self::over(Arc::new(store.clone()), encryption).await?.with_id().await?;
        Ok(Self { postgres: Some(store), ..stores })
    }

    /// The file of an embedded store.
    #[cfg(feature = "kafka")]
    pub(crate) fn file(&self) -> Option<&std::path::Path> {
        #[cfg(feature = "sqlite")]
        return self.sqlite.as_ref().map(lazaret_store_sqlite::SqliteStore::path);
        #[cfg(not(feature = "sqlite"))]
        None
    }

    /// Closes the store, so that a copy of its file is complete.
    pub(crate) async fn close(&self) {
        #[cfg(feature = "sqlite")]
        if let Some(store) = &self.sqlite
            && let Err(error) = store.close().await
        {
            // Nothing is lost: the next start replays the logs.
            tracing::warn!(%error, "store closed without checkpoint; its log files are part of the store");
        }
    }

    /// Keeps the reserve of an embedded store's disk free of what all consumers, imports, adoptions and posts write together.
    pub(crate) fn keep_free<'a>(&self, consumers: impl Iterator<Item = &'a ConsumerConfig>) {
        #[cfg(feature = "sqlite")]
        if let Some(store) = &self.sqlite {
            store.keep_free(reserve(consumers));
        }
        #[cfg(not(feature = "sqlite"))]
        let _ = consumers;
    }

    /// Adds the inbox of a consumer to the API, if the store has inboxes.
    pub(crate) fn serve_inbox(&self, builder: Builder, config: &ConsumerConfig) -> Builder {
        #[cfg(feature = "sqlite")]
        if let Some(store) = &self.sqlite {
            let options = lazaret_store_sqlite::InboxOptions::default();
            return self.add_inbox(builder, config, store.inbox_log(config.name.as_str(), options));
        }
        #[cfg(feature = "postgres")]
        if let Some(store) = &self.postgres {
            return self.add_inbox(builder, config, super::postgres::inbox(store, config));
        }
        let _ = config;
        builder
    }

    /// Adds an inbox, which encrypts if letters are encrypted.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    fn add_inbox(
        &self,
        builder: Builder,
        config: &ConsumerConfig,
        inbox: impl lazaret_core::source::Ingest,
    ) -> Builder {
        builder.inbox(&config.name, SealedInbox::new(inbox, config.name.as_str(), self.keys.clone()))
    }
}

/// Returns a random id for a new store.
#[cfg(all(feature = "kafka", any(feature = "sqlite", feature = "mongodb", feature = "postgres")))]
fn new_id() -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // The keys of the hasher are random. With a letter in front it is no number in YAML.
    format!("s{:016x}", RandomState::new().build_hasher().finish())
}

/// What everybody leaves free of the disk of an embedded store: the least that a consumer asks for, and nothing if one asks for nothing.
/// Without consumers it is the default.
#[cfg(feature = "sqlite")]
fn reserve<'a>(consumers: impl Iterator<Item = &'a ConsumerConfig>) -> Option<u64> {
    let letters = consumers.filter_map(|consumer| consumer.dead_letter.as_ref());
    let reserves = letters.map(|letters| letters.capacity.min_free);
    reserves.min().unwrap_or(CapacityPolicy::default().min_free)
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use lazaret_config::{NoEnv, check};

    use super::*;

    #[test]
    fn the_reserve_of_a_store_is_the_least_that_a_consumer_asks_for() {
        let of = |min_free: &[&str]| {
            let consumers = min_free.iter().enumerate().map(|(number, min_free)| {
                format!(
                    "  c{number}:\n    source: {{ inbox: {{}} }}\n    handler: {{ command: {{ program: [x] }} }}\n    \
                     dead-letter: {{ min-free: {min_free} }}\n"
                )
            });
            let text = format!("consumers:\n{}", consumers.collect::<Vec<_>>().concat());
            let checked = check("lazaret.yaml", text.as_bytes(), &NoEnv);
            let config = checked.config.unwrap_or_else(|| panic!("{}", checked.diagnostics.plain()));
            reserve(config.consumers.iter())
        };
        assert_eq!(of(&["2GiB", "1MiB"]), Some(1 << 20));
        assert_eq!(of(&["2GiB", "off"]), None);
        assert_eq!(reserve(std::iter::empty()), CapacityPolicy::default().min_free);
    }
}
