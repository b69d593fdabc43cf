//! Incarnations of streams: what is known by position belongs to one.

use lazaret_core::incarnation::Beginning;
use lazaret_core::store::{AttemptNote, Placed, Placement, Store};
use lazaret_core::{ConsumerName, Letter, LetterState, Message, Partition, Position};

use super::fixture::{Fixture, failure, seq};
use crate::suite::secs;

/// A letter of the message at this offset of a partition, in the sequence `a`.
fn letter<S>(t: &Fixture<S>, partition: &Partition, id: &str, offset: u64, state: LetterState) -> Letter {
    let message = Message::new(id, "orders", Position::at(partition.number(), offset)).with_key("a");
    let mut letter = Letter::new(t.queue.clone(), seq("a"), message.into(), t.now());
    letter.state = state;
    letter.cause = (state == LetterState::Dead).then(|| failure("boom"));
    letter
}

async fn fence<S: Store>(t: &Fixture<S>, partition: &Partition) -> u64 {
    t.store.assign(&t.queue, std::slice::from_ref(partition)).await.unwrap().remove(0).fence
}

fn beginning(id: &str, partition: Option<u32>, after: Option<u32>) -> Beginning {
    Beginning { stream: "orders".into(), partition, id: Some(id.into()), after }
}

pub async fn an_incarnation_is_recorded_once_with_its_time<S: Store>(t: Fixture<S>) {
    let (consumer, since) = (t.consumer(), t.now());
    assert!(t.store.incarnations(&consumer).await.unwrap().0.is_empty());
    t.store.begin_incarnation(&consumer, &beginning("a", None, None)).await.unwrap();
    t.advance(secs(60));
    let later = t.store.begin_incarnation(&consumer, &beginning("b", None, Some(0))).await.unwrap();
    // Other instances see the same.
    let again = t.store.begin_incarnation(&consumer, &beginning("b", None, Some(0))).await.unwrap();
    assert_eq!(again, later);
    let known = &t.store.incarnations(&consumer).await.unwrap().0[&"orders".into()];
    assert_eq!((known.stream.number, known.stream.id.as_deref()), (1, Some("b")));
    assert_eq!(known.stream.since, t.now());
    assert_ne!(known.stream.since, since);
    let partition = beginning("b", Some(3), Some(1));
    let known = t.store.begin_incarnation(&consumer, &partition).await.unwrap();
    let number = |index| known.current(&Partition::new("orders", index)).unwrap().number;
    assert_eq!([number(2), number(3)], [1, 2]);
}

pub async fn a_stream_that_was_recorded_without_an_id_gets_its_id<S: Store>(t: Fixture<S>) {
    // I1
    let (consumer, since) = (t.consumer(), t.now());
    let unnamed = Beginning { id: None, ..beginning("", None, None) };
    t.store.begin_incarnation(&consumer, &unnamed).await.unwrap();
    t.advance(secs(60));
    for id in ["a", "b"] {
        let known = t.store.begin_incarnation(&consumer, &beginning(id, None, None)).await.unwrap();
        assert_eq!(t.store.incarnations(&consumer).await.unwrap(), known);
        let known = &known.0[&"orders".into()].stream;
        assert_eq!((known.number, known.id.as_deref(), known.since), (0, Some("a"), since));
    }
}

pub async fn horizons_are_read_without_a_grant<S: Store>(t: Fixture<S>) {
    let first = t.partition();
    let places = [first.in_incarnation(1), first.clone(), Partition::new("invoices", first.index)];
    let none: [Option<u64>; 3] = [None; 3];
    assert_eq!(t.store.horizons(&t.queue, &places).await.unwrap(), none);
    let fence = fence(&t, &first).await;
    assert_eq!(t.store.horizons(&t.queue, &places).await.unwrap(), none);
    let dead = letter(&t, &first, "old", 9, LetterState::Dead);
    t.under_grant(dead, Placement::Open, fence).await.unwrap();
    assert_eq!(t.store.horizons(&t.queue, &places).await.unwrap(), [None, Some(9), None]);
    // The grant is still current.
    let later = letter(&t, &first, "later", 10, LetterState::Waiting);
    assert_eq!(t.under_grant(later, Placement::Behind, fence).await.unwrap(), Placed::Appended);
    assert_eq!(t.store.horizons(&t.queue, &places[1..2]).await.unwrap(), [Some(10)]);
    assert_eq!(t.store.horizons(&t.queue, &[]).await.unwrap(), []);
}

pub async fn the_incarnations_of_consumers_are_apart<S: Store>(t: Fixture<S>) {
    t.store.begin_incarnation(&t.consumer(), &beginning("a", None, None)).await.unwrap();
    let other = ConsumerName::from("another");
    assert!(t.store.incarnations(&other).await.unwrap().0.is_empty());
}

pub async fn horizons_and_notes_belong_to_one_incarnation<S: Store>(t: Fixture<S>) {
    // I1: a message of the new log at an offset that was handed off in the old one is not known.
    let first = t.partition();
    let second = first.in_incarnation(1);
    let dead = letter(&t, &first, "old", 9, LetterState::Dead);
    t.under_grant(dead, Placement::Open, fence(&t, &first).await).await.unwrap();
    let note = AttemptNote {
        message: "noted".into(),
        partition: first.clone(),
        offset: 4,
        attempts: 2,
        first_failed_at: t.now(),
        failure: failure("boom"),
        same_failure: 1,
        due_at: t.now(),
    };
    t.store.note_attempts(&t.queue, vec![note]).await.unwrap();
    let granted = t.store.assign(&t.queue, &[first.clone(), second.clone()]).await.unwrap();
    let horizons: Vec<_> = granted.iter().map(|grant| (grant.partition.incarnation, grant.horizon)).collect();
    assert_eq!(horizons, [(0, Some(9)), (1, None)]);
    assert_eq!(t.store.attempt_notes(&t.queue, std::slice::from_ref(&second)).await.unwrap(), []);
    t.store.forget_attempts(&t.queue, &second, 100).await.unwrap();
    let notes = t.store.attempt_notes(&t.queue, &[first]).await.unwrap();
    assert_eq!(notes.len(), 1, "those of another incarnation stay");
}

pub async fn a_letter_keeps_its_incarnation_and_stands_behind_those_of_earlier_ones<S: Store>(t: Fixture<S>) {
    // I2, I5
    let first = t.partition();
    let second = first.in_incarnation(2);
    let dead = letter(&t, &first, "old", 9, LetterState::Dead);
    t.under_grant(dead, Placement::Open, fence(&t, &first).await).await.unwrap();
    let fence = fence(&t, &second).await;
    for (id, offset) in [("new-1", 1), ("new-0", 0)] {
        // A message that is redelivered goes before later ones of its own log, and not of another.
        let waiting = letter(&t, &second, id, offset, LetterState::Waiting);
        let placed = t.under_grant(waiting, Placement::Behind, fence).await.unwrap();
        assert_eq!(placed, Placed::Appended);
    }
    let letters = t.list("a").await.into_iter();
    let places: Vec<_> =
        letters.map(|letter| (letter.message.id.to_string(), letter.message.partition())).collect();
    let [old, zero, one] = ["old", "new-0", "new-1"].map(str::to_owned);
    assert_eq!(places, [(old, first), (zero, second.clone()), (one, second)]);
}
