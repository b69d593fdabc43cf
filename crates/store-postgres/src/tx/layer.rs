//! The layer: a transaction around each attempt.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use lazaret_core::handler::{BoxHandler, Delivery, FromDelivery, Handle, HandlerFuture, Layer};
use lazaret_core::policy::RetryPolicy;
use lazaret_core::store::{self, Certainty, ErrorKind, StoreError};
use lazaret_core::{HandlerError, Message, Phase, Reason, Verdict};
use tokio_postgres::{Client, Error};

use super::marks::Marks;
use super::options::ExactlyOnceOptions;
use crate::connector::Connector;
use crate::error::{of_commit, of_driver, of_pool};
use crate::hosts::PoolConnect;

/// The number of marks that one statement of a purge removes.
const PURGE_ROWS: i64 = 1000;

/// The advisory lock under which the table of marks is created.
const CREATION_LOCK: i64 = 0x6c61_7a6d_6172;

tokio::task_local! {
    /// The transaction of the attempt that runs in this task.
    static CURRENT: Arc<Transaction>;
}

/// A layer that gives each attempt of a handler a transaction. See the [module](super) for an example and what holds.
///
/// Apply it directly to the handler: layers around it, such as a timeout, then see the outcome of the commit.
#[derive(Clone)]
pub struct ExactlyOnce {
    shared: Arc<Shared>,
}

struct Shared {
    pool: Pool,
    scope: String,
    marks: Marks,
    insert: String,
}

impl ExactlyOnce {
    /// Connects to the database that the handler writes to. `scope` names the handler: two that share a table of marks need two.
    ///
    /// # Errors
    /// `Invalid` if the DSN, the scope or an option cannot be used; `Unavailable` if the server cannot be reached; `Denied` if the role
    /// may not use the table of marks, or not create it.
    pub async fn connect(dsn: &str, scope: &str, options: ExactlyOnceOptions) -> store::Result<Self> {
        options.check()?;
        let marks = Marks::new(&options.table)?;
        if scope.is_empty() || scope.contains('\0') {
            return Err(StoreError::not_done(ErrorKind::Invalid, "open", "the scope is no name"));
        }
        let connector =
            Connector::new(dsn, "lazaret-handler", options.acquire_timeout, options.statement_timeout)?;
        let pool = pool(connector, &options)?;
        let insert = marks.insert_sql();
        let shared = Shared { pool, scope: scope.to_owned(), marks, insert };
        let once = Self { shared: Arc::new(shared) };
        let client = once.client("open").await?;
        let failed = |error| of_driver(error, "open", Certainty::NotDone);
        if options.create {
            let found = client.query_one("SELECT to_regclass($1::text) IS NULL", &[&options.table]).await;
            if found.map_err(failed)?.get(0) {
                // Processes that start at once create it one after the other: the statements are one transaction.
                let create = once.shared.marks.create_sql();
                let sql = format!("SELECT pg_advisory_xact_lock({CREATION_LOCK}); {create}");
                client.batch_execute(&sql).await.map_err(failed)?;
            }
        }
        // A table that does not do is known now, not at the first message.
        client.prepare_cached(&once.shared.insert).await.map_err(failed)?;
        Ok(once)
    }

    async fn client(&self, operation: &'static str) -> store::Result<Object> {
        self.shared.pool.get().await.map_err(|error| of_pool(error, operation))
    }

    /// Removes marks that are older than this, in short transactions, and returns how many. A message that comes again later has its effects
    /// again, so this must be longer than the source and the retention of letters can repeat one.
    ///
    /// # Errors
    /// Those of the server. What was removed before stays removed.
    pub async fn purge(&self, older_than: Duration) -> store::Result<u64> {
        let client = self.client("purge").await?;
        let sql = self.shared.marks.delete_sql();
        let mut removed = 0;
        loop {
            let rows = client.execute(&sql, &[&older_than.as_secs_f64(), &PURGE_ROWS]).await;
            let rows = rows.map_err(|error| of_commit(error, "purge"))?;
            removed += rows;
            if rows < PURGE_ROWS.unsigned_abs() {
                return Ok(removed);
            }
        }
    }
}

fn pool(connector: Connector, options: &ExactlyOnceOptions) -> store::Result<Pool> {
    let (mut config, tls) = connector.into_parts();
    let given = config.get_options().map_or_else(String::new, |given| format!("{given} "));
    config.options(given + &options.session());
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let timeout = Some(options.acquire_timeout);
    Pool::builder(Manager::from_connect(config, PoolConnect(tls), recycling))
        .max_size(options.max_connections)
        .wait_timeout(timeout)
        .create_timeout(timeout)
        .recycle_timeout(timeout)
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|error| StoreError::not_done(ErrorKind::Invalid, "open", error.to_string()))
}

impl fmt::Debug for ExactlyOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExactlyOnce")
            .field("scope", &self.shared.scope)
            .field("marks", &self.shared.marks)
            .finish_non_exhaustive()
    }
}

impl Layer for ExactlyOnce {
    fn layer(&self, inner: BoxHandler) -> BoxHandler {
        Arc::new(InTransaction { once: self.clone(), inner })
    }
}

struct InTransaction {
    once: ExactlyOnce,
    inner: BoxHandler,
}

impl Handle for InTransaction {
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        let (once, inner) = (self.once.clone(), self.inner.clone());
        Box::pin(async move { once.attempt(inner, delivery).await })
    }

    fn retry_policy(&self, message: &Message) -> Option<&RetryPolicy> {
        self.inner.retry_policy(message)
    }

    fn retry_policies(&self) -> Vec<&RetryPolicy> {
        self.inner.retry_policies()
    }
}

impl ExactlyOnce {
    /// One attempt. If it is dropped, or panics, its connection is closed, and the server rolls back.
    async fn attempt(&self, inner: BoxHandler, delivery: Delivery) -> Result<(), HandlerError> {
        let transaction = self.begin(&delivery).await?;
        let Some(transaction) = transaction else {
            let known = HandlerError::msg("the effects of this message were committed before");
            return Err(known.verdict(Verdict::Duplicate).reason(Reason::DUPLICATE));
        };
        let transaction = Arc::new(transaction);
        let outcome = CURRENT.scope(transaction.clone(), inner.handle(delivery.clone())).await;
        let Some(transaction) = Arc::into_inner(transaction) else {
            outcome?;
            // Whatever holds it could still write. Its connection is closed with it, and nothing is committed.
            return Err(HandlerError::msg("the transaction outlived its handler; nothing was committed"));
        };
        // A message that the handler sent to the dead letters is handled when it is replayed.
        if outcome.is_err() || delivery.sent_to_dlq() {
            transaction.roll_back().await;
            return outcome;
        }
        transaction.commit().await.map_err(|error| failed_attempt(error).phase(Phase::Ack))
    }

    /// Begins the transaction of an attempt, and marks its message in it. `None` if it is marked already.
    async fn begin(&self, delivery: &Delivery) -> Result<Option<Transaction>, HandlerError> {
        let client = self.client("begin").await.map_err(failed_attempt)?;
        let failed = |error: Error| failed_attempt(of_driver(error, "mark", Certainty::NotDone));
        let statement = client.prepare_cached(&self.shared.insert).await.map_err(failed)?;
        let transaction = Transaction { client: Some(client) };
        let id = delivery.dedupe_id();
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&self.shared.scope, &id.as_str()];
        let client = transaction.client();
        // Sent together, in this order.
        let (_, marked) =
            tokio::try_join!(client.batch_execute("BEGIN"), client.execute(&statement, &parameters))
                .map_err(failed)?;
        if marked == 0 {
            transaction.roll_back().await;
            return Ok(None);
        }
        Ok(Some(transaction))
    }
}

/// An error of the database as the failure of an attempt. A commit without a response is one, too: the retry finds the mark, if there is one.
fn failed_attempt(error: StoreError) -> HandlerError {
    let reason = match error.kind().is_temporary() {
        true => Reason::DEPENDENCY_UNAVAILABLE,
        false => Reason::HANDLER_ERROR,
    };
    HandlerError::from_boxed(error).reason(reason)
}

/// A connection with an open transaction. If it is dropped, the connection is closed: the server rolls back.
struct Transaction {
    client: Option<Object>,
}

impl Transaction {
    fn client(&self) -> &Client {
        self.client.as_ref().expect("it is there until the end")
    }

    /// Commits. Fails if a statement of the transaction failed: the server would answer such a commit with a rollback that looks like
    /// success.
    async fn commit(mut self) -> store::Result<()> {
        self.client().batch_execute("SELECT 1; COMMIT").await.map_err(|error| of_commit(error, "commit"))?;
        // Back to the pool.
        drop(self.client.take());
        Ok(())
    }

    /// Rolls back. A connection that does not respond is closed.
    async fn roll_back(mut self) {
        if self.client().batch_execute("ROLLBACK").await.is_ok() {
            drop(self.client.take());
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            drop(Object::take(client));
        }
    }
}

/// The transaction of an attempt. An extractor: take it as a parameter of a handler inside of [`ExactlyOnce`].
///
/// It has the methods of a [`Client`]. The layer ends the transaction: the handler must not, and must not keep it beyond its end. A
/// statement that fails spoils the transaction, as ever in PostgreSQL: the attempt cannot succeed any more, unless the statement ran behind a
/// `SAVEPOINT` that was rolled back.
pub struct Tx(Arc<Transaction>);

impl FromDelivery for Tx {
    fn from_delivery(_: &Delivery) -> Result<Self, HandlerError> {
        CURRENT.try_with(|transaction| Self(transaction.clone())).map_err(|_| {
            HandlerError::msg(
                "there is no transaction: apply the layer ExactlyOnce to the handler that takes a Tx",
            )
            .verdict(Verdict::Stop)
        })
    }
}

impl Deref for Tx {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.0.client()
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}
