//! Cases that Axon's suite lacks and Axon would fail: the X group.

use lazaret_core::store::{
    Act, Cleared, ErrorKind, Limits, Placed, Placement, Requeue, Settled, Settlement, Store,
};
use lazaret_core::{LetterState, SequenceId};

use super::fixture::{Fixture, LEASE, fail_again, ids, kind, operator, requeued, resolve, seq};
use crate::suite::secs;

pub async fn x01_after_its_lease_ended_a_sequence_may_be_taken_by_another<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.claim("a", "first").await.unwrap();
    assert!(t.claim("a", "second").await.is_none());
    t.advance(LEASE);
    assert!(t.claim("a", "second").await.is_some());
}

pub async fn x03_a_worker_that_lost_its_lease_stops_before_the_next_letter<S: Store>(t: Fixture<S>) {
    // I6: Axon ignores a lost claim on the next letter, and two workers run concurrently.
    t.fill("a", 3).await;
    let first = t.claim("a", "first").await.unwrap();
    let Settled::Next(next) = t.settle(&first, &first.head, resolve()).await.unwrap() else {
        panic!("two are left")
    };
    t.advance(LEASE);
    let second = t.claim("a", "second").await.unwrap();
    assert_eq!(second.head.message.id.as_str(), "a-1");
    assert_eq!(kind(t.settle(&first, &next, resolve()).await), ErrorKind::Fenced);
    assert_eq!(t.messages("a").await, ["a-1", "a-2"]);
}

pub async fn x04_a_worker_that_gives_up_frees_the_sequence_at_once<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    let first = t.claim("a", "first").await.unwrap();
    t.store.release(&first.lease).await.unwrap();
    assert!(t.claim("a", "second").await.is_some());
}

pub async fn x07_a_requeue_leaves_the_letters_behind_untouched_and_in_order<S: Store>(t: Fixture<S>) {
    t.fill("a", 3).await;
    let before = t.list("a").await;
    t.advance(secs(60));
    assert!(!t.process(|_| true, fail_again).await);
    let after = t.list("a").await;
    assert_eq!(ids(&after), ["a-0", "a-1", "a-2"]);
    assert_eq!(after[0].last_touched_at, t.now());
    assert_eq!(after[1..], before[1..]);
}

pub async fn x08_a_requeued_sequence_goes_behind_those_touched_before_it<S: Store>(t: Fixture<S>) {
    for n in 0..5 {
        t.enqueue(&format!("s{n}"), &n.to_string()).await;
        t.advance(secs(1));
    }
    let mut seen = Vec::new();
    for _ in 0..10 {
        t.advance(secs(1));
        let run = t.process(
            |_| true,
            |letter| {
                seen.push(letter.message.id.to_string());
                fail_again(letter)
            },
        );
        assert!(!run.await);
    }
    assert_eq!(seen.concat(), "0123401234", "a rotation over five sequences takes five runs");
}

pub async fn x09_a_requeue_without_a_cause_keeps_the_old_one_and_touches_the_letter<S: Store>(t: Fixture<S>) {
    let before = t.enqueue("a", "1").await;
    t.advance(secs(3));
    assert!(!t.process(|_| true, fail_again).await);
    let after = t.get("1").await;
    assert_eq!((after.cause, after.diagnostics), (before.cause, before.diagnostics));
    assert_eq!(after.last_touched_at, t.now());
}

pub async fn x11_a_match_behind_many_older_sequences_is_found<S: Store>(t: Fixture<S>) {
    for n in 0..40 {
        t.enqueue(&format!("s{n}"), &n.to_string()).await;
        t.advance(secs(1));
    }
    let mut seen = Vec::new();
    let run = t.process(
        |head| head.sequence == seq("s39"),
        |letter| {
            seen.push(letter.message.id.to_string());
            resolve()
        },
    );
    assert!(run.await);
    assert_eq!(seen, ["39"]);
}

pub async fn x12_a_long_sequence_is_listed_in_pages_without_gaps_or_repetitions<S: Store>(t: Fixture<S>) {
    t.fill("a", 250).await;
    // Heads with large indexes must page as well as those with small ones.
    for n in 0..120 {
        t.act(&format!("a-{n}"), Act::Evict).await.unwrap();
    }
    let (mut listed, mut from) = (Vec::new(), 0);
    loop {
        let page = t.store.sequence(&t.queue, &seq("a"), from, 100).await.unwrap();
        let Some(last) = page.last() else { break };
        from = last.index + 1;
        assert!(page.len() <= 100);
        listed.extend(page.iter().map(|letter| letter.message.id.to_string()));
    }
    let expected: Vec<String> = (120..250).map(|n| format!("a-{n}")).collect();
    assert_eq!(listed, expected);
}

pub async fn x13_a_sequence_of_the_largest_size_is_worked_down_to_its_end<S: Store>(t: Fixture<S>) {
    t.fill("a", 1024).await;
    assert!(t.store.is_full(&t.queue, &seq("a"), &Limits::STRICT).await.unwrap());
    let (done, seen) = t.process_all().await;
    assert!(done);
    assert_eq!(seen.len(), 1024);
}

pub async fn x14_two_appends_to_one_new_sequence_are_both_stored<S: Store>(t: Fixture<S>) {
    let put = |message: &str| {
        let (store, queue, letter) = (t.store.clone(), t.queue.clone(), t.dead("a", message));
        tokio::spawn(async move {
            let items =
                vec![lazaret_core::store::HandOff { letter, placement: Placement::Open, grant: None }];
            store.hand_off(&queue, &Limits::NONE, items).await.unwrap().remove(0).unwrap()
        })
    };
    let (one, two) = (put("1"), put("2"));
    let mut placed = [one.await.unwrap(), two.await.unwrap()];
    placed.sort_by_key(|placed| *placed == Placed::Appended);
    assert_eq!(placed, [Placed::Opened, Placed::Appended]);
    let letters = t.list("a").await;
    assert_eq!(letters.len(), 2);
    assert!(letters[0].index < letters[1].index);
}

pub async fn x16_sequences_whose_names_look_alike_are_kept_apart<S: Store>(t: Fixture<S>) {
    // "Aa" and "BB" share a hash in Java, case and blanks matter, and "" is a name like any other.
    let names = ["Aa", "BB", "42", "042", "a", "A", "a ", " a", "", "ä", "a\u{308}", "a/b", "a%2Fb", "日本"];
    for (n, name) in names.iter().enumerate() {
        assert_eq!(t.open(t.dead(name, &n.to_string())).await, Placed::Opened, "{name:?}");
    }
    for (n, name) in names.iter().enumerate() {
        assert_eq!(t.messages(name).await, [n.to_string()], "{name:?}");
    }
    let mut heads: Vec<SequenceId> = t.heads(3).await.into_iter().map(|head| head.sequence).collect();
    heads.sort();
    let mut expected: Vec<SequenceId> = names.iter().map(|name| seq(name)).collect();
    expected.sort();
    assert_eq!(heads, expected);
}

pub async fn x18_a_queue_with_all_its_sequences_still_takes_followers<S: Store>(t: Fixture<S>) {
    let limits = Limits { max_sequences: Some(2), max_sequence_size: Some(10) };
    t.enqueue("a", "1").await;
    t.enqueue("b", "2").await;
    assert_eq!(t.try_put(t.waiting("a", "3"), Placement::Behind, &limits).await.unwrap(), Placed::Appended);
    assert_eq!(t.try_put(t.dead("b", "4"), Placement::Open, &limits).await.unwrap(), Placed::Appended);
    assert_eq!(kind(t.try_put(t.dead("c", "5"), Placement::Open, &limits).await), ErrorKind::Full);
}

/// Axon's `clear` deletes letters that are in work. Here a leased head stays with its worker.
pub async fn x19_clearing_leaves_a_worker_its_head_and_the_worker_ends_quietly<S: Store>(t: Fixture<S>) {
    t.fill("a", 3).await;
    t.enqueue("b", "b1").await;
    let claim = t.claim("a", "w").await.unwrap();
    let cleared = t.store.clear(&t.queue, &operator()).await.unwrap();
    assert_eq!(cleared, Cleared { evicted: 3, busy: 1 });
    assert_eq!(t.messages("a").await, ["a-0"]);
    assert!(matches!(t.settle(&claim, &claim.head, resolve()).await.unwrap(), Settled::Closed));
    assert_eq!(t.store.counts(&t.queue).await.unwrap().open(), 0);
    assert_eq!((t.state("a-0").await, t.state("a-1").await), (LetterState::Resolved, LetterState::Evicted));
}

/// In Axon a letter in the middle can be requeued, and in memory it jumps to the front. Here only heads are settled,
/// and what a person does to a letter in the middle leaves it in its place.
pub async fn x23_a_letter_in_the_middle_keeps_its_place<S: Store>(t: Fixture<S>) {
    t.fill("a", 3).await;
    let claim = t.claim("a", "w").await.unwrap();
    let middle = t.get("a-1").await;
    let mut requeue = Requeue::of(&middle);
    requeue.state = LetterState::Parked;
    assert_eq!(kind(t.settle(&claim, &middle, requeued(requeue)).await), ErrorKind::NotFound);
    assert_eq!(kind(t.settle(&claim, &middle, Settlement::Skip("no".into())).await), ErrorKind::NotFound);
    t.act("a-1", Act::Park).await.unwrap();
    let letters = t.list("a").await;
    assert_eq!(ids(&letters), ["a-0", "a-1", "a-2"]);
    assert_eq!(letters[1].state, LetterState::Parked);
}
