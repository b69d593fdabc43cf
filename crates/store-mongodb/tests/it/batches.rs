//! Batches with more sequences than one read by id asks for.

use lazaret_core::store::{GroupsRequest, HandOff, LetterStore, Limits, Placed, Placement, Triage};
use lazaret_core::{Failure, Letter, LetterState, Message, Position, QueueName, Reason, Timestamp};
use lazaret_store_mongodb::MongoStore;

use crate::support::{TestDatabase, server};

/// More than twice the ids of one read, and no multiple of it.
const SEQUENCES: u64 = 230;

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

/// One message for each sequence: the heads, or those that come behind them.
fn batch(state: LetterState, placement: Placement, first_offset: u64) -> Vec<HandOff> {
    let item = |number: u64| {
        let offset = first_offset + number;
        let message = Message::new(format!("m-{offset}"), "orders", Position::new(0, offset));
        let mut letter =
            Letter::new(queue(), format!("k-{number}").as_str().into(), message.into(), Timestamp::now());
        letter.state = state;
        letter.cause = (state == LetterState::Dead)
            .then(|| Failure::new(Reason::TIMEOUT, "HttpError", "the ledger gave no answer"));
        HandOff { letter, placement, grant: None }
    };
    (0..SEQUENCES).map(item).collect()
}

async fn hand_off(store: &MongoStore, items: Vec<HandOff>) -> Vec<Placed> {
    let answers = store.hand_off(&queue(), &Limits::NONE, items).await.unwrap();
    answers.into_iter().map(Result::unwrap).collect()
}

#[tokio::test]
async fn a_large_batch_is_stored_once_found_again_and_counted_once() {
    // I8
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    let store = test.open(None).await;
    let heads = || batch(LetterState::Dead, Placement::Open, 0);
    let placed = hand_off(&store, heads()).await;
    assert!(placed.iter().all(|placed| *placed == Placed::Opened), "{placed:?}");
    let placed = hand_off(&store, heads()).await;
    assert!(placed.iter().all(|placed| *placed == Placed::Held(LetterState::Dead)), "{placed:?}");
    let placed = hand_off(&store, batch(LetterState::Waiting, Placement::Behind, SEQUENCES)).await;
    assert!(placed.iter().all(|placed| *placed == Placed::Appended), "{placed:?}");
    let counts = store.counts(&queue()).await.unwrap();
    let of = |state| counts.of(state);
    assert_eq!((of(LetterState::Dead), of(LetterState::Waiting)), (SEQUENCES, SEQUENCES));
    let request = GroupsRequest { limit: 10, ..GroupsRequest::default() };
    let groups = store.groups(&request).await.unwrap().groups;
    assert_eq!(groups.len(), 1);
    assert_eq!((groups[0].counts.of(LetterState::Dead), groups[0].blocked_behind), (SEQUENCES, SEQUENCES));
}
