//! Reads the stream: finds the position, delivers events in order, certifies idle positions, and
//! restarts after errors.

mod establish;
mod idle;
mod recreation;
mod repeats;

use std::convert::Infallible;
use std::time::Duration;

use bson::{Document, RawDocumentBuf};
use bytes::Bytes;
use futures_util::poll;
use jiff::Timestamp;
use lazaret_core::Operation;
use lazaret_core::store::{Anchor, Checkpoint};
use mongodb::change_stream::ChangeStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::repeats::Repeats;
use crate::checkpoint::{CheckpointError, Progress, is_incarnation_ended};
use crate::context::{Batch, Context};
use crate::error::{ErrorClass, StreamError};
use crate::event::ReadEvent;
use crate::incarnation::Life;
use crate::options::OnInvalidate;
use crate::pipeline;
use crate::position::{StreamPosition, wall_time};
use crate::resume::{AnchorKind, Candidate, candidates};
use crate::status::StreamState;
use crate::stream::Connection;

/// The maximum number of events in a batch.
const BATCH: usize = 256;
/// The maximum number of bytes of a batch's events, beyond the first event. The source builds the
/// messages of a batch at once.
const BATCH_BYTES: usize = 1024 * 1024;
/// How long a request may take beyond the time that the server waits for events.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// The reason why a stream that goes back is reopened.
const REPEATED: &str = "the connection was cut, and the driver resumed the stream at an earlier position";

/// Events that were read and not passed on yet.
#[derive(Default)]
struct Pending {
    events: Vec<ReadEvent>,
    bytes: usize,
}

impl Pending {
    fn push(&mut self, event: ReadEvent) {
        self.bytes += event.raw.as_bytes().len();
        self.events.push(event);
    }

    fn is_full(&self) -> bool {
        self.events.len() >= BATCH || self.bytes >= BATCH_BYTES
    }
}

/// The reason why the stream is no longer read.
pub(crate) enum Exit {
    Failed(StreamError),
    /// A different incarnation of the stream begins here, and is recorded. Everything delivered from the
    /// previous one is settled.
    Recreated,
}

impl From<StreamError> for Exit {
    fn from(error: StreamError) -> Self {
        Self::Failed(error)
    }
}

/// Reads the stream for one assignment.
pub(crate) struct Reader {
    context: Context,
    generation: u64,
    connection: Option<Connection>,
    /// The positions to try, in order. After the first event, it holds only the last position that was read.
    candidates: Vec<Candidate>,
    /// The incarnation that is read.
    life: Life,
    /// Whether the stream was invalidated. What is created under the same name is then a new incarnation.
    after_invalidation: bool,
    /// The invalidation that was read, until it is recorded as the end.
    ending: Option<StreamPosition>,
    /// Whether an `invalidate` event is delivered.
    delivers_invalidation: bool,
    /// Whether a refused position was replaced since the stream was last started.
    recovered: bool,
    /// Whether the history of the server is a different one, so that a new start position begins an
    /// incarnation.
    history_replaced: bool,
    /// The number of consecutive checks in which the last operation of the server was before the position.
    behind: u32,
    /// When that was last checked.
    looked_at: Instant,
    /// Whether to ignore the checkpoint and start now.
    start_now: bool,
    /// The token of the last delivered event, or the token from which the stream resumed.
    tail: Option<Bytes>,
    last_offset: u64,
    repeats: Repeats,
    /// The token of the last event, until it is recorded as the position from which to continue.
    read_up_to: Option<Bytes>,
    /// The number of events that the status does not count yet, and the time of the last one.
    uncounted: (u64, Option<Timestamp>),
    /// The last position that the server certified.
    certified: Option<Document>,
    /// Whether the stream made progress since the last restart.
    progressed: bool,
    /// When something was last read or durably certified.
    active: Instant,
    oplog_at: Option<Instant>,
    /// The check of the oplog in progress.
    oplog: JoinSet<()>,
}

impl Reader {
    pub(crate) fn new(
        context: Context,
        generation: u64,
        checkpoint: &Checkpoint,
        life: Life,
        start_now: bool,
    ) -> Result<Self, StreamError> {
        let candidates = candidates(checkpoint).map_err(|why| {
            let name = context.options.checkpoint_name();
            StreamError::new(
                ErrorClass::Fatal,
                format!("the checkpoint {name} does not belong to a change stream: {why}"),
            )
        })?;
        let progress = Progress::of(checkpoint);
        // An event that passes the stages only for the source is not delivered to the handler.
        let delivers_invalidation = context.options.operations.contains(&Operation::Invalidate)
            || !pipeline::are_filtered(&context.options.pipeline);
        Ok(Self {
            context,
            generation,
            connection: None,
            candidates,
            life,
            after_invalidation: is_incarnation_ended(checkpoint),
            ending: None,
            delivers_invalidation,
            recovered: false,
            history_replaced: false,
            behind: 0,
            looked_at: Instant::now(),
            start_now,
            tail: progress.token,
            last_offset: progress.offset,
            repeats: Repeats::default(),
            read_up_to: None,
            uncounted: (0, None),
            certified: None,
            progressed: false,
            active: Instant::now(),
            oplog_at: None,
            oplog: JoinSet::new(),
        })
    }

    /// Reads until an error that no restart can fix, or until the stream begins a new incarnation.
    pub(crate) async fn run(mut self) -> Exit {
        let mut attempt = 0;
        loop {
            let error = match self.session().await {
                Exit::Failed(error) => error,
                Exit::Recreated => return Exit::Recreated,
            };
            if std::mem::take(&mut self.progressed) {
                attempt = 0;
            }
            attempt += 1;
            let delay = self.context.options.restart.delay(attempt).filter(|_| error.is_temporary());
            let Some(delay) = delay else { return Exit::Failed(error) };
            let (class, text) = (error.class, error.to_string());
            tracing::warn!(
                stream = %self.context.options.stream, attempt, error = text, "change stream failed, restarting"
            );
            self.context.status.send_modify(|status| status.restarts += 1);
            self.context.set_state(StreamState::Restarting { attempt, class, error: text });
            self.context.report(error);
            tokio::time::sleep(delay).await;
        }
    }

    /// Opens the stream and reads it until an error or a new incarnation.
    async fn session(&mut self) -> Exit {
        match self.try_session().await {
            Ok(never) => match never {},
            Err(exit) => exit,
        }
    }

    async fn try_session(&mut self) -> Result<Infallible, Exit> {
        self.recovered = false;
        if let Some(position) = self.ending.clone() {
            self.end(position).await?;
        }
        let mut stream = self.enter().await?;
        self.context.status.send_modify(|status| {
            (status.state, status.opened_at) = (StreamState::Reading, Some(Timestamp::now()));
        });
        loop {
            match self.read(&mut stream).await {
                Ok(()) => {}
                // The server may check the position only at the first request. Then the other positions
                // are tried.
                Err(Exit::Failed(error))
                    if error.class.is_position_refused() && self.candidates.len() > 1 =>
                {
                    self.candidates.remove(0);
                    stream = self.enter().await?;
                }
                Err(Exit::Failed(error)) if error.class.is_position_refused() => {
                    stream = self.recover(error).await?;
                }
                Err(exit) => return Err(exit),
            }
        }
    }

    /// Reads until the server answers without an event, or the stream ends.
    async fn read(&mut self, stream: &mut ChangeStream<RawDocumentBuf>) -> Result<(), Exit> {
        let mut batch = Pending::default();
        let read = self.read_events(stream, &mut batch).await;
        // The stream continues after the last event that was read, so all events are delivered, even
        // before an error (I1).
        self.deliver(&mut batch).await;
        self.note_position();
        read
    }

    async fn read_events(
        &mut self,
        stream: &mut ChangeStream<RawDocumentBuf>,
        batch: &mut Pending,
    ) -> Result<(), Exit> {
        let limit = self.context.options.max_await + REQUEST_LIMIT;
        loop {
            let mut asked = None;
            let answer = {
                let next = stream.next_if_any();
                tokio::pin!(next);
                match poll!(next.as_mut()) {
                    std::task::Poll::Ready(answer) => answer,
                    std::task::Poll::Pending => {
                        asked = Some(Instant::now());
                        // While a request is in progress, the events read so far are passed on.
                        self.deliver(batch).await;
                        self.observe();
                        let late = format!("the server did not answer within {limit:?}");
                        let answer = tokio::time::timeout(limit, next).await;
                        answer.map_err(|_| StreamError::new(ErrorClass::Network, late))?
                    }
                }
            };
            let Some(raw) = answer.map_err(StreamError::from)? else {
                self.deliver(batch).await;
                self.note_position();
                let certified = stream.resume_token().and_then(|token| token_document(&token));
                let asked = asked.unwrap_or_else(Instant::now);
                return self.idle(certified, stream.is_alive(), asked).await.map_err(Exit::from);
            };
            let mut event = ReadEvent::of(raw, self.last_offset).ok_or_else(|| {
                StreamError::new(
                    ErrorClass::Fatal,
                    "an event has no resume token; does the pipeline remove `_id`?",
                )
            })?;
            if self.repeats.is_repeated(event.cluster_time, event.position.token.as_ref()) {
                // Neither this event nor later ones are delivered. The stream is reopened after the last
                // event (I1).
                return Err(StreamError::new(ErrorClass::Resumable, REPEATED).into());
            }
            if self.begins_incarnation(&event) {
                self.deliver(batch).await;
                self.note_position();
                return Err(self.recreated(event.collection).await);
            }
            event.position.incarnation = self.life.number;
            if let Some(position) = self.take(event, batch) {
                self.deliver(batch).await;
                self.note_position();
                return self.invalidate(position, stream).await;
            }
            if batch.is_full() {
                self.deliver(batch).await;
            }
        }
    }

    /// Adds an event to the batch if its operation is selected. Returns the position of an invalidation.
    fn take(&mut self, event: ReadEvent, batch: &mut Pending) -> Option<StreamPosition> {
        let (operation, is_invalidation) = (event.operation, event.is_invalidation);
        self.last_offset = event.position.offset;
        self.progressed = true;
        let (count, at) = self.uncounted;
        self.uncounted = (count + 1, event.cluster_time.map(wall_time).or(at));
        self.read_up_to = event.position.token.clone();
        if is_invalidation {
            self.ending = position_behind(self.read_up_to.as_ref());
        }
        let selected = &self.context.options.operations;
        let is_selected = selected.is_empty() || selected.contains(&operation);
        if is_selected && (!is_invalidation || self.delivers_invalidation) {
            self.tail = event.position.token.clone();
            batch.push(event);
        }
        self.ending.clone()
    }

    /// Records that the stream continues after the last event, whatever happens to that event.
    fn note_position(&mut self) {
        if let Some(position) = position_behind(self.read_up_to.take().as_ref()) {
            let mut processed = Candidate::new(position, AnchorKind::Processed);
            processed.after_invalidation |= self.ending.is_some();
            self.candidates = vec![processed];
        }
    }

    /// Passes a batch on and counts its events. Waits while the source is paused.
    async fn deliver(&mut self, batch: &mut Pending) {
        let (events, at) = std::mem::take(&mut self.uncounted);
        if events > 0 {
            self.active = Instant::now();
            self.context.status.send_modify(|status| {
                status.events += events;
                status.last_event_at = at.or(status.last_event_at);
            });
        }
        let Pending { events, .. } = std::mem::take(batch);
        if !events.is_empty() {
            // The receiver lives as long as the source.
            let _ = self.context.batches.send(Batch { generation: self.generation, events }).await;
        }
    }

    /// Handles the end of the stream by an invalidation. Starts after it, or fails.
    async fn invalidate(
        &mut self,
        position: StreamPosition,
        stream: &mut ChangeStream<RawDocumentBuf>,
    ) -> Result<(), Exit> {
        self.end(position).await?;
        *stream = self.enter().await?;
        self.context.set_state(StreamState::Reading);
        Ok(())
    }

    /// Records an invalidation as the end when everything before it is settled. Fails if the stream does
    /// not continue after it. An end that could not be written is written at the restart, because the
    /// server does not send the event again.
    async fn end(&mut self, position: StreamPosition) -> Result<(), Exit> {
        self.context.set_state(StreamState::Invalidated);
        tracing::warn!(stream = %self.context.options.stream, "change stream invalidated");
        self.context.writer.until_settled(self.tail.as_ref()).await;
        let written = self.context.writer.end_with(position.to_bytes(), self.last_offset, &self.life).await;
        self.written(written).await?;
        self.ending = None;
        self.tail = Some(position.to_bytes());
        self.after_invalidation = true;
        self.candidates = vec![Candidate { position, kind: AnchorKind::Processed, after_invalidation: true }];
        match self.context.options.on_invalidate {
            OnInvalidate::Stop => Err(invalidated().into()),
            OnInvalidate::StartAfter => {
                self.decide(
                    "the stream was invalidated by a drop or a rename; going on behind it, with what is created under the \
                     same name"
                        .to_owned(),
                );
                Ok(())
            }
        }
    }

    /// Converts the result of a write. A fenced reader waits, because its worker drops it.
    async fn written(&self, written: Result<(), CheckpointError>) -> Result<(), StreamError> {
        match written {
            Ok(()) => Ok(()),
            Err(CheckpointError::Fenced) => std::future::pending().await,
            Err(CheckpointError::Store(error)) => {
                Err(StreamError::of_store("the checkpoint was not written", &error))
            }
        }
    }

    /// Records a decision that a person should know.
    fn decide(&self, text: String) {
        tracing::warn!(stream = %self.context.options.stream, decision = text, "change stream position decided");
        self.context.status.send_modify(|status| status.decide(text));
    }
}

fn invalidated() -> StreamError {
    StreamError::new(
        ErrorClass::Fatal,
        "it was invalidated: its collection was dropped or renamed, or its database dropped; all events before that are settled; \
         watch the new name with another stream, or set `on-invalidate: start-after` to go on with what is created under the same \
         name",
    )
}

/// Returns the position after the event with this token. The source wrote the token itself, so it can be
/// read.
fn position_behind(token: Option<&Bytes>) -> Option<StreamPosition> {
    StreamPosition::from_bytes(token?).ok()
}

/// Returns the anchor of a position, with the time in its token.
fn anchor(position: &StreamPosition) -> Anchor {
    let at = position.time().map_or_else(Timestamp::now, wall_time);
    Anchor { token: position.to_bytes(), at }
}

fn token_document(token: &mongodb::change_stream::event::ResumeToken) -> Option<Document> {
    bson::serialize_to_bson(token).ok()?.as_document().cloned()
}
