//! One call in one transaction: its connection, its time, and what it has changed so far.
//!
//! Statements of a step are sent together and answered together, and so are the writes and the commit: a call costs two or three round
//! trips, however many letters it has. A call that meets another transaction (a deadlock, a key that was inserted meanwhile) is
//! rolled back and made again.

use deadpool_postgres::Object;
use futures_util::future::join_all;
use jiff::Timestamp;
use lazaret_core::store::Result;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

use crate::error::{Fault, Work, of_commit};
use crate::store::PostgresStore;
use crate::unit::Unit;
use crate::values::time;

/// How often a call is made again.
const TRIES: u32 = 10;

/// The server's time.
pub(crate) const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000";

const PLAN_FOR_PARAMETERS: &str = "SET LOCAL plan_cache_mode = force_custom_plan";

const BEGIN: &str = "BEGIN";
const BEGIN_SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ";

/// A statement and its parameters.
pub(crate) type Query<'a> = (&'a str, &'a [&'a (dyn ToSql + Sync)]);

/// A transaction. One that is dropped before its end closes its connection, and the server rolls it back.
pub(crate) struct Transaction<'s> {
    pub(crate) store: &'s PostgresStore,
    client: Option<Object>,
    operation: &'static str,
    now: Timestamp,
    pub(crate) unit: Unit,
}

/// Runs a call in a transaction, again if others were in the way: `$tx` is the transaction, `$work` a future with its result.
macro_rules! transaction {
    ($store:expr, $operation:literal, |$tx:ident| $work:expr) => {
        crate::transaction::transaction!($store, $operation, begin, |$tx| $work)
    };
    ($store:expr, $operation:literal, $begin:ident, |$tx:ident| $work:expr) => {{
        let mut tries = 0;
        loop {
            let mut transaction = crate::transaction::Transaction::$begin($store, $operation).await?;
            let done = {
                let $tx = &mut transaction;
                $work.await
            };
            if let Some(answer) = transaction.end(done, &mut tries).await? {
                break answer;
            }
        }
    }};
}
pub(crate) use transaction;

impl<'s> Transaction<'s> {
    /// Begins a transaction in which each statement sees what was committed before it.
    pub(crate) async fn begin(store: &'s PostgresStore, operation: &'static str) -> Result<Self> {
        Ok(Self::start(store.client(operation).await?, store, operation, BEGIN).await)
    }

    /// Begins a transaction that reads a value.
    pub(crate) async fn begin_for_value(store: &'s PostgresStore, operation: &'static str) -> Result<Self> {
        Ok(Self::start(store.client_for_value(operation).await?, store, operation, BEGIN).await)
    }

    /// Begins a transaction in which all statements see the same.
    pub(crate) async fn begin_snapshot(store: &'s PostgresStore, operation: &'static str) -> Result<Self> {
        Ok(Self::start(store.client(operation).await?, store, operation, BEGIN_SNAPSHOT).await)
    }

    async fn start(client: Object, store: &'s PostgresStore, operation: &'static str, begin: &str) -> Self {
        {
            // Sent, not waited for: a connection that is lost now fails the next statement.
            let mut begun = std::pin::pin!(client.batch_execute(begin));
            let _ = futures_util::poll!(begun.as_mut());
        }
        Self { store, client: Some(client), operation, now: Timestamp::UNIX_EPOCH, unit: Unit::default() }
    }

    fn client(&self) -> Work<&Object> {
        self.client.as_ref().ok_or_else(|| Fault::Corrupt("the transaction has ended".to_owned()))
    }

    /// The store's time, as of the last [`set_now`](Self::set_now).
    pub(crate) const fn now(&self) -> Timestamp {
        self.now
    }

    /// Sets the time: that of the answer to [`CLOCK`], or of the clock in the options.
    pub(crate) fn set_now(&mut self, rows: &[Row]) -> Work<()> {
        self.now = match (self.store.given_clock(), rows.first()) {
            (Some(clock), _) => clock.now(),
            (None, Some(row)) => time(row.try_get(0)?),
            (None, None) => return Err(Fault::Corrupt("the server states no time".to_owned())),
        };
        Ok(())
    }

    /// Reads the time.
    pub(crate) async fn read_clock(&mut self) -> Work<()> {
        let rows =
            if self.store.given_clock().is_some() { Vec::new() } else { self.query(CLOCK, &[]).await? };
        self.set_now(&rows)
    }

    /// Runs one statement.
    pub(crate) async fn query(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Work<Vec<Row>> {
        let client = self.client()?;
        let statement = client.prepare_cached(sql).await?;
        Ok(client.query(&statement, parameters).await?)
    }

    /// Runs one statement that is not kept prepared: its text depends on the call, or it is rare. It is planned for these parameters.
    pub(crate) async fn query_once(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Work<Vec<Row>> {
        let client = self.client()?;
        client.batch_execute(PLAN_FOR_PARAMETERS).await?;
        Ok(client.query(sql, parameters).await?)
    }

    /// Runs statements one after the other, in one round trip.
    pub(crate) async fn query_all<const N: usize>(&self, queries: [Query<'_>; N]) -> Work<[Vec<Row>; N]> {
        let answers = self.send(&queries, None).await?;
        answers.try_into().map_err(|_| Fault::Corrupt("an answer of the server is missing".to_owned()))
    }

    async fn prepare(&self, queries: &[Query<'_>]) -> Work<Vec<Statement>> {
        let client = self.client()?;
        let mut statements = Vec::with_capacity(queries.len());
        // Before anything is sent: a statement that has to be prepared must not be overtaken.
        for (sql, _) in queries {
            statements.push(client.prepare_cached(sql).await?);
        }
        Ok(statements)
    }

    /// Runs statements, and commits with them if `commit` names the call.
    pub(crate) async fn send(
        &self,
        queries: &[Query<'_>],
        commit: Option<&'static str>,
    ) -> Work<Vec<Vec<Row>>> {
        let statements = self.prepare(queries).await?;
        let client = self.client()?;
        let sent = queries
            .iter()
            .zip(&statements)
            .map(|((_, parameters), statement)| client.query(statement, parameters));
        let committed = async {
            match commit {
                Some(_) => client.batch_execute("COMMIT").await,
                None => Ok(()),
            }
        };
        // Futures are first polled in this order, and the first poll sends.
        let (answers, committed) = futures_util::future::join(join_all(sent), committed).await;
        let mut rows = Vec::with_capacity(answers.len());
        for answer in answers {
            match (answer, commit) {
                (Ok(answer), _) => rows.push(answer),
                // The server has said that this statement failed, so the commit behind it was a rollback.
                (Err(error), _) if error.code().is_some() => return Err(error.into()),
                (Err(error), None) => return Err(error.into()),
                (Err(error), Some(operation)) => return Err(Fault::Refused(of_commit(error, operation))),
            }
        }
        match (committed, commit) {
            (Err(error), Some(operation)) => Err(Fault::Refused(of_commit(error, operation))),
            _ => Ok(rows),
        }
    }

    /// Runs the last statements and commits.
    pub(crate) async fn send_and_commit(&mut self, queries: &[Query<'_>]) -> Work<()> {
        self.send(queries, Some(self.operation)).await?;
        // Given back to the pool: there is nothing to roll back.
        self.client = None;
        Ok(())
    }

    /// Ends the transaction: writes and commits what was done, or rolls it back. `None` if the call has to be made again.
    pub(crate) async fn end<T>(mut self, done: Work<T>, tries: &mut u32) -> Result<Option<T>> {
        let operation = self.operation;
        let ended = match done {
            Ok(answer) => self.commit().await.map(|()| answer),
            Err(fault) => Err(fault),
        };
        let fault = match ended {
            Ok(answer) => return Ok(Some(answer)),
            Err(fault) => fault,
        };
        self.roll_back(&fault).await;
        if fault.is_interference() && *tries < TRIES {
            *tries += 1;
            tracing::debug!(operation, tries, "call repeated after interference");
            return Ok(None);
        }
        Err(fault.into_error(operation))
    }

    async fn roll_back(&mut self, fault: &Fault) {
        let Some(client) = self.client.take() else { return };
        let spoilt = fault.spoils_connection() || client.batch_execute("ROLLBACK").await.is_err();
        if spoilt {
            drop(Object::take(client));
        }
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        // The caller has stopped waiting: the connection is in the middle of something.
        if let Some(client) = self.client.take() {
            drop(Object::take(client));
        }
    }
}
