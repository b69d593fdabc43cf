//! Passing on in transactions: the record and the position of what it was made of, both or neither.
//!
//! To see what a crashed process leaves behind, this test program starts itself again as a consumer that crashes.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod chained;
mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use chained::{Call, Chained, millis, payload_of, retry};
use lazaret_core::{HandlerError, Reason};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};
use support::{LONG, Topic, broker, client, has_no_ranges};

/// Tells a process that it is the one that crashes, where, and on which topic.
const DIE_AT: &str = "LAZARET_TEST_DIE_AT";
const TOPIC: &str = "LAZARET_TEST_TOPIC";
const DELAY: Duration = millis(1500);

fn fails_once(call: &Call) -> Result<(), HandlerError> {
    match call.attempt {
        1 => Err(HandlerError::msg("no").reason(Reason::TIMEOUT)),
        _ => Ok(()),
    }
}

/// The committed position, without waiting for transactions that are open.
fn committed(topic: &Topic) -> u64 {
    let mut config = client(&topic.brokers);
    config.set("group.id", &topic.group).set("isolation.level", "read_uncommitted");
    let consumer: BaseConsumer = config.create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition(&topic.name, 0);
    match consumer.committed_offsets(list, LONG).unwrap().elements()[0].offset() {
        Offset::Offset(offset) => offset.unsigned_abs(),
        _ => 0,
    }
}

/// How many records of a partition a reader sees that reads only what is committed.
fn visible(brokers: &str, topic: &str) -> usize {
    let consumer: BaseConsumer = client(brokers)
        .set("group.id", "nobody")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .create()
        .unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
    consumer.assign(&list).unwrap();
    let (mut count, until) = (0, Instant::now() + LONG);
    loop {
        assert!(Instant::now() < until, "there is no end of {topic}");
        match consumer.poll(millis(100)) {
            Some(Ok(_)) => count += 1,
            Some(Err(KafkaError::PartitionEOF(_))) => return count,
            Some(Err(error)) => panic!("{error}"),
            None => {}
        }
    }
}

/// Kills a consumer at this point of the transaction that passes a message on, and looks at what is there.
async fn crashes_at(test: &str, point: &str) {
    let Some(broker) = broker() else { return };
    if let (Ok(point), Ok(topic)) = (std::env::var(DIE_AT), std::env::var(TOPIC)) {
        let chained = Chained::of(Topic::existing(broker, &topic)).in_transactions(&topic).dying_at(&point);
        let _running = chained.start(retry(DELAY), fails_once).await;
        return std::future::pending().await;
    }
    let chained = Chained::new(broker, 1).await;
    let topic = &chained.topic;
    topic.push(0, "a").await;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(DIE_AT, point)
        .env(TOPIC, &topic.name)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let ended = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
    assert!(!ended.success(), "it crashed at {point}");
    let retries = chained.retry_topic(DELAY);
    let position = committed(topic);
    let passed = visible(&topic.brokers, &retries) as u64;
    assert_eq!(passed, position, "{point}: both or neither");
    assert_eq!(passed, u64::from(point == "committed"));
    // Whoever takes over ends what was left open.
    let running = chained.in_transactions(&topic.name).start(retry(DELAY), fails_once).await;
    chained.until("it is handled", |calls| calls.iter().any(|call| call.attempt == 2)).await;
    let attempts: Vec<u32> = chained.calls().iter().map(|call| call.attempt).collect();
    let expected = if point == "committed" { vec![2] } else { vec![1, 2] };
    assert_eq!(attempts, expected, "{point}");
    running.stop().await;
    assert_eq!(visible(&topic.brokers, &retries), 1, "{point}: one copy");
    assert_eq!(topic.committed(0).unwrap().0, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_when_the_transaction_has_begun_leaves_neither() {
    // I1, I8
    crashes_at("a_crash_when_the_transaction_has_begun_leaves_neither", "begun").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_when_the_record_is_written_leaves_neither() {
    // I1, I8
    crashes_at("a_crash_when_the_record_is_written_leaves_neither", "produced").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_when_the_position_is_sent_leaves_neither() {
    // I1, I8
    crashes_at("a_crash_when_the_position_is_sent_leaves_neither", "offsets sent").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_when_the_transaction_is_committed_leaves_both() {
    // I1, I8
    crashes_at("a_crash_when_the_transaction_is_committed_leaves_both", "committed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relayed_message_is_settled_beyond_a_message_that_still_runs() {
    // I1, I8: completion is out of order, so the position stays and its metadata holds the rest.
    let Some(broker) = broker() else { return };
    let chained = Chained::new(broker, 1).await;
    for payload in ["wait", "fail", "fine"] {
        chained.send(0, payload);
    }
    let never_commits =
        chained.committing_every(Duration::from_secs(1000)).in_transactions(&chained.topic.name);
    let running = never_commits.start(retry(DELAY), fails_once_if_fail).await;
    chained.topic.until_committed(0, |offset, metadata| offset == 0 && !has_no_ranges(metadata));
    assert_eq!(visible(&chained.topic.brokers, &chained.retry_topic(DELAY)), 1);
    running.crash().await;
    chained.open.send_replace(true);
    let tried = chained.calls().len();
    let running = chained.in_transactions(&chained.topic.name).start(retry(DELAY), fails_once_if_fail).await;
    chained.until("it is handled", |calls| calls[tried..].iter().any(|call| call.attempt == 2)).await;
    chained.topic.until_committed(0, |offset, _| offset == 3);
    running.stop().await;
    let again = chained.calls()[tried..].to_vec();
    let failed_again = again.iter().filter(|c| payload_of(&c.message) == "fail" && c.attempt == 1).count();
    assert_eq!(failed_again, 0, "a relayed message is read from its retry topic only");
}

fn fails_once_if_fail(call: &Call) -> Result<(), HandlerError> {
    if payload_of(&call.message).starts_with("fail") { fails_once(call) } else { Ok(()) }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_messages_share_transactions_and_two_members_share_the_work() {
    // I1, I4
    const MESSAGES: usize = 400;
    let Some(broker) = broker() else { return };
    let chained = Chained::new(broker, 4).await;
    let ids = ["a", "b"].map(|member| format!("{}-{member}", chained.topic.name));
    let first = chained.in_transactions(&ids[0]).start(retry(DELAY), fails_once_if_fail).await;
    let started = Instant::now();
    for number in 0..MESSAGES {
        let fails = if number % 2 == 0 { "fail" } else { "fine" };
        chained.send((number % 4) as i32, &format!("{fails}{number}"));
    }
    chained.until_event("Relayed", MESSAGES / 2).await;
    println!("{} messages were passed on in {:?}", MESSAGES / 2, started.elapsed());
    let second = chained.in_transactions(&ids[1]).start(retry(DELAY), fails_once_if_fail).await;
    chained
        .until("all are handled", |calls| {
            let mut handled: Vec<_> = calls
                .iter()
                .filter(|call| call.attempt == 2 || payload_of(&call.message).starts_with("fine"))
                .map(|call| call.message.id.clone())
                .collect();
            handled.sort();
            handled.dedup();
            handled.len() == MESSAGES
        })
        .await;
    first.stop().await;
    second.stop().await;
    assert!(chained.calls().iter().all(|call| call.attempt <= 2));
    for partition in 0..4 {
        let end = chained.topic.end(partition);
        chained.topic.until_committed(partition, |offset, _| offset == end);
    }
}

#[tokio::test]
async fn transactions_and_reading_what_is_not_committed_do_not_go_together() {
    let Some(broker) = broker() else { return };
    let chained = Chained::new(broker, 1).await.in_transactions("id");
    let options = chained.topic.options().with_property("isolation.level", "read_uncommitted");
    let opened = lazaret_source_kafka::KafkaRelay::open(&options, chained.topics(&retry(DELAY))).await;
    assert!(opened.unwrap_err().to_string().contains("read_committed"));
}
