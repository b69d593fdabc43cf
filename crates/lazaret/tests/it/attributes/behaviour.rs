//! Handlers, filters and error handlers.

use std::sync::{Arc, Mutex};

use lazaret::declare::*;
use lazaret::handler::FromRef;
use lazaret::prelude::*;

use super::support::{change, run};

type Seen = Arc<Mutex<Vec<String>>>;

fn note(seen: &Seen, text: impl Into<String>) {
    seen.lock().expect("no test panics with it").push(text.into());
}

fn noted(seen: &Seen) -> Vec<String> {
    seen.lock().expect("no test panics with it").clone()
}

#[derive(Default)]
struct Orders {
    seen: Seen,
}

impl FromRef<Arc<Orders>> for Region {
    fn from_ref(_: &Arc<Orders>) -> Self {
        Self("eu-1")
    }
}

struct Region(&'static str);

#[change_stream(collection = "orders")]
impl Orders {
    #[on_insert]
    #[on_replace]
    async fn saved(&self, Json(cents): Json<u32>, State(region): State<Region>, message: Message) {
        note(&self.seen, format!("{:?} {cents} in {}", message.operation.expect("it is a change"), region.0));
    }

    #[on_delete]
    async fn deleted(&self) {
        note(&self.seen, "deleted");
    }

    #[on_change]
    async fn other(&self, message: Message) {
        note(&self.seen, format!("other {:?}", message.operation.expect("it is a change")));
    }
}

#[tokio::test]
async fn each_operation_has_its_method_and_on_change_takes_the_others() {
    let orders = Orders::default();
    let seen = orders.seen.clone();
    let operations =
        [Operation::Insert, Operation::Update, Operation::Replace, Operation::Delete, Operation::Drop];
    run(&orders.declare().consumer().expect("valid"), operations.map(|operation| change(operation, "7")))
        .await;
    assert_eq!(
        noted(&seen),
        ["Insert 7 in eu-1", "other Update", "Replace 7 in eu-1", "deleted", "other Drop"]
    );
}

#[tokio::test]
async fn a_source_that_sets_only_the_type_of_the_event_is_understood() {
    let orders = Orders::default();
    let seen = orders.seen.clone();
    let message = |message: Message| message.with_type("delete");
    run(&orders.declare().consumer().expect("valid"), [message]).await;
    assert_eq!(noted(&seen), ["deleted"]);
}

struct Inserts;

#[change_stream(collection = "orders")]
impl Inserts {
    #[on_insert]
    async fn placed(&self) {}
}

#[tokio::test]
async fn a_change_without_a_method_is_settled() {
    let ran = run(&Inserts.declare().consumer().expect("valid"), [change(Operation::Update, "7")]).await;
    assert_eq!((ran.stats.handled, ran.committed), (1, Some(0)));
}

struct Generic<T: Send + Sync + 'static>(T);

#[dead_letter_queue(ttl_days = 1)]
#[retry_policy(max_attempts = 2)]
#[change_stream(collection = "orders")]
impl<T: Send + Sync + 'static> Generic<T> {
    #[on_change]
    async fn changed(&self) {
        let _ = &self.0;
    }
}

#[test]
fn attributes_stand_in_any_order_and_types_may_be_generic() {
    let declared = Generic(7_u8).declare().consumer().expect("valid");
    assert_eq!((declared.name(), declared.config().retry.policy.max_attempts), ("generic", 2));
    assert_eq!(declared.origin("dead-letter.ttl"), Some(Origin::Attribute));
}

#[derive(Default)]
struct Filtered {
    seen: Seen,
}

#[derive(Debug, thiserror::Error)]
#[error("no such currency")]
struct Currency;

#[change_stream(collection = "orders")]
impl Filtered {
    #[filter]
    fn is_large(&self, Json(cents): Json<u32>) -> Result<bool, Currency> {
        match cents {
            13 => Err(Currency),
            14 => panic!("a bug in the filter"),
            cents => Ok(cents > 100),
        }
    }

    #[on_change]
    async fn changed(&self, Text(cents): Text) {
        note(&self.seen, cents);
    }
}

#[tokio::test]
async fn an_event_that_the_filter_rejects_is_settled_without_a_call() {
    let orders = Filtered::default();
    let seen = orders.seen.clone();
    let messages = ["7", "700"].map(|cents| change(Operation::Insert, cents));
    let ran = run(&orders.declare().consumer().expect("valid"), messages).await;
    assert_eq!(noted(&seen), ["700"]);
    assert_eq!((ran.stats.filtered, ran.stats.handled, ran.committed), (1, 1, Some(1)));
}

#[tokio::test]
async fn a_filter_that_fails_or_panics_is_the_failure_of_its_event_alone() {
    // I10
    for (payload, text) in
        [("13", "no such currency"), ("14", "a bug in the filter"), ("no number", "expected")]
    {
        let orders = Filtered::default();
        let seen = orders.seen.clone();
        let other = |message: Message| change(Operation::Insert, "700")(message).with_key("bob");
        let failing: Box<dyn FnOnce(Message) -> Message> = Box::new(change(Operation::Insert, payload));
        let ran = run(&orders.declare().consumer().expect("valid"), [failing, Box::new(other)]).await;
        let cause = ran.letter().await.cause.expect("a cause");
        assert_eq!((cause.reason, cause.phase), (Reason::FILTER_FAILED, Phase::Filter), "{payload}");
        assert!(cause.message.contains(text), "{}", cause.message);
        assert_eq!(
            (noted(&seen), ran.committed),
            (vec!["700".to_owned()], Some(1)),
            "{payload}: the stream goes on"
        );
    }
}

#[derive(Debug, thiserror::Error)]
#[error("timed out")]
struct TimeoutError;

#[derive(Debug, thiserror::Error)]
#[error("not placed")]
struct NotPlaced(#[source] TimeoutError);

/// Fails as its payload says, and decides by the failure.
#[derive(Default)]
struct Deciding {
    seen: Seen,
}

#[change_stream(collection = "orders")]
#[retry_policy(initial_delay = "1ms", no_retry_on(TimeoutError))]
impl Deciding {
    #[on_change]
    async fn changed(&self, Text(what): Text) -> Result<(), HandlerError> {
        match &*what {
            "timeout" => Err(NotPlaced(TimeoutError).into()),
            "panic" => panic!("boom"),
            "fine" => Ok(()),
            other => Err(HandlerError::msg(other)),
        }
    }

    #[on_error(TimeoutError)]
    fn timed_out(&self, error: &TimeoutError, Attempt(attempt): Attempt) -> ErrorAction {
        note(&self.seen, format!("{error} on attempt {attempt}"));
        ErrorAction::Retry
    }

    #[on_error]
    fn failed(&self, error: &HandlerError, context: Context) -> ErrorAction {
        note(&self.seen, format!("{error} of {}", context.event_id()));
        match &*error.to_string() {
            "skip" | "boom" => ErrorAction::Skip,
            "dlq" => ErrorAction::Dlq,
            "bug" => panic!("a bug in the error handler"),
            _ => ErrorAction::Rethrow,
        }
    }
}

/// Runs one message and returns the notes of the error handlers.
async fn decide(payload: &'static str) -> (super::support::Ran, Vec<String>) {
    let deciding = Deciding::default();
    let seen = deciding.seen.clone();
    let ran = run(&deciding.declare().consumer().expect("valid"), [change(Operation::Insert, payload)]).await;
    (ran, noted(&seen))
}

#[tokio::test]
async fn on_error_is_asked_after_every_failed_attempt_and_retries_whatever_the_lists_say() {
    let (ran, seen) = decide("timeout").await;
    assert_eq!(seen, ["timed out on attempt 1", "timed out on attempt 2", "timed out on attempt 3"]);
    assert_eq!((ran.letter().await.state, ran.letter().await.attempts), (LetterState::Dead, 3));
}

#[tokio::test]
async fn on_error_skips_with_an_audit_entry_also_a_panic() {
    for (payload, text) in [("skip", "skip of orders/0/0"), ("panic", "boom of orders/0/0")] {
        let (ran, seen) = decide(payload).await;
        assert_eq!(seen, [text]);
        assert_eq!((ran.count(LetterState::Skipped).await, ran.audit().await.len()), (1, 1), "{payload}");
    }
}

#[tokio::test]
async fn on_error_dead_letters_without_further_attempts() {
    let (ran, _) = decide("dlq").await;
    assert_eq!((ran.letter().await.state, ran.letter().await.attempts), (LetterState::Dead, 1));
}

#[tokio::test]
async fn on_error_that_rethrows_leaves_the_decision_to_the_policies() {
    let (ran, seen) = decide("other").await;
    assert_eq!((seen.len(), ran.letter().await.attempts), (3, 3));
    assert_eq!(decide("fine").await.1, Vec::<String>::new());
}

#[tokio::test]
async fn on_error_that_panics_cannot_hurt() {
    // I10
    let (ran, _) = decide("bug").await;
    let letter = ran.letter().await;
    assert_eq!((letter.state, letter.attempts), (LetterState::Dead, 3), "as if it had not been asked");
    assert_eq!(letter.diagnostics["on-error"], "panicked: a bug in the error handler");
}

#[tokio::test]
async fn a_panic_that_on_error_leaves_alone_keeps_its_place() {
    struct Broken;

    #[change_stream(collection = "orders")]
    impl Broken {
        #[on_change]
        async fn changed(&self) {
            panic!("boom");
        }

        #[on_error]
        fn failed(&self, _: &HandlerError) {}
    }

    let ran = run(&Broken.declare().consumer().expect("valid"), [change(Operation::Insert, "7")]).await;
    let cause = ran.letter().await.cause.expect("a cause");
    assert_eq!((cause.reason, &*cause.message), (Reason::PANICKED, "boom"));
    assert!(cause.backtrace.expect("a place").contains("behaviour.rs"), "the place of the panic");
}
