//! Messages that are delivered again stand in front of later ones of their partition, whatever else is in the call.

use lazaret_core::store::{HandOff, LetterStore, Limits, Placed, Placement};
use lazaret_core::{Letter, LetterState, Message, Position, QueueName, Timestamp};
use lazaret_store_postgres::PostgresStore;

use crate::support::{TestSchema, server};

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

/// A letter without a grant: it may precede those that are stored.
fn item(sequence: &str, offset: u64) -> HandOff {
    let message = Message::new(format!("m{offset}"), "orders", Position::new(0, offset)).with_payload("{}");
    let mut letter = Letter::new(queue(), sequence.into(), message.into(), Timestamp::now());
    letter.state = LetterState::Dead;
    HandOff { letter, placement: Placement::Open, grant: None }
}

async fn hand_off(store: &PostgresStore, items: Vec<HandOff>) -> Vec<Placed> {
    let answers = store.hand_off(&queue(), &Limits::NONE, items).await.unwrap();
    answers.into_iter().map(Result::unwrap).collect()
}

async fn offsets(store: &PostgresStore, sequence: &str) -> Vec<u64> {
    let letters = store.sequence(&queue(), &sequence.into(), 0, 100).await.unwrap();
    letters.iter().map(|letter| letter.message.position.offset).collect()
}

#[tokio::test]
async fn letters_of_one_call_go_to_their_places_in_several_sequences() {
    // I2
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let store = test.open(None).await;
    hand_off(&store, vec![item("a", 50), item("b", 60), item("c", 70)]).await;
    let again = [
        ("a", 10),
        ("b", 30),
        ("a", 20),
        ("c", 80),
        ("a", 75),
        ("a", 40),
        ("c", 65),
        ("new", 90),
        ("new", 85),
    ];
    let placed = hand_off(&store, again.map(|(sequence, offset)| item(sequence, offset)).into()).await;
    assert_eq!(placed.iter().filter(|placed| **placed == Placed::Opened).count(), 1);
    assert_eq!(offsets(&store, "a").await, [10, 20, 40, 50, 75]);
    assert_eq!(offsets(&store, "b").await, [30, 60]);
    assert_eq!(offsets(&store, "c").await, [65, 70, 80]);
    assert_eq!(offsets(&store, "new").await, [85, 90]);
    // And once more: all of them are held.
    let placed = hand_off(&store, again.map(|(sequence, offset)| item(sequence, offset)).into()).await;
    assert!(placed.iter().all(|placed| *placed == Placed::Held(LetterState::Dead)), "{placed:?}");
}
