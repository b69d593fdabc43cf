//! Secrets in letters, plans, operations and the audit of two consumers, and what a caller needs to see each of them.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use jiff::Timestamp;
use lazaret_core::store::{HandOff, LetterStore, Limits, Placement};
use lazaret_core::{Failure, Letter, LetterState, Message, Position, QueueName, Reason};
use reqwest::Method;
use serde_json::{Value, json};

use super::ADMIN;
use crate::support::{Bench, ORDERS, eventually, secret, with_json};

/// A consumer that runs elsewhere, and that limited tokens may not use. Its name is a secret, too.
pub(super) const TREASURY: &str = "treasury";

/// What a caller needs to see a secret of a consumer that it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// The scope `read`.
    Read,
    /// The scope `payload`, too.
    Payload,
    /// The scope `reveal`, too, and to ask for it.
    Reveal,
    /// The scopes `read` and `reveal`: the query of somebody who searched for a redacted value.
    MayReveal,
    /// Nobody may see it.
    Never,
}

/// The secrets of each consumer, by their place.
const PLACES: [(&str, Needs); 18] = [
    ("key", Needs::Read),
    ("id", Needs::Read),
    ("type", Needs::Read),
    ("error-type", Needs::Read),
    ("error", Needs::Read),
    ("diagnostics", Needs::Read),
    ("comment", Needs::Read),
    ("edit-reason", Needs::Read),
    ("plan-reason", Needs::Read),
    ("operation-reason", Needs::Read),
    ("note", Needs::Payload),
    ("old-note", Needs::Payload),
    ("tenant", Needs::Payload),
    ("card", Needs::Reveal),
    ("old-card", Needs::Reveal),
    ("authorization", Needs::Reveal),
    ("error-card", Needs::Reveal),
    ("plan-query", Needs::MayReveal),
];

/// The secrets of one consumer only: those of a letter that is stored while others listen, those of a failure, and those of what concerns
/// several consumers.
const MORE_PLACES: [(&str, &str, Needs); 7] = [
    (ORDERS, "live-id", Needs::Read),
    (ORDERS, "live-key", Needs::Read),
    (ORDERS, "live-note", Needs::Payload),
    (ORDERS, "live-card", Needs::Reveal),
    (TREASURY, "failure", Needs::Read),
    // The reason of a plan with letters of both consumers.
    (TREASURY, "mixed-reason", Needs::Read),
    // An export may have letters of all consumers, so its query is for nobody who is limited.
    (TREASURY, "export-query", Needs::MayReveal),
];

/// A text that only some may see.
#[derive(Debug)]
pub(super) struct Secret {
    pub(super) text: String,
    pub(super) consumer: &'static str,
    pub(super) needs: Needs,
    forms: Vec<String>,
}

impl Secret {
    pub(super) fn new(text: impl Into<String>, consumer: &'static str, needs: Needs) -> Self {
        let text = text.into();
        let forms = forms(&text);
        Self { text, consumer, needs, forms }
    }

    /// Returns `true` if a text contains the secret, as it is or in base64.
    pub(super) fn is_in(&self, text: &str) -> bool {
        self.forms.iter().any(|form| text.contains(form.as_str()))
    }
}

/// A text, and the parts that are in every base64 text of something that contains it.
fn forms(text: &str) -> Vec<String> {
    let mut forms = vec![text.to_owned()];
    for before in 0..3 {
        let bytes = [&b"   "[..before], text.as_bytes()].concat();
        // A character has six bits: the first ones depend on what comes before, and the last one on what follows.
        let (first, end) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
        for alphabet in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
            forms.push(alphabet.encode(&bytes)[first..end].to_owned());
        }
    }
    forms
}

/// The secret of a consumer at a place.
pub(super) fn text(consumer: &str, place: &str) -> String {
    format!("{consumer}.{place}.secret")
}

/// What can be named in requests.
#[derive(Debug)]
pub(super) struct Things {
    pub(super) consumer: &'static str,
    pub(super) letter: String,
    pub(super) groups: Vec<String>,
    pub(super) plans: Vec<String>,
    pub(super) operation: String,
}

impl Things {
    pub(super) fn queue(&self) -> String {
        QueueName::of(self.consumer, self.consumer).to_string()
    }
}

/// What was planted: of the consumer of limited tokens, and of the other one.
pub(super) struct Planted {
    pub(super) own: Things,
    pub(super) hidden: Things,
    pub(super) secrets: Vec<Secret>,
}

/// Stores letters with secrets, and makes plans, operations and entries of the audit about them.
pub(super) async fn plant(bench: &Bench) -> Planted {
    let own = store_letter(bench, ORDERS).await;
    let hidden = store_letter(bench, TREASURY).await;
    let mixed = json!({"action": "retry", "ids": [own, hidden], "reason": text(TREASURY, "mixed-reason")});
    let mixed = id_of(&admin(bench, Method::POST, "/v1/plans", mixed).await);
    let own = things(bench, ORDERS, own).await;
    let mut hidden = things(bench, TREASURY, hidden).await;
    hidden.plans.push(mixed);
    let query = format!("payload./card/number:{}", text(TREASURY, "export-query"));
    admin(bench, Method::POST, "/v1/letters/export", json!({"query": query, "reason": "audit of cards"}))
        .await;
    let mut secrets = vec![Secret::new(TREASURY, TREASURY, Needs::Read)];
    for things in [&own, &hidden] {
        let consumer = things.consumer;
        secrets.push(Secret::new(&things.letter, consumer, Needs::Read));
        secrets.extend(PLACES.map(|(place, needs)| Secret::new(text(consumer, place), consumer, needs)));
    }
    secrets.extend(
        MORE_PLACES.map(|(consumer, place, needs)| Secret::new(text(consumer, place), consumer, needs)),
    );
    Planted { own, hidden, secrets }
}

fn payload(consumer: &str, note: &str, card: &str) -> String {
    json!({"note": text(consumer, note), "card": {"number": text(consumer, card)}}).to_string()
}

/// Stores a dead letter. Returns its id.
async fn store_letter(bench: &Bench, consumer: &str) -> String {
    let queue = QueueName::of(consumer, consumer);
    let of = |place: &str| text(consumer, place);
    let message = Message::new(of("id").as_str(), consumer, Position::new(0, 0))
        .with_key(of("key"))
        .with_type(of("type"))
        .with_header("tenant", of("tenant"))
        .with_header("Authorization", of("authorization"))
        .with_payload(payload(consumer, "old-note", "old-card"));
    let now = Timestamp::now();
    let mut letter = Letter::new(queue.clone(), of("key").as_str().into(), message.into(), now);
    letter.state = LetterState::Dead;
    let error = format!("{} {}", of("error"), of("error-card"));
    letter.cause = Some(Failure::new(Reason::DOMAIN_INVALID, of("error-type"), error));
    letter.diagnostics.insert("note".to_owned(), of("diagnostics"));
    (letter.first_failed_at, letter.last_failed_at) = (Some(now), Some(now));
    let id = letter.id.to_string();
    let item = HandOff { letter, placement: Placement::Open, grant: None };
    for placed in bench.store.hand_off(&queue, &Limits::NONE, vec![item]).await.unwrap() {
        placed.unwrap();
    }
    id
}

/// Edits a letter and comments on it, and makes a plan and an operation with it.
async fn things(bench: &Bench, consumer: &'static str, letter: String) -> Things {
    let of = |place: &str| text(consumer, place);
    let path = format!("/v1/letters/{letter}");
    let edit = json!({"payload": payload(consumer, "note", "card"), "reason": of("edit-reason")});
    admin(bench, Method::PUT, &format!("{path}/payload"), edit).await;
    admin(bench, Method::POST, &format!("{path}/comments"), json!({"text": of("comment")})).await;
    let plan = json!({"action": "evict", "ids": [letter], "reason": of("plan-reason")});
    let plan = id_of(&admin(bench, Method::POST, "/v1/plans", plan).await);
    // The query compares a redacted value, and selects the letter nevertheless.
    let query = format!("consumer:{consumer} (payload./card/number:{} or state:dead)", of("plan-query"));
    let searched = admin(bench, Method::POST, "/v1/plans", json!({"action": "evict", "query": query})).await;
    assert_eq!(searched["letters"], 1, "{searched}");
    // It never begins.
    let operation = json!({
        "action": "park", "ids": [letter], "at": "2040-01-01T00:00:00Z", "reason": of("operation-reason"),
    });
    let operation = admin(bench, Method::POST, "/v1/operations", operation).await;
    let path = format!("/v1/groups?q=consumer%3A{consumer}");
    let groups = bench.send(bench.request(Method::GET, &path).bearer_auth(secret(ADMIN))).await;
    let groups = groups.expect(200).json["groups"].as_array().unwrap().iter().map(id_of).collect();
    let plans = vec![plan, id_of(&searched), operation["plan"].as_str().unwrap().to_owned()];
    Things { consumer, letter, groups, plans, operation: id_of(&operation) }
}

/// Stores a letter while others listen, fails the other consumer, and changes the letters of both. The last event is about the
/// assignment of the own letter.
pub(super) async fn plant_live(bench: &Bench, planted: &Planted) {
    let line = json!({
        "id": text(ORDERS, "live-id"), "key": text(ORDERS, "live-key"),
        "payload": {"bad": true, "note": text(ORDERS, "live-note"), "card": {"number": text(ORDERS, "live-card")}},
    });
    let post = bench.request(Method::POST, "/v1/inbox/orders/batch").bearer_auth(secret(ADMIN));
    bench.send(post.header("content-type", "application/x-ndjson").body(line.to_string())).await.expect(202);
    let count = format!("/v1/letters/count?q=message%3A{}", text(ORDERS, "live-id"));
    eventually("the message is a letter", || async {
        let counted = bench.send(bench.request(Method::GET, &count).bearer_auth(secret(ADMIN))).await;
        counted.expect(200).json["letters"] == 1
    })
    .await;
    bench.registry.failed(TREASURY, text(TREASURY, "failure"));
    for things in [&planted.hidden, &planted.own] {
        let path = format!("/v1/letters/{}/assignee", things.letter);
        admin(bench, Method::PUT, &path, json!({"name": "ada"})).await;
    }
}

/// The letter of the other consumer as an administrator sees it.
pub(super) async fn hidden_letter(bench: &Bench, planted: &Planted) -> String {
    let path = format!("/v1/letters/{}", planted.hidden.letter);
    bench.send(bench.request(Method::GET, &path).bearer_auth(secret(ADMIN))).await.expect(200).text
}

async fn admin(bench: &Bench, method: Method, path: &str, body: Value) -> Value {
    let answer = bench.send(with_json(bench.request(method, path).bearer_auth(secret(ADMIN)), &body)).await;
    assert!(answer.status < 300, "{path}: {}", answer.text);
    answer.json
}

fn id_of(value: &Value) -> String {
    value["id"].as_str().unwrap().to_owned()
}
