//! Messages that crash the process, from the engine's view. These tests use a recorder in memory. The
//! recorder that survives a real crash has its own tests.

use std::sync::Arc;

use lazaret_core::policy::RetryPolicy;
use lazaret_core::recorder::FlightRecorder;
use lazaret_core::{LetterState, Message, Reason};
use lazaret_engine::Options;
use lazaret_testkit::RecorderFile;

use crate::support::{
    self, Bench, Reply, Running, Try, eventually, fatal, let_pass, millis, options, retry, secs,
};

/// The options of the next process.
fn recorded(recorder: &RecorderFile) -> Options {
    let retry = RetryPolicy { max_attempts: 10, ..retry(lazaret_core::policy::Strategy::Ordered) };
    Options { flight_recorder: Some(Arc::new(recorder.open())), retry, ..options() }
}

/// Crashes the engine with its messages in flight: nothing is released in the recorder.
async fn die(running: Running, recorder: &RecorderFile) {
    recorder.crashed();
    running.crash().await;
}

/// A handler that hangs for `x1`, which stands for a crash, and takes a while for all others.
fn deadly(this: &Try) -> Reply {
    match this.name.as_str() {
        "x1" => Reply::Hang,
        _ => Reply::after(millis(50), Reply::Done),
    }
}

#[tokio::test(start_paused = true)]
async fn healthy_messages_leave_the_recorder_empty() {
    let (bench, recorder) = (Bench::new(), RecorderFile::default());
    bench.push(&["a1", "b1", "a2"]);
    let stats = bench.run(recorded(&recorder), |_| Reply::Done).await;
    assert_eq!((stats.handled, recorder.flying().len()), (3, 0));
    assert!(recorder.peak() > 0, "they were recorded");
}

#[tokio::test(start_paused = true)]
async fn the_culprit_is_charged_and_its_neighbours_are_not() {
    let (bench, recorder) = (Bench::new(), RecorderFile::default());
    bench.push(&["a1", "x1", "b1", "x2", "c1"]);
    let running = bench.start(recorded(&recorder), deadly);
    eventually("several are in flight", || recorder.flying().len() >= 3).await;
    die(running, &recorder).await;
    assert!(recorder.suspects().iter().all(|suspect| suspect.crashes == 0), "none was alone");
    for crashes in 1..=3 {
        let running = bench.start(recorded(&recorder), deadly);
        eventually("the culprit is alone", || recorder.flying() == ["events/0/1".into()]).await;
        let_pass(secs(5)).await;
        assert_eq!(recorder.flying(), ["events/0/1".into()], "nothing runs beside a suspect");
        die(running, &recorder).await;
        assert_eq!(recorder.suspects().iter().map(|suspect| suspect.crashes).max(), Some(crashes));
    }
    let running = bench.start(recorded(&recorder), deadly);
    eventually("it is given up", || bench.letters("x").len() == 2).await;
    let letter = bench.letters("x").remove(0);
    let cause = letter.cause.expect("it has a cause");
    assert_eq!((letter.state, letter.crash_attempts), (LetterState::Dead, 3));
    assert!(letter.poison, "it is poison");
    assert_eq!((cause.reason, cause.message.contains("3 times")), (Reason::CRASHED, true));
    assert_eq!(bench.standing("x")[1], ("x2".into(), LetterState::Waiting), "its sequence waits");
    eventually("the stream goes on", || bench.committed() == Some(4)).await;
    for name in ["a1", "b1", "c1"] {
        assert!(bench.calls.done().contains(&name.to_owned()), "{name} was handled");
    }
    assert!(recorder.suspects().is_empty(), "what is durable is forgotten");
    bench.push(&["d1", "e1", "f1"]);
    eventually("all run side by side again", || recorder.peak() >= 3).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_suspect_that_does_no_harm_is_cleared() {
    let (bench, recorder) = (Bench::new(), RecorderFile::default());
    bench.push(&["a1", "b1"]);
    let running = bench.start(recorded(&recorder), |_| Reply::Hang);
    eventually("both are in flight", || recorder.flying().len() == 2).await;
    die(running, &recorder).await;
    let stats = bench.run(recorded(&recorder), |_| Reply::Done).await;
    assert_eq!((stats.handled, recorder.peak()), (2, 1), "one after the other");
    assert!(recorder.suspects().is_empty());
    assert_eq!(bench.counts().open(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_of_a_recreated_stream_is_not_charged_with_crashes_of_one_that_had_its_id() {
    // I1, I4: the same id at the same offset.
    let (bench, recorder) = (Bench::new(), RecorderFile::default());
    let push = |name: &'static str| {
        bench.log.push_with(0, |mut message| {
            message.id = "evt-1".into();
            message.with_key(name).with_payload(name)
        });
    };
    let charges = || -> Vec<(u32, u32)> {
        let suspects = recorder.suspects();
        suspects.iter().map(|suspect| (suspect.partition.incarnation, suspect.crashes)).collect()
    };
    push("old");
    for crashes in 1..=2 {
        let running = bench.start(recorded(&recorder), |_| Reply::Hang);
        eventually("it runs", || recorder.flying() == ["evt-1".into()]).await;
        die(running, &recorder).await;
        assert_eq!(charges(), [(0, crashes)]);
    }
    bench.log.recreate(1);
    push("new");
    let running = bench.start(recorded(&recorder), |_| Reply::Hang);
    eventually("it runs", || recorder.flying() == ["evt-1".into()]).await;
    assert_eq!(bench.calls.attempts_of("new"), [1]);
    die(running, &recorder).await;
    assert_eq!(charges(), [(0, 2), (1, 1)]);
    let stats = bench.run(recorded(&recorder), |_| Reply::Done).await;
    assert_eq!((stats.handled, bench.calls.attempts_of("new")), (1, vec![1, 2]));
    assert_eq!(charges(), [(0, 2)], "its position is committed");
}

#[tokio::test(start_paused = true)]
async fn attempts_count_on_over_crashes_and_deaths_in_company() {
    // I4
    let (bench, recorder) = (Bench::new(), RecorderFile::default());
    bench.push(&["x1"]);
    let options = || {
        let mut options = recorded(&recorder);
        (options.retry.max_crashes, options.retry.hold) = (0, secs(600));
        options
    };
    let script = |this: &Try| match this.before {
        // The message crashes the process while it runs alone.
        0 => Reply::Hang,
        // The message runs with others when the process crashes.
        1 => Reply::Hang,
        // The message fails once and waits in memory.
        2 => Reply::Fail(support::transient()),
        _ => Reply::Hang,
    };
    let running = bench.start(options(), script);
    eventually("it is alone", || recorder.flying() == ["events/0/0".into()]).await;
    die(running, &recorder).await;
    let running = bench.start(options(), script);
    eventually("it runs", || recorder.flying() == ["events/0/0".into()]).await;
    let other = Message::new("other", "events", lazaret_core::Position::new(0, 99));
    let slot = recorder.current().enter(&Bench::queue(), &other, 1);
    assert!(slot.index().is_some());
    die(running, &recorder).await;
    for calls in [4, 5] {
        let running = bench.start(options(), script);
        eventually("it runs", || bench.calls.len() == calls).await;
        let slot = recorder.current().enter(&Bench::queue(), &other, 1);
        assert!(slot.index().is_some());
        die(running, &recorder).await;
    }
    let attempts: Vec<u32> = bench.calls.all().iter().map(|call| call.attempt).collect();
    assert_eq!(attempts, [1, 2, 2, 3, 3], "one crash was charged; what was cut off in company is repeated");
}

#[tokio::test(start_paused = true)]
async fn attempts_that_are_cut_off_beside_others_use_up_none() {
    // I4 bounds the attempts that count: kills from outside do not make a healthy message a dead letter.
    let (bench, recorder) = (Bench::new(), RecorderFile::default());
    bench.push(&["x1"]);
    let options = || {
        let mut options = recorded(&recorder);
        options.retry.max_attempts = 2;
        options
    };
    let other = Message::new("other", "events", lazaret_core::Position::new(0, 99));
    for calls in 1..=5 {
        let running = bench.start(options(), |_| Reply::Hang);
        eventually("it runs", || bench.calls.len() == calls).await;
        let slot = recorder.current().enter(&Bench::queue(), &other, 1);
        assert!(slot.index().is_some());
        die(running, &recorder).await;
    }
    assert_eq!(
        bench.calls.attempts_of("x1"),
        [1; 5],
        "more calls than attempts, all of them the first attempt"
    );
    let running = bench.start(options(), |_| Reply::Fail(support::transient()));
    eventually("its attempts are used up", || {
        bench.letters("x").first().is_some_and(|letter| letter.state == LetterState::Dead)
    })
    .await;
    let letter = bench.letter("x");
    assert_eq!((letter.state, letter.attempts, letter.crash_attempts), (LetterState::Dead, 2, 0));
    assert_eq!(bench.calls.attempts_of("x1"), [1, 1, 1, 1, 1, 1, 2]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn crashes_in_a_stored_retry_are_counted_in_the_letter() {
    let (bench, recorder) = (Bench::new(), RecorderFile::default());
    bench.push(&["x1", "x2"]);
    let script = |this: &Try| match this.letter {
        None => Reply::Fail(support::transient()),
        Some(_) => Reply::Hang,
    };
    let options = || {
        let mut options = recorded(&recorder);
        options.retry.hold = secs(0);
        options
    };
    for _ in 1..=3 {
        let running = bench.start(options(), script);
        eventually("the retry runs", || recorder.flying() == ["events/0/0".into()]).await;
        die(running, &recorder).await;
    }
    let running = bench.start(options(), script);
    eventually("it is dead", || bench.letters("x")[0].state == LetterState::Dead).await;
    let letter = bench.letters("x").remove(0);
    assert_eq!((letter.crash_attempts, letter.poison), (3, true));
    assert_eq!(letter.cause.expect("it has a cause").reason, Reason::CRASHED);
    running.stop().await;
}

/// Replays the only letter and crashes the process meanwhile.
async fn crash_in_replay(bench: &Bench, running: Running, recorder: &RecorderFile) {
    let replayer = running.replayer();
    let replay = tokio::spawn(async move { replayer.process_any().await });
    eventually("the replay runs", || !recorder.flying().is_empty()).await;
    replay.abort();
    assert!(replay.await.is_err_and(|error| error.is_cancelled()));
    // The abort removed the replay from the recorder. A crash would have left it there.
    let message = bench.letter("x").message.clone();
    let slot = recorder.current().enter(&Bench::queue(), &message, 2);
    assert!(slot.index().is_some());
    die(running, recorder).await;
    let_pass(secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_was_cut_off_by_a_crash_is_tried_again_before_it_counts() {
    let (bench, recorder) = (Bench::new(), RecorderFile::default());
    bench.push(&["x1"]);
    let script = |this: &Try| match (&this.replay, this.before) {
        (None, _) => Reply::Fail(fatal()),
        (Some(_), 1) => Reply::Hang,
        (Some(_), _) => Reply::Done,
    };
    let running = bench.start(recorded(&recorder), script);
    eventually("it is a letter", || bench.committed() == Some(0)).await;
    crash_in_replay(&bench, running, &recorder).await;
    let running = bench.start(recorded(&recorder), script);
    let_pass(secs(1)).await;
    assert!(running.replayer().process_any().await.unwrap());
    let letter = bench.letter_at(0).expect("it is kept");
    assert_eq!((letter.state, letter.crash_attempts), (LetterState::Resolved, 0));
    assert_eq!(bench.calls.attempts_of("x1"), [1, 2, 3]);
    assert!(recorder.suspects().is_empty());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_letter_whose_replays_crash_the_process_is_not_replayed_beyond_the_limit() {
    // I4
    let (bench, recorder) = (Bench::new(), RecorderFile::default());
    bench.push(&["x1"]);
    let script = |this: &Try| match this.replay {
        None => Reply::Fail(fatal()),
        Some(_) => Reply::Hang,
    };
    let mut running = bench.start(recorded(&recorder), script);
    eventually("it is a letter", || bench.committed() == Some(0)).await;
    for _ in 0..3 {
        crash_in_replay(&bench, running, &recorder).await;
        running = bench.start(recorded(&recorder), script);
        let_pass(secs(1)).await;
    }
    assert!(!running.replayer().process_any().await.unwrap());
    let letter = bench.letter("x");
    assert_eq!((letter.state, letter.crash_attempts, letter.replay_attempts), (LetterState::Dead, 3, 3));
    assert_eq!(letter.cause.map(|cause| cause.reason), Some(Reason::CRASHED));
    assert_eq!(bench.calls.len(), 4, "it was not tried again");
    running.stop().await;
}
