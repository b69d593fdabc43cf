//! Cases for the duplicate filter.

#![allow(missing_docs, reason = "the name of a case is its sentence")]

use lazaret_core::QueueName;
use lazaret_core::store::{Dedupe, DedupeClaim};

use super::{Backend, secs};

/// Makes one test per case of the duplicate filter, in a module of this name.
///
/// ```
/// use lazaret_memory::MemoryStore;
/// lazaret_testkit::dedupe_test_suite!(memory, |clock| async move { MemoryStore::new(clock) });
/// ```
///
/// A backend that waits for the network or the disk takes `io`, as in
/// [`store_test_suite!`](crate::store_test_suite).
#[macro_export]
macro_rules! dedupe_test_suite {
    ($name:ident, $make:expr) => {
        $crate::__dedupe_test_suite! { $name, [start_paused = true], $make }
    };
    ($name:ident, io, $make:expr) => {
        $crate::__dedupe_test_suite! { $name, [], $make }
    };
    ($name:ident, io, $make:expr, if $ready:path) => {
        $crate::__dedupe_test_suite! { $name, [], $make, $ready }
    };
}

/// The list of cases. Not for direct use.
#[doc(hidden)]
#[macro_export]
macro_rules! __dedupe_test_suite {
    ($name:ident, $runtime:tt, $make:expr) => {
        $crate::__dedupe_test_suite! { $name, $runtime, $make, $crate::suite::always }
    };
    ($name:ident, $runtime:tt, $make:expr, $ready:path) => {
        $crate::__suite! {
            $name, $runtime, $make, $crate::suite::Backend::new, $ready;
            dedupe {
                a_new_message_is_claimed
                a_claimed_message_is_in_flight_for_others
                an_owner_claims_again_and_extends_its_claim
                a_handled_message_is_done_for_every_owner
                a_claim_whose_owner_died_expires
                an_abandoned_claim_may_be_taken_at_once
                another_cannot_abandon_a_claim
                what_is_done_cannot_be_abandoned
                what_is_done_is_remembered_for_the_window
                an_effect_after_the_claim_expired_is_still_an_effect
                a_late_abandonment_does_not_take_the_claim_of_another
                queues_remember_each_for_itself
                abandoning_what_was_never_claimed_is_no_error
                of_many_concurrent_claims_one_succeeds
                a_clock_that_is_set_back_does_not_prolong_a_dead_claim
                a_clock_that_is_set_forward_ends_neither_marks_nor_claims
                steps_of_the_clock_do_not_change_the_window
                a_mark_of_a_wrong_clock_lasts_for_the_window
            }
        }
    };
}

const LEASE: std::time::Duration = secs(30);
const WINDOW: std::time::Duration = secs(3600);

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

async fn claim<S: Dedupe>(t: &Backend<S>, id: &str, owner: &str) -> DedupeClaim {
    t.store.claim(&queue(), &id.into(), owner, LEASE).await.unwrap()
}

async fn done<S: Dedupe>(t: &Backend<S>, id: &str, owner: &str) {
    t.store.done(&queue(), &id.into(), owner, WINDOW).await.unwrap();
}

async fn abandon<S: Dedupe>(t: &Backend<S>, id: &str, owner: &str) {
    t.store.abandon(&queue(), &id.into(), owner).await.unwrap();
}

pub async fn a_new_message_is_claimed<S: Dedupe>(t: Backend<S>) {
    assert_eq!(claim(&t, "1", "a").await, DedupeClaim::Claimed);
}

pub async fn a_claimed_message_is_in_flight_for_others<S: Dedupe>(t: Backend<S>) {
    claim(&t, "1", "a").await;
    assert_eq!(claim(&t, "1", "b").await, DedupeClaim::InFlight);
    assert_eq!(claim(&t, "2", "b").await, DedupeClaim::Claimed);
}

pub async fn an_owner_claims_again_and_extends_its_claim<S: Dedupe>(t: Backend<S>) {
    claim(&t, "1", "a").await;
    t.advance(secs(20));
    assert_eq!(claim(&t, "1", "a").await, DedupeClaim::Claimed);
    t.advance(secs(20));
    assert_eq!(claim(&t, "1", "b").await, DedupeClaim::InFlight);
}

pub async fn a_handled_message_is_done_for_every_owner<S: Dedupe>(t: Backend<S>) {
    claim(&t, "1", "a").await;
    done(&t, "1", "a").await;
    assert_eq!(claim(&t, "1", "a").await, DedupeClaim::Done);
    assert_eq!(claim(&t, "1", "b").await, DedupeClaim::Done);
}

pub async fn a_claim_whose_owner_died_expires<S: Dedupe>(t: Backend<S>) {
    // I1: `done` comes with the effect, never before it, so the message of a crashed owner is handled again.
    claim(&t, "1", "a").await;
    t.advance(LEASE - secs(1));
    assert_eq!(claim(&t, "1", "b").await, DedupeClaim::InFlight);
    t.advance(secs(1));
    assert_eq!(claim(&t, "1", "b").await, DedupeClaim::Claimed);
}

pub async fn an_abandoned_claim_may_be_taken_at_once<S: Dedupe>(t: Backend<S>) {
    claim(&t, "1", "a").await;
    abandon(&t, "1", "a").await;
    assert_eq!(claim(&t, "1", "b").await, DedupeClaim::Claimed);
}

pub async fn another_cannot_abandon_a_claim<S: Dedupe>(t: Backend<S>) {
    claim(&t, "1", "a").await;
    abandon(&t, "1", "b").await;
    assert_eq!(claim(&t, "1", "b").await, DedupeClaim::InFlight);
}

pub async fn what_is_done_cannot_be_abandoned<S: Dedupe>(t: Backend<S>) {
    claim(&t, "1", "a").await;
    done(&t, "1", "a").await;
    abandon(&t, "1", "a").await;
    assert_eq!(claim(&t, "1", "a").await, DedupeClaim::Done);
}

pub async fn what_is_done_is_remembered_for_the_window<S: Dedupe>(t: Backend<S>) {
    claim(&t, "1", "a").await;
    done(&t, "1", "a").await;
    t.advance(WINDOW - secs(1));
    assert_eq!(claim(&t, "1", "b").await, DedupeClaim::Done);
    t.advance(secs(1));
    assert_eq!(claim(&t, "1", "b").await, DedupeClaim::Claimed);
}

pub async fn an_effect_after_the_claim_expired_is_still_an_effect<S: Dedupe>(t: Backend<S>) {
    // The late owner has done it, so it must not be done again.
    claim(&t, "1", "a").await;
    t.advance(LEASE);
    done(&t, "1", "a").await;
    assert_eq!(claim(&t, "1", "b").await, DedupeClaim::Done);
}

pub async fn a_late_abandonment_does_not_take_the_claim_of_another<S: Dedupe>(t: Backend<S>) {
    claim(&t, "1", "a").await;
    t.advance(LEASE);
    claim(&t, "1", "b").await;
    abandon(&t, "1", "a").await;
    assert_eq!(claim(&t, "1", "c").await, DedupeClaim::InFlight);
}

pub async fn queues_remember_each_for_itself<S: Dedupe>(t: Backend<S>) {
    claim(&t, "1", "a").await;
    done(&t, "1", "a").await;
    let other = QueueName::of("orders", "other");
    assert_eq!(t.store.claim(&other, &"1".into(), "a", LEASE).await.unwrap(), DedupeClaim::Claimed);
}

pub async fn abandoning_what_was_never_claimed_is_no_error<S: Dedupe>(t: Backend<S>) {
    abandon(&t, "1", "a").await;
    assert_eq!(claim(&t, "1", "a").await, DedupeClaim::Claimed);
}

pub async fn of_many_concurrent_claims_one_succeeds<S: Dedupe>(t: Backend<S>) {
    let tries: Vec<_> = (0..20)
        .map(|n| {
            let store = t.store.clone();
            let owner = format!("w{n}");
            tokio::spawn(async move { store.claim(&queue(), &"1".into(), &owner, LEASE).await.unwrap() })
        })
        .collect();
    let mut claimed = 0;
    for one in tries {
        claimed += usize::from(one.await.unwrap() == DedupeClaim::Claimed);
    }
    assert_eq!(claimed, 1);
}

pub async fn a_clock_that_is_set_back_does_not_prolong_a_dead_claim<S: Dedupe>(t: Backend<S>) {
    claim(&t, "1", "dead").await;
    claim(&t, "2", "living").await;
    done(&t, "3", "handled").await;
    t.set_back(secs(3600));
    for id in ["1", "2"] {
        assert_eq!(
            claim(&t, id, "next").await,
            DedupeClaim::InFlight,
            "its owner may live, and renews in time"
        );
    }
    t.advance(LEASE / 2);
    assert_eq!(claim(&t, "2", "living").await, DedupeClaim::Claimed, "it is still its own");
    t.advance(LEASE / 2);
    assert_eq!(claim(&t, "1", "next").await, DedupeClaim::Claimed);
    assert_eq!(claim(&t, "2", "next").await, DedupeClaim::InFlight);
    assert_eq!(claim(&t, "3", "next").await, DedupeClaim::Done);
}

pub async fn a_clock_that_is_set_forward_ends_neither_marks_nor_claims<S: Dedupe>(t: Backend<S>) {
    claim(&t, "1", "a").await;
    done(&t, "1", "a").await;
    claim(&t, "2", "living").await;
    t.set_forward(WINDOW);
    assert_eq!(claim(&t, "1", "b").await, DedupeClaim::Done, "a copy that comes at once");
    assert_eq!(claim(&t, "2", "b").await, DedupeClaim::InFlight);
    // Other writes remove what has expired: nothing has.
    for id in 0..50 {
        claim(&t, &format!("other-{id}"), "c").await;
    }
    t.advance(LEASE / 2);
    assert_eq!(claim(&t, "2", "b").await, DedupeClaim::InFlight);
    assert_eq!(claim(&t, "2", "living").await, DedupeClaim::Claimed, "it is still its own");
    t.advance(LEASE - secs(1));
    assert_eq!(claim(&t, "2", "b").await, DedupeClaim::InFlight);
    t.advance(secs(1));
    assert_eq!(claim(&t, "2", "b").await, DedupeClaim::Claimed, "its owner died");
    t.advance(WINDOW - LEASE / 2 - LEASE - secs(1));
    assert_eq!(claim(&t, "1", "b").await, DedupeClaim::Done);
    t.advance(secs(1));
    assert_eq!(claim(&t, "1", "b").await, DedupeClaim::Claimed, "the window has passed");
}

pub async fn steps_of_the_clock_do_not_change_the_window<S: Dedupe>(t: Backend<S>) {
    claim(&t, "1", "a").await;
    done(&t, "1", "a").await;
    // Fifty steps of two hours or less, back and forth, a minute after each other, and the clock ends where it began.
    for step in 0..25 {
        let by = secs(3600 + step * 144);
        t.set_forward(by);
        t.advance(secs(60));
        assert_eq!(claim(&t, "1", "b").await, DedupeClaim::Done, "after {step} steps forward");
        t.set_back(by);
        t.advance(secs(60));
        assert_eq!(claim(&t, "1", "b").await, DedupeClaim::Done, "after {step} steps back");
    }
    t.set_back(WINDOW);
    t.advance(WINDOW - secs(25 * 120 + 1));
    assert_eq!(claim(&t, "1", "b").await, DedupeClaim::Done);
    t.advance(secs(1));
    assert_eq!(claim(&t, "1", "b").await, DedupeClaim::Claimed, "marks are not kept for ever");
}

pub async fn a_mark_of_a_wrong_clock_lasts_for_the_window<S: Dedupe>(t: Backend<S>) {
    // Marked while the clock is wrong, and corrected afterwards.
    claim(&t, "0", "a").await;
    t.set_back(WINDOW);
    t.advance(secs(60));
    done(&t, "1", "a").await;
    t.set_forward(WINDOW);
    t.advance(WINDOW - secs(1));
    assert_eq!(claim(&t, "1", "b").await, DedupeClaim::Done);
    t.advance(secs(1));
    assert_eq!(claim(&t, "1", "b").await, DedupeClaim::Claimed);
}
