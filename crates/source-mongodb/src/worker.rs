//! The task behind a source: it gets the lease, claims the checkpoint, and runs a reader while it leads.

use std::time::Duration;

use lazaret_core::Partition;
use lazaret_core::source::{Assignment, SourceError};
use tokio::sync::mpsc;

use crate::checkpoint::{CheckpointError, Progress};
use crate::context::{Command, Context, Control};
use crate::error::{ErrorClass, StreamError};
use crate::lease::{Ended, Lease};
use crate::options::Start;
use crate::reader::Reader;
use crate::status::StreamState;

/// How long to ask who holds the lease that was lost.
const HOLDER_LIMIT: Duration = Duration::from_secs(5);

pub(crate) struct Worker {
    context: Context,
    lease: Lease,
    /// Numbers the assignments.
    generation: u64,
    /// The fence of the lease, while it is held.
    fence: Option<u64>,
    /// The stream was started by this process: `Start::Now` applies to the first start only.
    started: bool,
}

/// Why a leadership ended.
enum Left {
    Lost(Ended),
    Failed(StreamError),
}

impl Worker {
    pub(crate) fn new(context: Context, lease: Lease) -> Self {
        Self { context, lease, generation: 0, fence: None, started: false }
    }

    /// Works until the source is closed or dropped. A dropped source keeps its lease until it expires, as after a crash.
    pub(crate) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        loop {
            let command = tokio::select! {
                biased;
                command = commands.recv() => command,
                () = self.lead() => continue,
            };
            match command {
                // The leadership goes on with a new reader.
                Some(Command::Rewind) => {}
                Some(Command::Close(done)) => {
                    let _ = done.send(self.close().await);
                    return;
                }
                None => return,
            }
        }
    }

    /// The engine has drained. The order is: flush, then release.
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

    /// Gets the lease, and reads until it ends. Returns to try again.
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
        }
    }

    async fn lose(&mut self, ended: Ended) {
        self.fence = None;
        self.context.set_state(StreamState::Standby { leader: None, until: None });
        self.context.tell(Control::Lost);
        let why = self.why(ended).await;
        tracing::warn!(stream = %self.context.options.stream, why, "leadership lost");
    }

    /// Says why the leadership ended.
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

    /// The checkpoint was claimed under a later lease. A new lease has a later fence than this one.
    async fn give_way(&mut self) {
        self.lose(Ended::Fenced).await;
        if let Err(error) = self.lease.release().await {
            tracing::warn!(stream = %self.context.options.stream, %error, "lease not released");
        }
        tokio::time::sleep(self.context.options.lease.standby).await;
    }

    /// Tries to get the lease. `None` after an error, or while another instance leads.
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

    /// Claims the checkpoint, and assigns the partition. `None` if a newer leader has claimed it.
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
                let class = match error.kind().is_temporary() {
                    true => ErrorClass::Unknown,
                    false => ErrorClass::Fatal,
                };
                return Err(StreamError::new(class, format!("the checkpoint was not read: {error}")));
            }
        };
        self.generation += 1;
        let start_now = self.context.options.start == Start::Now && !self.started;
        let reader = Reader::new(self.context.clone(), self.generation, &checkpoint, start_now)?;
        self.started = true;
        let partition = Partition::new(self.context.options.stream.clone(), 0);
        let settled = if start_now { Vec::new() } else { Progress::of(&checkpoint).settled };
        self.context.tell(Control::Assigned(self.generation, Assignment { partition, settled }));
        Ok(Some(reader))
    }

    async fn read(&self, reader: Reader) -> Left {
        let max_restarts = self.context.options.restart.max_attempts;
        tokio::select! {
            biased;
            ended = self.lease.keep() => Left::Lost(ended),
            () = self.context.writer.fenced() => Left::Lost(Ended::Fenced),
            error = reader.run() => Left::Failed(error.after_last_restart(max_restarts)),
            never = self.context.writer.flush_at_intervals() => match never {},
        }
    }

    /// Reports a permanent error. The lease is kept until the source is closed: what is in flight is still committed under it.
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
