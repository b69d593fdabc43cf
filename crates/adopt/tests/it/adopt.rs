//! Dead-letter topics are adopted once and in order, even across crashes, and errors name the remedy.

use std::sync::Arc;
use std::time::Duration;

use lazaret_adopt::kafka::{AdoptError, AdoptErrorKind, Adoption, Offsets, Report};
use lazaret_core::store::{Checkpoints, LetterStore, Limits};
use lazaret_core::{LetterState, Sequencing};
use lazaret_kafka_testkit::{LONG, Topic, broker, client, unique};
use lazaret_memory::MemoryStore;
use lazaret_testkit::{Profile, Unreliable};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use tokio::sync::watch;

use crate::support::*;

#[tokio::test]
async fn copies_of_one_message_are_one_letter_and_a_second_run_makes_none() {
    // I8
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker.clone(), 2).await;
    let second = Topic::new(broker, 1).await;
    spring_record(&dlt, 0, "k", 5).await;
    spring_record(&dlt, 1, "k", 5).await;
    // The same message also failed in the consumer of the dead letters, so Spring adds the headers again.
    let mut again = spring("orders", 0, 5);
    again.extend(spring(&dlt.name, 0, 0).split_off(4));
    write(&second, 0, Written { key: Some(b"k"), payload: Some(b"k:5"), headers: again, at: NOW }).await;
    let store = MemoryStore::default();
    let report = adoption(&dlt).run(&store).await.unwrap();
    assert_eq!((report.run.adopted, report.run.already_there), (1, 1));
    let report = adoption(&second).run(&store).await.unwrap();
    assert_eq!((report.run.adopted, report.run.already_there), (0, 1));
    let report = adoption(&dlt).run(&store).await.unwrap();
    assert_eq!((report.run.read, report.total.read), (0, 2));
    let report = adoption(&dlt).from_the_beginning().run(&store).await.unwrap();
    assert_eq!((report.run.adopted, report.run.already_there), (0, 2));
    assert_eq!(store.counts(&queue()).await.unwrap().open(), 1);
}

#[tokio::test]
async fn a_preview_tells_what_a_run_does_and_writes_nothing() {
    // I8, I11
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 2).await;
    for (partition, offset) in [(0, 5), (1, 5), (0, 6)] {
        spring_record(&dlt, partition, "k", offset).await;
    }
    let connect = some(&[
        ("__connect.errors.topic", text("payments")),
        ("__connect.errors.partition", text("3")),
        ("__connect.errors.offset", text("9")),
        ("__connect.errors.connector.name", text("sink")),
        ("__connect.errors.exception.class.name", text("com.shop.SinkException")),
    ]);
    let streams = some(&[
        ("__streams.errors.topic", text("orders")),
        ("__streams.errors.partition", text("1")),
        ("__streams.errors.offset", text("2")),
        ("__streams.errors.exception", text("com.shop.StreamException")),
    ]);
    let original = some(&[
        ("x-original-topic", text("orders")),
        ("x-original-partition", text("1")),
        ("x-original-offset", text("4")),
        ("x-exception-fqcn", text("com.shop.PaymentException")),
    ]);
    for headers in [connect, streams, original, Vec::new()] {
        write(&dlt, 0, Written { key: Some(b"p"), payload: Some(b"1"), headers, at: NOW }).await;
    }
    let store = MemoryStore::default();
    let preview = adoption(&dlt).preview(&store).await.unwrap();
    let origins: Vec<_> = preview
        .origins
        .iter()
        .map(|origin| (origin.format.as_str(), origin.topic.as_str(), origin.partition, origin.records))
        .collect();
    let expected = [
        ("spring", "orders", 0, 3),
        ("connect", "payments", 3, 1),
        ("streams", "orders", 1, 1),
        ("x-original", "orders", 1, 1),
    ];
    assert_eq!(origins, expected);
    assert_eq!(preview.origins[1].group.as_deref(), Some("connect-sink"));
    let causes: Vec<_> =
        preview.causes.iter().map(|cause| (cause.error_type.as_str(), cause.records)).collect();
    assert!(causes.contains(&("com.shop.SinkException", 1)), "{causes:?}");
    assert_eq!(causes.iter().map(|(_, records)| records).sum::<u64>(), 6);
    assert_eq!(preview.unknown_at.len(), 1);
    assert_eq!(store.counts(&queue()).await.unwrap().open(), 0);
    assert_eq!(store.load(&adoption(&dlt).checkpoint()).await.unwrap(), None);
    let report = adoption(&dlt).run(&store).await.unwrap();
    assert_eq!(preview.counts, report.run);
    // A preview skips what was adopted, unless everything is read again.
    assert_eq!(adoption(&dlt).preview(&store).await.unwrap().counts, Default::default());
    let again = adoption(&dlt).from_the_beginning().preview(&store).await.unwrap().counts;
    assert_eq!((again.adopted, again.already_there, again.unknown), (0, 6, 1));
}

#[tokio::test]
async fn letters_of_a_key_are_in_the_order_of_their_original_offsets() {
    // I2: the records are out of order because of retry topics and partitions.
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 3).await;
    for (position, offset) in [9, 2, 7, 4, 1, 8].into_iter().enumerate() {
        spring_record(&dlt, position as i32 % 3, "k", offset).await;
    }
    spring_record(&dlt, 0, "other", 3).await;
    let store = MemoryStore::default();
    adoption(&dlt).run(&store).await.unwrap();
    assert_eq!(sequence(&store, "k").await, [1, 2, 4, 7, 8, 9]);
    let apart = MemoryStore::default();
    adoption(&dlt).in_separate_sequences().run(&apart).await.unwrap();
    assert_eq!(sequence(&apart, "~dlt:k").await, [1, 2, 4, 7, 8, 9]);
    assert!(sequence(&apart, "k").await.is_empty());
    let alone = MemoryStore::default();
    adoption(&dlt).with_sequencing(Sequencing::Alone).run(&alone).await.unwrap();
    assert_eq!(alone.counts(&queue()).await.unwrap().sequences, 7);
}

/// Fills a topic quickly with records of `keys` keys, in order.
fn fill(dlt: &Topic, partitions: i32, count: i64, keys: i64) {
    let producer: BaseProducer = client(&dlt.brokers).create().unwrap();
    for offset in 0..count {
        let mut headers = OwnedHeaders::new();
        let written = spring("orders", 0, offset);
        for (key, value) in &written {
            headers = headers.insert(Header { key, value: value.as_deref() });
        }
        let key = format!("k{}", offset % keys);
        let partition = i32::try_from(offset).unwrap() % partitions;
        producer
            .send(BaseRecord::to(&dlt.name).partition(partition).key(&key).payload("p").headers(headers))
            .unwrap();
    }
    producer.flush(LONG).unwrap();
}

/// Asserts that all letters are there, in order.
async fn assert_whole(store: &impl LetterStore, count: i64, keys: i64) {
    let counts = store.counts(&queue()).await.unwrap();
    assert_eq!((counts.of(LetterState::Dead), counts.sequences), (count as u64, keys as u64));
    for key in 0..keys {
        let expected: Vec<u64> = (0..count).filter(|n| n % keys == key).map(|n| n as u64).collect();
        assert_eq!(sequence(store, &format!("k{key}")).await, expected, "k{key}");
    }
}

#[tokio::test]
async fn an_adoption_that_crashes_anywhere_continues_without_loss_or_duplicates() {
    // I1, I8: the store fails before and after its effects. Each failure ends the run as a crash would.
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 2).await;
    fill(&dlt, 2, 300, 7);
    let mut crashes = 0;
    for seed in 0..12 {
        let store = Unreliable::new(MemoryStore::default(), seed);
        store.set_profile(Profile { error: 0.08, error_after: 0.08, ..Profile::default() });
        let crashing = Adoption::of(&dlt.options().with_batch(20), &dlt.name)
            .into_queue(queue())
            .with_limits(Limits::NONE)
            .with_store_timeout(Duration::ZERO);
        let last: Report = loop {
            match crashing.run(&store).await {
                Ok(report) => break report,
                Err(AdoptError { kind: AdoptErrorKind::Store(_), .. }) => crashes += 1,
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(last.total.read, 300, "seed {seed}: {last:?}");
        assert_whole(store.inner(), 300, 7).await;
    }
    assert!(crashes > 12, "{crashes} crashes prove little");
}

#[tokio::test]
async fn a_task_that_is_killed_in_the_middle_loses_and_doubles_nothing() {
    // I1, I8
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 2).await;
    fill(&dlt, 2, 400, 5);
    // Calls are slow, so that a crash hits one of them.
    let store = Arc::new(Unreliable::new(MemoryStore::default(), 1));
    store.set_profile(Profile { latency: Duration::from_millis(2), ..Profile::default() });
    for crash in 1..6_u64 {
        let (seen, mut watched) = watch::channel(0_u64);
        let crashing = Adoption::of(&dlt.options().with_batch(10), &dlt.name)
            .into_queue(queue())
            .with_limits(Limits::NONE)
            .on_progress(move |report| {
                seen.send_replace(report.run.read);
            });
        let kept = store.clone();
        let task = tokio::spawn(async move { crashing.run(&*kept).await });
        let far = tokio::time::timeout(LONG, watched.wait_for(|read| *read >= crash * 10)).await;
        far.unwrap().unwrap();
        task.abort();
        let _ = task.await;
    }
    adoption(&dlt).run(&*store).await.unwrap();
    assert_whole(store.inner(), 400, 5).await;
}

#[tokio::test]
async fn two_adoptions_at_once_make_one_letter_each() {
    // I8
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 2).await;
    fill(&dlt, 2, 200, 5);
    let store = MemoryStore::default();
    let small =
        Adoption::of(&dlt.options().with_batch(7), &dlt.name).into_queue(queue()).with_limits(Limits::NONE);
    let (one, other) = tokio::join!(small.run(&store), small.run(&store));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!(one.run.adopted + other.run.adopted, 200);
    assert_whole(&store, 200, 5).await;
}

#[tokio::test]
async fn a_full_queue_stops_it_with_an_error_and_it_continues_when_there_is_space() {
    // I9
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 1).await;
    fill(&dlt, 1, 60, 20);
    let store = MemoryStore::default();
    let limits = Limits { max_sequences: Some(10), max_sequence_size: None };
    let error = adoption(&dlt).with_limits(limits).run(&store).await.unwrap_err();
    assert!(matches!(error.kind, AdoptErrorKind::Full(_)), "{error}");
    assert!(
        error.to_string().contains("stopped after 10 records (10 became letters): the queue is full"),
        "{error}"
    );
    assert_eq!(error.report.next, Offsets([(0, 10)].into()));
    let report = adoption(&dlt).run(&store).await.unwrap();
    // Letters after the one that did not fit were also stored.
    assert_eq!((report.total.read, report.run.already_there), (60, 20));
    assert_whole(&store, 60, 20).await;
}

#[tokio::test]
async fn a_bounded_adoption_ends_at_the_end_of_the_topic_and_a_following_one_continues() {
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 2).await;
    fill(&dlt, 2, 10, 2);
    let store = Arc::new(MemoryStore::default());
    let report = adoption(&dlt).run(&*store).await.unwrap();
    assert_eq!((report.run.adopted, report.left), (10, 0));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (seen, mut watched) = watch::channel(0_u64);
    let following = adoption(&dlt).on_progress(move |report| {
        seen.send_replace(report.run.adopted);
    });
    let kept = store.clone();
    let task = tokio::spawn(async move { following.follow(&*kept, async { drop(stopped.await) }).await });
    for offset in 100..105 {
        spring_record(&dlt, 0, "late", offset).await;
        let come =
            tokio::time::timeout(LONG, watched.wait_for(|adopted| *adopted == (offset - 99) as u64)).await;
        come.unwrap().unwrap();
    }
    stop.send(()).unwrap();
    let report = task.await.unwrap().unwrap();
    assert_eq!((report.run.adopted, report.total.adopted), (5, 15));
    assert_eq!(sequence(&*store, "late").await, [100, 101, 102, 103, 104]);
}

#[tokio::test]
async fn a_following_adoption_waits_for_brokers_that_are_away() {
    // I1
    let cluster = MockCluster::new(1).unwrap();
    let name = unique("m-");
    cluster.create_topic(&name, 1, 1).unwrap();
    let dlt = Topic::existing(cluster.bootstrap_servers(), &name);
    fill(&dlt, 1, 5, 1);
    let store = Arc::new(MemoryStore::default());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (seen, mut watched) = watch::channel(0_u64);
    let following = adoption(&dlt).on_progress(move |report| {
        seen.send_replace(report.run.adopted);
    });
    let kept = store.clone();
    let task = tokio::spawn(async move { following.follow(&*kept, async { drop(stopped.await) }).await });
    tokio::time::timeout(LONG, watched.wait_for(|adopted| *adopted == 5)).await.unwrap().unwrap();
    cluster.broker_down(1).unwrap();
    cluster.broker_up(1).unwrap();
    spring_record(&dlt, 0, "k0", 5).await;
    tokio::time::timeout(LONG, watched.wait_for(|adopted| *adopted == 6)).await.unwrap().unwrap();
    stop.send(()).unwrap();
    assert_eq!(task.await.unwrap().unwrap().run.adopted, 6);
    assert_whole(&*store, 6, 1).await;
}

#[tokio::test]
async fn transactions_and_their_marks_do_not_keep_it_from_the_end() {
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker.clone(), 1).await;
    let producer: BaseProducer = client(&broker).set("transactional.id", unique("tx-")).create().unwrap();
    producer.init_transactions(LONG).unwrap();
    for (offset, commit) in [(1, true), (2, false), (3, true), (4, false)] {
        producer.begin_transaction().unwrap();
        let mut headers = OwnedHeaders::new();
        let written = spring("orders", 0, offset);
        for (key, value) in &written {
            headers = headers.insert(Header { key, value: value.as_deref() });
        }
        producer.send(BaseRecord::to(&dlt.name).partition(0).key("k").payload("p").headers(headers)).unwrap();
        producer.flush(LONG).unwrap();
        match commit {
            true => producer.commit_transaction(LONG).unwrap(),
            false => producer.abort_transaction(LONG).unwrap(),
        }
    }
    let store = MemoryStore::default();
    let report = adoption(&dlt).run(&store).await.unwrap();
    assert_eq!((report.run.adopted, report.left), (2, 0));
    assert_eq!(sequence(&store, "k").await, [1, 3]);
    let report = adoption(&dlt).run(&store).await.unwrap();
    assert_eq!(report.run.read, 0);
}

#[tokio::test]
async fn nobody_who_reads_the_topic_notices() {
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 1).await;
    fill(&dlt, 1, 5, 1);
    dlt.set_committed(0, 2, "theirs");
    let store = MemoryStore::default();
    adoption(&dlt).run(&store).await.unwrap();
    assert_eq!(dlt.committed(0), Some((2, "theirs".to_owned())), "the group has its position still");
}

#[tokio::test]
async fn what_was_deleted_before_it_was_adopted_is_counted() {
    // I11
    use rdkafka::admin::{AdminClient, AdminOptions};
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 1).await;
    fill(&dlt, 1, 4, 1);
    let store = MemoryStore::default();
    adoption(&dlt).run(&store).await.unwrap();
    fill(&dlt, 1, 4, 1);
    let admin: AdminClient<rdkafka::client::DefaultClientContext> = client(&dlt.brokers).create().unwrap();
    let mut list = rdkafka::TopicPartitionList::new();
    list.add_partition_offset(&dlt.name, 0, rdkafka::Offset::Offset(6)).unwrap();
    admin.delete_records(&list, &AdminOptions::new()).await.unwrap();
    let report = adoption(&dlt).run(&store).await.unwrap();
    assert_eq!((report.run.gone, report.run.read), (2, 2));
}

fn assert_contains(error: &AdoptError, words: &[&str]) {
    for word in words {
        assert!(error.to_string().contains(word), "{error} does not contain {word:?}");
    }
}

#[tokio::test]
async fn a_topic_that_does_not_exist_is_named() {
    let Some(broker) = broker() else { return };
    let topic = Topic::existing(broker, &unique("missing-"));
    let impatient = topic.options().with_topic_timeout(Duration::from_millis(500));
    let adoption = Adoption::of(&impatient, &topic.name).into_queue(queue());
    let error = adoption.run(&MemoryStore::default()).await.unwrap_err();
    assert_contains(&error, &[&topic.name, "does not exist"]);
}

#[tokio::test]
async fn brokers_that_are_away_are_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let topic = Topic::existing(address.clone(), "dlt");
    let error = adoption(&topic).run(&MemoryStore::default()).await.unwrap_err();
    assert_contains(&error, &[&address]);
}

#[tokio::test]
async fn a_topic_that_is_denied_is_said_to_be_denied_and_no_group_is_needed() {
    let Some(broker) = broker() else { return };
    let open = Topic::with_config(broker.clone(), &unique("open-"), 1, &[]).await;
    let closed = Topic::new(broker, 1).await;
    fill(&open, 1, 3, 1);
    // This user may not join the group.
    let Some(options) = lazaret_kafka_testkit::with_password(&closed.name, "closed-group", None) else {
        return;
    };
    let store = MemoryStore::default();
    let error = Adoption::of(&options, &closed.name).into_queue(queue()).run(&store).await.unwrap_err();
    assert_contains(&error, &[&closed.name, "denied", "grant READ"]);
    let report = Adoption::of(&options, &open.name).into_queue(queue()).run(&store).await.unwrap();
    assert_eq!(report.run.adopted, 3);
}

#[tokio::test]
async fn progress_is_in_the_store_under_a_name_of_its_own() {
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 1).await;
    fill(&dlt, 1, 3, 1);
    let store = MemoryStore::default();
    let adoption = adoption(&dlt);
    adoption.run(&store).await.unwrap();
    assert_eq!(adoption.checkpoint(), format!("adopt/billing/billing/{}", dlt.name));
    let checkpoint = store.load(&adoption.checkpoint()).await.unwrap().unwrap();
    assert_eq!(checkpoint.metadata["adopted"], "3");
}
