//! Named locks that expire.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_core::store::rules::later;
use lazaret_core::store::{LockState, Locks, Result};

use super::MemoryStore;

#[derive(Default)]
pub(super) struct LockTable {
    held: BTreeMap<String, LockState>,
    /// The last fence given, of all locks together, so that it outlives each of them.
    fence: u64,
}

impl LockTable {
    /// The lock, if somebody holds it now. One that has expired is dropped.
    fn live(&mut self, name: &str, now: Timestamp) -> Option<&mut LockState> {
        if self.held.get(name).is_some_and(|lock| lock.expires_at <= now) {
            self.held.remove(name);
        }
        self.held.get_mut(name)
    }

    fn acquire(
        &mut self,
        name: &str,
        owner: &str,
        expires_at: Timestamp,
        now: Timestamp,
    ) -> Option<LockState> {
        if self.live(name, now).is_some() {
            return self.renew(name, owner, expires_at, now);
        }
        self.fence += 1;
        let (name, owner) = (name.to_owned(), owner.to_owned());
        let lock = LockState { name: name.clone(), owner, fence: self.fence, acquired_at: now, expires_at };
        self.held.insert(name, lock.clone());
        Some(lock)
    }

    fn renew(&mut self, name: &str, owner: &str, expires_at: Timestamp, now: Timestamp) -> Option<LockState> {
        let lock = self.live(name, now).filter(|lock| lock.owner == owner)?;
        lock.expires_at = expires_at;
        Some(lock.clone())
    }
}

#[async_trait]
impl Locks for MemoryStore {
    async fn acquire(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<LockState>> {
        let (mut state, now) = self.begin();
        Ok(state.locks.acquire(name, owner, later(now, ttl), now))
    }

    async fn renew(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<LockState>> {
        let (mut state, now) = self.begin();
        Ok(state.locks.renew(name, owner, later(now, ttl), now))
    }

    async fn release(&self, name: &str, owner: &str) -> Result<()> {
        let (mut state, now) = self.begin();
        if state.locks.live(name, now).is_some_and(|lock| lock.owner == owner) {
            state.locks.held.remove(name);
        }
        Ok(())
    }

    async fn state(&self, name: &str) -> Result<Option<LockState>> {
        let (mut state, now) = self.begin();
        Ok(state.locks.live(name, now).cloned())
    }
}
