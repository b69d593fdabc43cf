//! The single writer: takes all queued requests, runs them in one transaction, makes them durable once, and responds to all.
//!
//! A failed request does not affect the others of its [group]; except hand-offs and notes, which are frequent
//! and fail only with the file: they fail their whole group. Responses follow when the group is durable:
//! by the commit, or, if many letters arrive at a time, by the [redo log](crate::redo), while the transaction stays open
//! for more. If the transaction is lost before that, nothing of the group has happened, and all calls fail as not done. If the
//! commit itself fails, the outcome is unknown, and all calls fail as such; the connection is reopened. Calls that were acknowledged
//! before are [recovered](recovery) from the redo log.

mod group;
mod recovery;
mod requests;
mod rewriting;
mod thread;
mod transaction;
mod waiting;

use std::path::PathBuf;
use std::sync::Arc;

use lazaret_core::store::{Certainty, Result};
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot, watch};

use crate::error::Work;
use crate::options::Options;
use crate::recorded::Repeatable;
use crate::redo::RedoLog;
use crate::step::Step;
use requests::{Call, Command, GroupFailure, Look, Recordable, Request, stopped};
use rewriting::RewriteFailure;
use thread::Writer;

/// The writer's result, once it has stopped.
type ExitStatus = Option<std::result::Result<(), GroupFailure>>;

/// A handle to the writer's thread, which stops when it is closed or the last handle is dropped, after all requests are
/// finished.
pub(crate) struct Handle {
    commands: mpsc::Sender<Command>,
    ended: watch::Receiver<ExitStatus>,
    rewrite_failure: RewriteFailure,
}

impl Handle {
    /// Starts the writer on this connection, after recovery of the redo log.
    pub(crate) fn start(
        path: PathBuf,
        options: Options,
        connection: Connection,
        redo: Arc<RedoLog>,
    ) -> Result<Self> {
        let (commands, waiting) = mpsc::channel(options.waiting.max(1));
        let (end, ended) = watch::channel(None);
        let rewrite_failure = RewriteFailure::default();
        Writer::new(path, options, connection, redo, rewrite_failure.clone()).start(waiting, end)?;
        Ok(Self { commands, ended, rewrite_failure })
    }

    /// Runs a request, and waits until it is durable.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&mut Step<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        self.send(operation, |reply| Box::new(Call::new(operation, work, reply))).await
    }

    /// Runs a request that the redo log can record, and waits until it is durable.
    pub(crate) async fn record<C: Repeatable>(&self, call: C) -> Result<C::Answer> {
        self.send(C::OPERATION, |reply| Box::new(Recordable::new(call, reply))).await
    }

    /// Asks the writer, whose open transaction has what is only in the redo log.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        operation: &'static str,
        question: impl Fn(&Step<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        self.send(operation, |reply| Box::new(Look::new(operation, question, reply))).await
    }

    /// Waits until everything that was acknowledged before, by any process, is in the database.
    pub(crate) async fn catch_up(&self, operation: &'static str) -> Result<()> {
        self.call(operation, |_| Ok(())).await
    }

    /// Writes the whole file anew and empties the logs, so that nothing that was deleted or replaced before is in any of them.
    pub(crate) async fn rewrite(&self, operation: &'static str) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(Command::Rewrite(reply)).await;
        sent.map_err(|_| stopped(operation, Certainty::NotDone))?;
        let rewritten = answer.await.map_err(|_| stopped(operation, Certainty::MaybeDone))?;
        rewritten.map_err(|failure| failure.error(operation))
    }

    /// Commits, and writes the logs to the database. Returns the bytes that are free in the file; `None` if some of what is in the logs remains
    /// to be written.
    pub(crate) async fn merge_logs(&self, operation: &'static str) -> Result<Option<u64>> {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(Command::MergeLogs(reply)).await;
        sent.map_err(|_| stopped(operation, Certainty::NotDone))?;
        let merged = answer.await.map_err(|_| stopped(operation, Certainty::MaybeDone))?;
        merged.map_err(|failure| failure.error(operation))
    }

    /// Why the last rewrite failed; `None` if it did not.
    pub(crate) fn rewrite_failure(&self) -> Option<String> {
        self.rewrite_failure.get()
    }

    /// Stops the writer: it accepts no more requests, finishes the queued ones, merges the logs into the database
    /// file and closes it. Repeated calls return the same result.
    pub(crate) async fn close(&self) -> Result<()> {
        // If the queue is closed, it is stopping or has stopped.
        _ = self.commands.send(Command::Close).await;
        let mut ended = self.ended.clone();
        let end = ended.wait_for(Option::is_some).await;
        let end = end.map_err(|_| stopped("close", Certainty::MaybeDone))?;
        end.as_ref().map_or(Ok(()), |end| end.as_ref().copied().map_err(|failure| failure.error("close")))
    }

    async fn send<T: Send + 'static>(
        &self,
        operation: &'static str,
        request: impl FnOnce(oneshot::Sender<Result<T>>) -> Box<dyn Request>,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(Command::Run(request(reply))).await;
        sent.map_err(|_| stopped(operation, Certainty::NotDone))?;
        answer.await.unwrap_or_else(|_| Err(stopped(operation, Certainty::MaybeDone)))
    }
}
