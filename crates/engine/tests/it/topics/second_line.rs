//! Messages that the broker does not accept: the store is the second line, and nothing runs twice.

use std::sync::Arc;

use lazaret_core::relay::RelayErrorKind;
use lazaret_core::{LetterState, Message, Position, Verdict};
use lazaret_engine::Options;

use super::broker::{Fault, Place, RETRIES, failing, failing_for};
use crate::support::{PausedClock, Reply, Try, asking, eventually, fatal, let_pass, secs, transient};

#[tokio::test(start_paused = true)]
async fn what_the_broker_refuses_for_a_while_is_relayed_in_the_end() {
    let place = Place::new();
    place.bench.push(&["a1", "b1"]);
    place.broker.fail(Fault::Refuse(RelayErrorKind::Temporary));
    let running = place.start(place.options(), failing_for("a1", 1));
    eventually("it was refused", || place.broker.asked() >= 3).await;
    assert!(place.bench.events.count("RelayFailed") >= 2);
    assert_eq!(place.bench.calls.done(), ["b1"], "others flow on (I3)");
    assert_eq!(place.bench.committed(), None, "nothing of it is committed (I1)");
    place.broker.fail(None);
    eventually("it is handled", || place.bench.calls.done() == ["b1", "a1"]).await;
    assert_eq!(place.bench.counts().open(), 0);
    let stats = running.stop().await;
    assert!(stats.relay_failures >= 3 && stats.relayed == 1);
}

#[tokio::test(start_paused = true)]
async fn attempts_are_not_forgotten_while_the_broker_is_away() {
    // I4: the process crashes while the broker refuses.
    let place = Place::new();
    place.bench.push(&["a1"]);
    place.broker.fail(Fault::Refuse(RelayErrorKind::Temporary));
    let running = place.start(place.options(), failing(usize::MAX));
    eventually("it was refused", || place.broker.asked() >= 2).await;
    running.crash().await;
    place.broker.fail(None);
    place.run(place.options(), failing(usize::MAX)).await;
    assert_eq!(place.bench.calls.attempts_of("a1"), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn what_the_broker_does_not_take_goes_to_the_store_and_is_retried_there() {
    // I1, I9
    for (trouble, patience) in
        [(RelayErrorKind::Temporary, 35), (RelayErrorKind::Permanent, 1), (RelayErrorKind::TooLarge, 1)]
    {
        let place = Place::new();
        place.bench.push(&["a1"]);
        place.broker.fail(Fault::Refuse(trouble));
        let running = place.start(place.options(), failing(2));
        eventually("it is a letter", || place.bench.events.count("LetterStored") >= 1).await;
        assert!(place.bench.clock.elapsed() < secs(patience), "{trouble:?}");
        eventually("it is handled", || place.bench.calls.done() == ["a1"]).await;
        assert_eq!(place.bench.calls.attempts_of("a1"), [1, 2, 3], "{trouble:?}");
        running.stop().await;
        assert_eq!(place.bench.committed(), Some(0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_message_that_is_too_large_is_in_the_store_and_the_broker_says_where() {
    let place = Place::new();
    place.bench.push(&["a1", "b1"]);
    place.broker.fail(Fault::Refuse(RelayErrorKind::TooLarge));
    let script = |this: &Try| Reply::Fail(if this.name == "a1" { fatal() } else { transient() });
    let running = place.start(place.options(), script);
    eventually("both are dead in the store", || place.bench.counts().of(LetterState::Dead) == 2).await;
    running.stop().await;
    let letters = [0, 1].map(|offset| place.bench.letter_at(offset).unwrap().id);
    assert_eq!(
        *place.broker.claims.lock().unwrap(),
        letters,
        "the second died after its retries in the store"
    );
}

#[tokio::test(start_paused = true)]
async fn a_dead_message_that_the_broker_refuses_has_a_claim_check_in_every_path() {
    for kind in [RelayErrorKind::TooLarge, RelayErrorKind::Permanent] {
        for gives_up in [false, true] {
            let place = Place::new();
            place.bench.push(&["a1"]);
            place.broker.fail(Fault::Refuse(kind));
            let script = move |_: &Try| match gives_up {
                true => Reply::SendToDlq("enough"),
                false => Reply::Fail(fatal()),
            };
            place.run(place.options(), script).await;
            let letter = place.bench.letter_at(0).unwrap();
            assert_eq!(letter.state, LetterState::Dead);
            assert_eq!(*place.broker.claims.lock().unwrap(), [letter.id], "{kind:?}, {gives_up}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_check_that_takes_longer_than_the_lease_is_published_and_no_lease_is_lost() {
    let place = Place::new();
    place.bench.push(&["b1"]);
    place.broker.fail(Fault::Refuse(RelayErrorKind::TooLarge));
    *place.broker.claim_delay.lock().unwrap() = secs(40);
    let options = Options { lease: secs(3), ..place.options() };
    let running = place.start(options, |_: &Try| Reply::Fail(transient()));
    eventually("its claim check is published", || !place.broker.claims.lock().unwrap().is_empty()).await;
    let letter = place.bench.letter_at(0).unwrap();
    assert_eq!((letter.state, place.broker.claims.lock().unwrap()[0]), (LetterState::Dead, letter.id));
    assert_eq!((place.bench.events.count("LeaseLost"), running.stats().leases_lost), (0, 0));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_message_with_the_id_of_a_letter_is_handled_under_an_id_of_its_own() {
    // I1: settled as a duplicate, it would be lost.
    let place = Place::new();
    place.bench.push(&["a1"]);
    place.broker.fail(Fault::Refuse(RelayErrorKind::Permanent));
    let script = |this: &Try| if this.name == "a1" { Reply::Fail(fatal()) } else { Reply::Done };
    let running = place.start(place.options(), script);
    eventually("it is a letter", || place.bench.counts().of(LetterState::Dead) == 1).await;
    let mut letter = place.bench.letter_at(0).unwrap();
    letter.due_at = Some(PausedClock::at(secs(0)));
    place.broker.append(&letter, 1);
    let forged =
        Message { position: Position::new(0, 99), key: Some("b".into()), ..(*letter.message).clone() };
    letter.message = Arc::new(forged.with_payload("b1"));
    letter.attempts += 1;
    place.broker.append(&letter, 1);
    eventually("the other one is handled", || place.bench.calls.done() == ["b1"]).await;
    assert_eq!(place.bench.calls.of("b1")[0].message.id.as_str(), "events/1/1");
    assert_eq!(place.bench.events.count("Duplicate"), 1, "the first is the letter itself");
    let stats = running.handle.stats();
    assert_eq!((stats.id_conflicts, stats.duplicates), (1, 1));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn when_neither_broker_nor_store_take_it_the_source_waits() {
    // I9
    let place = Place::new();
    place.bench.push(&["b0"]);
    let running = place.start(place.options(), failing_for("a1", usize::MAX));
    eventually("it works", || place.bench.committed() == Some(0)).await;
    place.bench.push(&["a1"]);
    place.broker.fail(Fault::Refuse(RelayErrorKind::Permanent));
    place.bench.store.set_down(true);
    eventually("both refused", || place.bench.events.count("HandOffFailed") > 2).await;
    place.bench.push(&["b1"]);
    let_pass(secs(60)).await;
    assert_eq!((place.bench.committed(), place.bench.calls.len()), (Some(0), 2), "the source is held");
    assert!(place.bench.events.count("RelayFailed") >= 1);
    place.bench.store.set_down(false);
    eventually("b1 is handled", || place.bench.calls.done() == ["b0", "b1"]).await;
    running.stop().await;
    assert_eq!(place.bench.committed(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn what_is_in_the_broker_and_in_the_store_runs_once() {
    // I8: the broker accepted every copy but never confirmed it.
    let place = Place::new();
    place.bench.push(&["a1"]);
    place.broker.fail(Fault::Forget);
    let running = place.start(place.options(), failing(1));
    eventually("it is handled", || place.bench.calls.done() == ["a1"]).await;
    assert!(place.broker.asked() > 3);
    let copies = place.broker.asked() as u64;
    eventually("all copies are settled", || place.bench.log.committed(RETRIES) == Some(copies - 1)).await;
    assert_eq!(place.bench.calls.done(), ["a1"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_person_stays_in_the_store() {
    let place = Place::new();
    place.bench.push(&["a1", "b1"]);
    let script = |this: &Try| {
        let verdict = if this.name == "a1" { Verdict::Park } else { Verdict::Quarantine };
        Reply::Fail(asking(verdict))
    };
    place.run(place.options(), script).await;
    let counts = place.bench.counts();
    assert_eq!((counts.of(LetterState::Parked), counts.of(LetterState::Quarantined)), (1, 1));
    assert_eq!(place.broker.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_gives_up_gives_it_to_the_broker_and_if_that_refuses_to_the_store() {
    let place = Place::new();
    place.bench.push(&["a1"]);
    place.run(place.options(), |_: &Try| Reply::SendToDlq("enough")).await;
    assert_eq!((place.broker.dead().len(), place.bench.counts().open()), (1, 0));
    let place = Place::new();
    place.bench.push(&["a1"]);
    place.broker.fail(Fault::Refuse(RelayErrorKind::Temporary));
    place.run(place.options(), |_: &Try| Reply::SendToDlq("enough")).await;
    assert_eq!((place.broker.dead().len(), place.bench.counts().of(LetterState::Dead)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_fenced_relay_leaves_the_partition_to_its_new_owner() {
    // I6
    let place = Place::new();
    place.bench.push(&["a1"]);
    place.broker.fail(Fault::Refuse(RelayErrorKind::Fenced));
    let running = place.start(place.options(), failing_for("a1", 2));
    eventually("it was refused", || place.broker.asked() == 1).await;
    assert_eq!((place.bench.committed(), place.bench.counts().open()), (None, 0));
    place.broker.fail(None);
    eventually("it is handled", || place.bench.calls.done() == ["a1"]).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_original_that_is_redelivered_finds_the_letter_of_its_copy() {
    // I4, I8: the position was not committed when the message was relayed.
    let place = Place::new();
    place.bench.push(&["a1"]);
    let options = Options { commit_interval: secs(3600), ..place.options() };
    let script = |this: &Try| match this.attempt {
        1 => Reply::Fail(transient()),
        _ => Reply::Fail(asking(Verdict::Park)),
    };
    let running = place.start(options.clone(), script);
    eventually("its copy is parked", || place.bench.counts().of(LetterState::Parked) == 1).await;
    running.crash().await;
    assert_eq!((place.bench.committed(), place.bench.calls.attempts_of("a1")), (None, vec![1, 2]));
    let running = place.start(options, script);
    let_pass(secs(30)).await;
    assert_eq!(place.bench.calls.attempts_of("a1"), [1, 2], "neither the original nor its copy runs again");
    assert_eq!(place.bench.counts().open(), 1);
    running.stop().await;
    assert_eq!(place.bench.committed(), Some(0), "both are settled");
}
