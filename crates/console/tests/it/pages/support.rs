//! A server with pages, store and consumer, and a browser without scripts.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lazaret_api::{BrokerCounts, EffectiveConfig, Scope};
use lazaret_console::Options as ConsoleOptions;
use lazaret_core::handler::{Attempt, Payload};
use lazaret_core::incarnation::Beginning;
use lazaret_core::policy::RetryPolicy;
use lazaret_core::store::{
    Actor, Change, HandOff, Instance, Instances, LetterStore, Limits, Placement, Triage,
};
use lazaret_core::{
    ConsumerName, Failure, HandlerError, Letter, LetterState, Message, Position, QueueName, Reason, Store,
};
use lazaret_engine::{Consumer, DeadLetterOptions, Options as EngineOptions};
use lazaret_server::{Approval, Registry, Server, Token, TokenHash, Tokens};
use lazaret_store_sqlite::{InboxLog, InboxOptions, SqliteStore};
use lazaret_testkit::Unreliable;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The timeout of every wait.
const DEADLINE: Duration = Duration::from_secs(240);

/// Returns a token with these scopes.
pub(crate) fn token(name: &str, scopes: &[Scope]) -> Token {
    Token::new(name, TokenHash::of(&secret(name)), scopes)
}

pub(crate) fn secret(name: &str) -> String {
    format!("lz_secret-of-{name}")
}

/// A running server with pages.
pub(crate) struct Bench {
    pub(crate) base: String,
    pub(crate) client: reqwest::Client,
    pub(crate) store: SqliteStore,
    /// The same store, as the consumer sees it.
    consumers_store: Arc<Unreliable<SqliteStore>>,
    registry: Registry,
    fixed: Arc<AtomicBool>,
    shutdown: CancellationToken,
    _folder: tempfile::TempDir,
}

/// A response.
pub(crate) struct Answer {
    pub(crate) path: String,
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) bytes: Vec<u8>,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Asserts the status.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}: {}", self.path, self.text);
        self
    }

    /// Asserts that the page contains this, markup included.
    #[track_caller]
    pub(crate) fn shows(&self, what: &str) -> &Self {
        assert!(self.text.contains(what), "{} does not show {what:?}: {}", self.path, self.text);
        self
    }

    /// Asserts that the page does not contain this.
    #[track_caller]
    pub(crate) fn lacks(&self, what: &str) -> &Self {
        assert!(!self.text.contains(what), "{} contains {what:?}: {}", self.path, self.text);
        self
    }

    /// Returns the part of the page between two texts.
    #[track_caller]
    pub(crate) fn between(&self, start: &str, end: &str) -> String {
        let found = self.text.split_once(start).and_then(|(_, rest)| rest.split_once(end));
        found.unwrap_or_else(|| panic!("{} has no {start:?}: {}", self.path, self.text)).0.to_owned()
    }

    /// Returns the destination of a redirect.
    #[track_caller]
    pub(crate) fn location(self) -> String {
        self.expect(303).header("location").to_owned()
    }
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(Vec::new(), Approval::None).await
    }

    pub(crate) async fn with(tokens: Vec<Token>, approval: Approval) -> Self {
        let config = EffectiveConfig::default();
        Self::built(tokens, approval, ConsoleOptions::default(), config, DeadLetterOptions::default()).await
    }

    /// Starts a server with this configuration.
    pub(crate) async fn with_config(tokens: Vec<Token>, config: EffectiveConfig) -> Self {
        let dead_letter = DeadLetterOptions::default();
        Self::built(tokens, Approval::None, ConsoleOptions::default(), config, dead_letter).await
    }

    /// Starts a server whose console has these options.
    pub(crate) async fn with_console(console: ConsoleOptions) -> Self {
        let config = EffectiveConfig::default();
        Self::built(Vec::new(), Approval::None, console, config, DeadLetterOptions::default()).await
    }

    /// Starts a server whose consumer has these dead-letter options.
    pub(crate) async fn with_dead_letters(dead_letter: DeadLetterOptions) -> Self {
        let (console, config) = (ConsoleOptions::default(), EffectiveConfig::default());
        Self::built(Vec::new(), Approval::None, console, config, dead_letter).await
    }

    async fn built(
        tokens: Vec<Token>,
        approval: Approval,
        console: ConsoleOptions,
        config: EffectiveConfig,
        dead_letter: DeadLetterOptions,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("lazaret.db"), Default::default()).unwrap();
        let inbox = store.inbox_log("orders", InboxOptions::default());
        let registry = Registry::default();
        registry.starting("orders", approval);
        let fixed = Arc::new(AtomicBool::new(false));
        let consumers_store = Arc::new(Unreliable::new(store.clone(), 1));
        let consumer = consumer(&consumers_store, &inbox, &registry, &fixed, dead_letter);
        registry.running(consumer.handle());
        let shutdown = CancellationToken::new();
        tokio::spawn(consumer.run(shutdown.clone()));
        let tokens = if tokens.is_empty() { Tokens::default() } else { Tokens::new(tokens).unwrap() };
        let server = Server::builder(Arc::new(store.clone()) as Arc<dyn Store>)
            .registry(registry.clone())
            .inbox("orders", inbox)
            .instances(Arc::new(store.clone()))
            .tokens(tokens)
            .pages(lazaret_console::pages(console).unwrap())
            .build();
        server.set_config(config);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let stop = shutdown.clone();
        tokio::spawn(async move { server.serve(listener, stop).await.unwrap() });
        // If another crate enables TLS in reqwest, a crypto provider is needed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client =
            reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build();
        let client = client.unwrap();
        Self { base, client, store, consumers_store, registry, fixed, shutdown, _folder: folder }
    }

    /// Stores a dead letter without the limits of an inbox. Returns its id.
    pub(crate) async fn store_letter(&self, payload: Vec<u8>) -> String {
        self.store_failed(payload, Failure::new(Reason::DOMAIN_INVALID, "TooLong", "too long")).await
    }

    /// Stores a letter that died of this failure. Returns its id.
    pub(crate) async fn store_failed(&self, payload: Vec<u8>, failure: Failure) -> String {
        let queue = QueueName::of("orders", "orders");
        let message = Message::new("stored", "orders", Position::new(0, 0)).with_key("stored");
        let message = message.with_payload(payload);
        let now = jiff::Timestamp::now();
        let mut letter = Letter::new(queue.clone(), "stored".into(), message.into(), now);
        letter.state = LetterState::Dead;
        letter.cause = Some(failure);
        (letter.first_failed_at, letter.last_failed_at) = (Some(now), Some(now));
        let id = letter.id.to_string();
        let item = HandOff { letter, placement: Placement::Open, grant: None };
        for placed in self.store.hand_off(&queue, &Limits::NONE, vec![item]).await.unwrap() {
            placed.unwrap();
        }
        id
    }

    /// Lets a letter expire after this time.
    pub(crate) async fn expire_in(&self, letter: &Value, time: Duration) {
        let queue = QueueName::of("orders", "orders");
        let change = Change::ExpiresAt(Some(jiff::Timestamp::now() + time));
        let by = Actor::new("ada", "test", "nobody needs it later");
        self.store.change(&queue, id(letter).parse().unwrap(), &change, &by).await.unwrap();
    }

    /// Reports an instance that runs this consumer and started just now.
    pub(crate) async fn report_start(&self, consumer: &str) {
        let instance = Instance {
            name: format!("host-of-{consumer}"),
            version: "1.2.3".to_owned(),
            started_at: jiff::Timestamp::now(),
            consumers: [(consumer.into(), Vec::new())].into(),
        };
        self.store.report(&instance, DEADLINE).await.unwrap();
    }

    /// Reports the counts of the topics of the strategy `topics`. `None` stands for a broker that does
    /// not answer.
    pub(crate) fn set_in_broker(&self, counts: Option<BrokerCounts>) {
        self.registry.in_broker("orders", move || counts);
    }

    /// Records that a stream of the consumer was deleted and recreated.
    pub(crate) async fn recreate_stream(&self, stream: &str) {
        let consumer = ConsumerName::from("orders");
        for (id, after) in [("first", None), ("second", Some(0))] {
            let id = Some(id.into());
            let beginning = Beginning { stream: stream.into(), partition: None, id, after };
            self.store.begin_incarnation(&consumer, &beginning).await.unwrap();
        }
    }

    /// Makes the handler accept every message.
    pub(crate) fn fix_handler(&self) {
        self.fixed.store(true, Ordering::SeqCst);
    }

    /// Starts or ends an outage. The consumer cannot reach the store, which still answers all other callers.
    pub(crate) fn set_outage(&self, outage: bool) {
        self.consumers_store.outage(outage);
    }

    pub(crate) fn request(&self, method: Method, path: &str, name: Option<&str>) -> reqwest::RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.base));
        match name {
            Some(name) => request.bearer_auth(secret(name)),
            None => request,
        }
    }

    pub(crate) async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let request = request.build().unwrap();
        let path = format!("{} {}", request.method(), request.url().path());
        let response = self.client.execute(request).await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let bytes = response.bytes().await.unwrap().to_vec();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Answer { path, status, headers, bytes, text }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.get_as(None, path).await
    }

    pub(crate) async fn get_as(&self, name: Option<&str>, path: &str) -> Answer {
        self.send(self.request(Method::GET, path, name)).await
    }

    /// Sends a form.
    pub(crate) async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        self.post_as(None, path, fields).await
    }

    /// Sends a form with a bearer token, or with the token that forms need.
    pub(crate) async fn post_as(&self, name: Option<&str>, path: &str, fields: &[(&str, &str)]) -> Answer {
        let csrf = if name.is_none() { self.csrf().await } else { String::new() };
        let pairs: Vec<String> = fields
            .iter()
            .chain([&("csrf", csrf.as_str())])
            .map(|(name, value)| format!("{name}={}", encoded(value)))
            .collect();
        let request = self.request(Method::POST, path, name).header("sec-fetch-site", "same-origin");
        let request =
            request.header("content-type", "application/x-www-form-urlencoded").body(pairs.join("&"));
        self.send(request).await
    }

    /// Returns the token of forms, from the sign-in or from an open console.
    pub(crate) async fn csrf(&self) -> String {
        let page = self.get("/console/login").await;
        let page = if page.status == 200 { page } else { self.get("/console/admin").await };
        page.between("name=\"csrf\" value=\"", "\"")
    }

    /// Reads from the API.
    pub(crate) async fn api(&self, name: Option<&str>, path: &str) -> Value {
        serde_json::from_str(&self.get_as(name, path).await.expect(200).text).unwrap()
    }

    /// Posts messages to the inbox as lines of JSON.
    pub(crate) async fn feed(&self, name: Option<&str>, lines: &[Value]) {
        let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
        let request = self.request(Method::POST, "/v1/inbox/orders/batch", name);
        let request = request.header("content-type", "application/x-ndjson").body(lines.join("\n"));
        self.send(request).await.expect(202);
    }

    /// Posts messages. Returns the open letters, earliest first, once there are this many.
    pub(crate) async fn letters(&self, name: Option<&str>, lines: &[Value], open: u64) -> Vec<Value> {
        self.feed(name, lines).await;
        eventually(&format!("{open} open letters"), || async {
            self.api(name, "/v1/letters/count").await["letters"] == open
        })
        .await;
        let mut letters = self.api(name, "/v1/letters").await["letters"].as_array().unwrap().clone();
        letters.reverse();
        letters
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Returns a message that fails with its payload as the error text.
pub(crate) fn bad(key: &str, text: &str) -> Value {
    json!({"id": format!("{key}-{text}"), "key": key, "type": "OrderPlaced", "headers": {"tenant": "acme"}, "payload": {"bad": text}})
}

/// Returns the id of a letter.
pub(crate) fn id(letter: &Value) -> &str {
    letter["id"].as_str().unwrap()
}

/// Percent-encodes every byte.
pub(crate) fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Returns a consumer whose handler fails on payloads that contain `bad` or are not text, with the payload
/// as its error text. If the payload also contains `away`, the reason is an unavailable dependency. The
/// handler does not respond to payloads that contain `never returns`.
fn consumer(
    store: &Arc<Unreliable<SqliteStore>>,
    inbox: &InboxLog,
    registry: &Registry,
    fixed: &Arc<AtomicBool>,
    dead_letter: DeadLetterOptions,
) -> Consumer {
    let fixed = fixed.clone();
    let handler = move |Payload(payload): Payload, _: Attempt| {
        let payload = payload.unwrap_or_default();
        let text = String::from_utf8_lossy(&payload[..payload.len().min(2000)]).into_owned();
        let is_bad = (text.contains("bad") || text.contains('\u{fffd}')) && !fixed.load(Ordering::SeqCst);
        let reason =
            if text.contains("away") { Reason::DEPENDENCY_UNAVAILABLE } else { Reason::DOMAIN_INVALID };
        async move {
            if text.contains("never returns") {
                std::future::pending::<()>().await;
            }
            match is_bad {
                true => Err(HandlerError::msg(text).reason(reason)),
                false => Ok(()),
            }
        }
    };
    let retry = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
    let dead_letter = Some(DeadLetterOptions { owner: Some("orders-team".into()), ..dead_letter });
    let commit_interval = Duration::from_millis(10);
    let options = EngineOptions { retry, commit_interval, dead_letter, ..EngineOptions::default() };
    Consumer::builder("orders")
        .source(inbox.source())
        .store(store.clone())
        .options(options)
        .observer(registry.observer("orders"))
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
