//! Reads Kafka Streams' headers: `errors.dead.letter.queue.topic.name` (KIP-1034).
//!
//! Checked in Apache Kafka: `ExceptionHandlerUtils`, which builds the record.
//!
//! - All values are UTF-8, with numbers in decimal digits. `exception` is the result of
//!   `Throwable.toString`: class and message. An exception without a message has a null `message`.
//! - Key and value are the serialised ones, and the time is the original's. The original's headers are
//!   **not** copied.

use super::failure_info::{DEFAULT_PHASE, FailureInfo};
use super::values::{self, HeaderReader};
use crate::java::{self, Exception};
use lazaret_core::Phase;

const PREFIX: &str = "__streams.errors.";

pub(super) fn is_own(name: &str) -> bool {
    name.starts_with(PREFIX)
}

pub(super) fn read(reader: &mut HeaderReader<'_>) -> FailureInfo {
    let text = |reader: &mut HeaderReader<'_>, name: &str| {
        let header = reader.last(&[name]);
        reader.text(header)
    };
    let described = text(reader, "__streams.errors.exception").map(|text| java::parse_exception(&text));
    let (class, message) = described.map_or((None, None), |link| (link.error_type, Some(link.message)));
    let exception = Exception {
        class,
        message: text(reader, "__streams.errors.message").or(message),
        root: None,
        trace: text(reader, "__streams.errors.stacktrace"),
    };
    // Matches `SerializationException`, `DeserializationException` and their subclasses by name.
    let is_decoding =
        exception.class.as_deref().is_some_and(|class| class.ends_with("erializationException"));
    let phase = if is_decoding { Phase::Decode } else { DEFAULT_PHASE };
    let topic = reader.first(&["__streams.errors.topic"]);
    let (partition, offset) =
        (reader.first(&["__streams.errors.partition"]), reader.first(&["__streams.errors.offset"]));
    FailureInfo {
        topic: reader.text(topic),
        partition: reader.read(partition, |value| values::decimal(value)?.try_into().ok()),
        offset: reader.read(offset, |value| values::decimal(value)?.try_into().ok()),
        keeps_time: true,
        failure: (!exception.is_empty()).then(|| exception.failure(None, phase, |_| false)),
        ..FailureInfo::default()
    }
}
