//! Long-running workers: one JSON line in, one JSON line out.

use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lazaret_core::handler::{Delivery, Handle};
use lazaret_core::{HandlerError, Message, Position, Reason, Verdict};
use lazaret_handlers::{CommandHandler, CommandOptions, Mode};
use tempfile::TempDir;

use crate::support::{call, eventually, failed, is_alive, message, python};

/// A worker that does what the payload says.
const WORKER: &str = r#"
import json, os, sys, time
with open(os.environ["OUT"] + "/pids", "a") as pids:
    print(os.getpid(), file=pids, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    what = message.get("payload") or {}
    answer = {"id": message["id"], "verdict": "handled"}
    answer.update(what.get("answer", {}))
    print("at work on", message["id"], file=sys.stderr, flush=True)
    if "raw" in what:
        print(what["raw"], flush=True)
        continue
    if "die" in what:
        os._exit(what["die"])
    if "kill" in what:
        os.kill(os.getpid(), what["kill"])
    if "hang" in what:
        time.sleep(1000)
    if "deaf" in what:
        sys.stdout.close()
        os.close(1)
        time.sleep(1000)
    if "rendezvous" in what:
        open(os.environ["OUT"] + "/" + message["id"], "w").close()
        while len(os.listdir(os.environ["OUT"])) < what["rendezvous"]:
            time.sleep(0.005)
    print(json.dumps(answer), flush=True)
    if "twice" in what:
        time.sleep(0.1)
        print(json.dumps(answer), flush=True)
        open(os.environ["OUT"] + "/twice", "w").close()
    if "leave" in what:
        sys.exit(0)
"#;

struct Bench {
    folder: TempDir,
    handler: CommandHandler,
}

impl Bench {
    fn new(workers: usize) -> Option<Self> {
        let python = python()?;
        let folder = tempfile::tempdir().unwrap();
        let options = CommandOptions::new([&python, "-c", WORKER])
            .with_mode(Mode::Lines)
            .with_workers(workers)
            .with_env("OUT", folder.path().to_str().unwrap())
            .with_timeout(Duration::from_secs(60))
            .with_grace(Duration::from_millis(200));
        Some(Self { handler: CommandHandler::new(options).unwrap(), folder })
    }

    async fn send(&self, payload: &str) -> Result<(), HandlerError> {
        call(&self.handler, order("evt-1", payload)).await
    }

    async fn failed(&self, payload: &str) -> HandlerError {
        self.send(payload).await.expect_err(payload)
    }

    /// Returns the process ids of all workers that ever started.
    fn pids(&self) -> Vec<u32> {
        let pids = std::fs::read_to_string(self.folder.path().join("pids")).unwrap_or_default();
        pids.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

fn order(id: &str, payload: &str) -> Message {
    let mut message = Message::new(id, "orders", Position::new(0, 0)).with_payload(payload.to_owned());
    message.content_type = Some("application/json".into());
    message
}

#[tokio::test]
async fn a_worker_reports_the_type_and_the_trace_of_its_error() {
    let Some(bench) = Bench::new(1) else { return };
    let answer = r#"{"answer": {"verdict": "retry", "detail": "no card", "errorType": "KeyError", "stackTrace": "at x"}}"#;
    let failure = bench.failed(answer).await.failure();
    assert_eq!((&*failure.error_type, &*failure.message), ("KeyError", "no card"));
    assert_eq!(failure.backtrace.as_deref(), Some("at x"));
}

#[tokio::test]
async fn one_worker_handles_many_messages() {
    let Some(bench) = Bench::new(1) else { return };
    for n in 0..50 {
        call(&bench.handler, order(&format!("evt-{n}"), "{}")).await.unwrap();
    }
    assert_eq!(bench.pids().len(), 1);
}

#[tokio::test]
async fn a_worker_has_one_message_at_a_time_and_all_workers_work() {
    let Some(bench) = Bench::new(3) else { return };
    // Each waits until three work at the same time. The file `pids` is a fourth file.
    let orders: Vec<_> = (0..3).map(|n| order(&format!("m{n}"), r#"{"rendezvous": 4}"#)).collect();
    let outcomes = join_all(orders.into_iter().map(|order| call(&bench.handler, order))).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let outcomes = join_all((0..30).map(|n| call(&bench.handler, order(&format!("n{n}"), "{}")))).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(bench.pids().len(), 3);
}

#[tokio::test]
async fn a_worker_says_how_it_went_and_lives_on() {
    let Some(bench) = Bench::new(1) else { return };
    for verdict in Verdict::ALL {
        let error = bench.failed(&format!(r#"{{"answer": {{"verdict": "{verdict}"}}}}"#)).await;
        assert_eq!(error.asked_verdict(), Some(verdict));
    }
    let answer = r#"{"answer": {"verdict": "retry", "reason": "RATE_LIMITED", "message": "slow down", "retry-after": 7}}"#;
    let failure = bench.failed(answer).await.failure();
    assert_eq!((failure.reason, &*failure.message), (Reason::RATE_LIMITED, "slow down"));
    assert_eq!(failure.retry_after, Some(Duration::from_secs(7)));
    bench.send("{}").await.unwrap();
    assert_eq!(bench.pids().len(), 1);
}

#[tokio::test]
async fn a_worker_that_dies_fails_its_message_alone_and_is_replaced() {
    let Some(bench) = Bench::new(1) else { return };
    bench.send("{}").await.unwrap();
    let failure = bench.failed(r#"{"die": 3}"#).await.failure();
    assert_eq!((failure.reason, failure.status), (Reason::CRASHED, Some(3)));
    assert_eq!((&*failure.message, &*failure.error_type), ("at work on evt-1", "exit code 3"));
    bench.send("{}").await.unwrap();
    let failure = bench.failed(r#"{"kill": 9}"#).await.failure();
    assert_eq!((failure.reason, &*failure.error_type), (Reason::CRASHED, "killed by signal 9"));
    bench.send("{}").await.unwrap();
    assert_eq!(bench.pids().len(), 3);
}

#[tokio::test]
async fn a_worker_with_an_invalid_response_is_killed_and_replaced() {
    let Some(bench) = Bench::new(1) else { return };
    let long = format!(r#"{{"raw": "{}"}}"#, "x".repeat(100_000));
    let table = [
        (r#"{"raw": "hello"}"#, "invalid response \"hello\""),
        (r#"{"answer": {"id": "other"}}"#, "the response is for another message, \"other\""),
        (r#"{"answer": {"verdict": null}}"#, "neither a verdict nor a reason"),
        (&long, "the response is longer than 65536 bytes"),
    ];
    for (n, (payload, expected)) in table.into_iter().enumerate() {
        let error = bench.failed(payload).await;
        assert_eq!(error.suggested_verdict(), Some(Verdict::Retry));
        let failure = error.failure();
        assert_eq!(failure.reason, Reason::INVALID_RESPONSE, "{expected}");
        let says = failure.message.contains("the worker was killed") && failure.message.contains(expected);
        assert!(says, "{}", failure.message);
        assert!(!Path::new(&format!("/proc/{}", bench.pids()[n])).exists(), "not even its remains are there");
    }
    bench.send("{}").await.unwrap();
}

#[tokio::test]
async fn a_worker_that_talks_unasked_is_not_used_again() {
    let Some(bench) = Bench::new(1) else { return };
    bench.send(r#"{"raw": "{\"id\": \"evt-1\", \"verdict\": \"handled\"}\n{}"}"#).await.unwrap();
    bench.send("{}").await.unwrap();
    assert_eq!(bench.pids().len(), 2);
}

#[tokio::test]
async fn an_answer_that_comes_twice_is_not_taken_for_that_of_the_next_attempt() {
    // I1: both attempts are for the same message, so the id alone cannot distinguish their responses.
    let Some(bench) = Bench::new(1) else { return };
    bench.send(r#"{"twice": 1}"#).await.unwrap();
    let said = bench.folder.path().join("twice");
    eventually("it was said twice", || said.exists()).await;
    assert_eq!(bench.failed(r#"{"answer": {"verdict": "park"}}"#).await.asked_verdict(), Some(Verdict::Park));
    assert_eq!(bench.pids().len(), 2);
}

#[tokio::test]
async fn when_its_time_is_up_the_worker_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"
        trap '' TERM
        echo $$ >> $OUT/pids
        while read -r line; do
            case "$line" in
                *hang*) echo stuck >&2; while :; do sleep 0.01; done ;;
                *) echo '{"id": "evt-1", "verdict": "handled"}' ;;
            esac
        done"#;
    let options = CommandOptions::new(["sh", "-c", script])
        .with_mode(Mode::Lines)
        .with_env("OUT", folder.path().to_str().unwrap())
        .with_timeout(Duration::from_secs(3))
        .with_grace(Duration::from_millis(100));
    let bench = Bench { handler: CommandHandler::new(options).unwrap(), folder };
    let failure = bench.failed(r#""hang""#).await.failure();
    assert_eq!((failure.reason, &*failure.message), (Reason::TIMEOUT, "no response within 3s: stuck"));
    assert!(!Path::new(&format!("/proc/{}", bench.pids()[0])).exists(), "not even its remains are there");
    bench.send("{}").await.unwrap();
    assert_eq!(bench.pids().len(), 2);
}

#[tokio::test]
async fn a_worker_that_closes_its_output_is_killed() {
    let Some(bench) = Bench::new(1) else { return };
    let failure = bench.failed(r#"{"deaf": 1}"#).await.failure();
    assert_eq!(failure.reason, Reason::CRASHED);
    assert!(failure.message.contains("closed its output without a response"), "{}", failure.message);
    eventually("it is dead", || !is_alive(bench.pids()[0])).await;
}

#[tokio::test]
async fn a_worker_that_left_while_idle_fails_no_message() {
    // I4: the worker never received the next message.
    let Some(bench) = Bench::new(1) else { return };
    for n in 0..5 {
        bench.send(r#"{"leave": 1}"#).await.unwrap();
        eventually("it has left", || !is_alive(bench.pids()[n])).await;
    }
    assert_eq!(bench.pids().len(), 5);
}

#[tokio::test]
async fn workers_that_fail_in_a_row_are_started_ever_more_slowly() {
    let options = CommandOptions::new(["sh", "-c", "echo cannot start >&2; exit 7"]);
    let handler = CommandHandler::new(options.with_mode(Mode::Lines).with_workers(1)).unwrap();
    let started = Instant::now();
    for _ in 0..4 {
        let (failure, verdict) = failed(&handler).await;
        assert_eq!((verdict, failure.reason), (Some(Verdict::Retry), Reason::CRASHED));
        assert_eq!((&*failure.message, &*failure.error_type), ("cannot start", "exit code 7"));
    }
    assert!(started.elapsed() >= Duration::from_millis(700), "100, 200 and 400 ms: {:?}", started.elapsed());
}

#[tokio::test]
async fn a_message_that_crashes_its_workers_delays_no_other() {
    // I3
    let Some(bench) = Bench::new(1) else { return };
    let poison = || call(&bench.handler, order("poison", r#"{"die": 3}"#));
    for n in 0..5 {
        assert_eq!(poison().await.unwrap_err().failure().reason, Reason::CRASHED);
        call(&bench.handler, order(&format!("healthy-{n}"), "{}")).await.unwrap();
    }
    assert_eq!(bench.pids().len(), 6, "one worker for each crash, and one for all others");
    // Its next attempt waits for its back-off. The other messages have a worker.
    let mut next = Box::pin(poison());
    for n in 0..5 {
        tokio::select! {
            biased;
            outcome = &mut next => panic!("it ran before the others: {outcome:?}"),
            outcome = call(&bench.handler, order(&format!("later-{n}"), "{}")) => outcome.unwrap(),
        }
    }
    assert_eq!(bench.pids().len(), 6);
}

#[tokio::test]
async fn many_messages_that_crash_their_workers_delay_no_other() {
    // I3
    let Some(bench) = Bench::new(2) else { return };
    bench.send("{}").await.unwrap();
    let suspects: Vec<String> = (0..8).map(|n| format!("suspect-{n}")).collect();
    for id in &suspects {
        call(&bench.handler, order(id, r#"{"die": 3}"#)).await.unwrap_err();
    }
    // One of them is tried and does not return.
    let crashed = bench.pids().len();
    let hanging = tokio::spawn({
        let (handler, id) = (bench.handler.clone(), suspects[0].clone());
        async move { call(&handler, order(&id, r#"{"hang": 1}"#)).await }
    });
    eventually("it runs", || bench.pids().len() > crashed).await;
    for id in &suspects[1..] {
        let attempt = bench.handler.handle(Delivery::new(order(id, r#"{"die": 3}"#)));
        let attempt = tokio::time::timeout(Duration::from_secs(240), attempt).await;
        let error = attempt.expect("it does not wait, and does not run").unwrap_err();
        assert!(error.deferral().is_some(), "{:?}", error.failure());
    }
    bench.send("{}").await.unwrap();
    hanging.abort();
}

#[tokio::test]
async fn a_message_that_crashed_a_worker_and_is_handled_later_is_no_suspect() {
    let Some(bench) = Bench::new(2) else { return };
    bench.send("{}").await.unwrap();
    bench.failed(r#"{"die": 3}"#).await;
    bench.send("{}").await.unwrap();
    let pids = bench.pids().len();
    for _ in 0..3 {
        bench.send("{}").await.unwrap();
    }
    assert_eq!(bench.pids().len(), pids, "the pool keeps the worker");
}

#[tokio::test]
async fn a_program_that_is_not_there_is_unreachable() {
    let options = CommandOptions::new(["/nowhere/worker"]).with_mode(Mode::Lines);
    let (failure, _) = failed(&CommandHandler::new(options).unwrap()).await;
    assert_eq!(failure.reason, Reason::HANDLER_UNREACHABLE);
}

#[tokio::test]
async fn an_attempt_that_is_given_up_kills_its_worker() {
    let Some(bench) = Bench::new(1) else { return };
    let handler = bench.handler.clone();
    let attempt = tokio::spawn(async move { call(&handler, order("evt-1", r#"{"hang": 1}"#)).await });
    eventually("it is at work", || !bench.pids().is_empty()).await;
    attempt.abort();
    eventually("it is dead and reaped", || !Path::new(&format!("/proc/{}", bench.pids()[0])).exists()).await;
    bench.send("{}").await.unwrap();
}

#[tokio::test]
async fn workers_end_with_their_handler() {
    let Some(bench) = Bench::new(2) else { return };
    bench.send("{}").await.unwrap();
    let pid = bench.pids()[0];
    drop(bench.handler);
    eventually("it is dead and reaped", || !Path::new(&format!("/proc/{pid}")).exists()).await;
}

#[tokio::test]
async fn a_message_larger_than_a_pipe_is_handed_over() {
    let Some(bench) = Bench::new(1) else { return };
    let payload = format!(r#"{{"much": "{}"}}"#, "x".repeat(1_000_000));
    bench.send(&payload).await.unwrap();
}

#[tokio::test]
async fn a_message_without_json_is_handed_over_too() {
    let Some(bench) = Bench::new(1) else { return };
    call(&bench.handler, message().with_payload(&b"\xff\x00"[..])).await.unwrap();
    call(&bench.handler, Message { payload: None, ..message() }).await.unwrap();
}
