//! Replays: letters that are tried again on request. The numbers H10 to H27 and "axon I1" to "axon I17"
//! refer to the Axon conformance list.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lazaret_core::letter::AttemptKind;
use lazaret_core::policy::{Decision, EnqueuePolicy, Stage};
use lazaret_core::store::PauseScope;
use lazaret_core::{Failure, HandlerError, Letter, LetterState, QueueName, Reason, Verdict};
use lazaret_engine::{Options, ReplayReport};

use crate::support::{
    self, Bench, PausedClock, Repaired, Reply, Running, Try, asking, eventually, fatal, let_pass,
    one_attempt, operator, options, payload_of, secs, transient, with_dead,
};

/// Options with which this policy is asked at each replay.
fn at_replay(policy: impl Fn(&Letter, &Failure) -> Decision + Send + Sync + 'static) -> Options {
    let policy = move |letter: &Letter, failure: &Failure, stage: Stage| match stage {
        Stage::FirstFailure => Decision::enqueue_with(failure.clone()),
        _ => policy(letter, failure),
    };
    Options { enqueue: Arc::new(policy) as Arc<dyn EnqueuePolicy>, ..one_attempt() }
}

#[tokio::test(start_paused = true)]
async fn there_is_nothing_to_process_in_an_empty_queue() {
    // H10
    let bench = Bench::new();
    let running = bench.start(options(), |_| Reply::Done);
    assert!(!running.replayer().process_any().await.unwrap());
    assert_eq!(running.replayer().process_all("nightly").await.unwrap(), ReplayReport::default());
    assert_eq!(running.replayer().process_sequence(&"a".into(), "op").await.unwrap(), None);
    assert_eq!(bench.calls.len(), 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_succeeds_on_replay_is_resolved() {
    // H11
    let (bench, running, repaired) = with_dead(one_attempt(), &["a1"]).await;
    repaired.repair();
    assert!(running.replayer().process_any().await.unwrap());
    assert_eq!((bench.calls.done(), bench.counts().open()), (vec!["a1".to_owned()], 0));
    let letter = bench.letter_at(0).expect("closed letters are kept");
    assert_eq!(letter.state, LetterState::Resolved);
    let kinds: Vec<_> = letter.history.iter().map(|record| record.kind).collect();
    assert_eq!(kinds, [AttemptKind::Live, AttemptKind::Replay]);
    let closed = bench.events.all().into_iter().find(|event| event.starts_with("LetterClosed"));
    assert!(closed.is_some_and(|event| event.ends_with("state: Resolved, replay: Some(\"process\") }")));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_replay_whose_attempt_the_handler_defers_goes_on_later() {
    // I4
    let bench = Bench::new();
    bench.push(&["a1"]);
    let running = bench.start(one_attempt(), |this| match this.before {
        0 => Reply::Fail(fatal()),
        1..=3 => Reply::Fail(HandlerError::deferred("no place", secs(1))),
        _ => Reply::Done,
    });
    eventually("it is a letter", || bench.committed() == Some(0)).await;
    assert!(running.replayer().process_any().await.unwrap());
    assert_eq!(bench.calls.attempts_of("a1"), [1, 2, 2, 2, 2]);
    let letter = bench.letter_at(0).expect("closed letters are kept");
    let kinds: Vec<_> = letter.history.iter().map(|record| record.kind).collect();
    assert_eq!((letter.state, kinds), (LetterState::Resolved, vec![AttemptKind::Live, AttemptKind::Replay]));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_filter_chooses_the_sequence_that_is_processed() {
    // H12
    let (bench, running, repaired) = with_dead(one_attempt(), &["a1", "b1"]).await;
    repaired.repair();
    assert!(running.replayer().process(|letter| letter.sequence.as_str() == "b").await.unwrap());
    assert_eq!((bench.calls.done(), bench.letters("a").len()), (vec!["b1".to_owned()], 1));
    assert!(bench.letters("b").is_empty());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_its_handler_knows_already_is_resolved_by_its_replay() {
    let bench = Bench::new();
    bench.push(&["a1", "a2"]);
    let running = bench.start(one_attempt(), |this| match (this.before, this.name.as_str()) {
        (0, "a1") => Reply::Fail(fatal()),
        (_, "a1") => Reply::Fail(asking(Verdict::Duplicate).reason(Reason::DUPLICATE)),
        _ => Reply::Done,
    });
    eventually("both are letters", || bench.committed() == Some(1)).await;
    assert!(running.replayer().process_any().await.unwrap());
    assert_eq!(
        (bench.calls.tried(), bench.counts().open()),
        (["a1", "a1", "a2"].map(String::from).to_vec(), 0)
    );
    let letter = bench.letter_at(0).expect("closed letters are kept");
    let last = letter.history.last().and_then(|attempt| attempt.failure.clone()).expect("it was no success");
    assert_eq!((letter.state, last.reason), (LetterState::Resolved, Reason::DUPLICATE));
    let stats = running.stop().await;
    assert_eq!((stats.duplicates, stats.resolved), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_fails_on_replay_stays_dead_with_its_new_cause() {
    // H13, I4, I11
    let bench = Bench::new();
    bench.push(&["a1", "a2"]);
    let script = |this: &Try| match this.before {
        0 => Reply::Fail(fatal()),
        _ => Reply::Fail(HandlerError::foreign("Other", "now it is this").reason(Reason::TIMEOUT)),
    };
    let running = bench.start(options(), script);
    eventually("both are letters", || bench.committed() == Some(1)).await;
    let before = bench.letters("a");
    let_pass(secs(100)).await;
    assert!(!running.replayer().process_any().await.unwrap());
    let after = bench.letters("a");
    let cause = after[0].cause.clone().expect("it failed");
    assert_eq!((&*cause.error_type, &*cause.message), ("Other", "now it is this"));
    assert_eq!(
        (after[0].state, after[0].due_at),
        (LetterState::Dead, None),
        "a replay gives no new attempts"
    );
    assert_eq!((after[0].attempts, after[0].replay_attempts), (before[0].attempts, 1));
    assert_eq!(after[0].first_failed_at, before[0].first_failed_at);
    assert_eq!(after[0].enqueued_at, before[0].enqueued_at);
    assert!(after[0].last_failed_at >= Some(PausedClock::at(secs(100))));
    assert_eq!(after[0].last_touched_at, after[0].last_failed_at.expect("it failed"));
    assert_eq!(after[1], before[1], "the letter behind it is untouched");
    let_pass(secs(100)).await;
    assert_eq!(bench.calls.len(), 2);
    assert!(!running.replayer().process_any().await.unwrap());
    assert_eq!(bench.letters("a")[0].replay_attempts, 2);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_can_give_up_a_letter_that_fails_on_replay() {
    // H22, H23, I11
    for decision in [Decision::DoNotEnqueue, Decision::Evict] {
        let options = at_replay(move |_, _| decision.clone());
        let (bench, running, _) = with_dead(options, &["a1"]).await;
        assert!(running.replayer().process_any().await.unwrap());
        assert_eq!((bench.counts().open(), bench.counts().of(LetterState::Evicted)), (0, 1));
        let audit = bench.audit();
        assert_eq!((audit.len(), &*audit[0].action, &*audit[0].by.who), (1, "evict", "lazaret"));
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_a_policy_gives_up_lets_the_next_letter_have_its_turn() {
    // H22, I2
    let options = at_replay(|letter, failure| match payload_of(letter).as_str() {
        "a1" => Decision::Evict,
        _ => Decision::requeue(failure.clone()),
    });
    let (bench, running, _) = with_dead(options, &["a1", "a2", "a3"]).await;
    assert!(!running.replayer().process_any().await.unwrap());
    assert_eq!(bench.calls.tried(), ["a1", "a1", "a2"]);
    let names: Vec<_> = bench.letters("a").iter().map(payload_of).collect();
    assert_eq!(names, ["a2", "a3"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_can_requeue_with_its_own_cause_and_diagnostics() {
    // H24
    let options = at_replay(|_, failure| {
        let cause = Failure { message: "still down".to_owned(), ..failure.clone() };
        Decision::requeue(cause).with_diagnostics([("tries".to_owned(), "1".to_owned())].into())
    });
    let (bench, running, _) = with_dead(options, &["a1"]).await;
    assert!(!running.replayer().process_any().await.unwrap());
    let letter = bench.letter("a");
    assert_eq!(letter.cause.map(|cause| cause.message).as_deref(), Some("still down"));
    assert_eq!(letter.diagnostics["tries"], "1");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_ignores_a_failed_replay_only_touches_the_letter() {
    // axon X9
    let (bench, running, _) = with_dead(at_replay(|_, _| Decision::Ignore), &["a1"]).await;
    let before = bench.letter("a");
    let_pass(secs(10)).await;
    assert!(!running.replayer().process_any().await.unwrap());
    let after = bench.letter("a");
    assert_eq!((&after.cause, &after.diagnostics), (&before.cause, &before.diagnostics));
    assert!(after.last_touched_at > before.last_touched_at);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_policy_is_not_asked_when_a_replay_succeeds() {
    // H25
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let options = at_replay(move |_, failure| {
        count.fetch_add(1, Ordering::SeqCst);
        Decision::requeue(failure.clone())
    });
    let (bench, running, repaired) = with_dead(options, &["a1"]).await;
    repaired.repair();
    assert!(running.replayer().process_any().await.unwrap());
    assert_eq!((bench.counts().open(), asked.load(Ordering::SeqCst)), (0, 0));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_can_count_its_replays_and_give_up_at_the_third() {
    // H26, H27
    let options = at_replay(|letter, failure| {
        let tries = letter.diagnostics.get("tries").and_then(|text| text.parse().ok()).unwrap_or(0_u32);
        if tries >= 2 {
            return Decision::Evict;
        }
        let diagnostics = BTreeMap::from([("tries".to_owned(), (tries + 1).to_string())]);
        Decision::requeue(failure.clone()).with_diagnostics(diagnostics)
    });
    let (bench, running, _) = with_dead(options, &["a1"]).await;
    let mut answers = Vec::new();
    let mut open = Vec::new();
    for _ in 0..3 {
        answers.push(running.replayer().process_any().await.unwrap());
        open.push(bench.counts().open());
    }
    assert_eq!((answers, open), (vec![false, false, true], vec![1, 1, 0]));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn only_the_failed_sequence_has_a_letter_and_the_position_goes_on() {
    // axon I1
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    bench.run(one_attempt(), |this| if this.name == "b1" { Reply::Fail(fatal()) } else { Reply::Done }).await;
    assert_eq!((payload_of(&bench.letter("b")), bench.letters("a").len()), ("b1".to_owned(), 0));
    assert_eq!(bench.committed(), Some(1));
}

/// Pushes three good messages of one key, a bad one and two more. `second_try` is the reply of the
/// handler to a second try.
async fn three_behind(second_try: impl Fn(&Try) -> Reply + Send + Sync + 'static) -> (Bench, Running) {
    let bench = Bench::new();
    bench.push(&["a1", "a2", "a3", "a4", "a5", "a6"]);
    let running = bench.start(one_attempt(), move |this| match (&this.letter, this.name.as_str()) {
        (None, "a4") => Reply::Fail(fatal()),
        (None, _) => Reply::Done,
        (Some(_), _) => second_try(this),
    });
    eventually("all is settled", || bench.committed() == Some(5)).await;
    assert_eq!(bench.calls.tried(), ["a1", "a2", "a3", "a4"]);
    (bench, running)
}

#[tokio::test(start_paused = true)]
async fn a_replay_goes_down_the_whole_sequence_in_order() {
    // axon I2, I3, I5
    let (bench, running) = three_behind(|_| Reply::Done).await;
    let names: Vec<_> = bench.letters("a").iter().map(payload_of).collect();
    assert_eq!(names, ["a4", "a5", "a6"]);
    assert!(running.replayer().process_any().await.unwrap());
    assert_eq!(bench.calls.done(), ["a1", "a2", "a3", "a4", "a5", "a6"]);
    let shown: Vec<bool> = bench.calls.all().iter().map(|call| call.letter).collect();
    assert_eq!(shown, [false, false, false, false, true, true, true], "a letter is seen on the replay only");
    assert_eq!(bench.counts().open(), 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_replay_stops_at_the_first_letter_that_fails() {
    // axon I4, I2
    let (bench, running) = three_behind(|this| match this.name.as_str() {
        "a5" => Reply::Fail(fatal()),
        _ => Reply::Done,
    })
    .await;
    assert!(!running.replayer().process_any().await.unwrap());
    assert_eq!(bench.calls.tried()[4..], ["a4", "a5"]);
    let standing = [("a5".to_owned(), LetterState::Dead), ("a6".to_owned(), LetterState::Waiting)];
    assert_eq!(bench.standing("a"), standing);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_arrives_during_a_replay_is_handled_behind_the_letters() {
    // axon I7, I2
    let (bench, running) = three_behind(|_| Reply::after(secs(1), Reply::Done)).await;
    let replayer = running.replayer();
    let replay = tokio::spawn(async move { replayer.process_any().await });
    let_pass(support::millis(1500)).await;
    bench.push(&["a7"]);
    eventually("a7 is handled", || bench.calls.done().len() == 7).await;
    assert!(replay.await.unwrap().unwrap());
    assert_eq!(bench.calls.done(), ["a1", "a2", "a3", "a4", "a5", "a6", "a7"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn forty_sequences_with_failures_and_concurrent_replays_keep_their_order_and_double_nothing() {
    // axon I8, I2, I6
    let bench = Bench::new();
    let script = |this: &Try| {
        let number: u32 = this.name.split('-').nth(1).and_then(|n| n.parse().ok()).expect("a number");
        if number == 7 && this.before < 3 { Reply::Fail(fatal()) } else { Reply::Done }
    };
    let running = bench.start(one_attempt(), script);
    let replayer = running.replayer();
    let stop = tokio_util::sync::CancellationToken::new();
    let stopped = stop.clone();
    let replays = tokio::spawn(async move {
        while !stopped.is_cancelled() {
            replayer.process_any().await.unwrap();
            let_pass(support::millis(5)).await;
        }
    });
    for number in 1..=9 {
        for key in 0..40 {
            bench.log.push(0, format!("k{key}"), format!("k{key}-{number}"));
        }
        let_pass(support::millis(50)).await;
    }
    let last = bench.log.next_offset(0) - 1;
    eventually("all is settled", || bench.committed() == Some(last) && bench.counts().open() == 0).await;
    stop.cancel();
    replays.await.unwrap();
    assert_eq!(last, 359);
    for key in 0..40 {
        let mine = format!("k{key}-");
        let done: Vec<String> = bench.calls.done().into_iter().filter(|n| n.starts_with(&mine)).collect();
        let expected: Vec<String> = (1..=9).map(|number| format!("{mine}{number}")).collect();
        assert_eq!(done, expected, "in order, none doubled, none lost");
        assert_eq!(bench.calls.of(&format!("{mine}7")).len(), 4, "one live try and three replays");
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_can_substitute_or_truncate_the_cause() {
    // axon I9, I10
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let policy = |letter: &Letter, failure: &Failure, _: Stage| match payload_of(letter).as_str() {
        "a1" => Decision::enqueue_with(Failure::new(Reason::CONFLICT, "Substitute", "mine")),
        _ => Decision::enqueue_with(failure.clone().truncated(10)),
    };
    let options = Options { enqueue: Arc::new(policy), ..one_attempt() };
    let text = "0123456789-this-is-the-tail";
    bench.run(options, move |_| Reply::Fail(HandlerError::msg(text).reason(Reason::DOMAIN_INVALID))).await;
    assert_eq!(bench.letter("a").cause.map(|cause| cause.error_type).as_deref(), Some("Substitute"));
    assert_eq!(bench.letter("b").cause.map(|cause| cause.message).as_deref(), Some("0123456789"));
}

/// A consumer with two components. Each fails for one key until it is repaired.
fn two_components(bench: &Bench, repaired: &[Repaired; 2]) -> Running {
    let script = |repaired: &Repaired, bad: &'static str| {
        let repaired = repaired.clone();
        move |this: &Try| {
            let fails = this.name.starts_with(bad) && !repaired.0.load(Ordering::SeqCst);
            if fails { Reply::Fail(fatal()) } else { Reply::Done }
        }
    };
    let builder = bench
        .builder(one_attempt())
        .component("zero", bench.calls.handler("zero", script(&repaired[0], "a")))
        .component("one", bench.calls.handler("one", script(&repaired[1], "b")));
    Running::start(builder)
}

#[tokio::test(start_paused = true)]
async fn each_component_has_a_queue_of_its_own() {
    // axon I13, I14, I15
    let bench = Bench::new();
    bench.push(&["a1", "b1", "c1", "a2", "a3"]);
    let running = two_components(&bench, &Default::default());
    eventually("all is settled", || bench.committed() == Some(4)).await;
    let names = |component: &str, sequence: &str| -> Vec<String> {
        let queue = QueueName::of(support::NAME, component);
        bench.letters_in(&queue, sequence).iter().map(payload_of).collect()
    };
    assert_eq!(names("zero", "a"), ["a1", "a2", "a3"]);
    assert_eq!(names("one", "b"), ["b1"]);
    assert!(names("one", "a").is_empty() && names("zero", "b").is_empty());
    assert_eq!(bench.calls.done_by("zero").len(), 2, "b1 and c1");
    let mut by_one = bench.calls.done_by("one");
    by_one.sort();
    assert_eq!(by_one, ["a1", "a2", "a3", "c1"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn replaying_one_component_leaves_the_other_alone() {
    // axon I16, I17
    let (bench, repaired) = (Bench::new(), <[Repaired; 2]>::default());
    bench.push(&["a1", "b1"]);
    let running = two_components(&bench, &repaired);
    eventually("all is settled", || bench.committed() == Some(1)).await;
    let replayer = |component| running.handle.replayer(component).expect("it is known");
    let size = |component: &str, sequence: &str| {
        bench.letters_in(&QueueName::of(support::NAME, component), sequence).len()
    };
    repaired[0].repair();
    assert!(replayer("zero").process_any().await.unwrap());
    assert_eq!((size("zero", "a"), size("one", "b")), (0, 1));
    assert_eq!(bench.calls.done_by("zero"), ["b1", "a1"]);
    assert!(!replayer("one").process_any().await.unwrap());
    repaired[1].repair();
    assert!(replayer("one").process_any().await.unwrap());
    assert!(!replayer("zero").process_any().await.unwrap());
    assert_eq!((size("zero", "a"), size("one", "b")), (0, 0));
    assert!(running.handle.replayer("two").is_none());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_filter_sees_heads_only_and_finds_its_match_behind_many_others() {
    // axon X11
    let names: Vec<String> = (0..250).flat_map(|n| [format!("k{n}x1"), format!("k{n}x2")]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (bench, running, repaired) = with_dead(one_attempt(), &names).await;
    repaired.repair();
    let seen = std::sync::Mutex::new(Vec::new());
    let replayer = running.replayer();
    let processed = replayer.process(|letter| {
        seen.lock().expect("no test panics here").push(payload_of(letter));
        letter.sequence.as_str() == "k201x"
    });
    assert!(processed.await.unwrap());
    assert_eq!(bench.calls.done(), ["k201x1", "k201x2"]);
    let seen = seen.into_inner().unwrap();
    assert!(seen.iter().all(|name| name.ends_with("x1")), "heads only");
    assert!(!running.replayer().process(|letter| letter.sequence.as_str() == "k201x").await.unwrap());
    assert_eq!(bench.counts().sequences, 249);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn processing_takes_the_sequence_that_was_touched_longest_ago() {
    // axon X8: requeued sequences go behind the others.
    let (bench, running, _) = with_dead(one_attempt(), &["a1"]).await;
    for (name, committed) in [("b1", 1), ("c1", 2)] {
        let_pass(secs(1)).await;
        bench.push(&[name]);
        eventually("it is a letter", || bench.committed() == Some(committed)).await;
    }
    for _ in 0..4 {
        let_pass(secs(1)).await;
        assert!(!running.replayer().process_any().await.unwrap());
    }
    assert_eq!(bench.calls.tried()[3..], ["a1", "b1", "c1", "a1"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn processing_all_gives_every_sequence_its_turn_once_and_does_not_stop_at_a_failure() {
    let names: Vec<String> = (0..250).map(|n| format!("k{n}x1")).collect();
    let bench = Bench::new();
    bench.push(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let script = |this: &Try| {
        let number: u32 = this.name[1..this.name.len() - 2].parse().expect("a number");
        if this.letter.is_none() || number.is_multiple_of(3) { Reply::Fail(fatal()) } else { Reply::Done }
    };
    let running = bench.start(one_attempt(), script);
    eventually("all are letters", || bench.committed() == Some(249)).await;
    let_pass(secs(10)).await;
    let report = running.replayer().process_all("nightly").await.unwrap();
    assert_eq!((report.closed, report.held, report.skipped), (166, 84, 0));
    assert_eq!(bench.counts().sequences, 84);
    for name in &names {
        assert_eq!(bench.calls.of(name).len(), 2, "{name}: once live, once replayed");
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_replay_tells_the_handler_the_name_of_its_operation() {
    let bench = Bench::new();
    bench.push(&["a1"]);
    let running = bench.start(one_attempt(), |this| match this.replay.as_deref() {
        Some("op-7") => Reply::Done,
        _ => Reply::Fail(fatal()),
    });
    eventually("a1 is dead", || bench.letters("a").len() == 1).await;
    assert_eq!(running.replayer().process_sequence(&"a".into(), "op-6").await.unwrap(), Some(false));
    assert_eq!(running.replayer().process_sequence(&"a".into(), "op-7").await.unwrap(), Some(true));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn retries_and_replays_change_nothing_of_the_message() {
    // I5
    for key in [None, Some("")] {
        let bench = Bench::new();
        bench.log.push_with(0, |mut message| {
            message.id = "evt-1".into();
            message.key = key.map(Into::into);
            message.correlation = Some("case-9".into());
            message.content_type = Some("application/octet-stream".into());
            message.timestamp = Some(PausedClock::at(secs(5)));
            let headers = message.with_header("tenant", "acme").with_header("tenant", vec![0xff, 0x00]);
            headers.with_payload(vec![0x00, 0xff, 0xfe]).with_type("OrderPlaced")
        });
        let running = bench.start(options(), |this| match this.before {
            0..3 => Reply::Fail(transient()),
            3 => Reply::Fail(fatal()),
            _ => Reply::Done,
        });
        eventually("it is dead", || bench.counts().of(LetterState::Dead) == 1).await;
        assert!(!running.replayer().process_any().await.unwrap());
        assert!(running.replayer().process_any().await.unwrap());
        let calls = bench.calls.all();
        assert_eq!(calls.len(), 5);
        assert!(calls.iter().all(|call| call.message == calls[0].message));
        assert_eq!(calls[0].message.key.as_deref(), key.map(str::as_bytes));
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_sequence_is_never_replayed_twice_at_once() {
    // I6
    let bench = Bench::new();
    bench.push(&["a1"]);
    let running = bench.start(one_attempt(), |this| match this.letter {
        None => Reply::Fail(fatal()),
        Some(_) => Reply::after(secs(5), Reply::Done),
    });
    eventually("a1 is dead", || bench.letters("a").len() == 1).await;
    let (first, second) = (running.replayer(), running.replayer());
    let sequence = "a".into();
    let (first, second) = tokio::join!(first.process_any(), second.process_sequence(&sequence, "other"));
    assert_eq!((first.unwrap(), second.unwrap()), (true, None));
    assert_eq!(bench.calls.len(), 2);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_filter_that_panics_accepts_nothing_and_affects_nothing_else() {
    // I10
    let (bench, running, repaired) = with_dead(one_attempt(), &["a1", "b1"]).await;
    repaired.repair();
    let filter = |letter: &Letter| {
        assert_ne!(letter.sequence.as_str(), "a", "no such sequence, please");
        true
    };
    assert!(running.replayer().process(filter).await.unwrap());
    assert_eq!(bench.calls.done(), ["b1"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_replay_works_after_the_consumer_ended_and_before_the_next_one_runs() {
    let (bench, running, _) = with_dead(one_attempt(), &["a1"]).await;
    let replayer = running.replayer();
    running.stop().await;
    assert!(!replayer.process_any().await.unwrap(), "its handler is not repaired");
    assert_eq!((bench.calls.len(), bench.letter("a").replay_attempts), (2, 1));
    let builder = bench.builder(one_attempt()).handler(bench.handler(|_| Reply::Done));
    let consumer = builder.build().unwrap();
    let replayer = consumer.handle().replayer(support::NAME).unwrap();
    assert!(replayer.process_any().await.unwrap());
    assert_eq!((bench.calls.done(), bench.counts().open()), (vec!["a1".to_owned()], 0));
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_replays_holds_back_replays_only() {
    let (bench, running, repaired) = with_dead(one_attempt(), &["a1"]).await;
    repaired.repair();
    running.handle.pause(PauseScope::Replay, &operator("hands off")).await.unwrap();
    assert!(!running.replayer().process_any().await.unwrap());
    let report = running.replayer().process_all("nightly").await.unwrap();
    assert_eq!((report.closed, report.held, report.skipped), (0, 0, 1));
    bench.push(&["b1"]);
    eventually("the live stream goes on", || bench.calls.done() == ["b1"]).await;
    assert!(running.handle.resume(&PauseScope::Replay, &operator("go on")).await.unwrap());
    assert!(running.replayer().process_any().await.unwrap());
    running.stop().await;
}
