//! Opens the stream at the position in the checkpoint, at the start position, or where lost history
//! leaves it.

use std::sync::atomic::Ordering;

use bson::RawDocumentBuf;
use mongodb::change_stream::ChangeStream;

use super::{Exit, Reader, anchor, invalidated, token_document};
use crate::error::{ErrorClass, StreamError};
use crate::options::{OnHistoryLost, OnInvalidate, Start};
use crate::position::StreamPosition;
use crate::resume::{AnchorKind, Candidate};
use crate::stream::{Connection, OpenAt};

impl Reader {
    /// Opens the stream where it continues, or where `on_history_lost` says.
    pub(super) async fn enter(&mut self) -> Result<ChangeStream<RawDocumentBuf>, Exit> {
        self.repeats.opened();
        match self.establish().await {
            Err(error) if error.class.is_position_refused() => self.recover(error).await,
            other => other.map_err(Exit::from),
        }
    }

    async fn connection(&mut self) -> Result<&Connection, StreamError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::new(&self.context.options).await?,
        };
        Ok(self.connection.insert(connection))
    }

    /// Opens the stream at the first position that the server accepts.
    async fn establish(&mut self) -> Result<ChangeStream<RawDocumentBuf>, StreamError> {
        if std::mem::take(&mut self.start_now) {
            let opened = self.start_now().await;
            // The stream is not started yet.
            self.start_now = opened.is_err();
            return opened;
        }
        let mut refused = None;
        while let Some(candidate) = self.candidates.first().cloned() {
            let at = match candidate.after_invalidation {
                false => OpenAt::Position(&candidate.position),
                true if self.context.options.on_invalidate == OnInvalidate::StartAfter => {
                    OpenAt::StartAfter(&candidate.position)
                }
                true => return Err(invalidated()),
            };
            match self.open_at(&candidate.position, at).await {
                Ok(stream) => return Ok(stream),
                Err(error) if error.class.is_position_refused() => {
                    if candidate.kind == AnchorKind::Seen && self.candidates.len() > 1 {
                        self.decide(format!(
                            "the seen position was refused ({}), trying the processed one",
                            error.detail
                        ));
                    }
                    refused = Some(error);
                    if self.candidates.len() == 1 {
                        break;
                    }
                    self.candidates.remove(0);
                }
                Err(error) => return Err(error),
            }
        }
        match refused {
            Some(error) => Err(error),
            None => self.first_start().await,
        }
    }

    /// Opens the stream at a position, if the server has reached it.
    async fn open_at(
        &mut self,
        position: &StreamPosition,
        at: OpenAt<'_>,
    ) -> Result<ChangeStream<RawDocumentBuf>, StreamError> {
        let newest = self.connection().await?.last_operation().await?;
        self.check_reached(position, newest)?;
        self.connection().await?.open(at).await
    }

    /// Starts a stream that has no checkpoint.
    async fn first_start(&mut self) -> Result<ChangeStream<RawDocumentBuf>, StreamError> {
        match self.context.options.start {
            Start::Resume | Start::Now => self.start_now().await,
            Start::OplogStart => self.start_at_oplog_start().await,
            Start::At(time) => self.start_at(StreamPosition::At(time)).await,
        }
    }

    /// Starts with events from now on. A checkpoint exists before the first event is delivered, so that
    /// a crash before the first commit loses nothing (I1).
    async fn start_now(&mut self) -> Result<ChangeStream<RawDocumentBuf>, StreamError> {
        let connection = self.connection().await?;
        let stream = connection.open(OpenAt::Now).await?;
        // Only a server that certifies positions returns one before the first event.
        if let Some(token) = stream.resume_token().and_then(|token| token_document(&token)) {
            self.save_start(StreamPosition::After(token)).await?;
            return Ok(stream);
        }
        drop(stream);
        let time = self.connection().await?.now().await?;
        self.start_at(StreamPosition::At(time)).await
    }

    async fn start_at_oplog_start(&mut self) -> Result<ChangeStream<RawDocumentBuf>, StreamError> {
        let time = self.connection().await?.oplog_start().await?;
        self.start_at(StreamPosition::At(time)).await
    }

    async fn start_at(
        &mut self,
        position: StreamPosition,
    ) -> Result<ChangeStream<RawDocumentBuf>, StreamError> {
        let stream = self.connection().await?.open(OpenAt::Position(&position)).await?;
        self.save_start(position).await?;
        Ok(stream)
    }

    async fn save_start(&mut self, position: StreamPosition) -> Result<(), StreamError> {
        if self.history_replaced {
            self.life = self.next_life(None).await?;
        }
        let written = self.context.writer.start_at(anchor(&position), &self.life).await;
        self.written(written).await?;
        self.context.started.store(true, Ordering::Relaxed);
        self.tail = None;
        self.candidates = vec![Candidate::new(position, AnchorKind::Seen)];
        Ok(())
    }

    /// Decides where to continue when the server refused the position. If the server also refuses the
    /// new position, which it provided itself, the error is retried with the delays of restarts. The
    /// reason is then not a lost history, and may last.
    pub(super) async fn recover(&mut self, error: StreamError) -> Result<ChangeStream<RawDocumentBuf>, Exit> {
        let from = match self.context.options.on_history_lost {
            OnHistoryLost::Fail => return Err(error.into()),
            _ if std::mem::replace(&mut self.recovered, true) => return Err(error.retried().into()),
            OnHistoryLost::FromNow => "from now; the events in between are skipped",
            OnHistoryLost::FromOplogStart => "at the oldest entry of the oplog; older events are lost",
        };
        // Delivered events are settled first, because a commit of them must not restore the refused position.
        self.context.writer.until_settled(self.tail.as_ref()).await;
        self.decide(format!("the position was refused ({}); going on {from}", error.detail));
        self.history_replaced = error.class == ErrorClass::HistoryReplaced;
        let started = match self.context.options.on_history_lost {
            OnHistoryLost::FromOplogStart => self.start_at_oplog_start().await,
            OnHistoryLost::FromNow | OnHistoryLost::Fail => self.start_now().await,
        };
        let stream = started.map_err(|error| match error.class.is_position_refused() {
            true => error.retried(),
            false => error,
        })?;
        match self.history_replaced {
            true => Err(Exit::Recreated),
            false => Ok(stream),
        }
    }
}
