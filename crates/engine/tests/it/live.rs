//! The live path: from the source to the handler, and the fate of a message whose first failure is its
//! last. The numbers H1 to H30 refer to the Axon conformance list.

use std::sync::{Arc, Mutex};

use lazaret_core::letter::Diagnostics;
use lazaret_core::policy::{Decision, EnqueuePolicy, Stage};
use lazaret_core::store::ErrorKind;
use lazaret_core::{Failure, Letter, LetterState, Phase, Reason, Verdict};
use lazaret_engine::Options;

use crate::support::{
    self, Bench, Reply, asking, eventually, fatal, let_pass, one_attempt, options, payload_of, secs,
};

/// Options with which the first failure is the last and this policy decides.
fn with_policy(policy: impl EnqueuePolicy) -> Options {
    Options { enqueue: Arc::new(policy), ..one_attempt() }
}

/// Runs a bench in which `a1` fails once under a policy.
async fn fail_under(policy: impl EnqueuePolicy) -> Bench {
    let bench = Bench::new();
    bench.push(&["a1"]);
    let stats = bench.run(with_policy(policy), |_| Reply::Fail(fatal())).await;
    assert_eq!(bench.calls.tried(), ["a1"], "the handler was called");
    assert_eq!((stats.failed, bench.committed()), (1, Some(0)), "the message was settled");
    bench
}

#[tokio::test(start_paused = true)]
async fn a_healthy_message_is_handled_and_never_becomes_a_letter() {
    // H1, I1
    let bench = Bench::new();
    bench.push(&["a1", "b1", "a2"]);
    let stats = bench.run(options(), |_| Reply::Done).await;
    let mut handled = bench.calls.tried();
    handled.sort();
    assert_eq!(handled, ["a1", "a2", "b1"]);
    assert_eq!((stats.handled, stats.failed, stats.handed_off, stats.read), (3, 0, 0, 3));
    assert_eq!(bench.counts().by_state, [0; 9]);
    assert_eq!(bench.committed(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn healthy_messages_never_touch_the_letters_in_the_store() {
    let bench = Bench::new();
    (0..500).for_each(|n| bench.push(&[&format!("k{n}x")]));
    let stats = bench.run(options(), |_| Reply::Done).await;
    assert_eq!(stats.handled, 500);
    for call in ["hand_off", "lookup", "note_attempts", "settle", "settle_and_continue", "sequence", "get"] {
        assert_eq!(bench.store.calls(call), 0, "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_of_an_open_sequence_is_appended_and_its_handler_is_not_called() {
    // H2, I2
    let bench = Bench::new();
    bench.push(&["a1"]);
    let running = bench.start(one_attempt(), |_| Reply::Fail(fatal()));
    eventually("a1 is dead", || bench.letters("a").len() == 1).await;
    bench.push(&["a2", "a3"]);
    eventually("a2 and a3 are appended", || bench.committed() == Some(2)).await;
    let dead = ("a1".to_owned(), LetterState::Dead);
    let waiting = |name: &str| (name.to_owned(), LetterState::Waiting);
    assert_eq!(bench.standing("a"), [dead, waiting("a2"), waiting("a3")]);
    assert_eq!(bench.letters("a")[1].cause, None);
    assert_eq!(bench.calls.tried(), ["a1"]);
    let stats = running.stop().await;
    assert_eq!((stats.handed_off, stats.appended), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn messages_that_are_in_flight_behind_a_failing_one_are_appended_in_order() {
    // I2
    let bench = Bench::new();
    bench.push(&["a1", "a2", "b1", "a3", "a4"]);
    bench
        .run(one_attempt(), |this| match this.name.as_str() {
            "a1" => Reply::after(secs(1), Reply::Fail(fatal())),
            _ => Reply::Done,
        })
        .await;
    let names: Vec<_> = bench.letters("a").iter().map(payload_of).collect();
    assert_eq!(names, ["a1", "a2", "a3", "a4"]);
    let mut tried = bench.calls.tried();
    tried.sort();
    assert_eq!(tried, ["a1", "b1"]);
    assert_eq!(bench.committed(), Some(4));
}

#[tokio::test(start_paused = true)]
async fn a_failing_message_becomes_a_letter_with_all_that_is_known() {
    // H3
    let bench = Bench::new();
    bench.push(&["a1"]);
    let options = Options {
        dead_letter: Some(lazaret_engine::DeadLetterOptions {
            owner: Some("team-orders".into()),
            ttl: Some(secs(60)),
            ..Default::default()
        }),
        ..one_attempt()
    };
    bench
        .run(options, |this| {
            this.context.put_metadata("gateway", "eu-1").expect("there is room");
            this.context.mark_phase(Phase::ExternalCall);
            Reply::Fail(fatal())
        })
        .await;
    let letter = bench.letter("a");
    let cause = letter.cause.clone().expect("it failed");
    assert_eq!((cause.reason, cause.phase), (Reason::DOMAIN_INVALID, Phase::ExternalCall));
    assert_eq!((&*cause.error_type, &*cause.message), ("Invalid", "no such order"));
    assert_eq!((letter.state, letter.attempts, letter.replay_attempts), (LetterState::Dead, 1, 0));
    assert_eq!(letter.diagnostics["gateway"], "eu-1");
    assert_eq!(letter.owner.as_deref(), Some("team-orders"));
    assert_eq!(letter.first_failed_at, letter.last_failed_at);
    assert_eq!(letter.expires_at, Some(letter.enqueued_at + jiff::SignedDuration::from_secs(60)));
    assert_eq!(letter.history.len(), 1);
    assert_eq!((letter.due_at, letter.poison), (None, false));
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_ignores_keeps_the_letter_as_it_is() {
    // H4
    let bench = fail_under(|_: &Letter, _: &Failure, _: Stage| Decision::Ignore).await;
    assert_eq!(bench.letter("a").cause.map(|cause| cause.message).as_deref(), Some("no such order"));
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_does_not_enqueue_leaves_a_closed_letter_and_an_audit_entry() {
    // H5, H17, I1, I11
    for decision in [Decision::DoNotEnqueue, Decision::Evict] {
        let bench = fail_under(move |_: &Letter, _: &Failure, _: Stage| decision.clone()).await;
        assert_eq!((bench.counts().open(), bench.counts().of(LetterState::Skipped)), (0, 1));
        let letter = bench.letter_at(0).expect("the closed letter is kept");
        assert_eq!((letter.state, letter.due_at), (LetterState::Skipped, None));
        let audit = bench.audit();
        assert_eq!(audit.len(), 1);
        assert_eq!((audit[0].action.as_str(), audit[0].subject.clone()), ("skip", letter.id.to_string()));
        let cause = letter.cause.expect("the reason is kept");
        assert_eq!((audit[0].by.why.clone(), cause.message.as_str()), (cause.headline(), "no such order"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_a_policy_dropped_does_not_block_its_sequence() {
    // I3
    let bench = Bench::new();
    bench.push(&["a1", "a2"]);
    let options = with_policy(|_: &Letter, _: &Failure, _: Stage| Decision::DoNotEnqueue);
    bench.run(options, |this| if this.name == "a1" { Reply::Fail(fatal()) } else { Reply::Done }).await;
    assert_eq!(bench.calls.done(), ["a2"]);
}

#[tokio::test(start_paused = true)]
async fn when_the_store_takes_no_letter_the_message_stays_unsettled_until_it_does() {
    // H6, I9
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    bench.store.fail("hand_off", ErrorKind::Unavailable);
    let running = bench.start(one_attempt(), |this| match this.name.as_str() {
        "a1" => Reply::Fail(fatal()),
        _ => Reply::Done,
    });
    eventually("the engine reports it", || bench.events.count("HandOffFailed") > 0).await;
    bench.push(&["c1"]);
    let_pass(secs(30)).await;
    assert_eq!(bench.committed(), None, "nothing may be committed past a1");
    assert_eq!(bench.calls.of("c1").len(), 0, "the source is held back");
    assert_eq!((bench.calls.of("a1").len(), bench.counts().open()), (1, 0));
    assert!(running.stats().hand_off_failures > 1);

    bench.store.mend("hand_off");
    eventually("everything is settled", || bench.committed() == Some(2)).await;
    assert_eq!(bench.calls.of("a1").len(), 1, "a store outage costs no attempts");
    assert_eq!((bench.letter("a").attempts, bench.calls.of("c1").len()), (1, 1));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn when_the_store_cannot_append_the_follower_stays_unsettled_and_is_not_handled() {
    // H7, I2, I9
    let bench = Bench::new();
    bench.push(&["a1"]);
    let running = bench.start(one_attempt(), |_| Reply::Fail(fatal()));
    eventually("a1 is dead and committed", || bench.committed() == Some(0)).await;
    bench.store.fail("hand_off", ErrorKind::Unavailable);
    bench.push(&["a2", "a3"]);
    let_pass(secs(30)).await;
    assert_eq!((bench.committed(), bench.calls.tried().len(), bench.letters("a").len()), (Some(0), 1, 1));
    bench.store.mend("hand_off");
    eventually("both are appended", || bench.committed() == Some(2)).await;
    let names: Vec<_> = bench.letters("a").iter().map(payload_of).collect();
    assert_eq!(names, ["a1", "a2", "a3"]);
    assert_eq!(bench.calls.tried(), ["a1"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_at_the_start_delays_everything_and_loses_nothing() {
    // I9
    let bench = Bench::new();
    bench.push(&["a1"]);
    bench.store.set_down(true);
    let running = bench.start(options(), |_| Reply::Done);
    let_pass(secs(20)).await;
    assert_eq!((bench.calls.len(), bench.committed()), (0, None));
    bench.store.set_down(false);
    eventually("a1 is committed", || bench.committed() == Some(0)).await;
    assert_eq!(bench.calls.done(), ["a1"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_error_that_waiting_cannot_mend_ends_the_consumer_and_keeps_the_position() {
    // I1, I9
    let bench = Bench::new();
    bench.push(&["a1"]);
    bench.store.fail("hand_off", ErrorKind::Corrupt);
    let running = bench.start(one_attempt(), |_| Reply::Fail(fatal()));
    let error = running.ended().await.expect_err("it cannot go on");
    assert!(matches!(error, lazaret_engine::Error::Store(_)), "{error}");
    assert_eq!(bench.committed(), None);
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_enqueues_without_a_cause_keeps_the_handlers_error() {
    // H14
    let bench = fail_under(|_: &Letter, _: &Failure, _: Stage| Decision::enqueue()).await;
    let cause = bench.letter("a").cause.expect("the handler's own");
    assert_eq!((&*cause.error_type, &*cause.message), ("Invalid", "no such order"));
}

#[tokio::test(start_paused = true)]
async fn a_policy_can_put_its_own_cause() {
    // H15
    let policy = |_: &Letter, failure: &Failure, _: Stage| {
        Decision::enqueue_with(Failure { message: "looked into it".to_owned(), ..failure.clone() })
    };
    let bench = fail_under(policy).await;
    assert_eq!(bench.letter("a").cause.map(|cause| cause.message).as_deref(), Some("looked into it"));
}

#[tokio::test(start_paused = true)]
async fn a_policy_can_add_diagnostics() {
    // H16
    let policy = |letter: &Letter, failure: &Failure, _: Stage| {
        let mut diagnostics: Diagnostics = letter.diagnostics.clone();
        diagnostics.insert("k".to_owned(), "v".to_owned());
        Decision::enqueue_with(failure.clone()).with_diagnostics(diagnostics)
    };
    let bench = fail_under(policy).await;
    assert_eq!(bench.letter("a").diagnostics, Diagnostics::from([("k".to_owned(), "v".to_owned())]));
}

#[tokio::test(start_paused = true)]
async fn a_policy_can_choose_by_the_type_and_text_of_the_error() {
    // H18, H19, H28, H29
    let only = |wanted: &'static str| {
        move |_: &Letter, failure: &Failure, _: Stage| {
            if failure.error_type == wanted || failure.message.contains(wanted) {
                Decision::enqueue_with(failure.clone())
            } else {
                Decision::DoNotEnqueue
            }
        }
    };
    let by_type = fail_under(only("Invalid")).await;
    assert_eq!(by_type.letter("a").cause.map(|cause| cause.error_type).as_deref(), Some("Invalid"));
    let by_text = fail_under(only("no such")).await;
    assert_eq!(by_text.letter("a").cause.map(|cause| cause.message).as_deref(), Some("no such order"));
    let neither = fail_under(only("Timeout")).await;
    assert_eq!(neither.counts().open(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_policy_can_choose_by_the_message() {
    // H20, H21
    let policy = |letter: &Letter, failure: &Failure, _: Stage| {
        if letter.message.headers.get_str("importance") == Some("high") {
            Decision::enqueue_with(failure.clone())
        } else {
            Decision::DoNotEnqueue
        }
    };
    let bench = Bench::new();
    bench.log.push_with(0, |m| m.with_key("a").with_payload("a1").with_header("importance", "high"));
    bench.push(&["b1"]);
    bench.run(with_policy(policy), |_| Reply::Fail(fatal())).await;
    assert_eq!((bench.letters("a").len(), bench.letters("b").len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_policy_is_shown_the_letter_that_would_be_kept_once() {
    // H30, H32
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = seen.clone();
    let policy = move |letter: &Letter, failure: &Failure, stage: Stage| {
        let state = (letter.state, letter.attempts, letter.cause.as_ref() == Some(failure), stage);
        notes.lock().expect("no test panics here").push(state);
        Decision::enqueue_with(failure.clone())
    };
    let bench = fail_under(policy).await;
    assert_eq!(*seen.lock().unwrap(), [(LetterState::Dead, 1, true, Stage::FirstFailure)]);
    assert_eq!(bench.letter("a").cause.map(|cause| cause.reason), Some(Reason::DOMAIN_INVALID));
}

#[tokio::test(start_paused = true)]
async fn each_verdict_leaves_its_letter() {
    let table = [
        (Verdict::DeadLetter, Some(LetterState::Dead)),
        (Verdict::Park, Some(LetterState::Parked)),
        (Verdict::Quarantine, Some(LetterState::Quarantined)),
        (Verdict::Skip, Some(LetterState::Skipped)),
        (Verdict::Duplicate, None),
    ];
    for (verdict, state) in table {
        let bench = Bench::new();
        bench.push(&["a1"]);
        let stats = bench.run(options(), move |_| Reply::Fail(asking(verdict))).await;
        assert_eq!(bench.calls.len(), 1, "{verdict}");
        assert_eq!(bench.letter_at(0).map(|letter| letter.state), state, "{verdict}");
        assert_eq!(bench.committed(), Some(0), "{verdict}");
        assert_eq!(stats.duplicates, u64::from(verdict == Verdict::Duplicate), "{verdict}");
        assert_eq!(bench.audit().len(), usize::from(verdict == Verdict::Skip), "{verdict}");
    }
}

#[tokio::test(start_paused = true)]
async fn messages_of_one_key_are_handled_in_order_and_others_beside_them() {
    // I2, I3
    let bench = Bench::new();
    bench.push(&["a1", "b1", "a2", "c1", "a3", "b2"]);
    bench
        .run(options(), |this| match this.name.as_str() {
            "a1" => Reply::after(secs(3), Reply::Done),
            "a2" => Reply::after(secs(2), Reply::Done),
            _ => Reply::after(secs(1), Reply::Done),
        })
        .await;
    let of = |key: &str| -> Vec<String> {
        bench.calls.done().into_iter().filter(|name| name.starts_with(key)).collect()
    };
    assert_eq!(
        (of("a"), of("b")),
        (vec!["a1".into(), "a2".into(), "a3".into()], vec!["b1".into(), "b2".into()])
    );
    assert_eq!(bench.calls.times_of("b2"), [1.0], "b2 waits for b1 only");
    assert_eq!(bench.calls.times_of("a3"), [5.0], "a3 waits for a1 and a2");
}

#[tokio::test(start_paused = true)]
async fn no_more_attempts_run_at_once_than_allowed() {
    // I7
    let bench = Bench::new();
    (0..20).for_each(|n| bench.push(&[&format!("k{n}x")]));
    let options = Options { concurrency: 4, shards: 2, ..options() };
    bench.run(options, |_| Reply::after(secs(1), Reply::Done)).await;
    let mut times: Vec<f64> = bench.calls.all().iter().map(|call| call.at.as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    let waves: Vec<f64> = (0..5).flat_map(|second| [f64::from(second); 4]).collect();
    assert_eq!(times, waves);
}

#[tokio::test(start_paused = true)]
async fn a_full_window_holds_the_source_back_and_lets_go_again() {
    // I7
    let bench = Bench::new();
    (0..50).for_each(|n| bench.push(&[&format!("k{n}x")]));
    let options = Options { window: 8, concurrency: 2, ..options() };
    let source = bench.log.join().with_batch(4);
    let builder = bench.builder_on(options, source);
    let running =
        support::Running::start(builder.handler(bench.handler(|_| Reply::after(secs(1), Reply::Done))));
    let mut most = 0;
    while bench.calls.done().len() < 50 {
        most = most.max(running.stats().read - bench.calls.done().len() as u64);
        let_pass(support::millis(100)).await;
    }
    // A batch is never split: the window may be exceeded by less than one batch.
    assert_eq!(most, 10);
    running.stop().await;
    assert_eq!(bench.committed(), Some(49));
}

#[tokio::test(start_paused = true)]
async fn a_filtered_message_is_settled_without_a_call() {
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let filter = |message: &lazaret_core::Message| Ok(message.key.as_deref() != Some(b"a"));
    let stats = bench.run(Options { filter: Some(Arc::new(filter)), ..options() }, |_| Reply::Done).await;
    assert_eq!((bench.calls.done(), stats.filtered, bench.committed()), (vec!["b1".to_owned()], 1, Some(1)));
}
