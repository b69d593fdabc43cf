//! The status of consumers that are held, or in which something waits in memory.

use std::time::Duration;

use lazaret_core::Reason;
use lazaret_core::policy::{Classifier, RetryPolicy, Strategy};
use lazaret_core::store::Limits;
use lazaret_engine::{DeadLetterOptions, Options as EngineOptions};
use serde_json::{Value, json};

use crate::support::{Bench, ORDERS, Setup, eventually};

fn orders(status: &Value) -> Value {
    let consumers = status["consumers"].as_array().unwrap();
    consumers.iter().find(|consumer| consumer["name"] == ORDERS).unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_names_the_limit_that_holds_a_consumer() {
    // I9
    let limits = Limits { max_sequences: Some(1), ..Limits::NONE };
    let dead_letter = Some(DeadLetterOptions { limits, ..DeadLetterOptions::default() });
    let engine = EngineOptions { dead_letter, ..Setup::default().engine };
    let bench = Bench::with(Setup { engine, ..Setup::default() }).await;
    let free = orders(&bench.get("/v1/status").await.expect(200).json);
    assert_eq!((&free["held-by"], &free["error"]), (&Value::Null, &Value::Null));
    bench.feed(&[("a", "bad"), ("b", "bad")]).await;
    let held = || async { orders(&bench.get("/v1/status").await.json) };
    eventually("it is held", || async { held().await["held-by"] == "max-sequences" }).await;
    let told = held().await;
    let why = told["error"].as_str().unwrap();
    assert!(
        why.contains("the queue is full, max-sequences is 1") && why.contains("raise the limit"),
        "{why}"
    );
    assert_eq!(told["store-trouble"], json!(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_waits_in_place_has_an_age_in_the_status() {
    let retry = RetryPolicy {
        strategy: Strategy::InPlace,
        initial_delay: Duration::from_secs(1800),
        max_delay: Duration::from_secs(1800),
        max_elapsed: None,
        max_attempts: 3,
        ..RetryPolicy::default()
    };
    let classifier = Classifier::default().retry_on_reason(Reason::DOMAIN_INVALID);
    let engine = EngineOptions { retry, classifier, ..Setup::default().engine };
    let bench = Bench::with(Setup { engine, ..Setup::default() }).await;
    let none = orders(&bench.get("/v1/status").await.expect(200).json);
    assert_eq!((&none["oldest-age-seconds"], &none["attempt-age-seconds"]), (&Value::Null, &Value::Null));
    bench.feed(&[("a", "bad")]).await;
    eventually("its age", || async {
        orders(&bench.get("/v1/status").await.json)["oldest-age-seconds"].is_number()
    })
    .await;
    assert_eq!(orders(&bench.get("/v1/status").await.json)["retrying"], 0, "it is no letter");
}
