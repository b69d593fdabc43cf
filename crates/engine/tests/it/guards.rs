//! Everything that holds a consumer: fuse, pauses, limits of the store, draining and stopping.

use lazaret_core::policy::{BudgetPolicy, CapacityPolicy, FusePolicy, RetryPolicy, Strategy};
use lazaret_core::store::{Act, Actor, ErrorKind, Limits, PauseScope};
use lazaret_core::{LetterState, Partition, Reason, Verdict};
use lazaret_engine::{DeadLetterOptions, Error, FuseState, Options};

use crate::support::{
    self, Bench, FaultyStore, PausedClock, Reply, Running, Try, asking, at_once, eventually, fatal, let_pass,
    millis, one_attempt, operator, options, payload_of, retry, secs, transient,
};

#[tokio::test(start_paused = true)]
async fn a_fuse_that_blows_pauses_the_consumer_durably_and_says_why() {
    // I1
    let bench = Bench::new();
    (0..40).for_each(|n| bench.push(&[&format!("k{n}x")]));
    let fuse = FusePolicy { consecutive: 5, ..FusePolicy::default() };
    let options = Options { fuse: Some(fuse), concurrency: 1, shards: 1, ..one_attempt() };
    let running = bench.start(options.clone(), |_| Reply::after(millis(10), Reply::Fail(fatal())));
    eventually("the fuse blows", || bench.events.count("FuseBlown") == 1).await;
    let_pass(secs(60)).await;
    let dead = bench.counts().of(LetterState::Dead);
    assert!((5..=6).contains(&dead), "{dead}: five, and at most the one that was running");
    let pauses = bench.pauses();
    assert_eq!((pauses.len(), &pauses[0].scope), (1, &PauseScope::Consumer));
    let why = pauses[0].by.why.clone();
    let named = "fuse: 5 messages in a row failed for good, all of them DOMAIN_INVALID in group g1_";
    assert!(why.starts_with(named), "{why}");
    assert_eq!(running.handle.pauses(), pauses);
    let held = bench.calls.len();
    running.stop().await;
    assert_eq!(bench.committed(), Some(dead - 1), "the rest is still to come");

    let second = bench.start(options, |_| Reply::Done);
    let_pass(secs(60)).await;
    assert_eq!(bench.calls.len(), held, "the pause survives a restart");
    assert_eq!(second.handle.fuse(), Some(FuseState::Blown { why }), "and so does what the fuse did");
    assert!(second.handle.resume(&PauseScope::Consumer, &operator("repaired")).await.unwrap());
    assert_eq!(second.handle.fuse(), Some(FuseState::Intact));
    eventually("the rest is handled", || bench.committed() == Some(39)).await;
    assert_eq!(bench.calls.done().len() as u64, 40 - dead);
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_fuse_does_not_wait_for_the_letters_to_be_stored() {
    // While the letters are on their way, other messages would continue to fail.
    for window in [false, true] {
        let bench = Bench::new();
        (0..200).for_each(|n| bench.push(&[&format!("k{n}x")]));
        bench.store.fail("hand_off", ErrorKind::Unavailable);
        let fuse = match window {
            false => FusePolicy { consecutive: 5, ..FusePolicy::default() },
            true => FusePolicy { ratio: 0.5, window: 10, consecutive: 1000 },
        };
        let options = Options { fuse: Some(fuse), concurrency: 2, shards: 1, ..one_attempt() };
        let running = bench.start(options, |_| Reply::after(millis(1), Reply::Fail(fatal())));
        eventually("the fuse blows", || bench.events.count("FuseBlown") == 1).await;
        let_pass(secs(10)).await;
        let (calls, most) = (bench.calls.len(), if window { 11 } else { 6 });
        assert!(calls <= most, "{calls} calls, {most} at most: those that were running");
        bench.store.mend("hand_off");
        eventually("they are stored", || bench.counts().of(LetterState::Dead) == calls as u64).await;
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_fuse_that_blows_while_the_store_is_away_pauses_at_once_and_is_written_down_later() {
    // I9
    let bench = Bench::new();
    (0..10).for_each(|n| bench.push(&[&format!("k{n}x")]));
    bench.store.fail("set_pause", ErrorKind::Unavailable);
    let fuse = FusePolicy { consecutive: 2, ..FusePolicy::default() };
    let options = Options { fuse: Some(fuse), concurrency: 1, shards: 1, ..one_attempt() };
    let running = bench.start(options, |_| Reply::after(millis(10), Reply::Fail(fatal())));
    eventually("the fuse blows", || bench.events.count("FuseBlown") == 1).await;
    let_pass(secs(60)).await;
    assert!(bench.calls.len() <= 3, "{}", bench.calls.len());
    assert!(bench.pauses().is_empty());
    bench.store.mend("set_pause");
    eventually("it is written down", || bench.pauses().len() == 1).await;
    running.stop().await;
}

/// Starts a consumer that handles everything, with this scope paused before the start.
fn paused(bench: &Bench, scope: PauseScope) -> Running {
    use lazaret_core::store::LetterStore;
    let by = operator("maintenance");
    at_once(bench.store.memory().pause(&support::NAME.into(), scope, &by));
    bench.start(options(), |_| Reply::Done)
}

#[tokio::test(start_paused = true)]
async fn pauses_of_consumer_stream_and_partition_hold_their_messages_back_until_they_end() {
    let partition = Partition::new("events", 1);
    let scopes = [
        (PauseScope::Consumer, vec![]),
        (PauseScope::Stream("events".into()), vec![]),
        (PauseScope::Partition(partition), vec!["a1".to_owned()]),
        (PauseScope::Stream("others".into()), vec!["a1".to_owned(), "b1".to_owned()]),
    ];
    for (scope, flows) in scopes {
        let bench = Bench::with_partitions(2);
        bench.push_to(0, &["a1"]);
        bench.push_to(1, &["b1"]);
        let running = paused(&bench, scope.clone());
        let_pass(secs(30)).await;
        let mut done = bench.calls.done();
        done.sort();
        assert_eq!(done, flows, "{scope}");
        assert_eq!(bench.log.committed(1).is_some(), flows.len() == 2, "{scope}");
        assert!(running.handle.resume(&scope, &operator("done")).await.unwrap());
        eventually("all flows", || bench.calls.done().len() == 2).await;
        assert!(!running.handle.resume(&scope, &operator("again")).await.unwrap());
        assert_eq!((bench.events.count("Paused"), bench.events.count("Resumed")), (1, 1), "{scope}");
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_from_when_it_returns_for_messages_that_are_in_flight_too() {
    let bench = Bench::new();
    bench.push(&["a1", "a2", "b1"]);
    let running = bench.start(options(), |_| Reply::after(secs(1), Reply::Done));
    eventually("a1 and b1 run", || bench.calls.len() == 2).await;
    running.handle.pause(PauseScope::Consumer, &operator("stop it")).await.unwrap();
    let_pass(secs(30)).await;
    assert_eq!(bench.calls.done().len(), 2, "what runs comes to its end");
    assert_eq!(bench.calls.of("a2").len(), 0, "what waits goes on waiting");
    running.handle.resume(&PauseScope::Consumer, &operator("go on")).await.unwrap();
    eventually("a2 is handled", || bench.committed() == Some(2)).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_by_another_instance_is_noticed_and_holds_stored_retries_too() {
    use lazaret_core::store::LetterStore;
    let bench = Bench::new();
    bench.push(&["a1"]);
    let policy = RetryPolicy { hold: secs(0), initial_delay: secs(10), ..retry(Strategy::Ordered) };
    let running = bench.start(Options { retry: policy, ..options() }, |this| match this.before {
        0 => Reply::Fail(transient()),
        _ => Reply::Done,
    });
    eventually("a1 waits in the store", || bench.counts().of(LetterState::Retrying) == 1).await;
    let (memory, name) = (bench.store.memory(), support::NAME.into());
    memory.pause(&name, PauseScope::Consumer, &operator("over there")).await.unwrap();
    let_pass(secs(30)).await;
    bench.push(&["b1"]);
    let_pass(secs(30)).await;
    assert_eq!(bench.calls.len(), 1);
    memory.resume(&name, &PauseScope::Consumer, &operator("over there")).await.unwrap();
    eventually("both are handled", || bench.calls.done().len() == 2).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_paused_sequence_wait_in_the_store_and_are_released_in_order() {
    // I1, I2, I3
    for strategy in [Strategy::Ordered, Strategy::Unordered, Strategy::InPlace] {
        let bench = Bench::new();
        let running = bench.start(Options { retry: retry(strategy), ..options() }, |_| Reply::Done);
        let scope = PauseScope::Sequence("a".into());
        running.handle.pause(scope.clone(), &operator("customer asked")).await.unwrap();
        bench.push(&["a1", "b1", "a2", "a3"]);
        eventually("the position goes on", || bench.committed() == Some(3)).await;
        let_pass(secs(60)).await;
        assert_eq!(bench.calls.tried(), ["b1"], "{strategy}");
        let waiting = ["a1", "a2", "a3"].map(|name| (name.to_owned(), LetterState::Waiting));
        assert_eq!(bench.standing("a"), waiting, "{strategy}");
        running.handle.resume(&scope, &operator("go on")).await.unwrap();
        bench.push(&["a4"]);
        eventually("all are handled", || bench.calls.done().len() == 5).await;
        assert_eq!(bench.calls.done()[1..4], ["a1", "a2", "a3"], "{strategy}");
        running.stop().await;
        assert_eq!(bench.counts().open(), 0, "{strategy}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_sequence_stays_paused_over_a_restart() {
    // I2
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let first = paused(&bench, PauseScope::Sequence("a".into()));
    eventually("both are settled", || bench.committed() == Some(1)).await;
    first.crash().await;
    let second = bench.start(options(), |_| Reply::Done);
    bench.push(&["a2"]);
    let_pass(secs(60)).await;
    assert_eq!(bench.calls.tried(), ["b1"]);
    second.handle.resume(&PauseScope::Sequence("a".into()), &operator("go on")).await.unwrap();
    eventually("a is handled", || bench.calls.done() == ["b1", "a1", "a2"]).await;
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_runs_before_the_pauses_are_known() {
    // I9: the store also fails the query for the pauses.
    let bench = Bench::new();
    bench.push(&["a1"]);
    bench.store.fail("pauses", ErrorKind::Unavailable);
    let running = paused(&bench, PauseScope::Consumer);
    let_pass(secs(30)).await;
    assert_eq!(bench.calls.len(), 0, "it may be paused");
    bench.store.mend("pauses");
    let_pass(secs(30)).await;
    assert_eq!(bench.calls.len(), 0, "it is paused");
    running.handle.resume(&PauseScope::Consumer, &operator("go on")).await.unwrap();
    eventually("a1 is handled", || bench.calls.done() == ["a1"]).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_from_before_a_pause_does_not_end_it() {
    let bench = Bench::new();
    let running = bench.start(options(), |_| Reply::Done);
    let_pass(millis(500)).await;
    let asked = bench.store.calls("pauses");
    bench.store.answer_late("pauses", secs(1));
    eventually("the engine asks what is paused", || bench.store.calls("pauses") > asked).await;
    bench.store.answer_late("pauses", secs(0));
    running.handle.pause(PauseScope::Consumer, &operator("hold it")).await.unwrap();
    bench.push(&["a1"]);
    let_pass(secs(10)).await;
    assert_eq!((bench.calls.len(), bench.events.count("Resumed")), (0, 0));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_comes_back_from_the_store_after_a_drain_began_is_not_started() {
    // I2: the message will be delivered again to the next owner.
    let bench = Bench::new();
    bench.push(&["a1"]);
    let running = bench.start(one_attempt(), |this| match (this.name.as_str(), &this.letter) {
        ("a1", None) => Reply::Fail(fatal()),
        ("a2", _) => Reply::after(secs(10), Reply::Done),
        _ => Reply::Done,
    });
    eventually("a1 is dead", || bench.committed() == Some(0)).await;
    let (replayer, by) = (running.replayer(), operator("test"));
    let letter = bench.letter("a").id;
    replayer.act(letter, Act::Evict, &by).await.unwrap();
    bench.push(&["a2", "a3", "a4"]);
    eventually("a2 runs", || bench.calls.of("a2").len() == 1).await;
    // The engine learns that the sequence is open, but not that it is closed again.
    replayer.act(letter, Act::Restore, &by).await.unwrap();
    assert!(replayer.process_any().await.unwrap());
    bench.store.slow_down("hand_off", secs(5));
    let asked = bench.store.calls("hand_off");
    eventually("a3 and a4 are sent to the store", || bench.store.calls("hand_off") > asked).await;
    let stats = running.stop().await;
    assert_eq!((bench.calls.of("a3").len(), bench.calls.of("a4").len()), (0, 0));
    assert_eq!((stats.appended, bench.committed()), (0, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn a_drain_lets_what_runs_come_to_its_end_and_starts_nothing_new() {
    // I1
    let bench = Bench::new();
    bench.push(&["a1", "a2", "b1"]);
    let running = bench.start(options(), |_| Reply::after(secs(5), Reply::Done));
    eventually("a1 and b1 run", || bench.calls.len() == 2).await;
    let stats = running.stop().await;
    assert_eq!((stats.handled, bench.calls.len()), (2, 2));
    assert_eq!((bench.committed(), bench.log.settled_beyond(0)), (Some(0), vec![2..=2]));
    assert!(bench.clock.elapsed() < secs(6));
    assert!(bench.log.members().is_empty(), "it left the group");
}

#[tokio::test(start_paused = true)]
async fn a_drain_does_not_wait_for_retries_pauses_or_a_breaker() {
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let policy = RetryPolicy { initial_delay: secs(20), ..retry(Strategy::InPlace) };
    let running = bench.start(Options { retry: policy, ..options() }, |this| match this.name.as_str() {
        "a1" => Reply::Fail(transient()),
        _ => Reply::Done,
    });
    eventually("a1 waits", || bench.store.calls("note_attempts") == 1).await;
    running.handle.pause(PauseScope::Consumer, &operator("and paused")).await.unwrap();
    bench.push(&["c1"]);
    let began = bench.clock.elapsed();
    running.stop().await;
    assert!(bench.clock.elapsed() - began < secs(1));
    assert_eq!((bench.calls.tried(), bench.committed()), (vec!["a1".to_owned(), "b1".to_owned()], None));
}

#[tokio::test(start_paused = true)]
async fn a_drain_cancels_what_still_runs_at_its_deadline_and_commits_nothing_of_it() {
    // I1
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let options = Options { drain_deadline: secs(5), attempt_timeout: None, ..options() };
    let running = bench.start(options, |this| match this.name.as_str() {
        "b1" => Reply::Hang,
        _ => Reply::Done,
    });
    eventually("b1 hangs", || bench.calls.len() == 2 && bench.committed() == Some(0)).await;
    let began = bench.clock.elapsed();
    let stats = running.stop().await;
    let took = bench.clock.elapsed() - began;
    assert!(took >= secs(5) && took <= secs(6), "{took:?}");
    assert_eq!((stats.handled, bench.committed()), (1, Some(0)));
}

#[tokio::test(start_paused = true)]
async fn a_drain_cancels_a_stored_retry_at_its_deadline_and_gives_its_lease_back() {
    // I6
    let bench = Bench::new();
    bench.push(&["a1"]);
    let policy = RetryPolicy { hold: secs(0), ..retry(Strategy::Ordered) };
    let options = Options { drain_deadline: secs(5), attempt_timeout: None, retry: policy, ..options() };
    let running = bench.start(options.clone(), |this| match this.before {
        0 => Reply::Fail(transient()),
        _ => Reply::Hang,
    });
    eventually("the retry hangs", || bench.calls.len() == 2).await;
    let began = bench.clock.elapsed();
    running.begin_stop();
    eventually("it ends", || running.has_ended()).await;
    let took = bench.clock.elapsed() - began;
    assert!(took >= secs(5) && took <= secs(6), "{took:?}");
    let letter = bench.letter("a");
    assert_eq!((letter.state, letter.attempts), (LetterState::Retrying, 1));
    bench.run(options, |_| Reply::Done).await;
    assert!(bench.calls.times_of("a1")[2] < 10.0, "the next one need not wait for the lease to end");
}

#[tokio::test(start_paused = true)]
async fn a_drain_does_not_wait_for_a_stored_retry_that_waits_for_its_budget() {
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let policy = RetryPolicy { hold: secs(0), ..retry(Strategy::Ordered) };
    let budget = BudgetPolicy { rate: "5/h".parse().ok(), ..BudgetPolicy::default() };
    let running = bench.start(Options { retry: policy, budget, ..options() }, |this| match this.before {
        0 => Reply::Fail(transient()),
        _ => Reply::Done,
    });
    eventually("one retry had the budget", || bench.calls.done().len() == 1).await;
    let_pass(secs(5)).await;
    let began = bench.clock.elapsed();
    running.begin_stop();
    eventually("it ends", || running.has_ended()).await;
    assert!(bench.clock.elapsed() - began < secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_stop_verdict_ends_the_run_with_its_reason_and_keeps_the_position() {
    // I1
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let running = bench.start(options(), |this| match this.name.as_str() {
        "b1" => Reply::Fail(asking(Verdict::Stop)),
        _ => Reply::Done,
    });
    let error = running.ended().await.expect_err("it stops");
    assert!(matches!(&error, Error::Stopped { message, .. } if message == "events/0/1"), "{error}");
    let said = error.to_string();
    assert!(
        said.starts_with("stopped at message events/0/1: the failure was classified as stop: "),
        "{said}"
    );
    assert!(said.contains("the handler decided"), "{said}");
    assert_eq!((bench.committed(), bench.counts().by_state), (Some(0), [0; 9]));
    bench.run(options(), |_| Reply::Done).await;
    assert_eq!((bench.calls.of("a1").len(), bench.calls.of("b1").len(), bench.committed()), (1, 2, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn without_dead_letters_a_message_that_fails_for_good_stops_the_consumer() {
    // I1
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let options = Options { dead_letter: None, ..options() };
    let running = bench.start(options, |this| match this.name.as_str() {
        "a1" => Reply::Fail(transient()),
        _ => Reply::Done,
    });
    let error = running.ended().await.expect_err("there is nowhere to put it");
    let expected = "stopped at message events/0/0: it failed for good and dead letters are disabled: TIMEOUT in \
                    phase handle: Timeout: no answer";
    assert_eq!(error.to_string(), expected);
    assert_eq!(bench.calls.times_of("a1"), [0.0, 1.0, 3.0], "its retries wait in the lane");
    assert_eq!((bench.committed(), bench.counts().by_state), (None, [0; 9]));
}

/// Options that discard a message that fails for good.
fn discarding(options: Options) -> Options {
    let dead_letter = Some(DeadLetterOptions { discard: true, ..DeadLetterOptions::default() });
    Options { dead_letter, ..options }
}

#[tokio::test(start_paused = true)]
async fn with_dead_letters_discarded_a_message_that_fails_for_good_is_skipped_with_an_audit_entry() {
    // I1, I11
    let bench = Bench::new();
    bench.push(&["a1", "a2"]);
    let fails = |this: &Try| if this.name == "a1" { Reply::Fail(fatal()) } else { Reply::Done };
    bench.run(discarding(options()), fails).await;
    assert_eq!((bench.calls.done(), bench.committed()), (vec!["a2".to_owned()], Some(1)));
    assert_eq!((bench.counts().open(), bench.counts().of(LetterState::Skipped)), (0, 1));
    assert_eq!(bench.audit().iter().map(|entry| &*entry.action).collect::<Vec<_>>(), ["skip"]);
}

#[tokio::test(start_paused = true)]
async fn with_dead_letters_discarded_a_retry_still_waits_in_the_store_and_its_last_failure_evicts_it() {
    // I2, I4, I11
    let bench = Bench::new();
    bench.push(&["a1", "a2"]);
    let fails = |this: &Try| if this.name == "a1" { Reply::Fail(transient()) } else { Reply::Done };
    bench.run(discarding(options()), fails).await;
    assert_eq!((bench.calls.attempts_of("a1"), bench.calls.done()), (vec![1, 2, 3], vec!["a2".to_owned()]));
    assert_eq!((bench.counts().open(), bench.counts().of(LetterState::Evicted)), (0, 1));
    let audit = bench.audit();
    let evicted = audit.iter().find(|entry| entry.action == "evict").expect("it is audited");
    assert!(evicted.by.why.contains("dead letters are disabled"), "{evicted:?}");
}

#[tokio::test(start_paused = true)]
async fn with_dead_letters_discarded_a_parked_message_is_kept() {
    let bench = Bench::new();
    bench.push(&["a1"]);
    bench.run(discarding(options()), |_| Reply::Fail(asking(Verdict::Park))).await;
    assert_eq!(bench.counts().of(LetterState::Parked), 1);
}

#[tokio::test(start_paused = true)]
async fn with_dead_letters_discarded_a_message_that_its_handler_sends_there_is_kept() {
    // I1: at the first attempt, at a stored retry, and when a replay fails.
    let replies: [fn() -> Reply; 2] =
        [|| Reply::Fail(asking(Verdict::DeadLetter)), || Reply::SendToDlq("a person must see it")];
    for reply in replies {
        for before in [0, 2] {
            let bench = Bench::new();
            bench.push(&["a1"]);
            let running = bench.start(discarding(options()), move |this| match this.before {
                calls if calls < before => Reply::Fail(transient()),
                calls if calls == before => reply(),
                _ => Reply::Fail(fatal()),
            });
            eventually("it is dead", || bench.counts().of(LetterState::Dead) == 1).await;
            assert!(!running.replayer().process_any().await.unwrap());
            assert_eq!((bench.calls.len(), bench.letter("a").replay_attempts), (before + 2, 1));
            assert_eq!((bench.letter("a").state, bench.audit().len()), (LetterState::Dead, 0));
            running.stop().await;
        }
    }
}

fn with_limits(limits: Limits) -> Options {
    let dead_letter = Some(DeadLetterOptions { limits, ..DeadLetterOptions::default() });
    Options { dead_letter, ..one_attempt() }
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_holds_the_source_and_goes_on_when_there_is_room() {
    // I9
    let bench = Bench::new();
    bench.push(&["a1", "b1", "c1"]);
    let running =
        bench.start(with_limits(Limits { max_sequences: Some(1), max_sequence_size: None }), |this| {
            match (this.name.as_str(), &this.letter) {
                ("c1" | "d1", _) | (_, Some(_)) => Reply::Done,
                _ => Reply::Fail(fatal()),
            }
        });
    eventually("it reports that the queue is full", || bench.events.count("HandOffFailed") > 0).await;
    bench.push(&["d1"]);
    let_pass(secs(60)).await;
    assert_eq!((bench.counts().sequences, bench.committed()), (1, Some(0)));
    assert_eq!(bench.calls.of("d1").len(), 0, "the source is held back");
    let (limit, why) = (running.handle.held_by(), running.handle.held_back().expect("it says why"));
    assert_eq!(limit, Some("max-sequences"));
    assert!(why.contains("the queue is full, max-sequences is 1") && why.contains("evict letters"), "{why}");
    assert!(running.replayer().process_any().await.unwrap());
    eventually("all is settled", || bench.committed() == Some(3)).await;
    assert_eq!((running.handle.held_by(), running.handle.held_back()), (None, None));
    assert_eq!((payload_of(&bench.letter("b")), bench.calls.of("b1").len()), ("b1".to_owned(), 1));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn at_a_bound_of_the_capacity_reading_pauses_until_there_is_room() {
    // I9
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let capacity = CapacityPolicy { max_letters: Some(2), ..CapacityPolicy::NONE };
    let dead_letter = Some(DeadLetterOptions { capacity, ..DeadLetterOptions::default() });
    let running = bench.start(Options { dead_letter, ..one_attempt() }, |this| {
        match (this.name.as_str(), &this.letter) {
            ("c1", _) | (_, Some(_)) => Reply::Done,
            _ => Reply::Fail(fatal()),
        }
    });
    eventually("both are letters", || bench.counts().of(LetterState::Dead) == 2).await;
    eventually("the bound is noticed", || running.handle.is_store_failing()).await;
    let why = running.handle.held_back().expect("it says why");
    assert!(why.contains("2 open letters, and max-letters is 2; replay"), "{why}");
    assert_eq!(running.handle.held_by(), Some("max-letters"));
    bench.push(&["c1"]);
    let_pass(secs(60)).await;
    assert_eq!((bench.calls.of("c1").len(), bench.committed()), (0, Some(1)), "c1 is not read");
    assert!(running.replayer().process_any().await.unwrap());
    eventually("it reads again", || bench.calls.of("c1").len() == 1).await;
    assert_eq!((running.handle.held_back(), running.handle.is_store_failing()), (None, false));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_small_disk_keeps_its_reserve_however_fast_it_is_written() {
    // I9
    let bench = Bench::new();
    let (size, reserve) = (8 << 20, 4 << 20);
    bench.store.set_disk(size);
    let capacity = CapacityPolicy { min_free: Some(reserve), ..CapacityPolicy::NONE };
    let dead_letter = Some(DeadLetterOptions { capacity, ..DeadLetterOptions::default() });
    let options = Options { dead_letter, window: 16, concurrency: 4, ..one_attempt() };
    let running = bench.start(options, |_| Reply::Fail(fatal()));
    let is_held = || running.handle.held_by() == Some("min-free");
    for part in 1..=20 {
        (0..50).for_each(|n| _ = bench.log.push(0, format!("k{part}-{n}"), "x".repeat(2048)));
        eventually("all are letters", || is_held() || bench.counts().open() == part * 50).await;
    }
    assert!(is_held() && bench.clock.elapsed() < secs(10), "{:?}", bench.clock.elapsed());
    let free = || size - bench.counts().open() * FaultyStore::LETTER_ON_DISK;
    let_pass(secs(60)).await;
    assert!(free() >= reserve && free() < reserve + (64 << 10), "{} bytes are free", free());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_read_before_takes_nothing_of_the_reserve() {
    // I1, I9
    let bench = Bench::new();
    let (size, reserve, messages) = (8 << 20, 4 << 20, 1000);
    bench.store.set_disk(size);
    let capacity = CapacityPolicy { min_free: Some(reserve), ..CapacityPolicy::NONE };
    let dead_letter = Some(DeadLetterOptions { capacity, ..DeadLetterOptions::default() });
    (0..messages).for_each(|n| _ = bench.log.push(0, format!("k{n}"), "x".repeat(2048)));
    let options = Options { dead_letter, window: 2 * messages, concurrency: messages, ..one_attempt() };
    let running = bench.start(options, |_| Reply::Fail(fatal()));
    eventually("all failed", || bench.calls.len() == messages).await;
    eventually("the reserve is reached", || running.handle.held_by() == Some("min-free")).await;
    let_pass(secs(60)).await;
    let letters = bench.counts().open();
    let free = size - letters * FaultyStore::LETTER_ON_DISK;
    assert!(letters > 0 && free >= reserve, "{letters} letters, {free} bytes are free");
    let why = running.handle.held_back().expect("it says why");
    assert!(
        why.contains("free on the disk of /data/lazaret.db, and 4.0 MiB must stay free (min-free)"),
        "{why}"
    );
    assert!(why.ends_with("; free some of the disk, enlarge it, or lower min-free"), "{why}");
    bench.store.set_disk(2 * size + reserve);
    eventually("all are letters", || bench.counts().open() == messages as u64).await;
    eventually("it reads again", || running.handle.held_back().is_none()).await;
    assert_eq!(bench.calls.len(), messages, "none was tried again");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn by_default_neither_a_hot_key_nor_a_thousand_bad_keys_stop_the_others() {
    // I3
    let bench = Bench::new();
    let bad = 1100;
    (0..bad).for_each(|_| bench.push(&["a1"]));
    (0..bad).for_each(|n| bench.push(&[&format!("k{n}x")]));
    bench.push(&["z1"]);
    let dead_letter = Some(DeadLetterOptions::default());
    let running = bench.start(Options { dead_letter, ..one_attempt() }, |this| match this.name.as_str() {
        "z1" => Reply::Done,
        _ => Reply::Fail(fatal()),
    });
    eventually("all is settled", || bench.committed() == Some(2 * bad)).await;
    assert_eq!(bench.calls.done(), ["z1"]);
    let counts = bench.counts();
    assert_eq!((counts.sequences, counts.open()), (1 + bad, 2 * bad));
    assert_eq!((running.handle.held_back(), bench.events.count("HandOffFailed")), (None, 0));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_sequence_holds_its_followers_unsettled_and_in_order() {
    // I2, I9
    let bench = Bench::new();
    bench.push(&["a1", "a2", "a3", "a4"]);
    let limits = Limits { max_sequences: None, max_sequence_size: Some(2) };
    let running = bench.start(with_limits(limits), |this| match (this.name.as_str(), &this.letter) {
        ("a1", None) => Reply::Fail(fatal()),
        _ => Reply::Done,
    });
    eventually("two are letters", || bench.letters("a").len() == 2).await;
    let_pass(secs(60)).await;
    assert_eq!((bench.letters("a").len(), bench.calls.len()), (2, 1));
    assert_eq!(running.handle.held_by(), Some("max-sequence-size"));
    assert!(bench.committed() <= Some(1), "nothing is committed past a2");
    running.replayer().process_any().await.unwrap();
    eventually("all is settled", || bench.committed() == Some(3) && bench.counts().open() == 0).await;
    assert_eq!(bench.calls.done(), ["a1", "a2", "a3", "a4"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_its_handler_sends_to_the_dead_letters_is_settled() {
    // I1, I2
    let bench = Bench::new();
    bench.push(&["a1", "a2", "b1"]);
    let stats = bench
        .run(options(), |this| match this.name.as_str() {
            "a1" => Reply::SendToDlq("never paid"),
            _ => Reply::Done,
        })
        .await;
    assert_eq!(bench.calls.tried().len(), 2, "a1 and b1");
    let letters = bench.letters("a");
    let cause = letters[0].cause.clone().expect("the handler's reason");
    assert_eq!((cause.reason, &*cause.message), (Reason::MANUAL, "never paid"));
    assert_eq!((letters.len(), letters[0].state, letters[0].attempts), (2, LetterState::Dead, 1));
    assert_eq!((stats.handed_off, stats.appended, bench.committed()), (1, 1, Some(2)));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_sent_to_the_dead_letters_at_its_second_attempt_keeps_its_first_failure() {
    let bench = Bench::new();
    bench.push(&["a1"]);
    bench
        .run(options(), |this| match this.before {
            0 => Reply::Fail(transient()),
            _ => Reply::SendToDlq("enough"),
        })
        .await;
    let letter = bench.letter("a");
    assert_eq!((letter.attempts, letter.cause.map(|cause| cause.reason)), (2, Some(Reason::MANUAL)));
    assert_eq!(letter.first_failed_at, Some(PausedClock::at(secs(0))));
}

#[tokio::test(start_paused = true)]
async fn a_store_error_reaches_the_handler_that_sends_a_message_to_the_dead_letters() {
    // I1
    let bench = Bench::new();
    bench.push(&["a1"]);
    bench.store.fail("hand_off", ErrorKind::Unavailable);
    let running = bench.start(options(), |_| Reply::SendToDlq("never paid"));
    eventually("the first attempt failed", || bench.events.count("Failed") == 1).await;
    let events = bench.events.all().concat();
    assert!(events.contains("store unavailable during hand_off: broken on purpose"), "{events}");
    assert_eq!(bench.committed(), None);
    bench.store.mend("hand_off");
    eventually("the second attempt is settled", || bench.committed() == Some(0)).await;
    assert_eq!((bench.calls.attempts_of("a1"), bench.letter("a").state), (vec![1, 2], LetterState::Dead));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_its_handler_sends_to_the_dead_letters_on_a_retry_ends_there() {
    let bench = Bench::new();
    bench.push(&["a1"]);
    let policy = RetryPolicy { hold: secs(0), ..retry(Strategy::Ordered) };
    bench
        .run(Options { retry: policy, ..options() }, |this| match this.before {
            0 => Reply::Fail(transient()),
            _ => Reply::SendToDlq("enough"),
        })
        .await;
    let letter = bench.letter("a");
    assert_eq!((letter.state, letter.attempts), (LetterState::Dead, 2));
    let cause = letter.cause.expect("the handler's reason");
    assert_eq!((cause.reason, &*cause.message), (Reason::MANUAL, "enough"));
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_audited_with_who_and_why() {
    // I11
    let bench = Bench::new();
    let running = bench.start(options(), |_| Reply::Done);
    let by = Actor::new("ada", "console", "deploying");
    running.handle.pause(PauseScope::Consumer, &by).await.unwrap();
    running.handle.resume(&PauseScope::Consumer, &by).await.unwrap();
    let audit = bench.audit();
    let actions: Vec<_> = audit.iter().map(|entry| (&*entry.action, &entry.by)).collect();
    assert_eq!(actions, [("pause", &by), ("resume", &by)]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_handle_tells_what_is_in_flight_and_what_lies_ahead() {
    let bench = Bench::new();
    let running = paused(&bench, PauseScope::Consumer);
    eventually("the source is known", || running.handle.lag() == Some(0)).await;
    bench.push(&["a1", "b1", "c1"]);
    eventually("a paused consumer sees what comes", || running.handle.lag() == Some(3)).await;
    assert_eq!((running.handle.in_flight(), running.handle.fuse()), (0, None));
    running.stop().await;

    let slow = bench.start(options(), |_| Reply::after(secs(3600), Reply::Done));
    slow.handle.resume(&PauseScope::Consumer, &operator("go")).await.unwrap();
    eventually("all are in flight", || slow.handle.in_flight() == 3).await;
    eventually("all are read", || slow.handle.lag() == Some(0)).await;
    assert!(!slow.handle.is_store_failing());
    slow.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_another_instance_does_is_noticed_at_once_when_the_store_tells() {
    use lazaret_core::store::{LetterStore, Topic};
    let bench = Bench::new();
    // Longer than the test waits: without a notification, the change would not be seen.
    let policy = RetryPolicy {
        hold: secs(0),
        initial_delay: secs(3600),
        max_delay: secs(7200),
        ..retry(Strategy::Ordered)
    };
    let options = Options { refresh: secs(36_000), retry: policy, ..options() };
    let running = bench.start(options, |this| match this.before {
        0 => Reply::Fail(transient()),
        _ => Reply::Done,
    });
    bench.push(&["a1"]);
    eventually("a1 waits in the store", || bench.counts().of(LetterState::Retrying) == 1).await;
    let (memory, name) = (bench.store.memory(), support::NAME.into());
    memory.pause(&name, PauseScope::Consumer, &operator("over there")).await.unwrap();
    memory.feed().publish(&Topic::Pauses(name.clone()));
    eventually("the pause holds", || running.handle.pauses().len() == 1).await;
    memory.resume(&name, &PauseScope::Consumer, &operator("over there")).await.unwrap();
    memory.feed().publish(&Topic::Pauses(name));
    eventually("the pause has ended", || running.handle.pauses().is_empty()).await;
    // An operator makes the retry due now.
    let queue = lazaret_core::QueueName::of(support::NAME, support::NAME);
    let letter = memory.sequence(&queue, &"a".into(), 0, 1).await.unwrap().remove(0);
    memory.act(&queue, letter.id, Act::Release, &operator("now")).await.unwrap();
    memory.feed().publish(&Topic::Due(queue));
    eventually("a1 is handled", || bench.calls.done().len() == 1).await;
    running.stop().await;
}
