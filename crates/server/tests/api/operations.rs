//! Plans and operations over the API, executed by a running consumer.

use std::time::Duration;

use lazaret_api::Scope;
use lazaret_core::store::DraftLimits;
use lazaret_engine::Options as EngineOptions;
use lazaret_server::{Approval, Limits, Token, Tokens};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Bench, Setup, eventually, secret, token, with_json};

const BAD: [(&str, &str); 4] = [("a", "bad1"), ("a", "2"), ("b", "bad3"), ("c", "bad4")];

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_frozen_read_and_executed_once() {
    let bench = Bench::new().await;
    bench.letters(&BAD, 4).await;
    let plan =
        bench.post("/v1/plans", json!({"action": "retry", "query": "queue:orders"})).await.expect(201).json;
    assert_eq!(
        (&plan["letters"], &plan["sequences"], &plan["needs-approval"]),
        (&json!(4), &json!(3), &json!(false))
    );
    assert_eq!((&plan["query"], &plan["excluded"]), (&json!("queue:orders"), &json!([])));
    // Letters enqueued after the freeze are not part of the plan.
    bench.letters(&[("d", "bad5")], 5).await;
    let id = plan["id"].as_str().unwrap();
    let items = bench.get(&format!("/v1/plans/{id}/items?limit=3")).await.expect(200).json;
    let rest =
        bench.get(&format!("/v1/plans/{id}/items?after={}", items["next"].as_str().unwrap())).await.json;
    assert_eq!((items["items"].as_array().unwrap().len(), rest["items"].as_array().unwrap().len()), (3, 1));
    bench.fix_handler();
    let begin = json!({"plan": id, "rate": 0, "ramp": [1, 2], "reason": "mended"});
    let begun = bench.post("/v1/operations", begin.clone()).await.expect(201).json;
    let operation = begun["id"].as_str().unwrap();
    let over = bench.over(operation).await;
    assert_eq!((&over["state"], &over["sent"], &over["ok"]), (&json!("done"), &json!(4), &json!(4)));
    assert_eq!((&over["failed-again"], &over["skipped"]), (&json!(0), &json!(0)));
    let items = bench.get(&format!("/v1/operations/{operation}/items")).await.json;
    assert!(items["items"].as_array().unwrap().iter().all(|item| item["outcome"] == "ok"));
    let stale = bench.post("/v1/operations", begin).await.problem(409, "LZ0219");
    assert!(stale.json["detail"].as_str().unwrap().contains(id), "{}", stale.text);
    bench.open_letters(1).await;
    assert_eq!(bench.get("/v1/status").await.json["operations"], json!([]));
    assert_eq!(bench.get("/v1/operations").await.json["operations"][0]["id"], operation);
}

#[tokio::test(flavor = "multi_thread")]
async fn drafts_are_limited_and_the_refusal_names_the_way_out() {
    // I7
    let drafts = DraftLimits { per_person: 2, ..DraftLimits::default() };
    let bench = Bench::with(Setup::limits(Limits { drafts, ..Limits::default() })).await;
    bench.letters(&BAD, 4).await;
    let request = json!({"action": "park", "query": "queue:orders"});
    let first = bench.post("/v1/plans", request.clone()).await.expect(201).json;
    bench.post("/v1/plans", request.clone()).await.expect(201);
    let refused = bench.post("/v1/plans", request.clone()).await.problem(409, "LZ0218");
    let detail = refused.json["detail"].as_str().unwrap();
    let way_out = format!("start one of them, or wait until {}", first["id"].as_str().unwrap());
    assert!(detail.contains("has 2 plans") && detail.contains(&way_out), "{detail}");
    assert!(
        refused.json["hint"].as_str().unwrap().contains("`limits.drafts-per-person`"),
        "{}",
        refused.text
    );
    let begin = json!({"plan": first["id"], "reason": "enough of them"});
    bench.post("/v1/operations", begin).await.expect(201);
    bench.post("/v1/plans", request).await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_are_listed_until_they_are_started() {
    let bench = Bench::new().await;
    bench.letters(&BAD, 4).await;
    let mut frozen = Vec::new();
    for action in ["retry", "park", "evict"] {
        let request = json!({"action": action, "query": "queue:orders"});
        frozen.push(bench.post("/v1/plans", request).await.expect(201).json);
    }
    let first = bench.get("/v1/plans?limit=2").await.expect(200).json;
    assert_eq!(first["plans"], json!([frozen[2], frozen[1]]), "the latest first");
    let rest = format!("/v1/plans?limit=2&after={}", first["next"].as_str().unwrap());
    assert_eq!(bench.get(&rest).await.expect(200).json, json!({"plans": [frozen[0]], "next": null}));
    bench.post("/v1/operations", json!({"plan": frozen[1]["id"], "reason": "later"})).await.expect(201);
    let left = bench.get("/v1/plans").await.expect(200).json;
    assert_eq!(left, json!({"plans": [frozen[2], frozen[0]], "next": null}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_reports_exclusions_and_unknown_ids_create_no_queue() {
    let bench = Bench::new().await;
    let letters = bench.letters(&BAD, 4).await;
    let behind = letters.iter().find(|letter| letter["state"] == "waiting").unwrap()["id"].clone();
    let ids = json!([behind, "00000000-0000-8000-8000-000000000000"]);
    let plan = bench.post("/v1/plans", json!({"action": "retry", "ids": ids})).await.expect(201).json;
    assert_eq!(plan["letters"], 0);
    let excluded = [json!({"reason": "not-found", "letters": 1}), json!({"reason": "behind", "letters": 1})];
    assert_eq!(plan["excluded"], json!(excluded));
    let names: Vec<Value> = bench.get("/v1/status").await.json["consumers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].clone())
        .collect();
    assert_eq!(names, [json!("orders")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_tells_what_its_plan_excludes_also_when_it_is_over() {
    let bench = Bench::new().await;
    let letters = bench.letters(&BAD, 4).await;
    let behind = letters.iter().find(|letter| letter["state"] == "waiting").unwrap();
    let apart = letters.iter().find(|letter| letter["sequence"] != behind["sequence"]).unwrap();
    bench.fix_handler();
    let begin = json!({"action": "retry", "ids": [behind["id"], apart["id"]], "reason": "fixed"});
    let begun = bench.post("/v1/operations", begin).await.expect(201).json;
    let excluded = json!([{"reason": "behind", "letters": 1}]);
    assert_eq!((&begun["letters"], &begun["excluded"]), (&json!(1), &excluded));
    let over = bench.over(begun["id"].as_str().unwrap()).await;
    assert_eq!((&over["state"], &over["ok"], &over["excluded"]), (&json!("done"), &json!(1), &excluded));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_operation_stops_by_its_rule_and_resumes_on_command() {
    let bench = Bench::new().await;
    // Sequences are executed in the order in which they were enqueued.
    bench.letters(&BAD[..2], 2).await;
    bench.letters(&BAD[2..], 4).await;
    let begin =
        json!({"action": "retry", "query": "", "all": true, "ramp": [1], "stop-at": 0.05, "reason": "try"});
    let begun = bench.post("/v1/operations", begin).await.expect(201).json;
    let path = format!("/v1/operations/{}", begun["id"].as_str().unwrap());
    eventually("the stop rule holds it", || async { bench.get(&path).await.json["state"] == "paused" }).await;
    let held = bench.get(&path).await.json;
    assert_eq!((&held["failed-again"], &held["stage"]), (&json!(1), &json!(0)));
    assert!(held["note"].as_str().unwrap().starts_with("stopped: 1 of 1"));
    assert_eq!(bench.get("/v1/status").await.json["operations"][0]["id"], begun["id"]);
    bench.post(&format!("{path}/pause"), json!({"reason": "x"})).await.problem(409, "LZ0218");
    bench.fix_handler();
    bench.post(&format!("{path}/resume"), json!({"reason": "mended"})).await.expect(200);
    let over = bench.over(begun["id"].as_str().unwrap()).await;
    assert_eq!((&over["ok"], &over["failed-again"], &over["skipped"]), (&json!(2), &json!(1), &json!(1)));
}

/// Two people with triage scopes, and a reader.
fn people() -> Setup {
    let maker = token(
        "maker",
        &[Scope::Read, Scope::Triage, Scope::Evict, Scope::Edit, Scope::Import, Scope::Approve],
    );
    // The same person with another token.
    let renewed = token("maker-2027", &[Scope::Read, Scope::Approve]);
    let renewed = Token { person: Some("maker".into()), ..renewed };
    let checker = token("checker", &[Scope::Read, Scope::Approve]);
    let tokens = vec![maker, renewed, checker, token("feeder", &[Scope::Ingest, Scope::Read])];
    Setup { tokens, approval: Approval::SecondPerson, ..Setup::default() }
}

async fn said(bench: &Bench, name: &str, path: &str, body: Value) -> Answer {
    bench.send(with_json(bench.request(Method::POST, path).bearer_auth(secret(name)), &body)).await
}

async fn seen(bench: &Bench, name: &str, path: &str) -> Answer {
    bench.send(bench.request(Method::GET, path).bearer_auth(secret(name))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_does_not_bypass_approval() {
    let from = Bench::new().await;
    from.letters(&[("a", "bad1"), ("b", "bad2")], 2).await;
    let lines = from.request(Method::GET, "/v1/letters?view=full").header("accept", "application/x-ndjson");
    let export = from.send(lines).await.expect(200).text;
    let runs = export.lines().next().unwrap().replace("\"state\":\"dead\"", "\"state\":\"retrying\"");
    let waits = export.lines().nth(1).unwrap();
    let bench = Bench::with(people()).await;
    bench.fix_handler();
    let import = bench
        .request(Method::POST, "/v1/letters/import?reason=moved")
        .bearer_auth(secret("maker"))
        .header("content-type", "application/x-ndjson");
    let answer = bench.send(import.body(format!("{runs}\n{waits}"))).await.expect(200).json;
    assert_eq!((&answer["taken"], &answer["failures"]), (&json!(1), &json!(1)), "{answer}");
    assert_eq!(answer["failed"][0]["line"], 1);
    assert!(answer["failed"][0]["why"].as_str().unwrap().contains("a second person"), "{answer}");
    assert_eq!(bench.handle.stats().handled, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_waits_for_a_second_person() {
    let bench = Bench::with(people()).await;
    let post = bench.request(Method::POST, "/v1/inbox/orders").bearer_auth(secret("feeder"));
    bench.send(post.header("lazaret-key", "a").body("bad")).await.expect(202);
    eventually("the letter is there", || async {
        seen(&bench, "checker", "/v1/letters/count").await.json["letters"] == 1
    })
    .await;
    let letter =
        seen(&bench, "maker", "/v1/letters").await.json["letters"][0]["id"].as_str().unwrap().to_owned();
    let plan = said(&bench, "maker", "/v1/plans", json!({"action": "retry", "query": "", "all": true})).await;
    assert_eq!(plan.expect(201).json["needs-approval"], true);
    // Manual release and other actions that run handlers do not bypass approval.
    let release = format!("/v1/letters/{letter}/release");
    said(&bench, "maker", &release, json!({"reason": "quick"})).await.problem(403, "LZ0220");
    bench.fix_handler();
    let begin = json!({"action": "retry", "ids": [letter], "reason": "mended"});
    let begun = said(&bench, "maker", "/v1/operations", begin).await.expect(201).json;
    assert_eq!((&begun["state"], &begun["needs-approval"]), (&json!("awaiting-approval"), &json!(true)));
    let path = format!("/v1/operations/{}", begun["id"].as_str().unwrap());
    let approve = format!("{path}/approve");
    let own = said(&bench, "maker", &approve, json!({"reason": "fine by me"})).await.problem(403, "LZ0220");
    assert!(own.json["detail"].as_str().unwrap().contains("a second person"), "{}", own.text);
    said(&bench, "feeder", &approve, json!({"reason": "x"})).await.problem(403, "LZ0207");
    // A new token does not make a second person.
    said(&bench, "maker-2027", &approve, json!({"reason": "again"})).await.problem(403, "LZ0220");
    assert_eq!(seen(&bench, "maker", &path).await.json["state"], "awaiting-approval");
    let approved =
        said(&bench, "checker", &approve, json!({"reason": "looked at it"})).await.expect(200).json;
    assert_eq!(approved["approved-by"]["who"], "checker");
    eventually("it is done", || async { seen(&bench, "maker", &path).await.json["state"] == "done" }).await;
    said(&bench, "checker", &approve, json!({"reason": "again"})).await.problem(409, "LZ0218");
    // Evict and park run no handler and need no approval.
    let park = json!({"action": "evict", "query": "state:dead", "reason": "x"});
    let begun = said(&bench, "maker", "/v1/operations", park).await.expect(201).json;
    assert_eq!(begun["needs-approval"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_operation_of_a_revoked_token_asks_for_approval_again() {
    let acting = [Scope::Read, Scope::Evict, Scope::Approve];
    let checker = token("checker", &acting);
    let mut tokens = people().tokens;
    tokens.retain(|token| token.name != "checker");
    tokens.push(checker.clone());
    let bench = Bench::with(Setup { tokens, ..Setup::default() }).await;
    posted(&bench, "a", "bad", 1).await;
    let begin =
        json!({"action": "evict", "query": "queue:orders", "at": "2040-01-01T00:00:00Z", "reason": "later"});
    let begun = said(&bench, "maker", "/v1/operations", begin).await.expect(201).json;
    assert_eq!((&begun["state"], &begun["by"]["via"]), (&json!("scheduled"), &json!("api:maker")));
    let path = format!("/v1/operations/{}", begun["id"].as_str().unwrap());
    bench.server.hold_schedules().await.unwrap();
    assert_eq!(seen(&bench, "checker", &path).await.json["state"], "scheduled", "the token is valid");
    // The person keeps a token without the scope; then none is left.
    let less = token("maker", &[Scope::Read, Scope::Approve]);
    bench.server.set_tokens(Tokens::new(vec![less, checker]).unwrap()).unwrap();
    eventually("it is held", || async { seen(&bench, "checker", &path).await.json["state"] == "paused" })
        .await;
    let held = seen(&bench, "checker", &path).await.json;
    assert_eq!(held["note"], "paused by lazaret: held: maker has lost the scope evict");
    let resumed = said(&bench, "checker", &format!("{path}/resume"), json!({"reason": "still needed"})).await;
    assert_eq!(resumed.expect(200).json["state"], "awaiting-approval");
    let approve = format!("{path}/approve");
    said(&bench, "maker", &approve, json!({"reason": "mine"})).await.problem(403, "LZ0220");
    let approved = said(&bench, "checker", &approve, json!({"reason": "still needed"})).await.expect(200);
    assert_eq!(approved.json["state"], "scheduled");
    bench.server.hold_schedules().await.unwrap();
    assert_eq!(
        seen(&bench, "checker", &path).await.json["state"],
        "scheduled",
        "a second person answers for it"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_operation_is_held_when_its_requester_loses_the_consumer() {
    let bench = Bench::with(people()).await;
    let tokens = |consumer: &str| {
        let mut tokens = people().tokens;
        let maker = tokens.iter_mut().find(|token| token.name == "maker").unwrap();
        maker.consumers = vec![consumer.to_owned()];
        tokens.retain(|token| token.name != "maker-2027");
        Tokens::new(tokens).unwrap()
    };
    posted(&bench, "a", "bad", 1).await;
    let begin =
        json!({"action": "evict", "query": "queue:orders", "at": "2040-01-01T00:00:00Z", "reason": "later"});
    let begun = said(&bench, "maker", "/v1/operations", begin).await.expect(201).json;
    let path = format!("/v1/operations/{}", begun["id"].as_str().unwrap());
    bench.server.set_tokens(tokens("orders")).unwrap();
    bench.server.hold_schedules().await.unwrap();
    assert_eq!(seen(&bench, "checker", &path).await.json["state"], "scheduled", "it may use its letters");
    bench.server.set_tokens(tokens("billing")).unwrap();
    bench.server.hold_schedules().await.unwrap();
    let held = seen(&bench, "checker", &path).await.json;
    assert_eq!(held["state"], "paused");
    assert_eq!(held["note"], "paused by lazaret: held: maker may no longer use all consumers of its letters");
}

/// Posts a message and waits for the open letters.
async fn posted(bench: &Bench, key: &str, payload: &'static str, open: u64) {
    let post = bench.request(Method::POST, "/v1/inbox/orders").bearer_auth(secret("feeder"));
    bench.send(post.header("lazaret-key", key).body(payload)).await.expect(202);
    eventually("the letter is there", || async {
        seen(bench, "checker", "/v1/letters/count").await.json["letters"] == open
    })
    .await;
}

async fn edited(bench: &Bench, letter: &str, payload: &str) -> Answer {
    let path = format!("/v1/letters/{letter}/payload");
    let edit = json!({"payload": payload, "reason": "quick"});
    bench.send(with_json(bench.request(Method::PUT, &path).bearer_auth(secret("maker")), &edit)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_after_the_approval_does_not_run() {
    let bench = Bench::with(people()).await;
    posted(&bench, "a", "bad", 1).await;
    let letter =
        seen(&bench, "maker", "/v1/letters").await.json["letters"][0]["id"].as_str().unwrap().to_owned();
    for edit_first in [false, true] {
        let plan = said(&bench, "maker", "/v1/plans", json!({"action": "retry", "ids": [letter]})).await;
        if edit_first {
            edited(&bench, &letter, "never seen by the checker").await.expect(200);
        }
        let begin = json!({"plan": plan.json["id"], "reason": "mended"});
        let begun = said(&bench, "maker", "/v1/operations", begin).await.expect(201).json;
        if !edit_first {
            edited(&bench, &letter, "nor this").await.expect(200);
        }
        let path = format!("/v1/operations/{}", begun["id"].as_str().unwrap());
        said(&bench, "checker", &format!("{path}/approve"), json!({"reason": "fine"})).await.expect(200);
        eventually("it is done", || async { seen(&bench, "maker", &path).await.json["state"] == "done" })
            .await;
        let items = seen(&bench, "maker", &format!("{path}/items")).await.json;
        assert_eq!(items["items"][0]["outcome"], "skipped-changed", "{items}");
        assert!(items["items"][0]["digest"].as_str().unwrap().starts_with("hmac-sha256:"), "{items}");
    }
    assert_eq!(bench.handle.stats().handled, 0, "the new payload has no `bad` in it, and would have passed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_letter_waits_for_approval_when_its_head_is_resolved() {
    let bench = Bench::with(people()).await;
    posted(&bench, "a", "bad", 1).await;
    posted(&bench, "a", "fine", 2).await;
    let letters = seen(&bench, "maker", "/v1/letters").await.json["letters"].clone();
    let of = |state: &str| {
        let mut found = letters.as_array().unwrap().iter().filter(|letter| letter["state"] == state);
        found.next().unwrap()["id"].as_str().unwrap().to_owned()
    };
    let (head, waiting) = (of("dead"), of("waiting"));
    assert_eq!(edited(&bench, &waiting, "fine").await.expect(200).json["state"], "parked");
    let resolve = format!("/v1/letters/{head}/resolve");
    said(&bench, "maker", &resolve, json!({"reason": "quick"})).await.expect(200);
    // A healthy message of another key passes, and this one does not.
    let post = bench.request(Method::POST, "/v1/inbox/orders").bearer_auth(secret("feeder"));
    bench.send(post.header("lazaret-key", "b").body("fine")).await.expect(202);
    eventually("the other key is handled", || async { bench.handle.stats().handled == 1 }).await;
    let state = seen(&bench, "maker", &format!("/v1/letters/{waiting}")).await.json["state"].clone();
    assert_eq!(state, "parked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_operation_wakes_the_consumer() {
    // A consumer that polls once an hour.
    let hour = Duration::from_secs(3600);
    let engine = EngineOptions { refresh: hour, ..Setup::default().engine };
    let bench = Bench::with(Setup { engine, ..Setup::default() }).await;
    bench.letters(&BAD, 4).await;
    bench.fix_handler();
    let begin =
        json!({"action": "retry", "query": "", "all": true, "rate": 0, "ramp": [], "reason": "mended"});
    let begun = bench.post("/v1/operations", begin).await.expect(201).json;
    bench.over(begun["id"].as_str().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_without_letters_is_done_and_says_why() {
    let bench = Bench::new().await;
    bench.letters(&[("a", "bad1")], 1).await;
    let park = json!({"action": "park", "query": "seq:a", "reason": "hold"});
    let begin = async |body: &Value| bench.post("/v1/operations", body.clone()).await.expect(201).json;
    let parked = begin(&park).await;
    bench.over(parked["id"].as_str().unwrap()).await;
    for (body, note) in [
        (json!({"action": "retry", "query": "seq:b", "reason": "mended"}), "nothing to do: no letters match"),
        (park, "nothing to do: all selected letters are excluded (already: 1)"),
    ] {
        let begun = begin(&body).await;
        assert_eq!((&begun["state"], &begun["letters"]), (&json!("done"), &json!(0)), "{begun}");
        assert_eq!(begun["note"], note);
        let shown = bench.get(&format!("/v1/operations/{}", begun["id"].as_str().unwrap())).await;
        assert_eq!(shown.json, begun, "it is stored with its note");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_begin_request_starts_one_operation() {
    let bench = Bench::new().await;
    bench.letters(&BAD, 4).await;
    let begin = || {
        let body = json!({"action": "park", "query": "seq:b", "reason": "hold"});
        with_json(bench.request(Method::POST, "/v1/operations").header("idempotency-key", "once"), &body)
    };
    let first = bench.send(begin()).await.expect(201).json;
    let second = bench.send(begin()).await.expect(201).json;
    assert_eq!(first["id"], second["id"]);
    assert_eq!(bench.get("/v1/operations").await.json["operations"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_outcomes_of_an_operation_are_lines() {
    let bench = Bench::new().await;
    bench.letters(&[("a", "bad1"), ("b", "bad2"), ("c", "bad3")], 3).await;
    bench.fix_handler();
    let begin = json!({"action": "retry", "query": "", "all": true, "reason": "mended"});
    let operation = bench.post("/v1/operations", begin).await.expect(201).json["id"].clone();
    let operation = operation.as_str().unwrap();
    bench.over(operation).await;
    let lines = async |parameters: &str| -> Vec<Value> {
        let path = format!("/v1/operations/{operation}/items{parameters}");
        let request = bench.request(Method::GET, &path).header("accept", "application/x-ndjson");
        let answer = bench.send(request).await.expect(200);
        assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
        answer.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let pages = bench.get(&format!("/v1/operations/{operation}/items")).await.expect(200).json;
    assert_eq!(json!(lines("").await), pages["items"], "the same letters as in pages");
    assert_eq!(lines("?outcome=ok").await.len(), 3);
    assert_eq!(lines("?limit=2").await.len(), 2);
    assert!(lines("?outcome=failed-again").await.is_empty());
}
