//! The task behind a source: it connects, gets the right to read, claims the checkpoint, and runs a reader.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::source::SourceError;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::context::{Command, Context, Control, Leadership};
use crate::error::OutboxError;
use crate::options::Ack;
use crate::reader::Reader;
use crate::session::Session;
use crate::status::OutboxState;

/// The first and the longest delay before a failed step is repeated, and between two attempts to get the right to read.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// The position before all ids.
const START: i64 = -1;

pub(crate) struct Worker {
    context: Context,
    /// The connection, while it works.
    session: Option<Arc<Session>>,
    /// The session has the right to read.
    leads: bool,
    /// The partition was assigned and is not lost.
    assigned: bool,
    /// Numbers the assignments.
    generation: u64,
    delay: Duration,
}

impl Worker {
    pub(crate) fn new(context: Context) -> Self {
        Self { context, session: None, leads: false, assigned: false, generation: 0, delay: RETRY.0 }
    }

    /// Works until the source is closed or dropped. A dropped source closes its connection, and the server ends its session.
    pub(crate) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        loop {
            let command = tokio::select! {
                biased;
                command = commands.recv() => command,
                () = self.lead() => continue,
            };
            match command {
                // The session goes on with a new reader.
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
            // The server does it when the connection is closed.
            tracing::debug!(stream = %self.context.options.stream, %error, "outbox not released");
        }
    }

    /// Goes all the way to a reader, and reads until an error. Returns to try again.
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
        // What a statement no longer finds in a table that did, the next check of the table names.
        let is_temporary = error.is_temporary() || (self.assigned && matches!(error, OutboxError::Server(_)));
        if !is_temporary {
            tracing::error!(%stream, error = text, "outbox failed");
            self.context.set_state(OutboxState::Failed { error: text });
            self.context.tell(Control::Error(error.into()));
            // The engine stops with the error. What is in flight is still acknowledged.
            return std::future::pending().await;
        }
        tracing::warn!(%stream, error = text, "outbox not readable, retrying");
        self.context.set_leadership(None);
        (self.session, self.leads) = (None, false);
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

    /// Returns without an error while another session reads.
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
        let (fence, progress) = self.context.writer.claim().await?;
        let after = match progress.id {
            None => START,
            Some(id) => i64::try_from(id).map_err(|_| {
                OutboxError::refused(format!("the position {id} is larger than an id can be"))
            })?,
        };
        self.check_leftovers(&session, after).await?;
        self.generation += 1;
        let generation = self.generation;
        self.context.set_leadership(Some(Leadership { generation, fence, session: session.clone() }));
        self.context.tell(Control::Assigned(generation, progress));
        self.assigned = true;
        self.context.set_state(OutboxState::Reading);
        Err(Reader::new(self.context.clone(), session, generation, after).run().await)
    }

    /// Rows that should have been deleted are not delivered. A person must know.
    async fn check_leftovers(&self, session: &Session, after: i64) -> Result<(), OutboxError> {
        if self.context.options.ack == Ack::Delete
            && let Some(id) = session.first_up_to(after).await?
        {
            let stream = &self.context.options.stream;
            tracing::warn!(
                %stream, position = after, first_id = id,
                "outbox rows at or below the position, not delivered: another ack mode read them, or their ids were not drawn in order"
            );
        }
        Ok(())
    }
}
