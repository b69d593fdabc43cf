//! Fuzz target: the lines of an import.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

use lazaret_api::LetterDetail;
use lazaret_core::{Failure, Letter, LetterState, Message, Position, QueueName, Reason, Timestamp};
use lazaret_fuzz::{Fuzz, Shape};

fn corpus() -> Vec<Vec<u8>> {
    let now = Timestamp::UNIX_EPOCH;
    let letter = |message: Message| {
        Letter::new(QueueName::of("orders", "mail"), "order-7".into(), message.into(), now)
    };
    let waiting = letter(Message::new("m-1", "orders", Position::new(0, 1)));
    let message = Message::new("m-2", "orders", Position::new(3, 41)).with_key(&b"\xff\0"[..]);
    let message = message.with_type("Placed").with_header("a", "1").with_header("a", &b"\xff"[..]);
    let mut dead = letter(message.with_payload("{}"));
    dead.state = LetterState::Dead;
    dead.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "no answer"));
    (dead.attempts, dead.due_at, dead.expires_at) = (3, Some(now), Some(Timestamp::MAX));
    let written = |letter, payload| serde_json::to_vec(&LetterDetail::of(letter, payload)).unwrap();
    vec![written(&waiting, true), written(&dead, true), written(&dead, false)]
}

fn target() -> Fuzz {
    let words =
        ["dead", "retrying", "resolved", "none", "left-out", "shown", "0:0", "/", "a/b", "g1_00", "AA=="];
    Fuzz::target("import").corpus(corpus()).words(words).shape(Shape::Json)
}

/// Returns a check that an imported letter, exported by `write`, imports again as the same letter.
fn check(write: impl Fn(&Letter) -> LetterDetail) -> impl Fn(&[u8]) -> Result<(), String> {
    move |input| {
        let Ok(detail) = serde_json::from_slice::<LetterDetail>(input) else { return Ok(()) };
        let letter = match detail.into_letter(None) {
            Ok(letter) => letter,
            Err(error) if error.field.is_empty() => return Err(format!("an error without a place: {error}")),
            Err(_) => return Ok(()),
        };
        let written = serde_json::to_vec(&write(&letter)).unwrap();
        let again: LetterDetail = serde_json::from_slice(&written).map_err(|error| error.to_string())?;
        let again = again.into_letter(None).map_err(|error| format!("not imported again: {error}"))?;
        if again == letter { Ok(()) } else { Err(format!("{letter:?} became {again:?}")) }
    }
}

#[test]
fn import() {
    target().run(check(|letter| LetterDetail::of(letter, true)));
}

#[test]
fn a_planted_bug_of_imports_is_found() {
    // Non-ASCII characters are lost.
    target().finds(check(|letter| {
        let text = serde_json::to_string(&LetterDetail::of(letter, true)).unwrap();
        serde_json::from_str(&text.replace(|c: char| !c.is_ascii(), "")).unwrap()
    }));
}
