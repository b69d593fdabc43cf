//! Tests of the guide's example handlers: each runs in its own language and does what the guide says.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lazaret_core::{HandlerError, Message, Position, Reason, Verdict};
use lazaret_handlers::{CommandHandler, CommandOptions, HttpHandler, HttpOptions, Mode};

use crate::support::{call, has, python, root};

fn order(id: &str, payload: &str) -> Message {
    let mut message = Message::new(id, "orders", Position::new(0, 0)).with_payload(payload.to_owned());
    message.content_type = Some("application/json".into());
    message
}

/// Returns the message without a content type, as from a source that does not provide it.
fn untold(mut message: Message) -> Message {
    message.content_type = None;
    message
}

/// The process of an example, in the example's folder.
struct Example {
    child: Child,
    port: u16,
}

impl Drop for Example {
    fn drop(&mut self) {
        // `go run` starts another program, so the whole group must be killed.
        let group = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Example {
    /// Starts an example that is a server. It chooses its own port.
    fn start(folder: &str, program: &[&str]) -> (Self, HttpHandler) {
        use std::os::unix::process::CommandExt;
        let mut child = Command::new(program[0])
            .args(&program[1..])
            .current_dir(root().join("examples/handlers").join(folder))
            .env("PORT", "0")
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        let mut example = Self { child, port: 0 };
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let port = line.trim().strip_prefix("listening on ").and_then(|port| port.parse().ok());
        example.port = port.unwrap_or_else(|| panic!("{line:?}"));
        let port = example.port;
        let options =
            HttpOptions::new(format!("http://127.0.0.1:{port}/")).with_timeout(Duration::from_secs(60));
        (example, HttpHandler::new(options).unwrap())
    }
}

/// Runs the `curl` lines of the guide against an example. The comment of each line begins with the
/// expected status.
fn answers_curl(example: &Example) {
    if !has("curl", "--version") {
        return;
    }
    let guide = std::fs::read_to_string(root().join("docs/handlers.md")).unwrap();
    let lines: Vec<&str> = guide.lines().filter(|line| line.starts_with("curl ")).collect();
    assert_eq!(lines.len(), 5, "the guide shows each kind of response");
    for line in lines {
        let (_, comment) = line.rsplit_once("# ").unwrap();
        let line = line.replace("127.0.0.1:8080", &format!("127.0.0.1:{}", example.port));
        let ran = Command::new("sh").args(["-c", &line]).output().unwrap();
        let printed = String::from_utf8(ran.stdout).unwrap();
        assert_eq!(printed.split_whitespace().last(), comment.split(':').next(), "{line}");
    }
}

/// Checks the behaviour that every example of a server must have.
async fn behaves(example: &Example, handler: &HttpHandler) {
    answers_curl(example);
    let send = async |id: &str, payload: &str| call(handler, order(id, payload)).await;
    send("e-1", r#"{"total": 5}"#).await.unwrap();
    call(handler, untold(order("e-0", r#"{"total": 5}"#))).await.unwrap();
    let info = |outcome: Result<(), HandlerError>| {
        let error = outcome.unwrap_err();
        let failure = error.failure();
        (error.suggested_verdict().unwrap(), failure.reason, failure.message, failure.retry_after)
    };
    let (verdict, reason, ..) = info(send("e-1", r#"{"total": 5}"#).await);
    assert_eq!((verdict, reason), (Verdict::Duplicate, Reason::DUPLICATE));
    for payload in ["{broken", r#"{"total": 4.5}"#, r#"{"total": "4"}"#, r#"{"total": true}"#] {
        let (verdict, reason, ..) = info(send("e-2", payload).await);
        assert_eq!((verdict, reason), (Verdict::DeadLetter, Reason::INVALID_SCHEMA), "{payload}");
    }
    let (verdict, reason, message, _) = info(send("e-3", r#"{"total": -1}"#).await);
    assert_eq!(
        (verdict, reason.as_str(), &*message),
        (Verdict::DeadLetter, "NEGATIVE_TOTAL", "a negative total")
    );
    let (verdict, reason, message, wait) = info(send("e-4", r#"{"total": 0}"#).await);
    assert_eq!((verdict, reason), (Verdict::Retry, Reason::DEPENDENCY_UNAVAILABLE));
    assert_eq!((&*message, wait), ("not priced yet", Some(Duration::from_secs(30))));
    survives(handler).await;
    for n in 0..20 {
        send(&format!("n-{n}"), r#"{"total": 1}"#).await.unwrap();
    }
}

#[tokio::test]
async fn the_python_handler_does_what_it_says() {
    let Some(python) = python() else { return };
    let (example, handler) = Example::start("python", &[&python, "handler.py"]);
    behaves(&example, &handler).await;
}

#[tokio::test]
async fn the_node_handler_does_what_it_says() {
    if has("node", "--version") {
        let (example, handler) = Example::start("node", &["node", "handler.mjs"]);
        behaves(&example, &handler).await;
    }
}

#[tokio::test]
async fn the_go_handler_does_what_it_says() {
    if has("go", "version") {
        let (example, handler) = Example::start("go", &["go", "run", "main.go"]);
        behaves(&example, &handler).await;
    }
}

#[tokio::test]
async fn the_java_handler_does_what_it_says() {
    if has("javac", "-version") {
        let (example, handler) = Example::start("java", &["java", "Handler.java"]);
        behaves(&example, &handler).await;
    }
}

#[tokio::test]
async fn the_python_worker_does_what_it_says() {
    let Some(python) = python() else { return };
    let folder = root().join("examples/handlers/python");
    let options = CommandOptions::new([&python, "worker.py"]).in_folder(folder).with_mode(Mode::Lines);
    let handler = CommandHandler::new(options.with_timeout(Duration::from_secs(60))).unwrap();
    call(&handler, order("e-1", r#"{"total": 5}"#)).await.unwrap();
    // Sent as bytes, because nothing says that it is JSON.
    call(&handler, untold(order("e-1", r#"{"total": 5}"#))).await.unwrap();
    let error = call(&handler, untold(order("e-2", "\u{0}\u{1}"))).await.unwrap_err();
    assert_eq!(
        (error.asked_verdict(), error.failure().reason.as_str()),
        (Some(Verdict::DeadLetter), "INVALID_SCHEMA")
    );
    let table = [
        (r#"{"total": -1}"#, Verdict::DeadLetter, "NEGATIVE_TOTAL", None),
        (r#"{"total": 0}"#, Verdict::Retry, "HANDLER_ERROR", Some(Duration::from_secs(30))),
        (r#"{"sum": 0}"#, Verdict::DeadLetter, "INVALID_SCHEMA", None),
        (r#"{"total": 4.5}"#, Verdict::DeadLetter, "INVALID_SCHEMA", None),
        (r#"{"total": true}"#, Verdict::DeadLetter, "INVALID_SCHEMA", None),
    ];
    for (payload, verdict, reason, wait) in table {
        let error = call(&handler, order("e-2", payload)).await.unwrap_err();
        let failure = error.failure();
        assert_eq!((error.asked_verdict(), failure.reason.as_str()), (Some(verdict), reason), "{payload}");
        assert_eq!(failure.retry_after, wait, "{payload}");
    }
}

/// Payloads that crash a careless JSON parser.
fn hostile() -> [String; 3] {
    let nested = |open: &str, close: &str| format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
    [nested("[", "]"), nested(r#"{"a":"#, "}"), format!(r#"{{"total": {}}}"#, "9".repeat(100_000))]
}

#[tokio::test]
async fn the_python_worker_survives_deep_nesting_and_long_integers() {
    let Some(python) = python() else { return };
    let folder = root().join("examples/handlers/python");
    let options = CommandOptions::new([&python, "worker.py"]).in_folder(folder).with_mode(Mode::Lines);
    let handler = CommandHandler::new(options.with_timeout(Duration::from_secs(60))).unwrap();
    for payload in hostile() {
        for message in [order("e-1", &payload), untold(order("e-1", &payload))] {
            let error = call(&handler, message).await.unwrap_err();
            let failure = error.failure();
            let told = (error.asked_verdict(), failure.reason.as_str());
            assert_eq!(told, (Some(Verdict::DeadLetter), "INVALID_SCHEMA"), "{}", failure.message);
        }
    }
    call(&handler, order("e-2", r#"{"total": 5}"#)).await.unwrap();
}

/// Sends hostile payloads to an example that is a server. Each must be answered as a dead letter.
async fn survives(handler: &HttpHandler) {
    for payload in hostile() {
        let error = call(handler, order("h-1", &payload)).await.unwrap_err();
        let told = (error.suggested_verdict(), error.failure().reason);
        assert_eq!(told, (Some(Verdict::DeadLetter), Reason::INVALID_SCHEMA), "{error}");
    }
}

#[tokio::test]
async fn the_shell_handler_takes_no_long_integer_for_handled() {
    let folder = root().join("examples/handlers/shell");
    let handler = CommandHandler::new(CommandOptions::new(["sh", "handler.sh"]).in_folder(folder)).unwrap();
    for payload in hostile() {
        let error = call(&handler, order("e-1", &payload)).await.unwrap_err();
        assert_eq!(error.suggested_verdict(), Some(Verdict::DeadLetter), "{error}");
    }
}

#[tokio::test]
async fn the_shell_handler_does_what_it_says() {
    let folder = root().join("examples/handlers/shell");
    let handler = CommandHandler::new(CommandOptions::new(["sh", "handler.sh"]).in_folder(folder)).unwrap();
    call(&handler, order("e-1", r#"{"total": 5}"#)).await.unwrap();
    call(&handler, untold(order("e-1", r#"{"total": 5}"#))).await.unwrap();
    let table = [
        (r#"{"total": -1}"#, Verdict::DeadLetter, "a negative total"),
        (r#"{"total": 0}"#, Verdict::Retry, "not priced yet, attempt 1"),
        ("{}", Verdict::DeadLetter, "no total in e-2"),
        (r#"{"total": 4.5}"#, Verdict::DeadLetter, "no total in e-2"),
    ];
    for (payload, verdict, message) in table {
        let error = call(&handler, order("e-2", payload)).await.unwrap_err();
        assert_eq!((error.suggested_verdict(), &*error.to_string()), (Some(verdict), message), "{payload}");
    }
}

#[test]
fn the_guide_shows_the_examples_as_they_are() {
    let guide = std::fs::read_to_string(root().join("docs/handlers.md")).unwrap();
    for path in [
        "python/handler.py",
        "python/worker.py",
        "node/handler.mjs",
        "go/main.go",
        "java/Handler.java",
        "shell/handler.sh",
    ] {
        let example = std::fs::read_to_string(root().join("examples/handlers").join(path)).unwrap();
        assert!(guide.contains(&example), "{path} is shown otherwise");
        assert!(example.lines().count() <= 40, "{path} is long");
    }
}
