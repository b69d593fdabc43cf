//! The headers of each framework are converted exactly to a letter and its cause.

use std::sync::Arc;

use lazaret_adopt::kafka::{Adoption, Offsets, Tally, UnknownRecords};
use lazaret_core::{Letter, LetterState, Phase, QueueName, Reason, Timestamp};
use lazaret_kafka_testkit::{Topic, broker};
use lazaret_memory::MemoryStore;

use crate::support::*;

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
    assert_eq!((report.left, &report.next), (0, &Offsets([(0, 3)].into())));

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
    // The wrapper is replaced by the exception that the listener threw.
    let cause = adopted.cause.as_ref().unwrap();
    assert_eq!(
        (cause.error_type.as_str(), cause.message.as_str()),
        ("com.shop.PaymentException", "card 17 declined")
    );
    assert_eq!(cause.chain[0].error_type.as_deref(), Some("java.net.SocketTimeoutException"));
    assert_eq!((cause.phase, &cause.reason), (Phase::Handle, &Reason::HANDLER_ERROR));
    assert!(cause.backtrace.as_ref().unwrap().contains("Pay.java:42"));
    // The diagnostics hold the address, and the context holds the content of the headers.
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
    // Both are the same problem.
    assert_eq!(tombstone.cause.unwrap().fingerprint, cause.fingerprint);
}

#[tokio::test]
async fn springs_retry_topics_tell_attempts_and_times() {
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 1).await;
    // `retainAllRetryHeaderValues` adds three headers at each of the three hops. The original headers
    // are written once.
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
    // An older version writes one byte, and no stack trace of the listener.
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
    // I5, with the phase in which they failed.
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 1).await;
    let raw: Vec<u8> = (0..=255).collect();
    let mut value = spring("orders", 0, 1);
    value[0].1 = Some(text("org.springframework.kafka.support.serializer.DeserializationException"));
    value[3].1 = Some(text(
        "org.springframework.kafka.support.serializer.DeserializationException: failed to deserialize\n\tat a.B.c(B.java:1)\n\
         Caused by: com.fasterxml.jackson.core.JsonParseException: Unexpected character\n\tat d.E.f(E.java:2)\n",
    ));
    // `retainExceptionHeader` left a Java-serialised exception on the record. It is not read.
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
        // Connect keeps the record's time, so the time of the failure is unknown.
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
    // The next run still reports the record, and adopts nothing.
    let report = only.run(&store).await.unwrap();
    assert_eq!((report.run, report.total), (Tally::default(), expected));
    assert_eq!(report.unknown_at.len(), 1);
    // An operator decides to adopt all of them.
    let taking = Adoption::of(&dlt.options().with_id_headers(["ce_id"]), &dlt.name).into_queue(queue());
    let report = taking.with_unknown(UnknownRecords::Adopt).from_the_beginning().run(&store).await.unwrap();
    assert_eq!((report.run.adopted, report.run.already_there), (2, 1));
    let taken = letter(&store, "evt-1").await;
    assert_eq!((taken.message.stream.as_str(), taken.message.position.offset), (dlt.name.as_str(), 0));
    assert_eq!((taken.diagnostics["adopted-family"].as_str(), taken.state), ("unknown", LetterState::Dead));
}

#[tokio::test]
async fn damaged_headers_lose_only_their_own_content() {
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
    // Without its original position, the record counts as a message of this topic.
    let adopted = letter(&store, &format!("{}/0/0", dlt.name)).await;
    assert_eq!(adopted.cause.unwrap().error_type, "com.shop.PaymentException");
    assert_eq!(adopted.message.timestamp, None);
    let warnings = &adopted.diagnostics["adopted-warnings"];
    for word in ["kafka_dlt-original-partition cannot be read: 0x010203", "kafka_dlt-original-timestamp"] {
        assert!(warnings.contains(word), "{warnings}");
    }
    assert_eq!(adopted.context["kafka_dlt-original-topic"], "orders");
}
