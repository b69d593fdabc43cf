//! The one writer: takes all requests that wait, runs them in one transaction, makes them durable once, answers all.
//!
//! Each request has a savepoint, so that one that fails takes nothing with it; but hand-offs and notes, which are many and
//! fail only with the file, go without and take their group with them. Nobody is answered before the group is durable:
//! by the commit, or, when many letters come at a time, by the [redo log](crate::redo), while the transaction stays open
//! for more. When the transaction is lost before that, nothing of the group has happened and everybody is told so. When the
//! commit itself fails, nobody knows, and everybody is told that; the connection is opened anew. What was answered
//! before comes back from the redo log.

mod requests;
mod thread;

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
use requests::{Call, Loss, Order, Recordable, Request, stopped};
use thread::Writer;

/// How the writer ended, once it has.
type Ended = Option<std::result::Result<(), Loss>>;

/// The way to the writer's thread, which ends when it is closed or the last handle is dropped, and all requests are
/// answered.
pub(crate) struct Handle {
    orders: mpsc::Sender<Order>,
    ended: watch::Receiver<Ended>,
}

impl Handle {
    /// Starts the writer on this connection, after it has brought in what a dead process has left in the redo log.
    pub(crate) fn start(
        path: PathBuf,
        options: Options,
        connection: Connection,
        redo: Arc<RedoLog>,
    ) -> Result<Self> {
        let (orders, waiting) = mpsc::channel(options.waiting.max(1));
        let (end, ended) = watch::channel(None);
        Writer::new(path, options, connection, redo).start(waiting, end)?;
        Ok(Self { orders, ended })
    }

    /// Has the writer do something, and waits until it is durable.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&mut Step<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        self.send(operation, |reply| Box::new(Call::new(operation, work, reply))).await
    }

    /// Has the writer do something that the redo log can hold, and waits until it is durable.
    pub(crate) async fn record<C: Repeatable>(&self, call: C) -> Result<C::Answer> {
        self.send(C::OPERATION, |reply| Box::new(Recordable::new(call, reply))).await
    }

    /// Waits until all that was answered before, here and elsewhere, is in the database.
    pub(crate) async fn catch_up(&self, operation: &'static str) -> Result<()> {
        self.call(operation, |_| Ok(())).await
    }

    /// Has the writer take no more requests, and waits until those in line are answered, everything is in the database
    /// file and the thread has let go of it. Whoever asks again hears the same.
    pub(crate) async fn close(&self) -> Result<()> {
        // When it takes nothing any more, it is closing or has ended.
        _ = self.orders.send(Order::Close).await;
        let mut ended = self.ended.clone();
        let end = ended.wait_for(Option::is_some).await;
        let end = end.map_err(|_| stopped("close", Certainty::MaybeDone))?;
        end.as_ref().map_or(Ok(()), |end| end.as_ref().copied().map_err(|loss| loss.error("close")))
    }

    async fn send<T: Send + 'static>(
        &self,
        operation: &'static str,
        request: impl FnOnce(oneshot::Sender<Result<T>>) -> Box<dyn Request>,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let sent = self.orders.send(Order::Do(request(reply))).await;
        sent.map_err(|_| stopped(operation, Certainty::NotDone))?;
        answer.await.unwrap_or_else(|_| Err(stopped(operation, Certainty::MaybeDone)))
    }
}
