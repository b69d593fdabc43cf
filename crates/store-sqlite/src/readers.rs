//! The reader threads: a few connections that run queries beside the writer, each on a consistent snapshot.
//!
//! A query sees every write that was acknowledged before, by this process or another. If such a write is only
//! in the [redo log](crate::redo), the query is returned, to be repeated once the writer has committed it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use lazaret_core::store::{ErrorKind, Result, StoreError};
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot, watch};

use crate::error::Work;
use crate::options::Options;
use crate::redo::{Mark, RedoLog};
use crate::rows::nanos;
use crate::schema;

/// The snapshot of a query.
pub(crate) struct View<'a> {
    pub(crate) connection: &'a Connection,
    /// The store's time, in nanoseconds since 1970.
    pub(crate) now: i64,
}

type Question = Box<dyn FnOnce(View<'_>) + Send>;

/// The result of a query.
pub(crate) enum QueryResult<T, Q> {
    Answer(T),
    /// The redo log has records that the snapshot lacks.
    Behind(Q),
}

/// An item of the readers' queue.
enum Command {
    Ask(Question),
    /// Run the queued queries, accept no more, and stop.
    Close,
}

/// A handle to the reader threads, which stop when they are closed or the last handle is dropped.
pub(crate) struct Handle {
    commands: mpsc::Sender<Command>,
    /// Each reader holds a sender until it has closed the file.
    ended: watch::Receiver<()>,
    redo: Arc<RedoLog>,
}

impl Handle {
    /// Starts the readers on a file that is open for writing.
    pub(crate) fn start(path: &Path, options: &Options, redo: &Arc<RedoLog>) -> Result<Self> {
        let (commands, waiting) = mpsc::channel(options.waiting.max(1));
        let (alive, ended) = watch::channel(());
        let waiting = Arc::new(Mutex::new(waiting));
        for number in 0..options.readers.max(1) {
            let connection = schema::connect_reader(path, options)?;
            let (waiting, clock, alive) = (waiting.clone(), options.clock.clone(), alive.clone());
            let read = move || {
                while let Some(question) = next(&waiting) {
                    question(View { connection: &connection, now: nanos(clock.now()) });
                }
                drop(connection);
                drop(alive);
            };
            let started = thread::Builder::new().name(format!("lazaret-reader-{number}")).spawn(read);
            started.map_err(|error| {
                StoreError::not_done(ErrorKind::Unavailable, "open", "failed to start a reader thread")
                    .with_source(error)
            })?;
        }
        Ok(Self { commands, ended, redo: redo.clone() })
    }

    /// Stops the readers: they accept no more queries, finish the queued ones and close
    /// the file.
    pub(crate) async fn close(&self) {
        // If the queue is closed, they are stopping or have stopped.
        _ = self.commands.send(Command::Close).await;
        // Nothing is ever sent: the channel closes when the last reader has stopped.
        _ = self.ended.clone().changed().await;
    }

    /// Runs a query on a snapshot with all acknowledged writes.
    pub(crate) async fn ask<T: Send + 'static, Q: FnOnce(&View<'_>) -> Work<T> + Send + 'static>(
        &self,
        operation: &'static str,
        question: Q,
    ) -> Result<QueryResult<T, Q>> {
        let redo = self.redo.clone();
        self.send(operation, move |view| {
            // The order matters: the snapshot contains what was committed in between.
            let first = redo.first().map_err(|error| redo.fault(&error))?;
            in_one_view(view, |view| match first {
                Some(first) if first == Mark::read(view.connection)? => Ok(QueryResult::Behind(question)),
                _ => question(view).map(QueryResult::Answer),
            })
        })
        .await
    }

    /// Runs a query on a snapshot with everything that the writer has committed.
    pub(crate) async fn ask_after<T: Send + 'static>(
        &self,
        operation: &'static str,
        question: impl FnOnce(&View<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        self.send(operation, |view| in_one_view(view, question)).await
    }

    async fn send<T: Send + 'static>(
        &self,
        operation: &'static str,
        question: impl FnOnce(&View<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        let stopped = || StoreError::not_done(ErrorKind::Unavailable, operation, "the store is closed");
        let (reply, answer) = oneshot::channel();
        let ask = move |view: View<'_>| {
            let answer = question(&view).map_err(|fault| fault.into_error(operation));
            end_view(view.connection);
            // The caller may have stopped waiting.
            _ = reply.send(answer);
        };
        self.commands.send(Command::Ask(Box::new(ask))).await.map_err(|_| stopped())?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }
}

/// The next query; `None` at the end. One reader waits for it, the others wait for the lock.
fn next(waiting: &Mutex<mpsc::Receiver<Command>>) -> Option<Question> {
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match waiting.blocking_recv()? {
            Command::Ask(question) => return Some(question),
            Command::Close => waiting.close(),
        }
    }
}

fn in_one_view<T>(view: &View<'_>, question: impl FnOnce(&View<'_>) -> Work<T>) -> Work<T> {
    view.connection.prepare_cached("BEGIN")?.execute([])?;
    let answer = question(view)?;
    view.connection.prepare_cached("COMMIT")?.execute([])?;
    Ok(answer)
}

/// Ends the transaction of a failed query, so that the next one can start.
fn end_view(connection: &Connection) {
    if !connection.is_autocommit() {
        // If that fails, the next query returns the error.
        _ = connection.execute_batch("ROLLBACK");
    }
}
