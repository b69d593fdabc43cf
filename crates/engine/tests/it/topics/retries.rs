//! Retries through the broker: attempts, limits, and the returned messages.

use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::{LetterState, Partition, Verdict};
use lazaret_engine::{BuildError, DeadLetterOptions, Options};

use super::broker::{Place, RETRIES, failing, failing_for};
use crate::support::{
    PausedClock, Reply, Running, Try, eventually, fatal, let_pass, millis, options, payload_of, retry, secs,
};

#[tokio::test(start_paused = true)]
async fn topics_need_a_broker_and_a_place_for_what_it_does_not_take() {
    let options = Options { retry: retry(Strategy::Topics), ..options() };
    assert!(matches!(options.validate(), Err(BuildError::TopicsWithoutBroker)));
    let options = Options { dead_letter: None, ..Place::new().options() };
    assert!(matches!(options.validate(), Err(BuildError::TopicsWithoutLetters)));
}

#[tokio::test(start_paused = true)]
async fn a_message_comes_back_when_it_is_due_and_its_attempts_are_counted() {
    // I4, I5, I12
    let place = Place::new();
    place.bench.push(&["a1"]);
    place.run(place.options(), failing(2)).await;
    let Place { bench, .. } = &place;
    assert_eq!((bench.calls.attempts_of("a1"), bench.calls.done()), (vec![1, 2, 3], vec!["a1".to_owned()]));
    assert_eq!(bench.calls.times_of("a1"), [0.0, 1.0, 3.0], "never early and not late");
    for call in bench.calls.of("a1") {
        assert_eq!(
            call.message.partition(),
            Partition::new("events", 0),
            "the handler sees where it came on"
        );
        assert_eq!((call.message.position.offset, call.message.id.as_str()), (0, "events/0/0"));
    }
    assert_eq!((bench.committed(), bench.log.committed(RETRIES)), (Some(0), Some(1)));
    assert_eq!(bench.counts().open(), 0, "the store holds nothing");
    assert_eq!((bench.events.count("Relayed"), bench.events.count("RetryStarted")), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_never_succeeds_is_dead_in_the_broker() {
    // I4
    let place = Place::new();
    place.bench.push(&["a1", "a2"]);
    place.run(place.options(), failing_for("a1", usize::MAX)).await;
    let dead = place.broker.dead();
    assert_eq!(dead.len(), 1);
    assert_eq!(
        (dead[0].state, dead[0].attempts, payload_of(&dead[0])),
        (LetterState::Dead, 3, "a1".to_owned())
    );
    assert_eq!(dead[0].first_failed_at, Some(PausedClock::at(secs(0))));
    assert_eq!(dead[0].last_failed_at, Some(PausedClock::at(secs(3))));
    assert_eq!((place.bench.counts().open(), place.bench.calls.done()), (0, vec!["a2".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn errors_that_alternate_end_after_the_last_attempt_too() {
    // I4
    let place = Place::new();
    place.bench.push(&["a1"]);
    let options =
        Options { retry: RetryPolicy { max_attempts: 5, ..retry(Strategy::Topics) }, ..place.options() };
    let script = |this: &Try| {
        let text = if this.before.is_multiple_of(2) { "A" } else { "B" };
        Reply::Fail(lazaret_core::HandlerError::foreign(text, text).verdict(Verdict::Retry))
    };
    place.run(options, script).await;
    assert_eq!(place.bench.calls.attempts_of("a1"), [1, 2, 3, 4, 5]);
    assert_eq!(place.broker.dead()[0].attempts, 5);
}

#[tokio::test(start_paused = true)]
async fn attempts_and_due_times_survive_a_crash() {
    // I4, I12: the returned message contains what is known about it.
    let place = Place::new();
    place.bench.push(&["a1"]);
    let running = place.start(place.options(), failing(usize::MAX));
    eventually("it was relayed for the second time", || place.broker.asked() == 2).await;
    let_pass(millis(500)).await;
    running.crash().await;
    place.run(place.options(), failing(usize::MAX)).await;
    assert_eq!(place.bench.calls.attempts_of("a1"), [1, 2, 3]);
    assert_eq!(place.bench.calls.times_of("a1"), [0.0, 1.0, 3.0]);
    assert_eq!(place.broker.dead().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn of_two_copies_of_one_handover_one_runs() {
    // I8: the process crashed after the broker had accepted the message and before the position was
    // committed.
    let place = Place::new();
    place.bench.push(&["a1"]);
    let options = Options { commit_interval: secs(1000), ..place.options() };
    let running = place.start(options, failing(2));
    eventually("it was relayed", || place.broker.asked() == 1).await;
    running.crash().await;
    place.run(place.options(), failing(2)).await;
    assert_eq!(place.broker.asked(), 2, "the same handover twice");
    assert_eq!((place.bench.calls.attempts_of("a1"), place.bench.calls.done().len()), (vec![1, 1, 2], 1));
    assert_eq!(place.bench.events.count("Duplicate"), 1);
}

#[tokio::test(start_paused = true)]
async fn the_broker_gets_the_payload_also_when_letters_go_without() {
    // I5: a record without a payload is a tombstone.
    let place = Place::new();
    place.bench.push(&["a1"]);
    let dead_letter = Some(DeadLetterOptions { include_payload: false, ..DeadLetterOptions::default() });
    let options = Options { dead_letter, ..place.options() };
    place.run(options, |_: &Try| Reply::Fail(fatal())).await;
    assert_eq!(payload_of(&place.broker.dead()[0]), "a1");
}

#[tokio::test(start_paused = true)]
async fn a_message_comes_back_to_the_component_that_failed() {
    let place = Place::new();
    place.bench.push(&["a1"]);
    place.bench.log.close();
    let calls = &place.bench.calls;
    let options = Options { until_idle: true, ..place.options() };
    let builder = place
        .builder(options)
        .component("mail", calls.handler("mail", failing(1)))
        .component("index", calls.handler("index", failing(0)));
    Running::start(builder).ended().await.unwrap();
    assert_eq!((calls.done_by("mail"), calls.done_by("index")), (vec!["a1".into()], vec!["a1".into()]));
    let components: Vec<String> = calls.all().into_iter().map(|call| call.component).collect();
    assert_eq!(components.iter().filter(|name| *name == "mail").count(), 2);
    assert_eq!(components.len(), 3);
}
