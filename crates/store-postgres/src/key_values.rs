//! Small values by name, the basis of checkpoints, locks and the duplicate filter.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lazaret_core::store::{Expect, ExpiryTime, KeyValue, Reading, Result, Versioned, Written};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::error::Work;
use crate::store::{PostgresStore, first};
use crate::transaction::{CLOCK, Transaction, transaction};
use crate::values::{Columns, bound, key_of, nanos, text};

/// Number of expired values that each write removes. More than a write adds, so they never accumulate (I7).
const PRUNE: i64 = 16;

const READ: &str = "SELECT value, version, expires_at FROM key_values WHERE hash = $1";
const LOCK: &str = "SELECT value, version, expires_at FROM key_values WHERE hash = $1 FOR UPDATE";
const EXPIRED: &str = "DELETE FROM key_values WHERE hash IN (
    SELECT hash FROM key_values WHERE expires_at <= $1 AND hash <> $3 ORDER BY expires_at LIMIT $2
    FOR UPDATE SKIP LOCKED)";
const DELETE: &str = "DELETE FROM key_values WHERE hash = $1";
const INSERT: &str = "INSERT INTO key_values (hash, space, name, value, version, expires_at)
    VALUES ($1, $2, $3, $4, $5, $6)";
const UPDATE: &str = "UPDATE key_values SET value = $2, version = $3, expires_at = $4 WHERE hash = $1";

fn read_value(row: &Row) -> Work<Versioned> {
    let mut c = Columns::of(row);
    let value = c.bytes()?.unwrap_or_default();
    Ok(Versioned { value, version: c.unsigned()?, expires_at: c.moment()? })
}

impl Transaction<'_> {
    /// The value as it is stored, expired or not.
    async fn read_value(&mut self, key: Uuid) -> Work<Reading> {
        let [rows, clock] = self.query_all([(READ, &[&key]), (CLOCK, &[])]).await?;
        self.set_now(&clock)?;
        Ok(Reading { found: first(&rows, read_value)?, now: self.now() })
    }

    async fn write_value(
        &mut self,
        (space, name): (&str, &str),
        expect: Expect,
        value: Option<&Bytes>,
        ttl: Option<Duration>,
        passed: ExpiryTime,
    ) -> Work<Written> {
        let key = key_of(&[space, name]);
        let [rows, clock] = self.query_all([(LOCK, &[&key]), (CLOCK, &[])]).await?;
        self.set_now(&clock)?;
        let stored = first(&rows, read_value)?;
        let reading = passed.unexpired(Reading { found: stored.clone(), now: self.now() });
        let version = reading.found.as_ref().map(|found| found.version);
        let holds = match expect {
            Expect::Anything => true,
            Expect::Absent => version.is_none(),
            Expect::Version(expected) => version == Some(expected),
        };
        if !holds {
            return Ok(Written::Conflict(reading));
        }
        self.query(EXPIRED, &[&nanos(passed.earliest), &PRUNE, &key]).await?;
        let Some(value) = value else {
            self.query(DELETE, &[&key]).await?;
            return Ok(Written::Done);
        };
        let (value, version) = (value.as_ref(), bound(version.unwrap_or_default() + 1));
        let end = ttl.map(|ttl| nanos(passed.end_of(ttl)));
        // The row of an expired value is locked as well. A value that another call has inserted meanwhile is a conflict of keys.
        match stored {
            Some(_) => self.query(UPDATE, &[&key, &value, &version, &end]).await?,
            None => {
                let (space, name) = (text(space), text(name));
                self.query(INSERT, &[&key, &space, &name, &value, &version, &end]).await?
            }
        };
        Ok(Written::Done)
    }
}

#[async_trait]
impl KeyValue for PostgresStore {
    async fn read(&self, space: &str, name: &str) -> Result<Reading> {
        let key = key_of(&[space, name]);
        let stored = transaction!(self, "read", begin_for_value, |tx| tx.read_value(key));
        self.expiry().unexpired(self, space, stored).await
    }

    async fn write(
        &self,
        space: &str,
        name: &str,
        expect: Expect,
        value: Option<Bytes>,
        ttl: Option<Duration>,
    ) -> Result<Written> {
        let passed = self.expiry().time(self, space).await?;
        let value = value.as_ref();
        Ok(transaction!(self, "write", |tx| tx.write_value((space, name), expect, value, ttl, passed)))
    }
}
