//! Redaction of error texts before they are stored.

use lazaret_core::redaction::{TextRules, TextSet};
use lazaret_core::{HandlerError, Letter, Reason};
use lazaret_engine::Options;

use crate::support::{Bench, Reply, Try, one_attempt};

const CARD: &str = "4111 1111 1111 1111";

fn failing(this: &Try) -> Reply {
    let text = format!("tenant {} sent the bad card {CARD}", this.name);
    Reply::Fail(HandlerError::msg(text).reason(Reason::DOMAIN_INVALID))
}

/// Returns the letter of a message whose handler fails with a card number in its error.
async fn letter_with(redact: TextRules) -> Letter {
    let bench = Bench::new();
    bench.log.push_with(0, |message| message.with_key("a").with_payload("acme"));
    bench.run(Options { redact, ..one_attempt() }, failing).await;
    bench.letter("a")
}

#[tokio::test(start_paused = true)]
async fn texts_are_redacted_before_they_are_stored_and_their_group_stays() {
    let exact = letter_with(TextRules::default()).await;
    assert!(format!("{exact:?}").contains(CARD), "without rules, it is stored");
    let letter = letter_with(TextRules::new([TextSet::CardNumbers], [])).await;
    assert!(!format!("{letter:?}").contains(CARD), "{letter:?}");
    let (exact, cause) = (exact.cause.expect("it failed"), letter.cause.expect("it failed"));
    assert_eq!(cause.message, "tenant acme sent the bad card [redacted]");
    assert_eq!(cause.fingerprint, exact.fingerprint);
    let recorded = letter.history[0].failure.as_ref().expect("it failed");
    assert_eq!(*recorded, cause, "the history, too");
}

#[tokio::test(start_paused = true)]
async fn names_of_diagnostics_are_redacted_before_they_are_stored() {
    let bench = Bench::new();
    bench.log.push_with(0, |message| message.with_key("a").with_payload("acme"));
    let reporting = |this: &Try| {
        this.context.put_metadata("card-4111111111111111", CARD).expect("there is room");
        failing(this)
    };
    let redact = TextRules::new([TextSet::CardNumbers], []);
    bench.run(Options { redact, ..one_attempt() }, reporting).await;
    let letter = bench.letter("a");
    assert_eq!(letter.diagnostics.get("card-[redacted]").map(String::as_str), Some("[redacted]"));
    let shown = format!("{letter:?}");
    assert!(!shown.contains("4111111111111111") && !shown.contains(CARD), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn why_a_message_could_not_be_decoded_is_redacted_before_it_is_stored() {
    let bench = Bench::new();
    bench.log.push_with(0, |mut message| {
        message.undecodable = Some(format!("expected an order, found {CARD}").into());
        message.with_key("a").with_payload("raw")
    });
    let redact = TextRules::new([TextSet::CardNumbers], []);
    bench.run(Options { redact: redact.clone(), ..one_attempt() }, failing).await;
    let letter = bench.letter("a");
    assert!(!format!("{letter:?}").contains(CARD), "{letter:?}");
    assert_eq!(letter.message.undecodable.as_deref(), Some("expected an order, found [redacted]"));
    assert_eq!(letter.message.payload.as_deref(), Some(&b"raw"[..]), "the payload is as it came");
    let cause = letter.cause.expect("it could not be decoded");
    assert_eq!(cause.message, "expected an order, found [redacted]");

    // The message fails in the same way when it is tried again.
    let again = Bench::new();
    again.log.push_with(0, |mut message| {
        message.undecodable.clone_from(&letter.message.undecodable);
        message.with_key("a").with_payload("raw")
    });
    again.run(Options { redact, ..one_attempt() }, failing).await;
    assert_eq!(again.letter("a").cause.expect("it could not be decoded").fingerprint, cause.fingerprint);
}
