//! The source for the engine. It passes on the rows that its worker reads, and acknowledges the rows
//! that the engine settles.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use lazaret_core::Partition;
use lazaret_core::incarnation::IncarnationRegistry;
use lazaret_core::source::{Assignment, Commit, Source, SourceError, SourceEvent};
use lazaret_core::store::KeyValue;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::checkpoint::CheckpointWriter;
use crate::context::{Assigned, Batch, Command, Context, Control, Leadership, acknowledge};
use crate::delivered::{Acknowledged, Delivered};
use crate::options::{Ack, OutboxOptions};
use crate::row;
use crate::session::Session;
use crate::status::OutboxStatus;
use crate::worker::Worker;

/// The number of batches that are read ahead.
const READ_AHEAD: usize = 2;

/// A transactional outbox in PostgreSQL. See the [crate documentation](crate) for guarantees and an example.
///
/// Dropping it without [`close`](Source::close) acts like a crash: messages that were not committed are
/// delivered again.
pub struct OutboxSource {
    partition: Partition,
    ack: Ack,
    writer: Arc<CheckpointWriter>,
    leadership: Arc<Mutex<Option<Leadership>>>,
    registry: Arc<Mutex<Option<Arc<dyn IncarnationRegistry>>>>,
    status: watch::Receiver<OutboxStatus>,
    control: mpsc::UnboundedReceiver<Control>,
    batches: mpsc::Receiver<Batch>,
    commands: mpsc::UnboundedSender<Command>,
    worker: JoinHandle<()>,
    delivered: Delivered,
    /// The commit that was started.
    committing: Option<Begun>,
    /// An event that follows the previous one.
    queued: Option<SourceEvent>,
    /// Whether the incarnations are recorded.
    is_attached: bool,
    assigned: bool,
    paused: bool,
    closed: bool,
}

/// A running commit, with what it acknowledges.
type Begun = (JoinHandle<Result<(), SourceError>>, Option<Acknowledged>);

impl OutboxSource {
    /// Starts to read an outbox, with its position in a store. Must be called in a tokio runtime.
    ///
    /// This returns at once. Connecting is retried in the background, and [`status`](Self::status) and
    /// [`next`](Source::next) report the progress. To check beforehand whether the table and the rights
    /// are suitable, call [`check`](Self::check).
    ///
    /// # Errors
    /// When an option is invalid.
    pub fn open(options: OutboxOptions, store: Arc<dyn KeyValue>) -> Result<Self, SourceError> {
        options.validate()?;
        let partition = Partition::new(options.stream.clone(), 0);
        let instance = options.instance.clone().unwrap_or_else(|| std::process::id().to_string());
        let name = options.stream.as_str().to_owned();
        let writer = Arc::new(CheckpointWriter::new(store, name, instance));
        let leadership = Arc::<Mutex<Option<Leadership>>>::default();
        let registry = Arc::<Mutex<Option<Arc<dyn IncarnationRegistry>>>>::default();
        let (status, status_receiver) = watch::channel(OutboxStatus::default());
        let (batches, batch_receiver) = mpsc::channel(READ_AHEAD);
        let (control, control_receiver) = mpsc::unbounded_channel();
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let ack = options.ack;
        let context = Context {
            options: Arc::new(options),
            writer: writer.clone(),
            leadership: leadership.clone(),
            registry: registry.clone(),
            announced: Arc::new(Notify::new()),
            status,
            batches,
            control,
        };
        let worker = tokio::spawn(Worker::new(context).run(command_receiver));
        Ok(Self {
            partition,
            ack,
            writer,
            leadership,
            registry,
            status: status_receiver,
            control: control_receiver,
            batches: batch_receiver,
            commands,
            worker,
            delivered: Delivered::default(),
            committing: None,
            queued: None,
            is_attached: false,
            assigned: false,
            paused: false,
            closed: false,
        })
    }

    /// Checks that the server, the table, its columns and the rights of the role are suitable for an
    /// outbox. Nothing is created, whatever the value of `setup`.
    ///
    /// # Errors
    /// When the source would stop, with the same error.
    pub async fn check(options: &OutboxOptions) -> Result<(), SourceError> {
        options.validate()?;
        let options = OutboxOptions { setup: false, ..options.clone() };
        Session::open(&options, Arc::default()).await?;
        Ok(())
    }

    /// Returns the status, for monitoring while the engine runs the source.
    pub fn status(&self) -> watch::Receiver<OutboxStatus> {
        self.status.clone()
    }

    /// Returns the source's only partition.
    pub fn partition(&self) -> Partition {
        self.partition.clone()
    }

    fn is_own(&self, partitions: &[Partition]) -> bool {
        partitions.contains(&self.partition)
    }

    /// Returns the right to acknowledge delivered rows while the assignment lasts.
    fn leadership(&self) -> Option<Leadership> {
        let leadership = self.leadership.lock().unwrap_or_else(PoisonError::into_inner);
        leadership.clone().filter(|leadership| leadership.generation == self.delivered.generation)
    }

    /// Applies commits of the assigned partition. Returns what is to be acknowledged.
    fn take_commits(&mut self, commits: Vec<Commit>) -> Option<Acknowledged> {
        if !self.assigned {
            return None;
        }
        for commit in commits.into_iter().filter(|commit| commit.partition == self.partition) {
            self.delivered.commit(commit, self.ack);
        }
        self.delivered.pending()
    }

    /// Applies the result of the commit that was started.
    fn end_begun(&mut self, outcome: Result<(), SourceError>) -> Result<(), SourceError> {
        if let Some((_, Some(what))) = self.committing.take()
            && outcome.is_ok()
        {
            self.delivered.acknowledged(what);
        }
        outcome
    }

    /// Waits for the commit that was started, if there is one. Its outcome is no longer reported.
    async fn finish_begun(&mut self) {
        if self.committing.is_some() {
            let outcome = finished(&mut self.committing).await;
            let _ = self.end_begun(outcome);
        }
    }

    fn control(&mut self, control: Option<Control>) -> Option<Result<SourceEvent, SourceError>> {
        match control {
            // An assignment from before the registry was known is followed by another one.
            Some(Control::Assigned(assigned)) if assigned.is_recorded != self.is_attached => None,
            Some(Control::Assigned(assigned)) => Some(Ok(self.take_assignment(*assigned))),
            Some(Control::Lost) if self.assigned => {
                self.forget();
                Some(Ok(SourceEvent::Lost(vec![self.partition.clone()])))
            }
            Some(Control::Lost) => None,
            Some(Control::Error(error)) => Some(Err(error)),
            None => Some(Err(SourceError::permanent("the reader of the outbox ended"))),
        }
    }

    fn take_assignment(&mut self, assigned: Assigned) -> SourceEvent {
        let Assigned { generation, partition, is_recreated, progress, ownership, .. } = assigned;
        let settled = progress.settled.clone();
        self.delivered.assign(generation, progress);
        (self.assigned, self.paused) = (true, false);
        self.partition = partition.clone();
        let assignment = Assignment { partition: partition.clone(), settled, ownership };
        let event = SourceEvent::Assigned(vec![assignment]);
        match is_recreated {
            false => event,
            true => {
                self.queued = Some(event);
                SourceEvent::Recreated(vec![partition])
            }
        }
    }

    fn forget(&mut self) {
        (self.assigned, self.paused) = (false, false);
        self.queued = None;
        self.delivered = Delivered::default();
    }
}

/// Waits for a commit that was started, or forever if there is none.
async fn finished(committing: &mut Option<Begun>) -> Result<(), SourceError> {
    match committing {
        Some((handle, _)) => handle
            .await
            .unwrap_or_else(|error| Err(SourceError::temporary("the commit was lost").with_source(error))),
        None => std::future::pending().await,
    }
}

#[async_trait]
impl Source for OutboxSource {
    fn attach(&mut self, registry: Arc<dyn IncarnationRegistry>) {
        *self.registry.lock().unwrap_or_else(PoisonError::into_inner) = Some(registry);
        self.is_attached = true;
        // The reader may have started without the registry.
        let _ = self.commands.send(Command::Rewind);
    }

    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        loop {
            if self.closed {
                return Err(SourceError::permanent("the source was closed"));
            }
            if let Some(event) = self.queued.take() {
                return Ok(event);
            }
            // No await after one of these, so that cancellation loses nothing.
            tokio::select! {
                biased;
                outcome = finished(&mut self.committing) => {
                    return Ok(SourceEvent::Committed(self.end_begun(outcome)));
                }
                control = self.control.recv() => {
                    if let Some(event) = self.control(control) {
                        return event;
                    }
                }
                batch = self.batches.recv(), if self.assigned && !self.paused => {
                    // Batches of an earlier assignment are delivered again.
                    if let Some(batch) = batch && batch.generation == self.delivered.generation {
                        for (message, version) in batch.messages.iter().zip(&batch.versions) {
                            let fingerprint = (self.ack == Ack::Position).then(|| row::fingerprint(message));
                            self.delivered.push(message.position.offset, *version, fingerprint);
                        }
                        return Ok(SourceEvent::Messages(batch.messages));
                    }
                }
            }
        }
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        self.finish_begun().await;
        let Some(what) = self.take_commits(commits) else { return Ok(()) };
        acknowledge(self.leadership(), &self.writer, &what.progress, &what.delete).await?;
        self.delivered.acknowledged(what);
        Ok(())
    }

    fn begin_commit(&mut self, commits: Vec<Commit>) -> Result<(), Vec<Commit>> {
        let what = self.take_commits(commits);
        let (writer, leadership, begun) = (self.writer.clone(), self.leadership(), what.clone());
        let handle = tokio::spawn(async move {
            match begun {
                None => Ok(()),
                Some(what) => acknowledge(leadership, &writer, &what.progress, &what.delete).await,
            }
        });
        self.committing = Some((handle, what));
        Ok(())
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.paused |= self.is_own(partitions);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.paused &= !self.is_own(partitions);
    }

    fn rewind(&mut self, partitions: &[Partition]) {
        if self.assigned && self.is_own(partitions) {
            self.forget();
            let _ = self.commands.send(Command::Rewind);
        }
    }

    /// Does nothing, because an outbox is never revoked, only lost.
    async fn revoked(&mut self, _partitions: &[Partition]) -> Result<(), SourceError> {
        Ok(())
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        self.finish_begun().await;
        let (done, closed) = oneshot::channel();
        let _ = self.commands.send(Command::Close(done));
        let _ = closed.await;
        Ok(())
    }
}

impl Drop for OutboxSource {
    fn drop(&mut self) {
        self.worker.abort();
    }
}

impl fmt::Debug for OutboxSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxSource")
            .field("partition", &self.partition)
            .field("assigned", &self.assigned)
            .field("paused", &self.paused)
            .finish_non_exhaustive()
    }
}
