//! The tables and their versions.
//!
//! Each migration runs in one transaction, under an advisory lock: of several processes that start at once, one does it. `usable_from` says
//! which is the oldest version that can use the tables. Most migrations only add tables, columns with a default and indexes, or replace an
//! index: a process of the version before goes on working on the tables meanwhile. One that excludes it also makes its calls fail.

use deadpool_postgres::Object;
use lazaret_core::store::{Certainty, ErrorKind, Result, StoreError};
use tokio_postgres::Error;

use crate::error::{RefusesWrites, of_commit, of_driver};

/// The version of the tables that this store writes.
pub const FORMAT_VERSION: i32 = 7;

const OPEN: &str = "open";

/// A step from one version of the tables to the next.
struct Migration {
    sql: &'static str,
    /// The oldest version of this code that can use the tables afterwards.
    usable_from: i32,
}

/// Migration n leads from version n to n + 1. A released one never changes.
const MIGRATIONS: &[Migration] = &[
    Migration { sql: include_str!("schema/v1.sql"), usable_from: 1 },
    // Inboxes.
    Migration { sql: include_str!("schema/v2.sql"), usable_from: 1 },
    // An index of the leases, and the outbox. What a process of an older version ends is not listed.
    Migration { sql: include_str!("schema/v3.sql"), usable_from: 1 },
    // Smaller indexes. The searches of a process of an older version do not use them.
    Migration { sql: include_str!("schema/v4.sql"), usable_from: 1 },
    // An index of the audit.
    Migration { sql: include_str!("schema/v5.sql"), usable_from: 1 },
    // Notes about groups.
    Migration { sql: include_str!("schema/v6.sql"), usable_from: 6 },
    // A larger index of the letters of plans.
    Migration { sql: include_str!("schema/v7.sql"), usable_from: 6 },
];

const _: () = assert!(MIGRATIONS.len() == FORMAT_VERSION as usize);

/// The version of the tables, and the oldest version of this code that can use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) version: i32,
    pub(crate) usable_from: i32,
}

fn failed(error: Error) -> StoreError {
    of_driver(error, OPEN, Certainty::NotDone)
}

fn refuse<T>(kind: ErrorKind, context: String) -> Result<T> {
    Err(StoreError::not_done(kind, OPEN, context))
}

/// Checks that the server accepts writes, and that the tables are there in a version that this code can use. Creates and migrates
/// them if it may.
pub(crate) async fn prepare(client: &Object, schema: &str, may_migrate: bool) -> Result<()> {
    check_writable(client).await?;
    match stored(client, schema).await? {
        Some(found) if found.usable_from > FORMAT_VERSION => refuse(
            ErrorKind::Invalid,
            format!(
                "schema {schema} has version {}, which needs a Lazaret that knows version {}; this one knows {FORMAT_VERSION}",
                found.version, found.usable_from
            ),
        ),
        Some(found) if found.version >= FORMAT_VERSION => Ok(()),
        found if !may_migrate => {
            let found =
                found.map_or("no tables of Lazaret".to_owned(), |found| format!("version {}", found.version));
            refuse(
                ErrorKind::Invalid,
                format!(
                    "schema {schema} has {found}, this Lazaret needs version {FORMAT_VERSION}, and may not migrate"
                ),
            )
        }
        _ => migrate(client, schema).await,
    }
}

/// A server that refuses writes is said so in words, before the first letter needs it.
async fn check_writable(client: &Object) -> Result<()> {
    let sql = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on'";
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    let (is_replica, is_read_only): (bool, bool) = (row.get(0), row.get(1));
    let why = match (is_replica, is_read_only) {
        (true, _) => {
            "the server is a replica: it refuses writes until it is promoted; name all hosts and \
             target_session_attrs=read-write to find the primary"
        }
        (false, true) => {
            "the server refuses writes: default_transaction_read_only is on for this role, database or server"
        }
        (false, false) => return Ok(()),
    };
    Err(StoreError::not_done(ErrorKind::Unavailable, OPEN, why).with_source(RefusesWrites))
}

async fn stored(client: &Object, schema: &str) -> Result<Option<Stored>> {
    let sql = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = $1 AND c.relname = 'versions')";
    let exists: bool = client.query_one(sql, &[&schema]).await.map_err(failed)?.get(0);
    if !exists {
        return Ok(None);
    }
    let sql = format!("SELECT version, usable_from FROM {schema}.versions ORDER BY version DESC LIMIT 1");
    let row = client.query_opt(&sql, &[]).await.map_err(failed)?;
    Ok(row.map(|row| Stored { version: row.get(0), usable_from: row.get(1) }))
}

async fn migrate(client: &Object, schema: &str) -> Result<()> {
    client.batch_execute("BEGIN").await.map_err(failed)?;
    let done = migrate_in_transaction(client, schema).await;
    let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = client.batch_execute(end).await;
    done?;
    ended.map_err(|error| of_commit(error, OPEN))
}

async fn migrate_in_transaction(client: &Object, schema: &str) -> Result<()> {
    // A migration may take longer than a call, and so may the wait for another one.
    client.batch_execute("SET LOCAL statement_timeout = 0").await.map_err(failed)?;
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended('lazaret migration ' || $1, 0))";
    client.query(lock, &[&schema]).await.map_err(failed)?;
    // The right to create schemas is not needed where it exists.
    let sql = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1)";
    let exists: bool = client.query_one(sql, &[&schema]).await.map_err(failed)?.get(0);
    if !exists {
        client.batch_execute(&format!("CREATE SCHEMA {schema}")).await.map_err(failed)?;
    }
    let table = format!(
        "CREATE TABLE IF NOT EXISTS {schema}.versions (
             version     integer     PRIMARY KEY,
             usable_from integer     NOT NULL,
             applied_at  timestamptz NOT NULL DEFAULT now()
         )"
    );
    // Another process may have been faster.
    let from = match stored(client, schema).await? {
        Some(found) => usize::try_from(found.version).unwrap_or_default(),
        None => {
            client.batch_execute(&table).await.map_err(failed)?;
            0
        }
    };
    for (version, migration) in (1_i32..).zip(MIGRATIONS).skip(from) {
        client.batch_execute(migration.sql).await.map_err(failed)?;
        let sql = format!("INSERT INTO {schema}.versions (version, usable_from) VALUES ($1, $2)");
        client.execute(&sql, &[&version, &migration.usable_from]).await.map_err(failed)?;
        tracing::info!(schema, version, "tables migrated");
    }
    Ok(())
}
