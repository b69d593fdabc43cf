//! A folder for a run, the process in it, and what it leaves behind.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use lazaret_core::query::Query;
use lazaret_core::store::{Audit, Triage};
use lazaret_core::{Letter, LetterState};
use lazaret_store_sqlite::{Options, SqliteStore};
use rustix::process::{Pid, Signal, kill_process};

/// The timeout of every wait.
pub(crate) const DEADLINE: Duration = Duration::from_secs(600);
/// How often to look.
const LOOK: Duration = Duration::from_millis(5);

/// Waits until something is there.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "waited in vain for {what}");
        std::thread::sleep(LOOK);
    }
}

/// A folder that goes with the test.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        // Whoever reads it meanwhile sees the old one or the new one.
        let beside = self.path(&format!("{name}.new"));
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(beside, self.path(name)).unwrap();
    }

    pub(crate) fn append(&self, name: &str, text: &str) {
        let mut file = File::options().create(true).append(true).open(self.path(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Starts the daemon here.
    pub(crate) fn start(&self, arguments: &[&str]) -> Daemon {
        let log = File::options().create(true).append(true).open(self.path("stderr.log")).unwrap();
        let said_before = usize::try_from(log.metadata().unwrap().len()).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_lazaret-daemon"))
            .args(arguments)
            .current_dir(self.0.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Daemon { child, log: self.path("stderr.log"), said_before }
    }

    /// Runs the daemon to its end, and gives its exit code.
    #[track_caller]
    pub(crate) fn run(&self, arguments: &[&str]) -> i32 {
        let code = self.start(arguments).wait().code();
        code.unwrap_or_else(|| panic!("killed:\n{}", self.read("stderr.log")))
    }

    /// The open letters, in the order of their position.
    pub(crate) fn open_letters(&self) -> Vec<(String, LetterState)> {
        let store = SqliteStore::open(self.path("lazaret.db"), Options::default()).unwrap();
        // On a thread of its own, so that tests that are asynchronous themselves can ask, too.
        std::thread::scope(|scope| scope.spawn(|| letters_of(&store)).join().unwrap())
    }

    /// What was done by people, by the audit.
    pub(crate) fn acts(&self) -> Vec<String> {
        let store = SqliteStore::open(self.path("lazaret.db"), Options::default()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let entries = runtime.block_on(store.audit(0, 100)).unwrap();
        entries.into_iter().map(|entry| entry.action).collect()
    }
}

fn letters_of(store: &SqliteStore) -> Vec<(String, LetterState)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (query, mut after) = (Query::parse("").unwrap(), None);
    let mut letters: Vec<Letter> = Vec::new();
    loop {
        let page = runtime.block_on(store.find(&query, after.as_deref(), 500)).unwrap();
        letters.extend(page.letters);
        after = match page.next {
            Some(next) => Some(next),
            None => break,
        };
    }
    letters.sort_by_key(|letter| letter.message.position.offset);
    letters.iter().map(|letter| (letter.message.id.to_string(), letter.state)).collect()
}

/// A daemon that runs. It is killed if the test ends before it does.
pub(crate) struct Daemon {
    child: Child,
    log: PathBuf,
    /// The bytes of the log that earlier daemons wrote.
    said_before: usize,
}

impl Daemon {
    #[track_caller]
    pub(crate) fn wait(mut self) -> ExitStatus {
        wait_for("the end of the daemon", || self.child.try_wait().unwrap())
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until these words have stood in the log so often.
    #[track_caller]
    pub(crate) fn logs(&mut self, words: &str, times: usize) {
        let log = self.log.clone();
        let started = Instant::now();
        while said(&log, words) < times {
            let text = || std::fs::read_to_string(&log).unwrap_or_default();
            assert!(self.runs() && started.elapsed() < DEADLINE, "never said {words:?}:\n{}", text());
            std::thread::sleep(LOOK);
        }
    }

    /// Where its API is.
    #[track_caller]
    pub(crate) fn address(&mut self) -> String {
        wait_for("the address of the daemon", || {
            let text = std::fs::read_to_string(&self.log).unwrap_or_default();
            let own = text.get(self.said_before..).unwrap_or_default();
            let line = own.split_inclusive('\n').rfind(|line| line.contains("listening"));
            assert!(line.is_some() || self.runs(), "it has ended:\n{text}");
            // The last line may not be whole yet.
            let (_, rest) = line?.split_once("address=")?;
            rest.split_once(char::is_whitespace).map(|(address, _)| address.to_owned())
        })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn said(log: &Path, words: &str) -> usize {
    std::fs::read_to_string(log).unwrap_or_default().matches(words).count()
}

/// Asks the API: the status and the body.
pub(crate) fn ask(address: &str, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split_whitespace().nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, body.to_owned())
}

/// As [`ask`] with GET.
pub(crate) fn get(address: &str, path: &str) -> (u16, String) {
    ask(address, "GET", path, "", "")
}

/// A worker in Python that does what the payload says, and writes each attempt into `attempts.log` before it answers.
pub(crate) const WORKER: &str = r#"
import json, os, sys, time
log = os.open("attempts.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for line in sys.stdin:
    message = json.loads(line)
    payload = message["payload"]
    time.sleep(payload.get("takes", 0))
    if payload["kind"] == "poison":
        answer = {"verdict": "dead-letter", "reason": "POISONED", "message": "never works"}
    elif payload["kind"] == "transient" or payload["kind"] == "flaky" and message["attempt"] <= 2:
        answer = {"verdict": "retry", "reason": "DEPENDENCY_UNAVAILABLE", "message": "not yet"}
    elif payload["kind"] == "stop":
        answer = {"verdict": "stop", "reason": "ENOUGH"}
    else:
        answer = {"verdict": "handled"}
    os.write(log, f'{message["key"]} {payload["n"]} {message["attempt"]} {answer["verdict"]}\n'.encode())
    print(json.dumps({"id": message["id"], **answer}), flush=True)
"#;

/// One line of `attempts.log`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) key: String,
    pub(crate) n: usize,
    pub(crate) attempt: u32,
    pub(crate) verdict: String,
}

/// What the worker wrote down. A last line that is not whole yet is left out.
pub(crate) fn attempts(folder: &Folder) -> Vec<Attempt> {
    let text = folder.read("attempts.log");
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let read = |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        let (key, verdict) = (words[0].to_owned(), words[3].to_owned());
        Attempt { key, n: words[1].parse().unwrap(), attempt: words[2].parse().unwrap(), verdict }
    };
    whole.lines().map(read).collect()
}

/// The line of a message for the worker above.
pub(crate) fn event(n: usize, key: &str, kind: &str) -> String {
    format!("{{\"id\": \"e-{n}\", \"key\": \"{key}\", \"payload\": {{\"n\": {n}, \"kind\": \"{kind}\"}}}}\n")
}
