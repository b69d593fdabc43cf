//! Layers around handlers, and retry policies of routes.

use lazaret_core::handler::{Delivery, Handle, Handler, HandlerFuture, Next, Router, handler, layer_fn};
use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::{LetterState, Message, Reason};
use lazaret_engine::{Options, Timeout};

use crate::support::{Bench, Reply, Running, options, retry, secs, transient};

/// Runs a consumer with this handler until no work is left.
async fn run<A: 'static>(bench: &Bench, options: Options, h: impl Handler<A>) {
    bench.log.close();
    let builder = bench.builder(options).until_idle().handler(h);
    Running::start(builder).ended().await.expect("the consumer ends well");
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_layer_is_the_failure_of_that_message_alone() {
    // I10
    let bench = Bench::new();
    bench.push(&["a1", "b1", "c1"]);
    let fussy = layer_fn(|delivery: Delivery, next: Next| {
        assert!(delivery.message().payload.as_deref() != Some(b"a1"), "before the future");
        async move {
            assert!(delivery.message().payload.as_deref() != Some(b"b1"), "inside the future");
            next.run(delivery).await
        }
    });
    run(&bench, options(), bench.handler(|_| Reply::Done).layer(fussy)).await;
    assert_eq!(bench.calls.done(), ["c1"]);
    for (sequence, text) in [("a", "before the future"), ("b", "inside the future")] {
        let letter = bench.letter(sequence);
        let cause = letter.cause.expect("it failed");
        assert_eq!((letter.state, cause.reason), (LetterState::Dead, Reason::PANICKED));
        assert!(cause.message.contains(text), "{}", cause.message);
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_layer_limits_its_handler_and_no_other() {
    let bench = Bench::new();
    bench.log.push_with(0, |message| message.with_key("a").with_type("Slow").with_payload("a1"));
    bench.log.push_with(0, |message| message.with_key("b").with_type("Other").with_payload("b1"));
    let slow = || tokio::time::sleep(secs(20));
    let router = Router::new().on("Slow", slow.layer(Timeout::new(secs(5)))).on("Other", slow);
    let once = Options { retry: RetryPolicy { max_attempts: 1, ..retry(Strategy::Ordered) }, ..options() };
    run(&bench, once, router).await;
    let cause = bench.letter("a").cause.expect("it failed");
    assert_eq!((cause.reason, &*cause.message), (Reason::TIMEOUT, "no response within 5s"));
    assert!(bench.letters("b").is_empty());
}

/// Pushes messages `a1` of type `Patient` and `b1` of type `Other`. Both always fail.
fn two_types(bench: &Bench) -> Router {
    bench.log.push_with(0, |message| message.with_key("a").with_type("Patient").with_payload("a1"));
    bench.log.push_with(0, |message| message.with_key("b").with_type("Other").with_payload("b1"));
    let failing = bench.handler(|_| Reply::Fail(transient()));
    let policy =
        RetryPolicy { max_attempts: 5, initial_delay: secs(2), multiplier: 1.0, ..retry(Strategy::Ordered) };
    Router::new().on("Patient", failing.clone()).retry(policy).on("Other", failing)
}

#[tokio::test(start_paused = true)]
async fn a_route_is_retried_by_its_own_policy_and_the_others_by_the_consumers() {
    // I4, I12: the first retry waits in the lane or the store, later retries in the store.
    let bench = Bench::new();
    let router = two_types(&bench);
    run(&bench, options(), router).await;
    assert_eq!(bench.calls.times_of("a1"), [0.0, 2.0, 4.0, 6.0, 8.0]);
    assert_eq!(bench.calls.times_of("b1"), [0.0, 1.0, 3.0]);
    assert_eq!((bench.letter("a").attempts, bench.letter("b").attempts), (5, 3));
}

#[tokio::test(start_paused = true)]
async fn the_policy_of_a_route_is_found_through_layers() {
    let bench = Bench::new();
    let passing = layer_fn(|delivery, next: Next| next.run(delivery));
    let router = two_types(&bench).layer(passing);
    run(&bench, options(), router).await;
    assert_eq!((bench.letter("a").attempts, bench.letter("b").attempts), (5, 3));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_when_asked_for_its_policy_has_the_consumers() {
    // I10
    #[derive(Clone)]
    struct Broken;
    impl Handle for Broken {
        fn handle(&self, _: Delivery) -> HandlerFuture {
            Box::pin(std::future::ready(Err(transient())))
        }

        fn retry_policy(&self, _: &Message) -> Option<&RetryPolicy> {
            panic!("no policy")
        }
    }
    let bench = Bench::new();
    bench.push(&["a1"]);
    run(&bench, options(), handler(Broken)).await;
    assert_eq!(bench.letter("a").attempts, 3);
}
