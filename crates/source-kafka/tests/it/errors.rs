//! Errors are reported: temporary ones are retried, permanent ones name the remedy.

use std::time::Duration;

use lazaret_core::source::SourceError;
use lazaret_source_kafka::{KafkaOptions, KafkaRelay, KafkaSource, KafkaState, RetryTopics};

use crate::support::{Reading, Topic, broker, quick, unique, with_password};

/// Returns the permanent error that ends reading.
async fn permanent(options: KafkaOptions) -> SourceError {
    let mut reading = Reading::new(KafkaSource::open(options).unwrap());
    reading.until("it gives up", |r| r.errors.iter().any(|error| !error.is_temporary())).await;
    reading.errors.into_iter().find(|error| !error.is_temporary()).unwrap()
}

#[track_caller]
fn assert_contains(error: &SourceError, words: &[&str]) {
    for word in words {
        assert!(error.to_string().contains(word), "{error} does not contain {word:?}");
    }
}

#[tokio::test]
async fn an_unreachable_broker_is_waited_for_in_a_visible_state() {
    // The port of a closed listener refuses connections.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let source = KafkaSource::open(quick(KafkaOptions::new(&address, "g", ["orders"]))).unwrap();
    let state = source.state();
    assert_eq!(*state.borrow(), KafkaState::Joining);
    let mut reading = Reading::new(source);
    reading.until("it complains", |r| r.errors.len() >= 2).await;
    assert!(reading.errors.iter().all(SourceError::is_temporary), "{:?}", reading.errors);
    assert_contains(&reading.errors[0], &[&address, "is reachable"]);
    assert!(matches!(&*state.borrow(), KafkaState::Error(why) if why.contains(&address)));
}

#[tokio::test]
async fn a_topic_that_does_not_exist_is_named() {
    let Some(broker) = broker() else { return };
    let name = unique("missing-");
    let error = permanent(with_short_timeout(broker, &[&name])).await;
    assert_contains(&error, &[&name, "does not exist", "create it"]);
}

/// Options that wait only briefly for topics.
fn with_short_timeout(broker: String, topics: &[&str]) -> KafkaOptions {
    quick(KafkaOptions::new(broker, "g", topics.to_vec())).with_topic_timeout(Duration::from_millis(500))
}

#[tokio::test]
async fn a_topic_that_is_created_after_the_start_is_waited_for() {
    let Some(broker) = broker() else { return };
    let name = unique("later-");
    let source = KafkaSource::open(Topic::existing(broker.clone(), &name).options()).unwrap();
    let state = source.state();
    let mut reading = Reading::new(source);
    reading.until("it waits", |r| !r.errors.is_empty()).await;
    assert_contains(&reading.errors[0], &[&name, "waiting up to 30s"]);
    assert!(matches!(&*state.borrow(), KafkaState::Error(why) if why.contains(&name)));
    let topic = Topic::with_config(broker, &name, 1, &[]).await;
    topic.push(0, "first").await;
    reading.until("it is read", |r| r.count() == 1).await;
    assert_eq!(*state.borrow(), KafkaState::Reading(1));
    assert!(reading.errors.iter().all(SourceError::is_temporary), "{:?}", reading.errors);
}

#[tokio::test]
async fn other_topics_are_read_while_one_is_waited_for_and_there_is_no_end_before_it() {
    // I1: a run to the end must not miss the topic that appears late.
    let Some(broker) = broker() else { return };
    let there = Topic::new(broker.clone(), 1).await;
    there.push(0, "there").await;
    let name = unique("later-");
    let options = quick(KafkaOptions::new(&broker, &there.group, [&there.name, &name])).reading_to_end();
    let mut reading = Reading::new(KafkaSource::open(options).unwrap());
    reading.until("the first is read", |r| r.count() == 1 && !r.errors.is_empty()).await;
    assert_eq!(reading.ends, 0);
    let later = Topic::with_config(broker, &name, 1, &[]).await;
    later.push(0, "later").await;
    reading.until("both are read", |r| r.count() == 2 && r.ends > 0).await;
    assert!(reading.errors.iter().all(SourceError::is_temporary), "{:?}", reading.errors);
}

#[tokio::test]
async fn retry_topics_and_their_stream_are_waited_for_when_the_relay_opens() {
    let Some(broker) = broker() else { return };
    let name = unique("later-");
    let (notices, mut noticed) = tokio::sync::mpsc::unbounded_channel();
    let options = Topic::existing(broker.clone(), &name)
        .options()
        .with_topic_notice(move |reason| notices.send(reason.to_owned()).unwrap());
    let topics = RetryTopics::new("mail", [Duration::from_secs(1)]);
    let names =
        [name.clone(), topics.retry_topic(&name, Duration::from_secs(1)), topics.dead_letter_topic(&name)];
    let opening = tokio::spawn(async move { KafkaRelay::open(&options, topics).await });
    for name in &names {
        let reason = noticed.recv().await.unwrap();
        assert!(reason.contains(&format!("the topic {name} yet")), "{reason}");
        Topic::with_config(broker.clone(), name, 1, &[]).await;
    }
    opening.await.unwrap().unwrap();
}

#[tokio::test]
async fn one_missing_topic_among_others_is_named_too() {
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker.clone(), 1).await;
    let name = unique("missing-");
    let error = permanent(with_short_timeout(broker, &[&topic.name, &name])).await;
    assert_contains(&error, &[&name, "does not exist"]);
    assert!(!error.to_string().contains(&topic.name), "{error}");
}

#[tokio::test]
async fn wrong_credentials_are_said_to_be_wrong() {
    let Some(options) = with_password("open-topic", "open-group", Some("wrong")) else { return };
    let error = permanent(options).await;
    assert_contains(&error, &["credentials", "sasl.password"]);
}

#[tokio::test]
async fn a_user_reads_what_it_may_read() {
    let Some(broker) = broker() else { return };
    let topic = Topic::with_config(broker, &unique("open-"), 1, &[]).await;
    topic.fill(0, 0..3).await;
    let Some(options) = with_password(&topic.name, "open-group", None) else { return };
    let mut reading = Reading::new(KafkaSource::open(options).unwrap());
    reading.until("all have come", |r| r.count() == 3).await;
}

#[tokio::test]
async fn a_topic_that_is_denied_is_said_to_be_denied() {
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 1).await;
    let Some(options) = with_password(&topic.name, "open-group", None) else { return };
    let error = permanent(options).await;
    assert_contains(&error, &[&topic.name, "denied", "grant READ"]);
}

#[tokio::test]
async fn a_group_that_is_denied_is_said_to_be_denied() {
    let Some(broker) = broker() else { return };
    let topic = Topic::with_config(broker, &unique("open-"), 1, &[]).await;
    let Some(options) = with_password(&topic.name, "closed-group", None) else { return };
    let error = permanent(options).await;
    assert_contains(&error, &["closed-group", "denied", "grant READ"]);
}

#[test]
fn an_invalid_property_is_named() {
    let options = KafkaOptions::new("127.0.0.1:1", "g", ["orders"]).with_property("sasl.pasword", "hunter2");
    let error = KafkaSource::open(options).unwrap_err();
    assert!(!error.is_temporary());
    assert_contains(&error, &["sasl.pasword"]);
    assert!(!format!("{error} {error:?}").contains("hunter2"), "the value may be a secret");
}
