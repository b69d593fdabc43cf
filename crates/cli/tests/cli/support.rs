//! A test bench: a real server with a real consumer in this process, and the binary as a client.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lazaret_api::{BrokerCounts, Scope};
use lazaret_core::handler::Payload;
use lazaret_core::incarnation::Beginning;
use lazaret_core::policy::{OnDead, OnDeadPolicy, RetryPolicy};
use lazaret_core::redaction::Redaction;
use lazaret_core::store::{Actor, Change, HandOff, LetterStore, Limits, Placement, Triage};
use lazaret_core::{
    ConsumerName, Failure, HandlerError, Letter, LetterState, Message, Position, QueueName, Reason, Store,
};
use lazaret_engine::{Consumer, DeadLetterOptions, Options as EngineOptions};
use lazaret_server::{Approval, Registry, Server, Token, TokenHash, Tokens};
use lazaret_store_sqlite::{InboxLog, InboxOptions, Options as SqliteOptions, SqliteStore};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// The consumer; its only queue is `orders/orders`.
pub(crate) const ORDERS: &str = "orders";
/// The timeout of every wait.
pub(crate) const DEADLINE: Duration = Duration::from_secs(240);

/// The address of a server that `cargo xtask services` starts. Without it the test says that it did not run, and fails where everything
/// must run.
pub(crate) fn server(variable: &str) -> Option<String> {
    let address = std::env::var(variable).ok();
    if address.is_none() {
        let must = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!must, "{variable} is not set; `cargo xtask test` starts a server and sets it");
        println!("not run: {variable} is not set; `cargo xtask services` starts a server and prints it");
    }
    address
}

/// The settings of a bench.
#[derive(Default)]
pub(crate) struct Setup {
    pub(crate) tokens: Vec<Token>,
    pub(crate) approval: Approval,
    pub(crate) redaction: Redaction,
    pub(crate) on_dead: OnDead,
    pub(crate) dead_letter: DeadLetterOptions,
}

/// A running server with a consumer whose handler refuses messages that contain `bad` until it is repaired, and always those
/// that contain `hopeless`.
pub(crate) struct Bench {
    pub(crate) url: String,
    runtime: Runtime,
    store: SqliteStore,
    registry: Registry,
    repaired: Arc<AtomicBool>,
    shutdown: CancellationToken,
    folder: tempfile::TempDir,
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// Asserts the exit code.
    #[track_caller]
    pub(crate) fn ends(self, code: i32) -> Self {
        assert_eq!(self.code, code, "out: {}\nerr: {}", self.out, self.err);
        self
    }

    /// Parses the output as one JSON value.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }

    /// Parses the output as JSON lines.
    #[track_caller]
    pub(crate) fn lines(&self) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.out.lines().map(parse).collect()
    }

    /// Parses the last line of the output as JSON.
    #[track_caller]
    pub(crate) fn last(&self) -> Value {
        self.lines().pop().expect("a line")
    }
}

/// Returns a token with these scopes. Its secret is derived from its name.
pub(crate) fn token(name: &str, scopes: &[Scope]) -> Token {
    let hash = TokenHash::of(&secret(name));
    Token::new(name, hash, scopes)
}

/// Returns the secret of a token.
pub(crate) fn secret(name: &str) -> String {
    format!("lz_secret-of-{name}")
}

/// Returns a message for [`Bench::feed`].
pub(crate) fn message(id: &str, key: &str, payload: &str) -> Value {
    json!({"id": id, "key": key, "type": "OrderPlaced", "headers": {"tenant": "acme"}, "payload": payload})
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(Setup::default())
    }

    pub(crate) fn with(setup: Setup) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let repaired = Arc::new(AtomicBool::new(false));
        let shutdown = CancellationToken::new();
        let sqlite = SqliteOptions { rewrite_after: Duration::ZERO, ..SqliteOptions::default() };
        let store = SqliteStore::open(folder.path().join("lazaret.db"), sqlite).unwrap();
        let registry = Registry::default();
        let url = runtime.block_on(serve(&store, &registry, setup, &repaired, &shutdown));
        Self { url, runtime, store, registry, repaired, shutdown, folder }
    }

    /// Repairs the handler: from now on it accepts `bad`.
    pub(crate) fn repair(&self) {
        self.repaired.store(true, Ordering::SeqCst);
    }

    /// Stores a dead letter with this message id, past the limits of an inbox.
    pub(crate) fn store_letter(&self, id: &str, payload: Vec<u8>) {
        let queue = QueueName::of(ORDERS, ORDERS);
        let message = Message::new(id, ORDERS, Position::new(0, 0)).with_key(id.to_owned());
        let message = message.with_payload(payload);
        let now = jiff::Timestamp::now();
        let mut letter = Letter::new(queue.clone(), id.into(), message.into(), now);
        letter.state = LetterState::Dead;
        letter.cause = Some(Failure::new(Reason::DOMAIN_INVALID, "Rejected", "not readable"));
        (letter.first_failed_at, letter.last_failed_at) = (Some(now), Some(now));
        let item = HandOff { letter, placement: Placement::Open, grant: None };
        let placed = self.runtime.block_on(self.store.hand_off(&queue, &Limits::NONE, vec![item]));
        for placed in placed.unwrap() {
            placed.unwrap();
        }
    }

    /// Reports what the topics of the strategy `topics` hold; `None` for a broker that does not answer.
    pub(crate) fn set_in_broker(&self, counts: Option<BrokerCounts>) {
        self.registry.in_broker(ORDERS, move || counts);
    }

    /// Records that a stream of the consumer was deleted and created again.
    pub(crate) fn recreate_stream(&self, stream: &str) {
        let consumer = ConsumerName::from(ORDERS);
        for (id, after) in [("first", None), ("second", Some(0))] {
            let id = Some(id.into());
            let beginning = Beginning { stream: stream.into(), partition: None, id, after };
            self.runtime.block_on(self.store.begin_incarnation(&consumer, &beginning)).unwrap();
        }
    }

    /// Lets the letter with this id expire at this time.
    pub(crate) fn set_expiry(&self, letter: &str, at: jiff::Timestamp) {
        let (queue, change) = (QueueName::of(ORDERS, ORDERS), Change::ExpiresAt(Some(at)));
        let by = Actor::new("ada", "test", "nobody needs it later");
        let changed = self.store.change(&queue, letter.parse().unwrap(), &change, &by);
        self.runtime.block_on(changed).unwrap();
    }

    /// Returns a folder that is removed with the bench.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Posts messages to the inbox, without a token.
    pub(crate) fn feed(&self, messages: &[Value]) {
        self.feed_as(messages, None);
    }

    /// Posts messages to the inbox.
    pub(crate) fn feed_as(&self, messages: &[Value], token: Option<&str>) {
        let lines: Vec<String> = messages.iter().map(Value::to_string).collect();
        // The first test installs it; the others find it installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let mut request = client
            .post(format!("{}/v1/inbox/{ORDERS}/batch", self.url))
            .header("content-type", "application/x-ndjson")
            .body(lines.join("\n"));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let answer = self.runtime.block_on(async { request.send().await.unwrap().status().as_u16() });
        assert_eq!(answer, 202);
    }

    /// Posts messages and waits for this many open letters.
    pub(crate) fn letters(&self, messages: &[Value], open: usize) {
        self.feed(messages);
        self.eventually_open("", open);
    }

    /// Waits until this many letters match.
    pub(crate) fn eventually_open(&self, query: &str, wanted: usize) {
        self.eventually(&format!("{wanted} letters"), || {
            self.run(&["ls", query, "-o", "jsonl"]).ends(0).out.lines().count() == wanted
        });
    }

    /// Waits until a condition holds.
    pub(crate) fn eventually(&self, what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !holds() {
            assert!(Instant::now() < deadline, "it took too long: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the binary, configured for this server and a table width.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = lazaret(arguments);
        command.env("LAZARET_URL", &self.url);
        command
    }

    /// Runs a command until it exits.
    #[track_caller]
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        finish(self.command(arguments), "")
    }

    /// Runs a command with this standard input.
    #[track_caller]
    pub(crate) fn run_with(&self, arguments: &[&str], input: &str) -> Ran {
        finish(self.command(arguments), input)
    }

    /// Runs a command that succeeds, and returns the bytes that it prints.
    #[track_caller]
    pub(crate) fn bytes_of(&self, arguments: &[&str]) -> Vec<u8> {
        let output = assert_cmd::Command::from_std(self.command(arguments)).timeout(DEADLINE).output();
        let output = output.expect("the command can be run");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// Runs a command with the token of this name.
    #[track_caller]
    pub(crate) fn run_as(&self, name: &str, arguments: &[&str]) -> Ran {
        let mut command = self.command(arguments);
        command.env("LAZARET_TOKEN", secret(name));
        finish(command, "")
    }

    /// Starts a command and reads its standard error until a line contains this text.
    pub(crate) fn start_until(&self, arguments: &[&str], said: &str) -> Child {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let talk = BufReader::new(child.stderr.take().unwrap());
        let (tell, lines) = std::sync::mpsc::channel();
        // Read to the end, so that the child can write the rest.
        std::thread::spawn(move || {
            talk.lines().map_while(Result::ok).for_each(|line| drop(tell.send(line)));
        });
        let deadline = Instant::now() + DEADLINE;
        let mut heard = String::new();
        while !heard.contains(said) {
            let Ok(line) = lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) else {
                let _ = child.kill();
                panic!("it did not say {said:?}: {heard}");
            };
            heard += &format!("{line}\n");
        }
        child
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Returns who the command line claims to be.
pub(crate) fn ada() -> String {
    format!("ada@{}", rustix::system::uname().nodename().to_string_lossy())
}

/// Returns the binary with an environment that does not affect it.
pub(crate) fn lazaret(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lazaret"));
    command.args(arguments).env("USER", "ada").env("COLUMNS", "120");
    for name in [
        "LAZARET_TOKEN",
        "LAZARET_URL",
        "LAZARET_CA_FILE",
        "NO_COLOR",
        "CLICOLOR",
        "CLICOLOR_FORCE",
        "EDITOR",
        "VISUAL",
    ] {
        command.env_remove(name);
    }
    command
}

/// Runs a command until it exits, within the deadline.
#[track_caller]
pub(crate) fn finish(command: Command, input: &str) -> Ran {
    let output = assert_cmd::Command::from_std(command)
        .write_stdin(input.to_owned())
        .timeout(DEADLINE)
        .output()
        .expect("the command can be run");
    Ran {
        code: output.status.code().expect("it ended by itself, and in time"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Waits until a child exits, within the deadline.
#[track_caller]
pub(crate) fn ended(mut child: Child) -> Ran {
    let deadline = Instant::now() + DEADLINE;
    let code = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code().expect("it ended by itself");
        }
        assert!(Instant::now() < deadline, "it did not end");
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut out = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        std::io::Read::read_to_string(&mut stdout, &mut out).unwrap();
    }
    Ran { code, out, err: String::new() }
}

async fn serve(
    store: &SqliteStore,
    registry: &Registry,
    setup: Setup,
    repaired: &Arc<AtomicBool>,
    shutdown: &CancellationToken,
) -> String {
    let inbox = store.inbox_log(ORDERS, InboxOptions::default());
    registry.starting(ORDERS, setup.approval);
    let on_dead = OnDeadPolicy { on_dead: setup.on_dead, ..OnDeadPolicy::default() };
    let dead_letter = DeadLetterOptions { on_dead, ..setup.dead_letter };
    let consumer = consumer(store, &inbox, registry, repaired, dead_letter);
    registry.running(consumer.handle());
    tokio::spawn({
        let shutdown = shutdown.clone();
        async move { consumer.run(shutdown).await.map(|_| ()) }
    });
    let server = Server::builder(Arc::new(store.clone()) as Arc<dyn Store>)
        .registry(registry.clone())
        .inbox(ORDERS, inbox)
        .tokens(if setup.tokens.is_empty() { Tokens::default() } else { Tokens::new(setup.tokens).unwrap() })
        .options(lazaret_server::Options { redaction: setup.redaction, ..Default::default() })
        .build();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn({
        let shutdown = shutdown.clone();
        async move { server.serve(listener, shutdown).await }
    });
    url
}

fn consumer(
    store: &SqliteStore,
    inbox: &InboxLog,
    registry: &Registry,
    repaired: &Arc<AtomicBool>,
    dead_letter: DeadLetterOptions,
) -> Consumer {
    let repaired = repaired.clone();
    let handler = move |Payload(payload): Payload| {
        let text = String::from_utf8_lossy(payload.as_deref().unwrap_or_default()).into_owned();
        let fails = text.contains("hopeless") || (text.contains("bad") && !repaired.load(Ordering::SeqCst));
        async move {
            // The payload is part of the error, so that hostile content reaches every column.
            if fails {
                Err(HandlerError::msg(format!("cannot take {text}")).reason(Reason::DOMAIN_INVALID))
            } else {
                Ok(())
            }
        }
    };
    let retry = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
    // Tests fail many messages in a row, and a fuse would pause the consumer.
    let commit_interval = Duration::from_millis(10);
    Consumer::builder(ORDERS)
        .source(inbox.source())
        .store(Arc::new(store.clone()))
        .options(EngineOptions {
            retry,
            commit_interval,
            dead_letter: Some(dead_letter),
            fuse: None,
            ..EngineOptions::default()
        })
        .observer(registry.observer(ORDERS))
        .handler(handler)
        .build()
        .unwrap()
}
