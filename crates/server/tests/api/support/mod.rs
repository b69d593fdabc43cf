//! A real server with store, consumer and client; every response is checked against the OpenAPI document.

mod contract;
pub(crate) mod http2;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lazaret_api::Scope;
use lazaret_core::handler::{Attempt, Payload};
use lazaret_core::policy::RetryPolicy;
use lazaret_core::{HandlerError, Reason, Store};
use lazaret_engine::{Consumer, Handle, Options as EngineOptions};
use lazaret_server::{Approval, Builder, Limits, Options, Registry, Server, Token, TokenHash, Tokens};
use lazaret_store_sqlite::{InboxLog, InboxOptions, Options as SqliteOptions, SqliteStore};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub(crate) use contract::Contract;

/// The consumer that reads the inbox.
pub(crate) const ORDERS: &str = "orders";
/// Its queue.
pub(crate) const QUEUE: &str = "orders/orders";

/// The timeout of every wait.
const DEADLINE: Duration = Duration::from_secs(240);

/// The setup of a bench.
pub(crate) struct Setup {
    pub(crate) tokens: Vec<Token>,
    pub(crate) options: Options,
    pub(crate) inbox: InboxOptions,
    pub(crate) engine: EngineOptions,
    pub(crate) approval: Approval,
}

impl Default for Setup {
    fn default() -> Self {
        let retry = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
        let commit_interval = Duration::from_millis(10);
        Self {
            tokens: Vec::new(),
            options: Options::default(),
            inbox: InboxOptions::default(),
            engine: EngineOptions { retry, commit_interval, ..EngineOptions::default() },
            approval: Approval::None,
        }
    }
}

impl Setup {
    pub(crate) fn limits(limits: Limits) -> Self {
        Self { options: Options { limits, ..Options::default() }, ..Self::default() }
    }
}

/// A token with these scopes.
pub(crate) fn token(name: &str, scopes: &[Scope]) -> Token {
    let hash = TokenHash::of(&secret(name));
    Token::new(name, hash, scopes)
}

/// The secret of that token.
pub(crate) fn secret(name: &str) -> String {
    format!("lz_secret-of-{name}")
}

/// A running server.
pub(crate) struct Bench {
    pub(crate) base: String,
    pub(crate) server: Server,
    pub(crate) client: reqwest::Client,
    pub(crate) store: SqliteStore,
    pub(crate) inbox: InboxLog,
    pub(crate) registry: Registry,
    pub(crate) handle: Handle,
    pub(crate) contract: Contract,
    /// Whether the handler accepts every message.
    fixed: Arc<AtomicBool>,
    shutdown: CancellationToken,
    serving: Option<tokio::task::JoinHandle<()>>,
    running: Option<tokio::task::JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
    pub(crate) json: Value,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The code of a problem.
    pub(crate) fn code(&self) -> &str {
        self.json["code"].as_str().unwrap_or("no code")
    }

    /// Asserts the status.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text);
        self
    }

    /// Asserts the status and code of a problem.
    #[track_caller]
    pub(crate) fn problem(self, status: u16, code: &str) -> Self {
        assert_eq!((self.status, self.code()), (status, code), "{}", self.text);
        self
    }
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(Setup::default()).await
    }

    pub(crate) async fn with(setup: Setup) -> Self {
        Self::built(setup, |builder| builder).await
    }

    pub(crate) async fn built(setup: Setup, build: impl FnOnce(Builder) -> Builder) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // What an erasure leaves in the file is removed when a test asks for it.
        let sqlite = SqliteOptions { rewrite_after: Duration::from_secs(3600), ..SqliteOptions::default() };
        let store = SqliteStore::open(folder.path().join("lazaret.db"), sqlite).unwrap();
        let inbox = store.inbox_log(ORDERS, setup.inbox);
        let registry = Registry::default();
        registry.starting(ORDERS, setup.approval);
        let fixed = Arc::new(AtomicBool::new(false));
        let consumer = consumer(&store, &inbox, &registry, setup.engine, &fixed);
        let handle = consumer.handle();
        let shutdown = CancellationToken::new();
        let running = tokio::spawn({
            let (registry, shutdown) = (registry.clone(), shutdown.clone());
            registry.running(handle.clone());
            async move {
                match consumer.run(shutdown).await {
                    Ok(_) => registry.stopped(ORDERS),
                    Err(error) => registry.failed(ORDERS, error.to_string()),
                }
            }
        });
        let tokens = match setup.tokens.is_empty() {
            true => Tokens::default(),
            false => Tokens::new(setup.tokens).unwrap(),
        };
        let builder = Server::builder(Arc::new(store.clone()) as Arc<dyn Store>)
            .registry(registry.clone())
            .inbox(ORDERS, inbox.clone())
            .instances(Arc::new(store.clone()))
            .tokens(tokens)
            .options(setup.options)
            .metrics(Arc::new(|| "lazaret_handled_total 1\n".to_owned()));
        let server = build(builder).build();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let serving = tokio::spawn({
            let (server, shutdown) = (server.clone(), shutdown.clone());
            async move { server.serve(listener, shutdown).await.unwrap() }
        });
        Self {
            base,
            server,
            client: http_client(),
            store,
            inbox,
            registry,
            handle,
            contract: Contract::new(),
            fixed,
            shutdown,
            serving: Some(serving),
            running: Some(running),
            _folder: folder,
        }
    }

    /// Makes the handler accept every message.
    pub(crate) fn fix_handler(&self) {
        self.fixed.store(true, Ordering::SeqCst);
    }

    /// Sends a request and checks the response against the document.
    pub(crate) async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let request = request.build().unwrap();
        let (method, path) = (request.method().clone(), request.url().path().to_owned());
        let is_json =
            request.headers().get("content-type").is_some_and(|kind| kind.as_bytes() == b"application/json");
        let sent = request.body().and_then(|body| body.as_bytes()).filter(|_| is_json);
        let sent: Option<Value> = sent.and_then(|body| serde_json::from_slice(body).ok());
        let response = self.client.execute(request).await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap();
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        let answer = Answer { status, headers, text, json };
        self.contract.check(&method, &path, &answer);
        if let Some(sent) = sent {
            self.contract.check_request(&method, &path, &sent, &answer);
        }
        answer
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base))
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(with_json(self.request(Method::POST, path), &body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.send(with_json(self.request(Method::PUT, path), &body)).await
    }

    /// Posts messages to the inbox: key and payload. The handler fails on payloads that contain `bad`. The id combines
    /// both.
    pub(crate) async fn feed(&self, messages: &[(&str, &str)]) {
        let line = |(key, payload): &(&str, &str)| {
            json!({"id": format!("{key}-{payload}"), "key": key, "type": "OrderPlaced", "headers": {"tenant": "acme"}, "payload": payload})
                .to_string()
        };
        let lines: Vec<String> = messages.iter().map(line).collect();
        let request = self.request(Method::POST, "/v1/inbox/orders/batch");
        let request = request.header("content-type", "application/x-ndjson").body(lines.join("\n"));
        self.send(request).await.expect(202);
    }

    /// Posts messages and waits for a number of open letters.
    pub(crate) async fn letters(&self, messages: &[(&str, &str)], open: u64) -> Vec<Value> {
        self.feed(messages).await;
        self.open_letters(open).await
    }

    /// Waits for a number of open letters and returns them, earliest first.
    pub(crate) async fn open_letters(&self, open: u64) -> Vec<Value> {
        eventually(&format!("{open} open letters"), || async {
            self.get("/v1/letters/count").await.json["letters"] == open
        })
        .await;
        let mut letters = self.get("/v1/letters").await.json["letters"].as_array().unwrap().clone();
        letters.reverse();
        letters
    }

    /// Waits until an operation is over.
    pub(crate) async fn over(&self, operation: &str) -> Value {
        let path = format!("/v1/operations/{operation}");
        eventually(&format!("{operation} is over"), || async {
            ["done", "cancelled", "rejected"].contains(&self.get(&path).await.json["state"].as_str().unwrap())
        })
        .await;
        self.get(&path).await.json
    }

    /// Starts the shutdown of consumer and server.
    pub(crate) fn shut_down(&self) {
        self.shutdown.cancel();
    }

    /// Stops consumer and server, and waits for both.
    pub(crate) async fn stop(&mut self) {
        self.shut_down();
        for task in [self.serving.take(), self.running.take()].into_iter().flatten() {
            tokio::time::timeout(DEADLINE, task).await.expect("it ends").unwrap();
        }
    }
}

/// A client. When another crate enables TLS in reqwest, it needs a crypto provider.
pub(crate) fn http_client() -> reqwest::Client {
    // Installed once per process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

pub(crate) fn with_json(request: reqwest::RequestBuilder, body: &Value) -> reqwest::RequestBuilder {
    request.header("content-type", "application/json").body(body.to_string())
}

/// Percent-encodes every byte.
pub(crate) fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn consumer(
    store: &SqliteStore,
    inbox: &InboxLog,
    registry: &Registry,
    options: EngineOptions,
    fixed: &Arc<AtomicBool>,
) -> Consumer {
    let fixed = fixed.clone();
    let handler = move |Payload(payload): Payload, _: Attempt| {
        let bad = payload.as_deref().unwrap_or_default().windows(3).any(|part| part == b"bad")
            && !fixed.load(Ordering::SeqCst);
        async move {
            if bad {
                return Err(HandlerError::msg("it is bad").reason(Reason::DOMAIN_INVALID));
            }
            Ok(())
        }
    };
    Consumer::builder(ORDERS)
        .source(inbox.source())
        .store(Arc::new(store.clone()))
        .options(options)
        .observer(registry.observer(ORDERS))
        .handler(handler)
        .build()
        .unwrap()
}

/// Waits until the condition holds.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
