//! `on-dead: continue`: a dead letter leaves its sequence, and the key goes on.

use lazaret_core::policy::{OnDead, OnDeadOverride, OnDeadPolicy, RetryPolicy, Strategy};
use lazaret_core::{LetterState, Reason, Verdict};
use lazaret_engine::{DeadLetterOptions, Options};

use crate::support::{
    Bench, Repaired, Reply, Running, Try, asking, eventually, fatal, let_pass, one_attempt, options, retry,
    secs, transient, with_dead,
};

fn continuing(options: Options) -> Options {
    let on_dead = OnDeadPolicy { on_dead: OnDead::Continue, overrides: Vec::new() };
    Options { dead_letter: Some(DeadLetterOptions { on_dead, ..DeadLetterOptions::default() }), ..options }
}

/// Fails only for this payload.
fn failing(name: &'static str) -> impl Fn(&Try) -> Reply + Send + Sync + 'static {
    move |this| if this.name == name { Reply::Fail(transient()) } else { Reply::Done }
}

#[tokio::test(start_paused = true)]
async fn later_messages_wait_for_the_retries_and_go_on_when_the_letter_is_dead() {
    // I2 until it dies
    for strategy in [Strategy::InPlace, Strategy::Ordered] {
        let bench = Bench::new();
        bench.push(&["a1", "a2", "a3"]);
        let options = Options { retry: retry(strategy), ..options() };
        bench.run(continuing(options), failing("a1")).await;
        assert_eq!(bench.calls.tried(), ["a1", "a1", "a1", "a2", "a3"], "{strategy}");
        assert_eq!(bench.calls.times_of("a2"), [3.0], "{strategy}: it waited for the last attempt");
        assert_eq!((bench.standing("a"), bench.committed()), (vec![], Some(2)), "{strategy}");
        let letter = bench.letter_at(0).unwrap();
        assert_eq!((letter.state, letter.attempts), (LetterState::Dead, 3), "{strategy}");
        assert_eq!(letter.sequence.origin().unwrap().as_str(), "a", "{strategy}");
        assert_eq!(bench.counts().sequences, 1, "{strategy}");
    }
}

#[tokio::test(start_paused = true)]
async fn by_default_later_messages_wait_behind_a_dead_letter() {
    // I2
    let bench = Bench::new();
    bench.push(&["a1", "a2"]);
    bench.run(options(), failing("a1")).await;
    let standing = [("a1".to_owned(), LetterState::Dead), ("a2".to_owned(), LetterState::Waiting)];
    assert_eq!(bench.standing("a"), standing);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_dies_at_once_never_opens_its_sequence() {
    let bench = Bench::new();
    bench.push(&["a1", "a2"]);
    let running = bench.start(continuing(one_attempt()), failing("a1"));
    eventually("a2 is handled", || bench.calls.done() == ["a2"]).await;
    bench.push(&["a3"]);
    eventually("a3 is handled", || bench.committed() == Some(2)).await;
    let stats = running.stop().await;
    assert_eq!((stats.appended, stats.handed_off), (0, 1), "nothing waited in the store");
    let letter = bench.letter_at(0).unwrap();
    assert_eq!(bench.letter(letter.sequence.as_str()).id, letter.id);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_its_handler_gives_up_leaves_its_sequence() {
    let bench = Bench::new();
    bench.push(&["a1", "a2"]);
    let script = |this: &Try| if this.name == "a1" { Reply::SendToDlq("hopeless") } else { Reply::Done };
    bench.run(continuing(options()), script).await;
    assert_eq!(bench.calls.done().last().map(String::as_str), Some("a2"));
    assert!(bench.letter_at(0).unwrap().sequence.origin().is_some());
}

#[tokio::test(start_paused = true)]
async fn parked_and_quarantined_letters_hold_their_sequence() {
    // I2
    for (verdict, state) in
        [(Verdict::Park, LetterState::Parked), (Verdict::Quarantine, LetterState::Quarantined)]
    {
        let bench = Bench::new();
        bench.push(&["a1", "a2"]);
        let script = move |this: &Try| {
            if this.name == "a1" { Reply::Fail(asking(verdict)) } else { Reply::Done }
        };
        bench.run(continuing(options()), script).await;
        let standing = [("a1".to_owned(), state), ("a2".to_owned(), LetterState::Waiting)];
        assert_eq!(bench.standing("a"), standing);
    }
}

#[tokio::test(start_paused = true)]
async fn the_reason_of_the_last_failure_decides() {
    let over =
        OnDeadOverride { event_type: None, reason: Some(Reason::DOMAIN_INVALID), on_dead: OnDead::Continue };
    let on_dead = OnDeadPolicy { on_dead: OnDead::Hold, overrides: vec![over] };
    let dead_letter = Some(DeadLetterOptions { on_dead, ..DeadLetterOptions::default() });
    let bench = Bench::new();
    bench.push(&["a1", "a2", "b1", "b2"]);
    let script = |this: &Try| match this.name.as_str() {
        "a1" if this.before == 0 => Reply::Fail(transient()),
        "a1" => Reply::Fail(fatal()),
        "b1" => Reply::Fail(transient()),
        _ => Reply::Done,
    };
    bench.run(Options { dead_letter, ..options() }, script).await;
    assert_eq!(bench.calls.done(), ["a2"]);
    assert!(bench.letter_at(0).unwrap().sequence.origin().is_some());
    assert_eq!(bench.standing("b").len(), 2, "it died for another reason");
}

#[tokio::test(start_paused = true)]
async fn a_replay_runs_beside_the_key_and_a_failed_one_blocks_nobody() {
    let repaired = Repaired::default();
    let bench = Bench::new();
    bench.push(&["a1"]);
    let broken = repaired.script();
    let running =
        bench.start(
            continuing(one_attempt()),
            move |this| if this.name == "a1" { broken(this) } else { Reply::Done },
        );
    eventually("it is a letter", || bench.committed() == Some(0)).await;
    let sequence = bench.letter_at(0).unwrap().sequence;
    assert_eq!(running.replayer().process_sequence(&sequence, "op").await.unwrap(), Some(false));
    bench.push(&["a2"]);
    eventually("a2 is handled", || bench.calls.done() == ["a2"]).await;
    repaired.repair();
    assert_eq!(running.replayer().process_sequence(&sequence, "op").await.unwrap(), Some(true));
    assert_eq!(bench.calls.done(), ["a2", "a1"], "out of order by choice");
    assert_eq!(bench.letter_at(0).unwrap().state, LetterState::Resolved);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_held_its_key_leaves_it_when_it_dies_again_under_the_new_setting() {
    let (bench, running, _) = with_dead(one_attempt(), &["a1", "a2"]).await;
    running.stop().await;
    assert_eq!(bench.standing("a").len(), 2);
    let running = bench.start(continuing(one_attempt()), failing("a1"));
    let_pass(secs(5)).await;
    assert_eq!(bench.standing("a").len(), 2, "what is dead stays as it is");
    assert_eq!(running.replayer().process_sequence(&"a".into(), "op").await.unwrap(), Some(false));
    eventually("a2 is handled", || bench.calls.done() == ["a2"]).await;
    assert!(bench.letter_at(0).unwrap().sequence.origin().is_some());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_delivered_again_finds_its_letter_beside_its_key() {
    // I8
    let bench = Bench::new();
    bench.push(&["a1", "a2"]);
    // a2 takes so long that nothing is committed after a1 before the crash.
    let slow = |this: &Try| match this.name.as_str() {
        "a1" => Reply::Fail(fatal()),
        _ => Reply::Hang,
    };
    let quick = Options { commit_interval: secs(3600), ..continuing(one_attempt()) };
    let running: Running = bench.start(quick, slow);
    eventually("a1 is a letter", || bench.letter_at(0).is_some()).await;
    running.crash().await;
    let again = bench.start(continuing(one_attempt()), |this| match this.name.as_str() {
        "a1" => Reply::Fail(fatal()),
        _ => Reply::Done,
    });
    eventually("a2 is handled", || bench.calls.done() == ["a2"]).await;
    eventually("both are committed", || bench.committed() == Some(1)).await;
    assert_eq!(bench.calls.attempts_of("a1"), [1], "its letter is known");
    assert_eq!(bench.counts().open(), 1);
    again.stop().await;
}

#[tokio::test(start_paused = true)]
async fn strategies_without_order_keep_their_own_sequences() {
    let bench = Bench::new();
    bench.push(&["a1", "a2"]);
    let retry = RetryPolicy { max_attempts: 2, ..retry(Strategy::Unordered) };
    bench.run(continuing(Options { retry, ..options() }), failing("a1")).await;
    assert_eq!(bench.letter_at(0).unwrap().sequence.as_str(), "~m:events/0/0");
}
