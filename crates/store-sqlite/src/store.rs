//! The store: opening, closing, and the dispatch of calls to the threads.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use lazaret_core::QueueName;
use lazaret_core::store::{
    Capabilities, DigestKey, ErrorKind, ExpiryClock, Occupancy, Result, StoreError, stored_digest_key,
};
use rusqlite::Connection;
use tokio::sync::OnceCell;

use crate::disk_reserve::{Admitted, DiskReserve};
use crate::error::Work;
use crate::inbox_source::Wakeups;
use crate::letters::Queue;
use crate::letters::listing::Listing;
use crate::options::Options;
use crate::readers::{QueryResult, Readers, View};
use crate::recorded::Repeatable;
use crate::redo::{RedoLog, Size};
use crate::step::Step;
use crate::{backup, occupancy, readers, schema, writer};

/// A store in one SQLite file. Clones share it; its threads stop when it is [closed](Self::close) or with the last clone,
/// after they have finished the queued calls.
///
/// Closed letters keep their row, and purged ones their id and state: a redelivered message whose letter was closed must be
/// recognized (I8).
///
/// Numbers in the file end at 2^63: a message with a larger offset is refused as `Invalid`. Times have nanosecond
/// precision between 1677 and 2262; other times of a letter saturate. See the
/// [crate documentation](crate) for an example.
#[derive(Clone)]
pub struct SqliteStore {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    writer: writer::Handle,
    readers: readers::Handle,
    wakeups: Wakeups,
    expiry: ExpiryClock,
    /// The key of digests, once it is known to be in the file.
    digest_key: OnceCell<DigestKey>,
    disk_reserve: DiskReserve,
    /// The queues whose last poll found letters of operations.
    busy_queues: Mutex<HashSet<QueueName>>,
}

impl SqliteStore {
    /// The capabilities of every store of this kind, known before one is opened.
    pub const CAPABILITIES: Capabilities = {
        let mut capabilities = Capabilities::NONE;
        (capabilities.durable, capabilities.shared_by_processes) = (true, true);
        (capabilities.audit_chain, capabilities.outbox, capabilities.inbox) = (true, true, true);
        capabilities
    };

    /// Opens or creates the file, and migrates it to the current format. Blocks for some file accesses.
    ///
    /// # Errors
    /// `Invalid` if the file is read-only, is not a Lazaret file or has a newer format; `Corrupt` if it is not an SQLite
    /// file; `Unavailable` if the system refuses to open it; `Full` if its disk is full. Opening may need room: the logs that a
    /// crash left are replayed.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let path = path.as_ref().to_owned();
        Self::open_file(path.clone(), options).map_err(|error| occupancy::explain(&path, error))
    }

    fn open_file(path: PathBuf, options: Options) -> Result<Self> {
        backup::refuse_unfinished(&path, "open")?;
        let connection = schema::open_file(&path, &options)?;
        let redo = RedoLog::open(&path, options.durability).map(Arc::new).map_err(|error| {
            let context = format!("failed to open the redo log of {}: {error}", path.display());
            StoreError::not_done(ErrorKind::Unavailable, "open", context).with_source(error)
        })?;
        let expiry = ExpiryClock::new(options.clock.clone());
        let readers = readers::Handle::start(&path, &options, &redo)?;
        let writer = writer::Handle::start(path.clone(), options, connection, redo)?;
        Ok(Self {
            shared: Arc::new(Shared {
                path,
                writer,
                readers,
                wakeups: Wakeups::default(),
                expiry,
                digest_key: OnceCell::new(),
                disk_reserve: DiskReserve::default(),
                busy_queues: Mutex::default(),
            }),
        })
    }

    /// Closes the store, for all clones of it: finishes queued calls, merges the logs into the
    /// file, and closes it. Then a copy of the single file is complete. Later calls fail as `Unavailable`
    /// without an effect; closing again waits for the same end and returns the same result.
    ///
    /// Durability does not depend on it: acknowledged writes survive a crash of the process. A
    /// dropped store closes itself in the background; a process that ends earlier leaves the logs, which are merged
    /// when the file is opened again.
    ///
    /// # Errors
    /// If the logs could not be merged completely: `Unavailable` if another connection uses the file for longer than
    /// [`busy_timeout`](Options::busy_timeout), `Full` if the disk is full. The store is closed nevertheless, and the
    /// remaining writes are in its logs, so nothing is lost.
    ///
    /// ```
    /// use lazaret_core::store::LetterStore;
    /// use lazaret_core::QueueName;
    /// use lazaret_store_sqlite::{Options, SqliteStore};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let (path, copy) = (folder.path().join("lazaret.db"), folder.path().join("copy.db"));
    /// let store = SqliteStore::open(&path, Options::default()).unwrap();
    /// store.close().await.unwrap();
    /// std::fs::copy(&path, &copy).unwrap();
    /// assert!(store.counts(&QueueName::of("orders", "orders")).await.is_err());
    /// # });
    /// ```
    pub async fn close(&self) -> Result<()> {
        // A reader with a snapshot would keep the writer from emptying the log.
        self.shared.readers.close().await;
        self.shared.writer.close().await
    }

    /// Writes a copy of the store to a new file, while it is in use: everything that was acknowledged before the call is in it.
    /// The copy is one complete file that nobody else can read, and it was checked.
    ///
    /// # Errors
    /// `Invalid` if the file exists already; `Full` and `Unavailable` if it cannot be written; `Corrupt` if the store is
    /// damaged. No incomplete file is left behind.
    ///
    /// ```
    /// use lazaret_store_sqlite::{Options, RestoreOptions, SqliteStore, restore};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let (path, copy) = (folder.path().join("lazaret.db"), folder.path().join("backup.db"));
    /// let store = SqliteStore::open(&path, Options::default()).unwrap();
    /// store.backup(&copy).await.unwrap();
    /// # let path = folder.path().join("elsewhere.db");
    /// restore(&copy, &path, RestoreOptions::default()).unwrap();
    /// # });
    /// ```
    pub async fn backup(&self, to: impl AsRef<Path>) -> Result<()> {
        // What is only in the redo log would be missing in the copy.
        self.shared.writer.catch_up(backup::BACKUP).await?;
        let (from, to) = (self.shared.path.clone(), to.as_ref().to_owned());
        backup::in_thread(move || backup::write(&from, &to)).await
    }

    /// Writes the whole file anew, and empties its logs.
    pub(crate) async fn rewrite_file(&self) -> Result<()> {
        self.shared.writer.rewrite("scrub").await
    }

    /// Why the last rewrite of the file failed; `None` if it did not.
    pub(crate) fn rewrite_failure(&self) -> Option<String> {
        self.shared.writer.rewrite_failure()
    }

    /// Keeps so many bytes free on the disk of the file, but never more than a twentieth of it; `None` is nothing, as at first. All
    /// clones count together: a hand-off or a post that would take of the reserve is refused as `Full`.
    pub fn keep_free(&self, bytes: Option<u64>) {
        self.shared.disk_reserve.set(bytes);
    }

    /// Admits a call that writes so much, unless it would take of the [reserve](Self::keep_free).
    pub(crate) async fn admit(&self, operation: &'static str, size: Size) -> Result<Admitted<'_>> {
        self.shared.disk_reserve.admit(&self.shared.path, operation, size, self.room()).await
    }

    /// Writes the logs to the database, as far as others allow that. Returns the bytes that are free in the file; `None` if some of what is in
    /// the logs remains to be written.
    pub(crate) async fn merge_logs(&self) -> Result<Option<u64>> {
        self.shared.writer.merge_logs("occupancy").await
    }

    /// The room that the files take, and what is free. Where that is close to a reserve, the logs are written to the database first: what they
    /// have written takes no more room, and their files and the free pages of the database are used again.
    pub(crate) async fn room(&self) -> Result<Occupancy> {
        let found = occupancy::of(&self.shared.path).await?;
        if !found.is_scarce() {
            return Ok(found.room());
        }
        match self.merge_logs().await {
            Ok(Some(free_pages)) => {
                Ok(occupancy::of(&self.shared.path).await?.room_of_merged_logs(free_pages))
            }
            // Another connection is in the way, or the disk is full: the logs are as they were.
            Ok(None) | Err(_) => Ok(found.room()),
        }
    }

    #[cfg(test)]
    pub(crate) fn disk_reserve(&self) -> &DiskReserve {
        &self.shared.disk_reserve
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Notifications of posts to an inbox.
    pub(crate) fn wakeups(&self) -> &Wakeups {
        &self.shared.wakeups
    }

    /// The time by which values expire.
    pub(crate) fn expiry(&self) -> &ExpiryClock {
        &self.shared.expiry
    }

    /// `true` if the last poll of this queue found letters of operations, so that the next one is likely to.
    pub(crate) fn is_busy(&self, queue: &QueueName) -> bool {
        self.shared.busy_queues.lock().unwrap_or_else(PoisonError::into_inner).contains(queue)
    }

    /// Keeps whether a poll of this queue found letters of operations.
    pub(crate) fn set_busy(&self, queue: &QueueName, is_busy: bool) {
        let mut queues = self.shared.busy_queues.lock().unwrap_or_else(PoisonError::into_inner);
        match is_busy {
            true if !queues.contains(queue) => _ = queues.insert(queue.clone()),
            true => {}
            false => _ = queues.remove(queue),
        }
    }

    /// Runs a request on the writer.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&mut Step<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        self.shared.writer.call(operation, work).await
    }

    /// Runs a request on the writer that the redo log can record.
    pub(crate) async fn record<C: Repeatable>(&self, call: C) -> Result<C::Answer> {
        self.shared.writer.record(call).await
    }

    /// Creates the key of digests if the file has none.
    pub(crate) async fn create_digest_key(&self) -> Result<()> {
        self.shared.digest_key.get_or_try_init(|| stored_digest_key(self)).await.map(|_| ())
    }

    /// Runs a query on a reader.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        operation: &'static str,
        question: impl FnOnce(&View<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        self.ask_of(Readers::Shared, operation, question).await
    }

    /// Reads a value, on the reader for values: whatever the others do, it waits for other values only.
    pub(crate) async fn ask_value<T: Send + 'static>(
        &self,
        operation: &'static str,
        question: impl FnOnce(&View<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        self.ask_of(Readers::Values, operation, question).await
    }

    async fn ask_of<T: Send + 'static>(
        &self,
        readers: Readers,
        operation: &'static str,
        question: impl FnOnce(&View<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        match self.shared.readers.ask(readers, operation, question).await? {
            QueryResult::Answer(answer) => Ok(answer),
            QueryResult::Behind(question) => {
                self.shared.writer.catch_up(operation).await?;
                self.shared.readers.ask_after(readers, operation, question).await
            }
        }
    }

    /// Runs a query that may examine many letters. One reader is left to all other queries.
    pub(crate) async fn scan<T: Send + 'static>(
        &self,
        operation: &'static str,
        question: impl FnOnce(&View<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        let turn = self.shared.readers.turn_to_scan(operation).await?;
        // The query ends after its caller has gone, if only by a little.
        let question = move |view: &View<'_>| {
            let answer = question(view);
            drop(turn);
            answer
        };
        self.ask(operation, question).await
    }

    /// Runs a query on a reader that may miss what is only in the redo log.
    pub(crate) async fn ask_committed<T: Send + 'static>(
        &self,
        operation: &'static str,
        question: impl FnOnce(&View<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        self.shared.readers.ask_after(Readers::Shared, operation, question).await
    }

    /// Changes a queue, which is created if necessary.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        operation: &'static str,
        queue: &QueueName,
        work: impl FnOnce(&mut Queue<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        let queue = queue.clone();
        self.write(operation, move |step| step.queue(&queue, work)).await
    }

    /// Runs a query on a queue; `None` if it does not exist and is therefore empty.
    pub(crate) async fn list<T: Send + 'static>(
        &self,
        operation: &'static str,
        queue: &QueueName,
        question: impl FnOnce(&Listing<'_>) -> Work<T> + Send + 'static,
    ) -> Result<Option<T>> {
        let queue = queue.clone();
        self.ask(operation, move |view| {
            Listing::of(view.connection, &queue)?.map(|listing| question(&listing)).transpose()
        })
        .await
    }

    /// Runs a query on a queue, as [`Self::list`], for callers that ask often while others write. Where a reader would miss what is only in
    /// the redo log, the writer answers: nothing is committed for it. Only for rows of letters and sequences: the writer keeps the numbers of
    /// the queue in memory until the commit.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        operation: &'static str,
        queue: &QueueName,
        question: impl Fn(&Listing<'_>) -> Work<T> + Clone + Send + 'static,
    ) -> Result<Option<T>> {
        let queue = queue.clone();
        let question = move |connection: &Connection| {
            Listing::of(connection, &queue)?.map(|listing| question(&listing)).transpose()
        };
        let asked = question.clone();
        let asked = self.shared.readers.ask(Readers::Shared, operation, move |view| asked(view.connection));
        match asked.await? {
            QueryResult::Answer(answer) => Ok(answer),
            QueryResult::Behind(_) => {
                self.shared.writer.look(operation, move |step| question(step.connection)).await
            }
        }
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.shared.path).finish_non_exhaustive()
    }
}
