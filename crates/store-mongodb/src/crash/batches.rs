//! A process that dies within a batch: the next call that needs one of its sequences goes on, whichever it is.

use bson::doc;
use lazaret_core::store::Placed;

use super::*;
use crate::database::count;

const KEYS: [&str; 3] = ["k", "l", "m"];

/// A dead letter for each key, handed off together; `name` tells batches apart.
fn letters(name: &str, placement: Placement) -> Vec<HandOff> {
    let letter = |(offset, key): (usize, &&str)| {
        let message = Message::new(format!("{name}-{key}"), "orders", Position::new(0, offset as u64));
        let mut letter = Letter::new(queue(), (*key).into(), message.into(), ManualClock::new().now());
        (letter.state, letter.cause) =
            (LetterState::Dead, Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom")));
        HandOff { letter, placement, grant: None }
    };
    KEYS.iter().enumerate().map(letter).collect()
}

async fn hand_off(store: &MongoStore, items: Vec<HandOff>) -> Result<Vec<Placed>> {
    store.hand_off(&queue(), &Limits::default(), items).await?.into_iter().collect()
}

/// The number of batches that are there, of sequences, and of revisions that were given.
async fn state(store: &MongoStore) -> (u64, u64, u64) {
    let db = store.db();
    let batches = count(&db.batches, doc! {}, None).await.unwrap();
    let sequences = count(&db.sequences, doc! {}, None).await.unwrap();
    (batches, sequences, db.counter("revision").await.unwrap())
}

/// A store whose first batch was interrupted in this state.
async fn interrupted_at(client: &Client, database: &str, wanted: (u64, u64, u64)) -> MongoStore {
    for cut in 0.. {
        let clock = ManualClock::new();
        let store = open(client, database, cut, &clock).await;
        store.db().cut_after(cut);
        assert!(hand_off(&store, letters("first", Placement::Open)).await.is_err(), "never in {wanted:?}");
        if state(&store).await == wanted {
            return open(client, database, cut, &clock).await;
        }
        forget(&store).await;
    }
    unreachable!("a batch has an end")
}

/// Every letter is there once, and counted once; no batch is left.
async fn check_batch(store: &MongoStore, letters: u64) {
    let counts = store.counts(&queue()).await.unwrap();
    assert_eq!((counts.of(LetterState::Dead), counts.sequences), (letters, KEYS.len() as u64));
    let groups = store.groups(&GroupsRequest { limit: 10, ..GroupsRequest::default() }).await.unwrap().groups;
    assert_eq!(groups.len(), 1);
    assert_eq!(groups[0].counts, counts);
    assert_eq!(groups[0].blocked_behind, letters - KEYS.len() as u64);
    assert_eq!(state(store).await.0, 0, "a batch is left");
    let opened = store.opened_since(&queue(), 0, 10).await.unwrap();
    assert_eq!(opened.sequences.len(), KEYS.len());
}

async fn drop_database(client: &Client, database: &str) {
    client.database(database).drop().await.unwrap();
}

fn new_database() -> String {
    format!("lzs_batch_{}", uuid::Uuid::new_v4().simple())
}

#[tokio::test]
async fn a_batch_that_is_handed_off_again_after_any_write_is_stored_once() {
    // I1, I8
    let Some(client) = client().await else { return };
    let (database, clock) = (new_database(), ManualClock::new());
    let whole = open(&client, &database, ENOUGH, &clock).await;
    whole.db().cut_after(ENOUGH);
    let placed = hand_off(&whole, letters("first", Placement::Open)).await.unwrap();
    assert_eq!(placed, [Placed::Opened; 3]);
    let writes = ENOUGH - whole.db().writes_left();
    check_batch(&whole, 3).await;
    for cut in 0..writes {
        let store = open(&client, &database, cut, &clock).await;
        store.db().cut_after(cut);
        assert!(hand_off(&store, letters("first", Placement::Open)).await.is_err(), "write {cut} was made");
        let heir = open(&client, &database, cut, &clock).await;
        let placed = hand_off(&heir, letters("first", Placement::Open)).await.unwrap();
        let is_there = |placed: &Placed| matches!(placed, Placed::Opened | Placed::Held(LetterState::Dead));
        assert!(placed.iter().all(is_there), "cut after {cut} writes: {placed:?}");
        check_batch(&heir, 3).await;
        forget(&heir).await;
    }
    println!("cut off after each of {writes} writes");
    drop_database(&client, &database).await;
}

#[tokio::test]
async fn a_sequence_that_another_call_opened_first_is_left_out_of_a_batch() {
    // I1, I2
    let Some(client) = client().await else { return };
    let database = new_database();
    let heir = interrupted_at(&client, &database, (1, 0, 0)).await;
    let other = letters("other", Placement::Open).remove(0);
    assert_eq!(hand_off(&heir, vec![other]).await.unwrap(), [Placed::Opened]);
    // The lookup finishes the batch.
    let ids: Vec<MessageId> =
        letters("first", Placement::Open).iter().map(|item| item.letter.message.id.clone()).collect();
    let known = heir.lookup(&queue(), &ids).await.unwrap();
    assert_eq!(known, [None, Some(LetterState::Dead), Some(LetterState::Dead)]);
    check_batch(&heir, 3).await;
    let again = hand_off(&heir, letters("first", Placement::Open)).await.unwrap();
    let held = Placed::Held(LetterState::Dead);
    assert_eq!(again, [Placed::Appended, held, held]);
    check_batch(&heir, 4).await;
    drop_database(&client, &database).await;
}

#[tokio::test]
async fn a_sequence_that_a_batch_is_about_to_open_is_not_answered_as_closed() {
    // I2: the answer names a revision, up to which the caller has seen every sequence that was opened.
    let Some(client) = client().await else { return };
    let database = new_database();
    let heir = interrupted_at(&client, &database, (1, 0, 3)).await;
    let placed = hand_off(&heir, letters("later", Placement::Behind)).await.unwrap();
    assert_eq!(placed, [Placed::Appended; 3]);
    check_batch(&heir, 6).await;
    drop_database(&client, &database).await;
}
