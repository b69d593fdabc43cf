//! The lease under which one instance reads a stream.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lazaret_core::source::Ownership;
use lazaret_core::store::{KeyValue, LockState, Locks, StoreError};
use tokio::time::Instant;

use crate::options::LeaseOptions;

/// How soon a renewal that failed is repeated.
const RETRY: Duration = Duration::from_millis(500);

/// Why a lease ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The store does not have it as this source's any more.
    NotHeld,
    /// A newer leader has claimed the checkpoint.
    Fenced,
    /// It could not be renewed in time.
    NotRenewed(String),
}

/// A lease on a stream, in any store. The store's clock determines when it expires.
pub(crate) struct Lease {
    store: Arc<dyn KeyValue>,
    name: String,
    owner: String,
    options: LeaseOptions,
    renewed: Mutex<Renewed>,
}

/// The last successful call.
struct Renewed {
    /// When it was made, by this process's clock. The lease lasts at least `ttl` from then.
    at: Instant,
    /// The same for the engine, by a clock that goes on while the machine is suspended. Another one with each lease.
    ownership: Ownership,
}

impl Lease {
    pub(crate) fn new(store: Arc<dyn KeyValue>, stream: &str, owner: String, options: LeaseOptions) -> Self {
        let name = format!("change-stream/{stream}");
        let renewed = Mutex::new(Renewed { at: Instant::now(), ownership: Ownership::leased() });
        Self { store, name, owner, options, renewed }
    }

    fn last(&self) -> MutexGuard<'_, Renewed> {
        self.renewed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease was given, when the store was asked at this time, by both clocks.
    fn set_renewed(&self, at: Instant, steady: Duration) {
        let mut renewed = self.last();
        renewed.at = at;
        renewed.ownership.confirm(steady, self.options.ttl - self.options.margin);
    }

    /// How long it is certain that this source has the lease.
    pub(crate) fn ownership(&self) -> Ownership {
        self.last().ownership.clone()
    }

    /// Ends what was owned under the lease.
    pub(crate) fn end(&self) {
        let mut renewed = self.last();
        renewed.ownership.end();
        renewed.ownership = Ownership::leased();
    }

    /// Tries to get the lease. Returns its fence, or the lease of the holder.
    pub(crate) async fn acquire(&self) -> Result<Result<u64, Option<LockState>>, StoreError> {
        self.end();
        let (asked, steady) = (Instant::now(), self.ownership().now());
        match self.store.acquire(&self.name, &self.owner, self.options.ttl).await? {
            Some(lock) => {
                self.set_renewed(asked, steady);
                Ok(Ok(lock.fence))
            }
            None => Ok(Err(self.holder().await?)),
        }
    }

    /// The lease as somebody holds it.
    pub(crate) async fn holder(&self) -> Result<Option<LockState>, StoreError> {
        self.store.state(&self.name).await
    }

    /// Renews the lease until it ends. Errors of the store are tolerated until the margin before its expiry.
    pub(crate) async fn keep(&self) -> Ended {
        let ended = self.renew().await;
        self.end();
        ended
    }

    async fn renew(&self) -> Ended {
        let mut wait = self.options.renew;
        let mut last_error = String::from("the store did not answer");
        loop {
            let limit = self.last().at + (self.options.ttl - self.options.margin);
            let next = (Instant::now() + wait.min(self.options.renew)).min(limit);
            tokio::time::sleep_until(next).await;
            let (asked, steady) = (Instant::now(), self.ownership().now());
            match tokio::time::timeout_at(limit, self.store.renew(&self.name, &self.owner, self.options.ttl))
                .await
            {
                Ok(Ok(Some(_))) => {
                    self.set_renewed(asked, steady);
                    wait = self.options.renew;
                    continue;
                }
                Ok(Ok(None)) => return Ended::NotHeld,
                Ok(Err(error)) => last_error = error.to_string(),
                Err(_) => {}
            }
            if Instant::now() >= limit {
                return Ended::NotRenewed(last_error);
            }
            tracing::warn!(lease = self.name, error = last_error, "lease not renewed, retrying");
            wait = RETRY;
        }
    }

    /// Gives the lease back.
    pub(crate) async fn release(&self) -> Result<(), StoreError> {
        self.store.release(&self.name, &self.owner).await
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use bytes::Bytes;
    use lazaret_core::store::{ErrorKind, Expect, Reading, Result, Written};
    use lazaret_memory::MemoryStore;
    use lazaret_testkit::ManualClock;

    use super::*;

    const OPTIONS: LeaseOptions = LeaseOptions {
        ttl: Duration::from_secs(30),
        renew: Duration::from_secs(8),
        margin: Duration::from_secs(5),
        standby: Duration::from_secs(5),
    };

    /// A store that answers the first calls only.
    struct Dying {
        inner: MemoryStore,
        left: Mutex<u32>,
    }

    impl Dying {
        fn check(&self) -> Result<()> {
            let mut left = self.left.lock().unwrap();
            *left = left.saturating_sub(1);
            match *left {
                0 => Err(StoreError::not_done(ErrorKind::Unavailable, "write", "down")),
                _ => Ok(()),
            }
        }
    }

    #[async_trait]
    impl KeyValue for Dying {
        async fn read(&self, space: &str, name: &str) -> Result<Reading> {
            self.check()?;
            self.inner.read(space, name).await
        }

        async fn write(
            &self,
            space: &str,
            name: &str,
            expect: Expect,
            value: Option<Bytes>,
            ttl: Option<Duration>,
        ) -> Result<Written> {
            self.inner.write(space, name, expect, value, ttl).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failed_renewals_are_tolerated_until_the_margin() {
        // I6: the holder stops before another one can start.
        let clock = Arc::new(ManualClock::new());
        let store = Arc::new(Dying { inner: MemoryStore::new(clock), left: Mutex::new(3) });
        let lease = Lease::new(store.clone(), "orders", "a".into(), OPTIONS);
        let began = Instant::now();
        assert_eq!(lease.acquire().await.unwrap(), Ok(1));
        let ownership = lease.ownership();
        assert!(ownership.is_certain());
        // One renewal succeeds, after 8 s; the others fail.
        let ended = lease.keep().await;
        assert!(!ownership.is_certain(), "nothing of it starts any more");
        assert!(matches!(ended, Ended::NotRenewed(why) if why.contains("down")));
        assert_eq!(began.elapsed(), OPTIONS.renew + OPTIONS.ttl - OPTIONS.margin);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_another_instance_took_ends_at_the_next_renewal() {
        let clock = Arc::new(ManualClock::new());
        let store = Arc::new(MemoryStore::new(clock.clone()));
        let lease = |owner: &str| Lease::new(store.clone(), "orders", owner.into(), OPTIONS);
        let (a, b) = (lease("a"), lease("b"));
        assert_eq!(a.acquire().await.unwrap(), Ok(1));
        let holder = b.acquire().await.unwrap().unwrap_err().unwrap();
        assert_eq!(holder.owner, "a");
        clock.advance(OPTIONS.ttl);
        assert_eq!(b.acquire().await.unwrap(), Ok(2), "a later leader has a higher fence");
        let owned = a.ownership();
        assert_eq!(a.keep().await, Ended::NotHeld);
        assert!(!owned.is_certain() && b.ownership().is_certain());
        b.release().await.unwrap();
        assert_eq!(a.acquire().await.unwrap(), Ok(3));
    }
}
