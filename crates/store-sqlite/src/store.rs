//! The store: opening and closing, and how requests and questions get to the threads.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lazaret_core::QueueName;
use lazaret_core::store::{ErrorKind, Result, StoreError};

use crate::error::Work;
use crate::inbox_source::Bells;
use crate::letters::Queue;
use crate::letters::listing::Listing;
use crate::options::Options;
use crate::readers::{Asked, View};
use crate::recorded::Repeatable;
use crate::redo::RedoLog;
use crate::step::Step;
use crate::{readers, schema, writer};

/// A store in one SQLite file. Clones share it; its threads end when it is [closed](Self::close) or with the last clone,
/// after they have answered what was asked before.
///
/// Closed letters keep their row, and purged ones a trace of it: a message whose letter was closed must be known when it
/// comes again (I8).
///
/// Numbers in the file end at 2^63: a message with a larger offset is refused as `Invalid`. Times are kept to the
/// nanosecond between 1677 and 2262; times of a letter beyond that become the beginning or the end of time. See the
/// [crate text](crate) for an example.
#[derive(Clone)]
pub struct SqliteStore {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    writer: writer::Handle,
    readers: readers::Handle,
    bells: Bells,
}

impl SqliteStore {
    /// Opens the file, or makes it, and brings it to the current format. Blocks for the time of some file accesses.
    ///
    /// # Errors
    /// `Invalid` when the file is read-only, is not one of Lazaret's or has a newer format; `Corrupt` when it is no SQLite
    /// file at all; `Unavailable` and `Full` when the system does not let it be opened.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let connection = schema::open_file(&path, &options)?;
        let redo = RedoLog::open(&path, options.durability).map(Arc::new).map_err(|error| {
            let context = format!("the redo log of {} cannot be opened: {error}", path.display());
            StoreError::not_done(ErrorKind::Unavailable, "open", context).with_source(error)
        })?;
        let readers = readers::Handle::start(&path, &options, &redo)?;
        let writer = writer::Handle::start(path.clone(), options, connection, redo)?;
        Ok(Self { shared: Arc::new(Shared { path, writer, readers, bells: Bells::default() }) })
    }

    /// Closes the store, for all clones of it: answers what was asked before, brings everything from the logs into the
    /// file, and lets go of it. Then a copy of the one file is a copy of everything. Later calls are `Unavailable`, and
    /// nothing of them is done; closing again waits for the same end and hears the same.
    ///
    /// It need not be called for the sake of what is stored: what was answered survives the death of the process. A
    /// store that is dropped closes itself in the background; a process that ends before leaves the logs, to be brought
    /// in at the next opening.
    ///
    /// # Errors
    /// When not everything could be brought into the file: `Unavailable` when somebody else uses it for longer than
    /// [`busy_timeout`](Options::busy_timeout), `Full` when the disk is. The store is closed nevertheless, and what is not
    /// in the file is in its logs, so nothing is lost.
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
        // A reader with a view would keep the writer from emptying the log.
        self.shared.readers.close().await;
        self.shared.writer.close().await
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Who is told when something is posted to an inbox.
    pub(crate) fn bells(&self) -> &Bells {
        &self.shared.bells
    }

    /// Has the writer do something.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&mut Step<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        self.shared.writer.call(operation, work).await
    }

    /// Has the writer do something that the redo log can hold.
    pub(crate) async fn record<C: Repeatable>(&self, call: C) -> Result<C::Answer> {
        self.shared.writer.record(call).await
    }

    /// Asks a reader something.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        operation: &'static str,
        question: impl FnOnce(&View<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        match self.shared.readers.ask(operation, question).await? {
            Asked::Answer(answer) => Ok(answer),
            Asked::Behind(question) => {
                self.shared.writer.catch_up(operation).await?;
                self.shared.readers.ask_after(operation, question).await
            }
        }
    }

    /// Changes a queue, which is made if it is not there.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        operation: &'static str,
        queue: &QueueName,
        work: impl FnOnce(&mut Queue<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        let queue = queue.clone();
        self.write(operation, move |step| step.queue(&queue, work)).await
    }

    /// Asks a queue something; `None` when it is not there, and so is empty.
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
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.shared.path).finish_non_exhaustive()
    }
}
