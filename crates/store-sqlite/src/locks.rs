//! Named locks that expire.

use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::store::{LockState, Locks, Result};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Work;
use crate::rows::{later, time, unsigned};
use crate::store::SqliteStore;

struct LockRow {
    owner: String,
    fence: i64,
    acquired_at: i64,
    expires_at: i64,
}

impl LockRow {
    fn told(self, name: &str) -> Work<LockState> {
        Ok(LockState {
            name: name.to_owned(),
            owner: self.owner,
            fence: unsigned(self.fence)?,
            acquired_at: time(self.acquired_at),
            expires_at: time(self.expires_at),
        })
    }
}

/// The lock, if somebody holds it now.
fn live(connection: &Connection, name: &str, now: i64) -> Work<Option<LockRow>> {
    let mut select = connection.prepare_cached(
        "SELECT owner, fence, acquired_at, expires_at FROM locks WHERE name = ?1 AND expires_at > ?2",
    )?;
    let found = select.query_row(params![name, now], |row| {
        Ok(LockRow {
            owner: row.get(0)?,
            fence: row.get(1)?,
            acquired_at: row.get(2)?,
            expires_at: row.get(3)?,
        })
    });
    Ok(found.optional()?)
}

/// A fence that no lock ever had. One counter for all locks, so that it outlives each of them.
fn next_fence(connection: &Connection) -> Work<i64> {
    let mut upsert = connection.prepare_cached(
        "INSERT INTO meta (key, value) VALUES ('lock_fence', 1)
         ON CONFLICT (key) DO UPDATE SET value = value + 1 RETURNING value",
    )?;
    Ok(upsert.query_row([], |row| row.get(0))?)
}

fn put(connection: &Connection, name: &str, lock: &LockRow) -> Work<()> {
    let mut replace = connection.prepare_cached(
        "INSERT OR REPLACE INTO locks (name, owner, fence, acquired_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    replace.execute(params![name, lock.owner, lock.fence, lock.acquired_at, lock.expires_at])?;
    Ok(())
}

#[async_trait]
impl Locks for SqliteStore {
    async fn acquire(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<LockState>> {
        let (name, owner) = (name.to_owned(), owner.to_owned());
        self.write("acquire", move |step| {
            let expires_at = later(step.now, ttl);
            let lock = match live(step.connection, &name, step.now)? {
                Some(held) if held.owner != owner => return Ok(None),
                Some(held) => LockRow { expires_at, ..held },
                None => {
                    let fence = next_fence(step.connection)?;
                    LockRow { owner, fence, acquired_at: step.now, expires_at }
                }
            };
            put(step.connection, &name, &lock)?;
            lock.told(&name).map(Some)
        })
        .await
    }

    async fn renew(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<LockState>> {
        let (name, owner) = (name.to_owned(), owner.to_owned());
        self.write("renew", move |step| {
            let held = live(step.connection, &name, step.now)?.filter(|held| held.owner == owner);
            let Some(held) = held else { return Ok(None) };
            let lock = LockRow { expires_at: later(step.now, ttl), ..held };
            put(step.connection, &name, &lock)?;
            lock.told(&name).map(Some)
        })
        .await
    }

    async fn release(&self, name: &str, owner: &str) -> Result<()> {
        let (name, owner) = (name.to_owned(), owner.to_owned());
        self.write("release", move |step| {
            let mut delete =
                step.connection.prepare_cached("DELETE FROM locks WHERE name = ?1 AND owner = ?2")?;
            delete.execute([name, owner])?;
            Ok(())
        })
        .await
    }

    async fn state(&self, name: &str) -> Result<Option<LockState>> {
        let name = name.to_owned();
        self.ask("state", move |view| {
            live(view.connection, &name, view.now)?.map(|held| held.told(&name)).transpose()
        })
        .await
    }
}
