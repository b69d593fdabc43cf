//! Cases for the outbox: letters that ended are listed until they are forgotten.

#![allow(missing_docs, reason = "the name of a case is its sentence")]

pub mod concurrent;

use std::collections::BTreeSet;

use lazaret_core::store::{Act, Outbox, Placed, Placement, Requeue, Settlement, Store};
use lazaret_core::{Letter, LetterState, QueueName};

use super::letters::fixture::{operator, requeued};
use super::letters::{Fixture, resolve};

/// Makes one test per case of the outbox contract, in a module of this name.
///
/// ```
/// use lazaret_memory::MemoryStore;
/// lazaret_testkit::outbox_test_suite!(memory, |clock| async move { MemoryStore::new(clock) });
/// ```
///
/// A backend that waits for the network or the disk takes `io`, as in
/// [`store_test_suite!`](crate::store_test_suite).
#[macro_export]
macro_rules! outbox_test_suite {
    ($name:ident, $make:expr) => {
        $crate::__outbox_test_suite! { $name, [start_paused = true], $make }
    };
    ($name:ident, io, $make:expr) => {
        $crate::__outbox_test_suite! { $name, [], $make }
    };
    ($name:ident, io, $make:expr, if $ready:path) => {
        $crate::__outbox_test_suite! { $name, [], $make, $ready }
    };
}

/// The list of cases. Not for direct use.
#[doc(hidden)]
#[macro_export]
macro_rules! __outbox_test_suite {
    ($name:ident, $runtime:tt, $make:expr) => {
        $crate::__outbox_test_suite! { $name, $runtime, $make, $crate::suite::always }
    };
    ($name:ident, $runtime:tt, $make:expr, $ready:path) => {
        $crate::__suite! {
            $name, $runtime, $make, $crate::suite::letters::Fixture::new, $ready;
            outbox {
                ends_of_an_unwatched_queue_are_not_listed
                letters_that_end_are_listed_in_their_order
                watching_begins_with_those_that_stand_there
                a_letter_that_is_tried_and_ends_is_listed_when_it_ends
                a_letter_that_fails_again_in_a_replay_has_ended_before
                what_people_do_ends_nothing
                ends_are_forgotten_up_to_a_number_and_numbers_go_on
                an_end_outlives_what_becomes_of_the_letter
                queues_have_ends_of_their_own
                a_message_handed_off_twice_ends_once
                a_letter_that_is_erased_or_purged_is_listed_again
                a_store_with_an_outbox_says_so
            }
        }
    };
}

async fn watch<S: Outbox>(t: &Fixture<S>) {
    t.store.watch_ends(&t.queue).await.unwrap();
}

/// The messages of the ends after this number, and how they ended.
async fn ends<S: Outbox>(t: &Fixture<S>, after: u64) -> Vec<(String, LetterState)> {
    let page = t.store.ends(&t.queue, after, 100).await.unwrap();
    assert_eq!(page.left, 0);
    assert!(page.ends.is_sorted_by(|one, next| one.number < next.number));
    let message = |letter: Option<Letter>| letter.unwrap().message.id.to_string();
    page.ends.into_iter().map(|end| (message(end.letter), end.state)).collect()
}

fn failed_as(letter: &Letter, state: LetterState, attempts: u32) -> Settlement {
    requeued(Requeue { state, attempts, ..Requeue::of(letter) })
}

fn dead(ids: &[&str]) -> Vec<(String, LetterState)> {
    ids.iter().map(|id| ((*id).to_owned(), LetterState::Dead)).collect()
}

pub async fn ends_of_an_unwatched_queue_are_not_listed<S: Store + Outbox>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    assert_eq!(t.store.ends(&t.queue, 0, 10).await.unwrap(), Default::default());
    watch(&t).await;
    t.store.unwatch_ends(&t.queue).await.unwrap();
    t.enqueue("b", "2").await;
    assert_eq!(t.store.ends(&t.queue, 0, 10).await.unwrap(), Default::default());
}

pub async fn letters_that_end_are_listed_in_their_order<S: Store + Outbox>(t: Fixture<S>) {
    watch(&t).await;
    t.enqueue("b", "1").await;
    t.behind(t.waiting("b", "2")).await;
    let mut parked = t.dead("a", "3");
    parked.state = LetterState::Parked;
    t.open(parked).await;
    let mut quarantined = t.dead("c", "4");
    quarantined.state = LetterState::Quarantined;
    t.open(quarantined).await;
    t.open(t.retrying("d", "5", super::secs(5))).await;
    let mut skipped = t.dead("e", "6");
    skipped.state = LetterState::Skipped;
    t.put(skipped, Placement::Closed).await;
    let expected = [("1", LetterState::Dead), ("3", LetterState::Parked), ("4", LetterState::Quarantined)];
    assert_eq!(ends(&t, 0).await, expected.map(|(id, state)| (id.to_owned(), state)));
    let page = t.store.ends(&t.queue, 0, 1).await.unwrap();
    assert_eq!((page.ends.len(), page.left), (1, 2));
    assert_eq!(page.ends[0].letter.as_ref(), Some(&t.get("1").await));
    assert_eq!(ends(&t, page.ends[0].number).await.len(), 2);
}

pub async fn watching_begins_with_those_that_stand_there<S: Store + Outbox>(t: Fixture<S>) {
    t.enqueue("b", "1").await;
    t.open(t.retrying("c", "2", super::secs(5))).await;
    t.enqueue("a", "3").await;
    t.enqueue("z", "gone").await;
    t.act("gone", Act::Evict).await.unwrap();
    watch(&t).await;
    watch(&t).await;
    assert_eq!(ends(&t, 0).await, dead(&["1", "3"]));
}

pub async fn a_letter_that_is_tried_and_ends_is_listed_when_it_ends<S: Store + Outbox>(t: Fixture<S>) {
    watch(&t).await;
    t.open(t.retrying("a", "1", super::secs(0))).await;
    t.enqueue("b", "2").await;
    let claim = t.store.claim_due(&t.queue, "w", super::secs(30), 1).await.unwrap().remove(0);
    t.settle(&claim, &claim.head, failed_as(&claim.head, LetterState::Dead, 5)).await.unwrap();
    assert_eq!(ends(&t, 0).await, dead(&["2", "1"]));
    assert_eq!(t.store.ends(&t.queue, 0, 9).await.unwrap().ends[1].attempts, 5);
}

pub async fn a_letter_that_fails_again_in_a_replay_has_ended_before<S: Store + Outbox>(t: Fixture<S>) {
    watch(&t).await;
    t.enqueue("a", "1").await;
    let claim = t.claim("a", "w").await.unwrap();
    t.settle(&claim, &claim.head, failed_as(&claim.head, LetterState::Dead, 1)).await.unwrap();
    assert_eq!(ends(&t, 0).await, dead(&["1"]));
    // Another end is one.
    let claim = t.claim("a", "w").await.unwrap();
    t.settle(&claim, &claim.head, failed_as(&claim.head, LetterState::Parked, 1)).await.unwrap();
    assert_eq!(ends(&t, 0).await.len(), 2);
}

pub async fn what_people_do_ends_nothing<S: Store + Outbox>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    watch(&t).await;
    let number = t.store.ends(&t.queue, 0, 9).await.unwrap().ends[0].number;
    for act in [Act::Park, Act::Quarantine, Act::Evict, Act::Restore, Act::Release] {
        t.act("1", act).await.unwrap();
    }
    assert_eq!(ends(&t, number).await, []);
}

pub async fn ends_are_forgotten_up_to_a_number_and_numbers_go_on<S: Store + Outbox>(t: Fixture<S>) {
    watch(&t).await;
    for id in ["1", "2", "3"] {
        t.enqueue(id, id).await;
    }
    let numbers: Vec<u64> =
        t.store.ends(&t.queue, 0, 9).await.unwrap().ends.iter().map(|end| end.number).collect();
    t.store.forget_ends(&t.queue, numbers[1]).await.unwrap();
    assert_eq!(ends(&t, 0).await, dead(&["3"]));
    t.store.forget_ends(&t.queue, numbers[2]).await.unwrap();
    t.store.forget_ends(&t.queue, numbers[2]).await.unwrap();
    t.enqueue("4", "4").await;
    let next = t.store.ends(&t.queue, numbers[2], 9).await.unwrap().ends;
    assert_eq!(next.len(), 1, "no number is given twice");
    // Also not after the list was off.
    t.store.unwatch_ends(&t.queue).await.unwrap();
    watch(&t).await;
    let again = t.store.ends(&t.queue, 0, 9).await.unwrap().ends;
    assert!(again.len() == 4 && again[0].number > next[0].number, "{again:?}");
}

pub async fn an_end_outlives_what_becomes_of_the_letter<S: Store + Outbox>(t: Fixture<S>) {
    watch(&t).await;
    let letter = t.enqueue("a", "1").await;
    let claim = t.claim("a", "w").await.unwrap();
    t.settle(&claim, &claim.head, resolve()).await.unwrap();
    let end = t.store.ends(&t.queue, 0, 9).await.unwrap().ends.remove(0);
    assert_eq!((end.state, end.letter.unwrap().state), (LetterState::Dead, LetterState::Resolved));
    t.store.purge(&t.queue, letter.id, &lazaret_core::store::Actor::engine("test")).await.unwrap();
    let end = t.store.ends(&t.queue, 0, 9).await.unwrap().ends.remove(0);
    assert_eq!((end.id, end.letter), (letter.id, None));
}

pub async fn queues_have_ends_of_their_own<S: Store + Outbox>(t: Fixture<S>) {
    let other = QueueName::of("other", "other");
    t.store.watch_ends(&other).await.unwrap();
    t.enqueue("a", "1").await;
    assert_eq!(t.store.ends(&other, 0, 9).await.unwrap(), Default::default());
    watch(&t).await;
    t.store.forget_ends(&other, u64::MAX).await.unwrap();
    assert_eq!(ends(&t, 0).await, dead(&["1"]));
}

pub async fn a_message_handed_off_twice_ends_once<S: Store + Outbox>(t: Fixture<S>) {
    // I8
    watch(&t).await;
    let letter = t.dead("a", "1");
    t.open(letter.clone()).await;
    assert_eq!(t.open(letter).await, Placed::Held(LetterState::Dead));
    assert_eq!(ends(&t, 0).await, dead(&["1"]));
}

pub async fn a_letter_that_is_erased_or_purged_is_listed_again<S: Store + Outbox>(t: Fixture<S>) {
    // I11: whoever keeps copies learns that their content is gone.
    for (id, act) in [("erased", Act::Evict), ("purged", Act::Resolve), ("old", Act::Evict)] {
        t.enqueue(id, id).await;
        t.act(id, act).await.unwrap();
    }
    watch(&t).await;
    assert_eq!(ends(&t, 0).await, [], "closed letters have not ended");
    let (erased, purged, old) = (t.id_of("erased"), t.id_of("purged"), t.id_of("old"));
    t.store.erase(&t.queue, erased, &operator()).await.unwrap();
    t.store.purge(&t.queue, purged, &operator()).await.unwrap();
    let page = t.store.ends(&t.queue, 0, 9).await.unwrap();
    let told: Vec<_> = page.ends.iter().map(|end| (end.id, end.state, end.attempts)).collect();
    assert_eq!(told, [(erased, LetterState::Evicted, 3), (purged, LetterState::Resolved, 3)]);
    assert!(page.ends[0].letter.as_ref().is_some_and(|letter| letter.erased.is_some()), "{page:?}");
    assert_eq!(page.ends[1].letter, None);
    t.store.forget_ends(&t.queue, page.ends[1].number).await.unwrap();
    // Retention purges, too.
    t.advance(super::secs(5));
    assert_eq!(t.store.expire(&t.queue, Some(t.now()), 9).await.unwrap().purged, 2);
    let page = t.store.ends(&t.queue, 0, 9).await.unwrap();
    let told: BTreeSet<_> = page.ends.iter().map(|end| (end.id, end.letter.is_some())).collect();
    assert_eq!((page.ends.len(), told), (2, BTreeSet::from([(erased, false), (old, false)])));
    assert!(page.ends.iter().all(|end| end.state == LetterState::Evicted), "{page:?}");
}

pub async fn a_store_with_an_outbox_says_so<S: Store + Outbox>(t: Fixture<S>) {
    watch(&t).await;
    assert!(t.store.capabilities().await.unwrap().outbox);
}
