//! Programs that run once per attempt: their input, the meaning of their exit, and the fate of their
//! processes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lazaret_core::failure::MESSAGE_LIMIT;
use lazaret_core::handler::{Delivery, Handle};
use lazaret_core::{Letter, Message, QueueName, Reason, Timestamp, Verdict};
use lazaret_handlers::{CommandHandler, CommandOptions, Error, Mode};
use tempfile::TempDir;

use crate::support::{call, call_after_a_stop, eventually, failed, is_alive, message, python};

fn sh(script: &str) -> CommandOptions {
    CommandOptions::new(["sh", "-c", script]).for_consumer("shop")
}

fn run(options: CommandOptions) -> CommandHandler {
    CommandHandler::new(options).unwrap()
}

/// Returns a folder for the files of a script, and the options for the script, in which `$OUT` is that
/// folder.
fn scratch(script: &str) -> (TempDir, CommandOptions) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap().to_owned();
    (folder, sh(script).with_env("OUT", out))
}

fn read(folder: &TempDir, name: &str) -> String {
    std::fs::read_to_string(folder.path().join(name)).unwrap()
}

/// Waits until a script has written a number to this file.
async fn number(folder: &TempDir, name: &str) -> u32 {
    let path = folder.path().join(name);
    let read = |path: &Path| std::fs::read_to_string(path).ok()?.strip_suffix('\n')?.parse().ok();
    eventually("a number is written", || read(&path).is_some()).await;
    read(&path).unwrap()
}

/// A program that logs a line and then fails deep in its stack. The stack trace is longer than any limit
/// on its start.
const DEEP: &str = r#"
import sys
print("INFO handling an order", file=sys.stderr)
for n in range(24):
    exec(f"def step{n}():\n    step{n + 1}()")
def step24():
    raise KeyError("USD") if sys.stdin.read() == "rate" else TimeoutError("no answer from the bank")
step0()
"#;

#[tokio::test]
async fn long_stack_traces_are_told_apart_by_what_went_wrong() {
    let Some(python) = python() else { return };
    let handler = run(CommandOptions::new([&*python, "-c", DEEP]).for_consumer("shop"));
    let fail = async |payload: &'static str| {
        let failed = call(&handler, message().with_payload(payload)).await;
        failed.expect_err("it should fail").failure()
    };
    let (rate, bank, again) = (fail("rate").await, fail("bank").await, fail("rate").await);
    // The message is the complete output.
    assert!(
        rate.message.starts_with("INFO handling an order\nTraceback (most recent call last):\n"),
        "{rate}"
    );
    assert!(rate.message.ends_with("\nKeyError: 'USD'") && rate.message.len() > 1024, "{rate}");
    assert!(bank.message.ends_with("\nTimeoutError: no answer from the bank"), "{bank}");
    assert_ne!(rate.fingerprint, bank.fingerprint);
    assert_eq!(rate.fingerprint, again.fingerprint);
}

#[tokio::test]
async fn a_last_line_that_is_a_report_describes_the_failure() {
    let script = r#"echo "INFO begun" >&2
        echo '{"detail":"no card","errorType":"shop.Declined","stackTrace":["at charge","at main"],"diagnostics":{"gateway":"eu"}}' >&2
        exit 75"#;
    let delivery = Delivery::new(message());
    let failure = run(sh(script)).handle(delivery.clone()).await.unwrap_err().failure();
    assert_eq!((&*failure.error_type, &*failure.message), ("shop.Declined", "no card"));
    assert_eq!((failure.backtrace.as_deref(), failure.status), (Some("at charge\nat main"), Some(75)));
    assert_eq!(delivery.metadata()["gateway"], "eu");
}

#[tokio::test]
async fn each_exit_code_leads_to_its_verdict() {
    use Verdict::{DeadLetter, Duplicate, Park, Quarantine, Retry, Skip, Stop};
    let table = [
        (1, Retry, Reason::HANDLER_ERROR),
        (2, Retry, Reason::HANDLER_ERROR),
        (65, DeadLetter, Reason::INVALID_SCHEMA),
        (69, Retry, Reason::DEPENDENCY_UNAVAILABLE),
        (75, Retry, Reason::HANDLER_ERROR),
        (77, DeadLetter, Reason::AUTHORIZATION_DENIED),
        (100, Park, Reason::UNSUPPORTED),
        (101, Quarantine, Reason::HANDLER_ERROR),
        (102, Skip, Reason::HANDLER_ERROR),
        (103, Duplicate, Reason::DUPLICATE),
        (104, Stop, Reason::HANDLER_ERROR),
        (255, Retry, Reason::HANDLER_ERROR),
    ];
    for (code, verdict, reason) in table {
        let (failure, said) = failed(&run(sh(&format!("echo no >&2; exit {code}")))).await;
        assert_eq!((said, failure.reason, failure.status), (Some(verdict), reason, Some(code)), "{code}");
        assert_eq!(failure.message, "no", "{code}");
    }
    call(&run(sh("echo all is well >&2; exit 0")), message()).await.unwrap();
}

#[tokio::test]
async fn a_signal_is_a_crash() {
    for (signal, number) in [("KILL", 9), ("SEGV", 11), ("TERM", 15)] {
        let (failure, verdict) = failed(&run(sh(&format!("kill -{signal} $$")))).await;
        assert_eq!((verdict, failure.reason), (Some(Verdict::Retry), Reason::CRASHED));
        assert_eq!((&*failure.message, failure.status), (&*format!("killed by signal {number}"), None));
    }
}

#[tokio::test]
async fn the_payload_is_on_the_standard_input() {
    // I5
    let (folder, options) = scratch("cat > $OUT/payload");
    let bytes: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    call(&run(options), message().with_payload(bytes.clone())).await.unwrap();
    assert_eq!(std::fs::read(folder.path().join("payload")).unwrap(), bytes);
}

#[tokio::test]
async fn a_payload_that_is_not_read_is_no_failure() {
    let large = message().with_payload(vec![0; 1_000_000]);
    call(&run(sh("exit 0")), large.clone()).await.unwrap();
    call(&run(sh("exec 0<&-; exit 0")), large.clone()).await.unwrap();
    call(&run(sh("head -c 10 > /dev/null")), large).await.unwrap();
}

#[tokio::test]
async fn a_tombstone_is_an_empty_input_and_says_so() {
    let tombstone = Message { payload: None, ..message() };
    let script = r#"test "$LAZARET_TOMBSTONE" = true && test -z "$(cat)""#;
    call(&run(sh(script)), tombstone).await.unwrap();
    assert!(call(&run(sh(script)), message().with_payload("")).await.is_err());
}

#[tokio::test]
async fn the_metadata_is_in_the_environment() {
    let (folder, options) = scratch("env > $OUT/env");
    let mut told = message().with_key("order 7").with_type("OrderPlaced").with_header("tenant-id", "acme");
    told.timestamp = Some("2026-01-01T00:00:00Z".parse().unwrap());
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    told = told.with_header("traceparent", trace);
    let queue = QueueName::of("shop", "shop");
    let mut letter = Letter::new(queue, "k".into(), told.into(), Timestamp::UNIX_EPOCH);
    (letter.attempts, letter.replay_attempts) = (3, 1);
    let id = letter.id;
    run(options).handle(Delivery::for_letter(Arc::new(letter), Some("op-7".into()))).await.unwrap();
    let env = read(&folder, "env");
    let expected = [
        "LAZARET_ID=evt-1",
        "LAZARET_KEY=order 7",
        "LAZARET_TYPE=OrderPlaced",
        "LAZARET_STREAM=orders",
        "LAZARET_SEQUENCE=order 7",
        "LAZARET_CONSUMER=shop",
        "LAZARET_POSITION=3:41",
        "LAZARET_TIME=2026-01-01T00:00:00Z",
        "LAZARET_CONTENT_TYPE=application/octet-stream",
        "LAZARET_HEADER_TENANT_ID=acme",
        "LAZARET_ATTEMPT=4",
        "LAZARET_REPLAY=op-7",
        "LAZARET_REPLAY_ATTEMPT=2",
        &format!("LAZARET_LETTER={id}"),
        &format!("LAZARET_TRACEPARENT={trace}"),
        &format!("TRACEPARENT={trace}"),
    ];
    for line in expected {
        assert!(env.lines().any(|known| known == line), "{line} is missing in {env}");
    }
    assert!(env.lines().any(|line| line.starts_with("PATH=")), "harmless variables are inherited");
}

#[tokio::test]
async fn secrets_of_this_process_are_inherited_only_if_they_are_named() {
    const NAME: &str = "command_once::secrets_of_this_process_are_inherited_only_if_they_are_named";
    if std::env::var_os("LAZARET_TOKEN").is_none() {
        // Runs this test again, inside such an environment.
        let mut inside = std::process::Command::new(std::env::current_exe().unwrap());
        inside.args(["--exact", NAME]).env("LAZARET_TOKEN", "s3cret").env("LAZARET_KEY", "outer");
        inside.env("DATABASE_URL", "postgres://app:s3cret@db").env("LC_TEST", "kept");
        inside.env("OTHER", "named").env("MINE_1", "first").env("MINE_2", "second");
        let inside = inside.env("TRACEPARENT", "outer").output().unwrap();
        let said = String::from_utf8_lossy(&inside.stdout);
        assert!(inside.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let (folder, options) = scratch("env > $OUT/env");
    call(&run(options), message()).await.unwrap();
    let env = read(&folder, "env");
    assert!(env.contains("LC_TEST=kept") && env.contains("LAZARET_ID=evt-1"), "{env}");
    for other in ["s3cret", "outer", "OTHER", "MINE_"] {
        assert!(!env.contains(other), "{other} is inherited: {env}");
    }

    // Variables of an outer Lazaret are never inherited, whatever names are listed.
    let (folder, options) = scratch("env > $OUT/env");
    call(&run(options.inherit_env(["OTHER", "MINE_*", "LAZARET_*", "TRACEPARENT"])), message())
        .await
        .unwrap();
    let env = read(&folder, "env");
    for named in ["OTHER=named", "MINE_1=first", "MINE_2=second"] {
        assert!(env.contains(named), "{named} is missing: {env}");
    }
    assert!(!env.contains("s3cret") && !env.contains("outer"), "{env}");
}

#[tokio::test]
async fn nothing_is_inherited_if_that_is_wished() {
    let (folder, options) = scratch("/usr/bin/env > $OUT/env");
    call(&run(options.without_inherited_env().with_env("MINE", "1")), message()).await.unwrap();
    let env = read(&folder, "env");
    assert!(env.contains("MINE=1") && env.contains("LAZARET_ID=evt-1"), "{env}");
    assert!(!env.contains("CARGO_MANIFEST_DIR"), "{env}");
}

#[tokio::test]
async fn any_bytes_can_be_told() {
    let (folder, options) =
        scratch(r#"printf %s "$LAZARET_KEY" > $OUT/key; printf %s "$LAZARET_ENCODED" > $OUT/encoded"#);
    let handler = run(options);
    call(&handler, message().with_key(&b"$(touch x) \n\xff'\""[..])).await.unwrap();
    assert_eq!(std::fs::read(folder.path().join("key")).unwrap(), b"$(touch x) \n\xff'\"");
    call(&handler, message().with_key(&b"a\0b"[..])).await.unwrap();
    assert_eq!(read(&folder, "key"), "a%00b");
    assert!(read(&folder, "encoded").contains("LAZARET_KEY"));
}

#[tokio::test]
async fn the_end_of_what_it_said_is_the_message() {
    // I7
    let script = "head -c 1000000 /dev/zero | tr '\\0' x >&2; echo; echo the end >&2; exit 1";
    let (failure, _) = failed(&run(sh(script))).await;
    assert!(failure.message.ends_with("xthe end") && failure.message.len() > MESSAGE_LIMIT - 10);
}

#[tokio::test]
async fn what_it_writes_to_its_output_goes_nowhere_and_blocks_nothing() {
    call(&run(sh("head -c 1000000 /dev/zero")), message()).await.unwrap();
}

#[tokio::test]
async fn a_program_that_is_not_there_is_unreachable() {
    let folder = tempfile::tempdir().unwrap();
    for program in ["/nowhere/handler", folder.path().to_str().unwrap()] {
        let (failure, verdict) = failed(&run(CommandOptions::new([program]))).await;
        assert_eq!((verdict, failure.reason), (Some(Verdict::Retry), Reason::HANDLER_UNREACHABLE));
        assert!(failure.message.starts_with("failed to start "), "{}", failure.message);
    }
}

#[test]
fn invalid_options_are_rejected() {
    let table = [
        (CommandOptions::new([""; 0]), "the program is missing"),
        (CommandOptions::new([""]), "the program is missing"),
        (CommandOptions::new(["a\0b"]), "NUL"),
        (sh("").with_env("A=B", "s3cret"), "invalid variable"),
        (sh("").with_env("A", "s3cret\0"), "invalid variable"),
        (sh("").with_timeout(Duration::ZERO), "the timeout must not be zero"),
        (sh("").with_workers(0), "the number of workers must not be zero"),
    ];
    for (options, expected) in table {
        let error: Error = CommandHandler::new(options).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!format!("{error:?}").contains("s3cret"));
    }
}

#[tokio::test]
async fn when_its_time_is_up_the_program_may_tidy_up() {
    let (folder, options) = scratch(
        "trap 'echo tidy >&2; echo done > $OUT/done; exit 0' TERM; echo $$ > $OUT/pid; while :; do sleep 0.01; done",
    );
    let options = options.with_timeout(Duration::from_secs(2)).with_grace(Duration::from_secs(60));
    let started = Instant::now();
    let (failure, verdict) = failed(&run(options)).await;
    assert_eq!((verdict, failure.reason), (Some(Verdict::Retry), Reason::TIMEOUT));
    let said = failure.message.starts_with("no response within 2s: ") && failure.message.ends_with("tidy");
    assert!(said, "{}", failure.message);
    assert_eq!(read(&folder, "done"), "done\n");
    assert!(started.elapsed() < Duration::from_secs(30), "the grace is not waited for in vain");
    assert!(!is_alive(number(&folder, "pid").await));
}

#[tokio::test]
async fn a_whole_family_that_does_not_listen_is_killed() {
    let (folder, options) = scratch(
        "trap '' TERM; echo $$ > $OUT/pid; \
         (trap '' TERM; sh -c 'echo $$ > $OUT/grandchild; while :; do sleep 0.01; done') & \
         while :; do sleep 0.01; done",
    );
    let options = options.with_timeout(Duration::from_secs(2)).with_grace(Duration::from_millis(100));
    let handler = run(options);
    let attempt = tokio::spawn(async move { failed(&handler).await });
    let (pid, grandchild) = (number(&folder, "pid").await, number(&folder, "grandchild").await);
    let (failure, _) = attempt.await.unwrap();
    assert_eq!(failure.reason, Reason::TIMEOUT);
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "not even its remains are there");
    // The process that inherits a grandchild reaps it later.
    eventually("the grandchild is dead", || !is_alive(grandchild)).await;
}

#[tokio::test]
async fn nothing_outlives_an_attempt_that_has_ended() {
    // I2
    let (folder, options) = scratch(
        "sh -c 'echo $$ > $OUT/pid; while :; do sleep 0.01; done' & \
        while ! test -s $OUT/pid; do sleep 0.01; done; exit 0",
    );
    let started = Instant::now();
    call(&run(options), message()).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(9), "it is not waited for");
    let pid = number(&folder, "pid").await;
    eventually("what it left behind is dead", || !is_alive(pid)).await;
}

#[tokio::test]
async fn an_attempt_that_is_given_up_is_killed_and_leaves_nothing_behind() {
    let (folder, options) = scratch("trap '' TERM; echo $$ > $OUT/pid; while :; do sleep 0.01; done");
    let handler = run(options.with_timeout(Duration::from_secs(60)));
    let attempt = tokio::spawn(async move { call(&handler, message()).await });
    let pid = number(&folder, "pid").await;
    assert!(is_alive(pid));
    attempt.abort();
    eventually("it is dead and reaped", || !Path::new(&format!("/proc/{pid}")).exists()).await;
}

#[tokio::test]
async fn many_attempts_leave_no_process_behind() {
    let handler = run(sh("exit 0"));
    let outcomes = join_all((0..40).map(|_| call(&handler, message()))).await;
    assert!(outcomes.iter().all(Result::is_ok));
    let own = std::process::id();
    let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
    for child in children.split_whitespace() {
        let name = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        assert!(!name.contains(") Z"), "a zombie: {name}");
    }
}

#[tokio::test]
async fn there_are_never_more_processes_than_allowed() {
    let (folder, options) = scratch("mkdir $OUT/lock || exit 1; sleep 0.02; rmdir $OUT/lock");
    let handler = run(options.with_workers(1));
    let outcomes = join_all((0..8).map(|_| call(&handler, message()))).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    drop(folder);
}

#[tokio::test]
async fn a_python_script_can_be_a_handler() {
    let Some(python) = python() else { return };
    let script = "import os, sys, json\n\
        order = json.load(sys.stdin)\n\
        if order['total'] < 0:\n    sys.exit('a negative total in ' + os.environ['LAZARET_ID'])\n";
    let handler = run(CommandOptions::new([&python, "-c", script]));
    call(&handler, message().with_payload(r#"{"total": 7}"#)).await.unwrap();
    let error = call(&handler, message().with_payload(r#"{"total": -7}"#)).await.unwrap_err();
    assert_eq!(error.to_string(), "a negative total in evt-1");
    let error = call(&handler, message().with_payload("{broken")).await.unwrap_err();
    assert!(error.to_string().contains("JSONDecodeError"), "{error}");
}

#[tokio::test]
async fn an_attempt_that_waited_for_a_worker_is_not_made_for_a_message_that_others_may_have() {
    // I6
    for mode in [Mode::Once, Mode::Lines] {
        let (folder, options) = scratch("touch $OUT/called");
        let error = call_after_a_stop(&run(options.with_mode(mode))).await.unwrap_err();
        assert!(error.deferral().is_some(), "it does not count: {error:?}");
        assert!(!folder.path().join("called").exists());
    }
}
