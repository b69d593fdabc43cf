//! The fuse counts in order of completion. It is exact except for attempts that already run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lazaret_core::LetterState;
use lazaret_core::handler::{BoxHandler, Context, handler};
use lazaret_core::policy::{FusePolicy, RetryPolicy, Strategy};
use lazaret_engine::{Event, Options};

use crate::support::{
    Bench, Running, eventually, fatal, let_pass, millis, one_attempt, retry, secs, transient,
};

/// Counts the calls of a handler, and the calls that began after the fuse had blown.
#[derive(Clone, Default)]
struct Calls {
    blown: Arc<AtomicBool>,
    all: Arc<AtomicUsize>,
    late: Arc<AtomicUsize>,
}

impl Calls {
    fn count(&self) -> usize {
        self.all.load(Ordering::SeqCst)
    }

    fn after_the_fuse(&self) -> usize {
        self.late.load(Ordering::SeqCst)
    }

    /// A handler that takes this long and rejects these messages. A message's key is `k`, its number and
    /// `x`.
    fn handler(&self, delay: Duration, bad: fn(usize) -> bool, permanent: bool) -> BoxHandler {
        let calls = self.clone();
        handler(move |context: Context| {
            let calls = calls.clone();
            async move {
                calls.all.fetch_add(1, Ordering::SeqCst);
                calls.late.fetch_add(usize::from(calls.blown.load(Ordering::SeqCst)), Ordering::SeqCst);
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                let offset = context.message().position.offset;
                match bad(usize::try_from(offset).expect("a small number")) {
                    true if permanent => Err(fatal()),
                    true => Err(transient()),
                    false => Ok(()),
                }
            }
        })
    }

    fn start(&self, bench: &Bench, options: Options, handler: BoxHandler) -> Running {
        let blown = self.blown.clone();
        let observer = move |event: &Event<'_>| {
            if matches!(event, Event::FuseBlown { .. }) {
                blown.store(true, Ordering::SeqCst);
            }
        };
        Running::start(bench.builder(options).observer(observer).handler(handler))
    }
}

fn push_many(bench: &Bench, messages: usize) {
    (0..messages).for_each(|n| bench.push(&[&format!("k{n}x")]));
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_handles_nine_of_ten_messages_keeps_its_fuse() {
    for (shards, concurrency) in [(1, 64), (2, 64), (4, 256), (8, 1024)] {
        for delay in [0, 5] {
            let bench = Bench::new();
            push_many(&bench, 3_000);
            let fuse = Some(FusePolicy::default());
            let options = Options { fuse, shards, concurrency, ..one_attempt() };
            let calls = Calls::default();
            let handler = calls.handler(millis(delay), |number| number % 10 == 0, true);
            let running = calls.start(&bench, options, handler);
            let blown = || calls.blown.load(Ordering::SeqCst);
            eventually("all are settled", || bench.committed() == Some(2_999) || blown()).await;
            assert!(!blown(), "{shards} shards, {concurrency} at once, {delay} ms");
            running.stop().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_attempt_begins_after_the_fuse_has_blown() {
    let in_memory = RetryPolicy { hold: secs(60), ..retry(Strategy::Ordered) };
    let in_store = RetryPolicy { hold: secs(0), ..retry(Strategy::Ordered) };
    for policy in [one_attempt().retry, in_memory, in_store, retry(Strategy::Unordered)] {
        for (shards, concurrency) in [(1, 1), (1, 64), (4, 256)] {
            for (consecutive, delay) in [(50, 0), (10, 0), (50, 20)] {
                let bench = Bench::new();
                push_many(&bench, 1_000);
                let fuse = Some(FusePolicy { consecutive, ..FusePolicy::default() });
                let options = Options { fuse, retry: policy.clone(), shards, concurrency, ..one_attempt() };
                let calls = Calls::default();
                let handler = calls.handler(millis(delay), |_| true, false);
                let running = calls.start(&bench, options, handler);
                eventually("the fuse blows", || calls.blown.load(Ordering::SeqCst)).await;
                let_pass(secs(30)).await;
                let case = format!(
                    "{} {} attempts, {shards} shards, {concurrency} at once, {consecutive} in a row, {delay} ms",
                    policy.strategy, policy.max_attempts
                );
                assert_eq!(calls.after_the_fuse(), 0, "calls after the pause: {case}");
                let dead = bench.counts().of(LetterState::Dead);
                let others_running = if delay == 0 { 0 } else { concurrency as u64 - 1 };
                let least = u64::from(consecutive);
                assert!((least..=least + others_running).contains(&dead), "{dead} dead letters: {case}");
                running.stop().await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn with_many_threads_a_fuse_overshoots_by_the_attempts_that_run_at_most() {
    let bench = Bench::new();
    push_many(&bench, 5_000);
    let options = Options { fuse: Some(FusePolicy::default()), shards: 4, concurrency: 64, ..one_attempt() };
    let calls = Calls::default();
    let handler = calls.handler(Duration::ZERO, |_| true, true);
    let running = calls.start(&bench, options, handler);
    eventually("the pause is written down", || !bench.pauses().is_empty()).await;
    let stats = running.stop().await;
    assert!((50..50 + 64).contains(&calls.count()), "{} calls", calls.count());
    assert_eq!(stats.failed, calls.count() as u64);
}
