//! Dead letters of other frameworks become letters of a consumer: exact, once, in order, whatever dies in between.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::store::{Checkpoints, LetterStore, Limits};
use lazaret_core::{
    Letter, LetterId, LetterState, MessageId, Phase, QueueName, Reason, Sequencing, Timestamp,
};
use lazaret_memory::MemoryStore;
use lazaret_source_kafka::adopt::{AdoptError, AdoptTrouble, Adoption, Report, Tally, Unknown};
use lazaret_testkit::{Profile, Unreliable};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, FutureRecord, Producer};
use support::{LONG, Topic, broker, client, unique};
use tokio::sync::watch;

const NOW: i64 = 1_750_000_000_000;
const THEN: i64 = 1_700_000_000_123;

/// `BigInteger.valueOf(n).toByteArray()`, for numbers of six bytes.
fn big(n: i64) -> Vec<u8> {
    n.to_be_bytes()[2..].to_vec()
}

fn int(n: i32) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

fn long(n: i64) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

fn text(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

type Pair<'a> = (&'a str, Option<Vec<u8>>);

fn some(pairs: &[(&'static str, Vec<u8>)]) -> Vec<Pair<'static>> {
    pairs.iter().map(|(name, value)| (*name, Some(value.clone()))).collect()
}

/// A record as a framework writes it.
struct Written<'a> {
    key: Option<&'a [u8]>,
    payload: Option<&'a [u8]>,
    headers: Vec<Pair<'a>>,
    at: i64,
}

async fn write(topic: &Topic, partition: i32, written: Written<'_>) -> u64 {
    let mut headers = OwnedHeaders::new();
    for (key, value) in &written.headers {
        headers = headers.insert(Header { key, value: value.as_deref() });
    }
    let mut record: FutureRecord<'_, [u8], [u8]> =
        FutureRecord::to(&topic.name).partition(partition).headers(headers).timestamp(written.at);
    record.key = written.key;
    record.payload = written.payload;
    topic.producer.send(record, LONG).await.unwrap().offset.unsigned_abs()
}

/// What Spring's recoverer writes for a listener that failed, in its order.
fn spring(topic: &str, partition: i32, offset: i64) -> Vec<Pair<'static>> {
    let trace = "org.springframework.kafka.listener.ListenerExecutionFailedException: Listener failed\n\
        \tat org.springframework.kafka.listener.A.b(A.java:1)\nCaused by: com.shop.PaymentException: card 17 declined\n\
        \tat com.shop.Pay.charge(Pay.java:42)\nCaused by: java.net.SocketTimeoutException: Read timed out\n\
        \tat java.net.S.r(S.java:9)\n";
    some(&[
        (
            "kafka_dlt-exception-fqcn",
            text("org.springframework.kafka.listener.ListenerExecutionFailedException"),
        ),
        ("kafka_dlt-exception-cause-fqcn", text("java.net.SocketTimeoutException")),
        ("kafka_dlt-exception-message", text("Listener failed; Read timed out")),
        ("kafka_dlt-exception-stacktrace", text(trace)),
        ("kafka_dlt-original-topic", text(topic)),
        ("kafka_dlt-original-partition", int(partition)),
        ("kafka_dlt-original-offset", long(offset)),
        ("kafka_dlt-original-timestamp", long(THEN)),
        ("kafka_dlt-original-timestamp-type", text("CreateTime")),
        ("kafka_dlt-original-consumer-group", text("billing")),
    ])
}

async fn spring_record(dlt: &Topic, partition: i32, key: &str, offset: i64) {
    let payload = format!("{key}:{offset}");
    let written = Written {
        key: Some(key.as_bytes()),
        payload: Some(payload.as_bytes()),
        headers: spring("orders", 0, offset),
        at: NOW,
    };
    write(dlt, partition, written).await;
}

fn queue() -> QueueName {
    QueueName::of("billing", "billing")
}

fn adoption(topic: &Topic) -> Adoption {
    Adoption::of(&topic.options(), &topic.name).into_queue(queue()).with_limits(Limits::NONE)
}

async fn letter(store: &MemoryStore, id: &str) -> Letter {
    let id = LetterId::of(&queue(), &MessageId::from(id));
    store.get(&queue(), id).await.unwrap().expect("there is such a letter")
}

async fn sequence(store: &impl LetterStore, name: &str) -> Vec<u64> {
    let letters = store.sequence(&queue(), &name.into(), 0, 1000).await.unwrap();
    letters.iter().map(|letter| letter.message.position.offset).collect()
}

fn pairs(letter: &Letter) -> Vec<(String, Option<Vec<u8>>)> {
    letter.message.headers.iter_nullable().map(|(name, v)| (name.to_owned(), v.map(|v| v.to_vec()))).collect()
}

fn time(millis: i64) -> Option<Timestamp> {
    Some(Timestamp::from_millisecond(millis).unwrap())
}

#[tokio::test]
async fn springs_dead_letters_are_restored_as_they_were() {
    // I5
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 1).await;
    let mut headers: Vec<Pair<'_>> = vec![
        ("tenant", Some(text("acme"))),
        ("none", None),
        ("tenant", Some(text("again"))),
        ("empty", Some(vec![])),
    ];
    let own = headers.clone();
    headers.extend(spring("orders", 3, 41));
    write(&dlt, 0, Written { key: Some(b"\xff\x00"), payload: Some(b"{\"a\": 1}"), headers, at: NOW }).await;
    // A tombstone without a key.
    write(&dlt, 0, Written { key: None, payload: None, headers: spring("orders", 3, 42), at: NOW }).await;
    // An empty key and an empty payload.
    write(&dlt, 0, Written { key: Some(b""), payload: Some(b""), headers: spring("orders", 3, 43), at: NOW })
        .await;
    let store = MemoryStore::default();
    let report = adoption(&dlt).with_owner("billing-team").run(&store).await.unwrap();
    assert_eq!(report.run, Tally { read: 3, adopted: 3, ..Tally::default() });
    assert_eq!((report.left, &report.next), (0, &[(0, 3)].into()));

    let adopted = letter(&store, "orders/3/41").await;
    let message = &adopted.message;
    assert_eq!((message.stream.as_str(), message.position.to_string()), ("orders", "3:41".to_owned()));
    assert_eq!(
        (message.key.as_deref(), message.payload.as_deref()),
        (Some(&b"\xff\x00"[..]), Some(&b"{\"a\": 1}"[..]))
    );
    assert_eq!(message.timestamp, time(THEN));
    assert_eq!(pairs(&adopted), own.iter().map(|(n, v)| ((*n).to_owned(), v.clone())).collect::<Vec<_>>());
    assert_eq!((adopted.state, adopted.sequence.as_str()), (LetterState::Dead, "~x:ff00"));
    assert_eq!(adopted.owner.as_deref(), Some("billing-team"));
    assert_eq!((adopted.attempts, adopted.first_failed_at, adopted.last_failed_at), (1, None, time(NOW)));
    // The wrapper gives way to what the listener threw.
    let cause = adopted.cause.as_ref().unwrap();
    assert_eq!(
        (cause.error_type.as_str(), cause.message.as_str()),
        ("com.shop.PaymentException", "card 17 declined")
    );
    assert_eq!(cause.chain[0].error_type.as_deref(), Some("java.net.SocketTimeoutException"));
    assert_eq!((cause.phase, &cause.reason), (Phase::Handle, &Reason::HANDLER_ERROR));
    assert!(cause.backtrace.as_ref().unwrap().contains("Pay.java:42"));
    // Where it was found, and what the headers said.
    assert_eq!(adopted.diagnostics["adopted-from"], format!("{}/0/0", dlt.name));
    assert_eq!(adopted.diagnostics["adopted-family"], "spring");
    assert_eq!(adopted.diagnostics["adopted-group"], "billing");
    assert_eq!(adopted.context["kafka_dlt-original-offset"], "41");
    assert_eq!(adopted.context["kafka_dlt-original-timestamp"], THEN.to_string());

    let tombstone = letter(&store, "orders/3/42").await;
    assert_eq!((&tombstone.message.key, &tombstone.message.payload), (&None, &None));
    assert_eq!(tombstone.sequence.as_str(), "~m:orders/3/42");
    let empty = letter(&store, "orders/3/43").await;
    assert_eq!(
        (empty.message.key.as_deref(), empty.message.payload.as_deref()),
        (Some(&b""[..]), Some(&b""[..]))
    );
    // One problem.
    assert_eq!(tombstone.cause.unwrap().fingerprint, cause.fingerprint);
}

#[tokio::test]
async fn springs_retry_topics_tell_attempts_and_times() {
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 1).await;
    // Three hops: `retainAllRetryHeaderValues` adds three headers at each of them; originals are written once.
    let mut headers = Vec::new();
    for hop in 0..3 {
        headers.extend(some(&[
            (
                "kafka_exception-fqcn",
                text("org.springframework.kafka.listener.ListenerExecutionFailedException"),
            ),
            ("kafka_exception-cause-fqcn", text("java.lang.IllegalStateException")),
            ("kafka_exception-message", text("Listener failed; no")),
        ]));
        if hop == 0 {
            headers.extend(some(&[
                ("kafka_original-topic", text("orders")),
                ("kafka_original-partition", int(0)),
                ("kafka_original-offset", long(7)),
                ("kafka_original-timestamp", long(THEN)),
                ("kafka_original-timestamp-type", text("LogAppendTime")),
                ("kafka_dlt-original-consumer-group", text("billing")),
            ]));
        }
        headers.extend(some(&[
            ("retry_topic-original-timestamp", big(THEN)),
            ("retry_topic-attempts", int(hop + 2)),
            ("retry_topic-backoff-timestamp", big(NOW - 5_000 + i64::from(hop))),
        ]));
    }
    write(&dlt, 0, Written { key: Some(b"k"), payload: Some(b"p"), headers, at: NOW }).await;
    // An older version: one byte, and no stack of the listener.
    let old = some(&[
        ("kafka_original-topic", text("orders")),
        ("kafka_original-partition", int(0)),
        ("kafka_original-offset", long(8)),
        ("kafka_exception-fqcn", text("com.shop.Bad")),
        ("retry_topic-attempts", vec![2]),
        ("retry_topic-backoff-timestamp", big(NOW - 1)),
    ]);
    write(&dlt, 0, Written { key: Some(b"k"), payload: Some(b"p"), headers: old, at: NOW }).await;
    let store = MemoryStore::default();
    let report = adoption(&dlt).run(&store).await.unwrap();
    assert_eq!((report.run.adopted, report.run.damaged), (2, 0));
    let adopted = letter(&store, "orders/0/7").await;
    assert_eq!((adopted.attempts, adopted.last_failed_at), (3, time(NOW - 4_998)));
    assert_eq!(adopted.message.timestamp, time(THEN));
    assert!(adopted.message.headers.is_empty(), "{:?}", adopted.message.headers);
    let cause = adopted.cause.unwrap();
    assert_eq!(
        (cause.error_type.as_str(), cause.message.as_str()),
        ("java.lang.IllegalStateException", "Listener failed; no")
    );
    assert_eq!(adopted.context["retry_topic-attempts#3"], "4");
    let old = letter(&store, "orders/0/8").await;
    assert_eq!((old.attempts, old.first_failed_at, old.last_failed_at), (1, time(NOW - 1), time(NOW - 1)));
}

#[tokio::test]
async fn raw_bytes_that_could_not_be_deserialised_come_back_raw() {
    // I5, with the phase that they failed in.
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 1).await;
    let raw: Vec<u8> = (0..=255).collect();
    let mut value = spring("orders", 0, 1);
    value[0].1 = Some(text("org.springframework.kafka.support.serializer.DeserializationException"));
    value[3].1 = Some(text(
        "org.springframework.kafka.support.serializer.DeserializationException: failed to deserialize\n\tat a.B.c(B.java:1)\n\
         Caused by: com.fasterxml.jackson.core.JsonParseException: Unexpected character\n\tat d.E.f(E.java:2)\n",
    ));
    // Left there by `retainExceptionHeader`: a Java-serialised exception, which nobody may read.
    value.insert(0, ("springDeserializerExceptionValue", Some(b"\xac\xed\x00\x05sr".to_vec())));
    write(&dlt, 0, Written { key: Some(b"k"), payload: Some(&raw), headers: value, at: NOW }).await;
    let mut key: Vec<Pair<'_>> = some(&[
        (
            "kafka_dlt-key-exception-fqcn",
            text("org.springframework.kafka.support.serializer.DeserializationException"),
        ),
        ("kafka_dlt-key-exception-message", text("failed to deserialize; not a number")),
        ("kafka_dlt-exception-cause-fqcn", text("java.lang.NumberFormatException")),
    ]);
    key.extend(spring("orders", 0, 2).split_off(4));
    write(&dlt, 0, Written { key: Some(&raw), payload: Some(b"p"), headers: key, at: NOW }).await;
    let store = MemoryStore::default();
    adoption(&dlt).run(&store).await.unwrap();
    let value = letter(&store, "orders/0/1").await;
    assert_eq!(value.message.payload.as_deref(), Some(&*raw));
    let cause = value.cause.unwrap();
    assert_eq!((cause.phase, cause.reason), (Phase::Decode, Reason::INVALID_SCHEMA));
    assert_eq!(cause.error_type, "com.fasterxml.jackson.core.JsonParseException");
    assert!(value.message.headers.is_empty());
    let key = letter(&store, "orders/0/2").await;
    assert_eq!(key.message.key.as_deref(), Some(&*raw));
    let cause = key.cause.unwrap();
    assert_eq!((cause.phase, cause.error_type.as_str()), (Phase::Decode, "java.lang.NumberFormatException"));
}

#[tokio::test]
async fn connects_dead_letters_tell_their_stage() {
    let Some(broker) = broker() else { return };
    let dlq = Topic::new(broker, 1).await;
    let connect = |stage: &str, offset: i64, message: Option<&str>| -> Vec<Pair<'static>> {
        let mut headers = some(&[
            ("__connect.errors.topic", text("orders")),
            ("__connect.errors.partition", text("2")),
            ("__connect.errors.offset", text(&offset.to_string())),
            ("__connect.errors.connector.name", text("jdbc-sink")),
            ("__connect.errors.task.id", text("0")),
            ("__connect.errors.stage", text(stage)),
            ("__connect.errors.class.name", text("io.confluent.connect.json.JsonSchemaConverter")),
            ("__connect.errors.exception.class.name", text("org.apache.kafka.connect.errors.DataException")),
        ]);
        headers.push(("__connect.errors.exception.message", message.map(text)));
        headers.push((
            "__connect.errors.exception.stacktrace",
            Some(text("org.apache.kafka.connect.errors.DataException: x\n\tat a.B.c(B.java:1)\n")),
        ));
        headers
    };
    let stages = [
        ("VALUE_CONVERTER", Phase::Decode, Reason::INVALID_SCHEMA),
        ("KEY_CONVERTER", Phase::Decode, Reason::INVALID_SCHEMA),
        ("TRANSFORMATION", Phase::Validate, Reason::HANDLER_ERROR),
        ("TASK_PUT", Phase::ExternalCall, Reason::HANDLER_ERROR),
        ("SOMETHING_NEW", Phase::Handle, Reason::HANDLER_ERROR),
    ];
    for (offset, (stage, ..)) in stages.iter().enumerate() {
        let mut headers = vec![("tenant", Some(text("acme")))];
        headers.extend(connect(stage, offset as i64, (offset > 0).then_some("bad record")));
        write(&dlq, 0, Written { key: Some(b"k"), payload: Some(b"\x00raw"), headers, at: THEN }).await;
    }
    let store = MemoryStore::default();
    let report = adoption(&dlq).run(&store).await.unwrap();
    assert_eq!((report.run.adopted, report.run.damaged), (5, 0));
    for (offset, (stage, phase, reason)) in stages.into_iter().enumerate() {
        let adopted = letter(&store, &format!("orders/2/{offset}")).await;
        let cause = adopted.cause.as_ref().unwrap();
        assert_eq!((cause.phase, &cause.reason), (phase, &reason), "{stage}");
        assert_eq!(cause.error_type, "org.apache.kafka.connect.errors.DataException");
        assert_eq!(cause.message, if offset == 0 { "x" } else { "bad record" });
        // Connect keeps the time of the record, and so nobody knows when it failed.
        assert_eq!((adopted.message.timestamp, adopted.last_failed_at), (time(THEN), None));
        assert_eq!(pairs(&adopted), [("tenant".to_owned(), Some(text("acme")))]);
        assert_eq!(adopted.diagnostics["adopted-group"], "connect-jdbc-sink");
        assert_eq!(adopted.context["__connect.errors.stage"], stage);
    }
}

#[tokio::test]
async fn streams_dead_letters_are_read() {
    let Some(broker) = broker() else { return };
    let dlq = Topic::new(broker, 1).await;
    let streams = |exception: &str, message: Option<&str>, offset: i64| -> Vec<Pair<'static>> {
        vec![
            ("__streams.errors.exception", Some(text(exception))),
            ("__streams.errors.message", message.map(text)),
            (
                "__streams.errors.stacktrace",
                Some(text(&format!("{exception}\n\tat com.shop.Map.apply(Map.java:3)\n"))),
            ),
            ("__streams.errors.topic", Some(text("clicks"))),
            ("__streams.errors.partition", Some(text("0"))),
            ("__streams.errors.offset", Some(text(&offset.to_string()))),
        ]
    };
    let decode =
        streams("org.apache.kafka.common.errors.SerializationException: bad: bytes", Some("bad: bytes"), 5);
    write(&dlq, 0, Written { key: None, payload: Some(b"\xde\xad"), headers: decode, at: THEN }).await;
    let process = streams("java.lang.NullPointerException", None, 6);
    write(&dlq, 0, Written { key: Some(b"k"), payload: None, headers: process, at: THEN }).await;
    let store = MemoryStore::default();
    adoption(&dlq).run(&store).await.unwrap();
    let decode = letter(&store, "clicks/0/5").await;
    let cause = decode.cause.unwrap();
    assert_eq!(cause.error_type, "org.apache.kafka.common.errors.SerializationException");
    assert_eq!((cause.message.as_str(), cause.phase), ("bad: bytes", Phase::Decode));
    assert_eq!(
        (decode.message.payload.as_deref(), decode.message.timestamp),
        (Some(&b"\xde\xad"[..]), time(THEN))
    );
    let process = letter(&store, "clicks/0/6").await;
    let cause = process.cause.unwrap();
    assert_eq!((cause.error_type.as_str(), cause.phase), ("java.lang.NullPointerException", Phase::Handle));
    assert_eq!(process.message.payload, None);
}

#[tokio::test]
async fn x_original_headers_are_read_in_binary_and_in_text() {
    let Some(broker) = broker() else { return };
    let dlq = Topic::new(broker, 1).await;
    let binder = some(&[
        ("x-correlation-id", text("the message's own")),
        ("x-original-topic", text("orders")),
        ("x-original-partition", int(1)),
        ("x-original-offset", long(1234)),
        ("x-original-timestamp", long(THEN)),
        ("x-original-timestamp-type", text("CreateTime")),
        ("x-exception-fqcn", text("com.shop.Bad")),
        ("x-exception-message", text("no")),
        ("x-exception-stacktrace", text("com.shop.Bad: no\n\tat com.shop.A.b(A.java:1)\n")),
    ]);
    write(&dlq, 0, Written { key: Some(b"k"), payload: Some(b"p"), headers: binder, at: NOW }).await;
    let own = some(&[
        ("x-original-topic", text("orders")),
        ("x-original-partition", text("1")),
        ("x-original-offset", text("1235")),
        ("x-original-timestamp", text("2023-11-14T22:13:20.123Z")),
        ("x-consumer-group", text("billing")),
        ("x-failure-reason", text("card declined")),
        ("x-exception-class", text("CardError")),
        ("x-exception-message-safe", text("declined")),
        ("x-attempt-count", text("5")),
        ("x-first-failure-at", text("2023-11-14T22:13:21Z")),
        ("x-last-failure-at", text("1700000005000")),
    ]);
    write(&dlq, 0, Written { key: Some(b"k"), payload: Some(b"p"), headers: own, at: NOW }).await;
    let store = MemoryStore::default();
    let report = adoption(&dlq).run(&store).await.unwrap();
    assert_eq!((report.run.adopted, report.run.damaged), (2, 0));
    let binder = letter(&store, "orders/1/1234").await;
    assert_eq!(
        (binder.message.timestamp, binder.cause.unwrap().error_type),
        (time(THEN), "com.shop.Bad".to_owned())
    );
    assert_eq!(binder.message.headers.get_str("x-correlation-id"), Some("the message's own"));
    assert_eq!(binder.message.headers.len(), 1);
    let own = letter(&store, "orders/1/1235").await;
    let cause = own.cause.unwrap();
    assert_eq!(
        (cause.reason.as_str(), cause.error_type.as_str(), cause.message.as_str()),
        ("CARD_DECLINED", "CardError", "declined")
    );
    assert_eq!(
        (own.attempts, own.first_failed_at, own.last_failed_at),
        (5, time(1_700_000_001_000), time(1_700_000_005_000))
    );
    assert_eq!(own.message.timestamp, time(THEN));
}

#[tokio::test]
async fn what_lazaret_wrote_is_read_exactly() {
    // I5
    use lazaret_core::{Failure, Message, Position};
    use lazaret_source_kafka::headers::{HeaderStyle, write as own_headers};
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 1).await;
    let mut message = Message::new("evt-9", "orders", Position::new(4, 99)).with_key("k").with_payload("p");
    message.timestamp = time(THEN);
    message.headers.push("x-original-topic", "the message's own");
    message.headers.push_null("none");
    let mut written =
        Letter::new(QueueName::of("other", "mail"), "k".into(), Arc::new(message), Timestamp::UNIX_EPOCH);
    written.state = LetterState::Dead;
    written.cause =
        Some(Failure::new(Reason::TIMEOUT, "HttpError", "no answer").in_phase(Phase::ExternalCall));
    (written.attempts, written.crash_attempts) = (4, 1);
    (written.first_failed_at, written.last_failed_at) = (time(THEN + 1), time(THEN + 9));
    let headers = own_headers(&written, "other", 2, HeaderStyle { spring: true, ..HeaderStyle::default() });
    let headers = headers.iter_nullable().map(|(name, value)| (name, value.map(|v| v.to_vec()))).collect();
    write(&dlt, 0, Written { key: Some(b"k"), payload: Some(b"p"), headers, at: NOW }).await;
    let store = MemoryStore::default();
    let report = adoption(&dlt).run(&store).await.unwrap();
    assert_eq!((report.run.adopted, report.run.damaged), (1, 0));
    let adopted = letter(&store, "evt-9").await;
    assert_eq!(adopted.message, written.message);
    let (cause, before) = (adopted.cause.unwrap(), written.cause.unwrap());
    assert_eq!(
        (cause.reason, cause.phase, cause.fingerprint),
        (before.reason, before.phase, before.fingerprint)
    );
    assert_eq!((adopted.attempts, adopted.crash_attempts), (4, 1));
    assert_eq!(
        (adopted.first_failed_at, adopted.last_failed_at),
        (written.first_failed_at, written.last_failed_at)
    );
}

#[tokio::test]
async fn what_is_not_known_is_named_and_left_or_taken() {
    // I11
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 1).await;
    let plain = || Written {
        key: Some(b"k"),
        payload: Some(b"p"),
        headers: some(&[("ce_id", text("evt-1"))]),
        at: NOW,
    };
    write(&dlt, 0, plain()).await;
    spring_record(&dlt, 0, "k", 5).await;
    let mut foreign = spring("orders", 0, 6);
    foreign.pop();
    foreign.push(("kafka_dlt-original-consumer-group", Some(text("shipping"))));
    write(&dlt, 0, Written { key: Some(b"k"), payload: None, headers: foreign, at: NOW }).await;
    let store = MemoryStore::default();
    let only = adoption(&dlt).only_group("billing");
    let report = only.run(&store).await.unwrap();
    let expected = Tally { read: 3, adopted: 1, unknown: 1, foreign: 1, ..Tally::default() };
    assert_eq!((report.run, report.unknown_at), (expected, vec![format!("{}/0/0", dlt.name)]));
    // The next run says it still, and does nothing.
    let report = only.run(&store).await.unwrap();
    assert_eq!((report.run, report.total), (Tally::default(), expected));
    assert_eq!(report.unknown_at.len(), 1);
    // Somebody wants them all the same.
    let taking = Adoption::of(&dlt.options().with_id_headers(["ce_id"]), &dlt.name).into_queue(queue());
    let report = taking.with_unknown(Unknown::Take).from_the_beginning().run(&store).await.unwrap();
    assert_eq!((report.run.adopted, report.run.already_there), (2, 1));
    let taken = letter(&store, "evt-1").await;
    assert_eq!((taken.message.stream.as_str(), taken.message.position.offset), (dlt.name.as_str(), 0));
    assert_eq!((taken.diagnostics["adopted-family"].as_str(), taken.state), ("unknown", LetterState::Dead));
}

#[tokio::test]
async fn damaged_headers_cost_what_they_say_and_nothing_else() {
    // I11
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 1).await;
    let mut headers = spring("orders", 0, 5);
    headers[5].1 = Some(vec![1, 2, 3]);
    headers[7].1 = Some(long(-1));
    write(&dlt, 0, Written { key: Some(b"k"), payload: Some(b"p"), headers, at: NOW }).await;
    let store = MemoryStore::default();
    let report = adoption(&dlt).run(&store).await.unwrap();
    assert_eq!(report.run, Tally { read: 1, adopted: 1, damaged: 1, ..Tally::default() });
    // It is not known where it came from, so it came from here.
    let adopted = letter(&store, &format!("{}/0/0", dlt.name)).await;
    assert_eq!(adopted.cause.unwrap().error_type, "com.shop.PaymentException");
    assert_eq!(adopted.message.timestamp, None);
    let warnings = &adopted.diagnostics["adopted-warnings"];
    for word in ["kafka_dlt-original-partition cannot be read: 0x010203", "kafka_dlt-original-timestamp"] {
        assert!(warnings.contains(word), "{warnings}");
    }
    assert_eq!(adopted.context["kafka_dlt-original-topic"], "orders");
}

#[tokio::test]
async fn copies_of_one_message_are_one_letter_and_a_second_run_makes_none() {
    // I8
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker.clone(), 2).await;
    let second = Topic::new(broker, 1).await;
    spring_record(&dlt, 0, "k", 5).await;
    spring_record(&dlt, 1, "k", 5).await;
    // The same message failed in the consumer of the dead letters, too: Spring adds the headers again.
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
async fn letters_of_a_key_stand_in_the_order_of_their_original_offsets() {
    // I2: retry topics and partitions have mixed them.
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
    adoption(&dlt).apart().run(&apart).await.unwrap();
    assert_eq!(sequence(&apart, "~dlt:k").await, [1, 2, 4, 7, 8, 9]);
    assert!(sequence(&apart, "k").await.is_empty());
    let alone = MemoryStore::default();
    adoption(&dlt).with_sequencing(Sequencing::Alone).run(&alone).await.unwrap();
    assert_eq!(alone.counts(&queue()).await.unwrap().sequences, 7);
}

/// Fills a topic quickly: records of `keys` keys, in order.
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

/// What must hold in the end.
async fn assert_whole(store: &impl LetterStore, count: i64, keys: i64) {
    let counts = store.counts(&queue()).await.unwrap();
    assert_eq!((counts.of(LetterState::Dead), counts.sequences), (count as u64, keys as u64));
    for key in 0..keys {
        let expected: Vec<u64> = (0..count).filter(|n| n % keys == key).map(|n| n as u64).collect();
        assert_eq!(sequence(store, &format!("k{key}")).await, expected, "k{key}");
    }
}

#[tokio::test]
async fn an_adoption_that_dies_anywhere_goes_on_and_loses_and_doubles_nothing() {
    // I1, I8: the store fails before and after its effects; each failure ends the run as a death would.
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 2).await;
    fill(&dlt, 2, 300, 7);
    let mut deaths = 0;
    for seed in 0..12 {
        let store = Unreliable::new(MemoryStore::default(), seed);
        store.set_profile(Profile { error: 0.08, error_after: 0.08, ..Profile::default() });
        let dying = Adoption::of(&dlt.options().with_batch(20), &dlt.name)
            .into_queue(queue())
            .with_limits(Limits::NONE)
            .with_patience(Duration::ZERO);
        let last: Report = loop {
            match dying.run(&store).await {
                Ok(report) => break report,
                Err(AdoptError { trouble: AdoptTrouble::Store(_), .. }) => deaths += 1,
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(last.total.read, 300, "seed {seed}: {last:?}");
        assert_whole(store.inner(), 300, 7).await;
    }
    assert!(deaths > 12, "{deaths} deaths prove little");
}

#[tokio::test]
async fn a_task_that_is_killed_in_the_middle_loses_and_doubles_nothing() {
    // I1, I8
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 2).await;
    fill(&dlt, 2, 400, 5);
    // Calls take their time, so that a death strikes in the middle of one.
    let store = Arc::new(Unreliable::new(MemoryStore::default(), 1));
    store.set_profile(Profile { latency: Duration::from_millis(2), ..Profile::default() });
    for death in 1..6_u64 {
        let (seen, mut watched) = watch::channel(0_u64);
        let dying = Adoption::of(&dlt.options().with_batch(10), &dlt.name)
            .into_queue(queue())
            .with_limits(Limits::NONE)
            .on_progress(move |report| {
                seen.send_replace(report.run.read);
            });
        let kept = store.clone();
        let task = tokio::spawn(async move { dying.run(&*kept).await });
        let far = tokio::time::timeout(LONG, watched.wait_for(|read| *read >= death * 10)).await;
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
async fn a_full_queue_stops_it_loudly_and_it_goes_on_when_there_is_room() {
    // I9
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 1).await;
    fill(&dlt, 1, 60, 20);
    let store = MemoryStore::default();
    let limits = Limits { max_sequences: Some(10), max_sequence_size: None };
    let error = adoption(&dlt).with_limits(limits).run(&store).await.unwrap_err();
    assert!(matches!(error.trouble, AdoptTrouble::Full(_)), "{error}");
    assert!(
        error.to_string().contains("stopped after 10 records (10 became letters): the queue is full"),
        "{error}"
    );
    assert_eq!(error.report.next, [(0, 10)].into());
    let report = adoption(&dlt).run(&store).await.unwrap();
    // What came behind the full stop and fitted was stored then.
    assert_eq!((report.total.read, report.run.already_there), (60, 20));
    assert_whole(&store, 60, 20).await;
}

#[tokio::test]
async fn a_bounded_adoption_ends_where_the_topic_ended_and_a_following_one_goes_on() {
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

fn assert_says(error: &AdoptError, words: &[&str]) {
    for word in words {
        assert!(error.to_string().contains(word), "{error} does not say {word:?}");
    }
}

#[tokio::test]
async fn a_topic_that_does_not_exist_is_named() {
    let Some(broker) = broker() else { return };
    let topic = Topic::existing(broker, &unique("missing-"));
    let error = adoption(&topic).run(&MemoryStore::default()).await.unwrap_err();
    assert_says(&error, &[&topic.name, "does not exist"]);
}

#[tokio::test]
async fn brokers_that_are_away_are_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let topic = Topic::existing(address.clone(), "dlt");
    let error = adoption(&topic).run(&MemoryStore::default()).await.unwrap_err();
    assert_says(&error, &[&address]);
}

#[tokio::test]
async fn a_topic_that_is_denied_is_said_to_be_denied_and_no_group_is_needed() {
    let Some(broker) = broker() else { return };
    let open = Topic::with_config(broker.clone(), &unique("open-"), 1, &[]).await;
    let closed = Topic::new(broker, 1).await;
    fill(&open, 1, 3, 1);
    // The group is one that this user may not join.
    let Some(options) = support::with_password(&closed.name, "closed-group", None) else { return };
    let store = MemoryStore::default();
    let error = Adoption::of(&options, &closed.name).into_queue(queue()).run(&store).await.unwrap_err();
    assert_says(&error, &[&closed.name, "denied", "grant READ"]);
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
