//! Bad input gets a clear error and loses nothing: bad messages, bad user code, bad settings.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use lazaret_core::handler::{Json, handler};
use lazaret_core::policy::{CapacityPolicy, Classifier, Decision, RetryPolicy, Stage, Strategy};
use lazaret_core::store::Limits;
use lazaret_core::{Failure, HandlerError, Letter, LetterState, Message, Phase, Reason, Sequencing};
use lazaret_engine::{BuildError, Builder, Consumer, DeadLetterOptions, Event, Options};

use crate::support::{
    self, Bench, Reply, Running, Try, eventually, fatal, one_attempt, options, payload_of, retry, secs,
};

/// Handles every message except `a1`, for which it replies this.
fn a1(reply: fn() -> Reply) -> impl Fn(&Try) -> Reply + Send + Sync + 'static {
    move |this| if this.name == "a1" { reply() } else { Reply::Done }
}

/// Returns the cause of the only letter of `a`, which is dead after one attempt. The message `b1` behind
/// it was handled.
fn only_a_is_dead(bench: &Bench) -> Failure {
    let letter = bench.letter("a");
    assert_eq!((letter.state, letter.attempts), (LetterState::Dead, 1));
    assert_eq!(payload_of(&letter), "a1");
    assert_eq!((bench.calls.done(), bench.committed()), (vec!["b1".to_owned()], Some(1)));
    letter.cause.expect("it failed")
}

#[tokio::test(start_paused = true)]
async fn a_message_that_its_source_cannot_decode_is_dead_with_its_raw_bytes_and_the_next_goes_on() {
    // I1, I5
    let bench = Bench::new();
    let raw = [0xff, 0x00, 0xfe];
    bench.log.push_with(0, |mut message| {
        message.undecodable = Some("unknown magic byte 255".into());
        message.with_key("a").with_payload(raw.to_vec())
    });
    bench.push(&["b1"]);
    bench.run(options(), |_| Reply::Done).await;
    let letter = bench.letter("a");
    let cause = letter.cause.clone().expect("it could not be read");
    assert_eq!((cause.reason, cause.phase), (Reason::INVALID_SCHEMA, Phase::Decode));
    assert_eq!(cause.message, "unknown magic byte 255");
    assert_eq!((letter.state, letter.message.payload.as_deref()), (LetterState::Dead, Some(&raw[..])));
    assert_eq!((bench.calls.tried(), bench.committed()), (vec!["b1".to_owned()], Some(1)));
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_does_not_fit_the_handlers_type_is_dead_in_phase_decode() {
    // I1
    let bench = Bench::new();
    bench.push(&["a1"]);
    bench.log.push(0, "b", "[1, 2]");
    bench.log.close();
    let handler = handler(|Json(_): Json<Vec<u8>>| async {});
    let options = Options { until_idle: true, ..options() };
    let stats = Running::start(bench.builder(options).handler(handler)).ended().await.unwrap();
    let cause = bench.letter("a").cause.expect("it is no JSON");
    assert_eq!((cause.reason, cause.phase), (Reason::INVALID_SCHEMA, Phase::Decode));
    assert!(cause.message.starts_with("expected value at line 1"), "{}", cause.message);
    assert_eq!((stats.handled, stats.failed, stats.retries), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_payload_above_the_limit_is_dead_with_all_its_bytes_and_never_copied() {
    // I1, I5, I7
    let bench = Bench::new();
    let large = Bytes::from(vec![7_u8; 100 << 20]);
    bench.log.push(0, "a", large.clone());
    bench.push(&["b1"]);
    bench.run(Options { max_payload: Some(1 << 20), ..options() }, |_| Reply::Done).await;
    let letter = bench.letter("a");
    let cause = letter.cause.clone().expect("it is too large");
    assert_eq!((cause.reason, cause.phase), (Reason::TOO_LARGE, Phase::Decode));
    assert_eq!(cause.message, "the payload has 104857600 bytes, the limit is 1048576");
    let kept = letter.message.payload.as_ref().expect("the payload is kept");
    assert_eq!((kept.len(), kept.as_ptr()), (100 << 20, large.as_ptr()));
    assert_eq!(bench.calls.tried(), ["b1"]);
}

#[tokio::test(start_paused = true)]
async fn a_payload_at_the_limit_is_handled() {
    let bench = Bench::new();
    bench.push(&["ab"]);
    bench.run(Options { max_payload: Some(2), ..options() }, |_| Reply::Done).await;
    assert_eq!(bench.calls.done(), ["ab"]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_never_returns_is_a_timeout_of_its_message_only() {
    // I3
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let options = Options { attempt_timeout: Some(secs(10)), ..one_attempt() };
    bench.run(options, a1(|| Reply::Hang)).await;
    let cause = only_a_is_dead(&bench);
    assert_eq!(
        (cause.reason, cause.phase, &*cause.message),
        (Reason::TIMEOUT, Phase::Handle, "no response within 10s")
    );
    assert_eq!(bench.letter("a").history[0].took, secs(10));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_on_a_stored_retry_times_out_too() {
    // I4
    let bench = Bench::new();
    bench.push(&["a1"]);
    let policy = RetryPolicy { hold: secs(0), ..retry(Strategy::Ordered) };
    let options = Options { attempt_timeout: Some(secs(10)), retry: policy, ..options() };
    bench.run(options, |_| Reply::Hang).await;
    assert_eq!(bench.calls.times_of("a1"), [0.0, 11.0, 23.0]);
    assert_eq!(bench.letter("a").attempts, 3);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_handler_is_the_failure_of_its_message_only() {
    // I10
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    bench.run(options(), a1(|| Reply::Panic("bug"))).await;
    let cause = only_a_is_dead(&bench);
    assert_eq!((cause.reason, cause.panicked, &*cause.message), (Reason::PANICKED, true, "bug"));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_after_it_waited_is_the_failure_of_its_message_only() {
    // I10
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    bench.run(options(), a1(|| Reply::after(secs(1), Reply::Panic("late bug")))).await;
    let cause = only_a_is_dead(&bench);
    assert_eq!((cause.reason, &*cause.message), (Reason::PANICKED, "late bug"));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_before_it_returns_a_future_is_the_failure_of_its_message_only() {
    // I10
    let bench = Bench::new();
    bench.push(&["a1"]);
    bench.log.close();
    let handler = handler(|_: Message| -> std::future::Ready<()> { panic!("no future") });
    let options = Options { until_idle: true, ..options() };
    Running::start(bench.builder(options).handler(handler)).ended().await.unwrap();
    let letter = bench.letter("a");
    assert_eq!(
        (letter.state, letter.cause.map(|cause| cause.reason)),
        (LetterState::Dead, Some(Reason::PANICKED))
    );
}

/// An error whose cause panics from the given call on.
#[derive(Debug)]
struct Treacherous {
    calls: AtomicUsize,
    panics_from: usize,
}

impl fmt::Display for Treacherous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("treacherous")
    }
}

impl StdError for Treacherous {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let before = self.calls.fetch_add(1, Ordering::SeqCst);
        assert!(before < self.panics_from, "no cause today");
        None
    }
}

fn treacherous(panics_from: usize) -> Reply {
    Reply::Fail(HandlerError::from(Treacherous { calls: AtomicUsize::new(0), panics_from }))
}

#[tokio::test(start_paused = true)]
async fn a_panicking_classifier_is_the_failure_of_its_message_only() {
    // I10: a rule by type walks the cause chain, which panics the second time.
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let classifier = Classifier::default().no_retry_on::<fmt::Error>();
    bench.run(Options { classifier, ..options() }, a1(|| treacherous(1))).await;
    let cause = only_a_is_dead(&bench);
    assert_eq!((cause.reason, &*cause.message), (Reason::CLASSIFIER_FAILED, "treacherous"));
}

#[tokio::test(start_paused = true)]
async fn an_error_that_panics_when_it_is_read_is_the_failure_of_its_message_only() {
    // I10
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    bench.run(options(), a1(|| treacherous(0))).await;
    let cause = only_a_is_dead(&bench);
    assert_eq!((cause.reason, &*cause.message), (Reason::PANICKED, "no cause today"));
}

#[tokio::test(start_paused = true)]
async fn a_failing_or_panicking_filter_is_the_failure_of_its_message_only() {
    // I10
    fn fails(_: &Message) -> Result<bool, HandlerError> {
        Err(HandlerError::msg("cannot tell"))
    }
    fn panics(_: &Message) -> Result<bool, HandlerError> {
        panic!("cannot tell")
    }
    for verdict in [fails, panics] {
        let bench = Bench::new();
        bench.push(&["a1", "b1"]);
        let filter = move |message: &Message| {
            if message.key.as_deref() == Some(b"a") { verdict(message) } else { Ok(true) }
        };
        bench.run(Options { filter: Some(Arc::new(filter)), ..options() }, |_| Reply::Done).await;
        let cause = only_a_is_dead(&bench);
        assert_eq!((cause.reason, cause.phase), (Reason::FILTER_FAILED, Phase::Filter));
        assert_eq!(cause.message, "cannot tell");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panicking_sequencing_policy_is_the_failure_of_its_message_only() {
    // I10
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let rule = |message: &Message| {
        assert_ne!(message.key.as_deref(), Some(&b"a"[..]), "where does it belong?");
        None
    };
    bench.run(Options { sequencing: Sequencing::Custom(Arc::new(rule)), ..options() }, |_| Reply::Done).await;
    let cause = only_a_is_dead(&bench);
    assert_eq!((cause.reason, bench.calls.tried()), (Reason::SEQUENCING_FAILED, vec!["b1".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_panicking_enqueue_policy_keeps_the_letter() {
    // I10, I1
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let policy = |_: &Letter, _: &Failure, _: Stage| -> Decision { panic!("undecided") };
    let running =
        bench.start(Options { enqueue: Arc::new(policy), ..one_attempt() }, a1(|| Reply::Fail(fatal())));
    eventually("both are settled", || bench.committed() == Some(1)).await;
    let cause = only_a_is_dead(&bench);
    assert_eq!(cause.message, "no such order");
    assert_eq!(bench.letter("a").diagnostics["enqueue-policy"], "panicked");
    assert!(!running.replayer().process_any().await.unwrap(), "nor does it hurt at a replay");
    assert_eq!(bench.letter("a").replay_attempts, 1);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_panicking_observer_loses_its_own_event_and_nothing_else() {
    // I10
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    bench.log.close();
    let options = Options { until_idle: true, ..one_attempt() };
    let builder = Consumer::builder(support::NAME)
        .source(bench.log.join())
        .store(bench.store.clone())
        .clock(Arc::new(bench.clock))
        .options(options)
        .observer(|event: &Event<'_>| panic!("cannot bear {event:?}"))
        .handler(bench.handler(a1(|| Reply::Fail(fatal()))));
    Running::start(builder).ended().await.unwrap();
    assert_eq!(only_a_is_dead(&bench).message, "no such order");
}

#[tokio::test(start_paused = true)]
async fn a_message_without_key_or_payload_is_handled_alone() {
    // I5
    let bench = Bench::new();
    bench.log.push_with(0, |message| message);
    bench.log.push_with(0, |message| message);
    let stats = bench
        .run(one_attempt(), |this| if this.before == 0 { Reply::Fail(fatal()) } else { Reply::Done })
        .await;
    assert_eq!((stats.handled, bench.committed()), (1, Some(1)));
    let letter = bench.letter("~m:events/0/0");
    assert_eq!((letter.message.key.clone(), letter.message.payload.clone()), (None, None));
}

/// A builder in which nothing is missing.
fn complete(options: Options) -> Builder {
    let bench = Bench::new();
    bench.builder(options).handler(bench.handler(|_| Reply::Done))
}

fn refused(builder: Builder) -> String {
    match builder.build() {
        Ok(_) => panic!("it must not be built"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test(start_paused = true)]
async fn settings_that_cannot_work_are_named() {
    let policy = |change: fn(&mut RetryPolicy)| {
        let mut options = options();
        change(&mut options.retry);
        options
    };
    let limits = |limits| Options {
        dead_letter: Some(DeadLetterOptions { limits, ..DeadLetterOptions::default() }),
        ..options()
    };
    let none = Limits::NONE;
    let capacity = |capacity| Options {
        dead_letter: Some(DeadLetterOptions { capacity, ..DeadLetterOptions::default() }),
        ..options()
    };
    let unbounded = CapacityPolicy::NONE;
    let table = [
        (policy(|retry| retry.max_attempts = 0), "max-attempts must be at least 1: the first attempt counts"),
        (policy(|retry| retry.multiplier = 0.5), "multiplier must be at least 1"),
        (policy(|retry| retry.jitter = 2.0), "jitter must be between 0 and 1: 0.2 is ±20 %"),
        (
            policy(|retry| retry.strategy = Strategy::Topics),
            "strategy topics needs a source that can hold retry topics; use ordered, unordered or in-place",
        ),
        (Options { concurrency: 0, ..options() }, "concurrency must be at least 1"),
        (Options { window: 0, ..options() }, "window must be at least 1"),
        (Options { lease: secs(0), ..options() }, "lease (ms) must be at least 100"),
        (Options { attempt_timeout: Some(secs(0)), ..options() }, "attempt-timeout (ms) must be at least 1"),
        (limits(Limits { max_sequences: Some(0), ..none }), "max-sequences must be at least 1"),
        (limits(Limits { max_sequence_size: Some(0), ..none }), "max-sequence-size must be at least 1"),
        (capacity(CapacityPolicy { max_letters: Some(0), ..unbounded }), "max-letters must be at least 1"),
        (capacity(CapacityPolicy { max_bytes: Some(0), ..unbounded }), "max-bytes must be at least 1"),
    ];
    for (options, expected) in table {
        assert_eq!(refused(complete(options)), expected);
    }
    assert!(complete(options()).build().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_lacks_a_part_says_which() {
    let bench = Bench::new();
    let no_handler = bench.builder(options());
    assert_eq!(refused(no_handler), "a consumer needs at least one handler");
    let no_source =
        Consumer::builder("orders").store(bench.store.clone()).handler(bench.handler(|_| Reply::Done));
    assert_eq!(refused(no_source), "a consumer needs a source");
    let no_store =
        Consumer::builder("orders").source(bench.log.join()).handler(bench.handler(|_| Reply::Done));
    assert_eq!(refused(no_store), "a consumer needs a store");
}

#[tokio::test(start_paused = true)]
async fn names_that_cannot_be_part_of_a_queue_are_refused() {
    let bench = Bench::new();
    let named = |name: &str| {
        let builder = Consumer::builder(name).source(bench.log.join()).store(bench.store.clone());
        builder.handler(bench.handler(|_| Reply::Done)).build().map(|_| ())
    };
    let rule = "use 1 to 200 characters, none of them a slash or a control character";
    for name in ["", "a/b", "a\nb", &"x".repeat(201)] {
        let error = named(name).expect_err("a bad name");
        assert!(matches!(error, BuildError::BadName(_)), "{error}");
        assert_eq!(error.to_string(), format!("{name:?} cannot be a name: {rule}"));
    }
    named("zażółć").unwrap();
    let component = complete(options()).component("a/b", bench.handler(|_| Reply::Done));
    assert_eq!(refused(component), format!("\"a/b\" cannot be a name: {rule}"));
    let twice = complete(options()).component(support::NAME, bench.handler(|_| Reply::Done));
    assert_eq!(refused(twice), "two components are named \"orders\"; each needs a queue of its own");
}
