//! A clock that is set back while a consumer runs.

use std::sync::Arc;

use lazaret_core::policy::{BreakerPolicy, BudgetPolicy, RetryPolicy, Strategy};
use lazaret_core::{HandlerError, Reason};
use lazaret_engine::Options;

use crate::support::{
    Bench, Reply, Running, SetClock, Try, eventually, let_pass, millis, options, retry, secs, transient,
};

fn start(
    bench: &Bench,
    clock: &SetClock,
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
    let (bench, clock) = Bench::new().with_set_clock();
    // One more than the maximum attempts of a message.
    let breaker = BreakerPolicy { failures: 4, ..BreakerPolicy::default() };
    let options = Options { breaker: Some(breaker), ..options() };
    let script = |this: &Try| match this.name.starts_with("ok") {
        true => Reply::after(millis(1), Reply::Done),
        false => Reply::after(millis(1), Reply::Fail(unavailable())),
    };
    let running = start(&bench, &clock, options, script);
    // A success, then a failure that the breaker counts after it.
    bench.push(&["ok1"]);
    let_pass(secs(1)).await;
    bench.push(&["x1"]);
    let_pass(secs(20)).await;
    clock.back_by_an_hour();
    bench.push(&["a1", "b1", "c1", "d1", "e1"]);
    eventually("the breaker opens", || bench.events.count("BreakerOpened") > 0).await;
    assert!(bench.clock.elapsed() < secs(60), "it did not wait for the clock to catch up");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_stays_open_for_its_time_when_the_clock_is_set_back() {
    let (bench, clock) = Bench::new().with_set_clock();
    let breaker = BreakerPolicy { failures: 2, window: secs(10), open_for: secs(30), probes: 1 };
    let options = Options { breaker: Some(breaker), ..options() };
    bench.push(&["a1", "b1"]);
    let running = start(&bench, &clock, options, |this| match this.before {
        0 => Reply::Fail(unavailable()),
        _ => Reply::Done,
    });
    eventually("the breaker opens", || bench.events.count("BreakerOpened") > 0).await;
    let_pass(secs(10)).await;
    clock.back_by_an_hour();
    eventually("all are handled", || bench.committed() == Some(1)).await;
    let probe = bench.calls.times_of("a1")[1].min(bench.calls.times_of("b1")[1]);
    assert!((30.0..31.0).contains(&probe), "{probe} s after the first failure");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_in_memory_does_not_wait_for_the_clock_to_catch_up() {
    let (bench, clock) = Bench::new().with_set_clock();
    bench.push(&["a1"]);
    let setting = clock.clone();
    let script = move |this: &Try| match this.before {
        0 => {
            let clock = setting.clone();
            tokio::spawn(async move {
                tokio::time::sleep(millis(500)).await;
                clock.back_by_an_hour();
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
async fn a_claimed_letter_does_not_wait_for_the_clock_to_catch_up() {
    let bench = Bench::new();
    let clock = SetClock::beside_the_store(&bench);
    // The store's clock is five seconds ahead: it reports the letter as due before it is due by our
    // clock.
    clock.back_by(5);
    bench.push(&["a1"]);
    let retry = RetryPolicy { hold: secs(0), initial_delay: secs(10), ..options().retry };
    let running = start(&bench, &clock, Options { retry, ..options() }, |this| match this.before {
        0 => Reply::Fail(transient()),
        _ => Reply::Done,
    });
    eventually("it is claimed", || bench.store.calls("renew") > 0).await;
    clock.back_by_an_hour();
    eventually("it is handled", || bench.calls.done() == ["a1"]).await;
    assert_eq!(bench.calls.times_of("a1"), [0.0, 10.0]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_budget_does_not_wait_for_the_clock_to_catch_up() {
    let (bench, clock) = Bench::new().with_set_clock();
    bench.push(&["a1", "b1", "c1", "d1"]);
    let budget = BudgetPolicy { rate: "30/m".parse().ok(), ..BudgetPolicy::default() };
    let options = Options { budget, ..options() };
    let setting = clock.clone();
    let script = move |this: &Try| match (this.before, this.name.as_str()) {
        (0, _) => Reply::Fail(transient()),
        (_, "a1") => {
            setting.back_by_an_hour();
            Reply::Done
        }
        _ => Reply::Done,
    };
    let running = start(&bench, &clock, options, script);
    eventually("all are handled", || bench.committed() == Some(3)).await;
    assert!(bench.clock.elapsed() < secs(60));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_stored_retry_does_not_wait_for_the_clock_to_catch_up() {
    let (bench, clock) = Bench::new().with_set_clock();
    bench.push(&["a1"]);
    let retry = RetryPolicy { initial_delay: secs(60), max_delay: secs(60), ..retry(Strategy::Unordered) };
    let script = |this: &Try| if this.before == 0 { Reply::Fail(transient()) } else { Reply::Done };
    let running = start(&bench, &clock, Options { retry, ..options() }, script);
    let_pass(secs(10)).await;
    clock.back_by_an_hour();
    eventually("it is handled", || bench.calls.done().len() == 1).await;
    let [_, second] = bench.calls.times_of("a1")[..] else { panic!("it was tried twice") };
    assert!(second >= 60.0, "I12: {second}");
    assert!(second < 120.0, "the delay, from when the step was noticed: {second}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_behind_a_head_does_not_wait_for_the_clock_to_catch_up() {
    let (bench, clock) = Bench::new().with_set_clock();
    bench.push(&["a1", "a2", "a3"]);
    let setting = clock.clone();
    let script = move |this: &Try| match (this.name.as_str(), this.before) {
        ("a1", 0 | 1) => Reply::Fail(transient()),
        ("a1", 2) => {
            setting.back_by_an_hour();
            Reply::Done
        }
        _ => Reply::Done,
    };
    let running = start(&bench, &clock, options(), script);
    eventually("all are handled", || bench.calls.done().len() == 3).await;
    assert_eq!(bench.calls.done(), ["a1", "a2", "a3"]);
    assert!(bench.clock.elapsed() < secs(60));
    running.stop().await;
}

/// A retry that waits in memory for a minute. Its process crashes after ten seconds. `set` sets the
/// clock, before or after the restart.
async fn noted_retry(set: impl Fn(&SetClock, bool)) {
    let (bench, clock) = Bench::new().with_set_clock();
    bench.push(&["a1"]);
    let retry = RetryPolicy { initial_delay: secs(60), max_delay: secs(60), ..retry(Strategy::InPlace) };
    let options = Options { retry, ..options() };
    let script = |this: &Try| if this.before == 0 { Reply::Fail(transient()) } else { Reply::Done };
    let running = start(&bench, &clock, options.clone(), script);
    let_pass(secs(10)).await;
    running.crash().await;
    set(&clock, false);
    let running = start(&bench, &clock, options, script);
    let_pass(secs(10)).await;
    set(&clock, true);
    eventually("it is handled", || bench.calls.done().len() == 1).await;
    let [_, second] = bench.calls.times_of("a1")[..] else { panic!("it was tried twice") };
    assert!((60.0..75.0).contains(&second), "I12: {second}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_noted_retry_does_not_wait_for_a_clock_that_was_set_back_while_no_process_ran() {
    noted_retry(|clock, restarted| {
        if !restarted {
            clock.back_by_an_hour();
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_noted_retry_does_not_wait_for_a_clock_that_was_set_back_after_the_restart() {
    noted_retry(|clock, restarted| {
        if restarted {
            clock.back_by_an_hour();
        }
    })
    .await;
}
