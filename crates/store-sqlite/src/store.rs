//! The store: opening, and the contract for letters in terms of requests and questions.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::store::{
    Act, Actor, AttemptNote, Claim, Cleared, Counts, ErrorKind, Grant, HandOff, HeadsPage, Lease,
    LetterStore, Limits, OpenedPage, Pause, PauseScope, Placed, Result, Settled, Settlement, StoreError,
};
use lazaret_core::{ConsumerName, MessageId, Partition, QueueName, SequenceId};

use crate::error::Work;
use crate::hand_offs::{HandOffs, Notes};
use crate::inbox_source::Bells;
use crate::letters::Queue;
use crate::letters::listing::{Cursor, Listing};
use crate::options::Options;
use crate::readers::{Asked, View};
use crate::recorded::Repeatable;
use crate::redo::RedoLog;
use crate::step::Step;
use crate::{pauses, readers, schema, writer};

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

#[async_trait]
impl LetterStore for SqliteStore {
    async fn assign(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<Grant>> {
        let partitions = partitions.to_vec();
        self.change("assign", queue, move |queue| queue.assign(&partitions)).await
    }

    async fn opened_since(&self, queue: &QueueName, revision: u64, limit: usize) -> Result<OpenedPage> {
        let page = self.list("opened_since", queue, move |queue| queue.opened_since(revision, limit)).await?;
        Ok(page.unwrap_or(OpenedPage { sequences: Vec::new(), revision, more: false }))
    }

    async fn hand_off(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>> {
        let call =
            HandOffs::new(queue.clone(), *limits, items).map_err(|fault| fault.into_error("hand_off"))?;
        self.record(call).await
    }

    async fn lookup(&self, queue: &QueueName, messages: &[MessageId]) -> Result<Vec<Option<LetterState>>> {
        let ids: Vec<LetterId> = messages.iter().map(|message| LetterId::of(queue, message)).collect();
        let states = self.list("lookup", queue, move |queue| queue.lookup(&ids)).await?;
        Ok(states.unwrap_or_else(|| vec![None; messages.len()]))
    }

    async fn note_attempts(&self, queue: &QueueName, notes: Vec<AttemptNote>) -> Result<()> {
        let call = Notes::new(queue.clone(), notes).map_err(|fault| fault.into_error("note_attempts"))?;
        self.record(call).await
    }

    async fn attempt_notes(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<AttemptNote>> {
        let partitions = partitions.to_vec();
        let notes = self.list("attempt_notes", queue, move |queue| queue.attempt_notes(&partitions)).await?;
        Ok(notes.unwrap_or_default())
    }

    async fn forget_attempts(&self, queue: &QueueName, partition: &Partition, up_to: u64) -> Result<()> {
        let partition = partition.clone();
        self.change("forget_attempts", queue, move |queue| queue.forget_attempts(&partition, up_to)).await
    }

    async fn claim_due(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Claim>> {
        let owner = owner.to_owned();
        self.change("claim_due", queue, move |queue| queue.claim_due(&owner, lease, limit)).await
    }

    async fn next_due(&self, queue: &QueueName) -> Result<Option<Timestamp>> {
        Ok(self.list("next_due", queue, |queue| queue.next_due()).await?.flatten())
    }

    async fn claim(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
    ) -> Result<Option<Claim>> {
        let (sequence, owner) = (sequence.clone(), owner.to_owned());
        self.change("claim", queue, move |queue| queue.claim(&sequence, &owner, lease)).await
    }

    async fn renew(&self, lease: &Lease, duration: Duration) -> Result<Lease> {
        let held = lease.clone();
        self.change("renew", &lease.queue, move |queue| queue.renew(&held, duration)).await
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        let held = lease.clone();
        self.change("release", &lease.queue, move |queue| queue.release(&held)).await
    }

    async fn settle(&self, lease: &Lease, letter: LetterId, settlement: Settlement) -> Result<Settled> {
        let held = lease.clone();
        self.change("settle", &lease.queue, move |queue| queue.settle(&held, letter, settlement)).await
    }

    async fn act(&self, queue: &QueueName, letter: LetterId, act: Act, by: &Actor) -> Result<Letter> {
        let by = by.clone();
        self.change("act", queue, move |queue| queue.act(letter, act, &by)).await
    }

    async fn get(&self, queue: &QueueName, letter: LetterId) -> Result<Option<Letter>> {
        Ok(self.list("get", queue, move |queue| queue.get(letter)).await?.flatten())
    }

    async fn sequence(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Letter>> {
        let sequence = sequence.clone();
        let letters =
            self.list("sequence", queue, move |queue| queue.sequence(&sequence, from, limit)).await?;
        Ok(letters.unwrap_or_default())
    }

    async fn heads(&self, queue: &QueueName, after: Option<&str>, limit: usize) -> Result<HeadsPage> {
        let after = after.map(Cursor::parse).transpose()?;
        let page = self.list("heads", queue, move |queue| queue.heads(after, limit)).await?;
        Ok(page.unwrap_or(HeadsPage { heads: Vec::new(), next: None }))
    }

    async fn counts(&self, queue: &QueueName) -> Result<Counts> {
        Ok(self.list("counts", queue, |queue| queue.counts()).await?.unwrap_or_default())
    }

    async fn sequence_size(&self, queue: &QueueName, sequence: &SequenceId) -> Result<u64> {
        let sequence = sequence.clone();
        let size = self.list("sequence_size", queue, move |queue| queue.sequence_size(&sequence)).await?;
        Ok(size.unwrap_or_default())
    }

    async fn is_full(&self, queue: &QueueName, sequence: &SequenceId, limits: &Limits) -> Result<bool> {
        let (sequence, limits) = (sequence.clone(), *limits);
        let full = self.list("is_full", queue, move |queue| queue.is_full(&sequence, &limits)).await?;
        Ok(full.unwrap_or(limits.max_sequences == Some(0)))
    }

    async fn clear(&self, queue: &QueueName, by: &Actor) -> Result<Cleared> {
        let by = by.clone();
        self.change("clear", queue, move |queue| queue.clear(&by)).await
    }

    async fn pause(&self, consumer: &ConsumerName, scope: PauseScope, by: &Actor) -> Result<()> {
        let (consumer, by) = (consumer.clone(), by.clone());
        self.write("pause", move |step| pauses::pause(step, &consumer, &scope, &by)).await
    }

    async fn resume(&self, consumer: &ConsumerName, scope: &PauseScope, by: &Actor) -> Result<bool> {
        let (consumer, scope, by) = (consumer.clone(), scope.clone(), by.clone());
        self.write("resume", move |step| pauses::resume(step, &consumer, &scope, &by)).await
    }

    async fn pauses(&self, consumer: &ConsumerName) -> Result<Vec<Pause>> {
        let consumer = consumer.clone();
        self.ask("pauses", move |view| pauses::pauses(view.connection, &consumer)).await
    }
}
