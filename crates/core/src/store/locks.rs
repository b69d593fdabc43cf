//! Named locks that expire, for work that only one instance may do.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::error::Result;

/// Who holds a lock, since when and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
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
