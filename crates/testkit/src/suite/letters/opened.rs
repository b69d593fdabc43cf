//! What an owner's set of open sequences lives from: the K group of Axon's cache, as far as the store answers it.
//!
//! Axon asks the queue per event and caches "absent". Lazaret's engine holds the exact set of open sequences, fed by
//! `opened_since` at each assignment and corrected by the revisions in `NotOpen`. These cases show that the store
//! gives it enough to never be wrong in the direction that matters: never "absent" for a sequence that is open.

use lazaret_core::store::{Act, Placed, Store};

use super::fixture::{Fixture, operator, resolve};

async fn since<S: Store>(t: &Fixture<S>, revision: u64) -> (Vec<String>, u64) {
    let page = t.store.opened_since(&t.queue, revision, 100).await.unwrap();
    assert!(!page.more);
    let mut sequences: Vec<String> = page.sequences.iter().map(ToString::to_string).collect();
    sequences.sort();
    (sequences, page.revision)
}

pub async fn k01_an_empty_queue_has_no_open_sequence<S: Store>(t: Fixture<S>) {
    assert!(since(&t, 0).await.0.is_empty());
}

pub async fn k03_an_opened_sequence_is_listed<S: Store>(t: Fixture<S>) {
    let (_, revision) = since(&t, 0).await;
    t.enqueue("a", "1").await;
    let (sequences, later) = since(&t, revision).await;
    assert_eq!(sequences, ["a"]);
    assert!(later > revision);
}

pub async fn k05_an_append_opens_nothing_new<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    let (_, revision) = since(&t, 0).await;
    assert_eq!(t.behind(t.waiting("a", "2")).await, Placed::Appended);
    assert!(since(&t, revision).await.0.is_empty());
}

pub async fn k06_a_cleared_queue_has_no_open_sequence<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.enqueue("b", "2").await;
    t.store.clear(&t.queue, &operator()).await.unwrap();
    assert!(since(&t, 0).await.0.is_empty());
}

pub async fn k08_a_new_owner_is_told_every_open_sequence<S: Store>(t: Fixture<S>) {
    for (sequence, message) in [("a", "1"), ("b", "2"), ("c", "3")] {
        t.enqueue(sequence, message).await;
    }
    t.act("2", Act::Evict).await.unwrap();
    assert_eq!(since(&t, 0).await.0, ["a", "c"]);
}

pub async fn k12_not_open_names_a_revision_before_any_later_opening<S: Store>(t: Fixture<S>) {
    t.enqueue("other", "0").await;
    let Placed::NotOpen(revision) = t.behind(t.waiting("a", "1")).await else { panic!("a is not open") };
    assert!(since(&t, revision).await.0.is_empty(), "what is open at that moment is at or below it");
    t.enqueue("a", "2").await;
    assert_eq!(since(&t, revision).await.0, ["a"]);
}

pub async fn k13_a_sequence_opened_by_another_owner_is_listed<S: Store>(t: Fixture<S>) {
    t.enqueue("mine", "1").await;
    let (_, revision) = since(&t, 0).await;
    t.enqueue("theirs", "2").await;
    assert_eq!(since(&t, revision).await.0, ["theirs"]);
}

pub async fn k14_many_open_sequences_come_in_pages<S: Store>(t: Fixture<S>) {
    let mut expected: Vec<String> = (0..25).map(|n| format!("s{n:02}")).collect();
    for name in &expected {
        t.enqueue(name, name).await;
    }
    let mut listed = t.opened(4).await;
    listed.sort();
    listed.dedup();
    expected.sort();
    assert_eq!(listed, expected);
}

pub async fn k37_a_closed_sequence_is_not_told_to_a_new_owner<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    let claim = t.claim("a", "w").await.unwrap();
    t.settle(&claim, &claim.head, resolve()).await.unwrap();
    assert!(since(&t, 0).await.0.is_empty());
    assert!(matches!(t.behind(t.waiting("a", "2")).await, Placed::NotOpen(_)));
}

pub async fn k39_a_sequence_that_was_opened_again_is_told_again<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    let (_, revision) = since(&t, 0).await;
    t.act("1", Act::Resolve).await.unwrap();
    t.enqueue("a", "2").await;
    let (sequences, later) = since(&t, revision).await;
    assert_eq!(sequences, ["a"]);
    assert!(since(&t, later).await.0.is_empty());
}

pub async fn k64_a_restored_sequence_is_told_like_an_opened_one<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.act("1", Act::Evict).await.unwrap();
    let (sequences, revision) = since(&t, 0).await;
    assert!(sequences.is_empty());
    t.act("1", Act::Restore).await.unwrap();
    assert_eq!(since(&t, revision).await.0, ["a"]);
}

pub async fn k65_the_revision_of_one_queue_says_nothing_about_another<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    let other = t.store.opened_since(&"other/other".into(), 0, 10).await.unwrap();
    assert!(other.sequences.is_empty() && !other.more);
}
