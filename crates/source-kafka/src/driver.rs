//! The thread of the group member. It reads ahead and executes the commands of the engine.
//!
//! Only this thread uses the member. It reads a few batches ahead (I7), and keeps serving the group even
//! when it may not read more. For a dead engine it does neither. When the engine stops asking, the
//! client is not polled, and the group gives the partitions to other members after
//! `max.poll.interval.ms`, as it would without the thread.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;

use lazaret_core::Partition;
use lazaret_core::incarnation::IncarnationRegistry;
use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::membership::Membership;
use crate::read_ahead::{CloseOnDrop, Item, ReadAhead, TICK};

/// A command from the engine.
pub(crate) enum Command {
    /// Sets the consumer's registry of incarnations and the runtime of its store. `None` when no engine
    /// runs the source.
    Attach(Option<(Arc<dyn IncarnationRegistry>, Handle)>),
    Commit(Commits, oneshot::Sender<Result<(), SourceError>>),
    /// Starts a commit. Its outcome arrives as an item with this number.
    Begin(u64, Commits),
    Pause(Vec<Partition>),
    Resume(Vec<Partition>),
    Rewind(Vec<Partition>),
    Revoked(Vec<Partition>, oneshot::Sender<Result<(), SourceError>>),
    Close(oneshot::Sender<Result<(), SourceError>>),
}

/// Positions to commit. `changes` shows which assignments the engine had seen, because a partition may
/// since have restarted in a different log.
pub(crate) struct Commits {
    pub(crate) commits: Vec<Commit>,
    /// The number of [changes](is_change) that the engine took before.
    pub(crate) changes: u64,
}

/// Returns `true` if an event changes the assignment.
pub(crate) fn is_change(event: &SourceEvent) -> bool {
    matches!(event, SourceEvent::Assigned(_) | SourceEvent::Lost(_))
}

/// Starts the thread of a member. The thread ends when the member is closed, or when the sender of
/// commands is dropped.
pub(crate) fn start(
    membership: Membership,
) -> Result<(mpsc::UnboundedSender<Command>, Arc<ReadAhead>), SourceError> {
    let failed = |error: std::io::Error| {
        SourceError::temporary("failed to start the thread of the Kafka client").with_source(error)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
    let (commands, received) = mpsc::unbounded_channel();
    let read = Arc::new(ReadAhead::new());
    let close = CloseOnDrop(read.clone());
    let (changes, latest) = (0, HashMap::new());
    let driver = Driver { membership, commands: received, read: read.clone(), begun: 0, changes, latest };
    let run = move || {
        runtime.block_on(driver.run());
        drop(close);
    };
    thread::Builder::new().name("lazaret-kafka".to_owned()).spawn(run).map_err(failed)?;
    Ok((commands, read))
}

struct Driver {
    membership: Membership,
    commands: mpsc::UnboundedReceiver<Command>,
    read: Arc<ReadAhead>,
    /// The number of the last commit that was started.
    begun: u64,
    /// The number of changes so far, followed by the last change of each partition.
    changes: u64,
    latest: HashMap<Partition, u64>,
}

impl Driver {
    async fn run(mut self) {
        loop {
            self.membership.may_read = self.read.has_room();
            tokio::select! {
                biased;
                command = self.commands.recv() => {
                    let Some(command) = command else { return };
                    if self.execute(command).await.is_break() {
                        return;
                    }
                }
                () = self.read.taken(), if !self.membership.may_read => {}
                event = self.membership.next(), if self.read.is_engine_alive() => self.put(event),
                () = tokio::time::sleep(TICK) => self.publish_lag(),
            }
        }
    }

    fn publish_lag(&self) {
        self.read.set_lag(self.membership.lag().unwrap_or(0));
    }

    fn put(&mut self, event: Result<SourceEvent, SourceError>) {
        if let Ok(event) = &event {
            self.count_change(event);
        }
        // Published before the messages can be taken, so that they are not counted twice.
        self.publish_lag();
        self.read.put(match event {
            Ok(SourceEvent::Committed(outcome)) => Item::Committed(self.begun, outcome),
            Ok(event) => Item::Event(event),
            Err(error) => Item::Error(error),
        });
    }

    fn count_change(&mut self, event: &SourceEvent) {
        if !is_change(event) {
            return;
        }
        self.changes += 1;
        match event {
            SourceEvent::Assigned(all) => {
                self.latest.extend(all.iter().map(|new| (new.partition.clone(), self.changes)));
            }
            SourceEvent::Lost(partitions) => {
                self.latest.extend(partitions.iter().map(|gone| (gone.clone(), self.changes)));
            }
            _ => {}
        }
    }

    /// Removes commits of partitions that changed after the engine sent the commits.
    fn current(&self, Commits { commits, changes }: Commits) -> Vec<Commit> {
        let is_current =
            |commit: &Commit| self.latest.get(&commit.partition).is_none_or(|latest| *latest <= changes);
        commits.into_iter().filter(is_current).collect()
    }

    async fn execute(&mut self, command: Command) -> ControlFlow<()> {
        // The receiver of an answer may have been dropped.
        match command {
            Command::Commit(commits, answer) => {
                let commits = self.current(commits);
                let _ = answer.send(self.membership.commit(commits).await);
            }
            Command::Begin(number, commits) => {
                self.begun = number;
                // An earlier commit timed out and is still pending. Reading does not wait for it.
                let commits = self.current(commits);
                if self.membership.begin_commit(commits).is_err() {
                    let error =
                        SourceError::temporary("an earlier commit is pending; this one will be repeated");
                    self.read.put(Item::Committed(number, Err(error)));
                }
            }
            Command::Attach(registry) => self.membership.know(registry),
            Command::Pause(partitions) => self.membership.pause(&partitions),
            Command::Resume(partitions) => self.membership.resume(&partitions),
            Command::Rewind(partitions) => self.membership.rewind(&partitions),
            Command::Revoked(partitions, answer) => {
                let _ = answer.send(self.membership.revoked(&partitions).await);
            }
            Command::Close(answer) => {
                let _ = answer.send(self.membership.close().await);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}
