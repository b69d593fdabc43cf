//! Listing and counting.

use lazaret_core::store::{Act, ErrorKind, LeaseUse, Settlement, Store};
use lazaret_core::{LetterState, SequenceId};

use super::fixture::{Fixture, fail_again, ids, kind, resolve, seq};
use crate::suite::secs;

pub async fn the_heads_come_oldest_touched_first<S: Store>(t: Fixture<S>) {
    for message in ["c", "a", "b"] {
        t.enqueue(message, message).await;
        t.advance(secs(1));
    }
    assert_eq!(ids(&t.heads(10).await), ["c", "a", "b"]);
    let claim = t.claim("c", "w").await.unwrap();
    t.settle(&claim, &claim.head, fail_again(&claim.head)).await.unwrap();
    assert_eq!(ids(&t.heads(10).await), ["a", "b", "c"]);
}

pub async fn paging_finds_every_sequence_exactly_once<S: Store>(t: Fixture<S>) {
    // Many heads share one time of touch, and a page may end in the middle of them.
    for n in 0..53 {
        t.enqueue(&format!("s{n}"), &format!("m{n}")).await;
        if n % 10 == 0 {
            t.advance(secs(1));
        }
    }
    for page in [1, 7, 53, 100] {
        let heads = t.heads(page).await;
        assert!(heads.windows(2).all(|pair| pair[0].last_touched_at <= pair[1].last_touched_at));
        let mut sequences: Vec<SequenceId> = heads.into_iter().map(|head| head.sequence).collect();
        sequences.sort();
        sequences.dedup();
        assert_eq!(sequences.len(), 53, "in pages of {page}");
    }
}

pub async fn only_heads_are_listed<S: Store>(t: Fixture<S>) {
    t.fill("a", 5).await;
    t.fill("b", 5).await;
    assert_eq!(t.heads(10).await.len(), 2);
    t.act("a-0", Act::Evict).await.unwrap();
    let mut heads: Vec<String> = t.heads(10).await.iter().map(|head| head.message.id.to_string()).collect();
    heads.sort();
    assert_eq!(heads, ["a-1", "b-0"]);
}

pub async fn a_cursor_that_makes_no_sense_is_refused<S: Store>(t: Fixture<S>) {
    assert_eq!(kind(t.store.heads(&t.queue, Some("no cursor of mine"), 10).await), ErrorKind::Invalid);
}

pub async fn a_sequence_is_listed_from_an_index_on<S: Store>(t: Fixture<S>) {
    t.fill("a", 5).await;
    let all = t.list("a").await;
    let some = t.store.sequence(&t.queue, &seq("a"), all[2].index, 2).await.unwrap();
    assert_eq!(ids(&some), ["a-2", "a-3"]);
    assert!(t.store.sequence(&t.queue, &seq("a"), all[4].index + 1, 2).await.unwrap().is_empty());
}

pub async fn closed_letters_are_not_listed_but_can_be_read<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    t.act("a-0", Act::Resolve).await.unwrap();
    assert_eq!(t.messages("a").await, ["a-1"]);
    assert_eq!(t.state("a-0").await, LetterState::Resolved);
}

pub async fn the_counts_follow_every_change<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "a1", secs(0))).await;
    t.behind(t.waiting("a", "a2")).await;
    t.enqueue("b", "b1").await;
    t.enqueue("c", "c1").await;
    t.act("b1", Act::Park).await.unwrap();
    t.act("c1", Act::Evict).await.unwrap();
    let claim = t.due_one("w").await;
    t.settle(&claim, &claim.head, resolve()).await.unwrap();
    let next = t.get("a2").await;
    t.settle(&claim, &next, Settlement::Skip("x".into())).await.unwrap();
    let counts = t.store.counts(&t.queue).await.unwrap();
    assert_eq!((counts.sequences, counts.open()), (1, 1));
    let of = |state| counts.of(state);
    assert_eq!(
        [LetterState::Parked, LetterState::Resolved, LetterState::Skipped, LetterState::Evicted].map(of),
        [1, 1, 1, 1]
    );
    assert_eq!([LetterState::Retrying, LetterState::Dead, LetterState::Waiting].map(of), [0, 0, 0]);
}

pub async fn leases_change_no_letter<S: Store>(t: Fixture<S>) {
    let before = t.enqueue("a", "1").await;
    t.advance(secs(1));
    let claim = t.claim("a", "w").await.unwrap();
    t.store.renew(&claim.lease, secs(60), LeaseUse::Attempt).await.unwrap();
    t.store.release(&claim.lease).await.unwrap();
    assert_eq!(t.get("1").await, before);
}

pub async fn the_audit_is_verified_where_the_store_says_so<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.act("1", Act::Evict).await.unwrap();
    let entries = t.store.audit(0, 100).await.unwrap();
    let check = t.store.verify_audit().await.unwrap();
    assert_eq!(check.is_some(), t.store.capabilities().await.unwrap().audit_chain);
    if let Some(check) = check {
        assert_eq!((check.intact, check.broken), (entries.len() as u64, None));
    }
}
