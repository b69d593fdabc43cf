//! Whatever callers ask for, they see only the secrets that they may see: in responses of every route, with every parameter, in headers,
//! errors and events. A new route is asked as well, or the test asks for values for it.

mod calls;
mod planted;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use lazaret_api::Scope;
use lazaret_core::redaction::{Redaction, TextRules};
use lazaret_server::{Options, Token, TokenHash};
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{Bench, ORDERS, Setup, eventually, secret, token};
use calls::{Call, EVENTS, changes, read_routes, reads};
use planted::{Needs, Planted, Secret, TREASURY, hidden_letter, plant, plant_live};

/// Who plants the secrets, and sees them all.
const ADMIN: &str = "admin";
/// The routes that are closed to tokens which are limited to some consumers.
const CLOSED_TO_LIMITED: [&str; 4] = ["/metrics", "/v1/audit/verify", "/v1/config", "/v1/tokens"];
/// The most pages of a list.
const PAGES: usize = 200;

/// Somebody who calls the API; without scopes, somebody without a token.
struct Caller {
    name: &'static str,
    scopes: &'static [Scope],
    /// The consumers that the token is limited to; empty for all.
    consumers: &'static [&'static str],
}

static CALLERS: [Caller; 8] = [
    // First: what is kept for one caller must not be shown to another.
    Caller { name: ADMIN, scopes: &[Scope::Admin], consumers: &[] },
    Caller { name: "reader", scopes: &[Scope::Read], consumers: &[] },
    Caller { name: "viewer", scopes: &[Scope::Read, Scope::Payload], consumers: &[] },
    Caller { name: "clerk", scopes: &[Scope::Read], consumers: &[ORDERS] },
    Caller { name: "desk", scopes: &[Scope::Read, Scope::Payload], consumers: &[ORDERS] },
    Caller { name: "deputy", scopes: &[Scope::Admin], consumers: &[ORDERS] },
    Caller { name: "feeder", scopes: &[Scope::Ingest], consumers: &[ORDERS] },
    Caller { name: "nobody", scopes: &[], consumers: &[] },
];

impl Caller {
    fn has(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope) || self.scopes.contains(&Scope::Admin)
    }

    fn is_limited(&self) -> bool {
        !self.consumers.is_empty()
    }

    fn token(&self) -> Token {
        let consumers = self.consumers.iter().map(|&consumer| consumer.to_owned()).collect();
        Token { consumers, ..token(self.name, self.scopes) }
    }

    /// Returns `true` if the caller may see a secret.
    fn sees(&self, secret: &Secret) -> bool {
        let of_own = !self.is_limited() || self.consumers.contains(&secret.consumer);
        let scopes: &[Scope] = match secret.needs {
            Needs::Read => &[Scope::Read],
            Needs::Payload => &[Scope::Read, Scope::Payload],
            Needs::Reveal => &[Scope::Read, Scope::Payload, Scope::Reveal],
            Needs::MayReveal => &[Scope::Read, Scope::Reveal],
            Needs::Never => return false,
        };
        of_own && scopes.iter().all(|scope| self.has(*scope))
    }

    /// Returns `true` if the document lets the caller use a route.
    fn may_use(&self, route: &str, operation: &Value) -> bool {
        let by_scope = match operation["security"][0]["token"].as_array() {
            None => true,
            Some(scopes) if scopes.is_empty() => !self.scopes.is_empty(),
            Some(scopes) => scopes.iter().any(|scope| self.has(scope.as_str().unwrap().parse().unwrap())),
        };
        by_scope && !(self.is_limited() && CLOSED_TO_LIMITED.contains(&route))
    }
}

/// What callers have seen.
struct Seen<'a> {
    secrets: &'a [Secret],
    /// The secrets by caller.
    found: BTreeMap<&'static str, BTreeSet<&'a str>>,
    /// The statuses by caller and route.
    statuses: BTreeMap<(&'static str, String), BTreeSet<u16>>,
}

impl<'a> Seen<'a> {
    fn new(secrets: &'a [Secret]) -> Self {
        Self { secrets, found: BTreeMap::new(), statuses: BTreeMap::new() }
    }

    /// Looks for secrets in a response, headers included. What the caller has said is no secret.
    fn scan(&mut self, caller: &Caller, call: &Call, status: u16, response: &str) {
        self.statuses.entry((caller.name, call.route.clone())).or_default().insert(status);
        let secrets: &'a [Secret] = self.secrets;
        for secret in secrets.iter().filter(|secret| secret.is_in(response) && !secret.is_in(&call.said)) {
            let (name, text, Call { method, target, .. }) = (caller.name, &secret.text, call);
            assert!(
                caller.sees(secret),
                "{name} must not see {text}: {method} {target}\n{status}\n{response}"
            );
            self.found.entry(caller.name).or_default().insert(text);
        }
    }

    /// Asserts that the caller has got an answer from every route that it may use, and from no other.
    fn assert_routes(&self, caller: &Caller, routes: &[(String, Value)]) {
        for (route, operation) in routes {
            let seen = self.statuses.get(&(caller.name, route.clone())).cloned().unwrap_or_default();
            let name = caller.name;
            if caller.may_use(route, operation) {
                let is_documented = |status: &u16| !operation["responses"][status.to_string()].is_null();
                assert!(
                    seen.iter().any(is_documented),
                    "{name} has got only {seen:?} from {route}: plant what it shows"
                );
            } else {
                let is_refused = |status: &u16| [401, 403].contains(status);
                assert!(!seen.is_empty() && seen.iter().all(is_refused), "{name}, {route}: {seen:?}");
            }
        }
    }

    /// Asserts that the caller has seen every secret that it may see: otherwise nothing would show that the others were looked for.
    fn assert_found(&self, caller: &Caller) {
        let expected: BTreeSet<&str> = self
            .secrets
            .iter()
            .filter(|secret| caller.sees(secret))
            .map(|secret| secret.text.as_str())
            .collect();
        let found = self.found.get(caller.name).cloned().unwrap_or_default();
        assert_eq!(found, expected, "{}", caller.name);
    }
}

fn request(bench: &Bench, caller: &Caller, call: &Call) -> RequestBuilder {
    let mut request = bench.request(call.method.clone(), &call.target);
    if !caller.scopes.is_empty() {
        request = request.bearer_auth(secret(caller.name));
    }
    if let Some((name, value)) = call.header {
        request = request.header(name, value);
    }
    match &call.body {
        Some((kind, body)) => request.header("content-type", kind.as_str()).body(body.clone()),
        None => request,
    }
}

/// The headers of a response, as text.
fn head_of(response: &Response) -> String {
    let line = |(name, value): (&reqwest::header::HeaderName, &reqwest::header::HeaderValue)| {
        format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()))
    };
    response.headers().iter().map(line).collect()
}

/// Sends a request, and one for each further page. Scans the responses.
async fn ask(bench: &Bench, caller: &Caller, call: &Call, seen: &mut Seen<'_>) {
    let mut page = call.clone();
    for _ in 0..PAGES {
        let response = request(bench, caller, &page).send().await.unwrap();
        let (status, head) = (response.status().as_u16(), head_of(&response));
        let body = response.bytes().await.unwrap();
        let body = String::from_utf8_lossy(&body);
        seen.scan(caller, &page, status, &format!("{head}\n{body}"));
        let json: Value = serde_json::from_str(&body).unwrap_or_default();
        match json["next"].as_str().and_then(|after| call.page(after)) {
            Some(next) => page = next,
            None => return,
        }
    }
    panic!("more than {PAGES} pages: {call:?}");
}

/// An open stream of events, or the refusal of one.
struct Stream {
    caller: &'static Caller,
    call: Call,
    status: u16,
    head: String,
    heard: Arc<Mutex<Vec<u8>>>,
    reading: JoinHandle<()>,
}

impl Stream {
    async fn open(bench: &Bench, caller: &'static Caller, call: Call) -> Self {
        let mut response = request(bench, caller, &call).send().await.unwrap();
        let (status, head) = (response.status().as_u16(), head_of(&response));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let reading = tokio::spawn({
            let heard = heard.clone();
            async move {
                while let Ok(Some(chunk)) = response.chunk().await {
                    heard.lock().unwrap().extend_from_slice(&chunk);
                }
            }
        });
        Self { caller, call, status, head, heard, reading }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.heard.lock().unwrap()).into_owned()
    }

    /// Returns `true` if the last event has arrived, or is not for this stream.
    fn is_complete(&self, planted: &Planted) -> bool {
        let is_told = self.status == 200 && !self.call.said.contains(TREASURY);
        let is_last = |line: &str| line.contains(&planted.own.letter) && line.contains("\"assign\"");
        !is_told || self.text().lines().any(is_last)
    }
}

/// A server with these callers, and rules for headers and payloads.
async fn bench() -> Bench {
    let with_token = CALLERS.iter().filter(|caller| !caller.scopes.is_empty());
    let tokens = with_token.map(Caller::token).collect();
    let texts = TextRules::new([], [r"[a-z]+\.error-card\.secret".parse().unwrap()]);
    let redaction = Redaction::new(["authorization"], ["/card/number".parse().unwrap()]).with_texts(texts);
    let options = Options { redaction, ..Options::default() };
    Bench::with(Setup { tokens, options, ..Setup::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_see_only_the_secrets_that_they_may_see() {
    let mut bench = bench().await;
    let mut planted = plant(&bench).await;
    for caller in &CALLERS {
        // Nobody is told a token, nor what the configuration has of it.
        let hash = TokenHash::of(&secret(caller.name)).to_string();
        let hash = hash.trim_start_matches("sha256:");
        planted.secrets.push(Secret::new(secret(caller.name), "", Needs::Never));
        planted.secrets.push(Secret::new(hash, "", Needs::Never));
    }
    let planted = planted;
    let mut seen = Seen::new(&planted.secrets);
    let (streams_of, reads): (Vec<Call>, Vec<Call>) =
        reads(&bench.contract, &planted).into_iter().partition(|call| call.route == EVENTS);
    let mut streams = Vec::new();
    for caller in &CALLERS {
        for call in &streams_of {
            streams.push(Stream::open(&bench, caller, call.clone()).await);
        }
    }
    plant_live(&bench, &planted).await;
    for caller in &CALLERS {
        for call in &reads {
            ask(&bench, caller, call, &mut seen).await;
        }
    }
    // What is redacted is shown to nobody who does not ask for it.
    for found in seen.found.values() {
        let mut redacted = planted.secrets.iter().filter(|secret| secret.needs == Needs::Reveal);
        assert!(redacted.all(|secret| !found.contains(secret.text.as_str())), "{found:?}");
    }
    let export = Call::post("/v1/letters/export", &json!({"reason": "audit"}));
    for caller in CALLERS.iter().filter(|caller| caller.has(Scope::Reveal)) {
        ask(&bench, caller, &export, &mut seen).await;
    }
    let before = hidden_letter(&bench, &planted).await;
    let changes = changes(&bench.contract, &planted);
    for caller in CALLERS.iter().filter(|caller| caller.is_limited()) {
        for call in &changes {
            ask(&bench, caller, call, &mut seen).await;
        }
    }
    assert_eq!(hidden_letter(&bench, &planted).await, before, "it belongs to a consumer of others");
    eventually("the last event has arrived", || async {
        streams.iter().all(|stream| stream.is_complete(&planted))
    })
    .await;
    bench.stop().await;
    for mut stream in streams {
        (&mut stream.reading).await.unwrap();
        let response = format!("{}\n{}", stream.head, stream.text());
        seen.scan(stream.caller, &stream.call, stream.status, &response);
    }
    let routes = read_routes(&bench.contract);
    for caller in &CALLERS {
        seen.assert_routes(caller, &routes);
        seen.assert_found(caller);
    }
}

#[test]
fn a_secret_is_found_wherever_it_is_in_a_response() {
    let secret = Secret::new("orders.card.secret", ORDERS, Needs::Reveal);
    let base64 = |text: &str| {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(text)
    };
    for before in ["", "1", "12", "123"] {
        assert!(
            secret.is_in(&format!("{{\"next\": \"{}\"}}", base64(&format!("{before}orders.card.secret:9"))))
        );
    }
    assert!(secret.is_in("x-note: orders.card.secret\n\n{}"));
    assert!(!secret.is_in("orders.card [redacted]") && !secret.is_in(&base64("orders.note.secret")));
}

#[test]
fn every_rule_of_redaction_has_planted_secrets() {
    let guide = include_str!("../../../../docs/configuration.md");
    let (_, section) = guide.split_once("\n## `redact`\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let keys: Vec<&str> =
        section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    // The sets of `errors` are patterns, too, and `store` says when all of them are applied.
    let known = ["headers", "payload", "errors", "patterns", "store"];
    assert_eq!(keys, known, "a new rule needs a secret in PLACES, and its rule in bench()");
}
