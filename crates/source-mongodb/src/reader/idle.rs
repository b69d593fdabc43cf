//! Handles a server without events: keeps the certified position and the status current.

use std::time::Duration;

use bson::Document;
use jiff::Timestamp;
use lazaret_core::StreamName;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Reader, anchor};
use crate::checkpoint::CheckpointError;
use crate::error::{ErrorClass, StreamError};
use crate::position::{StreamPosition, wall_time};
use crate::resume::{AnchorKind, Candidate};
use crate::status::OplogWindow;
use crate::stream::Connection;

/// The response time below which a server did not wait for events.
const ANSWERED_AT_ONCE: Duration = Duration::from_millis(10);
/// The pause before such a server is asked again.
const POLL: Duration = Duration::from_millis(20);
/// The interval between checks of the oplog.
const OPLOG_INTERVAL: Duration = Duration::from_secs(60);
/// The timeout of such a check.
const OPLOG_LIMIT: Duration = Duration::from_secs(5);
/// The interval between checks whether the server has reached the position, as a number of waits for
/// events. The second constant is its maximum.
const LOOK_ANSWERS: u32 = 10;
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// The pause after a failed write of a heartbeat.
const HEARTBEAT_RETRY: Duration = Duration::from_secs(5);

impl Reader {
    /// Handles an answer without an event. Writes the certified position from time to time, so that it
    /// does not fall out of the oplog.
    pub(super) async fn idle(
        &mut self,
        certified: Option<Document>,
        is_alive: bool,
        asked: Instant,
    ) -> Result<(), StreamError> {
        self.context.status.send_modify(|status| status.answered_at = Some(Timestamp::now()));
        if !is_alive {
            let why = "the server ended the stream without an event; let `invalidate` pass the pipeline";
            return Err(StreamError::new(ErrorClass::Fatal, why));
        }
        if let Some(token) = certified
            && self.certified.as_ref() != Some(&token)
        {
            self.progressed = true;
            let mut seen = Candidate::new(StreamPosition::After(token.clone()), AnchorKind::Seen);
            // After an invalidation, the server certifies the invalidation itself until it has a later
            // position.
            let is_known = |known: &Candidate| known.after_invalidation && known.position == seen.position;
            let is_invalidation = self.candidates.iter().any(is_known);
            seen.after_invalidation |= is_invalidation;
            self.candidates = vec![seen];
            self.certified = Some(token);
        }
        self.look_at_history().await?;
        self.heartbeat().await?;
        if asked.elapsed() < ANSWERED_AT_ONCE {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Checks from time to time whether the server has reached the position. When a connection is cut,
    /// the driver resumes the stream by itself. If the server was restored in the meantime, its changes
    /// would be skipped.
    async fn look_at_history(&mut self) -> Result<(), StreamError> {
        let interval = self.context.options.max_await.saturating_mul(LOOK_ANSWERS).min(LOOK_INTERVAL);
        if self.looked_at.elapsed() < interval {
            return Ok(());
        }
        self.looked_at = Instant::now();
        let candidate = self.candidates.first().map(|candidate| candidate.position.clone());
        let Some((position, connection)) = candidate.zip(self.connection.clone()) else { return Ok(()) };
        match tokio::time::timeout(OPLOG_LIMIT, connection.last_operation()).await {
            Ok(Ok(newest)) => self.check_reached(&position, newest),
            // The stream itself reports the problem.
            Ok(Err(error)) => {
                tracing::debug!(stream = %self.context.options.stream, %error, "last operation of the server unknown");
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }

    async fn heartbeat(&mut self) -> Result<(), StreamError> {
        let Some(interval) = self.context.writer.idle_heartbeat() else { return Ok(()) };
        let Some(token) = self.certified.clone() else { return Ok(()) };
        // While an event is in flight, the position would skip it (I1).
        if self.active.elapsed() < interval || !self.context.writer.is_settled(self.tail.as_ref()) {
            return Ok(());
        }
        let anchor = anchor(&StreamPosition::After(token));
        let written = self.context.writer.certify(self.tail.as_ref(), anchor).await;
        match written {
            Err(CheckpointError::Store(error)) if error.kind().is_temporary() => {
                tracing::warn!(stream = %self.context.options.stream, %error, "idle heartbeat not written, retrying");
                self.active =
                    Instant::now() - interval.saturating_sub(HEARTBEAT_RETRY).min(self.active.elapsed());
                Ok(())
            }
            other => {
                self.active = Instant::now();
                self.written(other).await
            }
        }
    }

    /// Keeps the status current: the age of the position and, from time to time, the oplog. Nothing
    /// waits for this.
    pub(super) fn observe(&mut self) {
        let resumable_at = self.context.writer.resumable_at();
        self.context.status.send_if_modified(|status| {
            let is_new = status.token_at != resumable_at;
            status.token_at = resumable_at;
            is_new
        });
        if self.oplog_at.is_some_and(|at| at.elapsed() < OPLOG_INTERVAL) {
            return;
        }
        self.oplog_at = Some(Instant::now());
        let Some(connection) = self.connection.clone() else { return };
        let (status, stream) = (self.context.status.clone(), self.context.options.stream.clone());
        // Cancels an earlier check that is still in progress.
        self.oplog = JoinSet::new();
        self.oplog.spawn(async move {
            let oplog = oplog_window(&connection, &stream).await;
            status.send_modify(|status| status.oplog = oplog);
        });
    }
}

/// Reads the times of the oplog. This needs rights that the stream does not need, so it is only a
/// convenience.
async fn oplog_window(connection: &Connection, stream: &StreamName) -> Option<OplogWindow> {
    match tokio::time::timeout(OPLOG_LIMIT, connection.oplog_window()).await {
        Err(_) => None,
        Ok(Ok(window)) => window
            .map(|(oldest, newest)| OplogWindow { oldest: wall_time(oldest), newest: wall_time(newest) }),
        Ok(Err(error)) => {
            tracing::debug!(%stream, %error, "oplog not readable");
            None
        }
    }
}
