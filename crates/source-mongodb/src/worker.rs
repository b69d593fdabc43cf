//! The task behind a source. It gets the lease, claims the checkpoint, and runs a reader while it leads.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lazaret_core::incarnation::IncarnationRegistry;
use lazaret_core::message::PartitionNumber;
use lazaret_core::source::{Assignment, SourceError};
use lazaret_core::store::Checkpoint;
use tokio::sync::mpsc;

use crate::checkpoint::{CheckpointError, Progress};
use crate::context::{Assigned, Command, Context, Control};
use crate::error::StreamError;
use crate::incarnation::{self, Continued, Life};
use crate::lease::{Ended, Lease};
use crate::options::Start;
use crate::reader::{Exit, Reader};
use crate::status::StreamState;

/// The timeout for asking who holds a lost lease.
const HOLDER_LIMIT: Duration = Duration::from_secs(5);

pub(crate) struct Worker {
    context: Context,
    lease: Lease,
    /// The number of the current assignment.
    generation: u64,
    /// The fence of the lease while it is held.
    fence: Option<u64>,
    /// Whether an incarnation begins with the next assignment.
    recreated: bool,
}

/// The reason why a leadership ended.
enum Left {
    Lost(Ended),
    Failed(StreamError),
    /// The stream began a new incarnation, and is assigned again.
    Recreated,
}

impl Worker {
    pub(crate) fn new(context: Context, lease: Lease) -> Self {
        Self { context, lease, generation: 0, fence: None, recreated: false }
    }

    /// Works until the source is closed or dropped. A dropped source keeps its lease until it expires,
    /// as after a crash.
    pub(crate) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        loop {
            let command = tokio::select! {
                biased;
                command = commands.recv() => command,
                () = self.lead() => continue,
            };
            match command {
                // The leadership continues with a new reader.
                Some(Command::Rewind) => {}
                Some(Command::Close(done)) => {
                    let _ = done.send(self.close().await);
                    return;
                }
                None => return,
            }
        }
    }

    /// Closes after the engine has drained. Flushes first, then releases the lease.
    async fn close(&mut self) -> Result<(), SourceError> {
        self.context.set_state(StreamState::Closed);
        if self.fence.take().is_none() {
            return Ok(());
        }
        let flushed = match self.context.writer.flush().await {
            Ok(()) | Err(CheckpointError::Fenced) => Ok(()),
            Err(CheckpointError::Store(error)) => Err(SourceError::from(error)),
        };
        self.lease.release().await?;
        flushed
    }

    /// Gets the lease, and reads until it ends. Returns so that the caller tries again.
    async fn lead(&mut self) {
        let Some(fence) = self.acquire().await else { return };
        let reader = match self.begin(fence).await {
            Ok(Some(reader)) => reader,
            Ok(None) => return self.give_way().await,
            Err(error) if error.class.is_temporary() => {
                self.context.report(error);
                return tokio::time::sleep(self.context.options.restart.initial_delay).await;
            }
            Err(error) => return self.fail(error).await,
        };
        match self.read(reader).await {
            Left::Lost(ended) => self.lose(ended).await,
            Left::Failed(error) => self.fail(error).await,
            Left::Recreated => {
                self.recreated = true;
                self.context.tell(Control::Lost);
            }
        }
    }

    async fn lose(&mut self, ended: Ended) {
        self.fence = None;
        self.lease.end();
        self.context.set_state(StreamState::Standby { leader: None, until: None });
        self.context.tell(Control::Lost);
        let why = self.why(ended).await;
        tracing::warn!(stream = %self.context.options.stream, why, "leadership lost");
    }

    /// Describes why the leadership ended.
    async fn why(&self, ended: Ended) -> String {
        match ended {
            Ended::NotRenewed(why) => format!("the lease was not renewed: {why}"),
            Ended::Fenced => "another instance has claimed the checkpoint".to_owned(),
            Ended::NotHeld => {
                let holder = tokio::time::timeout(HOLDER_LIMIT, self.lease.holder()).await;
                match holder {
                    Ok(Ok(Some(lock))) => format!("the instance {} leads", lock.owner),
                    Ok(Ok(None)) => {
                        "the store has no lease of the stream: it expired, or the store was emptied"
                            .to_owned()
                    }
                    Ok(Err(_)) | Err(_) => "the lease is not this instance's any more".to_owned(),
                }
            }
        }
    }

    /// Gives way after the checkpoint was claimed under a later lease. A new lease has a later fence
    /// than the current one.
    async fn give_way(&mut self) {
        self.lose(Ended::Fenced).await;
        if let Err(error) = self.lease.release().await {
            tracing::warn!(stream = %self.context.options.stream, %error, "lease not released");
        }
        tokio::time::sleep(self.context.options.lease.standby).await;
    }

    /// Tries to get the lease. Returns `None` after an error, or while another instance leads.
    async fn acquire(&mut self) -> Option<u64> {
        if self.fence.is_some() {
            return self.fence;
        }
        match self.lease.acquire().await {
            Ok(Ok(fence)) => {
                self.fence = Some(fence);
                self.context.set_state(StreamState::Starting);
                return self.fence;
            }
            Ok(Err(holder)) => {
                if let Err(error) = self.context.writer.remember().await {
                    tracing::debug!(stream = %self.context.options.stream, %error, "checkpoint of the leader not read");
                }
                let (leader, until) = holder.map(|lock| (lock.owner, lock.expires_at)).unzip();
                self.context.set_state(StreamState::Standby { leader, until });
            }
            Err(error) => {
                tracing::warn!(stream = %self.context.options.stream, %error, "lease not acquired, retrying");
                self.context.tell(Control::Error(error.into()));
            }
        }
        tokio::time::sleep(self.context.options.lease.standby).await;
        None
    }

    /// Claims the checkpoint and assigns the partition. Returns `None` if a newer leader has claimed it.
    async fn begin(&mut self, fence: u64) -> Result<Option<Reader>, StreamError> {
        let checkpoint = match self.context.writer.claim(self.generation + 1, fence).await {
            Ok(claimed) => {
                if claimed.restored {
                    let text = "the store had lost the checkpoint; going on from the last position that this process knows";
                    self.context.status.send_modify(|status| status.decide(text.to_owned()));
                }
                claimed.checkpoint
            }
            Err(CheckpointError::Fenced) => return Ok(None),
            Err(CheckpointError::Store(error)) => {
                return Err(StreamError::of_store("the checkpoint was not read", &error));
            }
        };
        let registry = self.context.registry();
        let Some(life) = self.life_of(&checkpoint, registry.as_deref()).await? else { return Ok(None) };
        self.generation += 1;
        let start_now =
            self.context.options.start == Start::Now && !self.context.started.load(Ordering::Relaxed);
        let reader = Reader::new(self.context.clone(), self.generation, &checkpoint, life, start_now)?;
        let is_another = life.number != Life::of(&checkpoint).number;
        let settled = if start_now || is_another { Vec::new() } else { Progress::of(&checkpoint).settled };
        let number = PartitionNumber { index: 0, incarnation: life.number };
        let partition = number.of(self.context.options.stream.clone());
        let assignment = Assignment { partition, settled, ownership: self.lease.ownership() };
        self.context.status.send_modify(|status| status.incarnation = life.number);
        self.context.tell(Control::Assigned(Assigned {
            generation: self.generation,
            assignment,
            is_recreated: std::mem::take(&mut self.recreated),
            is_recorded: registry.is_some(),
        }));
        Ok(Some(reader))
    }

    /// Returns the incarnation that is read from this checkpoint. Returns `None` if a newer leader has
    /// claimed it.
    async fn life_of(
        &mut self,
        checkpoint: &Checkpoint,
        registry: Option<&dyn IncarnationRegistry>,
    ) -> Result<Option<Life>, StreamError> {
        let options = self.context.options.clone();
        let mut life = Life::of(checkpoint);
        // Several collections have no id in common.
        life.collection = life.collection.filter(|_| options.collection.is_some());
        let Continued { number, begun } = incarnation::resume(registry, &options.stream, &life).await?;
        self.recreated |= begun;
        if number == life.number {
            return Ok(Some(life));
        }
        tracing::warn!(
            stream = %options.stream, incarnation = number, before = life.number,
            "the store does not know the incarnation of the checkpoint, another one began"
        );
        life.number = number;
        match self.context.writer.continue_in(&life).await {
            Ok(()) => Ok(Some(life)),
            Err(CheckpointError::Fenced) => Ok(None),
            Err(CheckpointError::Store(error)) => {
                Err(StreamError::of_store("the checkpoint was not written", &error))
            }
        }
    }

    async fn read(&self, reader: Reader) -> Left {
        let max_restarts = self.context.options.restart.max_attempts;
        tokio::select! {
            biased;
            ended = self.lease.keep() => Left::Lost(ended),
            () = self.context.writer.fenced() => Left::Lost(Ended::Fenced),
            exit = reader.run() => match exit {
                Exit::Failed(error) => Left::Failed(error.after_last_restart(max_restarts)),
                Exit::Recreated => Left::Recreated,
            },
            never = self.context.writer.flush_at_intervals() => match never {},
        }
    }

    /// Reports a permanent error. The lease is kept until the source is closed, because events in flight
    /// are still committed under it.
    async fn fail(&mut self, error: StreamError) {
        tracing::error!(stream = %self.context.options.stream, %error, "change stream failed");
        self.context.set_state(StreamState::Failed { class: error.class, error: error.to_string() });
        self.context.report(error);
        let why = tokio::select! {
            ended = self.lease.keep() => format!("{ended:?}"),
            () = self.context.writer.fenced() => "fenced".to_owned(),
            never = self.context.writer.flush_at_intervals() => match never {},
        };
        tracing::warn!(stream = %self.context.options.stream, why, "leadership lost after the failure");
        self.fence = None;
        self.context.tell(Control::Lost);
        std::future::pending::<()>().await;
    }
}
