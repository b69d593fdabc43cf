//! Reads the `x-original-*` headers of Spring Cloud Stream's Kafka binder, and of applications that use
//! the same names.
//!
//! Checked in spring-cloud-stream: `KafkaMessageChannelBinder`. It writes `x-original-topic` and
//! `x-original-timestamp-type` as UTF-8, the partition as an `int`, and offset and timestamp as `long`,
//! all big-endian. It writes `x-exception-fqcn`, `x-exception-message` and `x-exception-stacktrace` as
//! UTF-8. Other writers use decimal digits for numbers, RFC 3339 for times, and names such as
//! `x-exception-class`, `x-failure-reason` and `x-attempt-count`. All of these are read.
//!
//! Only these names count as failure headers, and only together with a header that names the original
//! position, because many applications have their own `x-` headers.

use lazaret_core::{Phase, Reason};

use super::failure_info::{DEFAULT_PHASE, FailureInfo};
use super::values::{self, HeaderReader};
use crate::java::Exception;

const MARKERS: [&str; 3] = ["x-original-topic", "x-original-partition", "x-original-offset"];
const OTHERS: [&str; 19] = [
    "x-original-key",
    "x-original-timestamp",
    "x-original-timestamp-type",
    "x-consumer-group",
    "x-consumer",
    "x-message-id",
    "x-handoff-id",
    "x-letter-state",
    "x-failure-reason",
    "x-failure-phase",
    "x-failure-fingerprint",
    "x-exception-fqcn",
    "x-exception-class",
    "x-exception-message",
    "x-exception-message-safe",
    "x-exception-stacktrace",
    "x-attempt-count",
    "x-first-failure-at",
    "x-last-failure-at",
];
/// Exceptions in which binders wrap the handler's exception.
const WRAPPERS: [&str; 2] = [
    "org.springframework.messaging.MessageHandlingException",
    "org.springframework.kafka.listener.ListenerExecutionFailedException",
];

pub(super) fn is_marker(name: &str) -> bool {
    MARKERS.contains(&name)
}

pub(super) fn is_own(name: &str) -> bool {
    is_marker(name) || OTHERS.contains(&name)
}

pub(super) fn read(reader: &mut HeaderReader<'_>) -> FailureInfo {
    let text = |reader: &mut HeaderReader<'_>, names: &[&str]| {
        let header = reader.last(names);
        reader.text(header)
    };
    let time = |reader: &mut HeaderReader<'_>, name: &str| {
        let header = reader.last(&[name]);
        reader.read(header, values::time)
    };
    let reason = text(reader, &["x-failure-reason"]).map(|words| Reason::from_words(&words));
    let phase = text(reader, &["x-failure-phase"]);
    let phase = Phase::ALL.into_iter().find(|known| Some(known.as_str()) == phase.as_deref());
    let exception = Exception {
        class: text(reader, &["x-exception-fqcn", "x-exception-class"]),
        message: text(reader, &["x-exception-message", "x-exception-message-safe"]),
        root: None,
        trace: text(reader, &["x-exception-stacktrace"]),
    };
    let known = !exception.is_empty() || reason.is_some();
    let is_wrapper = |class: &str| WRAPPERS.contains(&class);
    let attempts = reader.last(&["x-attempt-count"]);
    let attempts =
        reader.read(attempts, |value| u32::try_from(values::number(value)?).ok().filter(|n| *n > 0));
    let topic = reader.first(&["x-original-topic"]);
    let (partition, offset) = (reader.first(&["x-original-partition"]), reader.first(&["x-original-offset"]));
    let timestamp = reader.first(&["x-original-timestamp"]);
    FailureInfo {
        topic: reader.text(topic),
        partition: reader.read(partition, values::partition),
        offset: reader.read(offset, values::offset),
        timestamp: reader.read(timestamp, values::time),
        keeps_time: false,
        group: text(reader, &["x-consumer-group"]),
        failure: known.then(|| exception.failure(reason, phase.unwrap_or(DEFAULT_PHASE), is_wrapper)),
        attempts,
        first_failed_at: time(reader, "x-first-failure-at"),
        last_failed_at: time(reader, "x-last-failure-at"),
    }
}
