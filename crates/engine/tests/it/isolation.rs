//! I3: sequences that fail or are throttled, paused or blocked do not delay others, with default limits
//! or small ones.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lazaret_core::handler::{BoxHandler, Context, handler};
use lazaret_core::policy::{BudgetPolicy, RetryPolicy, Strategy};
use lazaret_core::store::PauseScope;
use lazaret_core::{HandlerError, LetterState, Partition};
use lazaret_engine::Options;

use crate::support::{
    Bench, Reply, Running, eventually, let_pass, operator, options, retry, secs, transient,
};

/// Small limits, so that few messages reach them.
fn narrow() -> Options {
    let retry = RetryPolicy { hold: secs(60), ..retry(Strategy::Ordered) };
    Options { window: 512, retry, ..options() }
}

/// Adds messages. Every n-th one belongs to one of ten bad keys.
fn push_mixed(bench: &Bench, messages: usize, every: usize) -> usize {
    for n in 0..messages {
        match n.is_multiple_of(every) {
            true => bench.push(&[&format!("bad{}x", n / every % 10)]),
            false => bench.push(&[&format!("good{n}x")]),
        }
    }
    messages - messages.div_ceil(every)
}

/// A handler for which bad keys fail, and the number of messages with good keys that it handled.
fn failing_keys() -> (BoxHandler, Arc<AtomicUsize>) {
    let good = Arc::new(AtomicUsize::new(0));
    let counted = good.clone();
    let handler = handler(move |context: Context| {
        let bad = context.message().key.as_ref().is_some_and(|key| key.starts_with(b"bad"));
        counted.fetch_add(usize::from(!bad), Ordering::SeqCst);
        async move { if bad { Err::<(), HandlerError>(transient()) } else { Ok(()) } }
    });
    (handler, good)
}

/// Returns the time until all messages with good keys were handled.
async fn time_of_good_ones(bench: &Bench, options: Options, messages: usize, every: usize) -> Duration {
    let expected = push_mixed(bench, messages, every);
    let (handler, good) = failing_keys();
    let running = Running::start(bench.builder(options).handler(handler));
    eventually("the good ones are handled", || good.load(Ordering::SeqCst) == expected).await;
    let took = bench.clock.elapsed();
    running.stop().await;
    took
}

#[tokio::test(start_paused = true)]
async fn messages_of_failing_keys_that_wait_in_memory_do_not_fill_the_window() {
    // I3
    for every in [10, 3, 2] {
        let took = time_of_good_ones(&Bench::new(), narrow(), 12_000, every).await;
        assert!(took < secs(1), "{took:?}: before the first retry is due, every {every}th is bad");
    }
}

#[tokio::test(start_paused = true)]
async fn failing_keys_that_exceed_their_limit_move_to_the_store_and_do_not_fill_the_window() {
    // I3, I7
    let bench = Bench::new();
    let options = Options { hold_limit: 200, ..narrow() };
    let took = time_of_good_ones(&bench, options, 12_000, 3).await;
    assert!(took < secs(1), "{took:?}: before the first retry is due");
    assert!(bench.counts().of(LetterState::Waiting) > 3_000, "most messages of bad keys are in the store");
}

#[tokio::test(start_paused = true)]
async fn many_keys_that_fail_once_each_move_to_the_store_and_do_not_fill_the_window() {
    // I3, I7
    let bench = Bench::new();
    // Fewer letters than `max-sequences`.
    (0..1_000).for_each(|n| bench.push(&[&format!("bad{n}x"), &format!("good{n}x")]));
    let (handler, good) = failing_keys();
    let options = Options { hold_limit: 200, ..narrow() };
    let running = Running::start(bench.builder(options).handler(handler));
    eventually("the good ones are handled", || good.load(Ordering::SeqCst) == 1_000).await;
    assert!(bench.clock.elapsed() < secs(1), "before the first retry is due");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sequence_that_moves_to_the_store_early_keeps_its_order_its_attempts_and_its_due_time() {
    // I2, I4, I12
    let bench = Bench::new();
    let names: Vec<String> = (0..100).map(|n| format!("a{n}")).collect();
    let options = Options { hold_limit: 20, ..narrow() };
    let running = bench.start(options, |this| match (this.name.as_str(), this.before) {
        ("a0", 0 | 1) => Reply::Fail(transient()),
        _ => Reply::Done,
    });
    names.iter().for_each(|name| bench.push(&[name]));
    eventually("the lane is in the store", || bench.counts().open() == 100).await;
    assert!(bench.clock.elapsed() < secs(1), "{:?}", bench.clock.elapsed());
    eventually("all are handled", || bench.calls.done().len() == 100).await;
    assert_eq!(bench.calls.done(), names);
    assert_eq!(bench.calls.attempts_of("a0"), [1, 2, 3]);
    assert!(bench.calls.times_of("a0")[1] >= 1.0 && bench.calls.times_of("a0")[2] >= 3.0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn sequences_that_wait_for_a_retry_budget_do_not_fill_the_window() {
    // I3
    let bench = Bench::new();
    let budget = BudgetPolicy { rate: "1/h".parse().ok(), ..BudgetPolicy::default() };
    for hold_limit in [65_536, 200] {
        let started = bench.clock.elapsed();
        let options = Options { budget: budget.clone(), hold_limit, ..narrow() };
        let (handler, good) = failing_keys();
        let running = Running::start(bench.builder(options).handler(handler));
        push_mixed(&bench, 1_000, 3);
        let_pass(secs(100)).await;
        let before = good.load(Ordering::SeqCst);
        let expected = push_mixed(&bench, 6_000, 3);
        eventually("the good ones are handled", || good.load(Ordering::SeqCst) == before + expected).await;
        assert!(bench.clock.elapsed() - started < secs(110), "limit {hold_limit}");
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_partition_whose_messages_are_in_flight_does_not_stop_the_others() {
    // I3
    let bench = Bench::with_partitions(2);
    (0..600).for_each(|n| bench.push_to(0, &[&format!("first{n}x")]));
    let options = Options { window: 512, concurrency: 2, shards: 1, ..options() };
    let running = bench.start(options, |this| match this.name.starts_with("first") {
        true => Reply::after(secs(1), Reply::Done),
        false => Reply::Done,
    });
    eventually("the window is full", || running.handle.in_flight() >= 512).await;
    let scope = PauseScope::Partition(Partition::new("events", 0));
    running.handle.pause(scope, &operator("wait")).await.unwrap();
    (0..100).for_each(|n| bench.push_to(1, &[&format!("second{n}x")]));
    eventually("the other partition is handled", || bench.log.committed(1) == Some(99)).await;
    assert!(running.handle.in_flight() >= 500, "the paused ones are still in flight");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn messages_that_are_held_back_in_place_are_bounded() {
    // I7: these messages may not move to the store.
    let bench = Bench::new();
    let retry = RetryPolicy { initial_delay: secs(10), ..retry(Strategy::InPlace) };
    let options = Options { window: 512, hold_limit: 1_000, retry, ..options() };
    let (handler, good) = failing_keys();
    let running = Running::start(bench.builder(options).handler(handler));
    push_mixed(&bench, 12_000, 2);
    let_pass(secs(5)).await;
    let in_flight = running.handle.in_flight();
    assert!((1_000..=1_000 + 2 * 512).contains(&in_flight), "{in_flight}");
    assert!(good.load(Ordering::SeqCst) >= 1_000);
    assert_eq!(bench.counts().open(), 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn large_messages_are_held_back_up_to_a_number_of_bytes() {
    // I7: whichever part of a message is large.
    for in_header in [false, true] {
        let bench = Bench::new();
        let large = "x".repeat(10_000);
        for _ in 0..2_000 {
            bench.log.push_with(0, |message| match in_header {
                true => message.with_key("bad").with_header("large", large.clone()),
                false => message.with_key("bad").with_payload(large.clone()),
            });
        }
        let options = Options { hold_limit_bytes: 1 << 20, ..narrow() };
        let retry = RetryPolicy {
            initial_delay: secs(10),
            ..RetryPolicy { strategy: Strategy::InPlace, ..narrow().retry }
        };
        let (handler, _) = failing_keys();
        let running = Running::start(bench.builder(Options { retry, ..options }).handler(handler));
        let_pass(secs(5)).await;
        let in_flight = running.handle.in_flight();
        assert!(
            (512..=104 + 2 * 512).contains(&in_flight),
            "{in_flight}: the window, and 1 MiB of 10 kB each"
        );
        running.stop().await;
    }
}

/// The counters and switches of a handler that defers messages.
#[derive(Clone, Default)]
struct Deferring {
    /// The number of messages with good keys that it handled.
    good: Arc<AtomicUsize>,
    /// If `true`, it handles messages with bad keys.
    open: Arc<AtomicBool>,
    /// The attempt numbers of the messages with bad keys that it handled.
    made: Arc<Mutex<Vec<u32>>>,
}

impl Deferring {
    /// Returns the handler. It defers messages with bad keys. If `fail` is set, it first fails their
    /// first attempt.
    fn handler(&self, fail: bool) -> BoxHandler {
        let this = self.clone();
        handler(move |context: Context| {
            let bad = context.message().key.as_ref().is_some_and(|key| key.starts_with(b"bad"));
            let result = if !bad {
                this.good.fetch_add(1, Ordering::SeqCst);
                Ok(())
            } else if fail && context.attempt() == 1 {
                Err(transient())
            } else if this.open.load(Ordering::SeqCst) {
                this.made().push(context.attempt());
                Ok(())
            } else {
                Err(HandlerError::deferred("no place", secs(1)))
            };
            async move { result }
        })
    }

    fn good(&self) -> usize {
        self.good.load(Ordering::SeqCst)
    }

    fn made(&self) -> MutexGuard<'_, Vec<u32>> {
        self.made.lock().expect("no test panics with the lock")
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_that_the_handler_defers_delay_no_other_sequence_and_do_not_count() {
    // I3, I4
    for (fail, hold) in [(false, secs(60)), (true, secs(60)), (true, secs(0))] {
        let bench = Bench::new();
        (0..64).for_each(|n| bench.push(&[&format!("bad{n}x")]));
        (0..200).for_each(|n| bench.push(&[&format!("good{n}x")]));
        let retry = RetryPolicy { hold, max_attempts: 2, ..retry(Strategy::Ordered) };
        let options = Options { concurrency: 4, retry, ..options() };
        let deferring = Deferring::default();
        let running = Running::start(bench.builder(options).handler(deferring.handler(fail)));
        eventually("the good ones are handled", || deferring.good() == 200).await;
        assert!(bench.clock.elapsed() < secs(1), "{:?}", bench.clock.elapsed());
        let_pass(secs(100)).await;
        bench.push(&["good200x"]);
        eventually("the next good one is handled", || deferring.good() == 201).await;
        assert!(deferring.made().is_empty());
        deferring.open.store(true, Ordering::SeqCst);
        eventually("the deferred ones are handled", || deferring.made().len() == 64).await;
        let expected = if fail { 2 } else { 1 };
        assert!(deferring.made().iter().all(|attempt| *attempt == expected), "{fail} {hold:?}");
        let stats = running.stop().await;
        assert_eq!((stats.handled, stats.failed), (265, if fail { 64 } else { 0 }), "{fail} {hold:?}");
        assert_eq!(bench.counts().open(), 0);
    }
}
