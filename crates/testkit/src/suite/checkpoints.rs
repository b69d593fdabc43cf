//! Cases for checkpoints: FlowWarden's contract (2.2), and what it leaves out.

#![allow(missing_docs, reason = "the name of a case is its sentence")]

use bytes::Bytes;
use lazaret_core::Timestamp;
use lazaret_core::store::{Anchor, Checkpoint, Checkpoints, Reset};

use super::{Backend, secs};

/// Makes one test per case of the checkpoint contract, in a module of this name.
///
/// ```
/// use lazaret_memory::MemoryStore;
/// lazaret_testkit::checkpoints_test_suite!(memory, |clock| async move { MemoryStore::new(clock) });
/// ```
///
/// A backend that waits for the network or the disk takes `io`, as in
/// [`store_test_suite!`](crate::store_test_suite).
#[macro_export]
macro_rules! checkpoints_test_suite {
    ($name:ident, $make:expr) => {
        $crate::__checkpoints_test_suite! { $name, [start_paused = true], $make }
    };
    ($name:ident, io, $make:expr) => {
        $crate::__checkpoints_test_suite! { $name, [], $make }
    };
    ($name:ident, io, $make:expr, if $ready:path) => {
        $crate::__checkpoints_test_suite! { $name, [], $make, $ready }
    };
}

/// The list of cases. Not for direct use.
#[doc(hidden)]
#[macro_export]
macro_rules! __checkpoints_test_suite {
    ($name:ident, $runtime:tt, $make:expr) => {
        $crate::__checkpoints_test_suite! { $name, $runtime, $make, $crate::suite::always }
    };
    ($name:ident, $runtime:tt, $make:expr, $ready:path) => {
        $crate::__suite! {
            $name, $runtime, $make, $crate::suite::Backend::new, $ready;
            checkpoints {
                fw01_a_full_checkpoint_comes_back_as_it_was
                fw02_saving_again_replaces_the_whole
                fw03_an_unknown_name_has_no_checkpoint
                fw04_a_deleted_checkpoint_is_gone
                fw05_deleting_what_is_not_there_is_no_error
                fw06_the_seen_anchor_is_written_alone
                fw07_the_processed_anchor_is_written_alone
                fw08_a_seen_anchor_makes_a_checkpoint
                fw09_a_processed_anchor_makes_a_checkpoint
                fw10_a_heartbeat_comes_back_as_it_was
                fw11_an_anchor_and_its_heartbeat_are_written_together
                fw12_the_heartbeat_is_written_alone
                fw13_a_heartbeat_makes_a_checkpoint
                fw14_an_anchor_without_a_heartbeat_keeps_the_old_one
                fw15_a_reset_begins_at_the_fresh_place
                fw16_a_reset_keeps_a_place_that_is_newer_than_the_dead_one
                fw17_a_reset_without_a_fresh_place_clears_the_anchors
                fw18_a_reset_makes_a_checkpoint
                names_are_independent
                a_token_comes_back_byte_for_byte
                two_writers_of_different_anchors_undo_nothing
            }
        }
    };
}

fn anchor<S>(t: &Backend<S>, token: &str, second: u64) -> Anchor {
    Anchor { token: Bytes::from(token.to_owned()), at: t.now() + secs(second) }
}

fn full<S>(t: &Backend<S>) -> Checkpoint {
    Checkpoint {
        processed: Some(anchor(t, "p1", 1)),
        seen: Some(anchor(t, "s1", 2)),
        heartbeat: Some(t.now() + secs(3)),
        instance: Some("pod-1".into()),
        metadata: [("k".to_owned(), "v".to_owned())].into(),
    }
}

async fn saved<S: Checkpoints>(t: &Backend<S>) -> Checkpoint {
    t.store.save("orders", full(t)).await.unwrap();
    full(t)
}

async fn load<S: Checkpoints>(t: &Backend<S>) -> Checkpoint {
    t.store.load("orders").await.unwrap().expect("there is a checkpoint")
}

pub async fn fw01_a_full_checkpoint_comes_back_as_it_was<S: Checkpoints>(t: Backend<S>) {
    let checkpoint = saved(&t).await;
    assert_eq!(load(&t).await, checkpoint);
}

pub async fn fw02_saving_again_replaces_the_whole<S: Checkpoints>(t: Backend<S>) {
    saved(&t).await;
    let other = Checkpoint { seen: Some(anchor(&t, "s9", 9)), ..Checkpoint::default() };
    t.store.save("orders", other.clone()).await.unwrap();
    assert_eq!(load(&t).await, other);
}

pub async fn fw03_an_unknown_name_has_no_checkpoint<S: Checkpoints>(t: Backend<S>) {
    saved(&t).await;
    assert_eq!(t.store.load("payments").await.unwrap(), None);
}

pub async fn fw04_a_deleted_checkpoint_is_gone<S: Checkpoints>(t: Backend<S>) {
    saved(&t).await;
    t.store.delete("orders").await.unwrap();
    assert_eq!(t.store.load("orders").await.unwrap(), None);
}

pub async fn fw05_deleting_what_is_not_there_is_no_error<S: Checkpoints>(t: Backend<S>) {
    t.store.delete("orders").await.unwrap();
}

pub async fn fw06_the_seen_anchor_is_written_alone<S: Checkpoints>(t: Backend<S>) {
    let before = saved(&t).await;
    t.store.save_seen("orders", anchor(&t, "s2", 9), None).await.unwrap();
    assert_eq!(load(&t).await, Checkpoint { seen: Some(anchor(&t, "s2", 9)), ..before });
}

pub async fn fw07_the_processed_anchor_is_written_alone<S: Checkpoints>(t: Backend<S>) {
    let before = saved(&t).await;
    t.store.save_processed("orders", anchor(&t, "p2", 9), None).await.unwrap();
    assert_eq!(load(&t).await, Checkpoint { processed: Some(anchor(&t, "p2", 9)), ..before });
}

pub async fn fw08_a_seen_anchor_makes_a_checkpoint<S: Checkpoints>(t: Backend<S>) {
    t.store.save_seen("orders", anchor(&t, "s1", 1), None).await.unwrap();
    assert_eq!(load(&t).await, Checkpoint { seen: Some(anchor(&t, "s1", 1)), ..Checkpoint::default() });
}

pub async fn fw09_a_processed_anchor_makes_a_checkpoint<S: Checkpoints>(t: Backend<S>) {
    t.store.save_processed("orders", anchor(&t, "p1", 1), None).await.unwrap();
    assert_eq!(load(&t).await, Checkpoint { processed: Some(anchor(&t, "p1", 1)), ..Checkpoint::default() });
}

pub async fn fw10_a_heartbeat_comes_back_as_it_was<S: Checkpoints>(t: Backend<S>) {
    saved(&t).await;
    assert_eq!(load(&t).await.heartbeat, Some(t.now() + secs(3)));
}

pub async fn fw11_an_anchor_and_its_heartbeat_are_written_together<S: Checkpoints>(t: Backend<S>) {
    t.store.save_processed("orders", anchor(&t, "p1", 1), None).await.unwrap();
    t.store.save_seen("orders", anchor(&t, "s1", 2), Some(t.now() + secs(5))).await.unwrap();
    let expected = Checkpoint {
        processed: Some(anchor(&t, "p1", 1)),
        seen: Some(anchor(&t, "s1", 2)),
        heartbeat: Some(t.now() + secs(5)),
        ..Checkpoint::default()
    };
    assert_eq!(load(&t).await, expected);
}

pub async fn fw12_the_heartbeat_is_written_alone<S: Checkpoints>(t: Backend<S>) {
    let before = saved(&t).await;
    t.store.save_heartbeat("orders", t.now() + secs(60)).await.unwrap();
    assert_eq!(load(&t).await, Checkpoint { heartbeat: Some(t.now() + secs(60)), ..before });
}

pub async fn fw13_a_heartbeat_makes_a_checkpoint<S: Checkpoints>(t: Backend<S>) {
    t.store.save_heartbeat("orders", t.now()).await.unwrap();
    assert_eq!(load(&t).await, Checkpoint { heartbeat: Some(t.now()), ..Checkpoint::default() });
}

pub async fn fw14_an_anchor_without_a_heartbeat_keeps_the_old_one<S: Checkpoints>(t: Backend<S>) {
    t.store.save_seen("orders", anchor(&t, "s1", 1), Some(t.now())).await.unwrap();
    t.store.save_processed("orders", anchor(&t, "p1", 2), None).await.unwrap();
    let stored = load(&t).await;
    assert_eq!((stored.heartbeat, stored.seen), (Some(t.now()), Some(anchor(&t, "s1", 1))));
}

pub async fn fw15_a_reset_begins_at_the_fresh_place<S: Checkpoints>(t: Backend<S>) {
    let before = saved(&t).await;
    let fresh = anchor(&t, "fresh", 100);
    let reset = Reset { fresh: Some(fresh.clone()), dead: Some("p1".into()) };
    t.store.reset("orders", reset).await.unwrap();
    let heartbeat: Option<Timestamp> = Some(fresh.at);
    assert_eq!(load(&t).await, Checkpoint { processed: None, seen: Some(fresh), heartbeat, ..before });
}

pub async fn fw16_a_reset_keeps_a_place_that_is_newer_than_the_dead_one<S: Checkpoints>(t: Backend<S>) {
    // I1: another instance made progress since the dead token was read.
    saved(&t).await;
    t.store.save_processed("orders", anchor(&t, "p2", 50), None).await.unwrap();
    let reset = Reset { fresh: Some(anchor(&t, "fresh", 100)), dead: Some("p1".into()) };
    t.store.reset("orders", reset).await.unwrap();
    let stored = load(&t).await;
    assert_eq!(stored.processed, Some(anchor(&t, "p2", 50)));
    assert_eq!(stored.seen, Some(anchor(&t, "fresh", 100)));
}

pub async fn fw17_a_reset_without_a_fresh_place_clears_the_anchors<S: Checkpoints>(t: Backend<S>) {
    let before = saved(&t).await;
    t.store.reset("orders", Reset { fresh: None, dead: Some("p1".into()) }).await.unwrap();
    assert_eq!(load(&t).await, Checkpoint { processed: None, seen: None, heartbeat: None, ..before });
}

pub async fn fw18_a_reset_makes_a_checkpoint<S: Checkpoints>(t: Backend<S>) {
    let fresh = anchor(&t, "fresh", 1);
    t.store.reset("orders", Reset { fresh: Some(fresh.clone()), dead: None }).await.unwrap();
    let stored = load(&t).await;
    assert_eq!((stored.processed, stored.heartbeat), (None, Some(fresh.at)));
    assert_eq!(stored.seen, Some(fresh));
}

pub async fn names_are_independent<S: Checkpoints>(t: Backend<S>) {
    let before = saved(&t).await;
    t.store.save_processed("payments", anchor(&t, "other", 1), None).await.unwrap();
    t.store.delete("payments").await.unwrap();
    assert_eq!(load(&t).await, before);
}

pub async fn a_token_comes_back_byte_for_byte<S: Checkpoints>(t: Backend<S>) {
    let every_byte: Bytes = (0..=255_u8).collect::<Vec<_>>().into();
    let anchor = Anchor { token: every_byte, at: t.now() };
    t.store.save_processed("orders", anchor.clone(), None).await.unwrap();
    assert_eq!(load(&t).await.processed, Some(anchor));
}

pub async fn two_writers_of_different_anchors_undo_nothing<S: Checkpoints>(t: Backend<S>) {
    let (one, two) = (t.store.clone(), t.store.clone());
    let (processed, seen) = (anchor(&t, "p", 1), anchor(&t, "s", 2));
    let (p, s) = (processed.clone(), seen.clone());
    let one = tokio::spawn(async move { one.save_processed("orders", p, None).await.unwrap() });
    let two = tokio::spawn(async move { two.save_seen("orders", s, None).await.unwrap() });
    one.await.unwrap();
    two.await.unwrap();
    let stored = load(&t).await;
    assert_eq!((stored.processed, stored.seen), (Some(processed), Some(seen)));
}
