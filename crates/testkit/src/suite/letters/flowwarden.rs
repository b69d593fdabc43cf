//! FlowWarden's contract for dead-letter stores (2.1), on Lazaret's contract. Its stream is our queue, its event our
//! letter.

use std::time::Duration;

use lazaret_core::letter::{AttemptKind, AttemptRecord, Edit};
use lazaret_core::message::{Operation, Schema};
use lazaret_core::store::{Act, HandOff, Limits, Placed, Placement, Store};
use lazaret_core::{Letter, LetterId, LetterState, QueueName};

use super::fixture::{Fixture, failure};

/// A letter in which every field is set.
fn full<S>(t: &Fixture<S>) -> Letter {
    let mut message = t.message("key", "full").with_type("OrderPlaced").with_header("tenant", "acme");
    message.headers.push("tenant", "globex");
    message.headers.push("empty", "");
    message.position.token = Some("8263".into());
    message.operation = Some(Operation::Update);
    message.content_type = Some("application/json".into());
    message.schema = Some(Box::new(Schema { id: Some("17".into()), version: Some("2".into()) }));
    message.timestamp = Some(t.now() - Duration::from_millis(1234));
    message.correlation = Some("corr-1".into());
    message.undecodable = Some("not JSON".into());
    let mut letter = t.dead("key", "full");
    letter.message = message.into();
    letter.cause = Some(failure("boom").with_backtrace("at main"));
    letter.attempts = 3;
    letter.crash_attempts = 1;
    letter.replay_attempts = 2;
    letter.poison = true;
    letter.first_failed_at = Some(t.now() - Duration::from_millis(999));
    letter.last_failed_at = Some(t.now() - Duration::from_millis(1));
    letter.expires_at = Some(t.now() + Duration::from_secs(86_400));
    letter.diagnostics.insert("retries".into(), "3".into());
    letter.context.insert("resume-token".into(), "8263".into());
    letter.owner = Some("payments-team".into());
    letter.record(AttemptRecord {
        attempt: 1,
        kind: AttemptKind::Live,
        at: t.now() - Duration::from_millis(999),
        took: Duration::from_millis(7),
        failure: Some(failure("first")),
    });
    letter.edits.push(Edit { by: "ada".into(), at: t.now(), why: "typo".into(), original: Some("{".into()) });
    letter
}

/// A letter in which everything that may be missing is.
fn bare<S>(t: &Fixture<S>) -> Letter {
    let mut letter = t.waiting("~m:bare", "bare");
    let mut message = (*letter.message).clone();
    message.key = None;
    message.payload = None;
    letter.message = message.into();
    letter.state = LetterState::Dead;
    letter
}

pub async fn fw01_a_full_letter_is_taken<S: Store>(t: Fixture<S>) {
    assert_eq!(t.open(full(&t)).await, Placed::Opened);
}

pub async fn fw02_a_letter_without_anything_optional_is_taken<S: Store>(t: Fixture<S>) {
    assert_eq!(t.open(bare(&t)).await, Placed::Opened);
}

pub async fn fw03_every_field_comes_back_as_it_was<S: Store>(t: Fixture<S>) {
    // I5
    let letter = full(&t);
    t.open(letter.clone()).await;
    let stored = t.get("full").await;
    assert_eq!(stored, Letter { index: stored.index, ..letter });
}

pub async fn fw04_an_unknown_letter_is_none<S: Store>(t: Fixture<S>) {
    assert!(t.store.get(&t.queue, t.id_of("nobody")).await.unwrap().is_none());
    t.enqueue("a", "1").await;
    assert!(t.store.get(&t.queue, t.id_of("nobody")).await.unwrap().is_none());
}

async fn two_here_one_there<S: Store>(t: &Fixture<S>) -> QueueName {
    let there = QueueName::of("payments", "payments");
    t.enqueue("a", "1").await;
    t.enqueue("b", "2").await;
    let mut letter = t.dead("a", "3");
    letter.id = LetterId::of(&there, &letter.message.id);
    letter.queue = there.clone();
    let items = vec![HandOff { letter, placement: Placement::Open, grant: None }];
    t.store.hand_off(&there, &Limits::NONE, items).await.unwrap().remove(0).unwrap();
    there
}

pub async fn fw05_letters_are_listed_by_their_queue<S: Store>(t: Fixture<S>) {
    let there = two_here_one_there(&t).await;
    assert_eq!(t.heads(10).await.len(), 2);
    assert_eq!(t.store.heads(&there, None, 10).await.unwrap().heads.len(), 1);
    assert!(t.store.heads(&"nobody/nobody".into(), None, 10).await.unwrap().heads.is_empty());
}

pub async fn fw06_what_was_missing_stays_missing<S: Store>(t: Fixture<S>) {
    // I5: no key is not an empty key, no payload is not an empty payload.
    let letter = bare(&t);
    t.open(letter.clone()).await;
    let stored = t.get("bare").await;
    assert_eq!(stored, Letter { index: stored.index, ..letter });
}

/// FlowWarden replaces the entry. Here redelivery changes nothing, whatever it says (I8): what stands in the store may
/// have been retried, edited or resolved since.
pub async fn fw07_taking_a_message_twice_keeps_the_first_letter<S: Store>(t: Fixture<S>) {
    let first = t.enqueue("a", "1").await;
    let mut again = t.dead("another", "1");
    again.attempts = 5;
    assert_eq!(t.open(again).await, Placed::Held(LetterState::Dead));
    assert_eq!(t.get("1").await, first);
    assert!(!t.contains("another").await);
}

pub async fn fw08_an_unknown_queue_counts_nothing<S: Store>(t: Fixture<S>) {
    let counts = t.store.counts(&"nobody/nobody".into()).await.unwrap();
    assert_eq!(counts, lazaret_core::store::Counts::default());
}

pub async fn fw09_letters_are_counted_by_their_queue<S: Store>(t: Fixture<S>) {
    let there = two_here_one_there(&t).await;
    assert_eq!(t.store.counts(&t.queue).await.unwrap().open(), 2);
    assert_eq!(t.store.counts(&there).await.unwrap().open(), 1);
    assert_eq!(t.store.counts(&"nobody/nobody".into()).await.unwrap().open(), 0);
}

pub async fn fw10_closed_letters_do_not_count_as_open<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.enqueue("b", "2").await;
    t.act("2", Act::Resolve).await.unwrap();
    let counts = t.store.counts(&t.queue).await.unwrap();
    assert_eq!((counts.open(), counts.of(LetterState::Resolved)), (1, 1));
}
