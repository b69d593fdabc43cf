//! The source for the engine. It passes on the events that its worker reads, and commits the events that
//! the engine settles.

use std::collections::VecDeque;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use lazaret_core::incarnation::IncarnationRegistry;
use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_core::store::KeyValue;
use lazaret_core::{Message, Partition, StreamName};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::checkpoint::{CheckpointError, CheckpointWriter, Progress};
use crate::context::{Assigned, Batch, Command, Context, Control, Registry};
use crate::event::{MessageFactory, ReadEvent};
use crate::lease::Lease;
use crate::options::MongoSourceOptions;
use crate::status::MongoStatus;
use crate::worker::Worker;

/// The number of batches that are read ahead.
const READ_AHEAD: usize = 2;
/// The maximum number of settled ranges beyond the position (I7).
const MAX_RANGES: usize = 1024;

/// A MongoDB change stream. See the [crate documentation](crate) for guarantees and an example.
///
/// Dropping it without [`close`](Source::close) acts like a crash: nothing is flushed, and its lease
/// lasts until it expires.
pub struct MongoSource {
    /// The partition, in the last assigned incarnation.
    partition: Partition,
    writer: Arc<CheckpointWriter>,
    registry: Registry,
    status: watch::Receiver<MongoStatus>,
    control: mpsc::UnboundedReceiver<Control>,
    batches: mpsc::Receiver<Batch>,
    commands: mpsc::UnboundedSender<Command>,
    worker: JoinHandle<()>,
    factory: MessageFactory,
    delivered: Delivered,
    /// The commit that was started.
    committing: Option<JoinHandle<Result<(), SourceError>>>,
    /// An event that follows the previous one.
    queued: Option<SourceEvent>,
    /// Whether the incarnations are recorded.
    is_attached: bool,
    assigned: bool,
    paused: bool,
    closed: bool,
}

/// Messages that were delivered under the current assignment and are not committed yet.
#[derive(Debug, Default)]
struct Delivered {
    generation: u64,
    /// The offset and token of each message, in order.
    open: VecDeque<(u64, Bytes)>,
    /// The offset of the last message.
    last_offset: u64,
    committed: Progress,
}

impl Delivered {
    fn assign(&mut self, generation: u64, settled: Vec<RangeInclusive<u64>>) {
        let committed = Progress { settled, ..Progress::default() };
        *self = Self { generation, committed, ..Self::default() };
    }

    fn push(&mut self, message: &Message) {
        self.last_offset = message.position.offset;
        if let Some(token) = &message.position.token {
            self.open.push_back((message.position.offset, token.clone()));
        }
    }

    /// Returns the progress after a commit, and the number of events that it settles. Returns `None` if
    /// it changes nothing. A position never moves back. It may stay while events beyond it are settled.
    fn commit(&mut self, commit: Commit) -> Option<(Progress, u32)> {
        let token = commit.position.as_ref().and_then(|position| position.token.as_ref());
        let at = token.and_then(|token| self.open.iter().position(|(_, open)| open == token));
        let is_committed = token.is_some() && token == self.committed.token.as_ref();
        if commit.position.is_some() && at.is_none() && !is_committed {
            return None;
        }
        let mut progress = self.committed.clone();
        let mut events = 0;
        if let Some(at) = at {
            for (offset, token) in self.open.drain(..=at) {
                (progress.offset, progress.token) = (offset, Some(token));
                events += 1;
            }
        }
        progress.settled = keep_certain(commit.settled_beyond, self.last_offset);
        if progress.settled != self.committed.settled {
            // Ranges do not show how many events they hold.
            events = events.max(1);
        }
        self.committed = progress.clone();
        Some((progress, events))
    }
}

/// Returns the ranges without the offset of the last delivered message. The operations of a transaction
/// share an offset, and one that was not read yet must not be mistaken for settled (I1).
fn keep_certain(ranges: Vec<RangeInclusive<u64>>, last: u64) -> Vec<RangeInclusive<u64>> {
    let certain = ranges.into_iter().filter_map(|range| {
        let end = (*range.end()).min(last.checked_sub(1)?);
        (*range.start() <= end).then(|| *range.start()..=end)
    });
    certain.take(MAX_RANGES).collect()
}

impl MongoSource {
    /// Starts to read a stream, with its checkpoint and its lease in a store. Must be called in a tokio
    /// runtime.
    ///
    /// This returns at once. Connecting is retried in the background, and [`status`](Self::status) and
    /// [`next`](Source::next) report the progress. The failure of one stream therefore does not keep
    /// others from starting.
    ///
    /// # Errors
    /// When an option is invalid.
    pub fn open(mut options: MongoSourceOptions, store: Arc<dyn KeyValue>) -> Result<Self, SourceError> {
        options.validate()?;
        options.stream = StreamName::interned(options.stream.as_str());
        let partition = Partition::new(options.stream.clone(), 0);
        let name = options.checkpoint_name();
        // Two processes with the same name must not hold the same lease, so each source adds a random part.
        let unique = bson::Uuid::new().to_string();
        let owner = match &options.instance {
            Some(instance) => format!("{instance}/{unique}"),
            None => unique,
        };
        let lease = Lease::new(store.clone(), &name, owner.clone(), options.lease);
        let writer = Arc::new(CheckpointWriter::new(store, name, owner, options.checkpoint));
        let (status, status_receiver) = watch::channel(MongoStatus::default());
        let (batches, batch_receiver) = mpsc::channel(READ_AHEAD);
        let (control, control_receiver) = mpsc::unbounded_channel();
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let factory = MessageFactory::of(&options);
        let registry = Registry::default();
        let context = Context {
            options: Arc::new(options),
            writer: writer.clone(),
            registry: registry.clone(),
            started: Arc::default(),
            status,
            batches,
            control,
        };
        let worker = tokio::spawn(Worker::new(context, lease).run(command_receiver));
        Ok(Self {
            partition,
            writer,
            registry,
            status: status_receiver,
            control: control_receiver,
            batches: batch_receiver,
            commands,
            worker,
            factory,
            delivered: Delivered::default(),
            committing: None,
            queued: None,
            is_attached: false,
            assigned: false,
            paused: false,
            closed: false,
        })
    }

    /// Returns the status, for monitoring while the engine runs the source.
    pub fn status(&self) -> watch::Receiver<MongoStatus> {
        self.status.clone()
    }

    /// Returns the source's only partition, in the last assigned incarnation.
    pub fn partition(&self) -> Partition {
        self.partition.clone()
    }

    fn is_own(&self, partitions: &[Partition]) -> bool {
        partitions.contains(&self.partition)
    }

    /// Returns the positions to write for the assigned partition.
    fn take_commits(&mut self, commits: Vec<Commit>) -> Vec<(Progress, u32)> {
        if !self.assigned {
            return Vec::new();
        }
        let own = commits.into_iter().filter(|commit| commit.partition == self.partition);
        own.filter_map(|commit| self.delivered.commit(commit)).collect()
    }

    fn control(&mut self, control: Option<Control>) -> Option<Result<SourceEvent, SourceError>> {
        match control {
            // An assignment from before the registry was known is followed by another one.
            Some(Control::Assigned(assigned)) if assigned.is_recorded != self.is_attached => None,
            Some(Control::Assigned(assigned)) => Some(Ok(self.take_assignment(assigned))),
            Some(Control::Lost) if self.assigned => {
                self.forget();
                Some(Ok(SourceEvent::Lost(vec![self.partition.clone()])))
            }
            Some(Control::Lost) => None,
            Some(Control::Error(error)) => Some(Err(error)),
            None => Some(Err(SourceError::permanent("the reader of the change stream ended"))),
        }
    }

    fn take_assignment(&mut self, assigned: Assigned) -> SourceEvent {
        let Assigned { generation, assignment, is_recreated, .. } = assigned;
        self.delivered.assign(generation, assignment.settled.clone());
        (self.assigned, self.paused) = (true, false);
        self.partition = assignment.partition.clone();
        let event = SourceEvent::Assigned(vec![assignment]);
        match is_recreated {
            false => event,
            true => {
                self.queued = Some(event);
                SourceEvent::Recreated(vec![self.partition.clone()])
            }
        }
    }

    /// Builds the messages of a batch. This happens here and not where the batch was read: both take
    /// time, and this is another task.
    fn messages(&mut self, events: Vec<ReadEvent>) -> Vec<Message> {
        self.factory.begin_batch();
        let messages: Vec<Message> = events.into_iter().map(|event| self.factory.message(event)).collect();
        messages.iter().for_each(|message| self.delivered.push(message));
        messages
    }

    fn forget(&mut self) {
        (self.assigned, self.paused) = (false, false);
        self.queued = None;
        self.delivered = Delivered::default();
    }
}

/// Writes positions. A leader that was replaced has nothing left to commit.
async fn write(
    writer: &CheckpointWriter,
    generation: u64,
    commits: Vec<(Progress, u32)>,
) -> Result<(), SourceError> {
    let written = async {
        for (progress, events) in commits {
            writer.settle(generation, progress, events).await?;
        }
        writer.retry_failed(generation).await
    };
    match written.await {
        Ok(()) | Err(CheckpointError::Fenced) => Ok(()),
        Err(CheckpointError::Store(error)) => Err(error.into()),
    }
}

/// Waits for a commit that was started, or forever if there is none.
async fn finished(committing: &mut Option<JoinHandle<Result<(), SourceError>>>) -> Result<(), SourceError> {
    match committing {
        Some(handle) => handle
            .await
            .unwrap_or_else(|error| Err(SourceError::temporary("the commit was lost").with_source(error))),
        None => std::future::pending().await,
    }
}

#[async_trait]
impl Source for MongoSource {
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
                    self.committing = None;
                    return Ok(SourceEvent::Committed(outcome));
                }
                control = self.control.recv() => {
                    if let Some(event) = self.control(control) {
                        return event;
                    }
                }
                batch = self.batches.recv(), if self.assigned && !self.paused => {
                    // Batches of an earlier assignment are delivered again.
                    if let Some(batch) = batch && batch.generation == self.delivered.generation {
                        return Ok(SourceEvent::Messages(self.messages(batch.events)));
                    }
                }
            }
        }
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        if let Some(begun) = self.committing.take() {
            // The outcome of the started commit is no longer reported. The positions of this commit cover it.
            let _ = begun.await;
        }
        let commits = self.take_commits(commits);
        write(&self.writer, self.delivered.generation, commits).await
    }

    fn begin_commit(&mut self, commits: Vec<Commit>) -> Result<(), Vec<Commit>> {
        let commits = self.take_commits(commits);
        let (writer, generation) = (self.writer.clone(), self.delivered.generation);
        self.committing = Some(tokio::spawn(async move { write(&writer, generation, commits).await }));
        Ok(())
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.paused |= self.assigned && self.is_own(partitions);
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

    /// Does nothing, because a stream is never revoked, only lost.
    async fn revoked(&mut self, _partitions: &[Partition]) -> Result<(), SourceError> {
        Ok(())
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        if let Some(begun) = self.committing.take() {
            let _ = begun.await;
        }
        let (done, closed) = oneshot::channel();
        let _ = self.commands.send(Command::Close(done));
        closed.await.unwrap_or(Ok(()))
    }
}

impl Drop for MongoSource {
    fn drop(&mut self) {
        self.worker.abort();
    }
}

impl fmt::Debug for MongoSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoSource")
            .field("partition", &self.partition)
            .field("assigned", &self.assigned)
            .field("paused", &self.paused)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::Position;

    use super::*;

    fn message(token: &'static str, offset: u64) -> Message {
        let position = Position { token: Some(token.into()), ..Position::new(0, offset) };
        Message::new(token, "orders", position)
    }

    fn commit(message: Option<&Message>, settled_beyond: Vec<RangeInclusive<u64>>) -> Commit {
        let position = message.map(|message| message.position.clone());
        Commit { partition: Partition::new("orders", 0), position, settled_beyond }
    }

    #[test]
    fn a_commit_settles_the_events_up_to_its_token() {
        // I1: the operations of a transaction share an offset, so the token decides.
        let mut delivered = Delivered::default();
        let all = [message("a", 1), message("b", 2), message("c", 2), message("d", 3)];
        all.iter().for_each(|message| delivered.push(message));
        let (progress, events) = delivered.commit(commit(Some(&all[1]), vec![])).unwrap();
        assert_eq!((progress.token.as_deref(), progress.offset, events), (Some(&b"b"[..]), 2, 2));
        assert_eq!(delivered.commit(commit(Some(&all[0]), vec![])), None, "it never moves back");
        let (progress, events) = delivered.commit(commit(Some(&all[3]), vec![])).unwrap();
        assert_eq!((progress.token.as_deref(), events), (Some(&b"d"[..]), 2));
        assert!(delivered.open.is_empty());
    }

    #[test]
    fn events_are_settled_beyond_a_position_that_stays() {
        let mut delivered = Delivered::default();
        let all = [message("a", 1), message("b", 2), message("c", 3), message("d", 4)];
        all.iter().for_each(|message| delivered.push(message));
        delivered.commit(commit(Some(&all[0]), vec![])).unwrap();
        let (progress, events) = delivered.commit(commit(Some(&all[0]), vec![3..=3])).unwrap();
        assert_eq!((progress.token.as_deref(), events), (Some(&b"a"[..]), 1));
        assert_eq!(progress.settled, [3..=3]);
    }

    #[test]
    fn a_commit_of_another_assignment_changes_nothing() {
        let mut delivered = Delivered::default();
        let old = message("a", 1);
        delivered.push(&old);
        delivered.assign(2, vec![]);
        assert_eq!(delivered.commit(commit(Some(&old), vec![])), None);
    }

    #[test]
    fn an_offset_that_may_be_shared_is_not_called_settled() {
        // I1: another operation of the same transaction may follow.
        let mut delivered = Delivered::default();
        [message("a", 1), message("b", 5), message("c", 9)].iter().for_each(|m| delivered.push(m));
        let (progress, events) = delivered.commit(commit(None, vec![5..=9])).unwrap();
        assert_eq!((progress.settled, progress.token, events), (vec![5..=8], None, 1));
        let (progress, _) = delivered.commit(commit(None, vec![9..=9, 11..=20])).unwrap();
        assert_eq!(progress.settled, []);
    }
}
