//! The `x-original-*` headers: Spring Cloud Stream's Kafka binder, and those who write their own in this way.
//!
//! Checked in spring-cloud-stream: `KafkaMessageChannelBinder`. It writes `x-original-topic` and
//! `x-original-timestamp-type` as UTF-8, partition as an `int`, offset and timestamp as `long`, big-endian, and
//! `x-exception-fqcn`, `x-exception-message` and `x-exception-stacktrace` as UTF-8. Others write numbers in decimal digits,
//! times as RFC 3339, and `x-exception-class`, `x-failure-reason`, `x-attempt-count` and so on. All of these are read.
//!
//! Only these names are taken for failure headers, and only beside one that says where the message came from: many
//! applications have `x-` headers of their own.

use lazaret_core::{Phase, Reason};

use super::family::{Story, UNTOLD_PHASE};
use super::java::Thrown;
use super::values::{self, Taken};

const MARKS: [&str; 3] = ["x-original-topic", "x-original-partition", "x-original-offset"];
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
/// What binders wrap exceptions of the handler in.
const WRAPPERS: [&str; 2] = [
    "org.springframework.messaging.MessageHandlingException",
    "org.springframework.kafka.listener.ListenerExecutionFailedException",
];

pub(super) fn marks(name: &str) -> bool {
    MARKS.contains(&name)
}

pub(super) fn owns(name: &str) -> bool {
    marks(name) || OTHERS.contains(&name)
}

pub(super) fn read(taken: &mut Taken<'_>) -> Story {
    let text = |taken: &mut Taken<'_>, names: &[&str]| {
        let header = taken.last(names);
        taken.text(header)
    };
    let time = |taken: &mut Taken<'_>, name: &str| {
        let header = taken.last(&[name]);
        taken.read(header, values::time)
    };
    let reason = text(taken, &["x-failure-reason"]).map(|words| Reason::from_words(&words));
    let phase = text(taken, &["x-failure-phase"]);
    let phase = Phase::ALL.into_iter().find(|known| Some(known.as_str()) == phase.as_deref());
    let thrown = Thrown {
        class: text(taken, &["x-exception-fqcn", "x-exception-class"]),
        message: text(taken, &["x-exception-message", "x-exception-message-safe"]),
        root: None,
        trace: text(taken, &["x-exception-stacktrace"]),
    };
    let known = !thrown.is_empty() || reason.is_some();
    let wraps = |class: &str| WRAPPERS.contains(&class);
    let attempts = taken.last(&["x-attempt-count"]);
    let attempts =
        taken.read(attempts, |value| u32::try_from(values::number(value)?).ok().filter(|n| *n > 0));
    let topic = taken.first(&["x-original-topic"]);
    let (partition, offset) = (taken.first(&["x-original-partition"]), taken.first(&["x-original-offset"]));
    let timestamp = taken.first(&["x-original-timestamp"]);
    Story {
        topic: taken.text(topic),
        partition: taken.read(partition, values::partition),
        offset: taken.read(offset, values::offset),
        timestamp: taken.read(timestamp, values::time),
        keeps_time: false,
        group: text(taken, &["x-consumer-group"]),
        failure: known.then(|| thrown.failure(reason, phase.unwrap_or(UNTOLD_PHASE), wraps)),
        attempts,
        first_failed_at: time(taken, "x-first-failure-at"),
        last_failed_at: time(taken, "x-last-failure-at"),
    }
}
