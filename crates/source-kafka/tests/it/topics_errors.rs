//! Misconfigured retry topics and dead-letter topics, and brokers that fail while these topics are written.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::source::SourceError;
use lazaret_core::store::LetterStore;
use lazaret_core::{HandlerError, LetterState, QueueName, Reason};
use lazaret_memory::MemoryStore;
use lazaret_source_kafka::{KafkaOptions, KafkaRelay, RetryTopics};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::chained::{Call, Chained, NAME, millis, payload_of, retry};
use crate::support::{Topic, broker, client, listener_with_users, quick, unique};

const SECOND: Duration = Duration::from_secs(1);

async fn refused(options: &KafkaOptions, topics: RetryTopics) -> SourceError {
    let error = KafkaRelay::open(options, topics).await.map(|_| ()).unwrap_err();
    assert!(!error.is_temporary(), "{error}");
    error
}

#[track_caller]
fn assert_contains(error: &SourceError, words: &[&str]) {
    for word in words {
        assert!(error.to_string().contains(word), "{error} does not contain {word:?}");
    }
}

#[tokio::test]
async fn missing_topics_are_named_with_what_to_create() {
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 3).await;
    let options = topic.options().with_topic_timeout(millis(500));
    let error = refused(&options, RetryTopics::new(NAME, [SECOND])).await;
    let retries = format!("{}.mail.retry.1s (3 partitions)", topic.name);
    assert_contains(&error, &[&retries, &format!("{}.mail.dlt", topic.name), "create them"]);
}

#[tokio::test]
async fn a_stream_that_does_not_exist_is_named() {
    let Some(broker) = broker() else { return };
    let name = unique("missing-");
    let options = quick(KafkaOptions::new(broker, "g", [&name])).with_topic_timeout(millis(500));
    let error = refused(&options, RetryTopics::new(NAME, [SECOND]).creating_topics()).await;
    assert_contains(&error, &[&name, "does not exist"]);
}

#[tokio::test]
async fn created_topics_are_like_their_stream_and_forget_nothing_too_early() {
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker.clone(), 3).await;
    let month = Duration::from_secs(30 * 24 * 3600);
    let topics = RetryTopics::new(NAME, [SECOND, month]).creating_topics();
    let relay = KafkaRelay::open(&topic.options(), topics.clone()).await.unwrap();
    assert_eq!(relay.remarks(), [""; 0]);
    let admin: AdminClient<DefaultClientContext> = client(&broker).create().unwrap();
    for (name, retention) in [
        (topics.retry_topic(&topic.name, SECOND), 7 * 24 * 3600 * 1000),
        (topics.retry_topic(&topic.name, month), 90 * 24 * 3600 * 1000),
        (topics.dead_letter_topic(&topic.name), -1_i64),
    ] {
        let specifier = rdkafka::admin::ResourceSpecifier::Topic(&name);
        let found =
            admin.describe_configs([&specifier], &AdminOptions::new()).await.unwrap().remove(0).unwrap();
        let get = |name: &str| found.get(name).unwrap().value.clone().unwrap();
        assert_eq!((get("cleanup.policy").as_str(), get("retention.ms")), ("delete", retention.to_string()));
        assert_eq!(
            Topic::existing(broker.clone(), &name).end(2),
            0,
            "as many partitions, and nothing in them"
        );
    }
    // A second member finds everything as it should be.
    KafkaRelay::open(&topic.options(), topics).await.unwrap();
}

#[tokio::test]
async fn a_topic_that_deletes_records_too_early_is_refused() {
    // I1
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker.clone(), 1).await;
    let topics = RetryTopics::new(NAME, [SECOND]).creating_topics();
    let dead = topics.dead_letter_topic(&topic.name);
    Topic::with_config(broker.clone(), &dead, 1, &[("cleanup.policy", "compact")]).await;
    let error = refused(&topic.options(), topics).await;
    assert_contains(&error, &[&dead, "compacted", "cleanup.policy=delete"]);
    let topic = Topic::new(broker.clone(), 1).await;
    let topics = RetryTopics::new(NAME, [SECOND]).creating_topics();
    let retries = topics.retry_topic(&topic.name, SECOND);
    Topic::with_config(broker, &retries, 1, &[("retention.ms", "1500")]).await;
    assert_contains(&refused(&topic.options(), topics).await, &[&retries, "retention.ms"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn fewer_partitions_are_reported_and_work() {
    let Some(broker) = broker() else { return };
    let chained = Chained::new(broker.clone(), 4).await;
    let delay = millis(300);
    Topic::with_config(broker, &chained.retry_topic(delay), 2, &[]).await;
    let relay = KafkaRelay::open(&chained.topic.options(), chained.topics(&retry(delay))).await.unwrap();
    assert!(relay.remarks()[0].contains("has 2 partitions"), "{:?}", relay.remarks());
    (0..8).for_each(|number| chained.send(number % 4, &number.to_string()));
    let script = |call: &Call| match call.attempt {
        1 => Err(HandlerError::msg("no").reason(Reason::TIMEOUT)),
        _ => Ok(()),
    };
    let running = chained.start(retry(delay), script).await;
    chained.until("all are handled", |calls| calls.len() == 16).await;
    running.stop().await;
    chained.assert_all_committed();
}

#[tokio::test]
async fn topics_that_may_not_be_written_to_are_found_at_the_start() {
    // Nothing is dropped silently: a consumer that cannot dead-letter does not start.
    let (Some(broker), Some(given)) = (broker(), listener_with_users()) else { return };
    let topic = Topic::with_config(broker.clone(), &unique("open-"), 1, &[]).await;
    let topics = RetryTopics::new(NAME, []);
    let dead = topics.dead_letter_topic(&topic.name);
    Topic::with_config(broker, &dead, 1, &[]).await;
    let (login, address) = given.split_once('@').unwrap();
    let (user, password) = login.split_once(':').unwrap();
    let options = quick(KafkaOptions::new(address, "open-group", [&topic.name]))
        .with_property("security.protocol", "SASL_PLAINTEXT")
        .with_property("sasl.mechanism", "PLAIN")
        .with_property("sasl.username", user)
        .with_property("sasl.password", password);
    let error = refused(&options, topics.clone()).await;
    assert_contains(&error, &[&dead, "denied", "grant WRITE"]);
    assert_eq!(topic.end(0), 0);
    // A topic that cannot be created is named.
    let other = topics.with_names("{stream}.{delay}", "{stream}.other").creating_topics();
    assert_contains(
        &refused(&options, other).await,
        &[&format!("{}.other", topic.name), "could not be created"],
    );
}

/// Returns a cluster with injected failures, and a topic on it.
fn cluster() -> (MockCluster<'static, rdkafka::producer::DefaultProducerContext>, Chained) {
    let cluster = MockCluster::new(1).unwrap();
    let name = unique("m-");
    for topic in [name.clone(), format!("{name}.mail.dlt"), format!("{name}.mail.retry.200ms")] {
        cluster.create_topic(&topic, 1, 1).unwrap();
    }
    let chained = Chained::of(Topic::existing(cluster.bootstrap_servers(), &name));
    (cluster, chained.changed(|topics| topics.without_checks().with_delivery_timeout(millis(500))))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_record_is_neither_committed_nor_lost_and_is_relayed_when_the_broker_recovers() {
    // I1, I9
    let (cluster, chained) = cluster();
    let policy = lazaret_core::policy::RetryPolicy { max_attempts: 2, ..retry(millis(200)) };
    let script = |call: &Call| match payload_of(&call.message).ends_with("fail") && call.attempt == 1 {
        true => Err(HandlerError::msg("no").reason(Reason::TIMEOUT)),
        false => Ok(()),
    };
    let running = chained.start(policy, script).await;
    chained.topic.push(0, "ok0").await;
    chained.until("it works", |calls| calls.len() == 1).await;
    // The message waits until the broker is set to fail, because the test's own records need a working
    // broker.
    chained.topic.push(0, "wait, then fail").await;
    chained.topic.push(0, "ok1").await;
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS;
    cluster.request_errors(RDKafkaApiKey::Produce, &[error; 40]);
    chained.open.send_replace(true);
    chained.until_event("RelayFailed", 2).await;
    chained.topic.until_committed(0, |offset, _| offset <= 1);
    // The member is alive, and the other messages flow.
    cluster.clear_request_errors(RDKafkaApiKey::Produce);
    chained.until("it is handled in the end", |calls| calls.iter().any(|call| call.attempt == 2)).await;
    chained.topic.until_committed(0, |offset, _| offset == 3);
    let stats = running.stop().await;
    assert!(stats.relay_failures >= 2 && stats.handed_off == 0, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_broker_denies_for_good_the_store_takes_over() {
    // I1, I9
    let (cluster, chained) = cluster();
    let store = Arc::new(MemoryStore::default());
    let chained = chained.with_store(store.clone());
    let script = |call: &Call| match payload_of(&call.message).ends_with("dead") {
        true => Err(HandlerError::msg("no").reason(Reason::DOMAIN_INVALID)),
        false => Ok(()),
    };
    let policy = lazaret_core::policy::RetryPolicy { max_attempts: 2, ..retry(millis(200)) };
    let running = chained.start(policy, script).await;
    chained.topic.push(0, "ok").await;
    chained.until("it works", |calls| calls.len() == 1).await;
    chained.topic.push(0, "wait, then dead").await;
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    cluster.request_errors(RDKafkaApiKey::Produce, &[error; 10]);
    chained.open.send_replace(true);
    chained.until_event("LetterStored", 1).await;
    let counts = store.counts(&QueueName::of(NAME, NAME)).await.unwrap();
    assert_eq!(counts.of(LetterState::Dead), 1);
    chained.topic.until_committed(0, |offset, _| offset == 2);
    let stats = running.stop().await;
    assert_eq!((stats.relay_failures, stats.relayed), (2, 0), "the message, and its claim check");
}
