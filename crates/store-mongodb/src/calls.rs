//! Calls to the server: few at once, and each one that was begun is finished.
//!
//! The driver's pool keeps a queue of requests for connections, and leaves those in it whose callers have gone. Each of them costs an event of
//! the pool, or half a second, while connections are idle. Callers of the store give up often: a lease ends, a request of the API times
//! out, a partition is revoked with hundreds of messages in flight. So callers wait here, where one that leaves is forgotten at once, and
//! what has reached the driver runs to its end in a task.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bson::RawDocumentBuf;
use futures_util::TryStreamExt;
use mongodb::error::{Error, Result};
use mongodb::{Collection, Cursor, Namespace};
use tokio::sync::Semaphore;

/// How long a call may take. The driver has no limit of its own, and a connection may die without a word.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of documents that are read ahead: the size of a server's first batch.
const ROWS: usize = 101;
/// Maximum size of the documents that are read ahead, in bytes, but for the last one.
const ROWS_BYTES: usize = 4 << 20;

/// A share of the connections.
#[derive(Clone)]
pub(crate) struct Calls {
    free: Arc<Semaphore>,
    limit: Duration,
}

impl Calls {
    /// Makes at most so many calls at once. Each may take so long.
    pub(crate) fn new(at_once: usize, limit: Duration) -> Self {
        Self { free: Arc::new(Semaphore::new(at_once)), limit }
    }

    /// Makes a call when its turn comes. From then on it is finished, whether or not the caller waits for it.
    pub(crate) async fn make<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (turn, limit) = (self.free.clone().acquire_owned().await, self.limit);
        let begun = tokio::spawn(async move {
            let answer = tokio::time::timeout(limit, call).await;
            drop(turn);
            answer.unwrap_or_else(|_| Err(no_answer(format!("no answer within {limit:?}"))))
        });
        match begun.await {
            Ok(answer) => answer,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(no_answer("the runtime was shut down".to_owned())),
            },
        }
    }
}

fn no_answer(why: String) -> Error {
    Error::from(std::io::Error::new(std::io::ErrorKind::TimedOut, why))
}

/// One collection, and the share of the connections that it uses.
pub(crate) struct Documents {
    collection: Collection<RawDocumentBuf>,
    calls: Calls,
}

impl Documents {
    pub(crate) fn new(collection: Collection<RawDocumentBuf>, calls: Calls) -> Self {
        Self { collection, calls }
    }

    pub(crate) fn name(&self) -> &str {
        self.collection.name()
    }

    pub(crate) fn namespace(&self) -> Namespace {
        self.collection.namespace()
    }

    /// The collection itself, for opening a store: nothing else is done meanwhile, and an index may take long to build.
    pub(crate) fn collection(&self) -> &Collection<RawDocumentBuf> {
        &self.collection
    }

    /// Makes a call.
    pub(crate) async fn call<T, F>(&self, call: impl FnOnce(Collection<RawDocumentBuf>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.calls.make(call(self.collection.clone())).await
    }

    /// Makes a call that finds documents, to be read one after the other.
    pub(crate) async fn rows<F>(&self, find: impl FnOnce(Collection<RawDocumentBuf>) -> F) -> Result<Rows>
    where
        F: Future<Output = Result<Cursor<RawDocumentBuf>>> + Send + 'static,
    {
        let cursor = self.call(find).await?;
        Ok(Rows { cursor: Some(cursor), read: VecDeque::new(), calls: self.calls.clone() })
    }
}

/// Documents that were found, of which some are read ahead.
pub(crate) struct Rows {
    /// `None` when all are read.
    cursor: Option<Cursor<RawDocumentBuf>>,
    read: VecDeque<RawDocumentBuf>,
    calls: Calls,
}

impl Rows {
    /// The next document.
    pub(crate) async fn next(&mut self) -> Result<Option<RawDocumentBuf>> {
        if let Some(row) = self.read.pop_front() {
            return Ok(Some(row));
        }
        if let Some(cursor) = self.cursor.take() {
            (self.cursor, self.read) = self.calls.make(read_ahead(cursor)).await?;
        }
        Ok(self.read.pop_front())
    }
}

/// Reads some documents. Returns the cursor if there may be more.
async fn read_ahead(
    mut cursor: Cursor<RawDocumentBuf>,
) -> Result<(Option<Cursor<RawDocumentBuf>>, VecDeque<RawDocumentBuf>)> {
    let (mut rows, mut bytes) = (VecDeque::new(), 0);
    while rows.len() < ROWS && bytes < ROWS_BYTES {
        let Some(row) = cursor.try_next().await? else { return Ok((None, rows)) };
        bytes += row.as_bytes().len();
        rows.push_back(row);
    }
    Ok((Some(cursor), rows))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_call_that_was_begun_is_finished_without_its_caller() {
        let calls = Calls::new(1, LIMIT);
        let ((answer, answered), (done, finished)) = (oneshot::channel::<()>(), oneshot::channel());
        let call = calls.make(async move {
            answered.await.unwrap();
            done.send(()).unwrap();
            Ok(())
        });
        assert!(Box::pin(call).now_or_never().is_none());
        answer.send(()).unwrap();
        finished.await.unwrap();
    }

    #[tokio::test]
    async fn a_caller_that_leaves_before_its_turn_takes_none() {
        let calls = Calls::new(1, LIMIT);
        let (answer, answered) = oneshot::channel::<()>();
        let mut first = Box::pin(calls.make(async move {
            answered.await.unwrap();
            Ok(())
        }));
        assert!(first.as_mut().now_or_never().is_none());
        let second = calls.make::<()>(async { panic!("it has no caller") });
        assert!(Box::pin(second).now_or_never().is_none(), "there is one turn");
        answer.send(()).unwrap();
        first.await.unwrap();
        calls.make(async { Ok(()) }).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_an_answer_ends() {
        let calls = Calls::new(1, LIMIT);
        let error = calls.make::<()>(std::future::pending()).await.unwrap_err();
        assert!(error.to_string().contains("no answer within 60s"), "{error}");
        calls.make(async { Ok(()) }).await.unwrap();
    }
}
