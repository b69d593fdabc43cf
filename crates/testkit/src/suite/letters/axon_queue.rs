//! The queue contract of Axon's sequenced dead-letter queue, Q1 to Q38, on Lazaret's contract.

use lazaret_core::store::{Act, ErrorKind, Lease, Limits, Placed, Placement, Requeue, Store};
use lazaret_core::{Letter, LetterState};

use super::fixture::{Fixture, LEASE, fail_again, failure, ids, kind, operator, requeued, resolve, seq};
use crate::suite::secs;

const FOUR: Limits = Limits { max_sequences: Some(4), max_sequence_size: Some(4) };

pub async fn q01_an_enqueued_letter_is_contained_and_comes_back_as_it_was<S: Store>(t: Fixture<S>) {
    let letter = t.dead("a", "1");
    assert_eq!(t.open(letter.clone()).await, Placed::Opened);
    assert!(t.contains("a").await);
    let stored = t.list("a").await;
    // The index is the store's own.
    assert_eq!(stored, [Letter { index: stored[0].index, ..letter }]);
}

pub async fn q02_a_new_sequence_beyond_the_limit_overflows<S: Store>(t: Fixture<S>) {
    for n in 0..4 {
        t.try_put(t.dead(&format!("s{n}"), &n.to_string()), Placement::Open, &FOUR).await.unwrap();
    }
    assert_eq!(kind(t.try_put(t.dead("new", "x"), Placement::Open, &FOUR).await), ErrorKind::Full);
    assert!(!t.contains("new").await);
}

pub async fn q03_a_letter_beyond_the_size_of_its_sequence_overflows<S: Store>(t: Fixture<S>) {
    t.fill("a", 4).await;
    assert_eq!(kind(t.try_put(t.dead("a", "x"), Placement::Open, &FOUR).await), ErrorKind::Full);
    assert_eq!(t.size("a").await, 4);
}

pub async fn q04_a_follower_beyond_the_size_of_its_sequence_overflows<S: Store>(t: Fixture<S>) {
    t.fill("a", 4).await;
    assert_eq!(kind(t.try_put(t.waiting("a", "x"), Placement::Behind, &FOUR).await), ErrorKind::Full);
    assert_eq!(t.size("a").await, 4);
}

pub async fn q05_a_follower_of_an_absent_sequence_is_not_stored<S: Store>(t: Fixture<S>) {
    assert!(matches!(t.behind(t.waiting("a", "1")).await, Placed::NotOpen(_)));
    assert!(!t.contains("a").await);
}

pub async fn q06_a_follower_of_another_sequence_is_not_stored<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    assert!(matches!(t.behind(t.waiting("b", "2")).await, Placed::NotOpen(_)));
    assert!(t.contains("a").await);
    assert!(!t.contains("b").await);
}

pub async fn q07_a_follower_stands_behind_its_head<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "first").await;
    assert_eq!(t.behind(t.waiting("a", "second")).await, Placed::Appended);
    assert_eq!(t.messages("a").await, ["first", "second"]);
}

/// Axon ignores an eviction that finds nothing. Here an operator asked for it, and gets an error.
pub async fn q08_evicting_a_letter_of_an_unknown_sequence_changes_nothing<S: Store>(t: Fixture<S>) {
    let letter = t.enqueue("a", "1").await;
    assert_eq!(kind(t.act("unknown", Act::Evict).await), ErrorKind::NotFound);
    assert_eq!(t.list("a").await, [letter]);
}

pub async fn q09_evicting_an_unknown_letter_changes_nothing<S: Store>(t: Fixture<S>) {
    let letter = t.enqueue("a", "1").await;
    // The same message in another queue is another letter.
    let elsewhere = t.store.act(&"other/other".into(), letter.id, Act::Evict, &operator()).await;
    assert_eq!(kind(elsewhere), ErrorKind::NotFound);
    assert_eq!(t.list("a").await, [letter]);
}

pub async fn q10_evicting_the_last_letter_closes_its_sequence<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.act("1", Act::Evict).await.unwrap();
    assert!(!t.contains("a").await);
    assert!(t.heads(10).await.is_empty());
}

/// Axon fails with "no such letter". Here only the holder of a lease requeues, and there is nothing to lease.
pub async fn q11_requeueing_in_an_empty_queue_is_refused<S: Store>(t: Fixture<S>) {
    let letter = t.dead("a", "1");
    let lease = Lease {
        queue: t.queue.clone(),
        sequence: seq("a"),
        owner: "w".into(),
        fence: 1,
        until: t.now() + secs(30),
    };
    assert_eq!(kind(t.store.settle(&lease, letter.id, fail_again(&letter)).await), ErrorKind::Fenced);
    assert!(!t.contains("a").await);
}

pub async fn q12_requeueing_another_letter_is_refused<S: Store>(t: Fixture<S>) {
    let letter = t.enqueue("a", "1").await;
    let claim = t.claim("a", "w").await.unwrap();
    let other = t.dead("a", "other");
    assert_eq!(kind(t.settle(&claim, &other, fail_again(&other)).await), ErrorKind::NotFound);
    assert_eq!(t.list("a").await, [letter]);
}

pub async fn q13_a_requeue_stores_the_cause_and_touches_the_letter<S: Store>(t: Fixture<S>) {
    let mut letter = t.dead("a", "1");
    letter.context.insert("token".into(), "t-1".into());
    t.open(letter).await;
    let before = t.get("1").await;
    t.advance(secs(60));
    let claim = t.claim("a", "w").await.unwrap();
    let mut requeue = Requeue::of(&before);
    requeue.cause = Some(failure("worse"));
    t.settle(&claim, &before, requeued(requeue)).await.unwrap();
    let after = t.get("1").await;
    assert_eq!(after.cause, Some(failure("worse")));
    assert_eq!((after.enqueued_at, after.last_touched_at), (before.enqueued_at, t.now()));
    assert_eq!((after.index, after.context), (before.index, before.context));
}

pub async fn q14_only_the_sequence_of_a_letter_is_contained<S: Store>(t: Fixture<S>) {
    assert!(!t.contains("a").await && !t.contains("b").await);
    t.enqueue("a", "1").await;
    assert!(t.contains("a").await && !t.contains("b").await);
}

pub async fn q15_a_sequence_lists_nothing_until_a_letter_comes<S: Store>(t: Fixture<S>) {
    assert!(t.list("a").await.is_empty());
    let letter = t.enqueue("a", "1").await;
    assert_eq!(t.list("a").await, [letter]);
}

pub async fn q16_a_sequence_lists_its_letters_in_the_order_they_came<S: Store>(t: Fixture<S>) {
    let names: Vec<String> = (0..64).map(|n| format!("m{n}")).collect();
    for name in &names {
        t.enqueue("a", name).await;
    }
    assert_eq!(t.messages("a").await, names);
}

pub async fn q17_letters_that_came_alternately_are_listed_by_sequence<S: Store>(t: Fixture<S>) {
    for (sequence, message) in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("b", "b2")] {
        t.enqueue(sequence, message).await;
    }
    let heads = t.heads(10).await;
    assert_eq!(heads.len(), 2);
    assert_eq!(t.messages("a").await, ["a1", "a2"]);
    assert_eq!(t.messages("b").await, ["b1", "b2"]);
}

pub async fn q18_a_queue_with_all_its_sequences_is_full_for_a_new_one<S: Store>(t: Fixture<S>) {
    assert!(!t.store.is_full(&t.queue, &seq("new"), &FOUR).await.unwrap());
    for n in 0..4 {
        t.enqueue(&format!("s{n}"), &n.to_string()).await;
    }
    assert!(t.store.is_full(&t.queue, &seq("new"), &FOUR).await.unwrap());
    assert!(!t.store.is_full(&t.queue, &seq("new"), &Limits::NONE).await.unwrap());
}

pub async fn q19_a_sequence_with_all_its_letters_is_full<S: Store>(t: Fixture<S>) {
    assert!(!t.store.is_full(&t.queue, &seq("a"), &FOUR).await.unwrap());
    t.fill("a", 4).await;
    assert!(t.store.is_full(&t.queue, &seq("a"), &FOUR).await.unwrap());
    assert!(!t.store.is_full(&t.queue, &seq("a"), &Limits::NONE).await.unwrap());
}

pub async fn q20_the_size_counts_all_letters<S: Store>(t: Fixture<S>) {
    assert_eq!(t.store.counts(&t.queue).await.unwrap().open(), 0);
    for (expected, (sequence, message)) in [("a", "1"), ("a", "2"), ("b", "3")].into_iter().enumerate() {
        t.enqueue(sequence, message).await;
        assert_eq!(t.store.counts(&t.queue).await.unwrap().open(), expected as u64 + 1);
    }
}

pub async fn q21_the_size_of_a_sequence_counts_only_its_letters<S: Store>(t: Fixture<S>) {
    for (sequence, message, expected) in [("a", "1", 1), ("a", "2", 2), ("b", "3", 2)] {
        t.enqueue(sequence, message).await;
        assert_eq!((t.size("a").await, t.size("unknown").await), (expected, 0));
    }
}

pub async fn q22_the_number_of_sequences_counts_each_once<S: Store>(t: Fixture<S>) {
    let sequences = async || t.store.counts(&t.queue).await.unwrap().sequences;
    assert_eq!(sequences().await, 0);
    for (sequence, message, expected) in
        [("a", "1", 1), ("b", "2", 2), ("c", "3", 3), ("c", "4", 3), ("c", "5", 3)]
    {
        t.enqueue(sequence, message).await;
        assert_eq!(sequences().await, expected);
    }
}

pub async fn q23_an_empty_queue_gives_no_work<S: Store>(t: Fixture<S>) {
    assert_eq!(t.process_all().await, (false, vec![]));
    assert!(t.claim("a", "w").await.is_none());
    assert!(t.due("w", 10).await.is_empty());
}

pub async fn q24_a_letter_that_was_handled_leaves_and_closes_its_sequence<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    assert_eq!(t.process_all().await, (true, vec!["1".into()]));
    assert!(!t.contains("a").await);
    // What left is not gone: it is known as resolved (I8, I11).
    assert_eq!(t.state("1").await, LetterState::Resolved);
}

/// Axon converts payloads on the way in and out. Here bytes stay bytes (I5).
pub async fn q25_the_payload_comes_back_byte_for_byte<S: Store>(t: Fixture<S>) {
    let mut letter = t.dead("a", "1");
    let mut message = (*letter.message).clone();
    let every_byte: Vec<u8> = (0..=255).collect();
    message.payload = Some(every_byte.clone().into());
    message.headers.push("binary", every_byte.clone());
    message.headers.push("empty", "");
    message.headers.push_null("null");
    letter.message = message.clone().into();
    t.open(letter).await;
    let claim = t.claim("a", "w").await.unwrap();
    assert_eq!(*claim.head.message, message);
    t.settle(&claim, &claim.head, resolve()).await.unwrap();
    assert!(!t.contains("a").await);
}

pub async fn q26_a_letter_that_failed_again_stays_with_its_new_cause_and_diagnostics<S: Store>(
    t: Fixture<S>,
) {
    let mut letter = t.dead("a", "1");
    letter.context.insert("token".into(), "t-1".into());
    t.open(letter).await;
    t.advance(secs(5));
    let done = t.process(
        |_| true,
        |letter| {
            let mut requeue = Requeue::of(letter);
            requeue.cause = Some(failure("x"));
            requeue.diagnostics = [("retries".to_owned(), "1".to_owned())].into();
            requeued(requeue)
        },
    );
    assert!(!done.await);
    let stored = t.get("1").await;
    assert_eq!(stored.cause, Some(failure("x")));
    assert_eq!(stored.diagnostics["retries"], "1");
    assert_eq!(stored.context["token"], "t-1");
    assert_eq!(stored.last_touched_at, t.now());
    assert!(t.contains("a").await);
}

pub async fn q27_the_oldest_touched_sequence_comes_first<S: Store>(t: Fixture<S>) {
    t.enqueue("b", "older").await;
    t.advance(secs(5));
    t.enqueue("a", "newer").await;
    assert_eq!(t.process_all().await, (true, vec!["older".into()]));
    assert_eq!(t.process_all().await, (true, vec!["newer".into()]));
}

pub async fn q28_a_run_works_down_one_sequence_and_leaves_the_others<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "a1").await;
    t.behind(t.waiting("a", "a2")).await;
    t.behind(t.waiting("a", "a3")).await;
    t.advance(secs(5));
    t.enqueue("b", "b1").await;
    assert_eq!(t.process_all().await, (true, vec!["a1".into(), "a2".into(), "a3".into()]));
    assert_eq!(t.messages("b").await, ["b1"]);
}

pub async fn q29_a_long_sequence_is_worked_down_in_order<S: Store>(t: Fixture<S>) {
    t.fill("a", 124).await;
    let expected: Vec<String> = (0..124).map(|n| format!("a-{n}")).collect();
    assert_eq!(t.process_all().await, (true, expected));
}

pub async fn q30_a_sequence_in_work_is_not_given_to_a_second_worker<S: Store>(t: Fixture<S>) {
    // I6
    t.enqueue("a", "1").await;
    let first = t.claim("a", "first").await.unwrap();
    assert_eq!(t.process_all().await, (false, vec![]));
    assert!(t.claim("a", "second").await.is_none());
    t.settle(&first, &first.head, resolve()).await.unwrap();
    assert!(!t.contains("a").await);
}

pub async fn q31_a_filter_that_fits_nothing_gives_no_work<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.enqueue("b", "2").await;
    assert!(!t.process(|_| false, |_| panic!("no letter fits")).await);
}

pub async fn q32_a_filter_that_fits_nothing_leaves_every_sequence<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.enqueue("b", "2").await;
    assert!(!t.process(|_| false, |_| panic!("no letter fits")).await);
    assert!(t.contains("a").await && t.contains("b").await);
    assert_eq!(t.store.counts(&t.queue).await.unwrap().sequences, 2);
}

pub async fn q33_a_filter_picks_its_own_sequence<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.enqueue("b", "2").await;
    for wanted in ["2", "1"] {
        let mut seen = Vec::new();
        let done = t.process(
            |head| head.message.id.as_str() == wanted,
            |letter| {
                seen.push(letter.message.id.to_string());
                resolve()
            },
        );
        assert!(done.await);
        assert_eq!(seen, [wanted]);
    }
}

pub async fn q34_a_filter_leaves_what_it_did_not_pick<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.enqueue("b", "2").await;
    assert!(t.process(|head| head.sequence == seq("a"), |_| resolve()).await);
    assert!(!t.contains("a").await);
    assert_eq!(ids(&t.heads(10).await), ["2"]);
}

pub async fn q35_a_filter_sees_the_head_and_the_run_takes_the_whole_sequence<S: Store>(t: Fixture<S>) {
    t.enqueue("b", "b1").await;
    t.fill("a", 3).await;
    let mut seen = Vec::new();
    let done = t.process(
        |head| head.message.id.as_str() == "a-0",
        |letter| {
            seen.push(letter.message.id.to_string());
            resolve()
        },
    );
    assert!(done.await);
    assert_eq!(seen, ["a-0", "a-1", "a-2"]);
    assert!(t.contains("b").await);
}

pub async fn q36_a_picked_letter_that_fails_again_stays<S: Store>(t: Fixture<S>) {
    t.enqueue("b", "b1").await;
    t.enqueue("a", "a1").await;
    t.advance(secs(1));
    let done = t.process(
        |head| head.sequence == seq("a"),
        |letter| {
            let mut requeue = Requeue::of(letter);
            requeue.cause = Some(failure("x"));
            requeued(requeue)
        },
    );
    assert!(!done.await);
    let stored = t.get("a1").await;
    assert_eq!((stored.cause, stored.last_touched_at), (Some(failure("x")), t.now()));
    assert!(t.contains("a").await && t.contains("b").await);
}

pub async fn q37_a_picked_sequence_in_work_is_not_given_to_a_second_worker<S: Store>(t: Fixture<S>) {
    // I6
    t.enqueue("a", "1").await;
    let _first = t.store.claim(&t.queue, &seq("a"), "first", LEASE).await.unwrap().unwrap();
    assert!(!t.process(|head| head.sequence == seq("a"), |_| panic!("it is leased")).await);
}

pub async fn q38_clearing_leaves_no_sequence<S: Store>(t: Fixture<S>) {
    for (sequence, message) in [("a", "1"), ("b", "2"), ("c", "3")] {
        t.enqueue(sequence, message).await;
    }
    let cleared = t.store.clear(&t.queue, &operator()).await.unwrap();
    assert_eq!((cleared.evicted, cleared.busy), (3, 0));
    for sequence in ["a", "b", "c"] {
        assert!(!t.contains(sequence).await);
    }
    // Axon deletes. Here clearing evicts, which can be taken back (I11).
    assert_eq!(t.state("1").await, LetterState::Evicted);
}
