//! Operations: frozen plans that a running consumer carries out.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lazaret_core::letter::AttemptKind;
use lazaret_core::policy::{BreakerPolicy, BreakerState, RetryPolicy, Strategy};
use lazaret_core::query::Query;
use lazaret_core::store::{
    Action, AuditEntry, Command, Operation, OperationId, OperationState, Operations, Outcome, PauseScope,
    Plan, PlanRequest, RolloutPolicy, Selection,
};
use lazaret_core::{Letter, LetterState, Verdict};
use lazaret_engine::{DeadLetterOptions, Options, ReplayOptions, Reprocess};

use crate::support::{
    Bench, PausedClock, Repaired, Reply, Running, Try, asking, at_once, eventually, fatal, let_pass, millis,
    one_attempt, operator, options, retry, secs, transient, with_dead,
};

fn freeze(bench: &Bench, action: Action) -> Plan {
    let request = PlanRequest {
        action,
        selection: Selection::Query(Query::everything()),
        valid_for: secs(3600),
        max_letters: 1000,
    };
    at_once(bench.store.memory().freeze(&request, &operator("it is repaired")))
}

fn begin(bench: &Bench, plan: &Plan, rollout: &RolloutPolicy) -> OperationId {
    at_once(bench.store.memory().begin(plan.id, rollout, &operator("it is repaired"))).id
}

fn operation(bench: &Bench, id: OperationId) -> Operation {
    at_once(bench.store.memory().operation(id)).expect("it was begun")
}

async fn over(bench: &Bench, id: OperationId) -> Operation {
    eventually("the operation is over", || operation(bench, id).state.is_over()).await;
    operation(bench, id)
}

#[tokio::test(start_paused = true)]
async fn a_plan_is_carried_out_in_order_and_new_failures_are_not_touched() {
    let (bench, running, repaired) = with_dead(one_attempt(), &["a1", "a2", "b1", "c9"]).await;
    let plan = freeze(&bench, Action::Retry);
    assert_eq!((plan.letters, plan.sequences), (4, 3));
    bench.push(&["c1", "d9"]);
    eventually("the later ones are letters", || bench.committed() == Some(5)).await;
    repaired.repair();
    let done = over(&bench, begin(&bench, &plan, &RolloutPolicy::unlimited())).await;
    assert_eq!((done.state, done.ok, done.failed_again, done.skipped), (OperationState::Done, 3, 1, 0));
    let mut handled = bench.calls.done();
    handled.retain(|name| name.starts_with('a'));
    assert_eq!(handled, ["a1", "a2"]);
    assert_eq!(bench.standing("c"), [("c9".into(), LetterState::Dead), ("c1".into(), LetterState::Waiting)]);
    let late = bench.letter("d");
    assert_eq!((late.state, late.replay_attempts), (LetterState::Dead, 0), "it came after the freeze");
    let again = &bench.letters("c")[0];
    assert_eq!((again.attempts, again.replay_attempts), (1, 1));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_replay_tells_its_handler_the_operation() {
    let bench = Bench::new();
    bench.push(&["a1"]);
    let script = |this: &Try| match &this.replay {
        Some(operation) if operation.starts_with("op_") => Reply::Done,
        _ => Reply::Fail(fatal()),
    };
    let running = bench.start(one_attempt(), script);
    eventually("it is a letter", || bench.committed() == Some(0)).await;
    let plan = freeze(&bench, Action::Retry);
    let done = over(&bench, begin(&bench, &plan, &RolloutPolicy::unlimited())).await;
    assert_eq!(done.ok, 1);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_claimed_in_vain_while_a_probe_of_the_breaker_is_under_way() {
    let bench = Bench::new();
    bench.push(&["a1", "b1", "c1", "d1", "e1", "f1", "g1", "h1"]);
    let replays = AtomicUsize::new(0);
    let script = move |this: &Try| match this.replay.as_ref().map(|_| replays.fetch_add(1, Ordering::SeqCst))
    {
        None => Reply::Fail(fatal()),
        Some(0..4) => Reply::Fail(transient()),
        Some(_) => Reply::after(secs(5), Reply::Done),
    };
    let breaker = BreakerPolicy { failures: 4, window: secs(10), open_for: secs(30), probes: 1 };
    let options = Options { breaker: Some(breaker), concurrency: 2, ..one_attempt() };
    let running = bench.start(options, script);
    eventually("all are letters", || bench.committed() == Some(7)).await;
    let plan = freeze(&bench, Action::Retry);
    let done = over(&bench, begin(&bench, &plan, &RolloutPolicy::unlimited())).await;
    assert_eq!((bench.events.count("BreakerOpened"), bench.events.count("BreakerClosed")), (1, 1));
    assert_eq!((done.ok, done.failed_again), (4, 4));
    // A few for each letter and for each change of the breaker. With endless polls the clock would have
    // stood still.
    let polls = bench.store.calls("poll_work");
    assert!(polls < 1000, "{polls} polls");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_rate_holds() {
    let names: Vec<String> = (0..20).map(|n| format!("{}1", char::from(b'a' + n))).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (bench, running, repaired) = with_dead(one_attempt(), &names).await;
    repaired.repair();
    let plan = freeze(&bench, Action::Retry);
    let started = bench.clock.elapsed();
    let rollout = RolloutPolicy { rate: Some(2.0), ..RolloutPolicy::unlimited() };
    let done = over(&bench, begin(&bench, &plan, &rollout)).await;
    assert_eq!(done.ok, 20);
    let took = bench.clock.elapsed() - started;
    assert!(took >= Duration::from_millis(9500), "20 letters at 2 a second: {took:?}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_rate_bounds_every_call_that_the_operation_causes() {
    const RATE: f64 = 2.0;
    let names: Vec<String> =
        (1..=51).flat_map(|n| ["a", "b", "c", "d", "e"].map(|key| format!("{key}{n}"))).collect();
    let (bench, repaired) = (Bench::new(), Repaired::default());
    bench.push(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let mended = repaired.clone();
    let script =
        move |_: &Try| if mended.0.load(Ordering::SeqCst) { Reply::Done } else { Reply::Fail(fatal()) };
    let running = bench.start(options(), script);
    eventually("all are letters", || bench.committed() == Some(names.len() as u64 - 1)).await;
    assert_eq!(bench.calls.len(), 5, "the heads alone were tried");
    repaired.repair();
    let request = PlanRequest {
        action: Action::Retry,
        selection: Selection::Query(Query::parse("state:dead").unwrap()),
        valid_for: secs(3600),
        max_letters: 1000,
    };
    let plan = at_once(bench.store.memory().freeze(&request, &operator("it is repaired")));
    assert_eq!((plan.letters, plan.followers), (5, 250));
    let started = bench.clock.elapsed();
    let rollout = RolloutPolicy { rate: Some(RATE), ..RolloutPolicy::unlimited() };
    assert_eq!(over(&bench, begin(&bench, &plan, &rollout)).await.ok, 5);
    eventually("all are handled", || bench.calls.done().len() == names.len()).await;
    let calls = bench.calls.all().split_off(5);
    assert_eq!(calls.len(), names.len());
    for (call, number) in calls.iter().zip(1_u32..) {
        let at = (call.at - started).as_secs_f64();
        // One letter, plus the letters of a quarter of a second, may run at once.
        let allowed = RATE * at + 1.0 + (RATE - 1.0) / 4.0;
        assert!(f64::from(number) <= allowed + 1e-6, "call {number} ({}) after {at} s", call.name);
    }
    for key in ["a", "b", "c", "d", "e"] {
        // I2
        let done: Vec<String> = bench.calls.done().into_iter().filter(|name| name.starts_with(key)).collect();
        let in_order: Vec<String> = (1..=51).map(|n| format!("{key}{n}")).collect();
        assert_eq!(done, in_order);
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_settlement_of_a_letter_takes_the_one_behind_it() {
    let names: Vec<String> = (1..=30).map(|n| format!("a{n}0")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (bench, running, repaired) = with_dead(one_attempt(), &names).await;
    repaired.repair();
    let calls = |operation| bench.store.calls(operation);
    let polls = calls("poll_work");
    let id = begin(&bench, &freeze(&bench, Action::Retry), &RolloutPolicy::unlimited());
    assert_eq!(over(&bench, id).await.ok, 30);
    assert_eq!(bench.calls.done(), names);
    assert_eq!((calls("settle_and_continue"), calls("settle"), calls("release")), (30, 0, 0));
    assert!(calls("poll_work") < polls + 10, "{} polls", calls("poll_work") - polls);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_the_letters_behind_the_one_in_work() {
    for of_operation in [true, false] {
        let (bench, repaired) = (Bench::new(), Repaired::default());
        bench.push(&["a1", "a2", "a3"]);
        let mended = repaired.clone();
        let script = move |_: &Try| match mended.0.load(Ordering::SeqCst) {
            true => Reply::after(millis(100), Reply::Done),
            false => Reply::Fail(fatal()),
        };
        let running = bench.start(one_attempt(), script);
        eventually("all are letters", || bench.committed() == Some(2)).await;
        repaired.repair();
        let id = begin(&bench, &freeze(&bench, Action::Retry), &RolloutPolicy::unlimited());
        eventually("the first is in work", || bench.calls.len() == 2).await;
        if of_operation {
            at_once(bench.store.memory().command(id, Command::Pause, &operator("not now")));
        } else {
            running.handle.pause(PauseScope::Replay, &operator("not now")).await.unwrap();
        }
        let_pass(secs(60)).await;
        assert_eq!((operation(&bench, id).ok, bench.calls.len()), (1, 2), "only that one is finished");
        assert_eq!(bench.store.calls("release"), 0, "nothing was taken");
        if of_operation {
            at_once(bench.store.memory().command(id, Command::Resume, &operator("now")));
        } else {
            running.handle.resume(&PauseScope::Replay, &operator("now")).await.unwrap();
        }
        assert_eq!(over(&bench, id).await.ok, 3);
        assert_eq!(bench.calls.done(), ["a1", "a2", "a3"]);
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_ramp_stops_at_too_many_failures_and_continues_on_command() {
    let (bench, running, repaired) = with_dead(one_attempt(), &["a9"]).await;
    let_pass(secs(1)).await;
    bench.push(&["b1", "c1", "d1"]);
    eventually("all are letters", || bench.committed() == Some(3)).await;
    repaired.repair();
    let plan = freeze(&bench, Action::Retry);
    let rollout = RolloutPolicy { ramp: vec![1, 2], stop_at: Some(0.5), ..RolloutPolicy::unlimited() };
    let id = begin(&bench, &plan, &rollout);
    eventually("it stops", || operation(&bench, id).state == OperationState::Paused).await;
    let stopped = operation(&bench, id);
    assert_eq!((stopped.ok, stopped.failed_again), (0, 1));
    assert!(stopped.note.is_some_and(|note| note.contains('1')), "it says why");
    let_pass(secs(60)).await;
    assert_eq!(operation(&bench, id).sent(), 1, "nothing is sent while it is paused");
    at_once(bench.store.memory().command(id, Command::Resume, &operator("seen")));
    let done = over(&bench, id).await;
    assert_eq!((done.ok, done.failed_again), (3, 1));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_letters_are_polled_while_all_probes_of_the_breaker_are_in_flight() {
    // Such letters would be released at once and polled again.
    let bench = Bench::new();
    bench.push(&["z1"]);
    let script = |this: &Try| match (&*this.name, &this.replay, this.attempt) {
        ("z1", None, _) => Reply::Fail(fatal()),
        ("z1", Some(_), _) => Reply::Done,
        (_, _, 1) => Reply::Fail(transient()),
        _ => Reply::after(secs(10), Reply::Done),
    };
    let breaker = BreakerPolicy { failures: 2, window: secs(10), open_for: secs(30), probes: 2 };
    let retry = RetryPolicy { hold: secs(3600), ..retry(Strategy::Ordered) };
    let running = bench.start(Options { breaker: Some(breaker), retry, ..options() }, script);
    eventually("it is a letter", || bench.committed() == Some(0)).await;
    let_pass(secs(2)).await;
    bench.push(&["a1", "b1"]);
    eventually("both probes are in flight", || bench.calls.len() == 5).await;
    assert_eq!(running.handle.breaker(), Some(BreakerState::HalfOpen));
    // Time passes with every call.
    bench.store.slow_down("poll_work", millis(1));
    let polls = bench.store.calls("poll_work");
    let id = begin(&bench, &freeze(&bench, Action::Retry), &RolloutPolicy::unlimited());
    let_pass(secs(5)).await;
    assert!(bench.store.calls("poll_work") <= polls + 1, "{} polls", bench.store.calls("poll_work") - polls);
    assert_eq!(over(&bench, id).await.ok, 1);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn replays_wait_while_they_are_paused() {
    let (bench, running, repaired) = with_dead(one_attempt(), &["a1"]).await;
    repaired.repair();
    running.handle.pause(PauseScope::Replay, &operator("not now")).await.unwrap();
    let plan = freeze(&bench, Action::Retry);
    let id = begin(&bench, &plan, &RolloutPolicy::unlimited());
    let_pass(secs(60)).await;
    assert_eq!(operation(&bench, id).sent(), 0);
    running.handle.resume(&PauseScope::Replay, &operator("now")).await.unwrap();
    assert_eq!(over(&bench, id).await.ok, 1);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_operation_goes_on_after_a_crash_and_counts_each_letter_once() {
    let (bench, running, repaired) = with_dead(one_attempt(), &["a1", "b1", "c1", "d1", "e1"]).await;
    repaired.repair();
    let plan = freeze(&bench, Action::Retry);
    let rollout = RolloutPolicy { rate: Some(1.0), ..RolloutPolicy::unlimited() };
    let id = begin(&bench, &plan, &rollout);
    eventually("some are sent", || operation(&bench, id).sent() >= 2).await;
    running.crash().await;
    let running = bench.start(one_attempt(), repaired.script());
    let done = over(&bench, id).await;
    assert_eq!((done.ok, done.failed_again, done.skipped), (5, 0, 0));
    let items = at_once(bench.store.memory().items(id, 0, 100));
    assert!(items.iter().all(|item| item.outcome == Some(Outcome::Ok)));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_ends_when_idle_carries_its_operations_out_first() {
    let (bench, running, repaired) = with_dead(one_attempt(), &["a1", "b1", "c1", "d1"]).await;
    running.stop().await;
    repaired.repair();
    let plan = freeze(&bench, Action::Retry);
    let id = begin(&bench, &plan, &RolloutPolicy { rate: Some(0.5), ..RolloutPolicy::unlimited() });
    let late = RolloutPolicy { start_at: Some(PausedClock::at(secs(90_000))), ..RolloutPolicy::unlimited() };
    bench.push(&["z9"]);
    bench.run(one_attempt(), repaired.script()).await;
    assert_eq!(operation(&bench, id).ok, 4);
    let plan = freeze(&bench, Action::Retry);
    let id = begin(&bench, &plan, &late);
    bench.run(one_attempt(), repaired.script()).await;
    assert_eq!(operation(&bench, id).state, OperationState::Scheduled, "the run does not wait a day for it");
}

#[tokio::test(start_paused = true)]
async fn acts_are_carried_out_too() {
    let (bench, running, _) = with_dead(one_attempt(), &["a1", "a2"]).await;
    let plan = freeze(&bench, Action::Evict);
    let done = over(&bench, begin(&bench, &plan, &RolloutPolicy::unlimited())).await;
    assert_eq!((done.ok, bench.counts().of(LetterState::Evicted)), (2, 2));
    running.stop().await;
}

/// Creates a dead letter whose handler asks for this verdict in every replay, and a letter behind it
/// that can be handled.
async fn with_replays_that_ask(verdict: Verdict) -> (Bench, Running) {
    let bench = Bench::new();
    bench.push(&["a1", "a2"]);
    let running = bench.start(one_attempt(), move |this| match (this.before, this.name.as_str()) {
        (0, "a1") => Reply::Fail(fatal()),
        (_, "a1") => Reply::Fail(asking(verdict)),
        _ => Reply::Done,
    });
    eventually("both are letters", || bench.committed() == Some(1)).await;
    (bench, running)
}

#[tokio::test(start_paused = true)]
async fn every_verdict_counts_on_a_replay_as_on_a_first_attempt() {
    // I2, I4, I11
    use LetterState::{Dead, Parked, Quarantined, Resolved, Skipped, Waiting};
    for (verdict, head, behind) in [
        (Verdict::Duplicate, Resolved, Resolved),
        (Verdict::Skip, Skipped, Resolved),
        (Verdict::Park, Parked, Waiting),
        (Verdict::Quarantine, Quarantined, Waiting),
        (Verdict::DeadLetter, Dead, Waiting),
        (Verdict::Retry, Dead, Waiting),
    ] {
        let (bench, running) = with_replays_that_ask(verdict).await;
        let plan = freeze(&bench, Action::Retry);
        let done = over(&bench, begin(&bench, &plan, &RolloutPolicy::unlimited())).await;
        let counts = if head.is_open() { (0, 1, 1) } else { (2, 0, 0) };
        assert_eq!((done.ok, done.failed_again, done.skipped), counts, "{verdict}");
        let letters = [bench.letter_at(0), bench.letter_at(1)].map(|letter| letter.expect("it is kept"));
        assert_eq!([letters[0].state, letters[1].state], [head, behind], "{verdict}");
        assert_eq!((letters[0].attempts, letters[0].replay_attempts), (1, u32::from(head.is_open())));
        assert_eq!(bench.calls.of("a1").len(), 2, "{verdict}");
        let audit = bench.audit();
        let last = letters[0].history.last().map(|attempt| attempt.kind);
        assert_eq!(last, Some(AttemptKind::Replay), "{verdict}");
        let is_told = |letter: &&Letter| !matches!(letter.state, Dead | Waiting);
        for letter in letters.iter().filter(is_told) {
            let of_letter = |entry: &&AuditEntry| entry.subject == letter.id.to_string();
            let entry = audit.iter().find(of_letter).expect("the audit names it");
            assert_eq!(entry.after.as_deref(), Some(letter.state.as_str()), "{verdict}");
        }
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_in_a_replay_stops_the_consumer_and_settles_nothing() {
    let (bench, running) = with_replays_that_ask(Verdict::Stop).await;
    let plan = freeze(&bench, Action::Retry);
    let id = begin(&bench, &plan, &RolloutPolicy::unlimited());
    let error = running.ended().await.expect_err("the handler asked for it");
    assert!(error.to_string().starts_with("stopped at message events/0/0"), "{error}");
    let standing = [("a1".to_owned(), LetterState::Dead), ("a2".to_owned(), LetterState::Waiting)];
    assert_eq!((bench.standing("a"), bench.letters("a")[0].replay_attempts), (standing.to_vec(), 0));
    let left = operation(&bench, id);
    assert_eq!((left.state, left.ok, left.failed_again), (OperationState::Running, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_released_letter_waits_behind_a_head_that_fails_again() {
    // I2
    let (bench, running, repaired) = with_dead(one_attempt(), &["a1", "a2"]).await;
    let release = || begin(&bench, &freeze(&bench, Action::Release), &RolloutPolicy::unlimited());
    assert_eq!(over(&bench, release()).await.ok, 2);
    let standing = [("a1".to_owned(), LetterState::Dead), ("a2".to_owned(), LetterState::Waiting)];
    eventually("the head is dead again", || bench.calls.len() == 2 && bench.standing("a") == standing).await;
    repaired.repair();
    assert_eq!(over(&bench, release()).await.ok, 2);
    eventually("both are handled", || bench.calls.done() == ["a1", "a2"]).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_fails_too_many_replays_is_parked() {
    let replay = ReplayOptions { max_replays: Some(2), ..ReplayOptions::default() };
    let (bench, running, _) = with_dead(Options { replay, ..one_attempt() }, &["a1"]).await;
    for (replays, state) in [(1, LetterState::Dead), (2, LetterState::Parked)] {
        let plan = freeze(&bench, Action::Retry);
        let done = over(&bench, begin(&bench, &plan, &RolloutPolicy::unlimited())).await;
        assert_eq!(done.failed_again, 1);
        let letter = bench.letter("a");
        assert_eq!((letter.replay_attempts, letter.state), (replays, state));
        assert!(letter.first_failed_at <= letter.last_failed_at);
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn dead_letters_are_reprocessed_by_the_clock_a_batch_at_a_time() {
    let reprocess = Reprocess::Cron { schedule: "0 */15 * * * *".parse().unwrap(), batch_size: 2 };
    let dead_letter = Some(DeadLetterOptions { reprocess, ..DeadLetterOptions::default() });
    let options = Options { dead_letter, ..one_attempt() };
    let (bench, running, repaired) = with_dead(options, &["a1", "b1", "c1"]).await;
    repaired.repair();
    let open = |bench: &Bench| bench.counts().open();
    assert_eq!(open(&bench), 3);
    let_pass(Duration::from_secs(15 * 60 + 10)).await;
    assert_eq!(open(&bench), 1, "the two oldest were replayed");
    let_pass(Duration::from_secs(15 * 60)).await;
    assert_eq!(open(&bench), 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn letters_expire_and_release_those_behind_them() {
    // I11
    let dead_letter = Some(DeadLetterOptions { ttl: Some(secs(600)), ..DeadLetterOptions::default() });
    let bench = Bench::new();
    bench.push(&["a1"]);
    let script = |this: &Try| if this.name == "a1" { Reply::Fail(fatal()) } else { Reply::Done };
    let running = bench.start(Options { dead_letter, ..one_attempt() }, script);
    let_pass(secs(300)).await;
    bench.push(&["a2"]);
    eventually("both are letters", || bench.committed() == Some(1)).await;
    eventually("the head has expired", || bench.counts().of(LetterState::Expired) == 1).await;
    eventually("the other is handled", || bench.calls.done() == ["a2"]).await;
    assert!(bench.clock.elapsed() >= secs(600));
    assert_eq!(bench.events.count("Expired"), 1);
    assert!(bench.audit().iter().any(|entry| entry.action == "expire"), "{:?}", bench.audit());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_message_that_waited_starts_when_it_fails() {
    // I1, I11: the letter does not expire with its head before it was tried.
    let dead_letter = Some(DeadLetterOptions { ttl: Some(secs(600)), ..DeadLetterOptions::default() });
    let bench = Bench::new();
    bench.push(&["a1", "a2", "a3"]);
    let script = |this: &Try| if this.name == "a3" { Reply::Done } else { Reply::Fail(fatal()) };
    let running = bench.start(Options { dead_letter, ..one_attempt() }, script);
    eventually("all are letters", || bench.committed() == Some(2)).await;
    let behind = &bench.letters("a")[1];
    assert_eq!((behind.state, behind.expires_at), (LetterState::Waiting, None));
    eventually("the head has expired", || bench.counts().of(LetterState::Expired) == 1).await;
    let failed = || bench.letters("a").first().filter(|letter| letter.state == LetterState::Dead).cloned();
    eventually("the one behind it has failed", || failed().is_some()).await;
    let failed = failed().unwrap();
    let ttl = jiff::SignedDuration::from_secs(600);
    assert!(failed.expires_at >= failed.first_failed_at.map(|at| at + ttl), "{:?}", failed.expires_at);
    eventually("it has expired, too", || bench.counts().of(LetterState::Expired) == 2).await;
    eventually("the last one is handled", || bench.calls.done() == ["a3"]).await;
    assert!(bench.clock.elapsed() >= secs(1200));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn payloads_are_left_out_once_a_letter_is_dead() {
    let dead_letter = Some(DeadLetterOptions { include_payload: false, ..DeadLetterOptions::default() });
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let script = |this: &Try| match this.name.as_str() {
        "a1" => Reply::Fail(fatal()),
        _ => Reply::Fail(transient()),
    };
    let running = bench.start(Options { dead_letter, ..options() }, script);
    eventually("one is dead", || bench.letters("a").len() == 1).await;
    let dead = bench.letter("a");
    assert!(dead.payload_left_out && dead.message.payload.is_none());
    eventually("the other waits for a retry", || bench.letters("b").len() == 1).await;
    let retrying = bench.letter("b");
    assert_eq!(retrying.state, LetterState::Retrying);
    assert!(retrying.message.payload.is_some(), "it needs its payload");
    eventually("it is dead, too", || bench.letter("b").state == LetterState::Dead).await;
    let dead = bench.letter("b");
    assert!(dead.payload_left_out && dead.message.payload.is_none());
    running.stop().await;
}
