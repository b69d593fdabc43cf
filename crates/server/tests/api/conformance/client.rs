//! The way to the API: who asks, by router or by socket, and that every answer is what it says it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, header};
use bytes::Bytes;
use http_body_util::BodyExt;
use lazaret_api::{Problem, Scope, Via};
use lazaret_core::store::Actor;
use lazaret_server::{Server, Token, TokenHash};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tower::ServiceExt;

use crate::conformance::contract::Contract;

/// Who looks. Everybody else acts under the name that the suite gives them.
const READER: &str = "reader";
/// The people of the suite.
const PEOPLE: [&str; 3] = ["ada", "bob", "grace"];

/// What was asked for, or why it was refused.
pub(crate) type Answered<T> = Result<T, Box<Problem>>;

/// What is asked by name: `?name=value`.
pub(crate) type Params<'a> = &'a [(&'static str, Option<&'a str>)];

/// The tokens of all who ask: the actor is who the token says, so each person has one.
pub(crate) fn tokens() -> Vec<Token> {
    let token = |name: &str, scopes: &[Scope]| Token::new(name, TokenHash::of(&secret(name)), scopes);
    let acting =
        [Scope::Read, Scope::Triage, Scope::Evict, Scope::Edit, Scope::Import, Scope::Pause, Scope::Approve];
    let people = PEOPLE.iter().map(|name| token(name, &acting));
    people.chain([token(READER, &[Scope::Read, Scope::Payload])]).collect()
}

fn secret(name: &str) -> String {
    format!("lz_secret-of-{name}")
}

/// A text as a part of a path or a value of a parameter.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// A path with those parameters that are given.
fn with_params(path: &str, params: Params<'_>) -> String {
    let given = params.iter().filter_map(|(name, value)| value.map(|value| (name, encoded(value))));
    let pairs: Vec<String> = given.map(|(name, value)| format!("{name}={value}")).collect();
    if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
}

/// Somebody who speaks with a server.
pub(crate) struct Client {
    way: Way,
    contract: Arc<Contract>,
    /// The number of the last idempotency key.
    key: AtomicU64,
}

enum Way {
    /// Straight into the router: nothing but the transport is left out.
    Router(Router),
    /// By HTTP over a socket of this machine. The server ends with the client.
    Socket { base: String, client: reqwest::Client, _serving: DropGuard },
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The body, where it is JSON.
    pub(crate) json: Value,
    /// What was asked, for those who have to look why.
    asked: String,
}

impl Client {
    pub(crate) fn in_process(server: &Server) -> Self {
        Self::by(Way::Router(server.router()))
    }

    pub(crate) async fn by_socket(server: Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let shutdown = CancellationToken::new();
        tokio::spawn({
            let shutdown = shutdown.clone();
            async move { server.serve(listener, shutdown).await.unwrap() }
        });
        // Built together with other crates, reqwest wants to be told who encrypts. The first test tells it for all.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self::by(Way::Socket { base, client, _serving: shutdown.drop_guard() })
    }

    fn by(way: Way) -> Self {
        Self { way, contract: Contract::shared(), key: AtomicU64::new(0) }
    }

    pub(crate) fn is_socket(&self) -> bool {
        matches!(self.way, Way::Socket { .. })
    }

    /// Looks at something.
    pub(crate) async fn get<T>(&self, path: &str, params: Params<'_>) -> Answered<T>
    where
        T: DeserializeOwned + Serialize,
    {
        Ok(self.look(path, params, "application/json").await?.typed())
    }

    /// Looks at something that comes one a line.
    pub(crate) async fn lines<T>(&self, path: &str, params: Params<'_>) -> Answered<Vec<T>>
    where
        T: DeserializeOwned + Serialize,
    {
        let answer = self.look(path, params, "application/x-ndjson").await?;
        assert_eq!(answer.header("content-type"), Some("application/x-ndjson"), "{}", answer.shown());
        let lines = answer.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        Ok(lines.map(|line| strict(&serde_json::from_slice(line).unwrap(), &answer.asked)).collect())
    }

    /// Looks at bytes.
    pub(crate) async fn bytes(&self, path: &str) -> Answered<Bytes> {
        Ok(self.look(path, &[], "*/*").await?.body)
    }

    async fn look(&self, path: &str, params: Params<'_>, kind: &str) -> Answered<Answer> {
        let request = Request::get(with_params(path, params)).header(header::HOST, "localhost");
        let request = request
            .header(header::ACCEPT, kind)
            .header(header::AUTHORIZATION, format!("Bearer {}", secret(READER)));
        self.ask(request.body(Bytes::new()).unwrap()).await.checked()
    }

    /// Changes something, in somebody's name. It is sent twice under one key and made once: the second answer is the first.
    pub(crate) async fn change(
        &self,
        (method, path): (Method, &str),
        by: &Actor,
        body: &impl Serialize,
    ) -> Answered<Answer> {
        let body = Bytes::from(serde_json::to_vec(body).unwrap());
        let key = self.key.fetch_add(1, Ordering::Relaxed).to_string();
        let first = self.ask(changing(&method, path, by, &key, body.clone())).await;
        let again = self.ask(changing(&method, path, by, &key, body)).await;
        assert_eq!((again.status, &again.body), (first.status, &first.body), "{}", first.asked);
        assert!(again.headers.contains_key("idempotency-replayed"), "{} was done twice", first.asked);
        first.checked()
    }

    async fn ask(&self, request: Request<Bytes>) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let asked = format!("{method} {}", request.uri());
        let (status, headers, body) = match &self.way {
            Way::Router(router) => {
                let response = router.clone().oneshot(request.map(Body::from)).await.unwrap();
                let (parts, body) = response.into_parts();
                (parts.status, parts.headers, body.collect().await.unwrap().to_bytes())
            }
            Way::Socket { base, client, .. } => {
                let (mut parts, body) = request.into_parts();
                parts.headers.remove(header::HOST);
                parts.uri = format!("{base}{}", parts.uri).parse().unwrap();
                let request = reqwest::Request::try_from(Request::from_parts(parts, body)).unwrap();
                let response = client.execute(request).await.unwrap();
                (response.status(), response.headers().clone(), response.bytes().await.unwrap())
            }
        };
        let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
        let is_json = kind == b"application/json" || kind == Problem::MEDIA_TYPE.as_bytes();
        let json = if is_json { serde_json::from_slice(&body).unwrap() } else { Value::Null };
        let answer = Answer { status: status.as_u16(), headers, body, json, asked };
        self.contract.check(&method, &path, &answer);
        answer
    }
}

/// A change in the words of HTTP: the token says who, a header by what means, and the body why.
fn changing(method: &Method, path: &str, by: &Actor, key: &str, body: Bytes) -> Request<Bytes> {
    assert!(PEOPLE.contains(&by.who.as_str()), "{} has no token", by.who);
    let known = [Via::Cli, Via::Console, Via::Api].map(Via::as_str);
    assert!(known.contains(&by.via.as_str()), "nobody comes by way of {}", by.via);
    Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::AUTHORIZATION, format!("Bearer {}", secret(&by.who)))
        .header(Via::HEADER, &by.via)
        .header("idempotency-key", key)
        .body(body)
        .unwrap()
}

impl Answer {
    /// The answer, unless it is a problem.
    fn checked(self) -> Answered<Self> {
        if self.status < 400 {
            return Ok(self);
        }
        let problem: Problem = strict(&self.json, &self.asked);
        assert_eq!((problem.status, problem.code.status()), (self.status, self.status), "{}", self.asked);
        Err(Box::new(problem))
    }

    /// The answer as plain data.
    pub(crate) fn typed<T: DeserializeOwned + Serialize>(&self) -> T {
        strict(&self.json, &self.asked)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// What was asked and answered, for a message.
    pub(crate) fn shown(&self) -> String {
        let body: String = String::from_utf8_lossy(&self.body).chars().take(2000).collect();
        format!("{}: {} {body}", self.asked, self.status)
    }
}

/// Reads JSON and loses nothing of it: written again, it is what was read.
fn strict<T: DeserializeOwned + Serialize>(json: &Value, asked: &str) -> T {
    let typed = T::deserialize(json).unwrap_or_else(|error| panic!("{asked}: {error}: {json}"));
    assert_eq!(serde_json::to_value(&typed).unwrap(), *json, "{asked}: something got lost");
    typed
}
