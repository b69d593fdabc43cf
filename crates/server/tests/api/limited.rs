//! Tokens that are limited to consumers: what they see of operations and of the audit.

use std::collections::BTreeSet;

use jiff::Timestamp;
use lazaret_api::Scope;
use lazaret_core::store::{Actor, Audit, AuditNote, HandOff, LetterStore, Limits, Placement};
use lazaret_core::{Failure, Letter, LetterState, Message, Position, QueueName, Reason};
use lazaret_server::Token;
use reqwest::Method;
use serde_json::{Value, json};

use crate::events::Listener;
use crate::support::{Answer, Bench, ORDERS, Setup, secret, token, with_json};

/// A consumer that runs elsewhere: nothing happens to its letters here.
const BILLING: &str = "billing";
const NOBODY: &str = "00000000-0000-8000-8000-000000000000";

/// One person who may do everything, and one for each consumer.
async fn bench() -> Bench {
    let limited = |name: &str, consumer: &str| Token {
        consumers: vec![consumer.to_owned()],
        ..token(name, &[Scope::Admin])
    };
    let tokens = vec![token("admin", &[Scope::Admin]), limited("own", ORDERS), limited("other", BILLING)];
    Bench::with(Setup { tokens, ..Setup::default() }).await
}

/// Stores a dead letter. Returns its id.
async fn dead_letter(bench: &Bench, consumer: &str, key: &str) -> String {
    let queue = QueueName::of(consumer, consumer);
    let message =
        Message::new(key, consumer, Position::new(0, 0)).with_key(key.to_owned()).with_payload("{}");
    let now = Timestamp::now();
    let mut letter = Letter::new(queue.clone(), key.into(), message.into(), now);
    letter.state = LetterState::Dead;
    letter.cause = Some(Failure::new(Reason::DOMAIN_INVALID, "Invalid", "no such order"));
    (letter.first_failed_at, letter.last_failed_at) = (Some(now), Some(now));
    let id = letter.id.to_string();
    let item = HandOff { letter, placement: Placement::Open, grant: None };
    for placed in bench.store.hand_off(&queue, &Limits::NONE, vec![item]).await.unwrap() {
        placed.unwrap();
    }
    id
}

async fn get(bench: &Bench, name: &str, path: &str) -> Answer {
    bench.send(bench.request(Method::GET, path).bearer_auth(secret(name))).await
}

async fn post(bench: &Bench, name: &str, path: &str, body: Value) -> Answer {
    bench.send(with_json(bench.request(Method::POST, path).bearer_auth(secret(name)), &body)).await
}

/// Starts an operation that parks these letters. Returns its id.
async fn park(bench: &Bench, name: &str, ids: &[&str]) -> String {
    let begin = json!({"action": "park", "ids": ids, "reason": "test"});
    let begun = post(bench, name, "/v1/operations", begin).await.expect(201).json;
    begun["id"].as_str().unwrap().to_owned()
}

/// All values of a field in a list, read in pages of this size.
async fn all(bench: &Bench, name: &str, path: &str, list: &str, field: &str, limit: usize) -> Vec<String> {
    let separator = if path.contains('?') { '&' } else { '?' };
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page = get(bench, name, &format!("{path}{separator}limit={limit}{after}")).await.expect(200).json;
        let values = page[list].as_array().unwrap().iter().map(|one| one[field].as_str().unwrap().to_owned());
        found.extend(values);
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return found,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_token_lists_the_operations_of_its_consumers_only() {
    let bench = bench().await;
    let (first, second) = (dead_letter(&bench, ORDERS, "a").await, dead_letter(&bench, ORDERS, "b").await);
    let (third, fourth) = (dead_letter(&bench, BILLING, "a").await, dead_letter(&bench, BILLING, "b").await);
    let of_own = park(&bench, "own", &[&first]).await;
    let of_other = park(&bench, "other", &[&third]).await;
    let of_both = park(&bench, "admin", &[&second, &fourth]).await;
    let without_letters = park(&bench, "admin", &[NOBODY]).await;
    let own_without_letters = park(&bench, "other", &[NOBODY]).await;
    for limit in [1, 50] {
        let operations =
            async |name: &str| all(&bench, name, "/v1/operations", "operations", "id", limit).await;
        assert_eq!(operations("own").await, [of_own.as_str()], "{limit}");
        assert_eq!(operations("other").await, [own_without_letters.as_str(), of_other.as_str()], "{limit}");
        let every = [&own_without_letters, &without_letters, &of_both, &of_other, &of_own];
        assert_eq!(operations("admin").await, every.map(String::as_str), "{limit}");
    }
    for hidden in [&of_own, &of_both, &without_letters] {
        let path = format!("/v1/operations/{hidden}");
        get(&bench, "other", &path).await.problem(404, "LZ0203");
        get(&bench, "admin", &path).await.expect(200);
    }
    // Nobody runs what belongs to billing: its operations stay under way.
    let status = get(&bench, "other", "/v1/status").await.expect(200).json;
    let under_way = status["operations"].as_array().unwrap();
    assert_eq!(under_way.len(), 1, "{status}");
    assert_eq!(under_way[0]["id"], of_other.as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_token_lists_the_plans_of_its_consumers_only() {
    let bench = bench().await;
    let (first, second) = (dead_letter(&bench, ORDERS, "a").await, dead_letter(&bench, BILLING, "a").await);
    let mut frozen = Vec::new();
    for ids in [vec![&first], vec![&second], vec![&first, &second]] {
        let request = json!({"action": "retry", "ids": ids});
        let plan = post(&bench, "admin", "/v1/plans", request).await.expect(201).json;
        frozen.push(plan["id"].as_str().unwrap().to_owned());
    }
    for limit in [1, 50] {
        let plans = async |name: &str| all(&bench, name, "/v1/plans", "plans", "id", limit).await;
        assert_eq!(plans("own").await, frozen[..1], "{limit}");
        assert_eq!(plans("other").await, frozen[1..2], "{limit}");
        assert_eq!(plans("admin").await.len(), 3, "{limit}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_token_reads_the_audit_of_its_consumers_only() {
    let bench = bench().await;
    let (of_orders, of_billing) =
        (dead_letter(&bench, ORDERS, "a").await, dead_letter(&bench, BILLING, "a").await);
    let reason = || json!({"reason": "known bug"});
    post(&bench, "own", &format!("/v1/letters/{of_orders}/evict"), reason()).await.expect(200);
    post(&bench, "other", &format!("/v1/letters/{of_billing}/evict"), reason()).await.expect(200);
    let operation = park(&bench, "other", &[&dead_letter(&bench, BILLING, "b").await]).await;
    post(&bench, "admin", &format!("/v1/consumers/{ORDERS}/pause"), reason()).await.expect(200);
    let by = Actor::new("admin", "api", "test");
    for (action, subject) in [
        ("import", "billing/billing"),
        // Another consumer whose name begins like that of the token.
        ("import", "billing-eu/billing"),
        ("pause", "billing: replay"),
        ("pause", "billing-eu: replay"),
        ("reveal", "all open letters"),
    ] {
        let note = AuditNote { action: action.to_owned(), subject: subject.to_owned(), after: None };
        bench.store.note(&note, &by).await.unwrap();
    }
    let mut expected = [of_billing.as_str(), &operation, "billing/billing", "billing: replay"];
    for limit in [1, 3, 50] {
        let found = all(&bench, "other", "/v1/audit", "entries", "subject", limit).await;
        assert_eq!(found, expected, "{limit}");
    }
    let lines = bench.request(Method::GET, "/v1/audit").bearer_auth(secret("other"));
    let lines = bench.send(lines.header("accept", "application/x-ndjson")).await.expect(200).text;
    let subject = |line: &str| serde_json::from_str::<Value>(line).unwrap()["subject"].clone();
    assert_eq!(lines.lines().map(subject).collect::<Vec<_>>(), expected.map(Value::from));
    expected.reverse();
    for limit in [1, 3, 50] {
        let found = all(&bench, "other", "/v1/audit?order=latest", "entries", "subject", limit).await;
        assert_eq!(found, expected, "{limit}");
    }
    let found = all(&bench, "own", "/v1/audit", "entries", "subject", 50).await;
    assert_eq!(found, [of_orders.as_str(), "orders: consumer"]);
    for (name, subject, found) in
        [("other", &of_billing, 1), ("other", &of_orders, 0), ("admin", &of_orders, 1)]
    {
        let path = format!("/v1/audit?subject={subject}");
        let entries = get(&bench, name, &path).await.expect(200).json["entries"].clone();
        assert_eq!(entries.as_array().map(Vec::len), Some(found), "{name}: {entries}");
    }
    let every = all(&bench, "admin", "/v1/audit", "entries", "subject", 50).await;
    assert_eq!(every.len(), 9, "{every:?}");
    // Its result counts the entries of all consumers.
    get(&bench, "other", "/v1/audit/verify").await.problem(403, "LZ0207");
}

/// Connects to the event stream.
async fn listen(bench: &Bench, name: &str, path: &str) -> Listener {
    Listener::open(bench.client.get(format!("{}{path}", bench.base)).bearer_auth(secret(name))).await
}

/// The operations that a listener hears of, up to the comment on a letter of this consumer, and until there are this many: the latest
/// event of an operation, of its end, may come after the comment.
async fn operations_heard(
    bench: &Bench,
    listener: &mut Listener,
    consumer: &str,
    least: usize,
) -> BTreeSet<String> {
    let (mut heard, mut commented) = (BTreeSet::new(), false);
    while !commented || heard.len() < least {
        let event = listener.next(bench).await;
        match event.event.as_str() {
            "operation" => {
                heard.insert(event.data["operation"]["id"].as_str().unwrap().to_owned());
            }
            "letter-changed" if event.data["action"] == "comment" && event.data["consumer"] == consumer => {
                commented = true;
            }
            _ => {}
        }
    }
    heard
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_token_hears_of_the_operations_of_its_consumers_only() {
    let bench = bench().await;
    let (first, second) = (dead_letter(&bench, ORDERS, "a").await, dead_letter(&bench, ORDERS, "b").await);
    let (third, fourth) = (dead_letter(&bench, BILLING, "a").await, dead_letter(&bench, BILLING, "b").await);
    let people = [("admin", BILLING), ("own", ORDERS), ("other", BILLING)];
    let mut listeners = Vec::new();
    for (name, consumer) in people {
        let each = listen(&bench, name, "/v1/events").await;
        listeners.push((name, consumer, each, listen(&bench, name, "/v1/events?latest=true").await));
    }
    let of_own = park(&bench, "own", &[&first]).await;
    let of_other = park(&bench, "other", &[&third]).await;
    let of_both = park(&bench, "admin", &[&second, &fourth]).await;
    let without_letters = park(&bench, "admin", &[NOBODY]).await;
    let other_without_letters = park(&bench, "other", &[NOBODY]).await;
    // The last event: what begins an operation has told of it before it answers.
    for letter in [&first, &third] {
        let path = format!("/v1/letters/{letter}/comments");
        post(&bench, "admin", &path, json!({"text": "the last event"})).await.expect(200);
    }
    let visible = |name: &str| -> BTreeSet<String> {
        let visible = match name {
            "own" => vec![&of_own],
            "other" => vec![&of_other, &other_without_letters],
            _ => vec![&of_own, &of_other, &of_both, &without_letters, &other_without_letters],
        };
        visible.into_iter().cloned().collect()
    };
    for (name, consumer, each, latest) in &mut listeners {
        assert_eq!(operations_heard(&bench, each, consumer, 0).await, visible(name), "{name}");
        // Of several operations at once, only the latest is told.
        let heard = operations_heard(&bench, latest, consumer, 1).await;
        assert!(heard.is_subset(&visible(name)), "{name}: {heard:?}");
        // All that is kept is told again to a client that does not know where it was.
        let mut back = listen(&bench, name, "/v1/events?last-event-id=unknown").await;
        assert_eq!(operations_heard(&bench, &mut back, consumer, 0).await, visible(name), "{name}, resumed");
    }
}
