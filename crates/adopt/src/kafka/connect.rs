//! Reads Kafka Connect's headers: `errors.deadletterqueue.context.headers.enable`.
//!
//! Checked in Apache Kafka at 1eb7644 (October 2024): `DeadLetterQueueReporter` (names, values) and `Stage`.
//!
//! - All values are UTF-8, with numbers in decimal digits. An exception without a message has a null header.
//! - Headers are added again at every pass, so the first ones hold the origin and the last ones the failure.
//! - Key, value, headers and time of the record are the original's.

use lazaret_core::{Phase, Reason};

use super::failure_info::{DEFAULT_PHASE, FailureInfo};
use super::values::{self, HeaderReader};
use crate::java::Exception;

const PREFIX: &str = "__connect.errors.";

pub(super) fn is_own(name: &str) -> bool {
    name.starts_with(PREFIX)
}

pub(super) fn read(reader: &mut HeaderReader<'_>) -> FailureInfo {
    let text = |reader: &mut HeaderReader<'_>, name: &str| {
        let header = reader.last(&[name]);
        reader.text(header)
    };
    let stage = text(reader, "__connect.errors.stage");
    let (phase, reason) = stage.as_deref().map_or((DEFAULT_PHASE, None), of_stage);
    let exception = Exception {
        class: text(reader, "__connect.errors.exception.class.name"),
        message: text(reader, "__connect.errors.exception.message"),
        root: None,
        trace: text(reader, "__connect.errors.exception.stacktrace"),
    };
    let known = !exception.is_empty() || stage.is_some();
    let topic = reader.first(&["__connect.errors.topic"]);
    let (partition, offset) =
        (reader.first(&["__connect.errors.partition"]), reader.first(&["__connect.errors.offset"]));
    FailureInfo {
        topic: reader.text(topic),
        partition: reader.read(partition, |value| values::decimal(value)?.try_into().ok()),
        offset: reader.read(offset, |value| values::decimal(value)?.try_into().ok()),
        keeps_time: true,
        // The consumer group of a sink connector.
        group: text(reader, "__connect.errors.connector.name").map(|name| format!("connect-{name}")),
        failure: known.then(|| exception.failure(reason, phase, |_| false)),
        ..FailureInfo::default()
    }
}

/// Maps a stage of Connect to a phase and a reason.
fn of_stage(stage: &str) -> (Phase, Option<Reason>) {
    match stage {
        "KEY_CONVERTER" | "VALUE_CONVERTER" | "HEADER_CONVERTER" => {
            (Phase::Decode, Some(Reason::INVALID_SCHEMA))
        }
        "TRANSFORMATION" => (Phase::Validate, None),
        // A sink writes to an external system.
        "TASK_PUT" | "KAFKA_PRODUCE" => (Phase::ExternalCall, None),
        _ => (DEFAULT_PHASE, None),
    }
}
