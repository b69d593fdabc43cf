//! Retry topics and dead-letter topics on a real broker: failed messages are relayed, return when they
//! are due, and end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lazaret_core::policy::RetryPolicy;
use lazaret_core::store::LetterStore;
use lazaret_core::{HandlerError, LetterState, QueueName, Reason};
use lazaret_memory::MemoryStore;
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::FutureRecord;

use crate::chained::{self, Call, Chained, millis, payload_of, retry};
use crate::support::{LONG, Topic, broker};

/// A key and a payload.
type Pair<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_the_same_after_three_hops_and_in_the_dead_letter_topic() {
    // I4, I5
    let Some(broker) = broker() else { return };
    let chained = Chained::new(broker, 3).await;
    let all: Vec<u8> = (0..=255).collect();
    let an_hour_ago = lazaret_core::Timestamp::now().as_millisecond() - 3_600_000;
    let own = [
        ("tenant", Some(&all[..])),
        ("x-correlation-id", Some(b"theirs")),
        ("null", None),
        ("empty", Some(b"")),
    ];
    let headers = || {
        own.iter().fold(OwnedHeaders::new(), |headers, &(key, value)| headers.insert(Header { key, value }))
    };
    let sent: [Pair<'_>; 4] =
        [(Some(&all), Some(&all)), (Some(b""), None), (None, Some(b"")), (None, Some(b"fail"))];
    for (number, (key, payload)) in sent.iter().enumerate() {
        let mut record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(&chained.topic.name)
            .partition(number as i32 % 3)
            .headers(headers())
            .timestamp(an_hour_ago);
        (record.key, record.payload) = (*key, *payload);
        chained.topic.producer.send(record, LONG).await.unwrap();
    }
    let policy = RetryPolicy { max_attempts: 4, ..retry(millis(50)) };
    let running =
        chained.start(policy, |_| Err(HandlerError::msg("no").verdict(lazaret_core::Verdict::Retry))).await;
    chained.until("all are tried four times", |calls| calls.len() == 16).await;
    let dead = chained.read(&chained.dead_topic(), 4).await;
    let mut got: Vec<_> = dead
        .iter()
        .map(|record| {
            (record.partition(), record.key().map(<[u8]>::to_vec), record.payload().map(<[u8]>::to_vec))
        })
        .collect();
    let mut expected: Vec<_> = sent
        .iter()
        .enumerate()
        .map(|(n, (key, payload))| (n as i32 % 3, key.map(<[u8]>::to_vec), payload.map(<[u8]>::to_vec)))
        .collect();
    got.sort();
    expected.sort();
    assert_eq!(got, expected);
    for record in &dead {
        let relayed = chained::relayed(record);
        let values: Vec<_> =
            relayed.headers.iter_nullable().map(|(n, v)| (n, v.map(Bytes::as_ref))).collect();
        assert_eq!(values, own, "the headers are those that were sent");
        assert_eq!((relayed.attempts, relayed.stream.as_str()), (4, chained.topic.name.as_str()));
        assert_eq!(relayed.timestamp.unwrap().as_millisecond(), an_hour_ago);
        assert_eq!(relayed.state, Some(LetterState::Dead));
        assert!(relayed.first_failed_at.unwrap() < relayed.last_failed_at.unwrap());
        assert!(record.timestamp().to_millis().unwrap() > an_hour_ago, "it is as old as it is in this topic");
    }
    let mut attempts: BTreeMap<_, Vec<u32>> = BTreeMap::new();
    for call in chained.calls() {
        attempts.entry(call.message.id.clone()).or_default().push(call.attempt);
        assert_eq!(call.message.stream.as_str(), chained.topic.name, "the handler sees the original stream");
        assert_eq!(call.message.headers.len(), own.len());
    }
    assert!(attempts.values().all(|attempts| *attempts == [1, 2, 3, 4]), "{attempts:?}");
    running.stop().await;
    chained.assert_all_committed();
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_are_counted_across_hops_and_restarts() {
    // I4: every instance makes one attempt and crashes.
    let Some(broker) = broker() else { return };
    let chained = Chained::new(broker, 1).await;
    chained.topic.push(0, "a").await;
    let policy = RetryPolicy { max_attempts: 4, multiplier: 1.0, ..retry(millis(3000)) };
    for attempt in 1..=4 {
        let fails = move |call: &Call| {
            assert_eq!(call.attempt, attempt);
            Err(HandlerError::msg(format!("text {attempt}")).reason(Reason::TIMEOUT))
        };
        let running = chained.up_to_attempt(attempt).start(policy.clone(), fails).await;
        chained.until("it is tried", |calls| calls.len() == attempt as usize).await;
        chained.until_everything_read_is_committed().await;
        running.crash().await;
    }
    let dead = chained.read(&chained.dead_topic(), 1).await;
    let relayed = chained::relayed(&dead[0]);
    assert_eq!((relayed.attempts, relayed.failure.unwrap().reason), (4, Reason::TIMEOUT));
    let attempts: Vec<u32> = chained.calls().iter().map(|call| call.attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_flows_while_far_more_retries_wait_than_the_window_has_room_for() {
    // I3
    const MESSAGES: usize = 600;
    let Some(broker) = broker() else { return };
    let chained = Chained::new(broker, 2).await;
    let script = |call: &Call| match payload_of(&call.message).starts_with("fail") {
        true => Err(HandlerError::msg("no").reason(Reason::TIMEOUT)),
        false => Ok(()),
    };
    // No retry is due while the test runs, however slow it is.
    let running = chained.with_window(32).start(retry(Duration::from_secs(3600)), script).await;
    for number in 0..MESSAGES {
        chained.send((number % 2) as i32, &format!("fail{number}"));
    }
    chained.until("all failed once", |calls| calls.len() == MESSAGES).await;
    (0..100).for_each(|number| chained.send(number % 2, &format!("ok{number}")));
    chained.until("the others are handled", |calls| calls.len() == MESSAGES + 100).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_are_never_early() {
    // I12: with jitter, messages are not due in their order.
    const MESSAGES: usize = 600;
    let Some(broker) = broker() else { return };
    let chained = Chained::new(broker, 2).await;
    let policy = RetryPolicy { jitter: 0.25, ..retry(millis(8000)) };
    let script = |call: &Call| match payload_of(&call.message).starts_with("fail") && call.attempt == 1 {
        true => Err(HandlerError::msg("no").reason(Reason::TIMEOUT)),
        false => Ok(()),
    };
    let running = chained.with_window(32).start(policy, script).await;
    for number in 0..MESSAGES {
        chained.send((number % 2) as i32, &format!("fail{number}"));
    }
    chained.until("all are handled", |calls| calls.len() == MESSAGES * 2).await;
    let (mut early, mut late, mut spread) = (0, Duration::ZERO, Vec::new());
    for call in chained.calls().iter().filter(|call| call.attempt == 2) {
        let due = call.message.hop.as_ref().unwrap().due_at;
        match Duration::try_from(call.at.duration_since(due)) {
            Ok(by) => late = late.max(by),
            Err(_) => early += 1,
        }
        spread.push(call.at);
    }
    let spread =
        Duration::try_from(spread.iter().max().unwrap().duration_since(*spread.iter().min().unwrap()))
            .unwrap();
    println!("lateness at most {late:?}, spread over {spread:?}");
    assert_eq!(early, 0);
    assert!(spread > millis(3200), "{spread:?}");
    running.stop().await;
    chained.assert_all_committed();
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_come_and_go_during_the_delay_change_neither_number_nor_time() {
    // I1, I4, I12
    let Some(broker) = broker() else { return };
    let chained = Chained::new(broker, 4).await;
    let script = |call: &Call| match call.attempt {
        1 | 2 => Err(HandlerError::msg("no").reason(Reason::TIMEOUT)),
        _ => Ok(()),
    };
    let policy = RetryPolicy { multiplier: 1.0, ..retry(millis(4000)) };
    let first = chained.start(policy.clone(), script).await;
    (0..40).for_each(|number| chained.send(number % 4, &number.to_string()));
    chained.until("all failed once", |calls| calls.len() >= 40).await;
    let second = chained.start(policy.clone(), script).await;
    chained.until("some failed twice", |calls| calls.iter().any(|call| call.attempt == 2)).await;
    first.stop().await;
    let third = chained.start(policy, script).await;
    chained
        .until("all are handled", |calls| calls.iter().filter(|call| call.attempt == 3).count() >= 40)
        .await;
    for call in chained.calls() {
        if let Some(hop) = &call.message.hop {
            assert!(call.at >= hop.due_at, "never early: {} {}", call.at, hop.due_at);
        }
    }
    let mut handled: Vec<_> =
        chained.calls().iter().filter(|c| c.attempt == 3).map(|c| c.message.id.clone()).collect();
    handled.sort();
    handled.dedup();
    assert_eq!(handled.len(), 40);
    assert!(chained.calls().iter().all(|call| call.attempt <= 3));
    second.stop().await;
    third.stop().await;
    chained.assert_all_committed();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_publish_and_commit_leaves_two_copies_with_one_id_and_one_effect() {
    // I1, I8
    let Some(broker) = broker() else { return };
    let chained = Chained::new(broker, 1).await;
    chained.topic.push(0, "a").await;
    let script = |call: &Call| match call.attempt {
        1 => Err(HandlerError::msg("no").reason(Reason::TIMEOUT)),
        _ => Ok(()),
    };
    let never_commits = chained.committing_every(Duration::from_secs(1000));
    let running = never_commits.start(retry(millis(3000)), script).await;
    chained.read(&chained.retry_topic(millis(3000)), 1).await;
    running.crash().await;
    let running = chained.start(retry(millis(3000)), script).await;
    let copies = chained.read(&chained.retry_topic(millis(3000)), 2).await;
    let ids: Vec<String> = copies.iter().map(|copy| chained::relayed(copy).handover).collect();
    assert_eq!(ids[0], ids[1]);
    chained.until("it is handled", |calls| calls.iter().any(|call| call.attempt == 2)).await;
    chained.until_event("Duplicate", 1).await;
    let handled = chained.calls().iter().filter(|call| call.attempt == 2).count();
    assert_eq!(handled, 1, "one effect");
    assert_eq!(running.stop().await.duplicates, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bounded_run_waits_for_relayed_messages() {
    let Some(broker) = broker() else { return };
    let chained = Chained::new(broker, 2).await;
    (0..10).for_each(|number| chained.send(number % 2, &number.to_string()));
    let script = |call: &Call| match (payload_of(&call.message).as_str(), call.attempt) {
        ("3", 1 | 2) => Err(HandlerError::msg("no").reason(Reason::TIMEOUT)),
        ("4", _) => Err(HandlerError::msg("no").reason(Reason::TIMEOUT)),
        _ => Ok(()),
    };
    let stats = chained.run_to_end(retry(millis(300)), script).await;
    assert_eq!((stats.handled, stats.relayed), (9, 5));
    assert_eq!(chained.read(&chained.dead_topic(), 1).await.len(), 1);
    chained.assert_all_committed();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_in_a_topic_that_is_drained_is_tried_when_it_is_due() {
    // I1: the delay was changed from 2 s to 1 s.
    let Some(broker) = broker() else { return };
    let chained = Chained::new(broker, 1).await;
    chained.topic.push(0, "old").await;
    let script = |call: &Call| match call.attempt {
        1 => Err(HandlerError::msg("no").reason(Reason::TIMEOUT)),
        _ => Ok(()),
    };
    let running = chained.start(retry(millis(2000)), script).await;
    chained.read(&chained.retry_topic(millis(2000)), 1).await;
    running.stop().await;
    let running = chained.draining(millis(2000)).start(retry(millis(1000)), script).await;
    chained.topic.push(0, "new").await;
    chained.until("both are handled", |calls| calls.iter().filter(|c| c.attempt == 2).count() == 2).await;
    assert_eq!(chained.read(&chained.retry_topic(millis(1000)), 1).await.len(), 1);
    running.stop().await;
    chained.assert_all_committed();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_record_is_written_with_minimal_headers_and_then_stored_as_a_letter() {
    // I1, I7
    let Some(broker) = broker() else { return };
    let chained = Chained::new(broker.clone(), 1).await;
    Topic::with_config(broker, &chained.dead_topic(), 1, &[("max.message.bytes", "4000")]).await;
    let payloads = ["x".repeat(3000), "y".repeat(3900)];
    for payload in &payloads {
        chained.topic.push(0, payload).await;
    }
    let store = Arc::new(MemoryStore::default());
    let script = |_: &Call| Err(HandlerError::msg("long ".repeat(200)).reason(Reason::DOMAIN_INVALID));
    let running =
        chained.with_store(store.clone()).with_spring_headers().start(retry(millis(100)), script).await;
    chained.until("both failed", |calls| calls.len() == 2).await;
    let dead = chained.read(&chained.dead_topic(), 2).await;
    let (claims, dead): (Vec<_>, Vec<_>) =
        dead.into_iter().partition(|record| chained::relayed(record).claim.is_some());
    assert_eq!(dead[0].payload().unwrap(), payloads[0].as_bytes(), "the bytes are whole");
    let names: Vec<String> = dead[0].headers().unwrap().iter().map(|header| header.key.to_owned()).collect();
    assert!(!names.iter().any(|name| name == "x-exception-message-safe" || name.starts_with("kafka_dlt")));
    let claim = chained::relayed(&claims[0]);
    let letter = store.get(&QueueName::of("mail", "mail"), claim.claim.unwrap()).await.unwrap().unwrap();
    assert_eq!(letter.message.payload.as_deref(), Some(payloads[1].as_bytes()), "the letter is whole");
    assert!(claims[0].payload().is_some(), "a claim is no tombstone");
    chained.until_everything_read_is_committed().await;
    let counts = store.counts(&QueueName::of("mail", "mail")).await.unwrap();
    assert_eq!(counts.of(LetterState::Dead), 1, "the other one is in the store, whole");
    assert!(running.stop().await.relay_failures >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_too_large_for_its_retry_topic_and_dies_in_the_store_gets_a_claim_check() {
    let Some(broker) = broker() else { return };
    for transactional in [false, true] {
        let (delay, chained) = (millis(100), Chained::new(broker.clone(), 1).await);
        let limit = [("max.message.bytes", "2000")];
        Topic::with_config(broker.clone(), &chained.retry_topic(delay), 1, &limit).await;
        let id = chained.topic.name.clone();
        let chained = if transactional { chained.in_transactions(&id) } else { chained };
        chained.topic.push(0, &"x".repeat(5000)).await;
        let policy = RetryPolicy { max_attempts: 2, ..retry(delay) };
        let running = chained.start(policy, |_| Err(HandlerError::msg("no").reason(Reason::TIMEOUT))).await;
        let dead = chained.read(&chained.dead_topic(), 1).await;
        let claim = chained::relayed(&dead[0]);
        assert_eq!((claim.claim.is_some(), claim.attempts), (true, 2), "transactional: {transactional}");
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_a_retry_topic_with_one_forged_id_are_all_handled() {
    // I1: if they were settled as copies of each other, all but one would be lost.
    let Some(broker) = broker() else { return };
    let chained = Chained::new(broker, 1).await;
    chained.topic.push(0, "real").await;
    let script = |call: &Call| match call.attempt {
        1 => Err(HandlerError::msg("no").reason(Reason::TIMEOUT)),
        _ => Ok(()),
    };
    let retries = chained.retry_topic(millis(500));
    let running = chained.start(retry(millis(500)), script).await;
    let real = chained.read(&retries, 1).await.remove(0);
    for payload in ["forged-1", "forged-2", "real"] {
        let record = FutureRecord::to(&retries).partition(0).key("key").payload(payload);
        chained.topic.send(record.headers(real.headers().unwrap().clone())).await;
    }
    let handled = |calls: &[Call]| {
        let again = calls.iter().filter(|call| call.attempt == 2);
        let mut payloads: Vec<String> = again.map(|call| payload_of(&call.message)).collect();
        payloads.sort();
        payloads
    };
    chained.until("all are handled", |calls| handled(calls) == ["forged-1", "forged-2", "real"]).await;
    chained.until_everything_read_is_committed().await;
    let stats = running.stop().await;
    assert_eq!((stats.id_conflicts, stats.duplicates), (2, 1), "the last one is a copy of the first");
}

#[tokio::test(flavor = "multi_thread")]
async fn springs_headers_are_added_when_configured() {
    let Some(broker) = broker() else { return };
    let chained = Chained::new(broker, 2).await;
    chained.topic.push(1, "a").await;
    let script =
        |_: &Call| Err(HandlerError::foreign("BadOrder", "no such order").reason(Reason::DOMAIN_INVALID));
    let running = chained.with_spring_headers().start(retry(millis(100)), script).await;
    let dead = chained.read(&chained.dead_topic(), 1).await;
    let get = |name: &str| {
        let headers = dead[0].headers().unwrap();
        headers
            .iter()
            .filter(|header| header.key == name)
            .last()
            .and_then(|header| header.value)
            .map(<[u8]>::to_vec)
    };
    assert_eq!(get("kafka_dlt-original-topic").unwrap(), chained.topic.name.as_bytes());
    assert_eq!(get("kafka_dlt-original-partition").unwrap(), 1_i32.to_be_bytes());
    assert_eq!(get("kafka_dlt-original-offset").unwrap(), 0_i64.to_be_bytes());
    assert_eq!(get("kafka_dlt-exception-fqcn").unwrap(), b"BadOrder");
    assert_eq!(get("x-failure-reason").unwrap(), b"DOMAIN_INVALID");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_begins_at_the_end_of_a_topic_misses_nothing_in_its_retry_topics() {
    // I1: the instance that relayed the message crashed before it read the retry topic.
    let Some(broker) = broker() else { return };
    let chained = Chained::new(broker, 1).await;
    let script = |call: &Call| match call.attempt {
        1 => Err(HandlerError::msg("no").reason(Reason::TIMEOUT)),
        _ => Ok(()),
    };
    let policy = retry(millis(2000));
    let retries = chained.retry_topic(millis(2000));
    let first = chained.up_to_attempt(1).start_at_end(policy.clone(), script).await;
    chained.topic.until_committed(0, |offset, _| offset == 0);
    chained.topic.push(0, "a").await;
    chained.read(&retries, 1).await;
    chained.until_everything_read_is_committed().await;
    first.crash().await;
    chained.forget_positions().await;
    let second = chained.start_at_end(policy, script).await;
    chained.until("it is handled", |calls| calls.iter().any(|call| call.attempt == 2)).await;
    second.stop().await;
    chained.assert_all_committed();
}
