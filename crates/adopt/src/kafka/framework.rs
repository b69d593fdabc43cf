//! Reads the failure headers of a record, from any combination of frameworks.
//!
//! A record may carry headers of several frameworks, or several sets of one framework. This happens when
//! another consumer reads a dead letter, fails on it, and sends it to the next topic. Writers append
//! their headers. The first headers therefore hold the original position, and the last ones hold the
//! failure that put the record into this topic.

use lazaret_core::{Failure, Headers, MessageId, Timestamp};
use lazaret_source_kafka::headers::{self, Relayed};

use super::failure_info::{FailureInfo, Origin};
use super::values::HeaderReader;
use super::{connect, original, spring, streams};

/// The framework that wrote the failure headers of a record.
///
/// ```
/// use lazaret_adopt::kafka::Framework;
///
/// assert_eq!(Framework::Spring.as_str(), "spring");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Framework {
    /// Lazaret: a dead-letter topic of this or another consumer.
    Lazaret,
    /// Spring Kafka: `kafka_dlt-*`, and in its retry topics `kafka_original-*` with `retry_topic-*`.
    Spring,
    /// Kafka Connect: `__connect.errors.*`.
    Connect,
    /// Kafka Streams: `__streams.errors.*`.
    Streams,
    /// Spring Cloud Stream and applications that use the same names: `x-original-*`.
    Original,
}

impl Framework {
    /// All frameworks except Lazaret, whose headers are one block.
    const OTHERS: [Self; 4] = [Self::Spring, Self::Connect, Self::Streams, Self::Original];

    /// Returns the name used in diagnostics and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lazaret => "lazaret",
            Self::Spring => "spring",
            Self::Connect => "connect",
            Self::Streams => "streams",
            Self::Original => "x-original",
        }
    }

    /// Returns `true` if the framework writes a header with this name.
    fn is_own(self, name: &str) -> bool {
        match self {
            Self::Lazaret => false,
            Self::Spring => spring::is_own(name),
            Self::Connect => connect::is_own(name),
            Self::Streams => streams::is_own(name),
            Self::Original => original::is_own(name),
        }
    }

    fn read(self, reader: &mut HeaderReader<'_>, written_at: Option<Timestamp>) -> FailureInfo {
        match self {
            Self::Lazaret | Self::Original => original::read(reader),
            Self::Spring => spring::read(reader, written_at),
            Self::Connect => connect::read(reader),
            Self::Streams => streams::read(reader),
        }
    }
}

/// The content of all failure headers of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeadLetterInfo {
    /// The last framework that wrote.
    pub(super) framework: Framework,
    /// The original position, or `None` if it is incomplete.
    pub(super) origin: Option<Origin>,
    /// The id of the message, if a header holds it.
    pub(super) id: Option<MessageId>,
    /// The original timestamp, which is the record's if the framework keeps it. `None` if unknown.
    pub(super) timestamp: Option<Timestamp>,
    pub(super) group: Option<String>,
    pub(super) failure: Option<Failure>,
    pub(super) attempts: Option<u32>,
    pub(super) crashes: u32,
    pub(super) first_failed_at: Option<Timestamp>,
    pub(super) last_failed_at: Option<Timestamp>,
    /// Whether the record is a claim check, so that the message is a letter in a store.
    pub(super) claim_check: bool,
    /// The original headers of the message.
    pub(super) headers: Headers,
    /// The failure headers.
    pub(super) failure_headers: Headers,
    /// Warnings about parts that could not be read.
    pub(super) warnings: Vec<String>,
}

/// Reads the failure headers of a record with this timestamp. Returns `None` if it has no known ones.
pub(super) fn read(all: &Headers, written_at: Option<Timestamp>) -> Option<DeadLetterInfo> {
    let mut warnings = Vec::new();
    if all.iter().any(|(name, _)| name == headers::MARKER) {
        match headers::read(all) {
            Ok(relayed) => return Some(from_lazaret(all, relayed)),
            Err(headers::InvalidHeaders(reason)) => {
                warnings.push(format!("the headers of Lazaret are damaged: {reason}"));
            }
        }
    }
    let present = present(all);
    let infos: Vec<FailureInfo> = present
        .iter()
        .map(|framework| {
            let own = pick(all, |name| framework.is_own(name));
            let mut reader = HeaderReader::new(&own);
            let info = framework.read(&mut reader, written_at);
            warnings.extend(reader.into_warnings());
            info
        })
        .collect();
    // The first framework holds the origin, and the last one holds the failure.
    let (first, last) = (infos.first()?, infos.last()?);
    let origin = infos.iter().find_map(FailureInfo::origin);
    if origin.is_none() {
        warnings.push("the original position is not known".to_owned());
    }
    let is_own = |name: &str| present.iter().any(|framework| framework.is_own(name));
    Some(DeadLetterInfo {
        framework: *present.last()?,
        origin,
        id: None,
        timestamp: first.timestamp.or(written_at.filter(|_| first.keeps_time)),
        group: last.group.clone(),
        failure: infos.iter().rev().find_map(|info| info.failure.clone()),
        attempts: last.attempts,
        crashes: 0,
        first_failed_at: last.first_failed_at,
        last_failed_at: last.last_failed_at,
        claim_check: false,
        headers: pick(all, |name| !is_own(name)),
        failure_headers: pick(all, is_own),
        warnings,
    })
}

/// Returns the frameworks whose headers are present, ordered by their first header. A framework is
/// present if its headers hold an origin or a failure. Its other headers alone may belong to the
/// message.
fn present(all: &Headers) -> Vec<Framework> {
    let mut present: Vec<(usize, Framework)> = Vec::new();
    for framework in Framework::OTHERS {
        let is_marker = |name: &str| match framework {
            Framework::Original => original::is_marker(name),
            Framework::Spring => spring::is_marker(name),
            _ => framework.is_own(name),
        };
        let first = all.iter().position(|(name, _)| is_marker(name));
        present.extend(first.map(|index| (index, framework)));
    }
    present.sort_unstable();
    present.into_iter().map(|(_, framework)| framework).collect()
}

/// Returns the headers whose names fit, in order, including null ones.
fn pick(all: &Headers, fits: impl Fn(&str) -> bool) -> Headers {
    let mut picked = Headers::new();
    for (name, value) in all.iter_nullable().filter(|(name, _)| fits(name)) {
        match value {
            Some(value) => picked.push(name, value.clone()),
            None => picked.push_null(name),
        }
    }
    picked
}

/// Converts Lazaret's own headers, which are complete. Earlier headers of other frameworks belong to the
/// message.
fn from_lazaret(all: &Headers, relayed: Relayed) -> DeadLetterInfo {
    let mut warnings = Vec::new();
    if relayed.failure.is_none() {
        warnings.push("the headers hold no cause".to_owned());
    }
    DeadLetterInfo {
        framework: Framework::Lazaret,
        origin: Some(Origin {
            topic: relayed.stream.as_str().to_owned(),
            partition: relayed.partition,
            offset: relayed.offset,
        }),
        id: Some(relayed.id),
        timestamp: relayed.timestamp,
        group: Some(relayed.group),
        failure: relayed.failure,
        attempts: Some(relayed.attempts),
        crashes: relayed.crashes,
        first_failed_at: relayed.first_failed_at,
        last_failed_at: relayed.last_failed_at,
        claim_check: relayed.claim.is_some(),
        failure_headers: between(all, &relayed.headers),
        headers: relayed.headers,
        warnings,
    }
}

/// Returns the block of headers that is in `all` but not in `others`.
fn between(all: &Headers, others: &Headers) -> Headers {
    let before =
        all.iter_nullable().zip(others.iter_nullable()).take_while(|(one, other)| one == other).count();
    let size = all.len() - others.len();
    let mut block = Headers::new();
    for (name, value) in all.iter_nullable().skip(before).take(size) {
        match value {
            Some(value) => block.push(name, value.clone()),
            None => block.push_null(name),
        }
    }
    block
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn headers(pairs: &[(&str, &[u8])]) -> Headers {
        pairs.iter().map(|(name, value)| (*name, Bytes::copy_from_slice(value))).collect()
    }

    #[test]
    fn a_record_without_failure_headers_is_unknown() {
        assert_eq!(read(&Headers::new(), None), None);
        assert_eq!(
            read(&headers(&[("x-correlation-id", b"c"), ("kafka_deliveryAttempt", &[0, 0, 0, 1])]), None),
            None
        );
    }

    #[test]
    fn the_first_framework_holds_the_origin_and_the_last_the_failure() {
        // I8: a copy of a copy is the same message.
        let info = read(
            &headers(&[
                ("tenant", b"acme"),
                ("__connect.errors.topic", b"orders"),
                ("__connect.errors.partition", b"1"),
                ("__connect.errors.offset", b"7"),
                ("__connect.errors.exception.class.name", b"First"),
                ("kafka_dlt-original-topic", b"orders-dlq"),
                ("kafka_dlt-original-partition", &[0, 0, 0, 0]),
                ("kafka_dlt-original-offset", &[0; 8]),
                ("kafka_dlt-exception-fqcn", b"Second"),
            ]),
            None,
        )
        .unwrap();
        assert_eq!(info.origin, Some(Origin { topic: "orders".into(), partition: 1, offset: 7 }));
        assert_eq!(info.failure.unwrap().error_type, "Second");
        assert_eq!(
            (info.framework, info.headers.len(), info.failure_headers.len()),
            (Framework::Spring, 1, 8)
        );
    }

    #[test]
    fn damaged_headers_are_reported_and_the_others_read() {
        let info = read(
            &headers(&[
                ("kafka_dlt-original-topic", b"orders"),
                ("kafka_dlt-original-partition", b"\x01"),
                ("kafka_dlt-original-offset", &[0; 8]),
                ("kafka_dlt-exception-message", b"caf\xe9"),
            ]),
            None,
        )
        .unwrap();
        assert_eq!(info.origin, None);
        assert_eq!(info.failure.unwrap().message, "caf\u{fffd}");
        let all = info.warnings.join("; ");
        for word in ["kafka_dlt-original-partition cannot be read", "not UTF-8", "not known"] {
            assert!(all.contains(word), "{all}");
        }
    }

    const NAMES: [&str; 24] = [
        "x-lazaret",
        "x-original-topic",
        "x-original-partition",
        "x-original-offset",
        "x-original-timestamp",
        "x-exception-fqcn",
        "x-attempt-count",
        "x-failure-reason",
        "kafka_dlt-original-topic",
        "kafka_dlt-original-partition",
        "kafka_dlt-original-offset",
        "kafka_original-timestamp",
        "kafka_dlt-exception-stacktrace",
        "kafka_dlt-key-exception-fqcn",
        "retry_topic-attempts",
        "retry_topic-original-timestamp",
        "retry_topic-backoff-timestamp",
        "springDeserializerExceptionValue",
        "__connect.errors.stage",
        "__connect.errors.offset",
        "__connect.errors.exception.stacktrace",
        "__streams.errors.exception",
        "__streams.errors.partition",
        "own",
    ];

    proptest! {
        #[test]
        fn no_headers_panic(
            drawn in proptest::collection::vec(
                (0..NAMES.len(), proptest::option::of(proptest::collection::vec(any::<u8>(), 0..20))), 0..30)
        ) {
            // I10, I5: nothing panics, and no header is lost.
            let mut all = Headers::new();
            for (name, value) in &drawn {
                match value {
                    Some(value) => all.push(NAMES[*name], value.clone()),
                    None => all.push_null(NAMES[*name]),
                }
            }
            if let Some(info) = read(&all, None).filter(|info| info.framework != Framework::Lazaret) {
                prop_assert_eq!(info.headers.len() + info.failure_headers.len(), all.len());
            }
        }
    }
}
