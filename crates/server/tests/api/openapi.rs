//! The OpenAPI document matches the golden file, and every route matches the document.

use crate::support::{Bench, QUEUE, encoded, eventually};
use reqwest::Method;
use serde_json::{Value, json};

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
            "/openapi.json",
            "/v1/openapi.json",
            "/v1/whoami",
            "/metrics",
            "/v1/status",
            "/v1/instances",
            "/v1/audit/verify",
            "/v1/config",
            "/v1/tokens",
        ];
        if !harmless.contains(&path.as_str()) {
            assert!(
                statuses.iter().any(|status| *status >= 400),
                "{method} {path} was never seen to fail: {statuses:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_of_the_document_are_those_of_the_server() {
    let bench = Bench::new().await;
    let letters = bench.letters(&[("a", "bad1")], 1).await;
    let letter = format!("/v1/letters/{}", letters[0]["id"].as_str().unwrap());
    let limit = |field: &Value, keyword: &str| usize::try_from(field[keyword].as_u64().unwrap()).unwrap();
    let of = |name: &str, field: &str| bench.contract.schema(name)["properties"][field].clone();
    // A character of three bytes: lengths are counted in characters.
    let text = |length: usize| "€".repeat(length);
    let reason = limit(&of("ActRequest", "reason"), "maxLength");
    let comment = limit(&of("CommentRequest", "text"), "maxLength");
    let name = limit(&of("AssignRequest", "name"), "maxLength");
    for (beyond, status) in [(0, 200), (1, 400)] {
        let path = format!("{letter}/comments");
        bench.post(&path, json!({"text": text(comment + beyond)})).await.expect(status);
        bench.post(&path, json!({"text": "x", "reason": text(reason + beyond)})).await.expect(status);
        bench.put(&format!("{letter}/owner"), json!({"name": text(name + beyond)})).await.expect(status);
        bench.post(&format!("{letter}/park"), json!({"reason": text(reason + beyond)})).await.expect(status);
    }
    for blank in ["", " ", "\n\t"] {
        bench.post(&format!("{letter}/park"), json!({"reason": blank})).await.problem(400, "LZ0210");
        bench.post(&format!("{letter}/comments"), json!({"text": blank})).await.problem(400, "LZ0200");
        bench.put(&format!("{letter}/owner"), json!({"name": blank})).await.problem(400, "LZ0200");
    }
    let by_id = |name: &str| {
        let variants = bench.contract.schema(name)["anyOf"].as_array().unwrap();
        let ids = variants.iter().map(|variant| &variant["properties"]["ids"]);
        limit(ids.clone().find(|ids| ids["type"] == "array").unwrap(), "maxItems")
    };
    let ids = |count: usize| vec!["00000000-0000-8000-8000-000000000000"; count];
    for (beyond, status) in [(0, 200), (1, 400)] {
        let bulk = json!({"ids": ids(by_id("BulkRequest") + beyond), "reason": "x"});
        bench.post("/v1/letters/restore", bulk).await.expect(status);
    }
    let plan = json!({"action": "retry", "ids": ids(by_id("PlanRequest") + 1)});
    bench.post("/v1/plans", plan).await.expect(400);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_says_which_fields_go_together() {
    // The bench checks that the document forbids what is refused, and allows what is not.
    let bench = Bench::new().await;
    let letters = bench.letters(&[("a", "bad1")], 1).await;
    let id = letters[0]["id"].as_str().unwrap();
    let letter = format!("/v1/letters/{id}");
    for (body, status) in [
        (json!({"action": "park", "ids": [id], "query": null}), 201),
        (json!({"action": "park", "query": "state:dead", "all": false}), 201),
        (json!({"action": "park", "all": true}), 201),
        (json!({"action": "park", "all": true, "query": " "}), 201),
        (json!({"action": "park", "ids": [id], "query": "x"}), 400),
        (json!({"action": "park", "ids": ["x"]}), 400),
        (json!({"action": "park", "ids": [id], "limit": 3}), 400),
        (json!({"ids": [id]}), 400),
    ] {
        bench.post("/v1/plans", body).await.expect(status);
    }
    let refused = json!({"action": "park"});
    bench.post("/v1/plans", refused).await.problem(400, "LZ0226");
    let plan = bench.post("/v1/plans", json!({"action": "park", "ids": [id]})).await.expect(201).json;
    let plan = plan["id"].as_str().unwrap();
    for (body, status) in [
        (json!({"plan": plan, "action": "park", "reason": "x"}), 400),
        (json!({"plan": plan, "ids": [id], "reason": "x"}), 400),
        (json!({"reason": "x"}), 400),
        (json!({"plan": plan}), 400),
        (json!({"plan": plan, "reason": "x", "rate": -1}), 400),
        (json!({"action": "park", "ids": [id], "reason": "x", "ramp": [0]}), 400),
        (json!({"action": "park", "ids": [id], "reason": "x", "stop-at": 1.5}), 400),
        (json!({"plan": plan, "reason": "x", "rate": 0, "ramp": [1.5]}), 400),
        (json!({"plan": plan, "reason": "x", "rate": 0, "ramp": [1.0], "stop-at": 1, "all": false}), 201),
    ] {
        bench.post("/v1/operations", body).await.expect(status);
    }
    for (body, status) in [
        (json!({"payload": "1", "reason": "x"}), 200),
        (json!({"payload": "1", "tombstone": false, "revert": false, "force": false, "reason": "x"}), 200),
        (json!({"payload-base64": "MQ==", "reason": "x"}), 200),
        (json!({"payload": "a", "force": true, "reason": "x"}), 200),
        (json!({"tombstone": true, "payload": null, "reason": "x"}), 200),
        (json!({"revert": true, "reason": "x"}), 200),
        (json!({"revert": true, "payload": "1", "reason": "x"}), 400),
        (json!({"revert": false, "force": true, "reason": "x"}), 400),
        (json!({"payload-base64": "YR==", "reason": "x"}), 400),
        (json!({"payload-base64": "YQ", "reason": "x"}), 400),
        (json!({"payload": "a", "tombstone": true, "reason": "x"}), 400),
        (json!({"reason": "x"}), 400),
    ] {
        bench.put(&format!("{letter}/payload"), body).await.expect(status);
    }
    for (body, status) in [
        (json!({"expires-at": "2199-12-31T23:59:59Z", "reason": "x"}), 200),
        (json!({"expires-at": null, "reason": "x"}), 200),
        (json!({"expires-at": "2200-01-02T00:00:00Z", "reason": "x"}), 400),
        (json!({"reason": "x"}), 400),
    ] {
        bench.put(&format!("{letter}/expiry"), body).await.expect(status);
    }
    for (body, status) in [
        (json!({"reason": "x"}), 200),
        (json!({"stream": "s", "reason": "x"}), 200),
        (json!({"stream": "s", "partition": "1", "reason": "x"}), 200),
        (json!({"partition": "a/b/1", "reason": "x"}), 200),
        (json!({"sequence": "s", "replay": false, "reason": "x"}), 200),
        (json!({"replay": true, "reason": "x"}), 200),
        (json!({"partition": "1", "reason": "x"}), 400),
        (json!({"stream": "s", "partition": "x", "reason": "x"}), 400),
        (json!({"stream": "s", "replay": true, "reason": "x"}), 400),
    ] {
        bench.post("/v1/consumers/orders/pause", body).await.expect(status);
    }
}

/// Sends a valid request to every route.
async fn succeed(bench: &Bench) {
    for path in [
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
        "/v1/openapi.json",
        "/v1/whoami",
        "/v1/status",
        "/v1/instances",
        "/v1/activity",
        "/v1/config",
        "/v1/tokens",
        "/v1/plans",
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
    bench.get(&format!("/v1/groups/{}/facets", encoded(&group))).await.expect(200);
    bench.get(&format!("/v1/letters/{}", id("a"))).await.expect(200);
    bench.get(&format!("/v1/letters/{}/payload", id("a"))).await.expect(200);
    bench.post(&format!("/v1/letters/{}/reveal", id("a")), json!({"reason": "test"})).await.expect(200);
    bench.post("/v1/letters/export", json!({"reason": "test"})).await.expect(200);
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
    bench.post("/v1/letters/quarantine", json!({"ids": [id("b")], "reason": "test"})).await.expect(200);
    let none = json!({"query": "message:nothing", "reason": "test"});
    bench.post("/v1/letters/resolve", none).await.expect(200);
    let ada = json!({"query": "seq:d", "name": "ada"});
    assert_eq!(bench.post("/v1/letters/assign", ada).await.expect(200).json["done"], 1);
    bench.post(&format!("{b}/resolve"), why.clone()).await.expect(200);
    bench.post(&format!("{b}/purge"), why.clone()).await.expect(204);
    bench.post("/v1/letters/purge", json!({"query": "state:closed", "reason": "test"})).await.expect(200);
    bench.post("/v1/letters/erase", json!({"query": "message:nothing", "reason": "test"})).await.expect(200);
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
