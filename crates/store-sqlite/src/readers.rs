//! The reader threads: a few connections that run queries beside the writer, each on a consistent snapshot.
//!
//! A query sees every write that was acknowledged before, by this process or another. If such a write is only
//! in the [redo log](crate::redo), the query is returned, to be repeated once the writer has committed it.
//!
//! A query is interrupted when its caller has stopped waiting, such as a request that was cut off, or when it exceeds
//! [`Options::query_timeout`]. The connection is then free for the next one.
//!
//! Queries that may examine many letters run on all readers but one, so that they never keep the others waiting: single letters, pauses,
//! groups. Values have a reader of their own: positions, locks and what a health check asks for are read whatever the others do.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use lazaret_core::store::{ErrorKind, Result, StoreError};
use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::error::{Fault, Work};
use crate::options::Options;
use crate::redo::{Mark, RedoLog};
use crate::rows::nanos;
use crate::schema;

/// The snapshot of a query.
pub(crate) struct View<'a> {
    pub(crate) connection: &'a Connection,
    /// The store's time, in nanoseconds since 1970.
    pub(crate) now: i64,
    limit: &'a QueryLimit,
}

impl View<'_> {
    /// Fails if the query has to end. For loops that do more than to step through rows, which SQLite checks itself.
    pub(crate) fn check(&self) -> Work<()> {
        if self.limit.is_over() { Err(Fault::TimedOut) } else { Ok(()) }
    }
}

/// Tells when a query has to end.
#[derive(Clone)]
struct QueryLimit {
    started: Instant,
    timeout: Duration,
    /// The caller holds the other end while it waits.
    caller: Weak<()>,
}

impl QueryLimit {
    fn is_over(&self) -> bool {
        self.caller.strong_count() == 0 || self.started.elapsed() >= self.timeout
    }
}

/// Number of SQLite's instructions between two checks of the limit: some microseconds.
const CHECK_INTERVAL: i32 = 1000;

/// A query in the queue.
struct Question {
    caller: Weak<()>,
    run: Box<dyn FnOnce(View<'_>) + Send>,
}

impl Question {
    /// Runs it, unless nobody waits for it any more.
    fn run(self, connection: &mut Connection, options: &Options) {
        let Self { caller, run } = self;
        let limit = QueryLimit { started: Instant::now(), timeout: options.query_timeout, caller };
        if limit.caller.strong_count() == 0 {
            return;
        }
        let checked = limit.clone();
        // Without the handler, which fails only if SQLite is out of memory, the query runs to its end.
        _ = connection.progress_handler(CHECK_INTERVAL, Some(move || checked.is_over()));
        run(View { connection, now: nanos(options.clock.now()), limit: &limit });
        _ = connection.progress_handler(0, None::<fn() -> bool>);
    }
}

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

/// The readers that a query uses.
#[derive(Clone, Copy)]
pub(crate) enum Readers {
    /// Those that all queries share.
    Shared,
    /// The one for values.
    Values,
}

/// A handle to the reader threads, which stop when they are closed or the last handle is dropped.
pub(crate) struct Handle {
    shared: mpsc::Sender<Command>,
    values: mpsc::Sender<Command>,
    /// One permit for each reader that may scan.
    scans: Arc<Semaphore>,
    /// Each reader holds a sender until it has closed the file.
    ended: watch::Receiver<()>,
    redo: Arc<RedoLog>,
}

impl Handle {
    /// Starts the readers on a file that is open for writing.
    pub(crate) fn start(path: &Path, options: &Options, redo: &Arc<RedoLog>) -> Result<Self> {
        let (alive, ended) = watch::channel(());
        let readers = options.readers.max(1);
        let names = (0..readers).map(|number| format!("lazaret-reader-{number}"));
        let shared = start(names, path, options, &alive)?;
        let values = start(["lazaret-values".to_owned()], path, options, &alive)?;
        let scans = Arc::new(Semaphore::new((readers - 1).max(1)));
        Ok(Self { shared, values, scans, ended, redo: redo.clone() })
    }

    fn commands(&self, readers: Readers) -> &mpsc::Sender<Command> {
        match readers {
            Readers::Shared => &self.shared,
            Readers::Values => &self.values,
        }
    }

    /// Waits for the turn of a query that may examine many letters, in the order of the calls. It is to be kept until the query has
    /// ended.
    pub(crate) async fn turn_to_scan(&self, operation: &'static str) -> Result<OwnedSemaphorePermit> {
        let turn = self.scans.clone().acquire_owned().await;
        turn.map_err(|_| StoreError::not_done(ErrorKind::Unavailable, operation, "the store is closed"))
    }

    /// Stops the readers: they accept no more queries, finish the queued ones and close
    /// the file.
    pub(crate) async fn close(&self) {
        for readers in [Readers::Shared, Readers::Values] {
            // If the queue is closed, they are stopping or have stopped.
            _ = self.commands(readers).send(Command::Close).await;
        }
        // Nothing is ever sent: the channel closes when the last reader has stopped.
        _ = self.ended.clone().changed().await;
    }

    /// Runs a query on a snapshot with all acknowledged writes.
    pub(crate) async fn ask<T: Send + 'static, Q: FnOnce(&View<'_>) -> Work<T> + Send + 'static>(
        &self,
        readers: Readers,
        operation: &'static str,
        question: Q,
    ) -> Result<QueryResult<T, Q>> {
        let redo = self.redo.clone();
        self.send(readers, operation, move |view| {
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
        readers: Readers,
        operation: &'static str,
        question: impl FnOnce(&View<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        self.send(readers, operation, |view| in_one_view(view, question)).await
    }

    async fn send<T: Send + 'static>(
        &self,
        readers: Readers,
        operation: &'static str,
        question: impl FnOnce(&View<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        let stopped = || StoreError::not_done(ErrorKind::Unavailable, operation, "the store is closed");
        let (reply, answer) = oneshot::channel();
        let run = move |view: View<'_>| {
            let answer = question(&view).map_err(|fault| fault.into_error(operation));
            end_view(view.connection);
            // The caller may have stopped waiting.
            _ = reply.send(answer);
        };
        // Held until the answer is there: without it, the query is interrupted.
        let waiting = Arc::new(());
        let question = Question { caller: Arc::downgrade(&waiting), run: Box::new(run) };
        self.commands(readers).send(Command::Ask(question)).await.map_err(|_| stopped())?;
        let answer = answer.await.unwrap_or_else(|_| Err(stopped()));
        drop(waiting);
        answer
    }
}

/// Starts a reader thread of each name. They share a queue.
fn start(
    names: impl IntoIterator<Item = String>,
    path: &Path,
    options: &Options,
    alive: &watch::Sender<()>,
) -> Result<mpsc::Sender<Command>> {
    let (commands, waiting) = mpsc::channel(options.waiting.max(1));
    let waiting = Arc::new(Mutex::new(waiting));
    for name in names {
        let mut connection = schema::connect_reader(path, options)?;
        let (waiting, options, alive) = (waiting.clone(), options.clone(), alive.clone());
        let read = move || {
            while let Some(question) = next(&waiting) {
                question.run(&mut connection, &options);
            }
            drop(connection);
            drop(alive);
        };
        let started = thread::Builder::new().name(name).spawn(read);
        started.map_err(|error| {
            StoreError::not_done(ErrorKind::Unavailable, "open", "failed to start a reader thread")
                .with_source(error)
        })?;
    }
    Ok(commands)
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::Pin;
    use std::task::Poll;

    use lazaret_core::ConsumerName;
    use lazaret_core::store::{ErrorKind, KeyValue, LetterStore, Triage};

    use crate::readers::View;
    use crate::{Options, SqliteStore};

    /// A query that never ends.
    const ENDLESS: &str =
        "WITH RECURSIVE n (n) AS (VALUES (0) UNION ALL SELECT n + 1 FROM n) SELECT count(*) FROM n";

    fn store(folder: &tempfile::TempDir, options: Options) -> SqliteStore {
        // With one reader, each query needs the connection of the one before it.
        SqliteStore::open(folder.path().join("lazaret.db"), Options { readers: 1, ..options }).unwrap()
    }

    fn endless(view: &View<'_>) -> crate::error::Work<i64> {
        Ok(view.connection.query_row(ENDLESS, [], |row| row.get(0))?)
    }

    /// Polls a future once.
    async fn is_ready<F: Future + Unpin>(future: &mut F) -> bool {
        poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context).is_ready())).await
    }

    #[tokio::test]
    async fn a_query_beyond_its_time_is_interrupted_and_the_reader_answers_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { query_timeout: std::time::Duration::from_millis(200), ..Options::default() };
        let store = store(&folder, options);
        let interrupted = store.ask("find", endless).await.unwrap_err();
        assert_eq!(interrupted.kind(), ErrorKind::Unavailable);
        assert_eq!(interrupted.context(), "the query took too long and was interrupted");
        assert!(store.queues().await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_query_whose_caller_has_gone_is_interrupted() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder, Options::default());
        let (started, has_started) = tokio::sync::oneshot::channel();
        let question = store.ask("find", move |view| {
            _ = started.send(());
            endless(view)
        });
        tokio::select! {
            answer = question => panic!("it never ends: {answer:?}"),
            _ = has_started => {}
        }
        assert!(store.queues().await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn scans_leave_a_reader_to_all_other_queries() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { readers: 3, ..Options::default() };
        let store = SqliteStore::open(folder.path().join("lazaret.db"), options).unwrap();
        let mut scans = Vec::new();
        let mut gates = Vec::new();
        for _ in 0..4 {
            let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
            let mut scan = Box::pin(store.scan("find", move |_| {
                _ = may_go_on.recv();
                Ok(())
            }));
            assert!(!is_ready(&mut scan).await);
            scans.push(scan);
            gates.push(go_on);
        }
        // With scans on all readers, this would wait for the first of them to end.
        assert!(store.queues().await.unwrap().is_empty());
        drop(gates);
        for scan in scans {
            scan.await.unwrap();
        }
    }

    #[tokio::test]
    async fn values_are_read_while_all_other_readers_are_busy() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { readers: 3, ..Options::default() };
        let store = SqliteStore::open(folder.path().join("lazaret.db"), options).unwrap();
        let (mut queries, mut gates) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
            let (started, has_started) = tokio::sync::oneshot::channel();
            let mut query = Box::pin(store.ask("get", move |_| {
                _ = started.send(());
                _ = may_go_on.recv();
                Ok(())
            }));
            assert!(!is_ready(&mut query).await);
            has_started.await.unwrap();
            queries.push(query);
            gates.push(go_on);
        }
        // What the readiness check of a server asks for.
        assert!(store.incarnations(&ConsumerName::from("")).await.unwrap().0.is_empty());
        assert!(store.read("locks", "mirror").await.unwrap().found.is_none());
        drop(gates);
        for query in queries {
            query.await.unwrap();
        }
    }

    #[tokio::test]
    async fn the_turn_of_a_scan_whose_caller_has_gone_goes_to_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder, Options::default());
        let mut abandoned = Box::pin(store.scan("find", endless));
        assert!(!is_ready(&mut abandoned).await);
        let next = store.scan("find", |_| Ok(()));
        drop(abandoned);
        next.await.unwrap();
    }

    #[tokio::test]
    async fn a_query_that_nobody_waits_for_any_more_does_not_run() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder, Options::default());
        let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
        let (started, has_started) = tokio::sync::oneshot::channel();
        let mut first = Box::pin(store.ask("find", move |_| {
            _ = started.send(());
            _ = may_go_on.recv();
            Ok(())
        }));
        assert!(!is_ready(&mut first).await);
        has_started.await.unwrap();
        let (ran, has_run) = tokio::sync::oneshot::channel();
        let mut second = Box::pin(store.ask("find", move |_| {
            _ = ran.send(());
            Ok(())
        }));
        assert!(!is_ready(&mut second).await);
        drop(second);
        drop(go_on);
        first.await.unwrap();
        store.queues().await.unwrap();
        assert!(has_run.await.is_err());
    }
}
