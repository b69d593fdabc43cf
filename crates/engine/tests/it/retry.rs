//! Retries: how often and when they run, where a message waits meanwhile, and which messages wait with
//! it.

use std::fmt;
use std::time::Duration;

use lazaret_core::policy::{BudgetPolicy, Classifier, PoisonPolicy, RetryOverride, RetryPolicy, Strategy};
use lazaret_core::store::Act;
use lazaret_core::{HandlerError, LetterState, Reason};
use lazaret_engine::Options;

use crate::support::{
    Bench, PausedClock, Reply, Running, Try, eventually, fatal, let_pass, millis, operator, options, retry,
    secs, transient,
};

/// Fails with a transient failure `times` times, then succeeds.
fn failing(times: usize) -> impl Fn(&Try) -> Reply + Send + Sync + 'static {
    move |this| if this.before < times { Reply::Fail(transient()) } else { Reply::Done }
}

/// Like [`failing`], for one payload only.
fn failing_for(name: &'static str, times: usize) -> impl Fn(&Try) -> Reply + Send + Sync + 'static {
    move |this| {
        if this.name == name && this.before < times { Reply::Fail(transient()) } else { Reply::Done }
    }
}

fn with_retry(retry: RetryPolicy) -> Options {
    Options { retry, ..options() }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_fails_twice_and_then_succeeds_is_tried_three_times_and_has_one_effect() {
    for strategy in [Strategy::InPlace, Strategy::Ordered, Strategy::Unordered] {
        let bench = Bench::new();
        bench.push(&["a1"]);
        let stats = bench.run(with_retry(retry(strategy)), failing(2)).await;
        assert_eq!(bench.calls.attempts_of("a1"), [1, 2, 3], "{strategy}");
        assert_eq!(bench.calls.done(), ["a1"], "{strategy}");
        assert_eq!(bench.calls.times_of("a1"), [0.0, 1.0, 3.0], "{strategy}: never early (I12) and not late");
        assert_eq!((stats.failed, stats.retries, stats.handled), (2, 2, 1), "{strategy}");
        assert_eq!((bench.counts().open(), bench.committed()), (0, Some(0)), "{strategy}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_never_succeeds_is_dead_after_its_last_attempt() {
    // I4
    for strategy in [Strategy::InPlace, Strategy::Ordered, Strategy::Unordered] {
        let bench = Bench::new();
        bench.push(&["a1"]);
        bench.run(with_retry(retry(strategy)), failing(usize::MAX)).await;
        assert_eq!(bench.calls.attempts_of("a1"), [1, 2, 3], "{strategy}");
        let sequence = if strategy == Strategy::Unordered { "~m:events/0/0" } else { "a" };
        let letter = bench.letter(sequence);
        assert_eq!(
            (letter.state, letter.attempts, letter.due_at),
            (LetterState::Dead, 3, None),
            "{strategy}"
        );
        assert_eq!(letter.first_failed_at, Some(PausedClock::at(secs(0))), "{strategy}");
        assert_eq!(letter.last_failed_at, Some(PausedClock::at(secs(3))), "{strategy}");
        let attempts: Vec<u32> = letter.history.iter().map(|record| record.attempt).collect();
        assert_eq!(attempts, [1, 2, 3], "{strategy}");
        assert_eq!(bench.events.count("RetryExhausted"), 1, "{strategy}");
        let_pass(secs(3600)).await;
        assert_eq!(bench.calls.len(), 3, "{strategy}");
    }
}

#[tokio::test(start_paused = true)]
async fn observers_receive_the_reason_and_the_lateness_of_every_retry() {
    // I12
    for strategy in [Strategy::InPlace, Strategy::Ordered, Strategy::Unordered] {
        let bench = Bench::new();
        bench.push(&["a1"]);
        bench.run(with_retry(retry(strategy)), failing(usize::MAX)).await;
        let events = bench.events.all();
        let of = |word: &str| events.iter().filter(|event| event.starts_with(word)).collect::<Vec<_>>();
        let began = of("RetryStarted");
        assert_eq!(began.len(), 2, "{strategy}");
        assert!(
            began[0].contains("attempt: 2, lateness: 0ns") && began[1].contains("attempt: 3"),
            "{began:?}"
        );
        for word in ["RetryScheduled", "RetryExhausted"] {
            assert!(of(word).iter().all(|event| event.contains("reason: TIMEOUT")), "{events:?}");
        }
        let stored = of("LetterStored");
        let last = stored.last().expect("it becomes a letter");
        assert!(
            last.contains("state: Dead") && last.contains("cause: Some(Failure { reason: TIMEOUT"),
            "{last}"
        );
        let before = if strategy == Strategy::InPlace { "before: None" } else { "before: Some(Retrying)" };
        assert!(last.contains(before) && last.contains("replay: None"), "{strategy}: {last}");
    }
}

#[tokio::test(start_paused = true)]
async fn in_place_the_lane_waits_the_position_is_held_and_other_keys_flow_on() {
    // I1, I2, I3
    let bench = Bench::new();
    bench.push(&["a1", "a2", "b1"]);
    let running = bench.start(with_retry(retry(Strategy::InPlace)), failing_for("a1", 2));
    eventually("b1 is handled", || bench.calls.done() == ["b1"]).await;
    let_pass(millis(2_500)).await;
    assert_eq!(bench.calls.tried(), ["a1", "b1", "a1"]);
    assert_eq!((bench.committed(), bench.counts().open()), (None, 0), "a1 waits in memory");
    eventually("all is committed", || bench.committed() == Some(2)).await;
    assert_eq!(bench.calls.done(), ["b1", "a1", "a2"]);
    running.stop().await;
    assert_eq!(bench.counts().by_state, [0; 9]);
}

#[tokio::test(start_paused = true)]
async fn ordered_retries_within_the_hold_stay_in_memory() {
    // I2, I3
    let bench = Bench::new();
    bench.push(&["a1", "a2", "b1"]);
    let running = bench.start(options(), failing_for("a1", 1));
    let_pass(millis(900)).await;
    assert_eq!((bench.calls.tried(), bench.counts().by_state), (vec!["a1".into(), "b1".into()], [0; 9]));
    assert_eq!(bench.committed(), None);
    eventually("all is committed", || bench.committed() == Some(2)).await;
    assert_eq!(bench.calls.done(), ["b1", "a1", "a2"]);
    let stats = running.stop().await;
    assert_eq!((stats.handed_off, stats.appended, stats.retries), (0, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn ordered_retries_beyond_the_hold_move_the_sequence_to_the_store_and_keep_its_order() {
    // I1, I2, I3
    let bench = Bench::new();
    bench.push(&["a1", "a2", "b1", "a3"]);
    let running = bench.start(options(), failing_for("a1", 2));
    eventually("the position goes on", || bench.committed() == Some(3)).await;
    assert!(bench.clock.elapsed() < secs(3), "long before the retry is due");
    let standing = [
        ("a1".to_owned(), LetterState::Retrying),
        ("a2".to_owned(), LetterState::Waiting),
        ("a3".to_owned(), LetterState::Waiting),
    ];
    assert_eq!(bench.standing("a"), standing);
    assert_eq!(bench.letters("a")[0].due_at, Some(PausedClock::at(secs(3))));
    bench.push(&["b2", "a4"]);
    eventually("b2 is handled meanwhile", || bench.calls.done() == ["b1", "b2"]).await;
    eventually("a is released", || bench.counts().open() == 0).await;
    assert_eq!(bench.calls.done(), ["b1", "b2", "a1", "a2", "a3", "a4"]);
    assert_eq!(bench.calls.tried(), ["a1", "b1", "a1", "b2", "a1", "a2", "a3", "a4"]);
    let stats = running.stop().await;
    assert_eq!((stats.handled, stats.resolved, stats.appended, stats.handed_off), (6, 4, 3, 1));
    assert_eq!(stats.retries, 2, "only a1 was tried more than once");
    assert_eq!(bench.committed(), Some(5));
}

#[tokio::test(start_paused = true)]
async fn after_a_released_sequence_its_messages_are_live_again() {
    let bench = Bench::new();
    bench.push(&["a1", "a2"]);
    let running = bench.start(options(), failing_for("a1", 2));
    eventually("a is released", || bench.calls.done() == ["a1", "a2"]).await;
    let_pass(secs(5)).await;
    let before = bench.store.calls("hand_off");
    bench.push(&["a3", "a4"]);
    eventually("both are handled", || bench.calls.done() == ["a1", "a2", "a3", "a4"]).await;
    assert_eq!(bench.store.calls("hand_off"), before, "they never saw the store");
    assert!(!bench.calls.of("a4")[0].letter);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_fails_in_the_store_has_attempts_of_its_own() {
    // I2, I4
    let bench = Bench::new();
    bench.push(&["a1", "a2", "a3"]);
    let script = |this: &Try| match this.name.as_str() {
        "a1" if this.before < 2 => Reply::Fail(transient()),
        "a2" => Reply::Fail(transient()),
        _ => Reply::Done,
    };
    bench.run(options(), script).await;
    assert_eq!(bench.calls.tried(), ["a1", "a1", "a1", "a2", "a2", "a2"]);
    assert_eq!(bench.calls.attempts_of("a2"), [1, 2, 3]);
    assert_eq!(bench.calls.times_of("a2"), [3.0, 4.0, 6.0]);
    let standing = [("a2".to_owned(), LetterState::Dead), ("a3".to_owned(), LetterState::Waiting)];
    assert_eq!(bench.standing("a"), standing);
}

#[tokio::test(start_paused = true)]
async fn unordered_only_the_failed_message_waits_and_later_ones_overtake_it() {
    let bench = Bench::new();
    bench.push(&["a1", "a2", "a3"]);
    let stats = bench.run(with_retry(retry(Strategy::Unordered)), failing_for("a1", 2)).await;
    assert_eq!(bench.calls.done(), ["a2", "a3", "a1"]);
    assert_eq!((stats.appended, stats.handed_off, stats.resolved), (0, 1, 1));
    assert_eq!(bench.calls.times_of("a1"), [0.0, 1.0, 3.0]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_hint_is_honoured_wherever_the_message_waits() {
    // I12
    for (strategy, hold) in [(Strategy::InPlace, 1), (Strategy::Ordered, 60), (Strategy::Ordered, 1)] {
        let bench = Bench::new();
        bench.push(&["a1"]);
        let policy = RetryPolicy { hold: secs(hold), ..retry(strategy) };
        let script = |this: &Try| match this.before {
            0 => Reply::Fail(transient().retry_after(secs(40))),
            _ => Reply::Done,
        };
        bench.run(with_retry(policy), script).await;
        assert_eq!(bench.calls.times_of("a1"), [0.0, 40.0], "{strategy} {hold}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_hint_is_believed_up_to_its_limit() {
    let bench = Bench::new();
    bench.push(&["a1"]);
    let policy = RetryPolicy { max_retry_after: secs(20), ..retry(Strategy::Ordered) };
    let script = |this: &Try| match this.before {
        0 => Reply::Fail(transient().retry_after(Duration::MAX)),
        _ => Reply::Done,
    };
    bench.run(with_retry(policy), script).await;
    assert_eq!(bench.calls.times_of("a1"), [0.0, 20.0]);
}

#[tokio::test(start_paused = true)]
async fn no_retry_runs_before_its_due_time_whatever_wakes_the_scheduler() {
    // I12
    let bench = Bench::new();
    bench.push(&["a1"]);
    let policy = RetryPolicy { initial_delay: secs(10), ..retry(Strategy::Ordered) };
    let running = bench.start(with_retry(policy), failing_for("a1", 1));
    eventually("a1 waits in the store", || bench.counts().of(LetterState::Retrying) == 1).await;
    for second in 0..9 {
        // Each of these messages opens a sequence and wakes the scheduler.
        bench.push(&[&format!("{}1", char::from(b'b' + second))]);
        let_pass(secs(1)).await;
        assert_eq!(bench.calls.of("a1").len(), 1, "after {second} s");
    }
    eventually("a1 is handled", || bench.calls.done().contains(&"a1".to_owned())).await;
    assert_eq!(bench.calls.times_of("a1"), [0.0, 10.0]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn jitter_keeps_every_delay_within_its_range() {
    // I12
    let bench = Bench::new();
    (0..50).for_each(|n| bench.push(&[&format!("k{n}x1")]));
    let policy = RetryPolicy { jitter: 0.2, initial_delay: secs(10), ..retry(Strategy::Ordered) };
    bench.run(with_retry(policy), failing(1)).await;
    let seconds: Vec<f64> = (0..50).map(|n| bench.calls.times_of(&format!("k{n}x1"))[1]).collect();
    assert!(seconds.iter().all(|at| (8.0..=12.01).contains(at)), "{seconds:?}");
    let distinct: std::collections::HashSet<u64> = seconds.iter().map(|at| (at * 1000.0) as u64).collect();
    assert!(distinct.len() > 40, "spread, not in step: {seconds:?}");
}

#[tokio::test(start_paused = true)]
async fn retries_end_when_the_next_would_come_after_max_elapsed() {
    // I4
    for strategy in [Strategy::InPlace, Strategy::Ordered] {
        let bench = Bench::new();
        bench.push(&["a1"]);
        let policy = RetryPolicy { max_attempts: 100, max_elapsed: Some(secs(10)), ..retry(strategy) };
        bench.run(with_retry(policy), failing(usize::MAX)).await;
        // Due at 1, 3 and 7 s. The next retry at 15 s is too late.
        assert_eq!(bench.calls.times_of("a1"), [0.0, 1.0, 3.0, 7.0], "{strategy}");
        assert_eq!(bench.letter("a").state, LetterState::Dead, "{strategy}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_comes_back_too_often_ends_the_retries_as_poison() {
    for strategy in [Strategy::InPlace, Strategy::Ordered] {
        let bench = Bench::new();
        bench.push(&["a1"]);
        let policy = RetryPolicy { max_attempts: 10, ..retry(strategy) };
        let options = Options { poison: PoisonPolicy { same_failure: Some(3) }, ..with_retry(policy) };
        bench.run(options, failing(usize::MAX)).await;
        let letter = bench.letter("a");
        assert_eq!(
            (letter.state, letter.poison, letter.attempts),
            (LetterState::Dead, true, 3),
            "{strategy}"
        );
        assert_eq!((bench.calls.len(), bench.events.count("Poison")), (3, 1), "{strategy}");
    }
}

#[derive(Debug)]
struct NoSuchCustomer;

impl fmt::Display for NoSuchCustomer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such customer")
    }
}

impl std::error::Error for NoSuchCustomer {}

#[tokio::test(start_paused = true)]
async fn alternating_failures_are_no_poison_and_still_end_after_the_last_attempt() {
    // I4
    for strategy in [Strategy::InPlace, Strategy::Ordered] {
        let bench = Bench::new();
        bench.push(&["a1"]);
        let policy = RetryPolicy { max_attempts: 6, ..retry(strategy) };
        let options = Options { poison: PoisonPolicy { same_failure: Some(2) }, ..with_retry(policy) };
        let script = |this: &Try| match this.before % 2 {
            0 => Reply::Fail(transient()),
            _ => Reply::Fail(HandlerError::from(NoSuchCustomer)),
        };
        bench.run(options, script).await;
        assert_eq!(bench.calls.attempts_of("a1"), [1, 2, 3, 4, 5, 6], "{strategy}");
        let letter = bench.letter("a");
        assert_eq!(
            (letter.state, letter.poison, letter.attempts),
            (LetterState::Dead, false, 6),
            "{strategy}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_type_that_is_not_to_be_retried_is_dead_at_once() {
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let classifier = Classifier::default().no_retry_on::<NoSuchCustomer>();
    let script = |this: &Try| match (this.name.as_str(), this.before) {
        ("a1", _) => Reply::Fail(HandlerError::from(NoSuchCustomer)),
        (_, 0) => Reply::Fail(transient()),
        _ => Reply::Done,
    };
    bench.run(Options { classifier, ..options() }, script).await;
    assert_eq!((bench.calls.of("a1").len(), bench.calls.of("b1").len()), (1, 2));
    let letter = bench.letter("a");
    assert_eq!((letter.state, letter.attempts), (LetterState::Dead, 1));
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_dead_lettered_at_once_with_its_place() {
    // I10
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let script = |this: &Try| match this.name.as_str() {
        "a1" => Reply::Panic("index out of bounds"),
        _ => Reply::Done,
    };
    bench.run(options(), script).await;
    assert_eq!(bench.calls.of("a1").len(), 1);
    let cause = bench.letter("a").cause.expect("it panicked");
    assert_eq!((cause.reason, &*cause.message), (Reason::PANICKED, "index out of bounds"));
    assert!(cause.panicked && cause.backtrace.is_some_and(|place| place.contains("handlers.rs")));
    assert_eq!(bench.calls.done(), ["b1"]);
}

#[tokio::test(start_paused = true)]
async fn the_rate_of_the_budget_delays_retries_and_ends_none() {
    // I4
    for strategy in [Strategy::InPlace, Strategy::Ordered] {
        let bench = Bench::new();
        bench.push(&["a1", "b1", "c1", "d1"]);
        let budget = BudgetPolicy { rate: "1/s".parse().ok(), ..BudgetPolicy::default() };
        let policy = RetryPolicy { hold: secs(0), ..retry(strategy) };
        bench.run(Options { budget, ..with_retry(policy) }, failing(1)).await;
        let mut retried: Vec<f64> =
            ["a1", "b1", "c1", "d1"].iter().map(|name| bench.calls.times_of(name)[1]).collect();
        retried.sort_by(f64::total_cmp);
        assert_eq!(retried, [1.0, 2.0, 3.0, 4.0], "{strategy}");
        assert_eq!(bench.calls.done().len(), 4, "{strategy}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_budget_of_a_key_ends_its_retries_and_leaves_other_keys_alone() {
    // I3, I4
    for strategy in [Strategy::InPlace, Strategy::Ordered] {
        let bench = Bench::new();
        bench.push(&["a1", "b1"]);
        let budget = BudgetPolicy { per_key: Some(2), ..BudgetPolicy::default() };
        let policy = RetryPolicy { max_attempts: 10, ..retry(strategy) };
        let script = |this: &Try| match (this.name.as_str(), this.before) {
            ("a1", _) | ("b1", 0 | 1) => Reply::Fail(transient()),
            _ => Reply::Done,
        };
        bench.run(Options { budget, ..with_retry(policy) }, script).await;
        assert_eq!(
            (bench.calls.of("a1").len(), bench.calls.done()),
            (3, vec!["b1".to_owned()]),
            "{strategy}"
        );
        let letter = bench.letter("a");
        let said = letter.cause.map(|cause| cause.message).unwrap_or_default();
        assert_eq!((letter.state, letter.attempts), (LetterState::Dead, 3), "{strategy}");
        assert_eq!(said, "retry budget per-key used up; no answer", "{strategy}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_the_handler_defers_was_not_made() {
    for strategy in [Strategy::InPlace, Strategy::Ordered] {
        let bench = Bench::new();
        bench.push(&["a1"]);
        let budget = BudgetPolicy { per_key: Some(1), ..BudgetPolicy::default() };
        let policy = RetryPolicy { hold: secs(0), ..retry(strategy) };
        let stats = bench
            .run(Options { budget, ..with_retry(policy) }, |this| match this.before {
                0 => Reply::Fail(transient()),
                1..=3 => Reply::Fail(HandlerError::deferred("no place", secs(1))),
                _ => Reply::Done,
            })
            .await;
        assert_eq!(bench.calls.attempts_of("a1"), [1, 2, 2, 2, 2], "{strategy}");
        assert_eq!(bench.calls.done(), ["a1"], "{strategy}: the budget allows one retry");
        assert_eq!((bench.events.count("RetryStarted"), stats.retries), (1, 1), "{strategy}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_backlog_of_retries_holds_the_source_back() {
    // I7
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let budget = BudgetPolicy { backlog: Some(2), ..BudgetPolicy::default() };
    let policy = RetryPolicy { initial_delay: secs(20), ..retry(Strategy::Ordered) };
    let running = bench.start(Options { budget, ..with_retry(policy) }, |this| match this.before {
        0 if this.name != "c1" => Reply::Fail(transient()),
        _ => Reply::Done,
    });
    eventually("two wait", || bench.counts().of(LetterState::Retrying) == 2).await;
    let_pass(secs(2)).await;
    bench.push(&["c1"]);
    let_pass(secs(10)).await;
    assert_eq!(bench.calls.of("c1").len(), 0);
    eventually("there is room again", || bench.calls.of("c1").len() == 1).await;
    assert!(bench.clock.elapsed() >= secs(20));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_backlog_ends_the_retries_of_messages_that_were_read_before() {
    // I1, I7
    for strategy in [Strategy::Ordered, Strategy::Unordered] {
        let bench = Bench::new();
        let names: Vec<String> = (0..100).map(|n| format!("k{n:02}-1")).collect();
        bench.push(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let budget = BudgetPolicy { backlog: Some(3), ..BudgetPolicy::default() };
        let policy = RetryPolicy { hold: secs(0), initial_delay: secs(20), ..retry(strategy) };
        let options = Options { budget, fuse: None, breaker: None, ..with_retry(policy) };
        let running = bench.start(options, |this| match this.before {
            0 => Reply::Fail(transient()),
            _ => Reply::Done,
        });
        let states = || [LetterState::Retrying, LetterState::Dead].map(|state| bench.counts().of(state));
        eventually("each is a letter", || {
            assert!(states()[0] <= 3, "{strategy}: {:?}", states());
            states().iter().sum::<u64>() == 100
        })
        .await;
        assert_eq!(states(), [3, 97], "{strategy}");
        let dead =
            (0..100).filter_map(|n| bench.letter_at(n)).find(|letter| letter.state == LetterState::Dead);
        let said = dead.and_then(|letter| letter.cause).map(|cause| cause.message);
        assert_eq!(said.as_deref(), Some("retry budget backlog used up; no answer"), "{strategy}");
        assert_eq!(bench.events.count("RetryExhausted"), 97, "{strategy}");
        assert_eq!(bench.events.count("RetryScheduled"), 3, "{strategy}");
        eventually("the three are handled", || states() == [0, 97]).await;
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_waited_behind_its_head_enters_the_backlog_when_it_fails() {
    // I7
    let bench = Bench::new();
    bench.push(&["a1", "a2"]);
    let budget = BudgetPolicy { backlog: Some(1), ..BudgetPolicy::default() };
    let policy = RetryPolicy { hold: secs(0), initial_delay: secs(5), ..retry(Strategy::Ordered) };
    let running = bench.start(Options { budget, ..with_retry(policy) }, |this| match this.before {
        0 => Reply::Fail(transient()),
        _ => Reply::Done,
    });
    eventually("a1 is handled by a retry", || bench.calls.done() == ["a1"]).await;
    eventually("a2 takes its place", || bench.counts().of(LetterState::Retrying) == 1).await;
    eventually("a2 is handled, too", || bench.calls.done() == ["a1", "a2"]).await;
    assert_eq!(bench.counts().open(), 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_in_memory_has_an_age_since_its_first_failure() {
    for strategy in [Strategy::InPlace, Strategy::Ordered] {
        let bench = Bench::new();
        bench.push(&["a1"]);
        let policy = RetryPolicy {
            hold: secs(7200),
            initial_delay: secs(1800),
            multiplier: 1.0,
            max_delay: secs(1800),
            max_elapsed: None,
            ..retry(strategy)
        };
        let running = bench.start(with_retry(policy), failing(2));
        let since = || running.handle.failing_since(&Bench::queue());
        eventually("it failed", || since().is_some()).await;
        assert_eq!(since(), Some(PausedClock::at(secs(0))), "{strategy}");
        let_pass(secs(1790)).await;
        eventually("it failed again", || bench.calls.of("a1").len() == 2).await;
        assert!(bench.clock.elapsed() >= secs(1800), "{strategy}");
        assert_eq!(since(), Some(PausedClock::at(secs(0))), "{strategy}: the first failure counts");
        assert_eq!(bench.counts().open(), 0, "{strategy}: it is no letter");
        let_pass(secs(1790)).await;
        eventually("it is handled", || bench.calls.done() == ["a1"]).await;
        eventually("nothing fails", || since().is_none()).await;
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_does_not_end_has_an_age_live_and_as_a_retry() {
    let bench = Bench::new();
    bench.push(&["a1"]);
    let policy = RetryPolicy { hold: secs(0), ..retry(Strategy::Ordered) };
    let options = Options { attempt_timeout: None, ..with_retry(policy) };
    let running = bench.start(options, |this| match this.before {
        0 => Reply::after(secs(1080), Reply::Fail(transient())),
        _ => Reply::after(secs(1080), Reply::Done),
    });
    let age = || running.handle.attempt_age();
    let_pass(secs(1070)).await;
    assert!(age() >= Some(secs(1069)) && age() < Some(secs(1080)), "{:?}", age());
    eventually("it is retried from the store", || bench.calls.of("a1").len() == 2).await;
    assert!(age() < Some(secs(60)), "the retry has an age of its own: {:?}", age());
    let_pass(secs(1070)).await;
    assert!(age() >= Some(secs(1060)), "{:?}", age());
    eventually("it is handled", || bench.calls.done() == ["a1"]).await;
    eventually("nothing runs", || age().is_none()).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_retries_of_one_component_do_not_starve_those_of_another() {
    // I3: both share the places for retries; there is only one place.
    let bench = Bench::new();
    bench.push(&["a1"]);
    let policy = RetryPolicy { hold: secs(0), ..retry(Strategy::Ordered) };
    let options = Options { concurrency: 2, ..with_retry(policy) };
    let slow = |this: &Try| match this.before {
        0 => Reply::Fail(transient()),
        _ => Reply::after(secs(20), Reply::Done),
    };
    let builder = bench.builder(options);
    let running = Running::start(
        builder
            .component("slow", bench.calls.handler("slow", slow))
            .component("quick", bench.calls.handler("quick", failing(1))),
    );
    eventually("both are done", || bench.calls.done().len() == 2).await;
    assert!(bench.clock.elapsed() < secs(25), "{:?}", bench.clock.elapsed());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_released_letter_is_tried_again_with_fresh_attempts() {
    // Act::Release
    let bench = Bench::new();
    bench.push(&["a1"]);
    let running = bench.start(options(), failing(4));
    eventually("a1 is dead", || bench.counts().of(LetterState::Dead) == 1).await;
    let letter = bench.letter("a");
    running.replayer().act(letter.id, Act::Release, &operator("repaired")).await.unwrap();
    eventually("a1 is handled", || bench.calls.done() == ["a1"]).await;
    assert_eq!(bench.calls.attempts_of("a1"), [1, 2, 3, 1, 2]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_released_letter_is_tried_although_max_elapsed_has_passed_since_its_first_failure() {
    // Act::Release
    let bench = Bench::new();
    bench.push(&["a1"]);
    let policy = RetryPolicy { max_elapsed: Some(secs(10)), ..retry(Strategy::Ordered) };
    let running = bench.start(with_retry(policy), failing(3));
    eventually("a1 is dead", || bench.counts().of(LetterState::Dead) == 1).await;
    let_pass(secs(3600)).await;
    let letter = bench.letter("a");
    running.replayer().act(letter.id, Act::Release, &operator("repaired")).await.unwrap();
    eventually("a1 is handled", || bench.calls.done() == ["a1"]).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn evicting_a_dead_head_releases_those_behind_it_in_order() {
    // I2, I11
    let bench = Bench::new();
    bench.push(&["a1", "a2", "a3"]);
    let running = bench.start(options(), |this| match this.name.as_str() {
        "a1" => Reply::Fail(fatal()),
        _ => Reply::Done,
    });
    eventually("the sequence is held", || bench.committed() == Some(2)).await;
    let_pass(secs(60)).await;
    assert_eq!(bench.calls.tried(), ["a1"]);
    let head = bench.letters("a")[0].id;
    running.replayer().act(head, Act::Evict, &operator("broken for good")).await.unwrap();
    eventually("those behind are handled", || bench.calls.done() == ["a2", "a3"]).await;
    assert_eq!(bench.letter_at(0).map(|letter| letter.state), Some(LetterState::Evicted));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_kept_while_a_retry_takes_longer_than_it_lasts() {
    // I6
    let bench = Bench::new();
    bench.push(&["a1"]);
    let policy = RetryPolicy { hold: secs(0), ..retry(Strategy::Ordered) };
    let options = Options { lease: secs(3), ..with_retry(policy) };
    let script = |this: &Try| match this.before {
        0 => Reply::Fail(transient()),
        _ => Reply::after(secs(30), Reply::Done),
    };
    bench.run(options, script).await;
    assert_eq!((bench.calls.len(), bench.calls.done()), (2, vec!["a1".to_owned()]));
    assert_eq!(bench.counts().of(LetterState::Resolved), 1);
}

#[tokio::test(start_paused = true)]
async fn a_retry_whose_lease_is_lost_is_dropped_and_settles_nothing() {
    // I6
    let bench = Bench::new();
    bench.push(&["a1"]);
    let policy = RetryPolicy { hold: secs(0), ..retry(Strategy::Ordered) };
    let options = Options { lease: secs(3), ..with_retry(policy) };
    let running = bench.start(options, |this| match this.before {
        0 => Reply::Fail(transient()),
        1 => Reply::after(secs(10), Reply::Done),
        _ => Reply::Done,
    });
    eventually("the retry runs", || bench.calls.len() == 2).await;
    bench.store.fail("renew", lazaret_core::store::ErrorKind::Unavailable);
    eventually("the lease is lost", || bench.events.count("LeaseLost") == 1).await;
    bench.store.mend("renew");
    eventually("it is tried again", || bench.calls.len() == 3).await;
    assert!(bench.calls.times_of("a1")[2] >= 4.0, "not before the lease ended");
    let_pass(secs(20)).await;
    assert_eq!(bench.calls.done(), ["a1"], "the attempt that lost its lease was dropped");
    assert_eq!(bench.counts().of(LetterState::Resolved), 1);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_the_store_does_not_take_at_first_is_written_later_and_the_handler_not_called_again()
 {
    // I9
    let bench = Bench::new();
    bench.push(&["a1"]);
    let policy = RetryPolicy { hold: secs(0), ..retry(Strategy::Ordered) };
    bench.store.fail("settle", lazaret_core::store::ErrorKind::Unavailable);
    let running = bench.start(with_retry(policy), failing(1));
    eventually("the retry is done", || bench.calls.done() == ["a1"]).await;
    let_pass(secs(5)).await;
    assert_eq!(bench.counts().of(LetterState::Retrying), 1);
    bench.store.mend("settle");
    eventually("it is resolved", || bench.counts().of(LetterState::Resolved) == 1).await;
    assert_eq!(bench.calls.len(), 2);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_reason_has_a_schedule_of_its_own() {
    // I4
    for strategy in [Strategy::InPlace, Strategy::Ordered, Strategy::Unordered] {
        let bench = Bench::new();
        bench.push(&["a1", "b1"]);
        let patient =
            RetryPolicy { max_attempts: 5, initial_delay: secs(10), multiplier: 1.0, ..retry(strategy) };
        let over = RetryOverride { event_type: None, reason: Some(Reason::RATE_LIMITED), policy: patient };
        let options = Options { retry_overrides: vec![over], ..with_retry(retry(strategy)) };
        let limited = || HandlerError::msg("slow down").reason(Reason::RATE_LIMITED);
        bench
            .run(options, move |this| Reply::Fail(if this.name == "a1" { limited() } else { transient() }))
            .await;
        assert_eq!(bench.calls.attempts_of("a1"), [1, 2, 3, 4, 5], "{strategy}");
        assert_eq!(bench.calls.times_of("a1"), [0.0, 10.0, 20.0, 30.0, 40.0], "{strategy}: I12");
        assert_eq!(bench.calls.attempts_of("b1"), [1, 2, 3], "{strategy}");
        assert_eq!(bench.counts().of(LetterState::Dead), 2, "{strategy}");
    }
}
