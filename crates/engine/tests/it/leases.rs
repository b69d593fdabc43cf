//! Processes that stall for longer than their lease: nothing runs twice at once, the loss is reported,
//! the attempt counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lazaret_core::handler::{BoxHandler, Context, handler};
use lazaret_core::policy::{BudgetPolicy, RetryPolicy, Strategy};
use lazaret_core::store::{HandOff, LetterStore, Limits, Placement};
use lazaret_core::{Clock, HandlerError, Letter, LetterState, Message, Position, Reason};
use lazaret_engine::Options;
use lazaret_testkit::RecorderFile;

use crate::support::{
    Bench, Reply, Running, Try, eventually, fatal, let_pass, millis, options, retry, secs, transient,
};

/// Counts calls and the maximum number of concurrent calls.
#[derive(Clone, Default)]
struct Calls {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    attempts: Arc<std::sync::Mutex<Vec<u32>>>,
}

/// A call that lasts until it returns or is dropped.
struct Call(Arc<AtomicUsize>);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Calls {
    fn begin(&self, attempt: u32) -> Call {
        self.attempts.lock().unwrap().push(attempt);
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        Call(self.now.clone())
    }

    fn attempts(&self) -> Vec<u32> {
        self.attempts.lock().unwrap().clone()
    }

    /// A handler that fails live messages, and takes this long for letters.
    fn handler(&self, first: fn() -> HandlerError, takes: Duration) -> BoxHandler {
        let calls = self.clone();
        handler(move |context: Context| {
            let calls = calls.clone();
            async move {
                let _call = calls.begin(context.attempt());
                if calls.attempts().len() == 1 {
                    return Err(first());
                }
                tokio::time::sleep(takes).await;
                Ok(())
            }
        })
    }
}

/// Retries from the store after one second, with a lease of one second.
fn short_lease() -> Options {
    let retry = RetryPolicy { hold: secs(0), max_attempts: 6, ..retry(Strategy::Ordered) };
    Options { lease: secs(1), retry, shards: 1, ..options() }
}

/// Makes the clock jump, as for a process that was stopped for a while. Nothing else runs before this
/// returns.
fn stall(time: Duration) {
    let mut jump = Box::pin(tokio::time::advance(time));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(jump.as_mut().poll(&mut context).is_pending(), "the clock has jumped");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stalled_does_not_run_a_letter_beside_itself() {
    // I6
    for first in [transient as fn() -> HandlerError, fatal] {
        let (bench, calls) = (Bench::new(), Calls::default());
        bench.push(&["a1"]);
        let running = Running::start(bench.builder(short_lease()).handler(calls.handler(first, secs(7))));
        eventually("it is a letter", || bench.committed() == Some(0)).await;
        let dead = bench.letter("a").state == LetterState::Dead;
        let replayer = running.replayer();
        let replay =
            tokio::spawn(async move { if dead { replayer.process_any().await.map(drop) } else { Ok(()) } });
        eventually("its retry or replay runs", || calls.attempts().len() == 2).await;
        let_pass(millis(500)).await;
        stall(millis(2_500));
        // The lease has ended, but nobody has noticed.
        assert!(running.replayer().process_any().await.unwrap());
        replay.await.unwrap().unwrap();
        assert_eq!(calls.most.load(Ordering::SeqCst), 1, "at once");
        assert_eq!(bench.letter_at(0).map(|letter| letter.state), Some(LetterState::Resolved));
        assert_eq!((bench.events.count("LeaseLost"), running.stats().leases_lost), (1, 1));
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_lease_was_lost_counts() {
    // I4
    let (bench, calls) = (Bench::new(), Calls::default());
    bench.push(&["a1"]);
    let running = Running::start(bench.builder(short_lease()).handler(calls.handler(transient, secs(7))));
    for attempt in 2..=4 {
        eventually("a retry runs", || calls.attempts().last() == Some(&attempt)).await;
        let_pass(millis(100)).await;
        stall(millis(2_500));
    }
    eventually("it is given up", || bench.letter("a").state == LetterState::Dead).await;
    let letter = bench.letter("a");
    assert_eq!((letter.attempts, letter.crash_attempts, letter.poison), (4, 3, true), "one live, three lost");
    let cause = letter.cause.expect("why it is dead");
    assert_eq!((cause.reason, &*cause.error_type), (Reason::CRASHED, "lease lost"));
    assert_eq!((calls.attempts(), calls.most.load(Ordering::SeqCst)), (vec![1, 2, 3, 4], 1));
    assert_eq!(bench.events.count("LeaseLost"), 3);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_cause_of_a_lost_lease_says_no_number_where_lost_leases_are_not_counted() {
    // A flight recorder counts crashes itself.
    let (bench, calls, recorder) = (Bench::new(), Calls::default(), RecorderFile::default());
    bench.push(&["a1"]);
    let options = Options { flight_recorder: Some(Arc::new(recorder.open())), ..short_lease() };
    let running = Running::start(bench.builder(options).handler(calls.handler(transient, secs(7))));
    eventually("a retry runs", || calls.attempts().len() == 2).await;
    let_pass(millis(100)).await;
    stall(millis(2_500));
    eventually("it is tried again", || calls.attempts().len() == 3).await;
    let letter = bench.letter("a");
    let cause = letter.cause.expect("why it is tried again");
    assert_eq!((&*cause.error_type, letter.crash_attempts), ("lease lost", 0));
    assert!(cause.message.starts_with("the lease ended while"), "{}", cause.message);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_never_called_the_handler_is_no_attempt() {
    // I4
    let (bench, calls) = (Bench::new(), Calls::default());
    bench.push(&["a1"]);
    // Each response arrives after the lease has ended.
    bench.store.answer_late("claim_due", secs(2));
    let running = Running::start(bench.builder(short_lease()).handler(calls.handler(transient, secs(0))));
    eventually("leases are lost", || bench.store.calls("claim_due") > 20).await;
    let letter = bench.letter("a");
    assert_eq!((letter.attempts, letter.crash_attempts, calls.attempts()), (1, 0, vec![1]));
    bench.store.answer_late("claim_due", secs(0));
    eventually("it is handled", || bench.counts().of(LetterState::Resolved) == 1).await;
    assert_eq!(calls.attempts(), [1, 2]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_begins_at_once_needs_no_write_but_its_claim_and_its_settlement() {
    let bench = Bench::new();
    bench.push(&["a1", "a2", "a3"]);
    let running = bench.start(short_lease(), |this| match this.before {
        0 if this.name == "a1" => Reply::Fail(transient()),
        _ => Reply::after(millis(10), Reply::Done),
    });
    eventually("all are handled", || bench.counts().of(LetterState::Resolved) == 3).await;
    assert_eq!((bench.store.calls("settle"), bench.store.calls("renew")), (3, 0));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_crashes_its_process_at_once_escapes_the_count_once() {
    // I4
    let bench = Bench::new();
    bench.push(&["a1"]);
    let options = throttled("100/s");
    for calls in 2..=5 {
        let running = bench.start(options.clone(), hanging_letters);
        eventually("its retry runs", || bench.calls.len() == calls).await;
        crash(running).await;
    }
    let running = bench.start(options, |_| Reply::Done);
    eventually("it is given up", || bench.letter("a").state == LetterState::Dead).await;
    assert_eq!(bench.calls.attempts_of("a1"), [1, 2, 2, 3, 4]);
    assert_eq!(bench.letter("a").crash_attempts, 3);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_counts_when_the_drain_ends_before_its_outcome_is_stored() {
    // I4
    let (bench, calls) = (Bench::new(), Calls::default());
    bench.push(&["a1"]);
    let options = Options { drain_deadline: secs(1), ..short_lease() };
    let failing = || bench.builder(options.clone()).handler(calls.handler(transient, secs(0)));
    let running = Running::start(failing());
    eventually("it is a letter", || bench.committed() == Some(0)).await;
    // From here on no settlement arrives.
    bench.store.slow_down("settle", secs(3600));
    eventually("its retry ran", || calls.attempts().len() == 2).await;
    running.begin_stop();
    // The result does not matter here: the run exceeded its deadline.
    _ = running.ended().await;
    assert_eq!(bench.store.calls("release"), 0, "the lease expires");
    bench.store.slow_down("settle", secs(0));
    let running = Running::start(failing());
    eventually("it is handled again", || {
        bench.letter_at(0).is_some_and(|letter| letter.state == LetterState::Resolved)
    })
    .await;
    assert_eq!(calls.attempts(), [1, 2, 3], "the one before counts");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_does_not_use_up_the_last_attempt() {
    let (bench, calls) = (Bench::new(), Calls::default());
    bench.push(&["a1"]);
    let mut options = short_lease();
    options.retry.max_attempts = 2;
    let running = Running::start(bench.builder(options).handler(calls.handler(transient, secs(7))));
    eventually("its retry runs", || calls.attempts().len() == 2).await;
    stall(millis(2_500));
    eventually("it is handled", || {
        bench.letter_at(0).is_some_and(|letter| letter.state == LetterState::Resolved)
    })
    .await;
    assert_eq!(calls.attempts(), [1, 2, 2]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_is_answered_late_loses_no_lease() {
    // The settlement ends the lease before its response arrives. A renewal in between is refused.
    let bench = Bench::new();
    bench.push(&["a1"]);
    bench.store.answer_late("settle", secs(5));
    let running = bench.start(short_lease(), |this| match this.before {
        0 | 1 => Reply::Fail(transient()),
        _ => Reply::Fail(fatal()),
    });
    eventually("it is dead", || bench.letter_at(0).is_some_and(|l| l.state == LetterState::Dead)).await;
    let_pass(secs(10)).await;
    assert_eq!((bench.events.count("LeaseLost"), running.stats().leases_lost), (0, 0));
    let letter = bench.letter("a");
    assert_eq!((letter.attempts, bench.calls.attempts_of("a1")), (3, vec![1, 2, 3]));
    assert_eq!(bench.events.count("LetterStored"), 3, "every outcome is reported");
    running.stop().await;
}

/// Retries from the store after one second, at the rate that the budget allows.
fn throttled(rate: &str) -> Options {
    let retry = RetryPolicy { hold: secs(0), max_attempts: 9, ..retry(Strategy::Ordered) };
    let budget = BudgetPolicy { rate: rate.parse().ok(), ..BudgetPolicy::default() };
    Options { budget, retry, ..options() }
}

/// Fails live messages, and never returns for letters.
fn hanging_letters(this: &Try) -> Reply {
    if this.before == 0 { Reply::Fail(transient()) } else { Reply::Hang }
}

/// Crashes the process and lets its leases expire.
async fn crash(running: Running) {
    running.crash().await;
    let_pass(options().lease + secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_charges_no_letter_that_waited_for_its_attempt() {
    // I4: three of four letters wait for the budget each time the process crashes.
    let bench = Bench::new();
    bench.push(&["a1", "b1", "c1", "d1"]);
    for crashes in 1..=6 {
        let running = bench.start(throttled("1/h"), hanging_letters);
        eventually("one retry runs", || bench.calls.len() == 4 + crashes).await;
        let_pass(secs(5)).await;
        crash(running).await;
    }
    let running = bench.start(throttled("1/h"), hanging_letters);
    eventually("one more runs", || bench.calls.len() == 11).await;
    let letters: Vec<Letter> = ["a", "b", "c", "d"].into_iter().flat_map(|key| bench.letters(key)).collect();
    assert!(letters.iter().all(|letter| letter.state == LetterState::Retrying), "{letters:?}");
    let charged = |of: fn(&Letter) -> u32| letters.iter().map(of).sum::<u32>();
    assert_eq!(charged(|letter| letter.attempts), 10, "four live, six lost, and one that runs");
    assert_eq!(charged(|letter| letter.crash_attempts), 6);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_began_after_a_wait_counts() {
    // I4
    let bench = Bench::new();
    bench.push(&["a1", "b1"]);
    let running = bench.start(throttled("12/m"), hanging_letters);
    eventually("both retries run", || bench.calls.len() == 4).await;
    crash(running).await;
    let running = bench.start(throttled("12/m"), hanging_letters);
    eventually("both run again", || bench.calls.len() == 6).await;
    for (key, name) in [("a", "a1"), ("b", "b1")] {
        let letter = bench.letter(key);
        assert_eq!((letter.attempts, letter.crash_attempts), (2, 1), "{name}");
        assert_eq!(bench.calls.attempts_of(name), [1, 2, 3]);
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_charges_no_letter_that_waited_for_a_permit() {
    let bench = Bench::new();
    bench.push(&["a1", "z1"]);
    let options = Options { concurrency: 1, shards: 1, ..throttled("100/s") };
    let running = bench.start(options.clone(), |this| match (&*this.name, this.before) {
        ("a1", 0) => Reply::Fail(transient()),
        ("z1", _) => Reply::Hang,
        _ => Reply::Done,
    });
    eventually("the live message has the permit", || bench.calls.tried() == ["a1", "z1"]).await;
    let_pass(secs(5)).await;
    assert_eq!(bench.calls.tried(), ["a1", "z1"], "the letter waits");
    crash(running).await;
    let running = bench.start(options, |_| Reply::Done);
    eventually("all is handled", || bench.calls.done().len() == 2).await;
    assert_eq!(bench.calls.attempts_of("a1"), [1, 2]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn attempts_are_counted_up_to_the_largest_number_and_never_wrap() {
    // I4: an imported letter may have any number of attempts.
    let (bench, calls) = (Bench::new(), Calls::default());
    let message = Message::new("a1", "orders", Position::new(0, 0)).with_key("a");
    let mut letter = Letter::new(Bench::queue(), "a".into(), message.into(), bench.clock.now());
    (letter.state, letter.due_at) = (LetterState::Retrying, Some(bench.clock.now()));
    letter.replay_attempts = u32::MAX;
    let id = letter.id;
    let item = HandOff { letter, placement: Placement::Open, grant: None };
    bench.store.hand_off(&Bench::queue(), &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
    let slow = calls.clone();
    let slow = handler(move |context: Context| {
        let call = slow.begin(context.attempt());
        async move {
            let _call = call;
            tokio::time::sleep(secs(7)).await;
            Err::<(), _>(fatal())
        }
    });
    let running = Running::start(bench.builder(short_lease()).handler(slow));
    eventually("its retry runs", || calls.attempts().len() == 1).await;
    let_pass(millis(100)).await;
    stall(millis(2_500));
    let stored = async || bench.store.get(&Bench::queue(), id).await.unwrap().unwrap();
    eventually("it runs again", || calls.attempts().len() == 2).await;
    let letter = stored().await;
    assert_eq!((letter.attempts, letter.replay_attempts), (1, u32::MAX), "the lost lease counts");
    eventually("it is dead", || bench.letter("a").state == LetterState::Dead).await;
    running.replayer().process_any().await.unwrap();
    assert_eq!(
        (calls.attempts().len(), stored().await.replay_attempts),
        (3, u32::MAX),
        "a failed replay, too"
    );
    running.stop().await;
}
