//! Small values by name, changed by compare-and-set: what checkpoints, locks and the duplicate filter stand on.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;

use super::error::Result;

/// A value that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The value.
    pub value: Bytes,
    /// Grows with every write of it. A value that was removed, or has expired, may begin anew.
    pub version: u64,
}

/// A value as it stands, and the store's time at that moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The value; `None` when there is none, or it has expired.
    pub found: Option<Versioned>,
    /// The store's time.
    pub now: Timestamp,
}

/// What must hold for a write to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Anything,
    /// There is no such value.
    Absent,
    /// It has this version.
    Version(u64),
}

/// The answer to a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// It was made.
    Done,
    /// It was not: what was expected does not hold. The value as it stands.
    Conflict(Reading),
}

/// Small values by name. Every call is atomic.
///
/// Two methods are all that a store has to bring for [`Checkpoints`](super::Checkpoints), [`Locks`](super::Locks) and
/// [`Dedupe`](super::Dedupe): whatever implements this has all of them.
#[async_trait]
pub trait KeyValue: Send + Sync + 'static {
    /// Reads the value with this name, in the space of its kind.
    async fn read(&self, space: &str, name: &str) -> Result<Reading>;

    /// Writes a value, or removes it where `value` is `None`, if what is expected holds. It expires after `ttl` by the store's
    /// clock; without one it stays.
    async fn write(
        &self,
        space: &str,
        name: &str,
        expect: Expect,
        value: Option<Bytes>,
        ttl: Option<Duration>,
    ) -> Result<Written>;
}

/// Changes a value: reads it, asks `change` what it shall be, and writes that, again and again until nobody came between.
/// `change` gives what the caller hears, and the new value; `None` leaves it as it is.
pub(super) async fn update<K: KeyValue + ?Sized, T>(
    store: &K,
    (space, name): (&str, &str),
    mut change: impl FnMut(&Reading) -> Result<(T, Option<Bytes>)> + Send,
) -> Result<T> {
    let mut reading = store.read(space, name).await?;
    loop {
        let (answer, value) = change(&reading)?;
        let Some(value) = value else { return Ok(answer) };
        let expect = reading.found.as_ref().map_or(Expect::Absent, |found| Expect::Version(found.version));
        match store.write(space, name, expect, Some(value), None).await? {
            Written::Done => return Ok(answer),
            Written::Conflict(now) => reading = now,
        }
    }
}
