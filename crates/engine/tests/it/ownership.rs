//! Processes whose machine was suspended: they do not know what others have taken over meanwhile, so
//! they ask before they start an attempt.
//!
//! The clock that counts suspensions jumps, but the timer clock does not: no part of the engine wakes up
//! by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::source::{Commit, Ownership, Source, SourceError, SourceEvent};
use lazaret_core::store::ErrorKind;
use lazaret_core::{Clock, Partition, Timestamp};
use lazaret_engine::{DedupeOptions, Options};
use lazaret_memory::MemorySource;

use crate::support::{
    self, Bench, PausedClock, Reply, Running, eventually, fatal, let_pass, millis, one_attempt, options,
    retry, secs, transient,
};

/// The time for which a partition is certain after a confirmation.
const SESSION: Duration = Duration::from_secs(30);

/// The clock of a bench whose machine a test can suspend.
#[derive(Clone)]
struct SuspendedClock(PausedClock, Arc<AtomicU64>);

impl SuspendedClock {
    fn of(bench: &Bench) -> Self {
        Self(bench.clock, Arc::default())
    }

    fn suspend(&self, time: Duration) {
        self.1.fetch_add(u64::try_from(time.as_nanos()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for SuspendedClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn steady(&self) -> Duration {
        self.0.elapsed() + Duration::from_nanos(self.1.load(Ordering::SeqCst))
    }
}

/// A source that can lose its partitions. It is confirmed at its assignments; later confirmations come
/// from the test.
struct Leased {
    inner: MemorySource,
    ownership: Ownership,
}

#[async_trait]
impl Source for Leased {
    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        let mut event = self.inner.next().await?;
        if let SourceEvent::Assigned(all) = &mut event {
            self.ownership.confirm(self.ownership.now(), SESSION);
            all.iter_mut().for_each(|assignment| assignment.ownership = self.ownership.clone());
        }
        Ok(event)
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        self.inner.commit(commits).await
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.inner.pause(partitions);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.inner.resume(partitions);
    }

    fn rewind(&mut self, partitions: &[Partition]) {
        self.inner.rewind(partitions);
    }

    async fn revoked(&mut self, partitions: &[Partition]) -> Result<(), SourceError> {
        self.inner.revoked(partitions).await
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        self.inner.close().await
    }
}

/// A consumer of a partition that it may lose, with the controls to suspend it.
struct Suspendable {
    running: Running,
    clock: SuspendedClock,
    ownership: Ownership,
}

impl Suspendable {
    fn start(
        bench: &Bench,
        options: Options,
        script: impl Fn(&support::Try) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let clock = SuspendedClock::of(bench);
        let ownership = Ownership::leased_by(Arc::new(clock.clone()));
        let source = Leased { inner: bench.log.join(), ownership: ownership.clone() };
        let builder = bench.builder(options).source(source).clock(Arc::new(clock.clone()));
        Self { running: Running::start(builder.handler(bench.handler(script))), clock, ownership }
    }

    fn confirm(&self) {
        self.ownership.confirm(self.ownership.now(), SESSION);
    }
}

#[tokio::test(start_paused = true)]
async fn no_message_starts_before_its_partition_is_certainly_owned_again() {
    // I6
    let filters = [false, true];
    for dedupe in filters {
        let bench = Bench::new();
        let mut options = options();
        if dedupe {
            let filter = Arc::new(bench.store.memory().clone());
            options.dedupe = Some(DedupeOptions { filter, window: secs(3600) });
        }
        bench.push(&["a1"]);
        let consumer = Suspendable::start(&bench, options, |_| Reply::Done);
        eventually("it is handled", || bench.calls.tried() == ["a1"]).await;
        consumer.clock.suspend(SESSION);
        bench.push(&["a2", "b1"]);
        let_pass(secs(5)).await;
        assert_eq!(bench.calls.tried(), ["a1"], "nobody knows whose they are");
        consumer.confirm();
        eventually("the others are handled", || bench.committed() == Some(2)).await;
        assert_eq!(bench.calls.len(), 3);
        consumer.running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_partition_that_was_lost_meanwhile_never_start() {
    // I6
    let bench = Bench::new();
    bench.push(&["a1"]);
    let consumer = Suspendable::start(&bench, options(), |_| Reply::Done);
    eventually("it is handled", || bench.calls.tried() == ["a1"]).await;
    consumer.clock.suspend(SESSION);
    bench.push(&["a2"]);
    let_pass(secs(5)).await;
    // Another member owns the partition.
    consumer.ownership.end();
    consumer.confirm();
    let_pass(secs(100)).await;
    assert_eq!(bench.calls.tried(), ["a1"]);
    // The loss releases the waiting messages.
    consumer.running.stop().await;
    assert_eq!(bench.committed(), Some(0), "the other one commits it");
}

#[tokio::test(start_paused = true)]
async fn a_retry_in_memory_does_not_start_before_its_partition_is_certainly_owned_again() {
    // I6
    let bench = Bench::new();
    bench.push(&["a1"]);
    let retry = RetryPolicy { hold: secs(60), ..retry(Strategy::Ordered) };
    let consumer = Suspendable::start(&bench, Options { retry, ..options() }, |this| match this.before {
        0 => Reply::Fail(transient()),
        _ => Reply::Done,
    });
    eventually("it failed", || bench.calls.len() == 1).await;
    consumer.clock.suspend(SESSION);
    let_pass(secs(5)).await;
    assert_eq!(bench.calls.len(), 1, "it is due, and another process may have handled it");
    consumer.confirm();
    eventually("it is handled", || bench.committed() == Some(0)).await;
    assert_eq!(bench.calls.attempts_of("a1"), [1, 2]);
    consumer.running.stop().await;
}

/// Starts a consumer whose replay of the letter in `a` waits for its turn. Its lease ends while the
/// machine is suspended.
async fn suspended_replay(bench: &Bench) -> (Running, tokio::task::JoinHandle<bool>) {
    bench.push(&["a1"]);
    let clock = SuspendedClock::of(bench);
    let options = Options { concurrency: 1, shards: 1, attempt_timeout: None, ..one_attempt() };
    let handler = bench.handler(|this| match (this.name.as_str(), this.before) {
        ("a1", 0) => Reply::Fail(fatal()),
        ("b1", _) => Reply::after(secs(3), Reply::Done),
        _ => Reply::Done,
    });
    let running = Running::start(bench.builder(options).clock(Arc::new(clock.clone())).handler(handler));
    eventually("it is a letter", || bench.committed() == Some(0)).await;
    bench.push(&["b1"]);
    eventually("the only attempt is taken", || bench.calls.len() == 2).await;
    let replayer = running.replayer();
    let replay = tokio::spawn(async move { replayer.process_any().await.unwrap() });
    eventually("it is claimed", || bench.store.calls("claim") > 0).await;
    let_pass(millis(500)).await;
    assert_eq!(bench.store.calls("renew"), 0);
    clock.suspend(secs(3600));
    (running, replay)
}

#[tokio::test(start_paused = true)]
async fn a_letter_is_tried_after_its_lease_was_confirmed() {
    // I6
    let bench = Bench::new();
    let (running, replay) = suspended_replay(&bench).await;
    assert!(replay.await.unwrap());
    assert_eq!(bench.store.calls("renew"), 1, "nobody has taken it");
    assert_eq!(bench.calls.of("a1").len(), 2);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_letter_is_not_tried_when_its_lease_went_to_another() {
    // I6
    let bench = Bench::new();
    bench.store.fail("renew", ErrorKind::Fenced);
    let (running, replay) = suspended_replay(&bench).await;
    replay.await.unwrap();
    assert_eq!((bench.calls.of("a1").len(), bench.events.count("LeaseLost")), (1, 1));
    running.stop().await;
}
