//! Bugs that need several steps in one order, which a random run rarely has. Each scenario returns `true` when the bug did
//! harm, and none without the bug.

use std::time::Duration;

use lazaret_core::Source;
use lazaret_core::store::{Act, GrantFence, HandOff, LetterStore, Limits, Placement};
use lazaret_core::{Letter, LetterState, Message, Partition, Position};
use lazaret_engine::mutation::Mutation;

use crate::staged::{Line, Stage, pass, queue};

const SLOW: Duration = Duration::from_millis(200);

/// An earlier owner hands off a message while the partition is being granted; the one behind it must wait (I2).
async fn overtakes_the_letter_of_an_earlier_owner(mutation: Option<Mutation>) -> bool {
    let mut stage = Stage::new();
    let earlier = stage.publish("dead");
    let next = stage.publish("fine");
    let partition = Partition::new(stage.log.stream().clone(), 0);
    let grants = stage.store.assign(&queue(), std::slice::from_ref(&partition)).await.unwrap();
    stage.disturb("assign", Line::SlowRequest(SLOW));
    stage.start(mutation);
    pass(100).await;
    let message = Message::new(earlier, "stream", Position::new(0, 0)).with_key("key");
    let sequence = lazaret_core::SequenceId::by_key(&message);
    let mut letter = Letter::new(queue(), sequence, message.into(), lazaret_testkit::clock::test_epoch());
    letter.state = LetterState::Dead;
    let grant = Some(GrantFence { partition, fence: grants[0].fence, turn: 1 });
    let item = HandOff { letter, placement: Placement::Open, grant };
    stage.store.hand_off(&queue(), &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
    pass(1_000).await;
    assert!(stage.is_handled(&next) || stage.letter(&next).await == Some(LetterState::Waiting));
    stage.is_handled(&next)
}

/// A sequence is opened again while the answer that closed it is delayed; the next message must wait (I2).
async fn overtakes_in_a_sequence_that_was_opened_again(mutation: Option<Mutation>) -> bool {
    let mut stage = Stage::new();
    stage.start(mutation);
    stage.disturb("settle", Line::SlowAnswer(SLOW));
    let first = stage.publish_and_wait("later").await;
    pass(70).await;
    assert_eq!(stage.letter(&first).await, Some(LetterState::Resolved), "its answer is delayed");
    let dead = stage.publish_and_wait("dead").await;
    assert_eq!(stage.letter(&dead).await, Some(LetterState::Dead));
    pass(SLOW.as_millis() as u64).await;
    let next = stage.publish_and_wait("fine").await;
    assert!(stage.is_handled(&next) || stage.letter(&next).await == Some(LetterState::Waiting));
    stage.is_handled(&next)
}

/// A letter is restored while the answer that its sequence is not open is delayed; the next message must wait (I2).
async fn overtakes_a_restored_letter(mutation: Option<Mutation>) -> bool {
    let mut stage = Stage::new();
    stage.start(mutation);
    let restored = stage.publish_and_wait("dead").await;
    stage.act(&restored, Act::Evict).await;
    stage.disturb("hand_off", Line::SlowAnswer(SLOW));
    let next = stage.publish_and_wait("fine").await;
    stage.act_by_engine(&restored, Act::Restore).await;
    pass(1_000).await;
    assert!(stage.is_handled(&next) || stage.letter(&next).await == Some(LetterState::Waiting));
    stage.is_handled(&next)
}

/// A hand-off arrives after its message was handled, and a later one opened the sequence; it must be refused (I6).
async fn makes_a_letter_of_a_handled_message(mutation: Option<Mutation>) -> bool {
    let mut stage = Stage::new();
    stage.start(mutation);
    let evicted = stage.publish_and_wait("dead").await;
    stage.act(&evicted, Act::Evict).await;
    stage.disturb("hand_off", Line::Lost(Duration::from_secs(60)));
    let handled = stage.publish_and_wait("fine").await;
    pass(30_000).await;
    assert!(stage.is_handled(&handled), "the sequence is not open");
    let later = stage.publish_and_wait("dead").await;
    assert_eq!(stage.letter(&later).await, Some(LetterState::Dead));
    pass(60_000).await;
    stage.letter(&handled).await.is_some()
}

/// A partition leaves while a message of it waits for a permit, and returns; that message must run then.
async fn stalls_a_lane_whose_partition_returned(mutation: Option<Mutation>) -> bool {
    let mut stage = Stage::new();
    stage.start(mutation);
    pass(10).await;
    stage.publish_in(1, "a", "50");
    let waiting = stage.publish_in(1, "a", "fine");
    pass(10).await;
    // One takes the second permit, the other that of the first message when it ends.
    stage.publish_in(0, "b", "1000");
    pass(10).await;
    stage.publish_in(0, "c", "1000");
    pass(50).await;
    assert!(!stage.is_handled(&waiting), "it has no permit");
    let mut other = stage.log.join();
    pass(50).await;
    assert_ne!(stage.log.owner(1), stage.log.owner(0), "the partition has left");
    other.close().await.unwrap();
    pass(5_000).await;
    assert_eq!(stage.log.owner(1), stage.log.owner(0), "the partition has returned");
    !stage.is_handled(&waiting)
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_stalls_after_its_partition_left_is_found() {
    assert!(!stalls_a_lane_whose_partition_returned(None).await);
    assert!(stalls_a_lane_whose_partition_returned(Some(Mutation::StallFreedLanes)).await);
}

#[tokio::test(start_paused = true)]
async fn listing_the_open_sequences_before_the_grant_is_found() {
    assert!(!overtakes_the_letter_of_an_earlier_owner(None).await);
    assert!(overtakes_the_letter_of_an_earlier_owner(Some(Mutation::ListBeforeGrant)).await);
}

#[tokio::test(start_paused = true)]
async fn closing_a_sequence_that_was_opened_again_is_found() {
    assert!(!overtakes_in_a_sequence_that_was_opened_again(None).await);
    assert!(overtakes_in_a_sequence_that_was_opened_again(Some(Mutation::CloseReopenedSequences)).await);
}

#[tokio::test(start_paused = true)]
async fn trusting_an_answer_that_is_older_than_the_list_is_found() {
    assert!(!overtakes_a_restored_letter(None).await);
    assert!(overtakes_a_restored_letter(Some(Mutation::TrustStaleAnswers)).await);
}

#[tokio::test(start_paused = true)]
async fn hand_offs_without_numbers_are_found() {
    assert!(!makes_a_letter_of_a_handled_message(None).await);
    assert!(makes_a_letter_of_a_handled_message(Some(Mutation::UnnumberedHandOffs)).await);
}
