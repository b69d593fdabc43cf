//! Limits on sizes, times and concurrency, and invalid requests.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lazaret_api::Scope;
use lazaret_core::source::NewMessage;
use lazaret_core::source::{Backlog, Ingest};
use lazaret_core::store;
use lazaret_server::{Limits, Posted};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, Semaphore};
use tower::ServiceExt;

use crate::support::{Bench, Setup, encoded, eventually, secret, token, with_json};

/// An inbox that blocks until a test continues it, or panics.
#[derive(Clone)]
struct Slow {
    came: Arc<Notify>,
    go: Arc<Semaphore>,
}

impl Slow {
    fn new() -> Self {
        Self { came: Arc::default(), go: Arc::new(Semaphore::new(0)) }
    }
}

#[async_trait]
impl Ingest for Slow {
    async fn post(&self, messages: Vec<NewMessage>) -> store::Result<Vec<Posted>> {
        assert!(messages[0].event_type.as_deref() != Some("explode"), "an inbox with a bug");
        self.came.notify_one();
        let _go = self.go.acquire().await;
        Ok(vec![Posted::Full])
    }

    async fn backlog(&self) -> store::Result<Backlog> {
        Ok(Backlog::default())
    }
}

async fn slow(limits: Limits) -> (Arc<Bench>, Slow) {
    slow_with(Setup::limits(limits)).await
}

async fn slow_with(setup: Setup) -> (Arc<Bench>, Slow) {
    let inbox = Slow::new();
    let bench = Bench::built(setup, |builder| builder.inbox("slow", inbox.clone())).await;
    (Arc::new(bench), inbox)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_request_times_out() {
    let (bench, _inbox) =
        slow(Limits { request_timeout: Duration::from_millis(50), ..Limits::default() }).await;
    bench.send(bench.request(Method::POST, "/v1/inbox/slow").body("x")).await.problem(408, "LZ0213");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_client_has_disconnected_counts_against_the_limits_until_its_end() {
    // I7
    let (line, defaults) = (format!("{{\"payload\": \"{}\"}}", "x".repeat(60)), Limits::default());
    for limits in [
        Limits { requests: 1, ..defaults.clone() },
        Limits { requests_per_token: 1, ..defaults.clone() },
        Limits { body_bytes: 100, ..defaults.clone() },
        Limits { body_bytes_per_token: 100, ..defaults.clone() },
    ] {
        let tokens = vec![token("ada", &[Scope::Ingest])];
        let (bench, inbox) = slow_with(Setup { tokens, ..Setup::limits(limits.clone()) }).await;
        let request = axum::http::Request::post("/v1/inbox/slow/batch")
            .header("host", "localhost")
            .header("authorization", format!("Bearer {}", secret("ada")))
            .header("content-length", line.len())
            .header("idempotency-key", "k")
            .body(axum::body::Body::from(line.clone()))
            .unwrap();
        let change = tokio::spawn(bench.server.router().oneshot(request));
        inbox.came.notified().await;
        // The server drops the request of a client that disconnects.
        change.abort();
        assert!(change.await.unwrap_err().is_cancelled());
        let post = || {
            let request = bench.request(Method::POST, "/v1/inbox/orders/batch").bearer_auth(secret("ada"));
            bench.send(request.body(line.clone()))
        };
        post().await.problem(429, "LZ0214");
        inbox.go.add_permits(1);
        eventually("its share is free", || async { post().await.status != 429 }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn excess_requests_are_rejected_and_probes_are_not() {
    let (bench, inbox) = slow(Limits { requests: 1, ..Limits::default() }).await;
    let first = tokio::spawn({
        let bench = bench.clone();
        async move { bench.send(bench.request(Method::POST, "/v1/inbox/slow").body("x")).await }
    });
    inbox.came.notified().await;
    let busy = bench.get("/v1/status").await.problem(429, "LZ0214");
    assert_eq!(busy.header("retry-after"), Some("1"));
    bench.get("/healthz").await.expect(200);
    inbox.go.add_permits(1);
    first.await.unwrap().problem(429, "LZ0215");
    bench.get("/v1/status").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn running_requests_are_drained_at_shutdown() {
    let (bench, inbox) = slow(Limits::default()).await;
    let first = tokio::spawn({
        let bench = bench.clone();
        async move { bench.send(bench.request(Method::POST, "/v1/inbox/slow").body("x")).await }
    });
    inbox.came.notified().await;
    bench.shut_down();
    eventually("nobody new is served", || async {
        bench.client.get(format!("{}/healthz", bench.base)).send().await.is_err()
    })
    .await;
    inbox.go.add_permits(1);
    first.await.unwrap().problem(429, "LZ0215");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_fails_only_its_request() {
    // I10
    let (bench, _inbox) = slow(Limits::default()).await;
    let bug = bench.request(Method::POST, "/v1/inbox/slow").header("lazaret-type", "explode");
    bench.send(bug.body("x")).await.problem(500, "LZ0225");
    bench.get("/v1/status").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_routes_and_resources_are_problems() {
    let bench = Bench::new().await;
    for path in ["/", "/v1", "/v1/", "/v1/nothing", "/v2/status", "/v1/letters/x/y/z", "/v1/status/"] {
        let answer = bench.get(path).await.problem(404, "LZ0202");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{path}");
    }
    // The id of a group contains a slash.
    for (path, encoded) in [
        ("/v1/groups/g1_00@orders/orders", "/v1/groups/g1_00@orders%2Forders"),
        ("/v1/groups/g1_00%40orders/orders/facets", "/v1/groups/g1_00%40orders%2Forders/facets"),
    ] {
        let bare = bench.get(path).await.problem(404, "LZ0202");
        let hint = format!("the id of a group contains a slash, written %2F in a path: {encoded}");
        assert_eq!(bare.json["hint"], hint, "{path}");
    }
    let other = bench.get("/v1/letters/a@b/c/d").await.problem(404, "LZ0202");
    assert_eq!(other.json.get("hint"), None, "{}", other.text);
    let wrong = bench.send(bench.request(Method::DELETE, "/v1/status")).await.problem(405, "LZ0204");
    assert_eq!(wrong.header("allow"), Some("GET,HEAD"));
    for (path, what) in [
        ("/v1/letters/00000000-0000-8000-8000-000000000000", "letter"),
        ("/v1/letters/%00", "letter"),
        ("/v1/plans/p_99", "plan"),
        ("/v1/plans/99", "plan"),
        ("/v1/operations/op_99", "operation"),
        ("/v1/groups/g1_0000000000000000", "group"),
        ("/v1/groups/g1_0000000000000000%40a%2Fb", "group"),
        ("/v1/groups/x", "group"),
        ("/v1/consumers/%F0%9F%98%80%2F..%2F", "consumer"),
    ] {
        let answer = bench.get(path).await.problem(404, "LZ0203");
        assert!(answer.json["detail"].as_str().unwrap().contains(what), "{path}: {}", answer.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_requests_are_located() {
    let bench = Bench::new().await;
    let query =
        bench.get(&format!("/v1/letters?q={}", encoded("staet:dead age:>1h"))).await.problem(400, "LZ0201");
    assert_eq!(query.json["position"], json!([0, 5]));
    assert_eq!(
        query.json["detail"],
        "staet:dead age:>1h\n^^^^^\nthere is no field staet: did you mean state?"
    );
    assert_eq!((&query.json["pointer"], &query.json["hint"]), (&json!("q"), &json!("did you mean state?")));
    bench.get(&format!("/v1/letters?q={}", "a".repeat(5000))).await.problem(400, "LZ0201");
    bench.get("/v1/letters?q=%FF").await.problem(400, "LZ0200");
    bench.get("/v1/letters?querry=x").await.problem(400, "LZ0200");
    bench.get("/v1/letters?limit=many").await.problem(400, "LZ0200");
    bench.get("/v1/letters?after=x").await.problem(400, "LZ0227");
    bench.get("/v1/letters/%FF").await.problem(400, "LZ0200");
    bench.get("/v1/sequences?queue=a%2Fb").await.problem(400, "LZ0200");
    bench.get("/v1/letters?view=full").await.problem(400, "LZ0200");
    bench.get("/v1/events?kind=letter-stored,poisson").await.problem(400, "LZ0200");
    bench.get("/v1/groups?q=seq:a").await.problem(400, "LZ0201");
    for (path, body, code) in [
        ("/v1/plans", "{", "LZ0200"),
        ("/v1/plans", "[]", "LZ0200"),
        ("/v1/plans", "{\"action\": \"explode\", \"query\": \"x\"}", "LZ0200"),
        ("/v1/plans", "{\"action\": \"retry\"}", "LZ0226"),
        ("/v1/plans", "{\"action\": \"retry\", \"query\": \"  \"}", "LZ0226"),
        ("/v1/plans", "{\"action\": \"retry\", \"query\": \"x:\"}", "LZ0201"),
        ("/v1/plans", "{\"action\": \"retry\", \"query\": \"x\", \"ids\": []}", "LZ0200"),
        ("/v1/plans", "{\"action\": \"retry\", \"ids\": [\"x\"]}", "LZ0200"),
        ("/v1/plans", "{\"action\": \"retry\", \"all\": true, \"querry\": \"x\"}", "LZ0200"),
        ("/v1/consumers/orders/pause", "{\"reason\": \"x\", \"secuence\": \"a\"}", "LZ0200"),
        ("/v1/operations", "{\"reason\": \"x\"}", "LZ0200"),
        ("/v1/operations", "{\"plan\": \"p_1\", \"action\": \"retry\", \"reason\": \"x\"}", "LZ0200"),
        (
            "/v1/operations",
            "{\"action\": \"retry\", \"all\": true, \"rate\": -1, \"reason\": \"x\"}",
            "LZ0200",
        ),
        ("/v1/operations", "{\"action\": \"retry\", \"all\": true}", "LZ0210"),
        ("/v1/consumers/orders/pause", "{\"reason\": \" \"}", "LZ0210"),
        ("/v1/consumers/orders/pause", "{\"reason\": \"x\", \"partition\": \"1\"}", "LZ0200"),
    ] {
        let request = bench.request(Method::POST, path).header("content-type", "application/json");
        bench.send(request.body(body)).await.problem(400, code);
    }
    let long = json!({"reason": "x".repeat(2000)});
    bench.post("/v1/consumers/orders/pause", long).await.problem(400, "LZ0200");
    let form = bench.request(Method::POST, "/v1/plans").header("content-type", "text/plain").body("{}");
    bench.send(form).await.problem(415, "LZ0212");
    let large = json!({"action": "retry", "query": "x".repeat(3 * 1024 * 1024)});
    bench.post("/v1/plans", large).await.problem(413, "LZ0211");
    // A client that sends far more than the limit still receives the response.
    let huge = bench.request(Method::POST, "/v1/plans").header("content-type", "application/json");
    bench.send(huge.body(vec![b' '; 24 * 1024 * 1024])).await.problem(413, "LZ0211");
    let deep = format!("{{\"action\": {}}}", "[".repeat(100_000));
    let deep = bench.request(Method::POST, "/v1/plans").header("content-type", "application/json").body(deep);
    bench.send(deep).await.problem(400, "LZ0200");
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_are_too_large_or_too_slow_end_the_connection() {
    let limits =
        Limits { header_timeout: Duration::from_millis(100), header_bytes: 16 * 1024, ..Limits::default() };
    let bench = Bench::with(Setup::limits(limits)).await;
    let large = bench.request(Method::GET, "/v1/status").header("x", "y".repeat(20_000));
    let refused = bench.client.execute(large.build().unwrap()).await;
    assert!(refused.map_or(true, |answer| answer.status() == 431));
    let address = bench.base.strip_prefix("http://").unwrap();
    let mut slow = tokio::net::TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET /v1/status HTTP/1.1\r\nhost: loc").await.unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(240), slow.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the server waits no longer");
    bench.get("/healthz").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_response_has_the_security_headers() {
    let bench = Bench::new().await;
    for answer in [bench.get("/v1/status").await, bench.get("/nothing").await, bench.get("/metrics").await] {
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert!(answer.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_repeated_with_the_same_key_is_executed_once() {
    let bench = Bench::new().await;
    let pause = |key: &'static str, who: &'static str, reason: &str| {
        let request = bench.request(Method::POST, "/v1/consumers/orders/pause");
        let request = request.header("idempotency-key", key).header("lazaret-actor", who);
        with_json(request, &json!({"replay": true, "reason": reason}))
    };
    let first = bench.send(pause("k1", "ada", "test")).await.expect(200);
    let again = bench.send(pause("k1", "ada", "test")).await.expect(200);
    assert_eq!((&first.json, again.header("idempotency-replayed")), (&again.json, Some("true")));
    assert_eq!(first.header("idempotency-replayed"), None);
    let entries = || async { bench.get("/v1/audit").await.json["entries"].as_array().unwrap().len() };
    assert_eq!(entries().await, 1, "it was done once");
    bench.send(pause("k1", "ada", "other")).await.problem(422, "LZ0216");
    bench.send(pause("k1", "bob", "other")).await.expect(200);
    assert_eq!(entries().await, 2, "the key of somebody else is another key");
    bench.send(pause("", "ada", "test")).await.problem(400, "LZ0200");
    // Permanent errors are replayed as well.
    let missing = || {
        let request =
            bench.request(Method::POST, "/v1/operations/op_9/cancel").header("idempotency-key", "k2");
        with_json(request, &json!({"reason": "x"}))
    };
    bench.send(missing()).await.problem(404, "LZ0203");
    let again = bench.send(missing()).await.problem(404, "LZ0203");
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_beyond_the_end_of_a_list_is_refused_or_ends_it() {
    let bench = Bench::new().await;
    bench.post("/v1/consumers/orders/pause", json!({"replay": true, "reason": "x"})).await.expect(200);
    let at = |path: &str, list: &str, number: u64| {
        let separator = if path.contains('?') { '&' } else { '?' };
        format!("{path}{separator}after={}", URL_SAFE_NO_PAD.encode(format!("1 {list} {number}")))
    };
    for (path, list) in [
        ("/v1/audit", "audit"),
        ("/v1/audit?order=latest", "latest-audit"),
        ("/v1/operations", "operations"),
        ("/v1/plans", "plans"),
        ("/v1/sequences?queue=orders%2Forders&sequence=a", "sequence"),
    ] {
        bench.get(&at(path, list, u64::MAX)).await.problem(400, "LZ0227");
        let last = bench.get(&at(path, list, i64::MAX.unsigned_abs())).await.expect(200);
        assert_eq!(last.json["next"], json!(null), "{path}: {}", last.text);
    }
    let latest = bench.get(&at("/v1/audit?order=latest", "latest-audit", i64::MAX.unsigned_abs())).await;
    assert_eq!(latest.json["entries"].as_array().unwrap().len(), 1, "{}", latest.text);
}
