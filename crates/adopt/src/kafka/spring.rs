//! Reads Spring Kafka's headers: `DeadLetterPublishingRecoverer`, and the retry topics that use it.
//!
//! Checked in spring-kafka at 3f3cf7d (August 2026): `KafkaHeaders` and `RetryTopicHeaders` (names),
//! `DeadLetterRecordManager` (values, and which headers are appended or replaced),
//! `DeadLetterPublishingRecovererFactory` (retry topics), `KafkaUtils` and `SerializationUtils`
//! (deserialisation).
//!
//! - Partition is an `int`, and offset and timestamp are `long`. All are written with `ByteBuffer`, so
//!   they are big-endian. Topic, timestamp type, group, classes, message and stack trace are UTF-8. The
//!   message is the outer message, `; `, and the root cause's message.
//! - A second recoverer adds `kafka_dlt-original-*` again (`appendOriginalHeaders`), so the first header
//!   is the origin. Exception headers are replaced (`stripPreviousExceptionHeaders`) or added, so the
//!   last header is the failure.
//! - Retry topics use the same names without `dlt-`, except for the group, and write the original
//!   headers once.
//! - `retry_topic-attempts` is an `int`, or one byte in older versions, and holds the number of the
//!   **next** attempt. `retry_topic-original-timestamp` and `retry_topic-backoff-timestamp` are
//!   `BigInteger.toByteArray`. All three are added again at every hop unless that was turned off, so the
//!   last value counts. In a DLT the back-off ends at once, so its time is the time of the failure.
//! - The record has the time of its publishing, because the recoverer does not set one.
//! - `springDeserializerExceptionKey` and `…Value` hold a Java-serialised exception. They stay on the
//!   record only if configured, and are never read here. The raw bytes that could not be deserialised
//!   are the record's own key and value.

use lazaret_core::{Phase, Reason, Timestamp};

use super::failure_info::{DEFAULT_PHASE, FailureInfo};
use super::values::{self, HeaderReader};
use crate::java::Exception;

const TOPIC: [&str; 2] = ["kafka_dlt-original-topic", "kafka_original-topic"];
const PARTITION: [&str; 2] = ["kafka_dlt-original-partition", "kafka_original-partition"];
const OFFSET: [&str; 2] = ["kafka_dlt-original-offset", "kafka_original-offset"];
const TIMESTAMP: [&str; 2] = ["kafka_dlt-original-timestamp", "kafka_original-timestamp"];
const TIMESTAMP_TYPE: [&str; 2] = ["kafka_dlt-original-timestamp-type", "kafka_original-timestamp-type"];
/// Retry topics also use this name with `dlt-`.
const GROUP: [&str; 1] = ["kafka_dlt-original-consumer-group"];
const CLASS: [&str; 2] = ["kafka_dlt-exception-fqcn", "kafka_exception-fqcn"];
const ROOT: [&str; 2] = ["kafka_dlt-exception-cause-fqcn", "kafka_exception-cause-fqcn"];
const MESSAGE: [&str; 2] = ["kafka_dlt-exception-message", "kafka_exception-message"];
const TRACE: [&str; 2] = ["kafka_dlt-exception-stacktrace", "kafka_exception-stacktrace"];
const KEY_CLASS: [&str; 2] = ["kafka_dlt-key-exception-fqcn", "kafka_key-exception-fqcn"];
const KEY_MESSAGE: [&str; 2] = ["kafka_dlt-key-exception-message", "kafka_key-exception-message"];
const KEY_TRACE: [&str; 2] = ["kafka_dlt-key-exception-stacktrace", "kafka_key-exception-stacktrace"];
const ATTEMPTS: [&str; 1] = ["retry_topic-attempts"];
const FIRST_TIMESTAMP: [&str; 1] = ["retry_topic-original-timestamp"];
const BACKOFF: [&str; 1] = ["retry_topic-backoff-timestamp"];
/// The header that the container adds for the listener. It is copied with the other headers.
const DELIVERY: [&str; 1] = ["kafka_deliveryAttempt"];
const SERIALISED: [&str; 2] = ["springDeserializerExceptionKey", "springDeserializerExceptionValue"];

/// The headers that identify Spring.
const MARKERS: [&[&str]; 9] =
    [&TOPIC, &PARTITION, &OFFSET, &CLASS, &MESSAGE, &KEY_CLASS, &ATTEMPTS, &FIRST_TIMESTAMP, &BACKOFF];
/// Spring's other headers.
const OTHERS: [&[&str]; 9] =
    [&TIMESTAMP, &TIMESTAMP_TYPE, &GROUP, &ROOT, &TRACE, &KEY_MESSAGE, &KEY_TRACE, &DELIVERY, &SERIALISED];

/// Exceptions that wrap the exception of the listener or the deserialiser.
const WRAPPERS: [&str; 4] = [
    "org.springframework.kafka.listener.ListenerExecutionFailedException",
    "org.springframework.kafka.listener.TimestampedException",
    "org.springframework.kafka.support.serializer.DeserializationException",
    "org.springframework.messaging.MessageHandlingException",
];
/// The exception of a failed deserialisation.
const DESERIALISATION: &str = "org.springframework.kafka.support.serializer.DeserializationException";
/// The maximum number of attempts that Spring accepts.
const ATTEMPTS_LIMIT: i64 = 32_767;

pub(super) fn is_marker(name: &str) -> bool {
    MARKERS.iter().any(|names| names.contains(&name))
}

pub(super) fn is_own(name: &str) -> bool {
    is_marker(name) || OTHERS.iter().any(|names| names.contains(&name))
}

pub(super) fn read(reader: &mut HeaderReader<'_>, written_at: Option<Timestamp>) -> FailureInfo {
    let value = Exception {
        class: text(reader, &CLASS),
        message: text(reader, &MESSAGE),
        root: text(reader, &ROOT),
        trace: text(reader, &TRACE),
    };
    let key = Exception {
        class: text(reader, &KEY_CLASS),
        message: text(reader, &KEY_MESSAGE),
        root: text(reader, &ROOT),
        trace: text(reader, &KEY_TRACE),
    };
    let is_decoding =
        !key.is_empty() || reader.has(&SERIALISED) || value.class.as_deref() == Some(DESERIALISATION);
    let phase = if is_decoding { Phase::Decode } else { DEFAULT_PHASE };
    let reason = is_decoding.then_some(Reason::INVALID_SCHEMA);
    let exception = if value.is_empty() { key } else { value };
    let is_wrapper = |class: &str| WRAPPERS.contains(&class);
    let failure =
        (!exception.is_empty() || is_decoding).then(|| exception.failure(reason, phase, is_wrapper));
    let timestamp = reader.first(&TIMESTAMP);
    let timestamp = reader.read(timestamp, values::time);
    let first_timestamp = reader.last(&FIRST_TIMESTAMP);
    let first_timestamp = reader.read(first_timestamp, |value| values::millis(values::big_integer(value)?));
    let backoff = reader.last(&BACKOFF);
    let backoff = reader.read(backoff, |value| values::millis(values::big_integer(value)?));
    let attempts = attempts(reader);
    let (partition, offset) = (reader.first(&PARTITION), reader.first(&OFFSET));
    // A time later than the record's is the due time of a retry, not the time of a failure.
    let last_failed_at =
        backoff.filter(|time| written_at.is_some_and(|written| *time <= written)).or(written_at);
    FailureInfo {
        topic: first_text(reader, &TOPIC),
        partition: reader.read(partition, values::partition),
        offset: reader.read(offset, values::offset),
        timestamp: timestamp.or(first_timestamp),
        keeps_time: false,
        group: first_text(reader, &GROUP),
        failure,
        attempts,
        first_failed_at: last_failed_at.filter(|_| attempts == Some(1)),
        last_failed_at,
    }
}

/// Returns the number of attempts, if known.
fn attempts(reader: &mut HeaderReader<'_>) -> Option<u32> {
    let next = reader.last(&ATTEMPTS);
    let next = reader.read(next, |value| {
        let number = match *value {
            [byte] => i64::from(byte),
            [a, b, c, d] => i64::from(i32::from_be_bytes([a, b, c, d])),
            _ => return None,
        };
        (2..=ATTEMPTS_LIMIT + 1).contains(&number).then_some(number - 1)
    });
    let delivery = reader.last(&DELIVERY);
    let delivery =
        reader.read(delivery, |value| values::number(value).filter(|n| (1..=ATTEMPTS_LIMIT).contains(n)));
    next.or(delivery).and_then(|number| u32::try_from(number).ok())
}

/// Returns the last value with one of these names, as text.
fn text(reader: &mut HeaderReader<'_>, names: &[&str]) -> Option<String> {
    let header = reader.last(names);
    reader.text(header)
}

fn first_text(reader: &mut HeaderReader<'_>, names: &[&str]) -> Option<String> {
    let header = reader.first(names);
    reader.text(header)
}
