//! Spring Kafka's headers: `DeadLetterPublishingRecoverer`, and the retry topics that use it.
//!
//! Checked in spring-kafka at 3f3cf7d (August 2026): `KafkaHeaders` and `RetryTopicHeaders` (the names),
//! `DeadLetterRecordManager` (values, what is added again and what is replaced), `DeadLetterPublishingRecovererFactory` (the
//! retry topics), `KafkaUtils` and `SerializationUtils` (deserialisation).
//!
//! - Partition is an `int`, offset and timestamp are `long`, all with `ByteBuffer`: big-endian. Topic, timestamp type, group,
//!   classes, message and stack trace are UTF-8. The message is the outer one, `; `, and that of the root cause.
//! - A second recoverer adds `kafka_dlt-original-*` again (`appendOriginalHeaders`), so the first is the origin. Exception
//!   headers are replaced (`stripPreviousExceptionHeaders`), or added: the last is the failure.
//! - Retry topics use the same names without `dlt-`, but for the group, and write the original ones once.
//! - `retry_topic-attempts` is an `int`, in older versions one byte, and says which attempt comes **next**.
//!   `retry_topic-original-timestamp` and `retry_topic-backoff-timestamp` are `BigInteger.toByteArray`. All three are added
//!   again at every hop unless that was turned off, so the last counts. In a DLT the back-off is over at once, so its time
//!   is that of the failure.
//! - The record itself has the time of its publishing: the recoverer does not set one.
//! - `springDeserializerExceptionKey` and `…Value` hold a Java-serialised exception. They are left on the record only if
//!   somebody asked for it, and are never read here. The raw bytes that could not be deserialised are the record's own key
//!   and value.

use jiff::Timestamp;
use lazaret_core::{Phase, Reason};

use super::family::{Story, UNTOLD_PHASE};
use super::java::Thrown;
use super::values::{self, Taken};

const TOPIC: [&str; 2] = ["kafka_dlt-original-topic", "kafka_original-topic"];
const PARTITION: [&str; 2] = ["kafka_dlt-original-partition", "kafka_original-partition"];
const OFFSET: [&str; 2] = ["kafka_dlt-original-offset", "kafka_original-offset"];
const TIMESTAMP: [&str; 2] = ["kafka_dlt-original-timestamp", "kafka_original-timestamp"];
const TIMESTAMP_TYPE: [&str; 2] = ["kafka_dlt-original-timestamp-type", "kafka_original-timestamp-type"];
/// Retry topics write it with `dlt-` too.
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
/// Written by the container for the listener, and copied with the others.
const DELIVERY: [&str; 1] = ["kafka_deliveryAttempt"];
const SERIALISED: [&str; 2] = ["springDeserializerExceptionKey", "springDeserializerExceptionValue"];

/// What says that Spring wrote here.
const MARKS: [&[&str]; 9] =
    [&TOPIC, &PARTITION, &OFFSET, &CLASS, &MESSAGE, &KEY_CLASS, &ATTEMPTS, &FIRST_TIMESTAMP, &BACKOFF];
/// What may stand there besides.
const OTHERS: [&[&str]; 9] =
    [&TIMESTAMP, &TIMESTAMP_TYPE, &GROUP, &ROOT, &TRACE, &KEY_MESSAGE, &KEY_TRACE, &DELIVERY, &SERIALISED];

/// Exceptions that only carry the one that the listener or the deserialiser threw.
const WRAPPERS: [&str; 4] = [
    "org.springframework.kafka.listener.ListenerExecutionFailedException",
    "org.springframework.kafka.listener.TimestampedException",
    "org.springframework.kafka.support.serializer.DeserializationException",
    "org.springframework.messaging.MessageHandlingException",
];
/// What deserialisation fails with.
const DESERIALISATION: &str = "org.springframework.kafka.support.serializer.DeserializationException";
/// Spring itself takes no larger number of attempts for true.
const ATTEMPTS_LIMIT: i64 = 32_767;

pub(super) fn marks(name: &str) -> bool {
    MARKS.iter().any(|names| names.contains(&name))
}

pub(super) fn owns(name: &str) -> bool {
    marks(name) || OTHERS.iter().any(|names| names.contains(&name))
}

pub(super) fn read(taken: &mut Taken<'_>, written_at: Option<Timestamp>) -> Story {
    let value = Thrown {
        class: text(taken, &CLASS),
        message: text(taken, &MESSAGE),
        root: text(taken, &ROOT),
        trace: text(taken, &TRACE),
    };
    let key = Thrown {
        class: text(taken, &KEY_CLASS),
        message: text(taken, &KEY_MESSAGE),
        root: text(taken, &ROOT),
        trace: text(taken, &KEY_TRACE),
    };
    let is_decoding =
        !key.is_empty() || taken.has(&SERIALISED) || value.class.as_deref() == Some(DESERIALISATION);
    let phase = if is_decoding { Phase::Decode } else { UNTOLD_PHASE };
    let reason = is_decoding.then_some(Reason::INVALID_SCHEMA);
    let thrown = if value.is_empty() { key } else { value };
    let wraps = |class: &str| WRAPPERS.contains(&class);
    let failure = (!thrown.is_empty() || is_decoding).then(|| thrown.failure(reason, phase, wraps));
    let timestamp = taken.first(&TIMESTAMP);
    let timestamp = taken.read(timestamp, values::time);
    let first_timestamp = taken.last(&FIRST_TIMESTAMP);
    let first_timestamp = taken.read(first_timestamp, |value| values::millis(values::big_integer(value)?));
    let backoff = taken.last(&BACKOFF);
    let backoff = taken.read(backoff, |value| values::millis(values::big_integer(value)?));
    let attempts = attempts(taken);
    let (partition, offset) = (taken.first(&PARTITION), taken.first(&OFFSET));
    // A time after that of the record is one that a retry topic waits for, not one of a failure.
    let last_failed_at =
        backoff.filter(|time| written_at.is_some_and(|written| *time <= written)).or(written_at);
    Story {
        topic: first_text(taken, &TOPIC),
        partition: taken.read(partition, values::partition),
        offset: taken.read(offset, values::offset),
        timestamp: timestamp.or(first_timestamp),
        keeps_time: false,
        group: first_text(taken, &GROUP),
        failure,
        attempts,
        first_failed_at: last_failed_at.filter(|_| attempts == Some(1)),
        last_failed_at,
    }
}

/// How many attempts were made, as far as that is told.
fn attempts(taken: &mut Taken<'_>) -> Option<u32> {
    let next = taken.last(&ATTEMPTS);
    let next = taken.read(next, |value| {
        let number = match *value {
            [byte] => i64::from(byte),
            [a, b, c, d] => i64::from(i32::from_be_bytes([a, b, c, d])),
            _ => return None,
        };
        (2..=ATTEMPTS_LIMIT + 1).contains(&number).then_some(number - 1)
    });
    let delivery = taken.last(&DELIVERY);
    let delivery =
        taken.read(delivery, |value| values::number(value).filter(|n| (1..=ATTEMPTS_LIMIT).contains(n)));
    next.or(delivery).and_then(|number| u32::try_from(number).ok())
}

/// The last text under these names.
fn text(taken: &mut Taken<'_>, names: &[&str]) -> Option<String> {
    let header = taken.last(names);
    taken.text(header)
}

fn first_text(taken: &mut Taken<'_>, names: &[&str]) -> Option<String> {
    let header = taken.first(names);
    taken.text(header)
}
