//! Texts of errors: secrets in them are redacted wherever they are shown, and cannot be found by a search.

use lazaret_api::{LetterDetail, Scope};
use lazaret_core::redaction::{Redaction, TextRules, TextSet};
use lazaret_core::store::{Actor, Audit, AuditNote, Comment, HandOff, LetterStore, Limits, Placement};
use lazaret_core::{Failure, Letter, LetterId, LetterState, Message, Position, QueueName, Reason, Timestamp};
use lazaret_server::Options;
use reqwest::Method;
use serde_json::{Value, json};

use crate::events::Listener;
use crate::support::{Answer, Bench, ORDERS, QUEUE, Setup, encoded, secret, token, with_json};

const CARD: &str = "4111 1111 1111 1111";

fn rules() -> Redaction {
    Redaction::default().with_texts(TextRules::new([TextSet::CardNumbers], []))
}

/// A dead letter whose error, diagnostics and comments have a card number.
fn letter() -> Letter {
    let message = Message::new("m", "orders", Position::new(0, 0)).with_key("a").with_payload("{}");
    let mut letter = Letter::new(QueueName::from(QUEUE), "a".into(), message.into(), Timestamp::UNIX_EPOCH);
    letter.id = LetterId::of_import(&letter.queue, &letter.message.id);
    letter.state = LetterState::Dead;
    letter.cause = Some(Failure::new(Reason::DOMAIN_INVALID, "CardError", format!("declined card {CARD}")));
    letter.diagnostics.insert("request".to_owned(), format!("charge {CARD}"));
    letter.context.insert("kafka_dlt-exception-message".to_owned(), format!("declined card {CARD}"));
    let text = format!("is {CARD} blocked?");
    letter.comments.push(Comment { by: "ada".to_owned(), at: Timestamp::UNIX_EPOCH, text });
    letter
}

/// A server with these rules. Ada and Tess may triage, Rita and Tess may reveal, and Paul sees no payloads.
async fn bench(redaction: Redaction) -> Bench {
    let tokens = vec![
        token("ada", &[Scope::Read, Scope::Payload, Scope::Triage, Scope::Import]),
        token("rita", &[Scope::Read, Scope::Payload, Scope::Reveal]),
        token("paul", &[Scope::Read]),
        token("tess", &[Scope::Read, Scope::Triage, Scope::Reveal]),
    ];
    let options = Options { redaction, ..Options::default() };
    Bench::with(Setup { tokens, options, ..Setup::default() }).await
}

/// The same with that letter in its store.
async fn bench_with_letter() -> Bench {
    let bench = bench(rules()).await;
    let item = HandOff { letter: letter(), placement: Placement::Imported, grant: None };
    let queue = QueueName::from(QUEUE);
    bench.store.hand_off(&queue, &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
    bench
}

async fn get(bench: &Bench, name: &str, path: &str) -> Answer {
    bench.send(bench.request(Method::GET, path).bearer_auth(secret(name))).await
}

async fn post(bench: &Bench, name: &str, path: &str, body: Value) -> Answer {
    bench.send(with_json(bench.request(Method::POST, path).bearer_auth(secret(name)), &body)).await
}

async fn lines(bench: &Bench, name: &str, path: &str) -> String {
    let request = bench.request(Method::GET, path).bearer_auth(secret(name));
    bench.send(request.header("accept", "application/x-ndjson")).await.expect(200).text
}

/// The number of letters that somebody finds.
async fn found(bench: &Bench, name: &str, query: &str) -> Value {
    let count = get(bench, name, &format!("/v1/letters/count?q={}", encoded(query))).await.expect(200);
    let listed = get(bench, name, &format!("/v1/letters?q={}", encoded(query))).await.expect(200).json;
    let listed = json!(listed["letters"].as_array().unwrap().len());
    assert_eq!(count.json["letters"], listed, "{name} {query}");
    listed
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_in_error_texts_leave_no_reading_route() {
    let bench = bench_with_letter().await;
    let id = letter().id;
    let group = format!("{}@{QUEUE}", letter().cause.unwrap().fingerprint);
    let of_group = format!("/v1/groups/{}", encoded(&group));
    let sequence = format!("/v1/sequences?queue={}&sequence=a", encoded(QUEUE));
    for name in ["ada", "rita", "paul"] {
        for path in [
            "/v1/letters",
            &format!("/v1/letters/{id}"),
            "/v1/groups",
            &of_group,
            &format!("{of_group}/facets"),
            &sequence,
        ] {
            let text = get(&bench, name, path).await.expect(200).text;
            assert!(
                text.contains("declined card [redacted]") && !text.contains(CARD),
                "{name} {path}: {text}"
            );
        }
        let summaries = lines(&bench, name, "/v1/letters").await;
        assert!(summaries.contains("declined card [redacted]") && !summaries.contains(CARD), "{summaries}");
    }
    let full = lines(&bench, "ada", "/v1/letters?view=full").await;
    assert!(full.contains("declined card [redacted]") && !full.contains(CARD), "{full}");
    let detail = get(&bench, "ada", &format!("/v1/letters/{id}")).await.expect(200).json;
    let redacted = ["error", "diagnostics.request", "context.kafka_dlt-exception-message", "comments"];
    assert_eq!(detail["content"]["redacted"], json!(redacted));
    assert_eq!(detail["group"], group, "redaction changes no group");
    let comment = post(&bench, "ada", &format!("/v1/letters/{id}/comments"), json!({"text": "seen"})).await;
    assert!(!comment.expect(200).text.contains(CARD));
    let reveal = json!({"reason": "refund"});
    let revealed = post(&bench, "rita", &format!("/v1/letters/{id}/reveal"), reveal).await.expect(200);
    assert!(revealed.text.contains(&format!("declined card {CARD}")), "{}", revealed.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_compares_what_the_caller_is_shown() {
    let bench = bench_with_letter().await;
    for (query, shown, exact) in [
        ("error:4111", 0, 1),
        ("error:\"card 4\"", 0, 1),
        ("error:*1111", 0, 1),
        ("4111", 0, 1),
        ("-error:4111", 1, 0),
        ("state:dead -(error:4111 or type:x)", 1, 0),
        ("state:dead (type:x or error:4111)", 0, 1),
        ("error:declined", 1, 1),
        ("declined reason:DOMAIN_INVALID", 1, 1),
        ("-error:declined", 0, 0),
    ] {
        assert_eq!((found(&bench, "ada", query).await, query), (json!(shown), query));
        assert_eq!((found(&bench, "rita", query).await, query), (json!(exact), query));
        // What a plan selects tells as much.
        let plan = json!({"action": "retry", "query": query});
        let plan = post(&bench, "ada", "/v1/plans", plan).await.expect(201).json;
        assert_eq!((&plan["letters"], query), (&json!(shown), query));
    }
    for (query, shown, exact) in [("error:4111", 0, 1), ("-error:4111", 1, 0), ("error:declined", 1, 1)] {
        for (name, expected) in [("ada", shown), ("rita", exact)] {
            let groups =
                get(&bench, name, &format!("/v1/groups?q={}", encoded(query))).await.expect(200).json;
            assert_eq!(groups["groups"].as_array().unwrap().len(), expected, "{name} {query}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn comments_and_imports_are_redacted_before_they_are_stored() {
    let bench = bench(rules().before_storing()).await;
    let line = serde_json::to_string(&LetterDetail::of(&letter(), true)).unwrap();
    let request = bench.request(Method::POST, "/v1/letters/import").bearer_auth(secret("ada"));
    let imported = bench.send(request.header("content-type", "application/x-ndjson").body(line)).await;
    assert_eq!(imported.expect(200).json["taken"], 1);
    let id = get(&bench, "ada", "/v1/letters").await.expect(200).json["letters"][0]["id"].take();
    let letter = format!("/v1/letters/{}", id.as_str().unwrap());
    let comment = json!({"text": format!("{CARD} is theirs")});
    post(&bench, "ada", &format!("{letter}/comments"), comment).await.expect(200);
    let revealed =
        post(&bench, "rita", &format!("{letter}/reveal"), json!({"reason": "refund"})).await.expect(200);
    assert!(!revealed.text.contains(CARD), "{}", revealed.text);
    assert_eq!(revealed.json["comments"][1]["text"], "[redacted] is theirs");
    let group = self::letter().cause.unwrap().fingerprint.to_string();
    assert_eq!(revealed.json["cause"]["fingerprint"], group);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_texts_of_the_audit_are_redacted() {
    let bench = bench(rules()).await;
    // Earlier versions wrote the whole failure of a skipped letter.
    let id = letter().id.to_string();
    let by = Actor::engine(format!("DOMAIN_INVALID in phase handle: CardError: declined card {CARD}"));
    let note =
        AuditNote { action: "skip".to_owned(), subject: id.clone(), after: Some("skipped".to_owned()) };
    bench.store.note(&note, &by).await.unwrap();
    for name in ["paul", "rita"] {
        for path in ["/v1/audit", "/v1/audit?order=latest", &format!("/v1/audit?subject={id}")] {
            let text = get(&bench, name, path).await.expect(200).text;
            assert!(text.contains("declined card [redacted]") && !text.contains(CARD), "{path}: {text}");
        }
        let text = lines(&bench, name, "/v1/audit").await;
        assert!(text.contains("declined card [redacted]") && !text.contains(CARD), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_who_may_reveal_has_searched_for_is_redacted_for_others() {
    let bench = bench_with_letter().await;
    let query = format!("error:\"{CARD}\"");
    let plan = json!({"action": "retry", "query": query});
    let plan = post(&bench, "tess", "/v1/plans", plan).await.expect(201).json;
    assert_eq!((&plan["letters"], &plan["query"]), (&json!(1), &json!(query)));
    let path = format!("/v1/plans/{}", plan["id"].as_str().unwrap());
    assert_eq!(get(&bench, "rita", &path).await.expect(200).json["query"], json!(query));
    assert_eq!(get(&bench, "paul", &path).await.expect(200).json["query"], "error:\"[redacted]\"");
    let listed = get(&bench, "paul", "/v1/plans").await.expect(200).text;
    assert!(!listed.contains(CARD), "{listed}");
    let export = json!({"query": query, "reason": "refund"});
    post(&bench, "rita", "/v1/letters/export", export).await.expect(200);
    let audit = get(&bench, "paul", "/v1/audit").await.expect(200).json["entries"].take();
    let mut entries = audit.as_array().unwrap().iter();
    let revealed = entries.find(|entry| entry["action"] == "reveal").unwrap();
    assert_eq!(revealed["subject"], "error:\"[redacted]\"");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_event_of_a_consumer_that_failed_is_redacted() {
    let bench = bench(rules()).await;
    let request = bench.request(Method::GET, "/v1/events?kind=consumer").bearer_auth(secret("paul"));
    let mut listener = Listener::open(request).await;
    bench.registry.failed(ORDERS, format!("stopped at message m: declined card {CARD}"));
    let heard = listener.next(&bench).await;
    assert_eq!(heard.data["consumer-state"], "failed");
    assert_eq!(heard.data["why"], "stopped at message m: declined card [redacted]");
}
