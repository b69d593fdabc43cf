//! The lease under which one instance reads a stream.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use lazaret_core::source::Ownership;
use lazaret_core::store::{KeyValue, LockState, Locks, StoreError};
use tokio::time::Instant;

use crate::options::LeaseOptions;

/// The first pause before a failed renewal is repeated.
const RETRY: Duration = Duration::from_millis(500);
/// The maximum pause between failed renewals. The pauses double.
const MAX_RETRY: Duration = Duration::from_secs(2);

/// The reason why a lease ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The store no longer attributes the lease to this source.
    NotHeld,
    /// A newer leader has claimed the checkpoint.
    Fenced,
    /// The lease could not be renewed in time.
    NotRenewed(String),
}

/// The store's answer to a renewal.
struct Answer {
    /// When the renewal was requested, by both clocks.
    asked: (Instant, Duration),
    lock: Result<Option<LockState>, StoreError>,
}

/// A lease on a stream, in any store. The store's clock determines when it expires.
pub(crate) struct Lease {
    store: Arc<dyn KeyValue>,
    name: String,
    owner: String,
    options: LeaseOptions,
    renewed: Mutex<Renewed>,
}

/// The last successful request.
struct Renewed {
    /// When it was sent, by this process's clock. The lease lasts at least `ttl` from then.
    at: Instant,
    /// The same for the engine, by a clock that continues while the machine is suspended. Each lease has
    /// its own.
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

    /// Records that the lease was granted for a request sent at this time, by both clocks.
    fn set_renewed(&self, at: Instant, steady: Duration) {
        let mut renewed = self.last();
        renewed.at = at;
        renewed.ownership.confirm(steady, self.certain());
    }

    /// Returns how long the lease is certain after the request.
    fn certain(&self) -> Duration {
        self.options.ttl - self.options.margin
    }

    /// Returns how long a renewal may take before another one is sent concurrently. Two more fit before
    /// the margin. An unresponsive server may never answer the first one, while the next primary answers
    /// the others.
    fn attempt_limit(&self) -> Duration {
        (self.certain().saturating_sub(self.options.renew) / 3).max(Duration::from_millis(1))
    }

    /// Returns how long it is certain that this source has the lease.
    pub(crate) fn ownership(&self) -> Ownership {
        self.last().ownership.clone()
    }

    /// Ends the ownership under the lease.
    pub(crate) fn end(&self) {
        let mut renewed = self.last();
        renewed.ownership.end();
        renewed.ownership = Ownership::leased();
    }

    /// Tries to get the lease. Returns its fence, or the lease of the current holder.
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

    /// Returns the current state of the lease, whoever holds it.
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
        loop {
            if let Err(ended) = self.renew_once().await {
                return ended;
            }
        }
    }

    /// Waits until the lease is to be renewed, and renews it with as many attempts as needed. An
    /// unanswered attempt continues alongside the next one. Its answer still counts, from the time of
    /// its request. No attempt outlives the lease that it renews.
    async fn renew_once(&self) -> Result<(), Ended> {
        let last = self.last().at;
        let limit = last + self.certain();
        let (mut next, mut pause) = (last + self.options.renew, RETRY);
        let mut last_error = String::from("the store did not answer");
        let mut attempts: FuturesUnordered<BoxFuture<'_, Answer>> = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                Some(Answer { asked: (at, steady), lock }) = attempts.next() => match lock {
                    Ok(Some(_)) => {
                        self.set_renewed(at, steady);
                        return Ok(());
                    }
                    Ok(None) => return Err(Ended::NotHeld),
                    Err(error) => {
                        last_error = error.to_string();
                        tracing::warn!(lease = self.name, error = last_error, "lease not renewed, retrying");
                        next = next.min(Instant::now() + pause.min(self.attempt_limit()));
                        pause = (pause * 2).min(MAX_RETRY);
                    }
                },
                () = tokio::time::sleep_until(limit) => return Err(Ended::NotRenewed(last_error)),
                () = tokio::time::sleep_until(next) => {
                    if !attempts.is_empty() {
                        let late = self.attempt_limit();
                        tracing::warn!(lease = self.name, ?late, "no answer to the renewal of the lease, asking again");
                    }
                    attempts.push(Box::pin(self.ask()));
                    next = Instant::now() + self.attempt_limit();
                }
            }
        }
    }

    /// Asks the store to renew the lease.
    async fn ask(&self) -> Answer {
        let asked = (Instant::now(), self.ownership().now());
        Answer { asked, lock: self.store.renew(&self.name, &self.owner, self.options.ttl).await }
    }

    /// Gives the lease back.
    pub(crate) async fn release(&self) -> Result<(), StoreError> {
        self.store.release(&self.name, &self.owner).await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

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

    /// The way in which a store answers a call.
    #[derive(Clone, Copy)]
    enum Answers {
        AtOnce,
        After(Duration),
        Never,
        Down,
    }

    /// A store that answers each call as scripted, and all further calls in the last way.
    struct Scripted {
        inner: MemoryStore,
        script: Mutex<VecDeque<Answers>>,
        last: Answers,
        began: Instant,
        /// When the store was called.
        asked: Mutex<Vec<Duration>>,
    }

    impl Scripted {
        fn new(script: impl IntoIterator<Item = Answers>, last: Answers) -> Arc<Self> {
            let inner = MemoryStore::new(Arc::new(ManualClock::new()));
            let script = Mutex::new(script.into_iter().collect());
            Arc::new(Self { inner, script, last, began: Instant::now(), asked: Mutex::default() })
        }

        fn lease(self: &Arc<Self>) -> Lease {
            Lease::new(self.clone(), "orders", "a".into(), OPTIONS)
        }

        /// Returns when the lease was to be renewed. The first call acquires it.
        fn renewals(&self) -> Vec<Duration> {
            self.asked.lock().unwrap()[1..].to_vec()
        }
    }

    #[async_trait]
    impl KeyValue for Scripted {
        async fn read(&self, space: &str, name: &str) -> Result<Reading> {
            self.asked.lock().unwrap().push(self.began.elapsed());
            let answers = self.script.lock().unwrap().pop_front().unwrap_or(self.last);
            match answers {
                Answers::AtOnce => {}
                Answers::After(time) => tokio::time::sleep(time).await,
                Answers::Never => std::future::pending().await,
                Answers::Down => {
                    return Err(StoreError::not_done(ErrorKind::Unavailable, "read", "down"));
                }
            }
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

    /// How long a lease is certain.
    const CERTAIN: Duration = OPTIONS.ttl.saturating_sub(OPTIONS.margin);

    #[tokio::test(start_paused = true)]
    async fn failed_renewals_are_tolerated_until_the_margin() {
        // I6: the holder stops before another instance can start.
        let store = Scripted::new([Answers::AtOnce, Answers::AtOnce], Answers::Down);
        let lease = store.lease();
        assert_eq!(lease.acquire().await.unwrap(), Ok(1));
        let ownership = lease.ownership();
        assert!(ownership.is_certain());
        // One renewal succeeds after 8 s, and the others fail.
        let ended = lease.keep().await;
        assert!(!ownership.is_certain(), "nothing of it starts any more");
        assert!(matches!(ended, Ended::NotRenewed(why) if why.contains("down")));
        assert_eq!(store.began.elapsed(), OPTIONS.renew + CERTAIN);
        let pauses: Vec<Duration> = store.renewals().windows(2).skip(1).map(|two| two[1] - two[0]).collect();
        assert_eq!(pauses[..3], [RETRY, RETRY * 2, MAX_RETRY], "it is tried again soon, and then less often");
        assert!(pauses.iter().all(|pause| *pause <= MAX_RETRY), "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_without_an_answer_leaves_time_for_two_more() {
        // The script simulates an unresponsive primary and the election of another one.
        let script = [Answers::AtOnce, Answers::Never, Answers::Never, Answers::AtOnce];
        let store = Scripted::new(script, Answers::Never);
        let lease = store.lease();
        assert_eq!(lease.acquire().await.unwrap(), Ok(1));
        let ended = lease.keep().await;
        assert!(matches!(ended, Ended::NotRenewed(why) if why.contains("did not answer")));
        let third = store.renewals()[2];
        assert!(third < CERTAIN, "it was asked in time");
        assert_eq!(store.began.elapsed(), third + CERTAIN, "the lease counts from then");
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_counts_from_the_time_at_which_the_store_was_asked() {
        // I6
        let late = Answers::After(Duration::from_secs(16));
        let store = Scripted::new([Answers::AtOnce, late], Answers::Never);
        let lease = store.lease();
        assert_eq!(lease.acquire().await.unwrap(), Ok(1));
        lease.keep().await;
        assert!(store.renewals()[1] < OPTIONS.renew + Duration::from_secs(16), "another one was under way");
        assert_eq!(store.began.elapsed(), OPTIONS.renew + CERTAIN);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_after_the_margin_does_not_count() {
        // I6
        let late = Answers::After(OPTIONS.ttl);
        let store = Scripted::new([Answers::AtOnce], late);
        let lease = store.lease();
        assert_eq!(lease.acquire().await.unwrap(), Ok(1));
        let ownership = lease.ownership();
        assert!(matches!(lease.keep().await, Ended::NotRenewed(_)));
        assert_eq!(store.began.elapsed(), CERTAIN);
        tokio::time::sleep(OPTIONS.ttl).await;
        assert!(!ownership.is_certain() && !lease.ownership().is_certain());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_begins_anew_does_not_postpone_the_renewal() {
        let store = Scripted::new([], Answers::AtOnce);
        let lease = store.lease();
        assert_eq!(lease.acquire().await.unwrap(), Ok(1));
        for _ in 0..10 {
            assert!(tokio::time::timeout(OPTIONS.renew / 2, lease.keep()).await.is_err());
        }
        assert!(store.renewals().len() >= 4, "{:?}", store.renewals());
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
