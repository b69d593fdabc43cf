//! Copies dead letters into a collection, in FlowWarden's layout: `dead-letter: { collection: … }`.
//!
//! The store stays the source of truth, and may be of any kind. A letter that ends is listed in the
//! store's [outbox](Outbox) in the same transaction. It is copied, and only then removed from the list.
//! A crash therefore repeats at most the last batch, onto the same documents, and an unreachable server
//! delays only the copies. Erased and purged letters are listed as well, so that their copies lose their
//! content without a scan of all copies. Copies of open letters are refreshed periodically, because
//! other changes by operators are not listed. For the reasons, see
//! docs/decisions/0115-copies-of-dead-letters-in-a-collection.md.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use lazaret_core::store::{End, LetterStore, Locks, Outbox, StoreError};
use lazaret_core::{Letter, LetterId, LetterState, QueueName, Timestamp};
use lazaret_source_mongodb::bson::{Document, doc};
use lazaret_source_mongodb::describe;
use lazaret_source_mongodb::driver::options::{CollectionOptions, IndexOptions, WriteConcern};
use lazaret_source_mongodb::driver::{Collection, Database, IndexModel};
use lazaret_store_mongodb::flowwarden_document;
use tokio::time::Instant;

use crate::target::ADOPTED_FROM;

/// The number of letters per batch, which is also the maximum that is written again after a crash (I7).
const BATCH: usize = 100;
/// The interval at which the store is polled when the outbox is empty.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The interval between two refreshes of all copies.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);
/// The delays between attempts after an error.
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(100))
    .with_max_delay(Duration::from_secs(10))
    .with_factor(2.0)
    .without_max_times();
/// The lifetime of the lock, which is longer than a batch takes on a slow server.
const LOCK_TTL: Duration = Duration::from_secs(60);
/// The field that names the queue of a copy. Documents of FlowWarden do not have it.
const COPY_OF: &str = "lazaret.copyOf";

/// Copies the dead letters of one queue into a collection.
///
/// Copies letters that end as `dead` or `parked`. Quarantined letters are never copied, because they are
/// isolated on purpose. [Adopted](super::Adoption) letters are in a collection already. The copy of an
/// erased letter loses its content, and the copy of a purged letter is deleted. Both hold whatever the
/// letter's state was before.
///
/// ```no_run
/// use lazaret_adopt::flowwarden::Copies;
/// use lazaret_core::QueueName;
/// use lazaret_core::store::{LetterStore, Locks, Outbox};
/// use lazaret_source_mongodb::driver::Client;
///
/// # async fn example(store: &(impl Outbox + Locks + LetterStore), stop: impl Future<Output = ()>) -> Result<(), Box<dyn std::error::Error>> {
/// let shop = Client::with_uri_str("mongodb://archive.example").await?.database("shop");
/// // Beside the consumer, with the same store.
/// Copies::of(QueueName::of("billing", "billing"), &shop, "billing_dlq").run(store, stop).await;
/// # Ok(())
/// # }
/// ```
pub struct Copies {
    queue: QueueName,
    collection: Collection<Document>,
    instance: String,
    refresh_interval: Duration,
}

/// The state of a run between its passes.
#[derive(Default)]
struct Progress {
    /// Whether the ends of the queue are listed and the indexes were created.
    has_begun: bool,
    /// The last copy that was refreshed. `None` at the beginning of a refresh.
    after: Option<String>,
    /// When the next refresh begins.
    next_refresh: Option<Instant>,
}

impl Copies {
    /// Creates copies of this queue in a collection of this database.
    pub fn of(queue: QueueName, database: &Database, collection: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let time = Timestamp::now().as_nanosecond();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // The outbox forgets a letter as soon as its copy is durable.
        let options = CollectionOptions::builder().write_concern(WriteConcern::majority()).build();
        Self {
            queue,
            collection: database.collection_with_options(collection, options),
            instance: format!("copies-{}-{time}-{number}", std::process::id()),
            refresh_interval: REFRESH_INTERVAL,
        }
    }

    /// Refreshes the copies of open letters this often. Default: every 30 seconds.
    #[must_use]
    pub fn refreshing_every(mut self, interval: Duration) -> Self {
        self.refresh_interval = interval;
        self
    }

    /// Copies until `shutdown` completes, starting with the letters that are dead now. Errors are
    /// logged, and the operation is retried. Of several instances for the same queue and collection,
    /// only one is active.
    pub async fn run<S: Outbox + Locks + LetterStore + ?Sized>(
        self,
        store: &S,
        shutdown: impl Future<Output = ()>,
    ) {
        let mut shutdown = pin!(shutdown);
        let lock = format!("copies/{}/{}", self.queue, self.collection.namespace());
        let mut progress = Progress::default();
        let mut delays = BACKOFF.build();
        loop {
            // A cancelled pass is repeated, because copies are replaced as a whole.
            let passed = tokio::select! {
                biased;
                () = &mut shutdown => break,
                passed = self.pass(store, &lock, &mut progress) => passed,
            };
            let wait = match passed {
                Ok(has_more) => {
                    delays = BACKOFF.build();
                    if has_more { Duration::ZERO } else { POLL_INTERVAL }
                }
                Err(error) => {
                    let (queue, collection) = (&self.queue, self.collection.namespace());
                    tracing::warn!(%queue, %collection, error, "copying dead letters failed, retrying");
                    delays.next().unwrap_or(POLL_INTERVAL)
                }
            };
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                () = tokio::time::sleep(wait) => {}
            }
        }
        if let Err(error) = Locks::release(store, &lock, &self.instance).await {
            tracing::debug!(%error, "lock of copies not released, it will expire");
        }
    }

    /// Copies the next letters that ended or lost their content. If there are none, refreshes some
    /// copies. Returns `true` if there may be more to do at once.
    async fn pass<S: Outbox + Locks + LetterStore + ?Sized>(
        &self,
        store: &S,
        lock: &str,
        progress: &mut Progress,
    ) -> Result<bool, String> {
        let text = |error: StoreError| error.to_string();
        if !progress.has_begun {
            // This comes first: from now on ended letters are listed, whether or not the server is reachable.
            Outbox::watch_ends(store, &self.queue).await.map_err(text)?;
            self.create_indexes().await;
            progress.has_begun = true;
        }
        if Locks::acquire(store, lock, &self.instance, LOCK_TTL).await.map_err(text)?.is_none() {
            // Another instance is active.
            return Ok(false);
        }
        let page = Outbox::ends(store, &self.queue, 0, BATCH).await.map_err(text)?;
        for end in &page.ends {
            if end.state != LetterState::Quarantined {
                self.copy(store, end).await?;
            }
        }
        if let Some(end) = page.ends.last() {
            Outbox::forget_ends(store, &self.queue, end.number).await.map_err(text)?;
            return Ok(true);
        }
        if progress.next_refresh.is_some_and(|next| Instant::now() < next) {
            return Ok(false);
        }
        self.refresh(store, progress).await?;
        Ok(progress.after.is_some())
    }

    /// Writes the copy of a letter in its current state, and removes the copy of a purged letter. An
    /// erased letter gets no new copy, because it no longer shows whether it was adopted.
    async fn copy<S: LetterStore + ?Sized>(&self, store: &S, end: &End) -> Result<(), String> {
        let found = LetterStore::get(store, &self.queue, end.id).await.map_err(|error| error.to_string())?;
        let Some(letter) = found else { return self.remove(end.id).await };
        if letter.diagnostics.contains_key(ADOPTED_FROM) {
            return Ok(());
        }
        match end.state.is_open() && letter.erased.is_none() {
            true => self.write(self.document(&letter)).await,
            false => self.replace(letter.id, self.document(&letter)).await,
        }
    }

    fn document(&self, letter: &Letter) -> Document {
        let mut document = flowwarden_document(letter);
        document.insert("lazaret", doc! { "copyOf": self.queue.as_str() });
        document
    }

    async fn write(&self, document: Document) -> Result<(), String> {
        let id = document.get("_id").cloned();
        let written = self.collection.replace_one(doc! { "_id": id }, document).upsert(true).await;
        written.map(drop).map_err(|error| describe(&error))
    }

    /// Replaces the copy of a letter, if there is one.
    async fn replace(&self, id: LetterId, document: Document) -> Result<(), String> {
        let written = self.collection.replace_one(self.copy_of(id), document).await;
        written.map(drop).map_err(|error| describe(&error))
    }

    /// Removes the copy of a purged letter.
    async fn remove(&self, id: LetterId) -> Result<(), String> {
        let removed = self.collection.delete_one(self.copy_of(id)).await;
        removed.map(drop).map_err(|error| describe(&error))
    }

    /// Returns a filter for the copy of a letter. It matches no documents of others.
    fn copy_of(&self, id: LetterId) -> Document {
        doc! { "_id": id.to_string(), COPY_OF: self.queue.as_str() }
    }

    /// Refreshes the next copies of letters that were open, or were evicted and may be open again.
    async fn refresh<S: LetterStore + ?Sized>(
        &self,
        store: &S,
        progress: &mut Progress,
    ) -> Result<(), String> {
        let mut filter = doc! { COPY_OF: self.queue.as_str(), "status": { "$in": ["PENDING", "EVICTED"] } };
        if let Some(after) = &progress.after {
            filter.insert("_id", doc! { "$gt": after.as_str() });
        }
        let find = self.collection.find(filter).sort(doc! { "_id": 1 }).limit(BATCH as i64);
        let changing = doc! { "status": 1, "attempts": 1, "lastAttemptAt": 1, "expiresAt": 1 };
        let mut cursor = find.projection(changing).await.map_err(|error| describe(&error))?;
        let (mut read, mut last) = (0, None);
        while cursor.advance().await.map_err(|error| describe(&error))? {
            let copy = cursor.deserialize_current().map_err(|error| describe(&error))?;
            read += 1;
            let Ok(id) = copy.get_str("_id") else { continue };
            last = Some(id.to_owned());
            let Ok(letter) = id.parse::<LetterId>() else { continue };
            let found = LetterStore::get(store, &self.queue, letter).await;
            match found.map_err(|error| error.to_string())? {
                None => self.remove(letter).await?,
                Some(letter) => {
                    let document = self.document(&letter);
                    if copy.iter().any(|(name, value)| document.get(name) != Some(value)) {
                        self.write(document).await?;
                    }
                }
            }
        }
        progress.after = last.filter(|_| read == BATCH);
        let ends = progress.after.is_none();
        progress.next_refresh = ends.then(|| Instant::now() + self.refresh_interval);
        Ok(())
    }

    /// Creates FlowWarden's indexes. With them, the server deletes copies when they expire, as the
    /// letters do. Copies work without indexes.
    async fn create_indexes(&self) {
        let ttl = IndexOptions::builder().expire_after(Duration::ZERO).build();
        let indexes = [
            IndexModel::builder().keys(doc! { "expiresAt": 1 }).options(ttl).build(),
            IndexModel::builder().keys(doc! { "streamName": 1, "status": 1 }).build(),
            IndexModel::builder().keys(doc! { COPY_OF: 1, "status": 1, "_id": 1 }).build(),
        ];
        if let Err(error) = self.collection.create_indexes(indexes).await {
            let (collection, error) = (self.collection.namespace(), describe(&error));
            tracing::warn!(%collection, error, "indexes of a collection for dead letters not created");
        }
    }
}

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copies")
            .field("queue", &self.queue)
            .field("collection", &self.collection.namespace())
            .finish_non_exhaustive()
    }
}
