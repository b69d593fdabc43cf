//! Retries and dead letters together: the four rows of the guide, error types, and the content of
//! letters.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lazaret::declare::{Declare, change_stream};
use lazaret::prelude::*;

use super::support::{change, run};

#[derive(Debug, thiserror::Error)]
#[error("the gateway timed out")]
struct TimeoutError;

#[derive(Debug, thiserror::Error)]
#[error("a negative total")]
struct ValidationError;

/// Wraps another error.
#[derive(Debug, thiserror::Error)]
#[error("order not placed")]
struct Outer(#[source] ValidationError);

/// Declares a handler with these attributes that always fails with this error. Yields the consumer and
/// the counter of its calls.
macro_rules! failing {
    ($([$($attribute:tt)*])* => $error:expr) => {{
        struct Failing(Arc<AtomicU32>);

        #[change_stream(collection = "orders")]
        $(#[$($attribute)*])*
        impl Failing {
            #[on_insert]
            async fn placed(&self) -> Result<(), HandlerError> {
                self.0.fetch_add(1, Ordering::Relaxed);
                Err($error.into())
            }
        }

        let calls = Arc::new(AtomicU32::new(0));
        (Failing(calls.clone()).declare().consumer().expect("valid"), calls)
    }};
}

fn inserted() -> [impl FnOnce(Message) -> Message; 1] {
    [change(Operation::Insert, r#"{"cents": 7}"#)]
}

#[tokio::test]
async fn with_retry_and_dead_letters_an_event_is_retried_and_then_dead_lettered() {
    let (declared, calls) =
        failing!([retry_policy(initial_delay = "1ms")] [dead_letter_queue] => TimeoutError);
    let ran = run(&declared, inserted()).await;
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    let letter = ran.letter().await;
    assert_eq!((letter.state, letter.attempts, ran.committed), (LetterState::Dead, 3, Some(0)));
}

#[tokio::test]
async fn with_dead_letters_only_an_event_is_dead_lettered_after_the_first_failure() {
    let (declared, calls) = failing!([dead_letter_queue] => TimeoutError);
    let ran = run(&declared, inserted()).await;
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(ran.letter().await.state, LetterState::Dead);
}

#[tokio::test]
async fn with_retry_and_dead_letters_disabled_an_event_is_discarded_after_its_retries_with_an_audit_entry() {
    // I11
    let (declared, calls) = failing!(
        [retry_policy(initial_delay = "1ms")] [dead_letter_queue(enabled = false)] => TimeoutError);
    let ran = run(&declared, inserted()).await;
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    assert_eq!((ran.count(LetterState::Dead).await, ran.count(LetterState::Skipped).await), (0, 1));
    let audit = ran.audit().await;
    assert_eq!(audit.iter().map(|entry| &*entry.action).collect::<Vec<_>>(), ["skip"]);
    assert!(audit[0].by.why.contains("TimeoutError"), "{:?}", audit[0]);
    assert_eq!(ran.committed, Some(0), "the stream goes on");
}

#[tokio::test]
async fn with_dead_letters_disabled_only_an_event_is_discarded_after_the_first_failure_with_an_audit_entry() {
    // I11
    let (declared, calls) = failing!([dead_letter_queue(enabled = false)] => TimeoutError);
    let ran = run(&declared, inserted()).await;
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!((ran.count(LetterState::Skipped).await, ran.audit().await.len()), (1, 1));
}

#[tokio::test]
async fn without_any_attribute_no_event_is_lost() {
    // I1
    let (declared, calls) = failing!(=> TimeoutError);
    let ran = run(&declared, inserted()).await;
    assert_eq!((calls.load(Ordering::Relaxed), ran.letter().await.state), (1, LetterState::Dead));
}

#[tokio::test]
async fn retry_on_is_empty_by_default_and_all_errors_are_retried() {
    let (declared, calls) = failing!([retry_policy(initial_delay = "1ms")] => io::Error::other("x"));
    run(&declared, inserted()).await;
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn with_retry_on_any_other_error_is_final() {
    let (retried, calls) =
        failing!([retry_policy(initial_delay = "1ms", retry_on(TimeoutError))] => TimeoutError);
    run(&retried, inserted()).await;
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    let (other, calls) =
        failing!([retry_policy(initial_delay = "1ms", retry_on(TimeoutError))] => io::Error::other("x"));
    let ran = run(&other, inserted()).await;
    assert_eq!((calls.load(Ordering::Relaxed), ran.letter().await.state), (1, LetterState::Dead));
}

#[tokio::test]
async fn no_retry_on_excludes_an_error_type_down_the_cause_chain() {
    let (declared, calls) = failing!(
        [retry_policy(initial_delay = "1ms", no_retry_on(ValidationError))] => Outer(ValidationError));
    run(&declared, inserted()).await;
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn no_retry_on_takes_precedence_over_retry_on() {
    let (declared, calls) = failing!(
        [retry_policy(initial_delay = "1ms", retry_on(TimeoutError), no_retry_on(TimeoutError))] => TimeoutError);
    run(&declared, inserted()).await;
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_lists_take_reason_codes_too() {
    let (declared, calls) = failing!(
        [retry_policy(initial_delay = "1ms", no_retry_on("CONFLICT"))]
            => HandlerError::msg("x").reason(Reason::CONFLICT));
    run(&declared, inserted()).await;
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

/// The equivalents of `IllegalArgumentException` and similar errors: retrying does not fix them.
#[tokio::test]
async fn programming_errors_are_not_retried_by_default() {
    struct Broken;

    #[change_stream(collection = "orders")]
    #[retry_policy(initial_delay = "1ms")]
    impl Broken {
        #[on_insert]
        async fn placed(&self, Json(_): Json<u8>) {
            panic!("index out of bounds");
        }
    }

    let declared = Broken.declare().consumer().expect("valid");
    for (payload, reason) in [("7", Reason::PANICKED), ("no number", Reason::INVALID_SCHEMA)] {
        let letter = run(&declared, [change(Operation::Insert, payload)]).await.letter().await;
        assert_eq!((letter.attempts, letter.cause.expect("a cause").reason), (1, reason));
    }
}

#[tokio::test]
async fn a_letter_has_the_document_the_error_and_its_times() {
    let (declared, _) = failing!([dead_letter_queue] => Outer(ValidationError));
    let ran = run(&declared, inserted()).await;
    let letter = ran.letter().await;
    let cause = letter.cause.clone().expect("a cause");
    assert!(cause.error_type.ends_with("Outer"), "{}", cause.error_type);
    assert_eq!((&*cause.message, &*cause.chain[0].message), ("order not placed", "a negative total"));
    assert_eq!(letter.message.payload.as_deref(), Some(&br#"{"cents": 7}"#[..]));
    assert_eq!((letter.message.operation, letter.attempts), (Some(Operation::Insert), 1));
    assert!(letter.first_failed_at.is_some() && letter.last_failed_at.is_some());
    let hours = letter.expires_at.expect("30 days").duration_since(letter.enqueued_at).as_hours();
    assert!((29 * 24..=30 * 24).contains(&hours), "{hours}");
}

#[tokio::test]
async fn a_minimal_letter_has_neither_document_nor_stack_trace_nor_expiry() {
    struct Broken;

    #[change_stream(collection = "orders")]
    #[dead_letter_queue(include_original_document = false, include_stack_trace = false, ttl_days = 0)]
    impl Broken {
        #[on_insert]
        async fn placed(&self) {
            panic!("boom");
        }
    }

    let letter = run(&Broken.declare().consumer().expect("valid"), inserted()).await.letter().await;
    assert_eq!((&letter.message.payload, letter.expires_at), (&None, None));
    assert_eq!(letter.cause.expect("a cause").backtrace, None);
}

#[tokio::test]
async fn attempts_are_counted_from_1() {
    struct Counting(Arc<AtomicU32>);

    #[change_stream(collection = "orders")]
    #[retry_policy(initial_delay = "1ms")]
    impl Counting {
        #[on_insert]
        async fn placed(&self, context: Context, Attempt(attempt): Attempt) -> Result<(), TimeoutError> {
            assert_eq!(attempt, context.attempt());
            assert_eq!(attempt, self.0.fetch_add(1, Ordering::Relaxed) + 1);
            if attempt < 3 { Err(TimeoutError) } else { Ok(()) }
        }
    }

    let ran = run(&Counting(Arc::default()).declare().consumer().expect("valid"), inserted()).await;
    assert_eq!((ran.stats.handled, ran.stats.failed), (1, 2));
}

#[tokio::test]
async fn a_handler_sends_an_event_to_the_dead_letters_itself() {
    struct Manual;

    #[change_stream(collection = "orders")]
    #[retry_policy(initial_delay = "1ms")]
    impl Manual {
        #[on_insert]
        async fn placed(&self, context: Context) -> Result<(), HandlerError> {
            context.send_to_dlq("the order was never paid").await?;
            Ok(())
        }
    }

    let letter = run(&Manual.declare().consumer().expect("valid"), inserted()).await.letter().await;
    let cause = letter.cause.expect("a cause");
    assert_eq!((letter.state, cause.reason), (LetterState::Dead, Reason::MANUAL));
    assert_eq!(cause.message, "the order was never paid");
}
