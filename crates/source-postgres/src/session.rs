//! The session of a source: one connection that holds the right to read an outbox, reads it, and deletes
//! from it.
//!
//! The right is an advisory lock of the session. The server ends an unresponsive session together with
//! its lock. A reader that was replaced cannot change anything, because it no longer has a session (I6).
//! Each response proves that the session was alive when the request was sent. Nobody else can therefore
//! have got the right before the server ends idle sessions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lazaret_core::source::Ownership;
use lazaret_store_postgres::{Connector, driver_error};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio_postgres::types::{PgLsn, ToSql};
use tokio_postgres::{Client, Row, Statement};

use crate::delivered::DeliveredRow;
use crate::error::OutboxError;
use crate::options::{Ack, OutboxOptions};
use crate::setup;
use crate::table::{Table, quoted};

/// The timeout after which the server cancels a statement.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of rows that one statement deletes.
const DELETE_ROWS: usize = 1000;

/// Selects the transactions that have drawn an id. A relation's number is unique only within this
/// database. Transactions that only read the sequence hold the weakest lock.
const WRITERS: &str = "SELECT virtualtransaction, pid FROM pg_locks \
     WHERE locktype = 'relation' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
         AND relation = $1 AND granted AND mode <> 'AccessShareLock'";
const LOG: &str = "SELECT pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn()";
const LEADER: &str = "SELECT pid FROM pg_locks \
     WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
         AND (classid::bigint << 32) | objid::bigint = $1 AND objsubid = 1 AND granted";

pub(crate) struct Session {
    client: Client,
    pub(crate) table: Table,
    /// The identity of the table and its sequence, in the history of the server.
    pub(crate) identity: String,
    /// The file of the sequence.
    sequence_file: Option<u32>,
    lock: i64,
    /// How long it is certain that the session has the right to read, if it got it.
    ownership: Ownership,
    /// How long the server keeps the session after a response.
    kept: Duration,
    /// Whether other rows have ids of rows that this session delivered.
    replaced: AtomicBool,
    last_id: Statement,
    writers: Statement,
    log: Statement,
    read: Statement,
    delete: Statement,
}

impl Session {
    /// Connects, checks the table, and listens for announcements. Each announcement wakes a task that
    /// waits for `announced`.
    pub(crate) async fn open(options: &OutboxOptions, announced: Arc<Notify>) -> Result<Self, OutboxError> {
        let connector = Connector::new(&options.dsn, "lazaret-outbox", CONNECT_TIMEOUT, STATEMENT_TIMEOUT)?;
        let client = connector.connect(move |_| announced.notify_one()).await?;
        let failed = |error| OutboxError::from(driver_error(error, "open the outbox"));
        // With `row_security = off`, a policy that would hide rows is an error. Each statement sees what
        // was committed when it starts.
        let settings = format!(
            "SET statement_timeout = {}; SET row_security = off; SET default_transaction_isolation = 'read committed'",
            STATEMENT_TIMEOUT.as_millis()
        );
        client.batch_execute(&settings).await.map_err(failed)?;
        if options.setup {
            setup::create_missing(&client, options).await?;
        }
        let table = Table::inspect(&client, options).await?;
        let timeout = options.session_timeout.as_millis().min(i32::MAX.cast_unsigned().into());
        let listen = format!("SET idle_session_timeout = {timeout}; LISTEN {}", quoted(&options.channel));
        client.batch_execute(&listen).await.map_err(failed)?;
        // The file is read first. If the sequence restarts in between, the next read finds a different file.
        let sequence_file = client.query_one(&table.last_id_sql(), &[]).await.map_err(failed)?.get(1);
        let identity = client.query_one(&table.identity_sql(), &[]).await.map_err(failed)?.get(0);
        Ok(Self {
            identity,
            sequence_file,
            lock: lock_of(options, &table.name),
            ownership: Ownership::leased(),
            kept: options.session_timeout - options.session_timeout / 10,
            replaced: AtomicBool::new(false),
            last_id: client.prepare(&table.last_id_sql()).await.map_err(failed)?,
            writers: client.prepare(WRITERS).await.map_err(failed)?,
            log: client.prepare(LOG).await.map_err(failed)?,
            read: client.prepare(&table.read_sql()).await.map_err(failed)?,
            delete: client.prepare(&table.delete_sql()).await.map_err(failed)?,
            table,
            client,
        })
    }

    async fn ask(
        &self,
        what: &'static str,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, OutboxError> {
        let asked = self.ownership.now();
        let rows =
            self.client.query(statement, parameters).await.map_err(|error| driver_error(error, what))?;
        self.ownership.confirm(asked, self.kept);
        Ok(rows)
    }

    /// Returns how long it is certain that the session has the right to read.
    pub(crate) fn ownership(&self) -> Ownership {
        self.ownership.clone()
    }

    /// Tries to become the reader of the outbox. Another session of this process counts as another reader.
    pub(crate) async fn try_lead(&self) -> Result<bool, OutboxError> {
        let row = self.client.query_one("SELECT pg_try_advisory_lock($1)", &[&self.lock]).await;
        Ok(row.map_err(|error| driver_error(error, "lead the outbox"))?.get(0))
    }

    /// Returns the process id of the session that reads the outbox.
    pub(crate) async fn leader(&self) -> Result<Option<i32>, OutboxError> {
        let row = self.client.query_opt(LEADER, &[&self.lock]).await;
        Ok(row.map_err(|error| driver_error(error, "lead the outbox"))?.and_then(|row| row.get(0)))
    }

    /// Gives up the right to read.
    pub(crate) async fn unlock(&self) -> Result<(), OutboxError> {
        self.ownership.end();
        let row = self.client.execute("SELECT pg_advisory_unlock($1)", &[&self.lock]).await;
        row.map(drop).map_err(|error| driver_error(error, "leave the outbox").into())
    }

    /// Shows the server that this session is alive.
    pub(crate) async fn beat(&self) -> Result<(), OutboxError> {
        let asked = self.ownership.now();
        self.client.batch_execute("").await.map_err(|error| driver_error(error, "read the outbox"))?;
        self.ownership.confirm(asked, self.kept);
        Ok(())
    }

    /// Returns the last id that was drawn. Fails if the sequence restarted since the session was opened.
    pub(crate) async fn last_id(&self) -> Result<i64, OutboxError> {
        let rows = self.ask("read the sequence of the outbox", &self.last_id, &[]).await?;
        let row = rows.first().ok_or_else(|| OutboxError::passing("the sequence of the ids has no row"))?;
        match row.get::<_, Option<u32>>(1) == self.sequence_file {
            true => Ok(row.get(0)),
            false => Err(OutboxError::passing("the sequence of the ids began again")),
        }
    }

    /// Returns the transactions that have drawn an id, by virtual transaction id, with the process ids
    /// of their sessions. A prepared transaction has no session.
    pub(crate) async fn writers(&self) -> Result<BTreeMap<String, Option<i32>>, OutboxError> {
        let rows = self.ask("read the locks of writers", &self.writers, &[&self.table.sequence]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Returns the end of the log including memory, and the end of the log on disk.
    pub(crate) async fn log_ends(&self) -> Result<(u64, u64), OutboxError> {
        let rows = self.ask("read the position of the log", &self.log, &[]).await?;
        let ends = rows.first().map(|row| (row.get::<_, PgLsn>(0).into(), row.get::<_, PgLsn>(1).into()));
        ends.ok_or_else(|| OutboxError::passing("the server has no log"))
    }

    /// Reads rows in the order of their ids.
    pub(crate) async fn read(&self, after: i64, up_to: i64, limit: i64) -> Result<Vec<Row>, OutboxError> {
        self.ask("read the outbox", &self.read, &[&after, &up_to, &limit]).await
    }

    /// Deletes rows in the order of their ids. Nothing is deleted after the sequence was set back, and
    /// no row whose version differs from the delivered one, because the ids may belong to other rows.
    /// Returns `true` if no version differs.
    pub(crate) async fn delete(&self, rows: &[DeliveredRow]) -> Result<bool, OutboxError> {
        let mut are_same = true;
        for rows in rows.chunks(DELETE_ROWS) {
            let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
            let versions: Vec<i64> = rows.iter().map(|row| row.version).collect();
            let last = ids.iter().copied().max().unwrap_or_default();
            let parameters: [&(dyn ToSql + Sync); 4] = [&ids, &last, &self.sequence_file, &versions];
            let answer = self.ask("delete from the outbox", &self.delete, &parameters).await?;
            let found = answer.first().filter(|row| row.get::<_, Option<bool>>(0) == Some(true));
            let Some(found) = found else {
                return Err(OutboxError::passing(
                    "the sequence of the ids was set back; nothing was deleted",
                ));
            };
            are_same &= !found.get::<_, bool>(1);
        }
        Ok(are_same)
    }

    /// Records that other rows have ids of delivered rows.
    pub(crate) fn set_replaced(&self) {
        self.replaced.store(true, Ordering::Release);
    }

    /// Returns `true` if other rows have ids of delivered rows.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Returns the id of the first row up to this id.
    pub(crate) async fn first_up_to(&self, id: i64) -> Result<Option<i64>, OutboxError> {
        let row = self.client.query_opt(&self.table.first_up_to_sql(), &[&id]).await;
        Ok(row.map_err(|error| driver_error(error, "read the outbox"))?.map(|row| row.get(0)))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.ownership.end();
    }
}

/// Returns the number of the lock. A table whose rows are deleted has one reader. A table whose rows
/// stay has one reader per stream.
fn lock_of(options: &OutboxOptions, table: &str) -> i64 {
    let reader = match options.ack {
        Ack::Delete => "",
        Ack::Position => options.stream.as_str(),
    };
    let digest = Sha256::digest(format!("lazaret outbox\n{table}\n{reader}"));
    let mut number = [0; 8];
    number.copy_from_slice(&digest[..8]);
    i64::from_be_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_deleted_have_one_reader() {
        let of = |ack, stream: &str| {
            lock_of(&OutboxOptions { ack, stream: stream.into(), ..OutboxOptions::new("", "t") }, "s.t")
        };
        assert_eq!(of(Ack::Delete, "a"), of(Ack::Delete, "b"));
        assert_ne!(of(Ack::Position, "a"), of(Ack::Position, "b"));
        assert_eq!(of(Ack::Position, "a"), of(Ack::Position, "a"));
    }
}
