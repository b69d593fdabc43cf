//! The task behind a source. It connects, gets the right to read, claims the checkpoint, and runs a reader.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use lazaret_core::incarnation::IncarnationRegistry;
use lazaret_core::message::PartitionNumber;
use lazaret_core::source::SourceError;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::checkpoint::{Progress, WriteError};
use crate::context::{Assigned, Command, Context, Control, Leadership};
use crate::continuation::{self, Continuation, Observed};
use crate::error::OutboxError;
use crate::incarnation;
use crate::reader::Reader;
use crate::row;
use crate::session::Session;
use crate::status::OutboxState;

/// The first and the maximum delay before a failed step is repeated, and between attempts to get the
/// right to read.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

pub(crate) struct Worker {
    context: Context,
    /// The connection while it works.
    session: Option<Arc<Session>>,
    /// Whether the session has the right to read.
    leads: bool,
    /// Whether the partition is assigned and not lost.
    assigned: bool,
    /// The number of the current assignment.
    generation: u64,
    /// Whether ids of rows that were read refer to other rows. This is also recorded in the position,
    /// for the next process.
    replaced: bool,
    delay: Duration,
}

impl Worker {
    pub(crate) fn new(context: Context) -> Self {
        let (session, leads, assigned, replaced) = (None, false, false, false);
        Self { context, session, leads, assigned, generation: 0, replaced, delay: RETRY.0 }
    }

    /// Works until the source is closed or dropped. A dropped source closes its connection, and the
    /// server ends its session.
    pub(crate) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        loop {
            let command = tokio::select! {
                biased;
                command = commands.recv() => command,
                () = self.lead() => continue,
            };
            match command {
                // The session continues with a new reader.
                Some(Command::Rewind) => {}
                Some(Command::Close(done)) => {
                    self.close().await;
                    let _ = done.send(());
                    return;
                }
                None => return,
            }
        }
    }

    async fn close(&mut self) {
        self.context.set_leadership(None);
        self.context.set_state(OutboxState::Closed);
        if let Some(session) = self.session.take()
            && let Err(error) = session.unlock().await
        {
            // The server releases the lock when the connection is closed.
            tracing::debug!(stream = %self.context.options.stream, %error, "outbox not released");
        }
    }

    /// Gets all the way to a reader, and reads until an error. Returns so that the caller tries again.
    async fn lead(&mut self) {
        let began = Instant::now();
        let error = match self.try_lead().await {
            Ok(()) => return self.wait().await,
            Err(error) => error,
        };
        if began.elapsed() > RETRY.1 {
            self.delay = RETRY.0;
        }
        let stream = self.context.options.stream.clone();
        let text = error.to_string();
        // If a statement fails on a table that was suitable before, the next check of the table names
        // the problem.
        let is_temporary = error.is_temporary() || (self.assigned && matches!(error, OutboxError::Server(_)));
        if !is_temporary {
            tracing::error!(%stream, error = text, "outbox failed");
            self.context.set_state(OutboxState::Failed { error: text });
            self.context.tell(Control::Error(error.into()));
            // The engine stops with the error. Messages in flight are still acknowledged.
            return std::future::pending().await;
        }
        tracing::warn!(%stream, error = text, "outbox not readable, retrying");
        self.context.set_leadership(None);
        if let Some(session) = self.session.take() {
            // A commit in progress may still use the session.
            session.ownership().end();
        }
        self.leads = false;
        if std::mem::take(&mut self.assigned) {
            self.context.tell(Control::Lost);
        }
        self.context
            .tell(Control::Error(SourceError::temporary(format!("the outbox is not readable: {text}"))));
        self.context.set_state(OutboxState::Restarting { error: text });
        self.wait().await;
    }

    async fn wait(&mut self) {
        tokio::time::sleep(self.delay.min(self.context.options.heartbeat())).await;
        self.delay = (self.delay * 2).min(RETRY.1);
    }

    /// Tries to lead, and reads until an error. Returns without an error while another session reads.
    async fn try_lead(&mut self) -> Result<(), OutboxError> {
        let session = match &self.session {
            Some(session) => session.clone(),
            None => {
                self.context.set_state(OutboxState::Starting);
                let opened = Session::open(&self.context.options, self.context.announced.clone()).await?;
                self.session.insert(Arc::new(opened)).clone()
            }
        };
        if !self.leads {
            self.leads = session.try_lead().await?;
        }
        if !self.leads {
            let leader = session.leader().await?;
            self.context.set_state(OutboxState::Standby { leader });
            return Ok(());
        }
        let (fence, known) = self.context.writer.claim().await?;
        let known = if self.replaced { known.replaced() } else { known };
        let registry = self.context.registry();
        let before = known.incarnation;
        let progress = self.continue_from(&session, fence, known, registry.as_deref()).await?;
        self.replaced = false;
        let after = continuation::after(&progress);
        self.generation += 1;
        let partition = PartitionNumber { index: 0, incarnation: progress.incarnation };
        let position = Arc::new(AtomicI64::new(after));
        let ownership = session.ownership();
        let leadership = Leadership { generation: self.generation, fence, session, partition, position };
        self.context.set_leadership(Some(leadership.clone()));
        self.context.status.send_modify(|status| status.incarnation = progress.incarnation);
        self.context.tell(Control::Assigned(Box::new(Assigned {
            generation: self.generation,
            partition: partition.of(self.context.options.stream.clone()),
            is_recreated: progress.incarnation != before,
            is_recorded: registry.is_some(),
            progress,
            ownership,
        })));
        self.assigned = true;
        self.context.set_state(OutboxState::Reading);
        let error = Reader::new(self.context.clone(), leadership, after).run().await;
        if matches!(error, OutboxError::Replaced(_)) {
            self.replaced = true;
            if let Err(unmarked) = self.context.writer.mark_replaced(fence).await {
                let stream = &self.context.options.stream;
                tracing::warn!(%stream, ?unmarked, "incarnation of the outbox not noted in its position");
            }
        }
        Err(error)
    }

    /// Decides what the position is worth, and writes the result if it changes.
    async fn continue_from(
        &self,
        session: &Session,
        fence: u64,
        known: Progress,
        registry: Option<&dyn IncarnationRegistry>,
    ) -> Result<Progress, OutboxError> {
        let options = &self.context.options;
        let observed = self.observe(session, &known).await?;
        let decided = continuation::decide(options.ack, &known, &observed, options.start_over);
        let (progress, why) = match decided {
            Continuation::Refused(why) => return Err(OutboxError::Refused(why)),
            Continuation::Behind(_) => (known.clone(), None),
            Continuation::Anew(progress, why) => (progress, Some(why)),
        };
        // Recorded before the position: a new incarnation's position under the old number would be worse
        // than a number without a position.
        let incarnation = match registry {
            None => known.incarnation + u32::from(why.is_some()),
            Some(registry) => {
                let before = known.incarnation;
                incarnation::record(registry, &options.stream, &observed.identity, before, why.is_some())
                    .await?
            }
        };
        let (identity, ack) = (Some(observed.identity), Some(options.ack));
        let progress = Progress { incarnation, identity, ack, ..progress };
        if progress != known {
            match self.context.writer.write(fence, &progress).await {
                Ok(()) => {}
                Err(WriteError::Store(error)) => return Err(error.into()),
                Err(WriteError::Fenced) => {
                    return Err(OutboxError::passing("another instance has claimed the position"));
                }
            }
        }
        if let Some(why) = why {
            let (stream, after) = (&options.stream, continuation::after(&progress));
            tracing::warn!(%stream, incarnation, after, why, "new incarnation of the outbox began");
        }
        Ok(progress)
    }

    /// Requests what the decision needs from the server.
    async fn observe(&self, session: &Session, known: &Progress) -> Result<Observed, OutboxError> {
        if let Some(id) = known.id.filter(|id| i64::try_from(*id).is_err()) {
            return Err(OutboxError::refused(format!("the position {id} is larger than an id can be")));
        }
        let after = continuation::after(known);
        let anchor = session.read(after.saturating_sub(1), after, 1).await?;
        let (stream, number) = (&self.context.options.stream, PartitionNumber { index: 0, incarnation: 0 });
        let anchor = anchor.first().map(|row| row::message(row, session.table.is_json, stream, number));
        Ok(Observed {
            identity: session.identity.clone(),
            first_settled: session.first_up_to(after).await?,
            anchor: anchor.as_ref().map(row::fingerprint),
            // Fails if the sequence restarted since the session was opened, which changes the identity.
            last_id: session.last_id().await?,
        })
    }
}
