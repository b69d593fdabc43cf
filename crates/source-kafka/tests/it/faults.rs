//! Failing brokers, simulated by librdkafka's mock cluster.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::policy::{OnDead, OnDeadPolicy};
use lazaret_core::source::{Commit, Source, SourceError};
use lazaret_core::store::LetterStore;
use lazaret_core::{ConsumerName, HandlerError, LetterState, Message, Position, QueueName, Reason};
use lazaret_engine::{Consumer, DeadLetterOptions, Error, Options};
use lazaret_memory::MemoryStore;
use lazaret_source_kafka::{KafkaOptions, KafkaSource, KafkaState};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::FutureRecord;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::support::{LONG, Reading, Topic, has_no_ranges, numbers, push_unknown_compression, unique};

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
    // If the session ended while the broker is down, the member would join anew and read again what it has not committed.
    let options = topic.options().with_property("session.timeout.ms", "240000");
    let mut reading = Reading::new(KafkaSource::open(options).unwrap());
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
        assert!(started.elapsed() < LONG, "commits have stopped: {:?}", reading.commits[reported]);
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

/// The first version of the broker's description of topics that has ids is 10, of Kafka 2.8.
const WITHOUT_TOPIC_IDS: [i16; 2] = [9, 5];

/// Runs a consumer until it has tried this many messages, or has failed. Returns their payloads. `0` fails.
async fn consume(
    options: KafkaOptions,
    store: &Arc<MemoryStore>,
    count: usize,
) -> (Vec<String>, Result<(), Error>) {
    let tried = watch::Sender::new(Vec::new());
    let (seen, mut all_tried) = (tried.clone(), tried.subscribe());
    let handler = move |message: Message| {
        let payload = String::from_utf8(message.payload.unwrap().into()).unwrap();
        let fails = payload == "0";
        seen.send_modify(|tried| tried.push(payload));
        let refused = || HandlerError::msg("no").reason(Reason::DOMAIN_INVALID);
        let answer = if fails { Err(refused()) } else { Ok(()) };
        async move { answer }
    };
    // The same message of another incarnation has the same key.
    let on_dead = OnDeadPolicy { on_dead: OnDead::Continue, overrides: Vec::new() };
    let consumer = Consumer::builder("orders")
        .source(KafkaSource::open(options).unwrap())
        .store(store.clone())
        .options(Options {
            commit_interval: Duration::from_millis(50),
            dead_letter: Some(DeadLetterOptions { on_dead, ..DeadLetterOptions::default() }),
            ..Options::default()
        })
        .handler(handler)
        .build()
        .unwrap();
    let drain = CancellationToken::new();
    let run = Box::pin(consumer.run(drain.clone()));
    let stop = async {
        all_tried.wait_for(|tried| tried.len() >= count).await.unwrap();
        drain.cancel();
        std::future::pending::<()>().await;
    };
    let ended = tokio::time::timeout(LONG, async {
        tokio::select! { ended = run => ended, () = stop => unreachable!() }
    });
    let ended =
        ended.await.unwrap_or_else(|_| panic!("{count} messages were not tried: {:?}", tried.borrow()));
    let mut tried = tried.send_replace(Vec::new());
    tried.sort_by_key(|payload| payload.parse::<u32>().unwrap());
    (tried, ended.map(|_| ()))
}

#[tokio::test]
async fn without_topic_ids_a_lost_position_stops_the_consumer_until_it_may_start_fresh() {
    // I1: the topic may have been recreated, and what it has now must neither be skipped nor taken for known.
    for version in WITHOUT_TOPIC_IDS {
        let cluster = MockCluster::new(1).unwrap();
        cluster.apiversion(RDKafkaApiKey::Metadata, Some(0), Some(version)).unwrap();
        let name = unique("m-");
        cluster.create_topic(&name, 1, 1).unwrap();
        let of_group = |group| Topic { group, ..Topic::existing(cluster.bootstrap_servers(), &name) };
        let [topic, beyond, without] = ["g-first-", "g-beyond-", "g-without-"].map(|g| of_group(unique(g)));
        for payload in numbers(0..10) {
            topic.send(FutureRecord::to(&name).partition(0).key(&*payload).payload(&*payload)).await;
        }
        let store = Arc::new(MemoryStore::default());
        let queue = QueueName::of("orders", "orders");
        let letters = || async { store.counts(&queue).await.unwrap().of(LetterState::Dead) };
        let incarnation = || async {
            let seen = store.incarnations(&ConsumerName::from("orders")).await.unwrap();
            let seen = &seen.0[&name.as_str().into()];
            assert_eq!(seen.stream.id, None, "the broker gives no ids");
            seen.partitions.get(&0).map(|life| life.number)
        };
        let (tried, ended) = consume(topic.options(), &store, 10).await;
        assert_eq!((tried, ended.is_ok()), (numbers(0..10), true));
        assert_eq!((topic.committed(0).unwrap().0, letters().await, incarnation().await), (10, 1, None));
        // The mock cluster takes positions from outside only for groups that nobody has joined yet.
        beyond.set_committed(0, 50, "");
        for (group, what) in [(&beyond, "beyond the end"), (&without, "has no position")] {
            let (tried, ended) = consume(group.options(), &store, usize::MAX).await;
            let error = ended.unwrap_err();
            let is_permanent = matches!(&error, Error::Source(error) if !error.is_temporary());
            assert!(is_permanent, "{error}");
            for word in [what, "`on-lost-position: start-fresh`", &topic.partition(0).to_string()] {
                assert!(error.to_string().contains(word), "{word}: {error}");
            }
            assert_eq!((tried, letters().await, incarnation().await), (Vec::new(), 1, None));
        }
        let committed = [&beyond, &without].map(|group| group.committed(0).map(|(offset, _)| offset));
        assert_eq!(committed, [Some(50), None], "positions stay as they were");
        for (number, group) in [(1, &beyond), (2, &without)] {
            let (tried, ended) = consume(group.options().starting_fresh(), &store, 10).await;
            assert_eq!((tried, ended.is_ok()), (numbers(0..10), true), "all records are new messages");
            assert_eq!((letters().await, incarnation().await), (1 + u64::from(number), Some(number)));
            assert_eq!(group.committed(0).unwrap().0, 10);
        }
        topic.send(FutureRecord::to(&name).partition(0).key("10").payload("10")).await;
        let (tried, ended) = consume(beyond.options(), &store, 1).await;
        assert_eq!((tried, ended.is_ok()), (numbers(10..11), true), "it goes on from there without the key");
    }
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
    assert!(started.elapsed() < LONG);
    assert!(reading.source.next().await.is_err(), "it is closed");
}
