//! A server with the console, and browsers that keep cookies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use lazaret_api::Scope;
use lazaret_console::Options as ConsoleOptions;
use lazaret_core::HandlerError;
use lazaret_core::handler::Payload;
use lazaret_core::policy::RetryPolicy;
use lazaret_core::query::Query;
use lazaret_core::store::Triage;
use lazaret_engine::{Consumer, Options as EngineOptions};
use lazaret_memory::{MemoryLog, MemoryStore};
use lazaret_server::{Approval, Options, Peer, Registry, Server, Token, TokenHash, Tokens, Transport};
use lazaret_testkit::ManualClock;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// The address of the server in the browser's address bar.
pub(crate) const HOST: &str = "localhost:7117";

/// Returns the token of a person.
pub(crate) fn secret(name: &str) -> String {
    format!("lz_secret-of-{name}")
}

pub(crate) fn token(name: &str, scopes: &[Scope]) -> Token {
    Token::new(name, TokenHash::of(&secret(name)), scopes)
}

/// A server with the console.
pub(crate) struct Site {
    pub(crate) server: Server,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) clock: ManualClock,
    router: Router,
}

impl Site {
    /// Creates a site with these tokens. Without tokens, it is open.
    pub(crate) fn new(tokens: Vec<Token>) -> Self {
        Self::with(tokens, Options::default(), ConsoleOptions::default())
    }

    pub(crate) fn with(tokens: Vec<Token>, options: Options, console: ConsoleOptions) -> Self {
        let clock = ManualClock::default();
        let store = Arc::new(MemoryStore::new(Arc::new(clock.clone())));
        let registry = Registry::default();
        registry.starting("orders", Approval::SecondPerson);
        let tokens = if tokens.is_empty() { Tokens::default() } else { Tokens::new(tokens).unwrap() };
        let server = Server::builder(store.clone())
            .registry(registry)
            .tokens(tokens)
            .options(options)
            .clock(Arc::new(clock.clone()))
            .pages(lazaret_console::pages(console).unwrap())
            .problem_page(lazaret_console::problem_page)
            .build();
        let router = server.router();
        Self { server, store, clock, router }
    }

    /// Creates letters of the consumer `orders`.
    pub(crate) async fn fail(&self, count: usize) {
        let log = MemoryLog::new("orders", 1);
        for number in 0..count {
            log.push(0, format!("order-{number}"), "{}");
        }
        let retry = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
        let consumer = Consumer::builder("orders")
            .source(log.join())
            .store(self.store.clone())
            .options(EngineOptions { retry, ..EngineOptions::default() })
            .handler(|_: Payload| async { Err::<(), _>(HandlerError::msg("it is broken")) })
            .build()
            .unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(consumer.run(stop.clone()));
        let query = Query::parse("").unwrap();
        while self.store.find(&query, None, count + 1).await.unwrap().letters.len() < count {
            tokio::task::yield_now().await;
        }
        stop.cancel();
        running.await.unwrap().unwrap();
    }

    /// Creates a browser on this machine.
    pub(crate) fn browser(&self) -> Browser {
        let peer = Peer { address: Some([127, 0, 0, 1].into()), transport: Transport::Tcp };
        Browser {
            router: self.router.clone(),
            peer,
            host: HOST.to_owned(),
            headers: Vec::new(),
            cookies: Mutex::default(),
        }
    }

    /// Creates a browser of a person who has signed in with a token.
    pub(crate) async fn signed_in(&self, name: &str) -> Browser {
        let browser = self.browser();
        let answer = browser.sign_in(&secret(name)).await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.body);
        browser
    }
}

/// A browser with its cookies.
pub(crate) struct Browser {
    pub(crate) router: Router,
    pub(crate) peer: Peer,
    pub(crate) host: String,
    /// The headers added to each request, as a proxy would.
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) cookies: Mutex<BTreeMap<String, String>>,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Returns the destination of a redirect.
    pub(crate) fn location(&self) -> &str {
        self.header("location")
    }

    /// Returns the CSRF token of the first form.
    #[track_caller]
    pub(crate) fn csrf(&self) -> String {
        let (_, rest) =
            self.body.split_once("name=\"csrf\" value=\"").unwrap_or_else(|| panic!("{}", self.body));
        rest.split('"').next().unwrap().to_owned()
    }
}

impl Browser {
    /// Opens a page.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        let navigation =
            [("sec-fetch-mode", "navigate"), ("sec-fetch-site", "none"), ("accept", "text/html")];
        self.send(Method::GET, path, &navigation, String::new()).await
    }

    /// Sends a form from a page of this server.
    pub(crate) async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let headers = [
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-site", "same-origin"),
            ("content-type", "application/x-www-form-urlencoded"),
        ];
        self.send(Method::POST, path, &headers, form(fields)).await
    }

    /// Signs in with a token.
    pub(crate) async fn sign_in(&self, secret: &str) -> Answer {
        let csrf = self.get("/console/login").await.csrf();
        self.post("/console/login", &[("csrf", &csrf), ("token", secret)]).await
    }

    /// Sends a request with the cookies, and keeps the response's cookies.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, &self.host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let cookies: Vec<String> =
            self.cookies.lock().unwrap().iter().map(|(name, value)| format!("{name}={value}")).collect();
        if !cookies.is_empty() {
            request = request.header(header::COOKIE, cookies.join("; "));
        }
        let request = request.extension(self.peer).body(Body::from(body)).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        for set in parts.headers.get_all(header::SET_COOKIE) {
            let (name, rest) = set.to_str().unwrap().split_once('=').unwrap();
            let value = rest.split(';').next().unwrap();
            let mut cookies = self.cookies.lock().unwrap();
            match rest.contains("Max-Age=0") {
                true => drop(cookies.remove(name)),
                false => drop(cookies.insert(name.to_owned(), value.to_owned())),
            }
        }
        let body = body.collect().await.unwrap().to_bytes();
        let body = String::from_utf8_lossy(&body).into_owned();
        Answer { status: parts.status, headers: parts.headers, body }
    }
}

/// Encodes a form.
pub(crate) fn form(fields: &[(&str, &str)]) -> String {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(fields);
    form.finish()
}
