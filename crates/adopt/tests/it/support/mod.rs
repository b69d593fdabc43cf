//! Dead-letter topics as frameworks write them.

use lazaret_adopt::kafka::Adoption;
use lazaret_core::store::{LetterStore, Limits};
use lazaret_core::{Letter, LetterId, MessageId, QueueName, Timestamp};
use lazaret_kafka_testkit::{LONG, Topic};
use lazaret_memory::MemoryStore;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::FutureRecord;

pub(crate) const NOW: i64 = 1_750_000_000_000;
pub(crate) const THEN: i64 = 1_700_000_000_123;

/// Returns `BigInteger.valueOf(n).toByteArray()`, for numbers of six bytes.
pub(crate) fn big(n: i64) -> Vec<u8> {
    n.to_be_bytes()[2..].to_vec()
}

pub(crate) fn int(n: i32) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

pub(crate) fn long(n: i64) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

pub(crate) type Pair<'a> = (&'a str, Option<Vec<u8>>);

pub(crate) fn some(pairs: &[(&'static str, Vec<u8>)]) -> Vec<Pair<'static>> {
    pairs.iter().map(|(name, value)| (*name, Some(value.clone()))).collect()
}

/// A record as a framework writes it.
pub(crate) struct Written<'a> {
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) payload: Option<&'a [u8]>,
    pub(crate) headers: Vec<Pair<'a>>,
    pub(crate) at: i64,
}

pub(crate) async fn write(topic: &Topic, partition: i32, written: Written<'_>) -> u64 {
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

/// Returns the headers that Spring's recoverer writes for a listener that failed, in its order.
pub(crate) fn spring(topic: &str, partition: i32, offset: i64) -> Vec<Pair<'static>> {
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

pub(crate) async fn spring_record(dlt: &Topic, partition: i32, key: &str, offset: i64) {
    let payload = format!("{key}:{offset}");
    let written = Written {
        key: Some(key.as_bytes()),
        payload: Some(payload.as_bytes()),
        headers: spring("orders", 0, offset),
        at: NOW,
    };
    write(dlt, partition, written).await;
}

pub(crate) fn queue() -> QueueName {
    QueueName::of("billing", "billing")
}

pub(crate) fn adoption(topic: &Topic) -> Adoption {
    Adoption::of(&topic.options(), &topic.name).into_queue(queue()).with_limits(Limits::NONE)
}

pub(crate) async fn letter(store: &MemoryStore, id: &str) -> Letter {
    let id = LetterId::of_import(&queue(), &MessageId::from(id));
    store.get(&queue(), id).await.unwrap().expect("there is such a letter")
}

pub(crate) async fn sequence(store: &impl LetterStore, name: &str) -> Vec<u64> {
    let letters = store.sequence(&queue(), &name.into(), 0, 1000).await.unwrap();
    letters.iter().map(|letter| letter.message.position.offset).collect()
}

pub(crate) fn pairs(letter: &Letter) -> Vec<(String, Option<Vec<u8>>)> {
    letter.message.headers.iter_nullable().map(|(name, v)| (name.to_owned(), v.map(|v| v.to_vec()))).collect()
}

pub(crate) fn time(millis: i64) -> Option<Timestamp> {
    Some(Timestamp::from_millisecond(millis).unwrap())
}
