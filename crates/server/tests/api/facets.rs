//! What the letters of a group have in common: exact up to a bound, current after every change, and by the rights of the caller.

use lazaret_api::Scope;
use lazaret_core::store::{HandOff, LetterStore, Limits, Placement};
use lazaret_core::{Failure, Letter, LetterState, Message, Position, QueueName, Reason, Timestamp};
use lazaret_server::Token;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Bench, ORDERS, Setup, encoded, secret, token};

/// Stores dead letters of one group in a queue whose consumer runs elsewhere. Returns the path of the group.
async fn group(bench: &Bench, letters: usize) -> String {
    let queue = QueueName::of("billing", "mail");
    let item = |number: usize| {
        let tenant = if number.is_multiple_of(4) { "globex" } else { "acme" };
        let message = Message::new(format!("m{number}").as_str(), "events", Position::new(0, number as u64))
            .with_type(if number < 10 { "Early" } else { "Late" })
            .with_header("tenant", tenant);
        let sequence = format!("s{number}");
        let mut letter =
            Letter::new(queue.clone(), sequence.as_str().into(), message.into(), Timestamp::now());
        letter.state = LetterState::Dead;
        letter.cause = Some(Failure::new(Reason::TIMEOUT, "DbError", "connection reset"));
        HandOff { letter, placement: Placement::Open, grant: None }
    };
    let items = (0..letters).map(item).collect();
    for placed in bench.store.hand_off(&queue, &Limits::NONE, items).await.unwrap() {
        placed.unwrap();
    }
    let fingerprint = Failure::new(Reason::TIMEOUT, "DbError", "connection reset").fingerprint;
    format!("/v1/groups/{}", encoded(&format!("{fingerprint}@{queue}")))
}

/// The values of a field, with their numbers.
fn values(facets: &Value, field: &str) -> Vec<(String, u64)> {
    let facets = facets["facets"].as_array().unwrap();
    let facet = facets.iter().find(|facet| facet["field"] == field);
    let values = facet.map(|facet| facet["values"].as_array().unwrap().clone()).unwrap_or_default();
    let value =
        |value: &Value| (value["value"].as_str().unwrap().to_owned(), value["letters"].as_u64().unwrap());
    values.iter().map(value).collect()
}

fn pairs(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    expected.iter().map(|(value, letters)| ((*value).to_owned(), *letters)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn facets_follow_every_change_of_the_letters() {
    let bench = Bench::new().await;
    let path = format!("{}/facets", group(&bench, 12).await);
    let read = || async { bench.get(&path).await.expect(200).json };
    let facets = read().await;
    assert_eq!((&facets["examined"], &facets["exact"]), (&json!(12), &json!(true)));
    assert_eq!(values(&facets, "type"), pairs(&[("Early", 10), ("Late", 2)]));
    assert_eq!(values(&facets, "header.tenant"), pairs(&[("acme", 9), ("globex", 3)]));
    let letters = bench.get("/v1/letters").await.json["letters"].as_array().unwrap().clone();
    let letter = |message: &str| {
        let found = letters.iter().find(|letter| letter["message"]["id"] == message).unwrap();
        format!("/v1/letters/{}", found["id"].as_str().unwrap())
    };
    bench.put(&format!("{}/assignee", letter("m3")), json!({"name": "ada"})).await.expect(200);
    bench.post(&format!("{}/comments", letter("m3")), json!({"text": "hm"})).await.expect(200);
    let facets = read().await;
    assert_eq!(values(&facets, "assignee"), pairs(&[("ada", 1)]));
    assert_eq!(facets["comments"][0]["text"], "hm");
    let late = json!({"query": "type:Late", "name": "bob", "reason": "knows the database"});
    bench.post("/v1/letters/assign", late).await.expect(200);
    let changes = read().await["assignments"].as_array().unwrap().clone();
    let changes: Vec<_> = changes.iter().map(|of| (&of["name"], &of["letters"])).collect();
    assert_eq!(changes, [(&json!("bob"), &json!(2)), (&json!("ada"), &json!(1))], "the latest first");
    let why = json!({"reason": "test"});
    bench.post(&format!("{}/evict", letter("m11")), why.clone()).await.expect(200);
    let facets = read().await;
    assert_eq!((&facets["examined"], &facets["exact"]), (&json!(11), &json!(true)));
    assert_eq!(values(&facets, "type"), pairs(&[("Early", 10), ("Late", 1)]));
    bench.post(&format!("{}/restore", letter("m11")), why.clone()).await.expect(200);
    assert_eq!(values(&read().await, "type"), pairs(&[("Early", 10), ("Late", 2)]));
    // Without open letters, the closed ones are counted, until they are purged.
    for number in 0..12 {
        bench.post(&format!("{}/resolve", letter(&format!("m{number}"))), why.clone()).await.expect(200);
    }
    assert_eq!(read().await["examined"], 12);
    bench.post(&format!("{}/purge", letter("m0")), why).await.expect(204);
    assert_eq!(values(&read().await, "type"), pairs(&[("Early", 9), ("Late", 2)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_large_group_the_latest_letters_are_examined() {
    // I7
    let bench = Bench::new().await;
    let path = group(&bench, 450).await;
    let facets = bench.get(&format!("{path}/facets")).await.expect(200).json;
    assert_eq!((&facets["examined"], &facets["exact"]), (&json!(200), &json!(false)));
    assert_eq!(values(&facets, "type"), pairs(&[("Late", 200)]), "the early ones are the oldest");
    assert_eq!(bench.get(&path).await.json["letters"], 450, "the number of the group itself is exact");
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_who_read_at_the_same_time_get_what_their_rights_allow() {
    let limited =
        Token { consumers: vec![ORDERS.to_owned()], ..token("limited", &[Scope::Read, Scope::Payload]) };
    let tokens = vec![token("ada", &[Scope::Read, Scope::Payload]), token("paul", &[Scope::Read]), limited];
    let bench = Bench::with(Setup { tokens, ..Setup::default() }).await;
    let path = format!("{}/facets", group(&bench, 100).await);
    let ask = |name: &str| bench.send(bench.request(Method::GET, &path).bearer_auth(secret(name)));
    let names = ["ada", "paul", "limited", "ada", "paul", "limited", "ada", "paul"];
    let answers: Vec<Answer> = futures_util::future::join_all(names.map(ask)).await;
    for (name, answer) in names.into_iter().zip(answers) {
        if name == "limited" {
            answer.problem(403, "LZ0207");
            continue;
        }
        let facets = answer.expect(200);
        assert_eq!(facets.header("content-type"), Some("application/json"));
        assert_eq!(facets.json["examined"], 100);
        let headers = if name == "ada" { pairs(&[("acme", 75), ("globex", 25)]) } else { Vec::new() };
        assert_eq!(values(&facets.json, "header.tenant"), headers, "{name}");
        assert_eq!(facets.text.contains("globex"), name == "ada", "{name}");
    }
}
