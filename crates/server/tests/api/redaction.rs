//! Redaction: markers for everybody, exact values for those who may reveal and say why.

use lazaret_api::Scope;
use lazaret_core::LetterId;
use lazaret_core::redaction::Redaction;
use lazaret_core::store::{Action, Actor, Audit, AuditEntry, PayloadDigest, audit_hash_text, plan_hash};
use lazaret_server::Options;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Bench, Setup, encoded, eventually, secret, token, with_json};

const CARD: &str = "4111-1111";
const BEARER: &str = "Bearer s3cr3t";
const PAYLOAD: &str = r#"{"bad": 1.0, "card": {"number": "4111-1111"}, "amount": 5}"#;

/// Ada may read payloads, Rita may also reveal, Ed edits without revealing, Eve edits and may reveal, Paul sees no payloads, and the blind
/// editor does not see what they replace. Of the producers, one may reveal.
async fn bench() -> (Bench, String) {
    let redaction = Redaction::new(["authorization"], ["/card/number".parse().unwrap()]);
    let tokens = vec![
        token("ada", &[Scope::Read, Scope::Payload, Scope::Triage, Scope::Import]),
        token("rita", &[Scope::Read, Scope::Payload, Scope::Reveal, Scope::Import]),
        token("ed", &[Scope::Read, Scope::Payload, Scope::Edit]),
        token("eve", &[Scope::Read, Scope::Payload, Scope::Reveal, Scope::Edit]),
        token("paul", &[Scope::Read, Scope::Reveal]),
        token("blind", &[Scope::Read, Scope::Reveal, Scope::Edit]),
        token("feed", &[Scope::Ingest]),
        token("revealing-feed", &[Scope::Ingest, Scope::Reveal]),
    ];
    let options = Options { redaction, ..Options::default() };
    let bench = Bench::with(Setup { tokens, options, ..Setup::default() }).await;
    let line = format!(
        r#"{{"id": "m", "key": "a", "headers": {{"Authorization": "{BEARER}", "tenant": "acme"}}, "payload": {PAYLOAD}}}"#
    );
    let post = bench.request(Method::POST, "/v1/inbox/orders/batch").bearer_auth(secret("feed"));
    bench.send(post.header("content-type", "application/x-ndjson").body(line)).await.expect(202);
    eventually("a letter", || async { first(&bench).await.is_string() }).await;
    let id = first(&bench).await.as_str().unwrap().to_owned();
    (bench, id)
}

/// The id of the latest letter; null if there is none yet.
async fn first(bench: &Bench) -> Value {
    let letters = get(bench, "ada", "/v1/letters").await.expect(200).json;
    letters["letters"][0]["id"].clone()
}

async fn get(bench: &Bench, name: &str, path: &str) -> Answer {
    bench.send(bench.request(Method::GET, path).bearer_auth(secret(name))).await
}

async fn post(bench: &Bench, name: &str, path: &str, body: Value) -> Answer {
    bench.send(with_json(bench.request(Method::POST, path).bearer_auth(secret(name)), &body)).await
}

async fn lines(bench: &Bench, name: &str) -> String {
    let request = bench.request(Method::GET, "/v1/letters?view=full").bearer_auth(secret(name));
    bench.send(request.header("accept", "application/x-ndjson")).await.expect(200).text
}

/// The actions of the audit, with who and why.
async fn audit(bench: &Bench) -> Vec<String> {
    let entries = get(bench, "ada", "/v1/audit").await.expect(200).json["entries"].take();
    let line = |entry: &Value| {
        let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        format!("{} {} {} {}", text("who"), text("action"), text("subject"), text("why"))
    };
    entries.as_array().unwrap().iter().map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn redacted_values_leave_no_reading_route() {
    let (bench, id) = bench().await;
    let letter = format!("/v1/letters/{id}");
    let group = get(&bench, "rita", "/v1/groups").await.json["groups"][0]["id"].as_str().unwrap().to_owned();
    // Also for those who may reveal: nothing is revealed by accident.
    for name in ["ada", "rita", "ed"] {
        let detail = get(&bench, name, &letter).await.expect(200);
        let content = &detail.json["content"];
        assert_eq!(content["redacted"], json!(["header.Authorization", "payload./card/number"]));
        assert_eq!(content["payload"], PAYLOAD.replace(CARD, "[redacted]"), "the rest keeps its bytes");
        assert_eq!(content["headers"][0], json!({"name": "Authorization", "value": "[redacted]"}));
        assert_eq!(content["headers"][1]["value"], "acme");
        let payload = get(&bench, name, &format!("{letter}/payload")).await.expect(200);
        let facets = get(&bench, name, &format!("/v1/groups/{}/facets", encoded(&group))).await.expect(200);
        assert!(facets.text.contains("header.tenant"), "{}", facets.text);
        for answer in [detail.text, payload.text, facets.text, lines(&bench, name).await] {
            assert!(!answer.contains(CARD) && !answer.contains("s3cr3t"), "{name}: {answer}");
        }
    }
    let hidden = get(&bench, "paul", &letter).await.expect(200).json["content"].take();
    assert_eq!((&hidden["payload-state"], &hidden["redacted"]), (&json!("hidden"), &Value::Null));
    assert!(audit(&bench).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reveal_needs_the_right_and_a_reason_and_leaves_an_audit_entry() {
    let (bench, id) = bench().await;
    let reveal = format!("/v1/letters/{id}/reveal");
    let why = json!({"reason": "refund of order 7"});
    post(&bench, "ada", &reveal, why.clone()).await.problem(403, "LZ0207");
    post(&bench, "paul", &reveal, why.clone()).await.problem(403, "LZ0207");
    for blank in [json!({}), json!({"reason": " "})] {
        post(&bench, "rita", &reveal, blank).await.problem(400, "LZ0210");
    }
    let missing = "/v1/letters/00000000-0000-8000-8000-000000000000/reveal";
    post(&bench, "rita", missing, why.clone()).await.problem(404, "LZ0203");
    assert!(audit(&bench).await.is_empty(), "nothing was revealed");
    let content = post(&bench, "rita", &reveal, why).await.expect(200).json["content"].take();
    assert_eq!((&content["payload"], &content["redacted"]), (&json!(PAYLOAD), &Value::Null));
    assert_eq!(content["headers"][0]["value"], BEARER);
    assert_eq!(audit(&bench).await, [format!("rita reveal {id} refund of order 7")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_is_exact_only_for_those_who_may_reveal() {
    let (bench, _) = bench().await;
    let import = async |name: &str, export: String| {
        let request = bench.request(Method::POST, "/v1/letters/import?queue=orders%2Forders");
        let request = request.header("content-type", "application/x-ndjson").bearer_auth(secret(name));
        bench.send(request.body(export)).await.expect(200).json
    };
    let refused = import("ada", lines(&bench, "ada").await).await;
    assert_eq!((&refused["failures"], &refused["taken"]), (&json!(1), &json!(0)), "{refused}");
    assert!(refused["failed"][0]["why"].as_str().unwrap().contains("reveal"), "{refused}");
    let request = json!({"query": "state:dead", "reason": "moving to another store"});
    post(&bench, "ada", "/v1/letters/export", request.clone()).await.problem(403, "LZ0207");
    post(&bench, "rita", "/v1/letters/export", json!({"query": "state:dead"})).await.problem(400, "LZ0210");
    let exact = post(&bench, "rita", "/v1/letters/export", request).await.expect(200).text;
    let letter: Value = serde_json::from_str(exact.trim()).unwrap();
    assert_eq!(letter["content"]["payload"], PAYLOAD);
    assert_eq!(import("rita", exact).await["known"], 1);
    let audit = audit(&bench).await;
    assert_eq!(audit[0], "rita reveal state:dead moving to another store", "{audit:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn redacted_values_cannot_be_probed_by_queries() {
    let (bench, _) = bench().await;
    let probes = ["payload./card/number:4*", "-payload./card/number:5*", "header.authorization:Bearer*"];
    for probe in probes {
        for path in ["/v1/letters", "/v1/letters/count"] {
            let path = format!("{path}?q={}", encoded(probe));
            let refused = get(&bench, "ada", &path).await.problem(403, "LZ0207");
            let detail = refused.json["detail"].as_str().unwrap();
            assert!(detail.contains("redacted") && detail.contains("reveal"), "{detail}");
            get(&bench, "rita", &path).await.expect(200);
        }
        let plan = json!({"action": "retry", "query": probe});
        post(&bench, "ada", "/v1/plans", plan).await.problem(403, "LZ0207");
    }
    // Nor guessed from the digest of a payload.
    let plan = json!({"action": "retry", "query": "state:dead"});
    let plan = post(&bench, "ada", "/v1/plans", plan).await.expect(201).json["id"].take();
    let items = format!("/v1/plans/{}/items", plan.as_str().unwrap());
    let digest = async |name| get(&bench, name, &items).await.expect(200).json["items"][0]["digest"].take();
    assert_eq!((digest("ada").await, digest("rita").await.is_string()), (Value::Null, true));
    let found = get(&bench, "ada", "/v1/letters/count?q=payload.%2Famount%3A5").await.expect(200);
    assert_eq!(found.json["letters"], 1, "values that are not redacted can be searched");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_without_the_right_keeps_what_is_redacted() {
    let (bench, id) = bench().await;
    let letter = format!("/v1/letters/{id}");
    let content = get(&bench, "ed", &letter).await.expect(200).json["content"].take();
    let edited = content["payload"].as_str().unwrap().replace("\"amount\": 5", "\"amount\": 6");
    let edit = async |body: Value| {
        let request = bench.request(Method::PUT, &format!("{letter}/payload")).bearer_auth(secret("ed"));
        bench.send(with_json(request, &body)).await
    };
    let wrong = json!({"payload": r#"{"card": [{"number": "[redacted]"}], "cards": 1}"#, "reason": "x"});
    edit(wrong).await.expect(200);
    let moved = json!({"payload": r#"{"card": {"number": "[redacted]"}}"#, "reason": "x"});
    edit(moved).await.problem(409, "LZ0218");
    edit(json!({"revert": true, "reason": "back"})).await.expect(200);
    let digest = &content["payload-digest"];
    edit(json!({"payload": edited, "expected-digest": digest, "reason": "amount"})).await.expect(200);
    edit(json!({"payload": edited, "expected-digest": digest, "reason": "again"}))
        .await
        .problem(409, "LZ0218");
    let revealed = post(&bench, "rita", &format!("{letter}/reveal"), json!({"reason": "check"})).await;
    let payload = revealed.expect(200).json["content"]["payload"].take();
    assert_eq!(payload, PAYLOAD.replace("\"amount\": 5", "\"amount\": 6"));
    // The payloads that edits replaced are redacted as well.
    let shown = get(&bench, "ed", &letter).await.expect(200).text;
    assert!(!shown.contains(CARD), "{shown}");
}

async fn put(bench: &Bench, name: &str, path: &str, body: Value) -> Answer {
    bench.send(with_json(bench.request(Method::PUT, path).bearer_auth(secret(name)), &body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redacted_value_cannot_be_guessed_offline() {
    let (bench, id) = bench().await;
    let letter = format!("/v1/letters/{id}");
    // All of the payload but the card number is known to the editor.
    let known = r#"{"card":{"number":"[redacted]"}}"#;
    put(&bench, "ed", &format!("{letter}/payload"), json!({"payload": known, "reason": "x"}))
        .await
        .expect(200);
    let exact = known.replace("[redacted]", CARD);
    let digest = PayloadDigest::of(Some(exact.as_bytes()));
    let plan = json!({"action": "retry", "ids": [id]});
    let plan = post(&bench, "ada", "/v1/plans", plan).await.expect(201).json;
    let plan_path = format!("/v1/plans/{}", plan["id"].as_str().unwrap());
    let guessed_hash = plan_hash(Action::Retry, [(id.parse::<LetterId>().unwrap(), digest)]);
    let hex = digest.to_string().replace("sha256:", "");
    for name in ["ada", "rita", "ed", "eve", "paul"] {
        for path in ["/v1/audit", "/v1/plans", &plan_path, &format!("{plan_path}/items"), &letter] {
            let text = get(&bench, name, path).await.expect(200).text;
            assert!(!text.contains(&hex) && !text.contains(&guessed_hash), "{name} {path}: {text}");
        }
    }
    let edit = async |name| {
        let entries = get(&bench, name, "/v1/audit").await.expect(200).json["entries"].take();
        let edits = entries.as_array().unwrap().iter().filter(|entry| entry["action"] == "edit");
        edits.map(|entry| (entry["before"].clone(), entry["after"].clone())).next().unwrap()
    };
    for name in ["ada", "ed"] {
        assert_eq!(edit(name).await, (json!("[redacted]"), json!("[redacted]")), "{name}: nor its size");
    }
    let (before, after) = edit("rita").await;
    assert!(before.as_str().unwrap().starts_with(&format!("{} bytes, hmac-sha256:", PAYLOAD.len())));
    // Of a letter of a plan and of the audit, those who may reveal can tell that it is the same.
    let items = get(&bench, "rita", &format!("{plan_path}/items")).await.expect(200).json;
    let of_plan = items["items"][0]["digest"].as_str().unwrap();
    assert_eq!(after, format!("{} bytes, {of_plan}", exact.len()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expected_digest_is_that_of_what_the_editor_sees() {
    let (bench, id) = bench().await;
    let path = format!("/v1/letters/{id}/payload");
    let digest = |payload: &str| PayloadDigest::of(Some(payload.as_bytes())).to_string();
    let (exact, seen) = (digest(PAYLOAD), digest(&PAYLOAD.replace(CARD, "[redacted]")));
    let edit = async |name, digest: &str| {
        let payload = PAYLOAD.replace(CARD, "[redacted]");
        put(&bench, name, &path, json!({"payload": payload, "expected-digest": digest, "reason": "x"})).await
    };
    edit("ed", &exact).await.problem(409, "LZ0218");
    edit("ed", &digest("another")).await.problem(409, "LZ0218");
    edit("ed", &seen).await.expect(200);
    edit("eve", &exact).await.expect(200);
    edit("eve", &seen).await.expect(200);
    // An editor who sees no payload has no digest, but guesses: right and wrong ones look the same, and the audit is as before.
    let before = audit(&bench).await;
    for guess in [&exact, &seen, &digest("another")] {
        let refused = edit("blind", guess).await.problem(403, "LZ0207");
        assert!(refused.json["detail"].as_str().unwrap().contains("the scope payload"), "{}", refused.text);
    }
    assert_eq!(audit(&bench).await, before);
    put(&bench, "blind", &path, json!({"payload": PAYLOAD, "reason": "x"})).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_kept_payloads_does_not_tell_the_first_one() {
    let (bench, id) = bench().await;
    let path = format!("/v1/letters/{id}/payload");
    let large = "x".repeat(2_000_000);
    for _ in 0..5 {
        put(&bench, "ed", &path, json!({"payload": large, "force": true, "reason": "x"})).await.expect(200);
    }
    for guess in [PAYLOAD, &PAYLOAD.replace(CARD, "4222-2222")] {
        let refused = put(&bench, "ed", &path, json!({"payload": guess, "reason": "x"})).await;
        let refused = refused.problem(409, "LZ0218");
        assert!(!refused.text.contains(CARD), "{}", refused.text);
    }
    put(&bench, "ed", &path, json!({"revert": true, "reason": "back"})).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_cannot_test_guesses_of_a_payload() {
    let (bench, _) = bench().await;
    let wrong = PAYLOAD.replace(CARD, "4222-2222");
    let again = async |name: &str, payload: &str| {
        let request = bench.request(Method::POST, "/v1/inbox/orders").bearer_auth(secret(name));
        bench.send(request.header("lazaret-id", "m").body(payload.to_owned())).await
    };
    let right = again("feed", PAYLOAD).await.expect(200);
    let guess = again("feed", &wrong).await.expect(200);
    assert_eq!((&right.json, &right.json["duplicate"]), (&guess.json, &json!(true)));
    // One who may reveal learns of a conflict.
    again("revealing-feed", PAYLOAD).await.expect(200);
    again("revealing-feed", &wrong).await.problem(409, "LZ0218");
    let batch = async |name: &str| {
        let line = |payload: &str| format!(r#"{{"id": "m", "payload": {payload}}}"#);
        let lines = [line(&wrong), line(PAYLOAD), line(&wrong)].join("\n");
        let request = bench.request(Method::POST, "/v1/inbox/orders/batch").bearer_auth(secret(name));
        bench.send(request.header("content-type", "application/x-ndjson").body(lines)).await.expect(200).json
    };
    let hidden = batch("feed").await;
    assert_eq!((&hidden["duplicates"], &hidden["conflicts"]), (&json!(3), &json!(0)), "{hidden}");
    assert!(!hidden["messages"].to_string().contains("conflict"), "{hidden}");
    // Also to one who may reveal, the lines of an id do not tell which of them is right.
    let shown = batch("revealing-feed").await;
    assert_eq!((&shown["duplicates"], &shown["conflicts"]), (&json!(0), &json!(3)), "{shown}");
    assert_eq!(bench.handle.stats().handled, 0, "none is taken twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_for_redacted_values_are_shown_to_those_who_may_reveal() {
    let (bench, _) = bench().await;
    let query = format!("payload./card/number:{CARD}");
    let request = json!({"query": query, "reason": "audit of cards"});
    post(&bench, "rita", "/v1/letters/export", request).await.expect(200);
    assert_eq!(audit(&bench).await, ["rita reveal [redacted] audit of cards"]);
    let entries = get(&bench, "rita", "/v1/audit").await.expect(200).json;
    assert_eq!(entries["entries"][0]["subject"], query);
    // A guess of the query is not answered: that would be a search that the audit does not know.
    let about = async |name: &str, query: &str| {
        let path = format!("/v1/audit?subject={}", encoded(query));
        get(&bench, name, &path).await.expect(200).json
    };
    let (right, wrong) = (about("ada", &query).await, about("ada", "payload./card/number:4222-2222").await);
    assert_eq!((&right, &right["entries"]), (&wrong, &json!([])));
    assert_eq!(about("ada", "[redacted]").await, wrong);
    assert_eq!(about("rita", &query).await["entries"][0]["subject"], query);
}

/// The entry of the audit that a caller was shown, with this subject instead.
fn guessed(shown: &Value, subject: &str) -> AuditEntry {
    let text = |field: &str| shown[field].as_str().unwrap().to_owned();
    let optional = |field: &str| shown[field].as_str().map(str::to_owned);
    AuditEntry {
        number: shown["number"].as_u64().unwrap(),
        at: text("at").parse().unwrap(),
        by: Actor::new(text("who"), text("via"), text("why")),
        action: text("action"),
        subject: subject.to_owned(),
        before: optional("before"),
        after: optional("after"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_head_of_the_audit_does_not_tell_what_its_entries_hide() {
    let (bench, _) = bench().await;
    let query = format!("payload./card/number:{CARD}");
    let request = json!({"query": query, "reason": "audit of cards"});
    post(&bench, "rita", "/v1/letters/export", request).await.expect(200);
    // Ada sees all fields of the entry but the query, and guesses that.
    let shown = get(&bench, "ada", "/v1/audit").await.expect(200).json["entries"][0].take();
    assert_eq!(shown["subject"], "[redacted]");
    let plain = guessed(&shown, &query).chain_hash(&[0; 32]);
    assert_eq!(bench.store.audit_head(None).await.unwrap().unwrap().hash, plain, "the guess is right");
    let check = get(&bench, "ada", "/v1/audit/verify").await.expect(200).json;
    let (plain, sealed) = (audit_hash_text(&plain), check["hash"].as_str().unwrap());
    assert!(!sealed.contains(&plain) && sealed.starts_with("hmac-sha256:"), "{check}");
    let noted = async |name: &str, hash: &str| {
        let path = format!("/v1/audit/verify?number=1&hash={}", encoded(hash));
        get(&bench, name, &path).await
    };
    // Who has noted the head compares it later.
    assert_eq!(noted("ada", sealed).await.expect(200).json["ok"], true);
    assert_eq!(noted("ada", &sealed.to_uppercase()).await.expect(200).json["ok"], true);
    let other = format!("hmac-sha256:{plain}");
    assert_eq!(noted("ada", &other).await.expect(200).json["broken"], 1);
    // A head that an earlier version showed is a guess as well.
    let wrong = audit_hash_text(&guessed(&shown, "payload./card/number:4222-2222").chain_hash(&[0; 32]));
    for guess in [&plain, &wrong] {
        noted("ada", guess).await.problem(403, "LZ0207");
    }
    assert_eq!(noted("rita", &plain).await.expect(200).json["ok"], true);
    assert_eq!(noted("rita", &wrong).await.expect(200).json["broken"], 1);
}
