//! Messages that crash the process, with real processes, from the file to the dead letter.
//!
//! The test runs itself as the consumer, and restarts it after every crash until it exits by itself.

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lazaret::Options;
use lazaret::file::FileSource;
use lazaret::flight::MappedRecorder;
use lazaret::prelude::*;
use lazaret::sqlite::SqliteStore;

/// The folder of the consumer. Set in the process that runs it.
const FOLDER: &str = "LAZARET_CRASH_TEST_FOLDER";
/// The most starts of the consumer.
const MAX_STARTS: usize = 12;

/// Fifteen orders of five customers; one of them crashes its handler's process.
fn events(deadly: &str) -> String {
    let line = |n: usize| {
        let (kind, customer) =
            if n == 7 { (deadly, "c") } else { ("fine", ["a", "b", "c", "d", "e"][n % 5]) };
        format!("{{\"id\": \"e-{n}\", \"key\": \"{customer}\", \"payload\": \"{kind}\"}}\n")
    };
    (0..15).map(line).collect()
}

async fn handler(Json(kind): Json<String>) -> Result<(), HandlerError> {
    // Other messages are in flight when the process crashes.
    tokio::time::sleep(Duration::from_millis(30)).await;
    match kind.as_str() {
        "abort" => std::process::abort(),
        "overflow" => println!("{}", overflow(1)),
        "memory" => exhaust_memory(),
        _ => {}
    }
    Ok(())
}

#[expect(unconditional_recursion, reason = "the stack shall overflow")]
fn overflow(depth: u64) -> u64 {
    let room = std::hint::black_box([depth; 512]);
    overflow(depth.wrapping_add(1)).wrapping_add(room[7])
}

/// Allocates memory until the limit ends the process, as the OOM killer would.
fn exhaust_memory() {
    let mut held: Vec<Vec<u8>> = Vec::new();
    loop {
        held.push(std::hint::black_box(vec![1; 16 << 20]));
    }
}

/// The consumer. Not a test of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the other tests, in a process of its own"]
async fn consumer() {
    let folder = std::env::var_os(FOLDER).expect("the test that starts it names the folder");
    let folder = Path::new(&folder);
    let store = Arc::new(SqliteStore::open(folder.join("lazaret.db"), Default::default()).unwrap());
    let recorder = MappedRecorder::open(folder.join("shop.flight"), Default::default()).unwrap();
    let events = folder.join("events.jsonl");
    let source = FileSource::open(&events, store.clone(), "shop", Default::default()).await.unwrap();
    let retry = RetryPolicy { max_attempts: 10, max_crashes: 3, ..RetryPolicy::default() };
    let options =
        Options { until_idle: true, retry, flight_recorder: Some(Arc::new(recorder)), ..Options::default() };
    let builder = Consumer::builder("shop").source(source).store(store).handler(handler).options(options);
    builder.build().unwrap().run(CancellationToken::new()).await.unwrap();
}

/// Starts the consumer with at most 2 GiB of memory and waits until it exits.
fn run_consumer(folder: &Path) -> ExitStatus {
    let program = std::env::current_exe().unwrap();
    let script =
        r#"ulimit -c 0; ulimit -v 2097152; exec "$0" --ignored --exact crash_poison::consumer --nocapture"#;
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(program).env(FOLDER, folder).env("RUST_BACKTRACE", "0");
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap()
}

async fn the_culprit_is_found(deadly: &str) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("events.jsonl"), events(deadly)).unwrap();
    let mut crashes = 0;
    while !run_consumer(folder.path()).success() {
        crashes += 1;
        assert!(crashes < MAX_STARTS, "{deadly}: the consumer crashes again and again");
    }
    assert!(
        (3..=5).contains(&crashes),
        "{deadly}: three crashes are charged, and few more are needed: {crashes}"
    );

    let store = SqliteStore::open(folder.path().join("lazaret.db"), Default::default()).unwrap();
    let queue = QueueName::of("shop", "shop");
    let open = store.sequence(&queue, &"c".into(), 0, 10).await.unwrap();
    let culprit = &open[0];
    assert_eq!(culprit.message.id.as_str(), "e-7");
    assert_eq!((culprit.state, culprit.crash_attempts), (LetterState::Dead, 3));
    assert_eq!(culprit.cause.as_ref().unwrap().reason, Reason::CRASHED);
    let behind: Vec<&str> = open[1..].iter().map(|letter| letter.message.id.as_str()).collect();
    assert_eq!(behind, ["e-12"], "its sequence waits behind it");
    let counts = store.counts(&queue).await.unwrap();
    assert_eq!(counts.open(), 2, "the other messages were handled and are charged with no crash");
}

#[tokio::test]
async fn a_message_that_aborts_is_found() {
    the_culprit_is_found("abort").await;
}

#[tokio::test]
async fn a_message_that_overflows_the_stack_is_found() {
    the_culprit_is_found("overflow").await;
}

#[tokio::test]
async fn a_message_that_takes_all_memory_is_found() {
    the_culprit_is_found("memory").await;
}
