//! Where reading starts and ends, and which positions a commit keeps.

use lazaret_core::Position;
use lazaret_core::source::{Commit, Source};
use lazaret_source_kafka::KafkaSource;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::{Offset, TopicPartitionList};

use crate::support::{Reading, Topic, broker, client, numbers};

#[tokio::test]
async fn a_restart_repeats_only_what_was_not_settled() {
    // I1: offset 10 waits, and everything after it is done.
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 1).await;
    topic.fill(0, 0..100).await;
    let mut first = topic.open();
    first.until("all have come", |r| r.count() == 100).await;
    first.commit(topic.partition(0), 9, vec![11..=60, 62..=99]).await.unwrap();
    first.source.close().await.unwrap();
    let (offset, metadata) = topic.committed(0).unwrap();
    assert_eq!(offset, 10, "the committed offset is the first that is not settled");
    assert!(metadata.starts_with("lz3."), "{metadata}");

    // The second source crashes early. The ranges that it received and has not read again must be kept.
    let options = topic.options().with_batch(1);
    let mut second = Reading::new(KafkaSource::open(options).unwrap());
    second.until("the first has come", |r| r.count() == 1).await;
    assert_eq!(second.held[&0], [11..=60, 62..=99]);
    second.commit(topic.partition(0), 10, vec![]).await.unwrap();
    drop(second);
    let mut third = topic.open();
    third.until("the rest has come", |r| r.count() == 89).await;
    assert_eq!(third.held[&0], [11..=60, 62..=99]);
    assert_eq!(third.payloads(0), numbers(11..100));
}

#[tokio::test]
async fn the_outcome_of_a_begun_commit_is_reported_when_it_is_durable() {
    // I1: reading continues.
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 1).await;
    topic.fill(0, 0..100).await;
    let mut reading = topic.open();
    let up_to = |offset| {
        let position = Some(Position::new(0, offset));
        vec![Commit { partition: topic.partition(0), position, settled_beyond: Vec::new() }]
    };
    reading.until("all have come", |r| r.count() == 100).await;
    reading.source.begin_commit(up_to(49)).unwrap();
    reading.until("its outcome is reported", |r| matches!(r.commits[..], [Ok(())])).await;
    assert_eq!(topic.committed(0).unwrap().0, 50);
    // A started commit ends with the next blocking one, and never arrives after it.
    reading.source.begin_commit(up_to(59)).unwrap();
    reading.source.commit(up_to(79)).await.unwrap();
    reading.source.begin_commit(up_to(89)).unwrap();
    reading.until("the outcome of the last one is reported", |r| r.commits.len() == 2).await;
    assert!(matches!(reading.commits.pop(), Some(Ok(()))));
    assert_eq!(topic.committed(0).unwrap().0, 90);
    topic.fill(0, 100..101).await;
    reading.until("one more has come", |r| r.count() == 101).await;
    assert_eq!(reading.commits.len(), 1, "each is reported once");
}

#[tokio::test]
async fn messages_read_ahead_of_a_paused_partition_are_buffered_in_order() {
    // I2, I3
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 2).await;
    topic.fill(0, 0..500).await;
    topic.fill(1, 0..500).await;
    let options = topic.options().with_batch(16).reading_to_end();
    let mut reading = Reading::new(KafkaSource::open(options).unwrap());
    reading.until("some have come", |r| r.got.contains_key(&0)).await;
    let partition = topic.partition(0);
    for _ in 0..3 {
        reading.source.pause(std::slice::from_ref(&partition));
        let before = reading.payloads(0).len();
        assert!(before < 500, "there is something to wait for");
        let others = (reading.payloads(1).len() + 100).min(500);
        reading.until("the other one continues", |r| r.payloads(1).len() >= others).await;
        assert_eq!(
            (reading.payloads(0).len(), reading.ends),
            (before, 0),
            "a paused partition gives nothing"
        );
        reading.source.resume(std::slice::from_ref(&partition));
        reading.until("it continues", |r| r.payloads(0).len() > before).await;
    }
    reading.until("the end has come", |r| r.ends == 1).await;
    assert_eq!((reading.payloads(0), reading.payloads(1)), (numbers(0..500), numbers(0..500)));
}

#[tokio::test]
async fn damaged_metadata_costs_only_repetitions() {
    // I1
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 1).await;
    topic.fill(0, 0..10).await;
    let mut first = topic.open();
    first.until("all have come", |r| r.count() == 10).await;
    first.commit(topic.partition(0), 2, vec![5..=7]).await.unwrap();
    first.source.close().await.unwrap();
    let (_, true_text) = topic.committed(0).unwrap();
    let damaged = format!("{}A", &true_text[..true_text.len() - 1]);
    let cases = [(3, damaged.as_str()), (3, "written by another tool"), (2, &true_text), (3, "\u{1f980}")];
    for (offset, metadata) in cases {
        topic.set_committed(0, offset, metadata);
        let mut reading = topic.open();
        reading.until("the rest has come", |r| r.count() == 10 - offset as usize).await;
        assert!(reading.held[&0].is_empty(), "{metadata} at {offset} was believed");
        reading.source.close().await.unwrap();
    }
    topic.set_committed(0, 3, &true_text);
    let mut reading = topic.open();
    reading.until("the rest has come", |r| r.count() == 7).await;
    assert_eq!(reading.held[&0], [5..=7]);
}

#[tokio::test]
async fn what_is_not_committed_is_delivered_again() {
    // I1
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 2).await;
    topic.fill(0, 0..20).await;
    topic.fill(1, 0..20).await;
    let mut first = topic.open();
    first.until("all have come", |r| r.count() == 40).await;
    first.commit(topic.partition(1), 14, vec![]).await.unwrap();
    first.source.close().await.unwrap();
    assert_eq!(topic.committed(0), None, "closing commits nothing");
    let mut second = topic.open();
    second.until("the rest has come", |r| r.count() == 25).await;
    assert_eq!((second.payloads(0), second.payloads(1)), (numbers(0..20), numbers(15..20)));
}

#[tokio::test]
async fn a_shortened_log_is_read_from_what_is_left() {
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker.clone(), 1).await;
    topic.fill(0, 0..10).await;
    let mut first = topic.open();
    first.until("all have come", |r| r.count() == 10).await;
    first.commit(topic.partition(0), 1, vec![4..=6]).await.unwrap();
    first.source.close().await.unwrap();
    let admin: AdminClient<DefaultClientContext> = client(&broker).create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&topic.name, 0, Offset::Offset(5)).unwrap();
    admin.delete_records(&list, &AdminOptions::new()).await.unwrap();
    let mut second = topic.open();
    second.until("the rest has come", |r| r.count() == 5).await;
    assert_eq!(second.held[&0], [5..=6]);
    assert_eq!(second.payloads(0), numbers(5..10));
}

#[tokio::test]
async fn a_consumer_that_starts_at_the_end_and_crashes_starts_there_again() {
    // I1: messages after the first assignment are never skipped.
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 1).await;
    topic.fill(0, 0..5).await;
    let options = topic.options().with_property("auto.offset.reset", "latest");
    let mut first = Reading::new(KafkaSource::open(options.clone()).unwrap());
    first.until("it is assigned", |r| r.held.len() == 1).await;
    assert_eq!(topic.committed(0).unwrap().0, 5);
    drop(first);
    topic.fill(0, 5..8).await;
    let mut second = Reading::new(KafkaSource::open(options).unwrap());
    second.until("they have come", |r| r.count() == 3).await;
    assert_eq!(second.payloads(0), numbers(5..8));
}

#[tokio::test]
async fn without_a_position_and_without_a_reset_it_fails() {
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 1).await;
    let options = topic.options().with_property("auto.offset.reset", "error");
    let mut reading = Reading::new(KafkaSource::open(options).unwrap());
    reading.until("it fails", |r| !r.errors.is_empty()).await;
    assert!(!reading.errors[0].is_temporary());
    assert!(reading.errors[0].to_string().contains("has no committed position"), "{}", reading.errors[0]);
}

#[tokio::test]
async fn reading_to_the_end_ends_where_it_was_at_the_assignment() {
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 2).await;
    topic.fill(0, 0..5).await;
    let options = topic.options().reading_to_end();
    let mut first = Reading::new(KafkaSource::open(options.clone()).unwrap());
    first.until("it is assigned", |r| r.held.len() == 2).await;
    first.source.pause(&[topic.partition(0)]);
    topic.fill(0, 5..7).await;
    topic.fill(1, 0..3).await;
    first.read_for(std::time::Duration::from_millis(300)).await;
    assert_eq!(
        (first.count(), first.ends),
        (0, 0),
        "a paused partition is not read, and later records are not part of the run"
    );
    first.source.resume(&[topic.partition(0)]);
    first.until("it ends", |r| r.ends == 1).await;
    assert_eq!(first.payloads(0), numbers(0..5));
    first.read_for(std::time::Duration::from_millis(300)).await;
    assert_eq!((first.count(), first.ends), (5, 1), "it ends once, and nothing follows");
    first.commit(topic.partition(0), 4, vec![]).await.unwrap();
    first.source.close().await.unwrap();
    let mut second = Reading::new(KafkaSource::open(options.clone()).unwrap());
    second.until("it ends", |r| r.ends == 1).await;
    assert_eq!((second.payloads(0), second.payloads(1)), (numbers(5..7), numbers(0..3)));
}

#[tokio::test]
async fn an_empty_topic_ends_at_once() {
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 2).await;
    let mut reading = Reading::new(KafkaSource::open(topic.options().reading_to_end()).unwrap());
    reading.until("it ends", |r| r.ends == 1).await;
    assert_eq!(reading.held.len(), 2);
}

#[tokio::test]
async fn a_recreated_log_is_read_from_its_beginning() {
    // I1: offsets below the delivered ones belong to other messages.
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker.clone(), 1).await;
    topic.fill(0, 0..10).await;
    let mut reading = topic.open();
    reading.until("all have come", |r| r.count() == 10).await;
    reading.commit(topic.partition(0), 9, vec![]).await.unwrap();
    let admin: AdminClient<DefaultClientContext> = client(&broker).create().unwrap();
    admin.delete_topics(&[&topic.name], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    let again = Topic::with_config(broker, &topic.name, 1, &[]).await;
    again.fill(0, 20..23).await;
    reading.got.clear();
    reading.until("the new ones have come", |r| r.count() == 3).await;
    assert_eq!(reading.payloads(0), numbers(20..23));
    assert!(reading.lost.contains(&topic.partition(0)), "the engine starts over with it");
    reading.commit(topic.partition(0), 1, vec![]).await.unwrap();
    assert_eq!(topic.committed(0).unwrap().0, 2, "its positions count from its own beginning");
}
