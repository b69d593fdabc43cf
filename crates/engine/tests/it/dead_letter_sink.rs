//! Messages that handlers send to the dead letters: letters whose write gets no response, and contexts
//! that outlive their attempt.

use std::sync::{Arc, Mutex};

use lazaret_core::LetterState;
use lazaret_core::store::{ErrorKind, StoreError};
use lazaret_engine::Options;

use crate::support::{self, Bench, Reply, Running, Try, eventually, let_pass, millis, options, secs};

type Answer = Arc<Mutex<Option<Result<(), StoreError>>>>;

/// Sends the message to the dead letters from a separate task, some time after the handler was called.
fn send_later(this: &Try, after: std::time::Duration) -> Answer {
    let (answer, context) = (Answer::default(), this.context.clone());
    let given = answer.clone();
    tokio::spawn(async move {
        tokio::time::sleep(after).await;
        let sent = context.send_to_dlq("too late").await;
        *given.lock().unwrap() = Some(sent);
    });
    answer
}

#[tokio::test(start_paused = true)]
async fn a_letter_without_an_answer_does_not_outlive_its_partition() {
    let bench = Bench::new();
    bench.push(&["a1", "a2"]);
    bench.store.slow_down("hand_off", secs(3600));
    let source = bench.log.join();
    let member = source.member();
    let script = |this: &Try| match (this.name.as_str(), this.before) {
        ("a1", 0) => Reply::SendToDlq("no use"),
        _ => Reply::after(millis(1), Reply::Done),
    };
    let running = Running::start(bench.builder_on(options(), source).handler(bench.handler(script)));
    eventually("it is being sent", || bench.store.calls("hand_off") > 0).await;
    // The partition is lost and comes back.
    assert!(bench.log.expel(member));
    eventually("all are handled", || bench.committed() == Some(1)).await;
    assert_eq!(bench.calls.done(), ["a1", "a2"]);
    assert_eq!(bench.counts().open(), 0, "it was handled, and its key is free");
    running.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_letter_without_an_answer_is_written_while_its_partition_is_owned() {
    // I1
    let bench = Bench::new();
    bench.push(&["a1"]);
    bench.store.slow_down("hand_off", secs(90));
    let options = Options { attempt_timeout: Some(secs(5)), ..options() };
    let running = bench.start(options, |_| Reply::SendToDlq("no use"));
    eventually("it is committed", || bench.committed() == Some(0)).await;
    assert_eq!(bench.letter("a").state, LetterState::Dead);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_context_that_outlives_its_attempt_settles_nothing() {
    let bench = Bench::new();
    bench.push(&["a1", "a2"]);
    let answers = Arc::new(Mutex::new(Vec::new()));
    let kept = answers.clone();
    let script = move |this: &Try| {
        if this.name == "a1" {
            kept.lock().unwrap().push(send_later(this, millis(500)));
        }
        Reply::Done
    };
    let running = bench.start(options(), script);
    let_pass(secs(2)).await;
    assert_eq!(bench.counts().open(), 0, "it was handled");
    assert_eq!(bench.calls.done(), ["a1", "a2"]);
    let answer = answers.lock().unwrap()[0].lock().unwrap().take().expect("it was answered");
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::Fenced);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_context_of_an_earlier_attempt_settles_nothing_in_the_next() {
    let bench = Bench::new();
    bench.push(&["a1"]);
    let script = |this: &Try| match this.before {
        0 => {
            send_later(this, secs(2));
            Reply::Fail(support::transient())
        }
        _ => Reply::after(secs(5), Reply::Done),
    };
    let running = bench.start(options(), script);
    eventually("it is committed", || bench.committed() == Some(0)).await;
    assert_eq!((bench.calls.done().len(), bench.counts().open()), (1, 0));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_context_that_escaped_does_not_write_under_the_grant_of_the_next_owner() {
    // I6
    let bench = Bench::new();
    bench.push(&["a1", "a2"]);
    let source = bench.log.join();
    let member = source.member();
    let script = |this: &Try| match (this.name.as_str(), this.before) {
        ("a1", 0) => {
            send_later(this, secs(5));
            Reply::Hang
        }
        ("a1", _) => Reply::after(secs(20), Reply::Done),
        _ => Reply::Done,
    };
    let running = Running::start(bench.builder_on(options(), source).handler(bench.handler(script)));
    eventually("it runs", || bench.calls.len() == 1).await;
    assert!(bench.log.expel(member));
    eventually("all are handled", || bench.committed() == Some(1)).await;
    assert_eq!(bench.calls.done(), ["a1", "a2"]);
    assert_eq!(bench.counts().open(), 0);
    running.stop().await;
}
