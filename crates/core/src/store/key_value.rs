//! Versioned key-value pairs with compare-and-set, the basis of checkpoints, locks and the duplicate filter.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;

use super::error::Result;

/// A stored value and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The value.
    pub value: Bytes,
    /// Grows with every write. Restarts after the value was removed or has expired.
    pub version: u64,
    /// When it expires, by the [`ExpiryClock`](super::ExpiryClock) of the store; `None` for never.
    pub expires_at: Option<Timestamp>,
}

/// A value as read, with the store's time of the read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The value; `None` if it is absent or has expired.
    pub found: Option<Versioned>,
    /// The store's time.
    pub now: Timestamp,
}

/// The precondition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No precondition.
    Anything,
    /// The value is absent.
    Absent,
    /// The value has this version.
    Version(u64),
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// The value was written.
    Done,
    /// The precondition failed; nothing was written. Holds the current value.
    Conflict(Reading),
}

/// Small values by name. Every call is atomic.
///
/// A store implements two methods and gets [`Checkpoints`](super::Checkpoints), [`Locks`](super::Locks),
/// [`Dedupe`](super::Dedupe) and [`Instances`](super::Instances) from blanket implementations.
#[async_trait]
pub trait KeyValue: Send + Sync + 'static {
    /// Reads the value with this name in a namespace (`space`).
    async fn read(&self, space: &str, name: &str) -> Result<Reading>;

    /// Writes a value, or removes it if `value` is `None`, if the precondition holds. The value expires when `ttl` has passed, whatever
    /// the store's clock is set to meanwhile ([`ExpiryClock`](super::ExpiryClock)); without a `ttl` it never expires.
    async fn write(
        &self,
        space: &str,
        name: &str,
        expect: Expect,
        value: Option<Bytes>,
        ttl: Option<Duration>,
    ) -> Result<Written>;
}

/// Changes a value by read, `change` and compare-and-set, repeated until no concurrent write interferes.
/// `change` returns the result for the caller and the new value; `None` leaves the value unchanged.
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
