//! What the status tells beside the letters: topics in the broker, recreated streams, expiry and excluded letters.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use lazaret_api::BrokerCounts;
use lazaret_core::ConsumerName;
use lazaret_core::incarnation::Beginning;
use lazaret_core::store::LetterStore;
use lazaret_engine::{DeadLetterOptions, Options as EngineOptions};
use serde_json::{Value, json};

use crate::support::{Bench, ORDERS, Setup};

async fn orders(bench: &Bench) -> Value {
    let status = bench.get("/v1/status").await.expect(200).json;
    let all = status["consumers"].as_array().unwrap();
    let orders = all.iter().find(|consumer| consumer["name"] == ORDERS).unwrap().clone();
    // One consumer is shown as in the list. Their ages are taken at two times.
    let one = bench.get(&format!("/v1/consumers/{ORDERS}")).await.expect(200).json;
    for field in ["in-broker", "incarnations", "queues", "dead"] {
        assert_eq!(one[field], orders[field], "{field}");
    }
    orders
}

#[tokio::test(flavor = "multi_thread")]
async fn what_topics_in_the_broker_hold_stands_beside_the_letters_of_the_store() {
    let bench = Bench::new().await;
    bench.letters(&[("a", "bad")], 1).await;
    assert_eq!(orders(&bench).await.get("in-broker"), None, "no topics");
    let oldest = Timestamp::from_second(1_700_000_000).unwrap();
    let counts = BrokerCounts { retrying: 2, dead: 3, oldest_dead_at: Some(oldest) };
    bench.registry.in_broker(ORDERS, move || Some(counts));
    let shown = orders(&bench).await;
    let expected = json!({"retrying": 2, "dead": 3, "oldest-dead-at": "2023-11-14T22:13:20Z"});
    assert_eq!((&shown["in-broker"], &shown["dead"]), (&expected, &json!(1)));
    // Empty topics are known to be empty.
    bench.registry.in_broker(ORDERS, || Some(BrokerCounts::default()));
    assert_eq!(orders(&bench).await["in-broker"], json!({"retrying": 0, "dead": 0}));
    bench.registry.in_broker(ORDERS, || None);
    assert_eq!(orders(&bench).await.get("in-broker"), None, "the broker does not answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recreated_stream_is_listed_with_its_incarnation() {
    let bench = Bench::new().await;
    let begin = async |stream: &str, partition, id: &str, after| {
        let beginning = Beginning { stream: stream.into(), partition, id: Some(id.into()), after };
        bench.store.begin_incarnation(&ConsumerName::from(ORDERS), &beginning).await.unwrap();
    };
    begin("case-events", None, "first", None).await;
    assert_eq!(orders(&bench).await.get("incarnations"), None, "the first one is not recreated");
    begin("case-events", None, "second", Some(0)).await;
    begin("case-events", Some(3), "second", Some(1)).await;
    let lives = orders(&bench).await["incarnations"].clone();
    let of = |life: &Value| (life["stream"].clone(), life["partition"].clone(), life["incarnation"].clone());
    let lives = lives.as_array().unwrap();
    assert_eq!(lives.len(), 2, "{lives:?}");
    assert_eq!(of(&lives[0]), (json!("case-events"), Value::Null, json!(1)));
    assert_eq!(of(&lives[1]), (json!("case-events"), json!(3), json!(2)));
    assert_eq!(lives[0]["id"], "second");
    assert!(lives[0]["since"].as_str().unwrap().parse::<Timestamp>().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_tells_when_its_next_letter_expires() {
    let dead_letter =
        Some(DeadLetterOptions { ttl: Some(Duration::from_secs(7200)), ..DeadLetterOptions::default() });
    let engine = EngineOptions { dead_letter, ..Setup::default().engine };
    let bench = Bench::with(Setup { engine, ..Setup::default() }).await;
    let next = async || orders(&bench).await["queues"][0].get("next-expiry-at").cloned();
    assert_eq!(next().await, None);
    let before = Timestamp::now();
    bench.letters(&[("a", "bad")], 1).await;
    let at: Timestamp = next().await.unwrap().as_str().unwrap().parse().unwrap();
    // Stores round times.
    let left = at.duration_since(before) + SignedDuration::from_secs(1);
    assert!(left >= SignedDuration::from_hours(2), "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_under_way_tell_what_their_plans_exclude() {
    let bench = Bench::new().await;
    bench.letters(&[("a", "bad1"), ("b", "bad2")], 2).await;
    let later = async |query: &str| {
        let begin =
            json!({"action": "retry", "query": query, "at": "2040-01-01T00:00:00Z", "reason": "later"});
        bench.post("/v1/operations", begin).await.expect(201).json["id"].clone()
    };
    let (first, second) = (later("seq:a").await, later("state:dead").await);
    let operations = bench.get("/v1/status").await.expect(200).json["operations"].clone();
    assert_eq!((&operations[0]["id"], &operations[1]["id"]), (&second, &first), "the latest first");
    assert_eq!(operations[0]["excluded"], json!([{"reason": "in-operation", "letters": 1}]));
    assert_eq!(operations[1].get("excluded"), None);
}
