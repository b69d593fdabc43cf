//! The store: connecting, and the check of what is there.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bson::{Document, doc};
use lazaret_core::store::rules::ClockWatch;
use lazaret_core::store::{Capabilities, ErrorKind, ExpiryClock, Result, StoreError};
use lazaret_core::{QueueName, SystemClock, Timestamp};
use mongodb::Client;
use mongodb::options::ClientOptions;

use crate::audit::AppendLines;
use crate::batches::FinishedBatches;
use crate::clock::StoreClock;
use crate::database::{Database, find_one};
use crate::effects::CountGroups;
use crate::error::{reading, writing};
use crate::layout::{Layout, UnknownLayout};
use crate::leases::{Races, Settlements};
use crate::occupancy::Refusal;
use crate::operations::WriteOutcomes;
use crate::options::{DEFAULT_COLLECTION, DEFAULT_DATABASE, FORMER_COLLECTION, MongoStoreOptions};
use crate::together::Line;
use crate::under_way::UnderWay;
use crate::uri::StoreUri;

/// The version of the documents that this store writes. A database with a newer one is refused.
pub const FORMAT_VERSION: i64 = 2;

/// A store in MongoDB. Clones share it.
///
/// Closed letters keep their document, and purged ones their id and state: a redelivered message whose letter was closed must be
/// recognized (I8).
///
/// Numbers end at 2^63: a message with a larger offset is refused as `Invalid`. Times have nanosecond precision between 1677 and 2262;
/// other times of a letter saturate. See the [crate documentation](crate) for an example.
#[derive(Clone)]
pub struct MongoStore {
    shared: Arc<Shared>,
}

struct Shared {
    database: Database,
    layout: Layout,
    clock: StoreClock,
    expiry: ExpiryClock,
    /// How many values were written, so that some of the writes remove expired ones.
    value_writes: AtomicU64,
    watches: Mutex<BTreeMap<QueueName, ClockWatch>>,
    finished_batches: Mutex<FinishedBatches>,
    refusal: Refusal,
    lines: Lines,
    races: Races,
    under_way: UnderWay,
}

/// The callers of this process whose work is done together.
#[derive(Default)]
pub(crate) struct Lines {
    pub(crate) settlements: Line<Settlements>,
    pub(crate) groups: Line<CountGroups>,
    pub(crate) outcomes: Line<WriteOutcomes>,
    pub(crate) audit: Line<AppendLines>,
}

impl MongoStore {
    /// The capabilities of every store of this kind, known before one is opened.
    pub const CAPABILITIES: Capabilities = {
        let mut capabilities = Capabilities::NONE;
        (capabilities.durable, capabilities.shared_by_processes) = (true, true);
        (capabilities.shared_by_machines, capabilities.audit_chain) = (true, true);
        capabilities.outbox = true;
        capabilities
    };

    /// Connects to a server, and opens or creates the store in its database. The parameters `collection` and `layout` of the URI go before
    /// the options of these names.
    ///
    /// # Errors
    /// `Invalid` if the URI cannot be read, if the database has a newer format, or if an index of the server would delete letters;
    /// `Unavailable` if the server cannot be reached; `Denied` if the user may not use the database.
    pub async fn connect(uri: &str, options: MongoStoreOptions) -> Result<Self> {
        let uri = StoreUri::parse(uri);
        if !uri.has_clear_credentials() {
            let context = "special characters of the user and the password in a URI must be percent-encoded";
            return Err(StoreError::not_done(ErrorKind::Invalid, "open", context));
        }
        let StoreUri { driver, collection, layout } = uri;
        let layout = layout.map_or(Ok(options.layout), |name| name.parse());
        let layout = layout.map_err(|unknown: UnknownLayout| {
            StoreError::not_done(ErrorKind::Invalid, "open", unknown.to_string())
        })?;
        let client = ClientOptions::parse(driver.as_str()).await.map_err(reading)?;
        let connections = client.max_pool_size.map_or(options.connections, |size| size as usize);
        let collection = collection.unwrap_or_else(|| options.collection.clone());
        let options = MongoStoreOptions { connections, collection, layout, ..options };
        let named = client.default_database.clone();
        let database = options.database.clone().or(named).unwrap_or_else(|| DEFAULT_DATABASE.to_owned());
        let client = Client::with_options(client).map_err(reading)?;
        Self::with_client(&client, &database, options).await
    }

    /// Opens or creates the store with a client that is there, in this database.
    ///
    /// The store is to have the client for itself. A change stream occupies a connection while it waits for events, so streams of the
    /// same client can leave the store without one.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn with_client(client: &Client, database: &str, options: MongoStoreOptions) -> Result<Self> {
        let store = Self::without_indexes(client, database, options).await?;
        store.create_indexes().await?;
        Ok(store)
    }

    /// Opens the store, as it is.
    pub(crate) async fn without_indexes(
        client: &Client,
        database: &str,
        options: MongoStoreOptions,
    ) -> Result<Self> {
        let store = Self::unchecked(client, database, options);
        store.refuse_ttl_index().await?;
        store.refuse_former_default(client, database).await?;
        store.state_format().await?;
        store.refuse_newer_format().await?;
        Ok(store)
    }

    pub(crate) fn unchecked(client: &Client, database: &str, options: MongoStoreOptions) -> Self {
        let database = Database::new(client, database, &options.collection, options.connections);
        // The clock of the server may be set, so the time between two readings of it is counted by this machine.
        let counting = options.clock.clone().unwrap_or_else(|| Arc::new(SystemClock));
        let shared = Shared {
            database,
            layout: options.layout,
            clock: StoreClock::new(options.clock),
            expiry: ExpiryClock::new(counting),
            value_writes: AtomicU64::default(),
            watches: Mutex::new(BTreeMap::new()),
            finished_batches: Mutex::new(FinishedBatches::default()),
            refusal: Refusal::default(),
            lines: Lines::default(),
            races: Races::default(),
            under_way: UnderWay::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Checks that a store can be opened in this database, without a change: it refuses what [`with_client`](Self::with_client) refuses.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn check(client: &Client, database: &str, options: MongoStoreOptions) -> Result<()> {
        let store = Self::unchecked(client, database, options);
        store.refuse_ttl_index().await?;
        store.refuse_former_default(client, database).await?;
        store.refuse_newer_format().await
    }

    pub(crate) fn db(&self) -> &Database {
        &self.shared.database
    }

    /// The layout of the letters that it writes.
    pub(crate) fn layout(&self) -> Layout {
        self.shared.layout
    }

    /// The batches that are known to be finished. Not to be held across an await.
    pub(crate) fn finished_batches(&self) -> MutexGuard<'_, FinishedBatches> {
        self.shared.finished_batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lines(&self) -> &Lines {
        &self.shared.lines
    }

    /// The decisions of this process that are under way.
    pub(crate) fn under_way(&self) -> &UnderWay {
        &self.shared.under_way
    }

    /// Whether others claim the same sequences.
    pub(crate) fn races(&self) -> &Races {
        &self.shared.races
    }

    /// Whether the server refuses to tell how much room the store takes.
    pub(crate) fn refusal(&self) -> &Refusal {
        &self.shared.refusal
    }

    /// The store's time.
    pub(crate) async fn now(&self) -> Result<Timestamp> {
        self.shared.clock.now(self.db()).await
    }

    /// The time by which values expire.
    pub(crate) fn expiry(&self) -> &ExpiryClock {
        &self.shared.expiry
    }

    /// How many values were written.
    pub(crate) fn value_writes(&self) -> &AtomicU64 {
        &self.shared.value_writes
    }

    /// Whether the server's clock is the store's.
    pub(crate) fn has_server_clock(&self) -> bool {
        self.shared.clock.is_server()
    }

    /// Whether the clock was set back since the last call for this queue.
    pub(crate) fn clock_went_back(&self, queue: &QueueName, now: Timestamp) -> bool {
        let mut watches = self.shared.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.entry(queue.clone()).or_default().went_back(now)
    }

    /// A TTL index on the letters would delete them without a trace, and strand the sequences whose heads they were.
    async fn refuse_ttl_index(&self) -> Result<()> {
        let letters = &self.db().letters;
        let indexes = self.db().listed_indexes(letters).await?;
        // Whatever its value is: a server takes any kind of number, and so 0.0 as 0.
        let ttl = indexes.iter().find(|index| index.contains_key("expireAfterSeconds"));
        let Some(ttl) = ttl else { return Ok(()) };
        let name = ttl.get_str("name").unwrap_or_default();
        let context = format!(
            "collection {} has the TTL index {name}, which would delete letters without an audit entry and block their \
             sequences: drop it (db.{}.dropIndex(\"{name}\")), or use another database; Lazaret expires letters itself",
            letters.namespace(),
            letters.name(),
        );
        Err(StoreError::not_done(ErrorKind::Invalid, "open", context))
    }

    /// Refuses to begin a new store where one of an earlier version has letters under its default name: they would seem to be gone.
    async fn refuse_former_default(&self, client: &Client, database: &str) -> Result<()> {
        let format = doc! { "_id": "format" };
        if self.db().letters.name() != DEFAULT_COLLECTION
            || find_one(&self.db().meta, format.clone(), Document::new()).await?.is_some()
        {
            return Ok(());
        }
        let former = client.database(database).collection::<Document>(&format!("{FORMER_COLLECTION}_meta"));
        if former.find_one(format).await.map_err(reading)?.is_none() {
            return Ok(());
        }
        let context = format!(
            "{database} has the letters of an earlier version in {FORMER_COLLECTION}, the default collection then: name it in the URI \
             (collection={FORMER_COLLECTION}), with layout=flowwarden to keep the names of their fields"
        );
        Err(StoreError::not_done(ErrorKind::Invalid, "open", context))
    }

    /// States the format in a database that has none yet, or an older one: its documents are read as they are.
    async fn state_format(&self) -> Result<()> {
        let meta = self.db().meta.collection();
        let write = meta
            .update_one(doc! { "_id": "format" }, doc! { "$setOnInsert": { "version": FORMAT_VERSION } })
            .upsert(true);
        match write.await {
            Ok(_) => {}
            // Another process has just done it.
            Err(error) if error.to_string().contains("E11000") => {}
            Err(error) => return Err(writing(error)),
        }
        let older = doc! { "_id": "format", "version": { "$lt": FORMAT_VERSION } };
        let raised = meta.update_one(older, doc! { "$set": { "version": FORMAT_VERSION } }).await;
        raised.map(drop).map_err(writing)
    }

    async fn refuse_newer_format(&self) -> Result<()> {
        let meta = &self.db().meta;
        let found = find_one(meta, doc! { "_id": "format" }, Document::new()).await?;
        let version = found.and_then(|format| format.get_i64("version").ok()).unwrap_or_default();
        if version > FORMAT_VERSION {
            let context = format!(
                "{} has format {version}, this version of Lazaret reads up to {FORMAT_VERSION}: use a newer one",
                meta.namespace()
            );
            return Err(StoreError::not_done(ErrorKind::Invalid, "open", context));
        }
        Ok(())
    }
}

impl fmt::Debug for MongoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoStore").field("letters", &self.db().letters.namespace()).finish_non_exhaustive()
    }
}
