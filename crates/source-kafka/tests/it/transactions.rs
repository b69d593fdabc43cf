//! Relaying in transactions: the record and the position of its original message are both written, or
//! neither.
//!
//! To see what a crashed process leaves behind, this test program starts itself again as a consumer that
//! crashes or is killed.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lazaret_core::{HandlerError, Reason};
use lazaret_testkit::{Instance, Journal};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

use crate::chained::{Call, Chained, millis, payload_of, retry};
use crate::support::{LONG, Topic, broker, client, has_no_ranges};

/// The environment variable that makes a process crash at this point, followed by the variable for its topic.
const DIE_AT: &str = "LAZARET_TEST_DIE_AT";
const TOPIC: &str = "LAZARET_TEST_TOPIC";
const DELAY: Duration = millis(1500);

fn fails_once(call: &Call) -> Result<(), HandlerError> {
    match call.attempt {
        1 => Err(HandlerError::msg("no").reason(Reason::TIMEOUT)),
        _ => Ok(()),
    }
}

/// Returns the committed position, without waiting for open transactions.
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

/// Returns the number of records of a partition that a read-committed reader sees.
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

/// Crashes a consumer at this point of the transaction that relays a message, and checks the result.
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
        .args(["--exact", &format!("transactions::{test}"), "--nocapture"])
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
    // The successor ends the transaction that was left open.
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

/// Runs a consumer that is to be killed. The first transaction that reaches its point after the test
/// allows `stop` does not continue.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the other tests, in its own process"]
async fn killed() {
    let [broker, topic, folder, point] = Instance::arguments();
    let journal = Journal::new(folder);
    let stopped = journal.clone();
    let stops = move |step: &'static str| {
        if step == point && stopped.is_allowed("stop") {
            stopped.write("transaction stopped");
            loop {
                std::thread::park();
            }
        }
    };
    let chained = Chained::of(Topic::existing(broker, &topic));
    let chained = chained.in_transactions(&topic).calling_in_transactions(stops);
    let script = move |call: &Call| {
        journal.write(&effect(call));
        fails_once_if_fail(call)
    };
    let _running = chained.start(retry(DELAY), script).await;
    std::future::pending::<()>().await;
}

/// Returns the name of an effect: an attempt of a message.
fn effect(call: &Call) -> String {
    format!("{} {}", payload_of(&call.message), call.attempt)
}

/// Kills a consumer while a transaction is at this point, and compares its effects with its successor's.
async fn repeats_at_most_one_transaction(point: &str) {
    const MESSAGES: usize = 60;
    let Some(broker) = broker() else { return };
    let (folder, chained) = (tempfile::tempdir().unwrap(), Chained::new(broker, 1).await);
    let (topic, journal) = (&chained.topic, Journal::new(folder.path()));
    let send_all = |prefix: &str| {
        let name = |n: usize| format!("{}-{prefix}-{n}", if n.is_multiple_of(3) { "fail" } else { "fine" });
        let payloads: Vec<String> = (0..MESSAGES).map(name).collect();
        payloads.iter().for_each(|payload| chained.send(0, payload));
        payloads
    };
    let folder = folder.path().display().to_string();
    let child = Instance::start("transactions::killed", &[&topic.brokers, &topic.name, &folder, point]);
    // Well before the kill, all of these are handled, their retries too, and everything is committed.
    let before = send_all("before");
    let fails = |payloads: &[String]| payloads.iter().filter(|payload| payload.starts_with("fail")).count();
    let effects = before.len() + fails(&before);
    journal.until("all effects of the first messages", |journal| journal.lines().len() >= effects).await;
    chained.until_everything_read_is_committed().await;
    let committed: BTreeSet<String> = journal.lines().into_iter().collect();
    assert_eq!((committed.len(), journal.lines().len()), (effects, effects), "{point}: each of them once");
    // One message is in the transaction that stops. The others are handled while it does not end.
    journal.allow("stop");
    topic.push(0, "fail-in-it").await;
    journal.until("the transaction to stop", |journal| journal.has("transaction stopped", 0)).await;
    let meanwhile = send_all("meanwhile");
    let all_are_tried = |journal: &Journal| {
        let lines: BTreeSet<String> = journal.lines().into_iter().collect();
        meanwhile.iter().all(|payload| lines.contains(&format!("{payload} 1")))
    };
    journal.until("the messages behind it", all_are_tried).await;
    child.kill();
    let done: BTreeSet<String> =
        journal.lines().into_iter().filter(|line| line != "transaction stopped").collect();
    let running = chained.in_transactions(&topic.name).start(retry(DELAY), fails_once_if_fail).await;
    let is_over = |calls: &[Call]| {
        let succeeded = |payload: &String| {
            let attempt = if payload.starts_with("fail") { 2 } else { 1 };
            let is_it = |call: &Call| payload_of(&call.message) == *payload && call.attempt == attempt;
            calls.iter().any(is_it)
        };
        meanwhile.iter().all(succeeded) && succeeded(&"fail-in-it".to_owned())
    };
    chained.until("none is lost", is_over).await;
    running.stop().await;
    chained.until_everything_read_is_committed().await;
    let after: Vec<String> = chained.calls().iter().map(effect).collect();
    let repeated: BTreeSet<String> = after.iter().filter(|effect| done.contains(*effect)).cloned().collect();
    // I8: a copy exists once, so an attempt is made once.
    assert_eq!(after.iter().collect::<BTreeSet<_>>().len(), after.len(), "{point}: {after:?}");
    let of_committed: Vec<_> = repeated.intersection(&committed).collect();
    assert_eq!(of_committed, Vec::<&String>::new(), "{point}: what was committed is not repeated");
    assert_eq!(repeated.contains("fail-in-it 1"), point != "committed", "{point}: {repeated:?}");
    // These were handled while the transaction did not end, plus the message in the transaction, or its
    // retry.
    assert!((MESSAGES..=MESSAGES + 1).contains(&repeated.len()), "{point}: {repeated:?}");
    let copies = fails(&before) + fails(&meanwhile) + 1;
    assert_eq!(visible(&topic.brokers, &chained.retry_topic(DELAY)), copies, "{point}: one copy of each");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_within_a_transaction_repeats_what_is_in_it_and_what_was_handled_meanwhile() {
    // I1, I8
    repeats_at_most_one_transaction("offsets sent").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_behind_a_transaction_repeats_what_was_handled_meanwhile() {
    // I1, I8
    repeats_at_most_one_transaction("committed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relayed_message_is_settled_beyond_a_message_that_still_runs() {
    // I1, I8: completion is out of order, so the position stays, and its metadata holds the settled ranges.
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
