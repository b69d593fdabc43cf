//! The breaker: what opens it, what does not, and how it closes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lazaret_core::policy::{BreakerPolicy, BreakerState, RetryPolicy, Strategy};
use lazaret_core::{LetterState, Reason};
use lazaret_engine::Options;

use crate::support::{
    Bench, Reply, Try, eventually, fatal, let_pass, millis, options, retry, secs, transient,
};

/// A dependency that can be unavailable.
#[derive(Clone, Default)]
struct Dependency(Arc<AtomicBool>);

impl Dependency {
    fn set_away(&self, away: bool) {
        self.0.store(away, Ordering::SeqCst);
    }

    fn script(&self) -> impl Fn(&Try) -> Reply + Send + Sync + 'static {
        let away = self.0.clone();
        move |_| if away.load(Ordering::SeqCst) { Reply::Fail(transient()) } else { Reply::Done }
    }
}

/// Four failures open the breaker for thirty seconds; two probes close it.
fn with_breaker(retry: RetryPolicy) -> Options {
    let breaker = BreakerPolicy { failures: 4, window: secs(10), open_for: secs(30), probes: 2 };
    Options { breaker: Some(breaker), retry, ..options() }
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_burns_no_attempts_and_probes_close_it() {
    // I4
    let (bench, dependency) = (Bench::new(), Dependency::default());
    dependency.set_away(true);
    bench.push(&["a1", "b1", "c1", "d1"]);
    let policy = RetryPolicy { initial_delay: millis(100), hold: secs(3600), ..retry(Strategy::Ordered) };
    let running = bench.start(with_breaker(policy), dependency.script());
    eventually("it opens", || bench.events.count("BreakerOpened") == 1).await;
    let opened = bench.clock.elapsed();
    assert_eq!(bench.calls.len(), 4);
    assert!(matches!(running.handle.breaker(), Some(BreakerState::Open { .. })));
    let cause = running.handle.breaker_cause().expect("it is open");
    assert_eq!((cause.reason, &*cause.message), (Reason::TIMEOUT, "no answer"));
    bench.push(&["e1", "f1"]);
    let_pass(secs(29)).await;
    assert_eq!(bench.calls.len(), 4, "no attempts while it is open, of old or new messages");

    dependency.set_away(false);
    eventually("it closes", || bench.events.count("BreakerClosed") == 1).await;
    assert!(bench.clock.elapsed() >= opened + secs(30));
    eventually("all is committed", || bench.committed() == Some(5)).await;
    assert_eq!(running.handle.breaker(), Some(BreakerState::Closed));
    assert_eq!(running.handle.breaker_cause(), None);
    for name in ["a1", "b1", "c1", "d1"] {
        assert_eq!(bench.calls.attempts_of(name), [1, 2], "{name}");
    }
    assert_eq!((bench.calls.attempts_of("e1"), bench.calls.attempts_of("f1")), (vec![1], vec![1]));
    assert_eq!(bench.counts().by_state, [0; 9]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_half_open_breaker_lets_only_probes_through_and_a_bad_one_opens_it_again() {
    // I4
    let (bench, dependency) = (Bench::new(), Dependency::default());
    dependency.set_away(true);
    bench.push(&["a1", "b1", "c1", "d1", "e1", "f1"]);
    let policy = RetryPolicy { hold: secs(3600), max_attempts: 10, ..retry(Strategy::Ordered) };
    let options = Options { concurrency: 4, ..with_breaker(policy) };
    let away = dependency.0.clone();
    let running = bench.start(options, move |_| {
        let reply = if away.load(Ordering::SeqCst) { Reply::Fail(transient()) } else { Reply::Done };
        Reply::after(secs(1), reply)
    });
    eventually("it opens", || bench.events.count("BreakerOpened") == 1).await;
    assert_eq!(bench.calls.len(), 4);
    eventually("it opens again", || bench.events.count("BreakerOpened") == 2).await;
    assert_eq!(bench.calls.len(), 6, "two probes");
    assert_eq!(bench.clock.elapsed().as_secs(), 32, "one second, thirty open, one for the probes");
    dependency.set_away(false);
    eventually("all is committed", || bench.committed() == Some(5)).await;
    assert_eq!(bench.events.count("BreakerClosed"), 1);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_holds_stored_retries_too() {
    // I4
    let (bench, dependency) = (Bench::new(), Dependency::default());
    dependency.set_away(true);
    bench.push(&["a1", "b1", "c1", "d1"]);
    let policy = RetryPolicy { hold: secs(0), ..retry(Strategy::Ordered) };
    let running = bench.start(with_breaker(policy), dependency.script());
    eventually("all wait in the store", || bench.counts().of(LetterState::Retrying) == 4).await;
    assert_eq!(bench.events.count("BreakerOpened"), 1);
    let_pass(secs(29)).await;
    assert_eq!(bench.calls.len(), 4);
    dependency.set_away(false);
    eventually("all are resolved", || bench.counts().of(LetterState::Resolved) == 4).await;
    assert_eq!((bench.calls.len(), bench.events.count("BreakerClosed")), (8, 1));
    assert!(bench.calls.all()[4..].iter().all(|call| call.at >= secs(30) && call.attempt == 2));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_stored_retry_that_fails_for_its_own_sake_closes_the_breaker_and_reports_it() {
    // The dependency responds again. Its rejection of these messages is not a fault of the dependency.
    let bench = Bench::new();
    bench.push(&["a1", "b1", "c1", "d1"]);
    let policy = RetryPolicy { hold: secs(0), ..retry(Strategy::Ordered) };
    let running = bench.start(with_breaker(policy), |call| match call.attempt {
        1 => Reply::Fail(transient()),
        _ => Reply::Fail(fatal()),
    });
    eventually("all are dead", || bench.counts().of(LetterState::Dead) == 4).await;
    assert_eq!(running.handle.breaker(), Some(BreakerState::Closed));
    assert_eq!((bench.events.count("BreakerOpened"), bench.events.count("BreakerClosed")), (1, 1));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_share_of_failures_does_not_open_the_breaker_while_others_succeed() {
    // Ten times as many failures as it takes to open the breaker, and an occasional success.
    let bench = Bench::new();
    (0..80).for_each(|n| bench.push(&[&format!("k{n}x")]));
    let policy = RetryPolicy { hold: secs(3600), ..retry(Strategy::Ordered) };
    let options = Options { concurrency: 1, shards: 1, ..with_breaker(policy) };
    let number = |call: &Try| call.name.trim_matches(char::is_alphabetic).parse::<u32>().unwrap();
    let fails = move |call: &Try| call.attempt == 1 && !number(call).is_multiple_of(3);
    let script = move |call: &Try| if fails(call) { Reply::Fail(transient()) } else { Reply::Done };
    bench.run(options, script).await;
    assert_eq!(bench.calls.len(), 80 + 53);
    assert_eq!(bench.events.count("BreakerOpened"), 0);
    assert_eq!(bench.committed(), Some(79));
}

#[tokio::test(start_paused = true)]
async fn poison_alone_does_not_open_the_breaker_when_all_else_is_done() {
    for hold in [0, 3600] {
        let bench = Bench::new();
        (0..8).for_each(|n| bench.push(&[&format!("fine{n}x"), &format!("poison{n}x")]));
        let policy = RetryPolicy { hold: secs(hold), ..retry(Strategy::Ordered) };
        let options = Options { concurrency: 1, shards: 1, ..with_breaker(policy) };
        let script = |call: &Try| match call.name.starts_with("poison") {
            true => Reply::Fail(transient()),
            false => Reply::after(millis(1), Reply::Done),
        };
        // At first each failure lies between two successes. In the end only failing messages remain.
        bench.run(options, script).await;
        let dead = bench.counts().of(LetterState::Dead);
        assert_eq!((bench.events.count("BreakerOpened"), dead), (0, 8), "hold {hold}");
        assert_eq!(bench.calls.len(), 8 + 3 * 8);
    }
}

#[tokio::test(start_paused = true)]
async fn retries_open_the_breaker_when_nothing_has_succeeded_since() {
    // I4: two keys are not many, but their attempts are worth as much.
    let (bench, dependency) = (Bench::new(), Dependency::default());
    bench.push(&["a1", "b1"]);
    let policy = RetryPolicy { hold: secs(3600), max_attempts: 3, ..retry(Strategy::Ordered) };
    let running = bench.start(with_breaker(policy), dependency.script());
    eventually("both are handled", || bench.committed() == Some(1)).await;
    dependency.set_away(true);
    bench.push(&["a2", "b2"]);
    eventually("it opens", || bench.events.count("BreakerOpened") == 1).await;
    assert_eq!(bench.calls.len(), 2 + 4);
    dependency.set_away(false);
    eventually("all are handled", || bench.committed() == Some(3)).await;
    assert_eq!(bench.counts().by_state, [0; 9]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn failures_that_speak_of_the_message_do_not_open_the_breaker() {
    let bench = Bench::new();
    (0..20).for_each(|n| bench.push(&[&format!("k{n}x")]));
    let policy = retry(Strategy::Ordered);
    bench.run(with_breaker(policy), |_| Reply::Fail(fatal())).await;
    assert_eq!((bench.events.count("BreakerOpened"), bench.counts().of(LetterState::Dead)), (0, 20));
}
