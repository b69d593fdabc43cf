//! Kafka Connect's headers: `errors.deadletterqueue.context.headers.enable`.
//!
//! Checked in Apache Kafka at 1eb7644 (October 2024): `DeadLetterQueueReporter` (names, values) and `Stage`.
//!
//! - All values are UTF-8, numbers in decimal digits. An exception without a message has a header that is null.
//! - Headers are added again at every pass, so the first tell the origin and the last the failure.
//! - Key, value, headers and time of the record are those of the original.

use lazaret_core::{Phase, Reason};

use super::family::{Story, UNTOLD_PHASE};
use super::java::Thrown;
use super::values::{self, Taken};

const PREFIX: &str = "__connect.errors.";

pub(super) fn owns(name: &str) -> bool {
    name.starts_with(PREFIX)
}

pub(super) fn read(taken: &mut Taken<'_>) -> Story {
    let text = |taken: &mut Taken<'_>, name: &str| {
        let header = taken.last(&[name]);
        taken.text(header)
    };
    let stage = text(taken, "__connect.errors.stage");
    let (phase, reason) = stage.as_deref().map_or((UNTOLD_PHASE, None), of_stage);
    let thrown = Thrown {
        class: text(taken, "__connect.errors.exception.class.name"),
        message: text(taken, "__connect.errors.exception.message"),
        root: None,
        trace: text(taken, "__connect.errors.exception.stacktrace"),
    };
    let known = !thrown.is_empty() || stage.is_some();
    let topic = taken.first(&["__connect.errors.topic"]);
    let (partition, offset) =
        (taken.first(&["__connect.errors.partition"]), taken.first(&["__connect.errors.offset"]));
    Story {
        topic: taken.text(topic),
        partition: taken.read(partition, |value| values::decimal(value)?.try_into().ok()),
        offset: taken.read(offset, |value| values::decimal(value)?.try_into().ok()),
        keeps_time: true,
        // Connect's own name for the group of a sink.
        group: text(taken, "__connect.errors.connector.name").map(|name| format!("connect-{name}")),
        failure: known.then(|| thrown.failure(reason, phase, |_| false)),
        ..Story::default()
    }
}

/// What a stage of Connect is here.
fn of_stage(stage: &str) -> (Phase, Option<Reason>) {
    match stage {
        "KEY_CONVERTER" | "VALUE_CONVERTER" | "HEADER_CONVERTER" => {
            (Phase::Decode, Some(Reason::INVALID_SCHEMA))
        }
        "TRANSFORMATION" => (Phase::Validate, None),
        // A sink writes to somebody else.
        "TASK_PUT" | "KAFKA_PRODUCE" => (Phase::ExternalCall, None),
        _ => (UNTOLD_PHASE, None),
    }
}
