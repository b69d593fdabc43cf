//! Named locks that expire, for work that only one instance may do, kept as [values by name](super::KeyValue).

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::error::{ErrorKind, Result, StoreError};
use super::key_value::{KeyValue, Reading, update};
use super::rules::later;

/// Who holds a lock, since when and until when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockState {
    /// The lock.
    pub name: String,
    /// The holder.
    pub owner: String,
    /// Grows each time the lock changes hands. Writes made under the lock carry it.
    pub fence: u64,
    /// Since when the holder has it, without interruption.
    pub acquired_at: Timestamp,
    /// When it ends unless it is renewed.
    pub expires_at: Timestamp,
}

/// Locks by name. The store's clock decides.
#[async_trait]
pub trait Locks: Send + Sync + 'static {
    /// Takes the lock if it is free, expired or one's own. `None` when somebody else holds it.
    async fn acquire(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<LockState>>;

    /// Prolongs one's own lock from now. `None` when one does not hold it, or held it and let it expire.
    async fn renew(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<LockState>>;

    /// Gives one's own lock back. Somebody else's stays.
    async fn release(&self, name: &str, owner: &str) -> Result<()>;

    /// Who holds the lock now; `None` when it is free or expired.
    async fn state(&self, name: &str) -> Result<Option<LockState>>;
}

const SPACE: &str = "lock";

/// The lock as it was last written, held or not: it is never removed, so its fence only grows.
fn decode(reading: &Reading) -> Result<Option<LockState>> {
    let Some(found) = &reading.found else { return Ok(None) };
    serde_json::from_slice(&found.value).map(Some).map_err(|error| {
        StoreError::not_done(ErrorKind::Corrupt, "lock", "the lock cannot be read").with_source(error)
    })
}

impl LockState {
    /// The lock as a [value](super::KeyValue), for stores that take it over from another form.
    pub fn to_value(&self) -> Result<Bytes> {
        serde_json::to_vec(self).map(Bytes::from).map_err(|error| {
            StoreError::not_done(ErrorKind::Invalid, "lock", "the lock cannot be written").with_source(error)
        })
    }

    fn is_held(&self, now: Timestamp) -> bool {
        self.expires_at > now
    }
}

/// The lock that somebody holds after they asked for it; `None` when it stays as it is.
fn acquired(
    known: Option<&LockState>,
    (name, owner): (&str, &str),
    ttl: Duration,
    now: Timestamp,
) -> Option<LockState> {
    let expires_at = later(now, ttl);
    match known {
        Some(held) if held.is_held(now) && held.owner == owner => {
            Some(LockState { expires_at, ..held.clone() })
        }
        Some(held) if held.is_held(now) => None,
        known => Some(LockState {
            name: name.to_owned(),
            owner: owner.to_owned(),
            fence: known.map_or(0, |last| last.fence) + 1,
            acquired_at: now,
            expires_at,
        }),
    }
}

#[async_trait]
impl<K: KeyValue + ?Sized> Locks for K {
    async fn acquire(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<LockState>> {
        update(self, (SPACE, name), |reading| {
            let lock = acquired(decode(reading)?.as_ref(), (name, owner), ttl, reading.now);
            let value = lock.as_ref().map(LockState::to_value).transpose()?;
            Ok((lock, value))
        })
        .await
    }

    async fn renew(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<LockState>> {
        update(self, (SPACE, name), |reading| {
            let held = decode(reading)?.filter(|lock| lock.is_held(reading.now) && lock.owner == owner);
            let lock = held.map(|lock| LockState { expires_at: later(reading.now, ttl), ..lock });
            let value = lock.as_ref().map(LockState::to_value).transpose()?;
            Ok((lock, value))
        })
        .await
    }

    async fn release(&self, name: &str, owner: &str) -> Result<()> {
        update(self, (SPACE, name), |reading| {
            let held = decode(reading)?.filter(|lock| lock.is_held(reading.now) && lock.owner == owner);
            let free = held.map(|lock| LockState { expires_at: reading.now, ..lock });
            Ok(((), free.as_ref().map(LockState::to_value).transpose()?))
        })
        .await
    }

    async fn state(&self, name: &str) -> Result<Option<LockState>> {
        let reading = self.read(SPACE, name).await?;
        Ok(decode(&reading)?.filter(|lock| lock.is_held(reading.now)))
    }
}
