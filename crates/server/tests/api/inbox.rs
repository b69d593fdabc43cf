//! Inbox: durable before the response, idempotent by id, with back-pressure and limits.

use lazaret_core::source::Ingest;
use lazaret_server::Limits;
use lazaret_store_sqlite::InboxOptions;
use reqwest::Method;
use serde_json::json;

use crate::support::{Answer, Bench, Setup, eventually};

async fn post(bench: &Bench, id: Option<&str>, body: impl Into<reqwest::Body>) -> Answer {
    let mut request = bench.request(Method::POST, "/v1/inbox/orders");
    if let Some(id) = id {
        request = request.header("lazaret-id", id);
    }
    bench.send(request.header("lazaret-key", "k").body(body)).await
}

async fn batch(bench: &Bench, lines: impl Into<reqwest::Body>) -> Answer {
    let request = bench.request(Method::POST, "/v1/inbox/orders/batch");
    bench.send(request.header("content-type", "application/x-ndjson").body(lines)).await
}

/// A bench with a paused consumer, so that messages stay in the inbox.
async fn still(setup: Setup) -> Bench {
    let bench = Bench::with(setup).await;
    bench.post("/v1/consumers/orders/pause", json!({"reason": "test"})).await.expect(200);
    bench
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_a_message_besides_its_payload_have_limits() {
    let bench = Bench::new().await;
    for name in ["lazaret-id", "lazaret-key", "lazaret-type", "lazaret-correlation"] {
        let request = bench.request(Method::POST, "/v1/inbox/orders").header(name, "x".repeat(5000));
        bench.send(request.body("{}")).await.problem(400, "LZ0200");
    }
    for field in ["id", "key", "type", "content-type"] {
        let line = serde_json::json!({field: "x".repeat(5000), "payload": 1}).to_string();
        let batch =
            bench.request(Method::POST, "/v1/inbox/orders/batch").body(format!("{{\"payload\": 1}}\n{line}"));
        let refused = bench.send(batch).await.problem(400, "LZ0200");
        assert_eq!(refused.json["pointer"], "line 2", "{field}");
    }
    assert_eq!(
        bench.get("/v1/inbox/orders").await.json["messages"],
        0,
        "nothing of a refused batch is taken"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_has_a_limit_of_messages_and_a_large_one_with_a_key_is_answered() {
    let bench = Bench::new().await;
    let batch = |lines: usize, key: &'static str| {
        let request = bench.request(Method::POST, "/v1/inbox/orders/batch").header("idempotency-key", key);
        request.body("{\"payload\": 1}\n".repeat(lines))
    };
    bench.send(batch(10_001, "a")).await.problem(413, "LZ0211");
    let first = bench.send(batch(10_000, "b")).await.expect(202);
    assert_eq!(first.json["messages"].as_array().unwrap().len(), 10_000);
    let again = bench.send(batch(10_000, "b")).await.expect(202);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!((&again.json["taken"], &again.json["messages-left-out"]), (&json!(10_000), &json!(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_known_id_with_another_payload_is_a_conflict() {
    let bench = Bench::new().await;
    let post = |body: &'static str| {
        bench.request(Method::POST, "/v1/inbox/orders").header("lazaret-id", "e-1").body(body)
    };
    bench.send(post("one")).await.expect(202);
    bench.send(post("one")).await.expect(200);
    bench.send(post("two")).await.problem(409, "LZ0218");
    eventually("it is consumed", || async { bench.get("/v1/inbox/orders").await.json["messages"] == 0 })
        .await;
    bench.send(post("one")).await.expect(200);
    bench.send(post("two")).await.problem(409, "LZ0218");
    let lines = "{\"id\": \"e-1\", \"payload\": \"two\"}\n{\"id\": \"e-2\", \"payload\": 1}";
    let batch = bench.request(Method::POST, "/v1/inbox/orders/batch").body(lines);
    let batch = bench.send(batch).await.expect(202).json;
    assert_eq!((&batch["taken"], &batch["conflicts"]), (&json!(1), &json!(1)), "{batch}");
    assert_eq!(batch["messages"][0]["conflict"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_durable_before_the_response_and_accepted_once() {
    // I8
    let bench = still(Setup::default()).await;
    let first = post(&bench, Some("e-1"), "hello").await.expect(202);
    assert_eq!(first.json, json!({"id": "e-1", "position": "0:0", "duplicate": false}));
    assert_eq!(bench.inbox.backlog().await.unwrap().messages, 1, "the file knows it");
    let again = post(&bench, Some("e-1"), "hello").await.expect(200);
    assert_eq!(again.json, json!({"id": "e-1", "position": "0:0", "duplicate": true}));
    let unnamed = post(&bench, None, "").await.expect(202);
    assert_eq!(unnamed.json["id"], "0:1", "without an id, the position is the id");
    let backlog = bench.get("/v1/inbox/orders").await.expect(200);
    assert_eq!(backlog.json["messages"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_handler_receives_the_message_as_posted() {
    // I5
    let bench = Bench::new().await;
    let request = bench.request(Method::POST, "/v1/inbox/orders");
    let request = request
        .header("content-type", "application/json")
        .header("ce-specversion", "1.0")
        .header("ce-id", "a%20b")
        .header("ce-type", "OrderPlaced")
        .header("ce-partitionkey", "%C3%BC")
        .header("ce-source", "/shop")
        .header("lazaret-header-tenant", "acme");
    let body = "{\"bad\":  1.10, \"ü\": \"\\u00fc\"}";
    bench.send(request.body(body)).await.expect(202);
    let letters = bench.open_letters(1).await;
    let letter =
        bench.get(&format!("/v1/letters/{}", letters[0]["id"].as_str().unwrap())).await.expect(200).json;
    assert_eq!((&letter["message"]["id"], &letter["message"]["key"]), (&json!("a b"), &json!("ü")));
    assert_eq!(
        (&letter["message"]["type"], &letter["content"]["payload"]),
        (&json!("OrderPlaced"), &json!(body))
    );
    let headers = json!([{"name": "ce-source", "value": "/shop"}, {"name": "tenant", "value": "acme"}]);
    assert_eq!(
        (&letter["content"]["headers"], &letter["content"]["content-type"]),
        (&headers, &json!("application/json"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn binary_payloads_round_trip() {
    // I5
    let bench = Bench::new().await;
    let bytes = b"bad\xff\0\x80".to_vec();
    post(&bench, Some("raw"), bytes.clone()).await.expect(202);
    let letters = bench.open_letters(1).await;
    let path = format!("/v1/letters/{}", letters[0]["id"].as_str().unwrap());
    let detail = bench.get(&path).await.expect(200);
    assert_eq!(detail.json["content"]["payload-base64"], "YmFk/wCA");
    let url = format!("{}{path}/payload", bench.base);
    let response = bench.client.get(url).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/octet-stream");
    assert!(response.headers()["content-disposition"].to_str().unwrap().starts_with("attachment"));
    assert_eq!(response.bytes().await.unwrap(), bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_accepts_every_line_and_keeps_undecodable_bytes() {
    let bench = Bench::new().await;
    let lines = "{\"id\":\"a\",\"payload\":1}\r\n\n{\"id\":\"a\",\"payload\":1}\nnonsense\n{\"payload-base64\":\"/w==\"}";
    let answer = batch(&bench, lines).await.expect(202).json;
    assert_eq!(
        (&answer["taken"], &answer["duplicates"], &answer["undecodable"]),
        (&json!(3), &json!(1), &json!(1))
    );
    assert_eq!(answer["messages"].as_array().unwrap().len(), 4);
    let letters = bench.open_letters(1).await;
    assert_eq!((&letters[0]["phase"], &letters[0]["reason"]), (&json!("decode"), &json!("INVALID_SCHEMA")));
    let letter = bench.get(&format!("/v1/letters/{}", letters[0]["id"].as_str().unwrap())).await.json;
    assert_eq!(letter["content"]["payload"], "nonsense");
    batch(&bench, "{\"id\":\"a\",\"payload\":1}").await.expect(200);
    batch(&bench, "").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_inbox_returns_retry_after() {
    // I7, I9
    let inbox = InboxOptions { max_messages: 3, ..InboxOptions::default() };
    let bench = still(Setup { inbox, ..Setup::default() }).await;
    let full =
        batch(&bench, (0..5).map(|n| format!("{{\"id\":\"{n}\",\"payload\":{n}}}\n")).collect::<String>())
            .await;
    let full = full.problem(429, "LZ0215");
    assert_eq!((full.json["accepted"].as_u64(), full.header("retry-after")), (Some(3), Some("1")));
    let one = post(&bench, Some("5"), "x").await.problem(429, "LZ0215");
    assert_eq!(one.header("retry-after"), Some("1"));
    post(&bench, Some("1"), "1").await.expect(200);
    bench.post("/v1/consumers/orders/resume", json!({"reason": "test"})).await.expect(200);
    eventually("there is room again", || async { post(&bench, Some("5"), "x").await.status == 202 }).await;
    // Posting the whole batch again stores every message once.
    eventually("all are in", || async {
        let lines: String = (0..5).map(|n| format!("{{\"id\":\"{n}\",\"payload\":{n}}}\n")).collect();
        batch(&bench, lines).await.status == 200
    })
    .await;
    eventually("all are handled", || async { bench.handle.stats().handled == 6 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_and_batches_are_limited() {
    let limits = Limits { message_bytes: 100, batch_bytes: 1000, ..Limits::default() };
    let bench = still(Setup::limits(limits)).await;
    post(&bench, Some("a"), "x".repeat(100)).await.expect(202);
    post(&bench, Some("b"), "x".repeat(101)).await.problem(413, "LZ0211");
    // A body without a Content-Length is limited as well.
    let chunks = futures_util::stream::iter((0..50).map(|_| Ok::<_, std::io::Error>("0123456789")));
    post(&bench, Some("c"), reqwest::Body::wrap_stream(chunks)).await.problem(413, "LZ0211");
    batch(&bench, "x".repeat(1001)).await.problem(413, "LZ0211");
    let line = format!("{{\"payload\":1}}\n{{\"payload\":\"{}\"}}", "x".repeat(100));
    let refused = batch(&bench, line).await.problem(413, "LZ0211");
    assert_eq!(refused.json["pointer"], "line 2");
    assert_eq!(
        bench.inbox.backlog().await.unwrap().messages,
        1,
        "of a batch that is refused nothing is taken"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_inbox_and_an_empty_id_are_rejected() {
    let bench = Bench::new().await;
    let missing = bench.send(bench.request(Method::POST, "/v1/inbox/nobody").body("x")).await;
    let missing = missing.problem(404, "LZ0229");
    assert!(
        missing.text.contains("only a consumer with `source: { inbox: {} }` accepts"),
        "{}",
        missing.text
    );
    bench.get("/v1/inbox/nobody").await.problem(404, "LZ0229");
    post(&bench, Some(""), "x").await.problem(400, "LZ0200");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_accepted_with_any_content_type() {
    // `curl --data-binary` sends a form type, others send none.
    let bench = still(Setup::default()).await;
    let path = "/v1/inbox/orders/batch";
    for (n, kind) in ["application/x-www-form-urlencoded", "application/octet-stream"].iter().enumerate() {
        let lines = format!("{{\"id\":\"{n}\",\"payload\":1}}");
        bench
            .send(bench.request(Method::POST, path).header("content-type", *kind).body(lines))
            .await
            .expect(202);
    }
    bench.send(bench.request(Method::POST, path).body("{\"id\":\"x\",\"payload\":1}")).await.expect(202);
    assert_eq!(bench.inbox.backlog().await.unwrap().messages, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_repeated_with_the_same_key_is_accepted_once() {
    // I8
    let bench = still(Setup::default()).await;
    let keyed = |path: &str, body: &'static str| {
        bench.request(Method::POST, path).header("idempotency-key", "k-1").body(body)
    };
    let first = bench.send(keyed("/v1/inbox/orders", "a")).await.expect(202).json;
    assert_eq!(first["id"], "k-1", "a message that names no id has this one");
    let again = bench.send(keyed("/v1/inbox/orders", "a")).await.expect(200).json;
    assert_eq!((&again["position"], &again["duplicate"]), (&first["position"], &json!(true)));
    let path = "/v1/inbox/orders/batch";
    let lines = "{\"payload\":1}\n{\"payload\":2}";
    let first = bench.send(keyed(path, lines)).await.expect(202);
    let again = bench.send(keyed(path, lines)).await.expect(202);
    assert_eq!((first.json, again.header("idempotency-replayed")), (again.json.clone(), Some("true")));
    bench.send(keyed(path, "{\"payload\":3}")).await.problem(422, "LZ0216");
    assert_eq!(bench.inbox.backlog().await.unwrap().messages, 3);
}
