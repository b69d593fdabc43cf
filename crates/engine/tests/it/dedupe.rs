//! The duplicate filter: copies of a message, marks that the store does not accept, and claims of
//! crashed instances.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::policy::RetryPolicy;
use lazaret_core::recorder::{FlightRecorder, Identity};
use lazaret_core::store::{self, Dedupe, DedupeClaim, ErrorKind, StoreError};
use lazaret_core::{LetterState, Message, MessageId, Position, QueueName};
use lazaret_engine::{DedupeOptions, Options};
use lazaret_testkit::RecorderFile;

use crate::support::{
    Bench, Reply, Running, Try, eventually, fatal, let_pass, millis, one_attempt, options, secs, transient,
};

/// A duplicate filter in memory whose calls fail on request.
#[derive(Clone)]
struct Filter {
    inner: Arc<dyn Dedupe>,
    failing: Arc<Mutex<BTreeMap<&'static str, usize>>>,
    slow: Arc<Mutex<BTreeMap<&'static str, Duration>>>,
}

impl Filter {
    fn new(bench: &Bench) -> Self {
        Self { inner: Arc::new(bench.store.memory().clone()), failing: Arc::default(), slow: Arc::default() }
    }

    /// Makes the next calls of this kind fail.
    fn fail_next(&self, operation: &'static str, times: usize) {
        self.failing.lock().unwrap().insert(operation, times);
    }

    /// Delays calls of this kind before they do anything.
    fn slow_down(&self, operation: &'static str, by: Duration) {
        self.slow.lock().unwrap().insert(operation, by);
    }

    fn mend(&self) {
        self.failing.lock().unwrap().clear();
    }

    fn left(&self, operation: &'static str) -> usize {
        self.failing.lock().unwrap().get(operation).copied().unwrap_or_default()
    }

    async fn check(&self, operation: &'static str) -> store::Result<()> {
        let delay = self.slow.lock().unwrap().get(operation).copied().unwrap_or_default();
        let_pass(delay).await;
        let mut failing = self.failing.lock().unwrap();
        match failing.get_mut(operation).filter(|left| **left > 0) {
            Some(left) => {
                *left -= 1;
                Err(StoreError::not_done(ErrorKind::Unavailable, operation, "broken on purpose"))
            }
            None => Ok(()),
        }
    }

    /// Claims the message at this offset of partition 0 for an instance that crashed.
    async fn claimed_by_the_dead(&self, offset: u64, lease: Duration) {
        let id = MessageId::from(format!("events/0/{offset}"));
        let claimed = self.inner.claim(&Bench::queue(), &id, "dead-instance", lease).await.unwrap();
        assert_eq!(claimed, DedupeClaim::Claimed);
    }

    /// The options of a consumer with this filter.
    fn on(&self, options: Options) -> Options {
        let filter = Arc::new(self.clone());
        Options { dedupe: Some(DedupeOptions { filter, window: secs(3600) }), ..options }
    }
}

#[async_trait]
impl Dedupe for Filter {
    async fn claim(
        &self,
        queue: &QueueName,
        id: &MessageId,
        owner: &str,
        lease: Duration,
    ) -> store::Result<DedupeClaim> {
        self.check("claim").await?;
        self.inner.claim(queue, id, owner, lease).await
    }

    async fn done(
        &self,
        queue: &QueueName,
        id: &MessageId,
        owner: &str,
        window: Duration,
    ) -> store::Result<()> {
        self.check("done").await?;
        self.inner.done(queue, id, owner, window).await
    }

    async fn abandon(&self, queue: &QueueName, id: &MessageId, owner: &str) -> store::Result<()> {
        self.check("abandon").await?;
        self.inner.abandon(queue, id, owner).await
    }
}

/// Adds a copy of message `one` with this key.
fn push_copy(bench: &Bench, partition: u32, key: &'static str) {
    bench.log.push_with(partition, |message| {
        let mut message = message.with_key(key).with_payload("copy");
        message.id = "one".into();
        message
    });
}

#[tokio::test(start_paused = true)]
async fn of_two_copies_in_flight_in_one_process_one_is_handled() {
    for partition in [0, 1] {
        let bench = Bench::with_partitions(2);
        let filter = Filter::new(&bench);
        push_copy(&bench, 0, "a");
        push_copy(&bench, partition, "b");
        let options = filter.on(options());
        let stats = bench.run(options, |_| Reply::after(secs(3), Reply::Done)).await;
        assert_eq!(bench.calls.len(), 1, "in partitions 0 and {partition}");
        assert_eq!((stats.handled, stats.duplicates), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_runs_when_the_first_one_fails_and_is_tried_again() {
    let bench = Bench::new();
    let filter = Filter::new(&bench);
    push_copy(&bench, 0, "a");
    push_copy(&bench, 0, "b");
    let script = |this: &Try| match this.before {
        0 => Reply::after(secs(3), Reply::Fail(transient())),
        _ => Reply::Done,
    };
    let stats = bench.run(filter.on(options()), script).await;
    assert_eq!(bench.calls.done().len(), 1);
    assert_eq!((stats.handled, stats.duplicates), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_a_message_with_a_dead_letter_does_not_run() {
    // I8
    let bench = Bench::new();
    let filter = Filter::new(&bench);
    push_copy(&bench, 0, "a");
    push_copy(&bench, 0, "b");
    let script = |this: &Try| match this.before {
        0 => Reply::after(secs(1), Reply::Fail(fatal())),
        _ => Reply::Done,
    };
    let stats = bench.run(filter.on(one_attempt()), script).await;
    assert_eq!(bench.calls.len(), 1);
    assert_eq!((stats.handled, stats.duplicates), (0, 1));
    assert_eq!(bench.counts().of(LetterState::Dead), 1);
}

#[tokio::test(start_paused = true)]
async fn a_handled_message_is_no_letter_when_its_mark_fails() {
    let bench = Bench::new();
    let filter = Filter::new(&bench);
    filter.fail_next("done", 3);
    bench.push(&["a1"]);
    let stats = bench.run(filter.on(one_attempt()), |_| Reply::Done).await;
    assert_eq!(bench.calls.tried(), ["a1"], "it is handled once");
    assert_eq!((stats.handled, filter.left("done")), (1, 0));
    assert_eq!(bench.counts().open(), 0);
    assert_eq!(bench.committed(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_handled_letter_is_resolved_when_its_mark_fails() {
    let bench = Bench::new();
    let filter = Filter::new(&bench);
    bench.push(&["a1"]);
    let retry = RetryPolicy { hold: Duration::ZERO, ..options().retry };
    let failing = filter.clone();
    let script = move |this: &Try| match this.before {
        0 => Reply::Fail(transient()),
        _ => {
            failing.fail_next("done", 3);
            Reply::Done
        }
    };
    bench.run(filter.on(Options { retry, ..options() }), script).await;
    assert_eq!(bench.calls.tried(), ["a1", "a1"]);
    assert_eq!(bench.letter_at(0).map(|letter| letter.state), Some(LetterState::Resolved));
}

#[tokio::test(start_paused = true)]
async fn a_stored_duplicate_counts_as_one() {
    // A copy is handled while the letter of the first message waits for its retry.
    let bench = Bench::new();
    let filter = Filter::new(&bench);
    bench.push(&["a1"]);
    let retry = RetryPolicy { hold: Duration::ZERO, ..options().retry };
    let running = bench.start(filter.on(Options { retry, ..options() }), |_| Reply::Fail(transient()));
    eventually("it is a letter", || bench.committed() == Some(0)).await;
    filter.inner.done(&Bench::queue(), &"events/0/0".into(), "another", secs(3600)).await.unwrap();
    let is_resolved = || bench.letter_at(0).is_some_and(|letter| letter.state == LetterState::Resolved);
    eventually("it is resolved", is_resolved).await;
    let stats = running.stop().await;
    assert_eq!((stats.handled, stats.resolved, stats.duplicates), (0, 0, 1));
    assert_eq!((bench.events.count("Duplicate"), bench.calls.len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn ending_the_claim_of_a_failed_letter_loses_no_lease() {
    let bench = Bench::new();
    let filter = Filter::new(&bench);
    bench.push(&["a1"]);
    let retry = RetryPolicy { hold: Duration::ZERO, ..options().retry };
    let slow = filter.clone();
    let script = move |this: &Try| match this.before {
        0 => Reply::Fail(transient()),
        _ => {
            slow.slow_down("abandon", secs(10));
            Reply::Fail(fatal())
        }
    };
    let options = Options { lease: secs(3), retry, ..options() };
    let running = bench.start(filter.on(options), script);
    eventually("it is dead", || bench.counts().of(LetterState::Dead) == 1).await;
    let_pass(secs(20)).await;
    assert_eq!((bench.events.count("LeaseLost"), running.stats().leases_lost), (0, 0));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_the_store_does_not_take_costs_no_attempt() {
    // I4, I9
    let bench = Bench::new();
    let filter = Filter::new(&bench);
    filter.fail_next("claim", 5);
    bench.push(&["a1"]);
    bench.run(filter.on(one_attempt()), |_| Reply::Done).await;
    assert_eq!(bench.calls.attempts_of("a1"), [1]);
    assert_eq!(bench.counts().open(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_mark_outlives_the_partition_of_its_message() {
    let bench = Bench::with_partitions(2);
    let filter = Filter::new(&bench);
    filter.fail_next("done", usize::MAX);
    bench.push_to(1, &["a1"]);
    let options = Options { drain_deadline: secs(1), ..filter.on(options()) };
    let running = bench.start(options.clone(), |_| Reply::Done);
    eventually("it is handled", || bench.calls.len() == 1).await;
    // Another member joins and gets the partition.
    let other = Running::start(
        bench
            .builder_on(Options { instance: "other".to_owned(), ..options }, bench.log.join())
            .handler(bench.handler(|_| Reply::Done)),
    );
    let_pass(secs(5)).await;
    filter.mend();
    eventually("it is committed", || bench.log.committed(1) == Some(0)).await;
    assert_eq!(bench.calls.len(), 1, "its mark was written although its partition was revoked");
    running.stop().await;
    other.stop().await;
}

#[tokio::test(start_paused = true)]
async fn waiting_for_the_claim_of_a_dead_instance_holds_no_permit() {
    // I3
    let bench = Bench::new();
    let filter = Filter::new(&bench);
    bench.push(&["a1", "b1", "c1", "d1"]);
    for offset in 0..3 {
        filter.claimed_by_the_dead(offset, secs(20)).await;
    }
    let options = Options { concurrency: 2, shards: 1, ..options() };
    let running = bench.start(filter.on(options), |_| Reply::Done);
    let_pass(secs(10)).await;
    assert_eq!(bench.calls.tried(), ["d1"], "the others wait, and this one has a permit");
    eventually("the claims ended", || bench.calls.len() == 4).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_of_a_crashed_instance_waits_for_its_lease_and_not_longer() {
    let bench = Bench::new();
    let filter = Filter::new(&bench);
    bench.push(&["a1"]);
    let options = Options { lease: secs(5), attempt_timeout: Some(secs(60)), ..filter.on(options()) };
    let running = bench.start(options.clone(), |_| Reply::Hang);
    eventually("it runs", || bench.calls.len() == 1).await;
    let_pass(secs(20)).await;
    running.crash().await;
    let crashed_at = bench.clock.elapsed();
    let running = bench.start(Options { instance: "next".to_owned(), ..options }, |_| Reply::Done);
    eventually("it runs again", || bench.calls.len() == 2).await;
    let waited = bench.calls.all()[1].at - crashed_at;
    assert!(waited <= secs(7), "it waited for {waited:?}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_lasts_as_long_as_its_attempt() {
    let bench = Bench::with_partitions(2);
    let filter = Filter::new(&bench);
    push_copy(&bench, 0, "a");
    push_copy(&bench, 1, "b");
    let options = Options { lease: secs(2), ..filter.on(options()) };
    bench.run(options, |_| Reply::after(secs(30), Reply::Done)).await;
    assert_eq!(bench.calls.len(), 1, "the claim was renewed for as long as the handler ran");
}

#[tokio::test(start_paused = true)]
async fn the_claim_of_a_revoked_partition_is_released_at_once() {
    // This also holds if the handler ran longer than the lease of 30 s and the claim was renewed.
    for running_for in [secs(0), secs(40)] {
        let bench = Bench::with_partitions(2);
        let filter = Filter::new(&bench);
        bench.push_to(1, &["a1"]);
        let options = Options { drain_deadline: secs(1), attempt_timeout: None, ..filter.on(options()) };
        let running = bench.start(options.clone(), |_| Reply::Hang);
        eventually("it runs", || bench.calls.len() == 1).await;
        let_pass(running_for).await;
        let other = Running::start(
            bench
                .builder_on(Options { instance: "other".to_owned(), ..options }, bench.log.join())
                .handler(bench.handler(|_| Reply::Done)),
        );
        // Nothing waits for the end of the lease.
        let_pass(secs(10)).await;
        assert_eq!(bench.calls.done(), ["a1"], "after {running_for:?}");
        other.stop().await;
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_stops_releases_the_claims_of_what_it_interrupts() {
    let bench = Bench::new();
    let filter = Filter::new(&bench);
    bench.push(&["a1"]);
    let options = Options { drain_deadline: secs(1), ..filter.on(options()) };
    let running = bench.start(options.clone(), |_| Reply::Hang);
    eventually("it runs", || bench.calls.len() == 1).await;
    filter.fail_next("abandon", 2);
    running.stop().await;
    let stopped_at = bench.clock.elapsed();
    let next = bench.start(Options { instance: "next".to_owned(), ..options }, |_| Reply::Done);
    eventually("it is handled", || bench.calls.done() == ["a1"]).await;
    assert!(bench.clock.elapsed() < stopped_at + secs(5), "no one waits for the end of the lease");
    next.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_stops_marks_what_it_handled() {
    let bench = Bench::new();
    let filter = Filter::new(&bench);
    filter.fail_next("done", usize::MAX);
    bench.push(&["a1"]);
    let options = Options { drain_deadline: secs(1), ..filter.on(options()) };
    let running = bench.start(options.clone(), |_| Reply::Done);
    eventually("it is handled", || bench.calls.len() == 1).await;
    running.begin_stop();
    // After the deadline, when the message is abandoned.
    let_pass(millis(1_100)).await;
    filter.mend();
    running.ended().await.unwrap();
    let stats = bench.run(Options { instance: "next".to_owned(), ..options }, |_| Reply::Done).await;
    assert_eq!((bench.calls.len(), stats.duplicates), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_suspect_that_waits_for_a_claim_does_not_hold_the_others() {
    // The messages that a crash left in the flight recorder are the ones whose claims it left behind.
    let bench = Bench::new();
    let filter = Filter::new(&bench);
    bench.push(&["a1", "b1"]);
    filter.claimed_by_the_dead(0, secs(20)).await;
    let recorder = RecorderFile::default();
    let suspect = Message::new("events/0/0", "events", Position::new(0, 0));
    let beside = Message::new("beside", "events", Position::new(0, 9));
    let crashed = recorder.open();
    let slots = [&suspect, &beside].map(|message| crashed.enter(&Bench::queue(), message, 1));
    assert!(slots.iter().all(|slot| slot.index().is_some()));
    let next = recorder.open();
    next.forget(Identity::of_message(&Bench::queue(), &beside));
    let options = Options { flight_recorder: Some(Arc::new(next)), ..filter.on(options()) };
    let running = bench.start(options, |_| Reply::Done);
    let_pass(secs(5)).await;
    assert_eq!(bench.calls.tried(), ["b1"]);
    eventually("the suspect runs", || bench.calls.len() == 2).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_a_duplicate_for_the_window_whatever_the_clock_is_set_to() {
    let (bench, clock) = Bench::new().with_set_clock();
    let filter = Filter::new(&bench);
    let builder = bench.builder(filter.on(options())).clock(Arc::new(clock.clone()));
    let running = Running::start(builder.handler(bench.handler(|_| Reply::Done)));
    push_copy(&bench, 0, "a");
    eventually("it is handled", || bench.calls.len() == 1).await;
    // Each copy arrives with another key, 200 s after the previous one. The window is one hour.
    let keys = ["b", "c", "d", "e", "f", "g"];
    for (number, key) in keys.into_iter().enumerate() {
        match number % 3 {
            0 => clock.forward_by_an_hour(),
            1 => clock.back_by(7200),
            _ => clock.back_by(-7200),
        }
        push_copy(&bench, 0, key);
        let_pass(secs(200)).await;
        assert_eq!(bench.calls.len(), 1, "the copy under {key}");
    }
    let_pass(secs(3600)).await;
    push_copy(&bench, 0, "h");
    eventually("marks are not kept for ever", || bench.calls.len() == 2).await;
    let stats = running.stop().await;
    assert_eq!((stats.handled, stats.duplicates), (2, 6));
}

#[tokio::test(start_paused = true)]
async fn a_running_attempt_keeps_its_claim_when_the_clock_is_set_forward() {
    let (bench, clock) = Bench::new().with_set_clock();
    let filter = Filter::new(&bench);
    let builder = bench.builder(filter.on(options())).clock(Arc::new(clock.clone()));
    let script = |_: &Try| Reply::after(secs(20), Reply::Done);
    let running = Running::start(builder.handler(bench.handler(script)));
    push_copy(&bench, 0, "a");
    eventually("it runs", || bench.calls.len() == 1).await;
    clock.forward_by_an_hour();
    push_copy(&bench, 0, "b");
    eventually("both are settled", || bench.committed() == Some(1)).await;
    assert_eq!(bench.calls.len(), 1, "the copy waited for the first one");
    let stats = running.stop().await;
    assert_eq!((stats.handled, stats.duplicates), (1, 1));
}
