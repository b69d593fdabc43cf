//! The OpenAPI document matches the golden file, and every route matches the document.

use crate::support::{Bench, QUEUE, encoded, eventually};
use reqwest::Method;
use serde_json::json;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");

#[test]
fn the_document_matches_the_golden_file() {
    let mut made = serde_json::to_string_pretty(&lazaret_server::openapi()).unwrap();
    made.push('\n');
    if std::env::var_os("LAZARET_BLESS").is_some() {
        std::fs::write(GOLDEN, &made).unwrap();
    }
    let kept = std::fs::read_to_string(GOLDEN).unwrap_or_default();
    assert!(
        made == kept,
        "the API has changed: review the difference, then run with LAZARET_BLESS=1 and commit openapi.json"
    );
}

#[test]
fn the_guide_names_every_code_with_its_status() {
    let guide = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md")).unwrap();
    for code in lazaret_api::Code::ALL {
        let row = guide.lines().find(|line| line.starts_with("| `LZ") && line.contains(code.as_str()));
        let row = row.unwrap_or_else(|| panic!("docs/api.md does not name {code}"));
        let status = code.status();
        assert!(status == 0 || row.contains(&status.to_string()), "{code} is answered with {status}: {row}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_matches_the_document_on_success_and_on_error() {
    let bench = Bench::new().await;
    succeed(&bench).await;
    fail(&bench).await;
    let seen = bench.contract.seen();
    for (method, path, _) in bench.contract.operations() {
        let statuses =
            seen.get(&format!("{} {path}", method.as_str().to_lowercase())).cloned().unwrap_or_default();
        assert!(
            statuses.iter().any(|status| *status < 300),
            "{method} {path} was never seen to succeed: {statuses:?}"
        );
        // These routes have no invalid requests.
        let harmless = [
            "/healthz",
            "/readyz",
            "/v1/openapi.json",
            "/v1/whoami",
            "/metrics",
            "/v1/status",
            "/v1/audit/verify",
        ];
        if !harmless.contains(&path.as_str()) {
            assert!(
                statuses.iter().any(|status| *status >= 400),
                "{method} {path} was never seen to fail: {statuses:?}"
            );
        }
    }
}

/// Sends a valid request to every route.
async fn succeed(bench: &Bench) {
    for path in [
        "/healthz",
        "/readyz",
        "/metrics",
        "/v1/openapi.json",
        "/v1/whoami",
        "/v1/status",
        "/v1/consumers/orders",
    ] {
        bench.get(path).await.expect(200);
    }
    let single = bench.request(Method::POST, "/v1/inbox/orders").header("lazaret-id", "one").body("fine");
    bench.send(single.try_clone().unwrap()).await.expect(202);
    bench.send(single).await.expect(200);
    bench.get("/v1/inbox/orders").await.expect(200);
    let letters =
        bench.letters(&[("a", "bad1"), ("a", "bad2"), ("b", "bad3"), ("c", "bad4"), ("d", "bad5")], 5).await;
    let id = |key: &str| {
        let found = letters.iter().find(|letter| letter["message"]["key"] == key).unwrap();
        found["id"].as_str().unwrap().to_owned()
    };
    let group =
        bench.get("/v1/groups").await.expect(200).json["groups"][0]["id"].as_str().unwrap().to_owned();
    bench.get(&format!("/v1/groups/{}", encoded(&group))).await.expect(200);
    bench.get(&format!("/v1/letters/{}", id("a"))).await.expect(200);
    bench.get(&format!("/v1/letters/{}/payload", id("a"))).await.expect(200);
    bench.get(&format!("/v1/sequences?queue={}&sequence=a", encoded(QUEUE))).await.expect(200);
    let why = json!({"reason": "test"});
    let b = format!("/v1/letters/{}", id("b"));
    bench.post(&format!("{b}/park"), why.clone()).await.expect(200);
    bench.post(&format!("{b}/quarantine"), why.clone()).await.expect(200);
    bench.post(&format!("{b}/comments"), json!({"text": "hm"})).await.expect(200);
    bench.put(&format!("{b}/assignee"), json!({"name": "ada"})).await.expect(200);
    bench.put(&format!("{b}/owner"), json!({"name": "shop-team", "reason": "moved"})).await.expect(200);
    let expiry = json!({"expires-at": "2040-01-01T00:00:00Z", "reason": "audit"});
    bench.put(&format!("{b}/expiry"), expiry).await.expect(200);
    bench
        .put(&format!("{b}/payload"), json!({"payload": "{\"bad\": 4.0}", "reason": "typo"}))
        .await
        .expect(200);
    bench.post(&format!("{b}/evict"), why.clone()).await.expect(200);
    bench.post(&format!("{b}/restore"), why.clone()).await.expect(200);
    bench.post(&format!("{b}/evict"), why.clone()).await.expect(200);
    bench.post("/v1/letters/restore", json!({"ids": [id("b")], "reason": "test"})).await.expect(200);
    bench.post(&format!("{b}/resolve"), why.clone()).await.expect(200);
    bench.post(&format!("{b}/purge"), why.clone()).await.expect(204);
    bench.post("/v1/letters/purge", json!({"query": "state:closed", "reason": "test"})).await.expect(200);
    let export = bench.request(Method::GET, "/v1/letters?view=full").header("accept", "application/x-ndjson");
    let export = bench.send(export).await.expect(200).text;
    let import = bench.request(Method::POST, "/v1/letters/import?queue=other%2Fother").body(export);
    bench.send(import.header("content-type", "application/x-ndjson")).await.expect(200);
    let c = format!("/v1/letters/{}", id("c"));
    bench.post(&format!("{c}/release"), why.clone()).await.expect(200);
    operate(bench, &id("a"), &id("d")).await;
    bench.post("/v1/consumers/orders/pause", json!({"replay": true, "reason": "test"})).await.expect(200);
    bench.post("/v1/consumers/orders/resume", json!({"replay": true, "reason": "test"})).await.expect(200);
    bench.get("/v1/audit").await.expect(200);
    bench.get("/v1/audit/verify").await.expect(200);
    let events = bench.client.get(format!("{}/v1/events", bench.base)).send().await.unwrap();
    assert_eq!(events.status().as_u16(), 200);
    // The response never ends, so it is checked by hand.
    let events = crate::support::Answer {
        status: 200,
        headers: events.headers().clone(),
        text: String::new(),
        json: json!(null),
    };
    bench.contract.check(&Method::GET, "/v1/events", &events);
}

/// Sends valid requests to the routes of plans and operations.
async fn operate(bench: &Bench, one: &str, other: &str) {
    let plan = bench.post("/v1/plans", json!({"action": "retry", "ids": [one]})).await.expect(201).json;
    let plan_id = plan["id"].as_str().unwrap();
    bench.get(&format!("/v1/plans/{plan_id}")).await.expect(200);
    bench.get(&format!("/v1/plans/{plan_id}/items")).await.expect(200);
    let later = json!({"plan": plan_id, "at": "2040-01-01T00:00:00Z", "reason": "later"});
    let operation = bench.post("/v1/operations", later).await.expect(201).json;
    let operation = format!("/v1/operations/{}", operation["id"].as_str().unwrap());
    bench.get(&operation).await.expect(200);
    bench.get(&format!("{operation}/items")).await.expect(200);
    bench.get("/v1/operations").await.expect(200);
    for command in ["pause", "resume", "cancel"] {
        bench.post(&format!("{operation}/{command}"), json!({"reason": "test"})).await.expect(200);
    }
    for command in ["approve", "reject"] {
        let begin = json!({"action": "park", "ids": [other], "needs-approval": true, "at": "2040-01-01T00:00:00Z", "reason": "test"});
        let begun = bench.post("/v1/operations", begin).await.expect(201).json;
        let path = format!("/v1/operations/{}/{command}", begun["id"].as_str().unwrap());
        let request = bench.request(Method::POST, &path).header("lazaret-actor", "second");
        bench.send(crate::support::with_json(request, &json!({"reason": "looked at"}))).await.expect(200);
        if command == "approve" {
            let cancel = format!("/v1/operations/{}/cancel", begun["id"].as_str().unwrap());
            bench.post(&cancel, json!({"reason": "enough"})).await.expect(200);
        }
    }
}

/// Sends an invalid request to every route.
async fn fail(bench: &Bench) {
    let nobody = "00000000-0000-8000-8000-000000000000";
    for (method, template, operation) in bench.contract.operations() {
        let path =
            template.replace("{id}", nobody).replace("{name}", "nobody").replace("{consumer}", "nobody");
        let request = bench.request(method.clone(), &path);
        let answer = if operation["requestBody"].is_null() {
            // An unknown parameter, or a missing resource.
            bench.send(bench.request(method, &format!("{path}?nonsense=1"))).await
        } else {
            bench.send(request.header("content-type", "application/x-nonsense").body("{")).await
        };
        let harmless = answer.status < 300;
        assert!(harmless || answer.status >= 400, "{template}: {}", answer.status);
    }
    eventually("the server is still there", || async { bench.get("/healthz").await.status == 200 }).await;
}
