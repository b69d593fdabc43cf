//! A clock that is set back while a consumer runs.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use lazaret_core::policy::{BreakerPolicy, BudgetPolicy, RetryPolicy};
use lazaret_core::{Clock, HandlerError, Reason, Timestamp};
use lazaret_engine::Options;
use support::{
    Bench, PausedClock, Reply, Running, Try, eventually, let_pass, millis, options, secs, transient,
};

/// The clock of a bench, which a test sets back.
#[derive(Clone)]
struct SetBack(PausedClock, Arc<AtomicI64>);

impl SetBack {
    fn of(bench: &Bench) -> Self {
        Self(bench.clock, Arc::default())
    }

    fn by_an_hour(&self) {
        self.by(3600);
    }

    fn by(&self, seconds: i64) {
        self.1.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for SetBack {
    fn now(&self) -> Timestamp {
        self.0.now() - jiff::SignedDuration::from_secs(self.1.load(Ordering::SeqCst))
    }
}

fn start(
    bench: &Bench,
    clock: &SetBack,
    options: Options,
    script: impl Fn(&Try) -> Reply + Send + Sync + 'static,
) -> Running {
    let builder = bench.builder(options).clock(Arc::new(clock.clone()));
    Running::start(builder.handler(bench.handler(script)))
}

fn unavailable() -> HandlerError {
    HandlerError::msg("no answer").reason(Reason::DEPENDENCY_UNAVAILABLE)
}

#[tokio::test(start_paused = true)]
async fn the_breaker_opens_after_the_clock_was_set_back() {
    let bench = Bench::new();
    let clock = SetBack::of(&bench);
    // One more than the attempts of a message.
    let breaker = BreakerPolicy { failures: 4, ..BreakerPolicy::default() };
    let options = Options { breaker: Some(breaker), ..options() };
    let script = |this: &Try| match this.name.starts_with("ok") {
        true => Reply::after(millis(1), Reply::Done),
        false => Reply::after(millis(1), Reply::Fail(unavailable())),
    };
    let running = start(&bench, &clock, options, script);
    // A success, and then a failure that the breaker counts after it.
    bench.push(&["ok1"]);
    let_pass(secs(1)).await;
    bench.push(&["x1"]);
    let_pass(secs(20)).await;
    clock.by_an_hour();
    bench.push(&["a1", "b1", "c1", "d1", "e1"]);
    eventually("the breaker opens", || bench.events.count("BreakerOpened") > 0).await;
    assert!(bench.clock.elapsed() < secs(60), "it did not wait for the clock to catch up");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_in_memory_does_not_wait_for_the_clock_to_catch_up() {
    let bench = Bench::new();
    let clock = SetBack::of(&bench);
    bench.push(&["a1"]);
    let setting = clock.clone();
    let script = move |this: &Try| match this.before {
        0 => {
            let clock = setting.clone();
            tokio::spawn(async move {
                tokio::time::sleep(millis(500)).await;
                clock.by_an_hour();
            });
            Reply::Fail(transient())
        }
        _ => Reply::Done,
    };
    let running = start(&bench, &clock, options(), script);
    eventually("it is handled", || bench.committed() == Some(0)).await;
    assert_eq!(bench.calls.times_of("a1"), [0.0, 1.0]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_stored_retry_does_not_wait_for_the_clock_to_catch_up() {
    let bench = Bench::new();
    let clock = SetBack::of(&bench);
    // The store is five seconds ahead: it says that the letter is due when it is not, by our clock.
    clock.by(5);
    bench.push(&["a1"]);
    let retry = RetryPolicy { hold: secs(0), initial_delay: secs(10), ..options().retry };
    let running = start(&bench, &clock, Options { retry, ..options() }, |this| match this.before {
        0 => Reply::Fail(transient()),
        _ => Reply::Done,
    });
    eventually("it is claimed", || bench.store.calls("renew") > 0).await;
    clock.by_an_hour();
    eventually("it is handled", || bench.calls.done() == ["a1"]).await;
    assert_eq!(bench.calls.times_of("a1"), [0.0, 10.0]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_budget_does_not_wait_for_the_clock_to_catch_up() {
    let bench = Bench::new();
    let clock = SetBack::of(&bench);
    bench.push(&["a1", "b1", "c1", "d1"]);
    let budget = BudgetPolicy { rate: "30/m".parse().ok(), ..BudgetPolicy::default() };
    let options = Options { budget, ..options() };
    let setting = clock.clone();
    let script = move |this: &Try| match (this.before, this.name.as_str()) {
        (0, _) => Reply::Fail(transient()),
        (_, "a1") => {
            setting.by_an_hour();
            Reply::Done
        }
        _ => Reply::Done,
    };
    let running = start(&bench, &clock, options, script);
    eventually("all are handled", || bench.committed() == Some(3)).await;
    assert!(bench.clock.elapsed() < secs(60));
    running.stop().await;
}
