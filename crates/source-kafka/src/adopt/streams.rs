//! Kafka Streams' headers: `errors.dead.letter.queue.topic.name` (KIP-1034).
//!
//! Checked in Apache Kafka: `ExceptionHandlerUtils`, which builds the record.
//!
//! - All values are UTF-8, numbers in decimal digits. `exception` is what `Throwable.toString` gives: class and message. An
//!   exception without a message has a `message` that is null.
//! - Key and value are the serialised ones, the time is that of the original. The headers of the original are **not** copied.

use super::family::{Story, UNTOLD_PHASE};
use super::java::{self, Thrown};
use super::values::{self, Taken};
use lazaret_core::Phase;

const PREFIX: &str = "__streams.errors.";

pub(super) fn owns(name: &str) -> bool {
    name.starts_with(PREFIX)
}

pub(super) fn read(taken: &mut Taken<'_>) -> Story {
    let text = |taken: &mut Taken<'_>, name: &str| {
        let header = taken.last(&[name]);
        taken.text(header)
    };
    let exception = text(taken, "__streams.errors.exception").map(|text| java::exception(&text));
    let (class, said) = exception.map_or((None, None), |link| (link.error_type, Some(link.message)));
    let thrown = Thrown {
        class,
        message: text(taken, "__streams.errors.message").or(said),
        root: None,
        trace: text(taken, "__streams.errors.stacktrace"),
    };
    // The name says it: `SerializationException`, `DeserializationException` and what derives from them.
    let is_decoding = thrown.class.as_deref().is_some_and(|class| class.ends_with("erializationException"));
    let phase = if is_decoding { Phase::Decode } else { UNTOLD_PHASE };
    let topic = taken.first(&["__streams.errors.topic"]);
    let (partition, offset) =
        (taken.first(&["__streams.errors.partition"]), taken.first(&["__streams.errors.offset"]));
    Story {
        topic: taken.text(topic),
        partition: taken.read(partition, |value| values::decimal(value)?.try_into().ok()),
        offset: taken.read(offset, |value| values::decimal(value)?.try_into().ok()),
        keeps_time: true,
        failure: (!thrown.is_empty()).then(|| thrown.failure(None, phase, |_| false)),
        ..Story::default()
    }
}
