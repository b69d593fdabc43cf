//! The locks of an unreliable store.

use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::store::{LockState, Locks, Result};

use super::Unreliable;

#[async_trait]
impl<S: Locks> Locks for Unreliable<S> {
    async fn acquire(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<LockState>> {
        self.call("acquire", self.inner.acquire(name, owner, ttl)).await
    }

    async fn renew(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<LockState>> {
        self.call("renew", self.inner.renew(name, owner, ttl)).await
    }

    async fn release(&self, name: &str, owner: &str) -> Result<()> {
        self.call("release", self.inner.release(name, owner)).await
    }

    async fn state(&self, name: &str) -> Result<Option<LockState>> {
        self.call("state", self.inner.state(name)).await
    }
}
