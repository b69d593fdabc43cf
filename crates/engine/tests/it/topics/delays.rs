//! The messages in the delay queue: when they are due, what holds them, and clocks that are set.

use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::store::PauseScope;
use lazaret_engine::Options;

use super::broker::{Place, RETRIES, failing};
use crate::support::{Reply, Try, eventually, let_pass, millis, operator, retry, secs, transient};

#[tokio::test(start_paused = true)]
async fn a_message_whose_time_is_up_meanwhile_is_not_tried_again() {
    // I4
    let place = Place::new();
    place.bench.push(&["a1"]);
    let retry = RetryPolicy { max_elapsed: Some(secs(5)), ..retry(Strategy::Topics) };
    let options = Options { retry, ..place.options() };
    let running = place.start(options.clone(), failing(usize::MAX));
    eventually("it was relayed", || place.bench.committed() == Some(0)).await;
    running.crash().await;
    let_pass(secs(60)).await;
    place.run(options, failing(usize::MAX)).await;
    assert_eq!((place.bench.calls.len(), place.broker.dead().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn messages_that_wait_take_nothing_of_the_window() {
    // I3, I7
    let place = Place::new();
    let failing: Vec<String> = (0..50).map(|n| format!("f{n}")).collect();
    place.bench.push(&failing.iter().map(String::as_str).collect::<Vec<_>>());
    let retry = RetryPolicy { initial_delay: secs(20), ..retry(Strategy::Topics) };
    let options = Options { window: 4, delay_queue: 8, retry, ..place.options() };
    let script = |this: &Try| {
        if this.name.starts_with('f') && this.before == 0 { Reply::Fail(transient()) } else { Reply::Done }
    };
    let running = place.start(options, script);
    eventually("all were relayed", || place.broker.asked() == 50).await;
    place.bench.push(&["a1", "b1", "c1", "d1", "e1"]);
    eventually("the others are handled", || place.bench.calls.done().len() == 5).await;
    assert!(place.bench.clock.elapsed() < secs(5));
    eventually("all are handled", || place.bench.calls.done().len() == 55).await;
    assert!(place.bench.clock.elapsed() < secs(22), "{:?}", place.bench.clock.elapsed());
    for name in &failing {
        let [first, second] = place.bench.calls.times_of(name)[..] else { panic!("{name} was tried twice") };
        assert!(second >= first + 20.0, "{name}: I12");
    }
    running.stop().await;
    assert_eq!(place.bench.log.committed(RETRIES), Some(49));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_due_late_does_not_hold_up_one_behind_it() {
    // I3, I12
    let place = Place::new();
    place.bench.push(&["a1", "b1"]);
    let hint = |this: &Try| match (this.name.as_str(), this.before) {
        ("a1", 0) => Reply::Fail(transient().retry_after(secs(120))),
        ("b1", 0) => Reply::After(millis(10), Box::new(Reply::Fail(transient()))),
        _ => Reply::Done,
    };
    place.run(place.options(), hint).await;
    assert_eq!(place.bench.calls.times_of("a1"), [0.0, 120.0]);
    assert_eq!(place.bench.calls.times_of("b1"), [0.0, 1.01]);
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_the_stream_holds_what_comes_back_to_it() {
    let place = Place::new();
    place.bench.push(&["a1"]);
    let options = Options { window: 1, ..place.options() };
    let running = place.start(options, failing(1));
    eventually("it was relayed", || place.broker.asked() == 1).await;
    let scope = PauseScope::Stream("events".into());
    running.handle.pause(scope.clone(), &operator("look at it")).await.unwrap();
    let_pass(secs(10)).await;
    assert_eq!(place.bench.calls.len(), 1);
    running.handle.resume(&scope, &operator("well")).await.unwrap();
    eventually("it is handled", || place.bench.calls.done() == ["a1"]).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_goes_takes_along_what_waits() {
    // I1: messages that wait in the queue are abandoned and return to the next owner of the partition.
    let place = Place::new();
    let names: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    place.bench.push(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let retry = RetryPolicy { initial_delay: secs(20), ..retry(Strategy::Topics) };
    let options = Options { retry, ..place.options() };
    let first = place.start(options.clone(), failing(1));
    eventually("all were relayed", || place.broker.asked() == 20).await;
    let second = place.start(Options { instance: "second".to_owned(), ..options }, failing(1));
    let_pass(secs(5)).await;
    first.stop().await;
    assert!(place.bench.clock.elapsed() < secs(10), "nobody waits for what is not due");
    eventually("all are handled", || place.bench.calls.done().len() == 20).await;
    assert_eq!(place.bench.calls.len(), 40);
    for name in &names {
        let [first, second] = place.bench.calls.times_of(name)[..] else { panic!("{name} was tried twice") };
        assert!((second - first - 20.0).abs() < 1.1 && second >= first + 20.0, "{name}: {first} {second}");
    }
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_in_the_delay_queue_does_not_wait_for_a_clock_that_was_set_back() {
    let (place, clock) = Place::with_set_clock();
    place.bench.push(&["a1"]);
    let running = place.start_by(&clock, secs(60));
    let_pass(secs(10)).await;
    clock.back_by_an_hour();
    let second = place.second_attempt("a1").await;
    assert!((60.0..62.0).contains(&second), "its delay, no more and no less (I12): {second}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_was_relayed_before_the_clock_was_set_back_waits_for_its_delay() {
    let (place, clock) = Place::with_set_clock();
    place.bench.push(&["a1"]);
    let running = place.start_by(&clock, secs(60));
    eventually("its position is committed", || place.bench.committed() == Some(0)).await;
    running.crash().await;
    let_pass(secs(10)).await;
    clock.back_by_an_hour();
    let running = place.start_by(&clock, secs(60));
    let second = place.second_attempt("a1").await;
    assert!((60.0..75.0).contains(&second), "its delay, from when it is read again (I12): {second}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_forward_and_back_makes_no_relayed_message_early() {
    // I12
    let (place, clock) = Place::with_set_clock();
    place.bench.push(&["a1"]);
    let running = place.start_by(&clock, secs(3700));
    let_pass(secs(10)).await;
    clock.forward_by_an_hour();
    let_pass(secs(10)).await;
    clock.back_by_an_hour();
    let_pass(secs(10)).await;
    clock.back_by_an_hour();
    let_pass(secs(10)).await;
    clock.forward_by_an_hour();
    let_pass(secs(3600)).await;
    let second = place.second_attempt("a1").await;
    assert!((3700.0..3702.0).contains(&second), "{second}");
    running.stop().await;
}
