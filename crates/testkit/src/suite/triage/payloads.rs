//! Letters whose payload is left out.

use lazaret_core::store::{Change, Store};
use lazaret_core::{Letter, LetterState};

use crate::suite::letters::Fixture;

pub async fn a_requeue_may_leave_out_the_payload_and_says_so<S: Store>(t: Fixture<S>) {
    let before = t.enqueue("a", "1").await;
    assert!(!before.payload_left_out && before.message.payload.is_some());
    t.requeue("a", |requeue| requeue.leave_out_payload = true).await;
    let after = t.get("1").await;
    assert!(after.payload_left_out);
    // Key, headers and all the rest stay.
    let mut expected = (*before.message).clone();
    expected.payload = None;
    assert_eq!(*after.message, expected);
    // Left out once, it stays left out.
    t.requeue("a", |requeue| requeue.leave_out_payload = false).await;
    assert_eq!((t.get("1").await.payload_left_out, t.get("1").await.message.payload.clone()), (true, None));
}

pub async fn a_requeue_that_does_not_ask_keeps_the_payload<S: Store>(t: Fixture<S>) {
    let before = t.enqueue("a", "1").await;
    t.requeue("a", |requeue| requeue.state = LetterState::Parked).await;
    let after = t.get("1").await;
    assert_eq!((after.payload_left_out, &after.message), (false, &before.message));
}

pub async fn a_payload_left_out_at_the_hand_off_is_remembered<S: Store>(t: Fixture<S>) {
    let mut letter = Letter { payload_left_out: true, ..t.dead("a", "1") };
    let mut message = (*letter.message).clone();
    message.payload = None;
    letter.message = message.into();
    t.open(letter.clone()).await;
    let stored = t.get("1").await;
    assert_eq!((stored.payload_left_out, &stored.message), (true, &letter.message));
}

pub async fn a_payload_that_was_left_out_can_be_brought_back<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.requeue("a", |requeue| requeue.leave_out_payload = true).await;
    let letter = t.change("1", Change::Payload(Some("{}".into()))).await.unwrap();
    assert_eq!((letter.payload_left_out, letter.message.payload.as_deref()), (false, Some(b"{}".as_slice())));
    t.requeue("a", |requeue| requeue.leave_out_payload = true).await;
    let letter = t.get("1").await;
    assert_eq!((letter.payload_left_out, letter.message.payload.clone()), (true, None));
}
