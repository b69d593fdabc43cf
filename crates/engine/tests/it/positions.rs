//! Positions: when they are committed, what a restart repeats, and how partitions change owners.

use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::store::LetterStore;
use lazaret_core::{LetterState, Partition, Verdict};
use lazaret_engine::Options;

use crate::support::{
    self, Bench, Reply, Running, Try, asking, at_once, eventually, fatal, let_pass, millis, one_attempt,
    options, retry, secs, transient,
};

fn handled_by(bench: &Bench, name: &str) -> usize {
    bench.calls.done().iter().filter(|done| *done == name).count()
}

#[tokio::test(start_paused = true)]
async fn a_position_is_committed_only_over_the_contiguous_settled_prefix() {
    // I1
    let bench = Bench::new();
    bench.push(&["a1", "b1", "c1", "d1"]);
    let running = bench.start(options(), |this| match this.name.as_str() {
        "b1" => Reply::after(secs(10), Reply::Done),
        _ => Reply::Done,
    });
    eventually("the others are handled", || bench.calls.done().len() == 3).await;
    let_pass(secs(5)).await;
    assert_eq!((bench.committed(), bench.log.settled_beyond(0)), (Some(0), vec![2..=3]));
    eventually("all is committed", || bench.committed() == Some(3)).await;
    assert_eq!(bench.calls.done().last().map(String::as_str), Some("b1"));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_run_until_idle_waits_for_partitions_that_the_store_prepares() {
    // The source delivers everything before the store grants the partition.
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    bench.log.close();
    bench.store.slow_down("assign", secs(5));
    let handler = bench.handler(|_: &Try| Reply::Done);
    let builder = bench.builder(options()).until_idle().handler(handler);
    Running::start(builder).ended().await.expect("the consumer ends well");
    assert_eq!((bench.calls.done().len(), bench.committed()), (2, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn positions_are_committed_at_most_once_per_interval() {
    let bench = Bench::new();
    let options = Options { commit_interval: secs(1), ..options() };
    let running = bench.start(options, |_| Reply::Done);
    for n in 0..50 {
        bench.push(&[&format!("k{n}x")]);
        let_pass(millis(100)).await;
    }
    let commits = running.stats().commits;
    assert!((4..=6).contains(&commits), "{commits} commits in five seconds");
    running.stop().await;
    assert_eq!(bench.committed(), Some(49));
}

#[tokio::test(start_paused = true)]
async fn a_restart_repeats_only_what_was_not_settled() {
    // I1
    let bench = Bench::new();
    bench.push(&["a1", "b1", "c1", "d1"]);
    let slow = |this: &Try| match this.name.as_str() {
        "b1" => Reply::after(secs(3600), Reply::Done),
        _ => Reply::Done,
    };
    let first = bench.start(options(), slow);
    eventually("what is settled beyond is reported", || bench.log.settled_beyond(0) == [2..=3]).await;
    first.crash().await;
    bench.run(options(), |_| Reply::Done).await;
    let repeated: Vec<usize> = ["a1", "b1", "c1", "d1"].map(|name| bench.calls.of(name).len()).into();
    assert_eq!(repeated, [1, 2, 1, 1]);
    assert_eq!(bench.committed(), Some(3));
}

#[tokio::test(start_paused = true)]
async fn what_is_settled_beyond_is_remembered_although_the_first_message_is_not() {
    // I1
    let bench = Bench::new();
    bench.push(&["a1", "b1", "c1"]);
    let first = bench.start(options(), |this| match this.name.as_str() {
        "a1" => Reply::Hang,
        _ => Reply::Done,
    });
    eventually("what is settled beyond is reported", || bench.log.settled_beyond(0) == [1..=2]).await;
    assert_eq!(bench.committed(), None);
    first.crash().await;
    bench.run(options(), |_| Reply::Done).await;
    let repeated: Vec<usize> = ["a1", "b1", "c1"].map(|name| bench.calls.of(name).len()).into();
    assert_eq!((repeated, bench.committed()), (vec![2, 1, 1], Some(2)));
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_the_store_granted_to_another_instance_is_read_again_and_nothing_is_lost() {
    // I1, I6: the other instance was late, and the source still assigns the partition to us.
    let bench = Bench::new();
    let running = bench.start(one_attempt(), |this| match this.name.as_str() {
        "a1" => Reply::Fail(fatal()),
        _ => Reply::Done,
    });
    bench.push(&["b1"]);
    eventually("the partition is ours", || bench.committed() == Some(0)).await;
    at_once(bench.store.memory().assign(&Bench::queue(), &[Partition::new("events", 0)]));
    bench.push(&["a1", "a2", "c1"]);
    eventually("all is settled", || bench.committed() == Some(3)).await;
    let standing = [("a1".to_owned(), LetterState::Dead), ("a2".to_owned(), LetterState::Waiting)];
    assert_eq!(bench.standing("a"), standing);
    assert_eq!((bench.calls.of("a2").len(), handled_by(&bench, "b1")), (0, 1));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_waited_when_a_partition_was_taken_over_does_not_run_when_it_comes_again() {
    // I2: `a2` waits for a place when the partition is taken over. It still waits when it is delivered
    // again, before `a1` is.
    let bench = Bench::with_partitions(2);
    let options = Options { shards: 1, concurrency: 1, ..one_attempt() };
    let running = bench.start(options, |this| match this.name.as_str() {
        "f1" => Reply::after(secs(10), Reply::Fail(fatal())),
        "a1" => Reply::after(secs(5), Reply::Done),
        "x1" => Reply::after(secs(60), Reply::Done),
        _ => Reply::Done,
    });
    for (partition, names, read) in [(0, &["f1", "a1"][..], 2), (1, &["x1"], 3), (0, &["a2"], 4)] {
        bench.push_to(partition, names);
        eventually("they are read", || running.stats().read == read).await;
    }
    at_once(bench.store.memory().assign(&Bench::queue(), &[Partition::new("events", 0)]));
    eventually("all is settled", || bench.committed() == Some(2) && bench.log.committed(1) == Some(0)).await;
    let done: Vec<_> = bench.calls.done().into_iter().filter(|name| name.starts_with('a')).collect();
    assert_eq!(done, ["a1", "a2"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_before_the_commit_delivers_again() {
    // I1: at least once.
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let options = Options { commit_interval: secs(60), ..options() };
    let first = bench.start(options.clone(), |_| Reply::Done);
    eventually("both are handled", || bench.calls.done().len() == 2).await;
    first.crash().await;
    assert_eq!(bench.committed(), None);
    bench.run(options, |_| Reply::Done).await;
    assert_eq!((handled_by(&bench, "a1"), handled_by(&bench, "b1"), bench.committed()), (2, 2, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn a_redelivered_message_that_has_a_letter_makes_no_second_one_and_is_not_handled() {
    // I8
    let bench = Bench::new();
    bench.push(&["a1", "a2", "b1"]);
    let options = Options { commit_interval: secs(60), ..one_attempt() };
    let first = bench.start(options.clone(), |this| match this.name.as_str() {
        "a1" => Reply::Fail(fatal()),
        _ => Reply::Done,
    });
    eventually("a1 and a2 are letters", || bench.letters("a").len() == 2 && bench.calls.len() == 2).await;
    first.crash().await;
    assert_eq!(bench.committed(), None);
    let before = bench.letters("a");

    let stats = bench.run(options, |_| Reply::Done).await;
    assert_eq!(bench.letters("a"), before);
    assert_eq!((bench.calls.of("a1").len(), bench.calls.of("a2").len()), (1, 0));
    assert_eq!(bench.calls.of("b1").len(), 2);
    assert_eq!((stats.duplicates, stats.handled, bench.committed()), (2, 1, Some(2)));
}

#[tokio::test(start_paused = true)]
async fn a_redelivered_message_whose_letter_was_closed_is_a_duplicate() {
    // I8
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let options = Options { commit_interval: secs(60), ..options() };
    let first = bench.start(options.clone(), |this| match (this.name.as_str(), &this.letter) {
        ("a1", None) => Reply::Fail(fatal()),
        ("b1", None) => Reply::Fail(asking(Verdict::Skip)),
        _ => Reply::Done,
    });
    eventually("a1 is dead, b1 skipped", || bench.counts().by_state.iter().sum::<u64>() == 2).await;
    assert!(first.replayer().process_any().await.unwrap());
    first.crash().await;
    assert_eq!(bench.committed(), None);

    let stats = bench.run(options, |_| Reply::Done).await;
    assert_eq!((bench.calls.of("a1").len(), bench.calls.of("b1").len()), (2, 1));
    assert_eq!((stats.duplicates, stats.handled, bench.committed()), (2, 0, Some(1)));
    let state = |offset| bench.letter_at(offset).map(|letter| letter.state);
    assert_eq!((state(0), state(1)), (Some(LetterState::Resolved), Some(LetterState::Skipped)));
}

#[tokio::test(start_paused = true)]
async fn only_messages_up_to_the_horizon_are_looked_up() {
    let bench = Bench::new();
    bench.push(&["a1", "b1", "c1"]);
    let options = Options { commit_interval: secs(60), ..one_attempt() };
    let first = bench.start(options.clone(), |this| match this.name.as_str() {
        "b1" => Reply::Fail(fatal()),
        _ => Reply::Done,
    });
    eventually("b1 is dead", || bench.letters("b").len() == 1 && bench.calls.len() == 3).await;
    first.crash().await;
    bench.push(&["d1", "e1"]);
    bench.run(options, |_| Reply::Done).await;
    assert_eq!(bench.store.calls("lookup"), 1, "a1; b1 is found with its open sequence");
}

#[tokio::test(start_paused = true)]
async fn attempts_are_counted_across_a_crash_during_a_wait_in_memory() {
    // I4
    for strategy in [Strategy::InPlace, Strategy::Ordered] {
        let bench = Bench::new();
        bench.push(&["a1", "a2"]);
        let policy = RetryPolicy { hold: secs(3600), max_attempts: 4, ..retry(strategy) };
        let options = Options { retry: policy, ..options() };
        let first = bench.start(options.clone(), |_| Reply::Fail(transient()));
        eventually("two attempts were made", || bench.calls.len() == 2).await;
        let_pass(millis(100)).await;
        first.crash().await;
        assert_eq!(bench.counts().open(), 0, "{strategy}: a1 waited in memory");

        bench
            .run(options, |this| if this.name == "a1" { Reply::Fail(transient()) } else { Reply::Done })
            .await;
        assert_eq!(bench.calls.attempts_of("a1"), [1, 2, 3, 4], "{strategy}");
        assert_eq!(bench.calls.times_of("a1"), [0.0, 1.0, 3.0, 7.0], "{strategy}: never early (I12)");
        let letters = bench.letters("a");
        assert_eq!((letters.len(), letters[0].state, letters[0].attempts), (2, LetterState::Dead, 4));
        let began = support::PausedClock::at(secs(0));
        assert_eq!(letters[0].first_failed_at, Some(began), "{strategy}");
        assert_eq!(bench.calls.of("a2").len(), 0, "{strategy}: behind a1 (I2)");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_attempts_were_used_up_before_a_crash_is_dead_without_another() {
    // I4: the last attempt failed, and the process crashed before its letter was durable.
    let bench = Bench::new();
    bench.push(&["a1"]);
    let policy = RetryPolicy { max_attempts: 2, ..retry(Strategy::InPlace) };
    let options = Options { retry: policy, ..options() };
    let first = bench.start(options.clone(), |_| Reply::Fail(transient()));
    eventually("the first attempt is noted", || bench.store.calls("note_attempts") == 1).await;
    first.crash().await;
    let fewer = RetryPolicy { max_attempts: 1, ..options.retry.clone() };
    bench.run(Options { retry: fewer, ..options }, |_| Reply::Done).await;
    assert_eq!(bench.calls.len(), 1);
    assert_eq!((bench.letter("a").state, bench.letter("a").attempts), (LetterState::Dead, 1));
}

#[tokio::test(start_paused = true)]
async fn notes_on_attempts_are_forgotten_once_their_messages_are_committed() {
    // I7
    let bench = Bench::new();
    bench.push(&["a1"]);
    let running = bench.start(options(), |this| match this.before {
        0 => Reply::Fail(transient()),
        _ => Reply::Done,
    });
    let notes = || {
        let partitions = [Partition::new("events", 0)];
        at_once(bench.store.memory().attempt_notes(&Bench::queue(), &partitions)).len()
    };
    eventually("a1 is noted", || notes() == 1).await;
    eventually("a1 is committed", || bench.committed() == Some(0)).await;
    eventually("the note is gone", || notes() == 0).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_in_the_store_over_a_crash_and_is_run_by_the_next_consumer() {
    // I1, I4, I12
    let bench = Bench::new();
    bench.push(&["a1", "a2"]);
    let script = |this: &Try| match (this.name.as_str(), this.before) {
        ("a1", 0 | 1) => Reply::Fail(transient()),
        _ => Reply::Done,
    };
    let first = bench.start(options(), script);
    eventually("a1 waits in the store", || bench.committed() == Some(1)).await;
    first.crash().await;
    bench.run(options(), script).await;
    assert_eq!(bench.calls.tried(), ["a1", "a1", "a1", "a2"]);
    assert_eq!(bench.calls.times_of("a1"), [0.0, 1.0, 3.0]);
}

#[tokio::test(start_paused = true)]
async fn a_crash_in_a_stored_retry_delays_it_until_the_lease_ends() {
    // I6
    let bench = Bench::new();
    bench.push(&["a1"]);
    let options = Options { retry: RetryPolicy { hold: secs(0), ..retry(Strategy::Ordered) }, ..options() };
    let first = bench.start(options.clone(), |this| match this.before {
        0 => Reply::Fail(transient()),
        _ => Reply::Hang,
    });
    eventually("the retry hangs", || bench.calls.len() == 2).await;
    first.crash().await;
    bench.run(options, |_| Reply::Done).await;
    assert_eq!(bench.calls.times_of("a1"), [0.0, 1.0, 31.0], "the lease lasts thirty seconds");
    assert_eq!(bench.calls.done(), ["a1"]);
}

#[tokio::test(start_paused = true)]
async fn gaps_from_compaction_hold_no_position_back() {
    // I1
    let bench = Bench::new();
    bench.push(&["a1"]);
    bench.log.skip(0, 10);
    bench.push(&["b1"]);
    bench.log.skip(0, 1000);
    bench.push(&["c1"]);
    let stats = bench.run(options(), |_| Reply::Done).await;
    assert_eq!((stats.handled, bench.committed()), (3, Some(1012)));
}

#[tokio::test(start_paused = true)]
async fn partitions_are_committed_each_for_itself() {
    // I1, I3
    let bench = Bench::with_partitions(2);
    bench.push_to(0, &["a1", "b1"]);
    bench.push_to(1, &["c1", "d1", "e1"]);
    let running = bench.start(options(), |this| match this.name.as_str() {
        "a1" => Reply::after(secs(60), Reply::Done),
        _ => Reply::Done,
    });
    eventually("partition 1 is committed", || bench.log.committed(1) == Some(2)).await;
    assert_eq!(bench.log.committed(0), None);
    eventually("partition 0 is committed", || bench.log.committed(0) == Some(1)).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn all_messages_of_a_partition_can_be_one_sequence() {
    // I2
    let bench = Bench::with_partitions(2);
    bench.push_to(0, &["a1", "b1"]);
    bench.push_to(1, &["c1"]);
    let options = Options { sequencing: lazaret_core::Sequencing::Partition, ..one_attempt() };
    bench.run(options, |this| if this.name == "a1" { Reply::Fail(fatal()) } else { Reply::Done }).await;
    assert_eq!(bench.standing("~p:events/0").len(), 2);
    assert_eq!(bench.calls.done(), ["c1"]);
}

#[tokio::test(start_paused = true)]
async fn a_revoked_partition_is_drained_before_the_next_consumer_takes_it() {
    // I1, I2
    let bench = Bench::with_partitions(2);
    for partition in 0..2 {
        bench.push_to(partition, &[&format!("p{partition}x1"), &format!("p{partition}x2")]);
    }
    let slow = |this: &Try| match this.before {
        0 if this.name.ends_with("x1") => Reply::after(secs(5), Reply::Done),
        _ => Reply::Done,
    };
    let first = bench.start(options(), slow);
    eventually("both partitions are in work", || bench.calls.len() == 2).await;
    let owner = bench.log.owner(1);
    let other = Options { instance: "other".to_owned(), ..options() };
    let second = bench.start(other, slow);
    let_pass(secs(2)).await;
    assert_eq!(bench.log.owner(1), owner, "kept until what is in flight has come to its end");
    assert_eq!(bench.calls.len(), 2, "nothing new was started");
    eventually("partition 1 changed hands", || bench.log.owner(1) != owner).await;
    assert_eq!(bench.log.committed(1), Some(0), "what ended was committed first");
    eventually("all is committed", || bench.log.committed(0) == Some(1) && bench.log.committed(1) == Some(1))
        .await;
    let each: Vec<usize> = ["p0x1", "p0x2", "p1x1", "p1x2"].map(|name| bench.calls.of(name).len()).into();
    assert_eq!(each, [1, 1, 1, 1], "nothing was repeated");
    assert_eq!(
        bench.events.count(
            "Revoked { partition: Partition { stream: \"events\", index: 1, incarnation: 0 }, lost: false"
        ),
        1
    );
    first.stop().await;
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_in_memory_moves_with_its_partition_and_keeps_its_attempts() {
    // I2, I4, I12
    let bench = Bench::with_partitions(2);
    bench.push_to(1, &["a1", "a2"]);
    let policy = RetryPolicy { max_attempts: 3, initial_delay: secs(20), ..retry(Strategy::InPlace) };
    let options = Options { retry: policy, ..options() };
    let script = |this: &Try| match (this.name.as_str(), this.before) {
        ("a1", 0 | 1) => Reply::Fail(transient()),
        _ => Reply::Done,
    };
    let first = bench.start(options.clone(), script);
    eventually("a1 waits", || bench.store.calls("note_attempts") == 1).await;
    let second = bench.start(Options { instance: "other".to_owned(), ..options }, script);
    let_pass(secs(1)).await;
    assert_eq!(
        bench.log.owner(1),
        bench.log.members().last().copied(),
        "the revocation does not wait for the retry"
    );
    eventually("all is committed", || bench.log.committed(1) == Some(1)).await;
    assert_eq!(bench.calls.attempts_of("a1"), [1, 2, 3]);
    assert_eq!(bench.calls.times_of("a1"), [0.0, 20.0, 50.0], "never early (I12)");
    assert_eq!(bench.calls.done(), ["a1", "a2"]);
    first.stop().await;
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_revoked_partition_whose_handler_does_not_end_is_let_go_at_the_deadline() {
    // I1
    let bench = Bench::with_partitions(2);
    bench.push_to(1, &["a1"]);
    let options = Options { drain_deadline: secs(5), ..options() };
    let script = |this: &Try| if this.before == 0 { Reply::Hang } else { Reply::Done };
    let first = bench.start(options.clone(), script);
    eventually("a1 hangs", || bench.calls.len() == 1).await;
    let second = bench.start(Options { instance: "other".to_owned(), ..options }, script);
    let began = bench.clock.elapsed();
    eventually("a1 is handled", || bench.calls.done() == ["a1"]).await;
    let took = bench.clock.elapsed() - began;
    assert!(took >= secs(5) && took < secs(7), "{took:?}");
    eventually("a1 is committed", || bench.log.committed(1) == Some(0)).await;
    first.stop().await;
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_partition_commits_nothing_and_hands_off_nothing() {
    // I1, I6
    let bench = Bench::new();
    bench.push(&["a1"]);
    let source = bench.log.join();
    let member = source.member();
    let script = |this: &Try| match this.before {
        0 => Reply::after(secs(5), Reply::Fail(fatal())),
        _ => Reply::Done,
    };
    let builder = bench.builder_on(one_attempt(), source).handler(bench.handler(script));
    let first = Running::start(builder);
    eventually("a1 is in work", || bench.calls.len() == 1).await;
    let second = bench.start(Options { instance: "other".to_owned(), ..one_attempt() }, script);
    assert!(bench.log.expel(member));
    eventually("the other one handles a1", || bench.calls.done() == ["a1"]).await;
    let_pass(secs(20)).await;
    assert_eq!((bench.counts().by_state, bench.committed()), ([0; 9], Some(0)));
    let lost = "Revoked { partition: Partition { stream: \"events\", index: 0, incarnation: 0 }, lost: true";
    assert_eq!(bench.events.count(lost), 1);
    assert_eq!(first.stats().handed_off, 0);
    first.stop().await;
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sequence_opened_by_one_consumer_is_known_to_the_next_before_its_first_message() {
    // I2
    let bench = Bench::new();
    bench.push(&["a1"]);
    let first = bench.start(one_attempt(), |_| Reply::Fail(fatal()));
    eventually("a1 is dead", || bench.committed() == Some(0)).await;
    first.stop().await;
    bench.push(&["a2", "b1"]);
    bench.run(Options { seed: 99, ..one_attempt() }, |_| Reply::Done).await;
    assert_eq!(bench.calls.done(), ["b1"]);
    assert_eq!(bench.letters("a").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn more_open_sequences_than_fit_in_memory_cost_questions_and_nothing_else() {
    // I2: above its limit the set becomes a filter that may say "maybe".
    let bench = Bench::new();
    (0..64).for_each(|n| bench.push(&[&format!("k{n}x1")]));
    let options = Options { blocked_limit: 4, ..one_attempt() };
    let running = bench.start(options, |this| match this.name.ends_with("x1") {
        true => Reply::Fail(fatal()),
        false => Reply::Done,
    });
    eventually("all are letters", || bench.committed() == Some(63)).await;
    (0..128).for_each(|n| bench.push(&[&format!("k{n}x2")]));
    eventually("all are settled", || bench.committed() == Some(191)).await;
    assert_eq!(bench.calls.done().len(), 64, "those of the sequences that are not open");
    assert_eq!(bench.counts().of(LetterState::Waiting), 64);
    running.stop().await;
}
