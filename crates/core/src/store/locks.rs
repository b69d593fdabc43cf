//! Named locks with expiry, for work of a single instance, stored as [key-value pairs](super::KeyValue).

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::error::{ErrorKind, Result, StoreError};
use super::key_value::{KeyValue, Reading, update};
use super::rules::later;

/// A lock with its holder and expiry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockState {
    /// The lock.
    pub name: String,
    /// The current holder.
    pub owner: String,
    /// Grows with each change of the holder. Writes made under the lock carry it.
    pub fence: u64,
    /// Start of the current holder's uninterrupted ownership.
    pub acquired_at: Timestamp,
    /// When it expires unless it is renewed.
    pub expires_at: Timestamp,
}

/// Locks by name. The store's clock determines expiry.
#[async_trait]
pub trait Locks: Send + Sync + 'static {
    /// Acquires the lock if it is free, expired or already held by this owner. `None` if another owner holds it.
    async fn acquire(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<LockState>>;

    /// Extends this owner's lock from now. `None` if the owner does not hold it or it has expired.
    async fn renew(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<LockState>>;

    /// Releases this owner's lock. Another owner's lock stays.
    async fn release(&self, name: &str, owner: &str) -> Result<()>;

    /// The current state of the lock; `None` if it is free or expired.
    async fn state(&self, name: &str) -> Result<Option<LockState>>;
}

const SPACE: &str = "lock";

/// Decodes the last written lock, held or not. Locks are never removed, so the fence only grows.
fn decode(reading: &Reading) -> Result<Option<LockState>> {
    let Some(found) = &reading.found else { return Ok(None) };
    serde_json::from_slice(&found.value).map(Some).map_err(|error| {
        StoreError::not_done(ErrorKind::Corrupt, "lock", "failed to decode the lock").with_source(error)
    })
}

impl LockState {
    /// Encodes the lock as a [value](super::KeyValue), for stores that migrate it from another format.
    pub fn to_value(&self) -> Result<Bytes> {
        serde_json::to_vec(self).map(Bytes::from).map_err(|error| {
            StoreError::not_done(ErrorKind::Invalid, "lock", "failed to encode the lock").with_source(error)
        })
    }

    fn is_held(&self, now: Timestamp) -> bool {
        self.expires_at > now
    }
}

/// The lock after an owner tried to acquire it; `None` if another owner keeps it.
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
        // The clock was set back: what is left of the lock must not last that long.
        Some(held) if held.is_held(now) && held.acquired_at > now => {
            Some(LockState { acquired_at: now, expires_at: held.expires_at.min(expires_at), ..held.clone() })
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
            Ok((lock.filter(|lock| lock.owner == owner), value))
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
