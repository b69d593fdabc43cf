//! The one writer: takes all requests that wait, runs them in one transaction, commits once, answers all.
//!
//! Each request has a savepoint, so that one that fails takes nothing with it; but hand-offs, which are many and fail only
//! with the file, go without and take their group with them. Nobody is answered before the commit. When the transaction
//! is lost before the commit, nothing has happened and everybody is told so. When the commit itself fails, nobody knows,
//! and everybody is told that; the connection is opened anew.

use std::path::PathBuf;
use std::thread;

use lazaret_core::QueueName;
use lazaret_core::store::{Certainty, ErrorKind, Result, StoreError};
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::error::{Fault, Work, kind_of};
use crate::facts::Facts;
use crate::letters::Queue;
use crate::options::Options;
use crate::rows::nanos;
use crate::schema;

/// How many requests share one commit at most (I7).
const GROUP: usize = 256;

/// What a request works with.
pub(crate) struct Step<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) facts: &'a mut Facts,
    /// The store's time, in nanoseconds since 1970.
    pub(crate) now: i64,
}

impl Step<'_> {
    /// Works on a queue, which is made if it is not there.
    pub(crate) fn queue<T>(
        &mut self,
        name: &QueueName,
        work: impl FnOnce(&mut Queue<'_>) -> Work<T>,
    ) -> Work<T> {
        let facts = self.facts.queue(self.connection, name)?;
        let mut queue = Queue { connection: self.connection, name, facts, shared: self.facts, now: self.now };
        let answer = work(&mut queue)?;
        let facts = queue.facts;
        self.facts.set_queue(name, facts);
        Ok(answer)
    }
}

/// Something to be done by the writer.
trait Request: Send {
    /// Whether it has a savepoint of its own.
    fn has_savepoint(&self) -> bool;
    /// Does it. The answer, be it an error, is kept until the commit.
    fn run(&mut self, step: &mut Step<'_>) -> std::result::Result<(), Loss>;
    /// Answers: with what was found out, or with what happened to the whole group.
    fn answer(self: Box<Self>, loss: Option<&Loss>);
}

struct Call<T, F> {
    operation: &'static str,
    has_savepoint: bool,
    work: Option<F>,
    answer: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> Request for Call<T, F>
where
    T: Send,
    F: FnOnce(&mut Step<'_>) -> Work<T> + Send,
{
    fn has_savepoint(&self) -> bool {
        self.has_savepoint
    }

    fn run(&mut self, step: &mut Step<'_>) -> std::result::Result<(), Loss> {
        let Some(work) = self.work.take() else { return Ok(()) };
        let answer = work(step).map_err(|fault| fault.into_error(self.operation));
        let loss = answer.as_ref().err().map(Loss::rolled_back);
        self.answer = Some(answer);
        loss.map_or(Ok(()), Err)
    }

    fn answer(self: Box<Self>, loss: Option<&Loss>) {
        let answer = match (loss, self.answer) {
            (None, Some(answer)) => answer,
            // It is the one that took the group with it.
            (Some(_), Some(Err(error))) if !self.has_savepoint => Err(error),
            (Some(loss), _) => Err(loss.error(self.operation)),
            (None, None) => Err(stopped(self.operation, Certainty::NotDone)),
        };
        // Who does not wait any more needs no answer.
        _ = self.reply.send(answer);
    }
}

/// What happened to a whole group.
struct Loss {
    kind: ErrorKind,
    certainty: Certainty,
    context: String,
}

impl Loss {
    fn rolled_back(error: &StoreError) -> Self {
        Self { kind: error.kind(), certainty: Certainty::NotDone, context: error.context().to_owned() }
    }

    fn of(fault: impl Into<Fault>) -> Self {
        Self::rolled_back(&fault.into().into_error("commit"))
    }

    /// What those hear who had nothing to do with it: nothing was done, and they may ask again.
    fn of_another(self) -> Self {
        let context = format!("another call of the same group failed: {}", self.context);
        Self { kind: ErrorKind::Unavailable, certainty: Certainty::NotDone, context }
    }

    fn error(&self, operation: &'static str) -> StoreError {
        match self.certainty {
            Certainty::NotDone => StoreError::not_done(self.kind, operation, self.context.clone()),
            Certainty::MaybeDone => StoreError::maybe(self.kind, operation, self.context.clone()),
        }
    }
}

fn stopped(operation: &'static str, certainty: Certainty) -> StoreError {
    let context = "the store's thread has ended";
    match certainty {
        Certainty::NotDone => StoreError::not_done(ErrorKind::Unavailable, operation, context),
        Certainty::MaybeDone => StoreError::maybe(ErrorKind::Unavailable, operation, context),
    }
}

/// The way to the writer's thread, which ends when the last handle is dropped and all requests are answered.
pub(crate) struct Handle {
    requests: mpsc::Sender<Box<dyn Request>>,
}

impl Handle {
    /// Starts the writer on this connection.
    pub(crate) fn start(path: PathBuf, options: Options, connection: Connection) -> std::io::Result<Self> {
        let (requests, waiting) = mpsc::channel(options.waiting.max(1));
        let writer = Writer { path, options, connection: Some(connection), facts: Facts::default() };
        thread::Builder::new().name("lazaret-writer".into()).spawn(move || writer.run(waiting))?;
        Ok(Self { requests })
    }

    /// Has the writer do something, and waits until it is durable.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&mut Step<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        self.send(operation, true, work).await
    }

    /// As [`call`](Self::call), without a savepoint: for work that fails before it writes anything, or never.
    pub(crate) async fn call_without_savepoint<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&mut Step<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        self.send(operation, false, work).await
    }

    async fn send<T: Send + 'static>(
        &self,
        operation: &'static str,
        has_savepoint: bool,
        work: impl FnOnce(&mut Step<'_>) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let call = Call { operation, has_savepoint, work: Some(work), answer: None, reply };
        let sent = self.requests.send(Box::new(call)).await;
        sent.map_err(|_| stopped(operation, Certainty::NotDone))?;
        answer.await.unwrap_or_else(|_| Err(stopped(operation, Certainty::MaybeDone)))
    }
}

struct Writer {
    path: PathBuf,
    options: Options,
    /// `None` after a commit that failed, until it is opened again.
    connection: Option<Connection>,
    facts: Facts,
}

impl Writer {
    fn run(mut self, mut waiting: mpsc::Receiver<Box<dyn Request>>) {
        let mut group = Vec::with_capacity(GROUP);
        while let Some(first) = waiting.blocking_recv() {
            group.push(first);
            while group.len() < GROUP
                && let Ok(next) = waiting.try_recv()
            {
                group.push(next);
            }
            let loss = self.commit(&mut group).err();
            if loss.is_some() {
                self.facts = Facts::default();
            }
            for request in group.drain(..) {
                request.answer(loss.as_ref());
            }
        }
    }

    /// Runs a group in one transaction.
    fn commit(&mut self, group: &mut [Box<dyn Request>]) -> std::result::Result<(), Loss> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => schema::connect(&self.path, &self.options).map_err(|error| Loss::rolled_back(&error))?,
        };
        if let Err(loss) = self.work(&connection, group) {
            // A transaction that cannot be rolled back is rolled back by closing its connection.
            if connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok() {
                self.connection = Some(connection);
            }
            return Err(loss);
        }
        if let Err(error) = execute(&connection, "COMMIT") {
            let context = format!("the commit failed: {error}");
            return Err(Loss { kind: kind_of(&error), certainty: Certainty::MaybeDone, context });
        }
        self.connection = Some(connection);
        Ok(())
    }

    fn work(
        &mut self,
        connection: &Connection,
        group: &mut [Box<dyn Request>],
    ) -> std::result::Result<(), Loss> {
        execute(connection, "BEGIN IMMEDIATE").map_err(Loss::of)?;
        self.facts.begin(connection).map_err(Loss::of)?;
        for request in group {
            let has_savepoint = request.has_savepoint();
            if has_savepoint {
                execute(connection, "SAVEPOINT request").map_err(Loss::of)?;
            }
            let now = nanos(self.options.clock.now());
            let mut step = Step { connection, facts: &mut self.facts, now };
            match request.run(&mut step) {
                Ok(()) => self.facts.keep(connection).map_err(Loss::of)?,
                // A full disk and some others take the whole transaction with them, and so the whole group.
                Err(loss) if connection.is_autocommit() => return Err(loss),
                Err(loss) if !has_savepoint => return Err(loss.of_another()),
                Err(_) => {
                    self.facts.undo();
                    execute(connection, "ROLLBACK TO request").map_err(Loss::of)?;
                }
            }
            if has_savepoint {
                execute(connection, "RELEASE request").map_err(Loss::of)?;
            }
        }
        self.facts.write(connection).map_err(Loss::of)
    }
}

fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(|_| ())
}
