//! Versioned key-value pairs.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lazaret_core::store::{Expect, ExpiryTime, KeyValue, Reading, Result, Versioned, Written};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Work;
use crate::readers::View;
use crate::rows::{bound, nanos, time, unsigned};
use crate::step::Step;
use crate::store::SqliteStore;

/// Number of expired values that each write removes. More than a write adds, so they never accumulate (I7).
const PRUNE: i64 = 16;

/// The value as it is stored, expired or not.
fn read(connection: &Connection, (space, name): (&str, &str), now: i64) -> Work<Reading> {
    let mut select = connection
        .prepare_cached("SELECT value, version, expires_at FROM key_values WHERE space = ?1 AND name = ?2")?;
    let found = select.query_row([space, name], |row| {
        Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, i64>(1)?, row.get::<_, Option<i64>>(2)?))
    });
    let found = match found.optional()? {
        Some((value, version, expires_at)) => Some(Versioned {
            value: value.into(),
            version: unsigned(version)?,
            expires_at: expires_at.map(time),
        }),
        None => None,
    };
    Ok(Reading { found, now: time(now) })
}

fn prune(step: &Step<'_>, passed: ExpiryTime) -> Work<()> {
    let mut delete = step.connection.prepare_cached(
        "DELETE FROM key_values WHERE kid IN (
             SELECT kid FROM key_values WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
    )?;
    delete.execute([nanos(passed.earliest), PRUNE])?;
    Ok(())
}

fn write(
    step: &Step<'_>,
    (space, name): (&str, &str),
    expect: Expect,
    value: Option<&[u8]>,
    ttl: Option<Duration>,
    passed: ExpiryTime,
) -> Work<Written> {
    prune(step, passed)?;
    let reading = passed.unexpired(read(step.connection, (space, name), step.now)?);
    let version = reading.found.as_ref().map(|found| found.version);
    let holds = match expect {
        Expect::Anything => true,
        Expect::Absent => version.is_none(),
        Expect::Version(expected) => version == Some(expected),
    };
    if !holds {
        return Ok(Written::Conflict(reading));
    }
    let Some(value) = value else {
        let mut delete =
            step.connection.prepare_cached("DELETE FROM key_values WHERE space = ?1 AND name = ?2")?;
        delete.execute([space, name])?;
        return Ok(Written::Done);
    };
    let mut upsert = step.connection.prepare_cached(
        "INSERT INTO key_values (space, name, value, version, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (space, name)
         DO UPDATE SET value = excluded.value, version = excluded.version, expires_at = excluded.expires_at",
    )?;
    let version = bound(version.unwrap_or_default() + 1);
    let end = ttl.map(|ttl| nanos(passed.end_of(ttl)));
    upsert.execute(params![space, name, value, version, end])?;
    Ok(Written::Done)
}

#[async_trait]
impl KeyValue for SqliteStore {
    async fn read(&self, space: &str, name: &str) -> Result<Reading> {
        let key = (space.to_owned(), name.to_owned());
        let question = move |view: &View<'_>| read(view.connection, (&key.0, &key.1), view.now);
        let stored = self.ask_value("read", question).await?;
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
        let key = (space.to_owned(), name.to_owned());
        let work =
            move |step: &mut Step<'_>| write(step, (&key.0, &key.1), expect, value.as_deref(), ttl, passed);
        SqliteStore::write(self, "write", work).await
    }
}
