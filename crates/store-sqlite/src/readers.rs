//! The readers: a few connections that answer questions beside the writer, each from one consistent view.
//!
//! A question that is asked after a write was answered sees that write, in this process or another. When the write is still
//! in the [redo log](crate::redo), the question comes back, to be asked again once the writer has caught up.

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

/// What a question is asked of.
pub(crate) struct View<'a> {
    pub(crate) connection: &'a Connection,
    /// The store's time, in nanoseconds since 1970.
    pub(crate) now: i64,
}

type Question = Box<dyn FnOnce(View<'_>) + Send>;

/// What became of a question.
pub(crate) enum Asked<T, Q> {
    Answer(T),
    /// There is something in the redo log that the view lacks.
    Behind(Q),
}

/// What stands in the readers' line.
enum Order {
    Ask(Question),
    /// Answer those in line, let nobody else in, and end.
    Close,
}

/// The way to the readers' threads, which end when they are closed or the last handle is dropped.
pub(crate) struct Handle {
    orders: mpsc::Sender<Order>,
    /// Each reader holds the other side until it has let go of the file.
    ended: watch::Receiver<()>,
    redo: Arc<RedoLog>,
}

impl Handle {
    /// Starts the readers on a file that is open for writing.
    pub(crate) fn start(path: &Path, options: &Options, redo: &Arc<RedoLog>) -> Result<Self> {
        let (orders, waiting) = mpsc::channel(options.waiting.max(1));
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
                StoreError::not_done(ErrorKind::Unavailable, "open", "no thread for a reader")
                    .with_source(error)
            })?;
        }
        Ok(Self { orders, ended, redo: redo.clone() })
    }

    /// Has the readers take no more questions, and waits until those in line are answered and the threads have let go of
    /// the file.
    pub(crate) async fn close(&self) {
        // When they take nothing any more, they are closing or have ended.
        _ = self.orders.send(Order::Close).await;
        // Nothing is ever sent: the answer is that the last of them has ended.
        _ = self.ended.clone().changed().await;
    }

    /// Asks something, of a view that has all that was answered before.
    pub(crate) async fn ask<T: Send + 'static, Q: FnOnce(&View<'_>) -> Work<T> + Send + 'static>(
        &self,
        operation: &'static str,
        question: Q,
    ) -> Result<Asked<T, Q>> {
        let redo = self.redo.clone();
        self.send(operation, move |view| {
            // The order matters: what was committed in between is in the view.
            let first = redo.first().map_err(|error| redo.trouble(&error))?;
            in_one_view(view, |view| match first {
                Some(first) if first == Mark::read(view.connection)? => Ok(Asked::Behind(question)),
                _ => question(view).map(Asked::Answer),
            })
        })
        .await
    }

    /// Asks something, of a view that has what the writer has caught up with.
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
        let stopped =
            || StoreError::not_done(ErrorKind::Unavailable, operation, "the store's thread has ended");
        let (reply, answer) = oneshot::channel();
        let ask = move |view: View<'_>| {
            let answer = question(&view).map_err(|fault| fault.into_error(operation));
            end_view(view.connection);
            // Who does not wait any more needs no answer.
            _ = reply.send(answer);
        };
        self.orders.send(Order::Ask(Box::new(ask))).await.map_err(|_| stopped())?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }
}

/// The next question; `None` when there will be none. One reader waits for it, the others wait for their turn to wait.
fn next(waiting: &Mutex<mpsc::Receiver<Order>>) -> Option<Question> {
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match waiting.blocking_recv()? {
            Order::Ask(question) => return Some(question),
            Order::Close => waiting.close(),
        }
    }
}

fn in_one_view<T>(view: &View<'_>, question: impl FnOnce(&View<'_>) -> Work<T>) -> Work<T> {
    view.connection.prepare_cached("BEGIN")?.execute([])?;
    let answer = question(view)?;
    view.connection.prepare_cached("COMMIT")?.execute([])?;
    Ok(answer)
}

/// Ends what a question that failed has left behind, so that the next one can begin.
fn end_view(connection: &Connection) {
    if !connection.is_autocommit() {
        // If even that fails, the next question will say so.
        _ = connection.execute_batch("ROLLBACK");
    }
}
