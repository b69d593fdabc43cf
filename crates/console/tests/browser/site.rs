//! A daemon in a separate process, with a console, a consumer and a handler that can be repaired.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::http::{self, Response};
use crate::webdriver::{Browser, wait_for};

/// The environment variable that makes a test process the daemon. It holds the path of the configuration.
const DAEMON: &str = "LAZARET_BROWSER_DAEMON";
/// The name of the consumer.
pub(crate) const ORDERS: &str = "orders";
/// The owner of the consumer's letters.
pub(crate) const OWNER: &str = "notification-platform-team";

/// Runs the daemon for the other tests, which start this test in a separate process. In the main test
/// process, it does nothing.
#[test]
fn daemon() {
    let Some(path) = std::env::var_os(DAEMON) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let code =
        runtime.block_on(lazaret_daemon::program::run(path.as_ref(), lazaret_daemon::Options::default()));
    std::process::exit(i32::from(code));
}

/// The settings of a site.
#[derive(Default)]
pub(crate) struct Setup {
    /// Whether people have to sign in.
    pub(crate) closed: bool,
    /// Whether replays need a second person.
    pub(crate) approval: bool,
    /// Additional top-level lines of the configuration.
    pub(crate) lines: String,
}

/// A running site.
pub(crate) struct Site {
    folder: tempfile::TempDir,
    port: u16,
    daemon: Option<Child>,
    pub(crate) handler: Handler,
    closed: bool,
}

/// Returns the path of a group's page. The group's id names the queue, which contains a slash.
pub(crate) fn group_page(group: &Value) -> String {
    format!("/console/groups/{}", group["id"].as_str().unwrap().replace('/', "%2F"))
}

/// Returns the token of a person.
pub(crate) fn token(name: &str) -> String {
    format!("lz_secret-of-{name}")
}

impl Site {
    pub(crate) fn start(setup: &Setup) -> Self {
        let handler = Handler::start();
        let folder = tempfile::tempdir().unwrap();
        // The daemon keeps the port across restarts, so that pages find it.
        let port = lazaret_port_testkit::free_port();
        let person = |name: &str, scopes: &str| {
            let hash: String = Sha256::digest(token(name)).iter().map(|byte| format!("{byte:02x}")).collect();
            format!("    - {{ name: {name}, hash: 'sha256:{hash}', scopes: [{scopes}] }}\n")
        };
        let auth = match setup.closed {
            true => format!(
                "auth:\n  tokens:\n{}{}{}{}",
                person("ada", "admin"),
                person("bob", "admin"),
                person("clerk", "read, payload"),
                person("reader", "read")
            ),
            false => String::new(),
        };
        let approval = if setup.approval { "second-person" } else { "none" };
        let text = format!(
            "listen: 127.0.0.1:{port}\nstore: sqlite:lazaret.db\nflight-recorder: off\n{auth}{}\
             consumers:\n  {ORDERS}:\n    source: {{ inbox: {{}} }}\n    \
             handler: {{ http: {{ url: 'http://{}/events' }} }}\n    \
             retry: {{ max-attempts: 1 }}\n    dead-letter: {{ owner: {OWNER} }}\n    \
             replay: {{ approval: {approval} }}\n",
            setup.lines, handler.address
        );
        std::fs::write(folder.path().join("lazaret.yaml"), text).unwrap();
        let mut site = Self { folder, port, daemon: None, handler, closed: setup.closed };
        site.run();
        site
    }

    /// Starts the daemon and waits until it is ready.
    pub(crate) fn run(&mut self) {
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "site::daemon", "--nocapture"])
            .env(DAEMON, "lazaret.yaml")
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.daemon = Some(child);
        wait_for("the daemon", || {
            let ended = self.daemon.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the daemon ended:\n{}", std::fs::read_to_string(self.log()).unwrap());
            http::send(&self.address(), "GET", "/readyz", &[], "").ok().filter(|answer| answer.status == 200)
        });
    }

    /// Kills the daemon, as a crash of its machine would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("stderr.log")
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the URL of a page.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address())
    }

    /// Calls the API, as ada if people have to sign in.
    pub(crate) fn api(&self, method: &str, path: &str, body: &Value) -> Response {
        let bearer = format!("Bearer {}", token("ada"));
        let mut headers = vec![("content-type", "application/json")];
        if self.closed {
            headers.push(("authorization", bearer.as_str()));
        }
        let body = if body.is_null() { String::new() } else { body.to_string() };
        http::send(&self.address(), method, path, &headers, &body).unwrap()
    }

    /// Reads from the API.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = self.api("GET", path, &Value::Null);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }

    /// Posts messages, which fail while the handler is not repaired.
    #[track_caller]
    pub(crate) fn feed(&self, messages: &[Value]) {
        let lines: Vec<String> = messages.iter().map(Value::to_string).collect();
        let bearer = format!("Bearer {}", token("ada"));
        let headers = [("content-type", "application/x-ndjson"), ("authorization", bearer.as_str())];
        let path = format!("/v1/inbox/{ORDERS}/batch");
        let answer = http::send(&self.address(), "POST", &path, &headers, &lines.join("\n")).unwrap();
        assert_eq!(answer.status, 202, "{}", answer.body);
    }

    /// Posts this many messages, each with its own key, and waits for their letters.
    #[track_caller]
    pub(crate) fn fail(&self, count: usize) {
        let before = self.open_letters();
        let message = |n: usize| json!({"id": format!("m-{before}-{n}"), "key": format!("k-{before}-{n}"), "type": "OrderPlaced", "payload": {"n": n}});
        self.feed(&(0..count).map(message).collect::<Vec<_>>());
        self.wait_letters(before + count as u64);
    }

    /// Returns the number of open letters.
    pub(crate) fn open_letters(&self) -> u64 {
        self.get("/v1/letters/count")["letters"].as_u64().unwrap()
    }

    /// Waits for a number of open letters.
    #[track_caller]
    pub(crate) fn wait_letters(&self, count: u64) {
        wait_for(&format!("{count} open letters"), || (self.open_letters() == count).then_some(()));
    }

    /// Returns the page of the group with the most letters, as an alert links to it.
    pub(crate) fn first_group(&self) -> String {
        group_page(&self.get("/v1/groups")["groups"][0])
    }

    /// Returns the id of the latest letter.
    pub(crate) fn last_letter(&self) -> String {
        self.get("/v1/letters")["letters"][0]["id"].as_str().unwrap().to_owned()
    }

    /// Signs a person in through the page.
    #[track_caller]
    pub(crate) fn sign_in(&self, browser: &Browser, name: &str) {
        browser.open(self.url("/console/login"));
        browser.write("#token", &token(name));
        browser.click("form button[type=submit]");
        wait_for("the overview", || (browser.path() == "/console/overview").then_some(()));
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An HTTP handler. Until it is repaired, it rejects every message.
pub(crate) struct Handler {
    address: String,
    state: Arc<HandlerState>,
}

#[derive(Default)]
struct HandlerState {
    repaired: AtomicBool,
    /// The number of further requests that are answered, or `None` for all.
    left: Mutex<Option<usize>>,
    more: Condvar,
    handled: AtomicUsize,
}

impl HandlerState {
    /// Waits until a request may be answered.
    fn wait_for_turn(&self) {
        let mut left = self.left.lock().unwrap();
        while *left == Some(0) {
            left = self.more.wait(left).unwrap();
        }
        if let Some(left) = &mut *left {
            *left -= 1;
        }
    }
}

impl Handler {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::<HandlerState>::default();
        // The thread ends with the process.
        std::thread::spawn({
            let state = state.clone();
            move || {
                for stream in listener.incoming().flatten() {
                    let state = state.clone();
                    std::thread::spawn(move || answer(stream, &state));
                }
            }
        });
        Self { address, state }
    }

    /// Accepts every message from now on.
    pub(crate) fn repair(&self) {
        self.state.repaired.store(true, Ordering::SeqCst);
    }

    /// Answers only this many further requests, and lets the others wait. `None` answers all.
    pub(crate) fn answer_only(&self, requests: Option<usize>) {
        *self.state.left.lock().unwrap() = requests;
        self.state.more.notify_all();
    }

    /// Returns the number of messages that were handled.
    pub(crate) fn handled(&self) -> usize {
        self.state.handled.load(Ordering::SeqCst)
    }
}

/// Answers the requests of one connection. A rejection repeats the header `lazaret-header-error`, so
/// that a message can choose its error.
fn answer(stream: TcpStream, state: &HandlerState) {
    let Ok(mut writer) = stream.try_clone() else { return };
    let mut reader = BufReader::new(stream);
    loop {
        let (mut length, mut error) = (0, "it is broken".to_owned());
        let mut line = String::new();
        if reader.read_line(&mut line).is_err() || line.is_empty() {
            return;
        }
        loop {
            line.clear();
            if reader.read_line(&mut line).is_err() {
                return;
            }
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap_or(0),
                "lazaret-header-error" => error = value.trim().to_owned(),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        state.wait_for_turn();
        let (status, text) = match state.repaired.load(Ordering::SeqCst) {
            true => {
                state.handled.fetch_add(1, Ordering::SeqCst);
                ("200 OK", String::new())
            }
            false => ("422 Unprocessable", error),
        };
        let response = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{text}", text.len());
        if writer.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}
