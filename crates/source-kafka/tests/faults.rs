//! Failing brokers, simulated by librdkafka's mock cluster.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod support;

use std::time::Duration;

use lazaret_core::Position;
use lazaret_core::source::{Commit, Source, SourceError};
use lazaret_source_kafka::{KafkaSource, KafkaState};
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use support::{Reading, Topic, has_no_ranges, numbers, push_unknown_compression, unique};

/// Returns a cluster of one broker, and a topic of one partition.
fn cluster() -> (MockCluster<'static, rdkafka::producer::DefaultProducerContext>, Topic) {
    let cluster = MockCluster::new(1).unwrap();
    let name = unique("m-");
    cluster.create_topic(&name, 1, 1).unwrap();
    let topic = Topic::existing(cluster.bootstrap_servers(), &name);
    (cluster, topic)
}

#[tokio::test]
async fn a_broker_that_restarts_costs_nothing_but_time() {
    // I1
    let (cluster, topic) = cluster();
    topic.fill(0, 0..10).await;
    let mut reading = topic.open();
    let state = reading.source.state();
    reading.until("all have come", |r| r.count() == 10).await;
    assert_eq!(*state.borrow(), KafkaState::Reading(1));
    cluster.broker_down(1).unwrap();
    reading.until("it complains", |r| !r.errors.is_empty()).await;
    assert!(reading.errors.iter().all(SourceError::is_temporary), "{:?}", reading.errors);
    assert!(matches!(*state.borrow(), KafkaState::Error(_)));
    cluster.broker_up(1).unwrap();
    topic.fill(0, 10..20).await;
    reading.until("the rest has come", |r| r.offsets(0).last() == Some(&19)).await;
    assert_eq!(reading.payloads(0), numbers(0..20));
    assert_eq!(*state.borrow(), KafkaState::Reading(1));
    reading.commit(topic.partition(0), 19, vec![]).await.unwrap();
    assert_eq!(topic.committed(0).unwrap().0, 20);
}

#[tokio::test]
async fn an_error_of_the_broker_is_over_without_a_message() {
    let (cluster, topic) = cluster();
    let mut reading = topic.open();
    let state = reading.source.state();
    reading.until("it has joined", |r| !r.held.is_empty()).await;
    cluster.broker_down(1).unwrap();
    reading.until("it complains", |r| !r.errors.is_empty()).await;
    cluster.broker_up(1).unwrap();
    let is_over = state.clone();
    reading.until("it has recovered", move |_| *is_over.borrow() == KafkaState::Reading(1)).await;
    assert_eq!(reading.count(), 0);
}

#[tokio::test]
async fn a_partition_that_cannot_be_read_is_named_for_as_long_as_the_others_are_read() {
    // I3, I9
    let cluster = MockCluster::new(1).unwrap();
    let name = unique("m-");
    cluster.create_topic(&name, 2, 1).unwrap();
    let topic = Topic::existing(cluster.bootstrap_servers(), &name);
    topic.fill(0, 0..3).await;
    push_unknown_compression(&cluster.bootstrap_servers(), &name, 1);
    let mut reading = topic.open();
    let state = reading.source.state();
    reading.until("it complains and reads", |r| !r.errors.is_empty() && r.count() == 3).await;
    let said = reading.errors[0].to_string();
    for word in [topic.partition(1).to_string().as_str(), "cannot be read", "Decompression"] {
        assert!(said.contains(word), "{said}");
    }
    topic.fill(0, 3..9).await;
    reading.until("the other partition is read", |r| r.count() == 9).await;
    assert_eq!(*state.borrow(), KafkaState::Error(said), "it is not forgotten");
    assert_eq!(
        reading.errors.len(),
        1,
        "the client repeats it, and the engine gets it once: {:?}",
        reading.errors
    );
    assert_eq!(reading.payloads(0), numbers(0..9));
}

#[tokio::test]
async fn a_broker_that_takes_less_metadata_gets_the_position_all_the_same() {
    // I1, I7
    let (cluster, topic) = cluster();
    topic.fill(0, 0..3).await;
    let mut reading = topic.open();
    reading.until("all have come", |r| r.count() == 3).await;
    let many: Vec<_> = (1..400).map(|n| 2 * n..=2 * n).collect();
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OFFSET_METADATA_TOO_LARGE;
    cluster.request_errors(RDKafkaApiKey::OffsetCommit, &[error]);
    reading.commit(topic.partition(0), 0, many.clone()).await.unwrap();
    let (offset, metadata) = topic.committed(0).unwrap();
    assert!(offset == 1 && has_no_ranges(&metadata), "{offset} {metadata}");
    reading.commit(topic.partition(0), 0, many).await.unwrap();
    let (_, metadata) = topic.committed(0).unwrap();
    assert!(!has_no_ranges(&metadata) && metadata.len() <= 2048, "{}", metadata.len());
}

#[tokio::test]
async fn a_commit_without_its_ranges_still_names_the_store() {
    // I2: with another store, messages would run although their predecessors wait in the first one.
    let (cluster, topic) = cluster();
    topic.fill(0, 0..3).await;
    let with_store = |id| Reading::new(KafkaSource::open(topic.options().with_store(id)).unwrap());
    let mut reading = with_store("first");
    reading.until("all have come", |r| r.count() == 3).await;
    let too_large = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OFFSET_METADATA_TOO_LARGE;
    cluster.request_errors(RDKafkaApiKey::OffsetCommit, &[too_large]);
    reading.commit(topic.partition(0), 0, vec![2..=2]).await.unwrap();
    let (offset, without) = topic.committed(0).unwrap();
    assert!(offset == 1 && without.ends_with(".first."), "{offset} {without}");
    reading.commit(topic.partition(0), 0, vec![2..=2]).await.unwrap();
    assert!(topic.committed(0).unwrap().1.len() > without.len(), "later commits have their ranges again");
    // This broker does not even accept the id.
    cluster.request_errors(RDKafkaApiKey::OffsetCommit, &[too_large, too_large]);
    let refused = reading.commit(topic.partition(0), 1, vec![]).await.unwrap_err();
    assert!(
        !refused.is_temporary() && refused.to_string().contains("offset.metadata.max.bytes"),
        "{refused}"
    );
    assert_eq!(topic.committed(0).unwrap().0, 1);
    reading.source.close().await.unwrap();
    let mut other = with_store("second");
    other.until("it is refused", |r| !r.errors.is_empty()).await;
    assert!(other.errors[0].to_string().contains("another store: first"), "{:?}", other.errors);
}

#[tokio::test]
async fn a_failed_commit_is_reported_and_can_be_repeated() {
    let (cluster, topic) = cluster();
    topic.fill(0, 0..3).await;
    let mut reading = topic.open();
    reading.until("all have come", |r| r.count() == 3).await;
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS;
    cluster.request_errors(RDKafkaApiKey::OffsetCommit, &[error]);
    let error = reading.commit(topic.partition(0), 1, vec![]).await.unwrap_err();
    assert!(error.is_temporary(), "{error}");
    assert_eq!(topic.committed(0), None);
    reading.commit(topic.partition(0), 1, vec![]).await.unwrap();
    assert_eq!(topic.committed(0).unwrap().0, 2);
}

#[tokio::test]
async fn a_commit_that_is_answered_too_late_is_given_up_and_the_next_ones_go_on() {
    // I1: the commit timed out, and still no other may overtake it.
    let (cluster, topic) = cluster();
    topic.fill(0, 0..3).await;
    let mut reading = topic.open();
    reading.until("all have come", |r| r.count() == 3).await;
    let up_to = |offset| {
        let position = Some(Position::new(0, offset));
        vec![Commit { partition: topic.partition(0), position, settled_beyond: Vec::new() }]
    };
    cluster.broker_round_trip_time(1, Duration::from_secs(13)).unwrap();
    reading.source.begin_commit(up_to(0)).unwrap();
    reading.until("it is given up", |r| r.commits.len() == 1).await;
    assert!(reading.commits[0].is_err());
    cluster.broker_round_trip_time(1, Duration::ZERO).unwrap();
    let started = std::time::Instant::now();
    loop {
        reading.source.begin_commit(up_to(2)).unwrap();
        let reported = reading.commits.len();
        reading.until("its outcome is reported", |r| r.commits.len() > reported).await;
        // An Ok may have committed nothing, because the group may have expelled the silent member.
        if topic.committed(0).is_some_and(|(offset, _)| offset == 3) {
            break;
        }
        assert!(started.elapsed() < support::LONG, "commits have stopped: {:?}", reading.commits[reported]);
        reading.read_for(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn positions_that_cannot_be_looked_up_are_looked_up_again() {
    // I1: a failed lookup is repeated. It does not change where reading starts.
    let (cluster, topic) = cluster();
    topic.fill(0, 0..5).await;
    topic.set_committed(0, 2, "");
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED;
    cluster.request_errors(RDKafkaApiKey::OffsetFetch, &[error]);
    let mut reading = topic.open();
    reading.until("the rest has come", |r| r.count() == 3).await;
    assert_eq!(reading.errors.len(), 1, "{:?}", reading.errors);
    assert_eq!(reading.payloads(0), numbers(2..5));
}

#[tokio::test]
async fn closing_does_not_hang_when_the_broker_is_unreachable() {
    let (cluster, topic) = cluster();
    topic.fill(0, 0..3).await;
    let mut reading = topic.open();
    reading.until("all have come", |r| r.count() == 3).await;
    cluster.broker_down(1).unwrap();
    let started = std::time::Instant::now();
    // Leaving may fail, but must not block.
    let _ = reading.source.close().await;
    assert!(started.elapsed() < support::LONG);
    assert!(reading.source.next().await.is_err(), "it is closed");
}
