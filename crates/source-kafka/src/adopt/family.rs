//! What the failure headers of a record tell, whichever framework wrote them.
//!
//! A record may carry headers of several families, and a family may have written its own several times: a dead letter that
//! was read by another consumer, failed there too, and went to the next topic. Writers put their headers behind those that
//! are there. So where the message came from at first is what stands first, and why it is in this topic is what stands last.

use lazaret_core::{Failure, Headers, MessageId, Phase, Timestamp};

use super::values::Taken;
use super::{connect, original, spring, streams};
use crate::headers::{self, PassedOn};

/// Who wrote the failure headers of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Family {
    /// Lazaret itself: a dead-letter topic of another consumer, or of this one.
    Lazaret,
    /// Spring Kafka: `kafka_dlt-*`, and `kafka_original-*` with `retry_topic-*` of its retry topics.
    Spring,
    /// Kafka Connect: `__connect.errors.*`.
    Connect,
    /// Kafka Streams: `__streams.errors.*`.
    Streams,
    /// `x-original-*`: Spring Cloud Stream, and many who write their own.
    Original,
}

impl Family {
    /// Those that leave each header by itself.
    const PLAIN: [Self; 4] = [Self::Spring, Self::Connect, Self::Streams, Self::Original];

    /// The name used in diagnostics and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lazaret => "lazaret",
            Self::Spring => "spring",
            Self::Connect => "connect",
            Self::Streams => "streams",
            Self::Original => "x-original",
        }
    }

    /// Whether the family writes a header of this name.
    fn owns(self, name: &str) -> bool {
        match self {
            Self::Lazaret => false,
            Self::Spring => spring::owns(name),
            Self::Connect => connect::owns(name),
            Self::Streams => streams::owns(name),
            Self::Original => original::owns(name),
        }
    }

    fn read(self, taken: &mut Taken<'_>, written_at: Option<Timestamp>) -> Story {
        match self {
            Self::Lazaret | Self::Original => original::read(taken),
            Self::Spring => spring::read(taken, written_at),
            Self::Connect => connect::read(taken),
            Self::Streams => streams::read(taken),
        }
    }
}

/// What one family tells of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Story {
    pub(super) topic: Option<String>,
    pub(super) partition: Option<u32>,
    pub(super) offset: Option<u64>,
    pub(super) timestamp: Option<Timestamp>,
    /// The family leaves the time of the record as it was.
    pub(super) keeps_time: bool,
    pub(super) group: Option<String>,
    pub(super) failure: Option<Failure>,
    pub(super) attempts: Option<u32>,
    pub(super) first_failed_at: Option<Timestamp>,
    pub(super) last_failed_at: Option<Timestamp>,
}

/// Where a message came from at first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) topic: String,
    pub(super) partition: u32,
    pub(super) offset: u64,
}

/// What all failure headers of a record tell together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// Who wrote last.
    pub(super) family: Family,
    /// None when it is not known whole.
    pub(super) origin: Option<Origin>,
    /// The id of the message, where it is told by itself.
    pub(super) id: Option<MessageId>,
    /// None when it is not known; the time of the record if it was kept.
    pub(super) timestamp: Option<Timestamp>,
    pub(super) group: Option<String>,
    pub(super) failure: Option<Failure>,
    pub(super) attempts: Option<u32>,
    pub(super) crashes: u32,
    pub(super) first_failed_at: Option<Timestamp>,
    pub(super) last_failed_at: Option<Timestamp>,
    /// The record only says that the message is a letter in a store: it was too large for the topic.
    pub(super) claim: bool,
    /// The headers that the message had at first.
    pub(super) headers: Headers,
    /// The failure headers.
    pub(super) taken: Headers,
    /// What could not be read.
    pub(super) warnings: Vec<String>,
}

/// Reads the failure headers of a record that was written at this time; `None` when it has none that are known.
pub(super) fn read(all: &Headers, written_at: Option<Timestamp>) -> Option<Told> {
    let mut warnings = Vec::new();
    if all.iter().any(|(name, _)| name == headers::MARK) {
        match headers::read(all) {
            Ok(passed) => return Some(from_lazaret(all, passed)),
            Err(headers::NotOurs(why)) => warnings.push(format!("the headers of Lazaret are damaged: {why}")),
        }
    }
    let present = present(all);
    let stories: Vec<Story> = present
        .iter()
        .map(|family| {
            let own = pick(all, |name| family.owns(name));
            let mut taken = Taken::new(&own);
            let story = family.read(&mut taken, written_at);
            warnings.extend(taken.into_warnings());
            story
        })
        .collect();
    // The one that began first tells where it came from, the one that wrote last tells why it is here.
    let (first, last) = (stories.first()?, stories.last()?);
    let origin = stories.iter().find_map(Story::origin);
    if origin.is_none() {
        warnings.push("where the message came from is not known".to_owned());
    }
    let is_own = |name: &str| present.iter().any(|family| family.owns(name));
    Some(Told {
        family: *present.last()?,
        origin,
        id: None,
        timestamp: first.timestamp.or(written_at.filter(|_| first.keeps_time)),
        group: last.group.clone(),
        failure: stories.iter().rev().find_map(|story| story.failure.clone()),
        attempts: last.attempts,
        crashes: 0,
        first_failed_at: last.first_failed_at,
        last_failed_at: last.last_failed_at,
        claim: false,
        headers: pick(all, |name| !is_own(name)),
        taken: pick(all, is_own),
        warnings,
    })
}

impl Story {
    fn origin(&self) -> Option<Origin> {
        let topic = self.topic.clone().filter(|topic| !topic.is_empty())?;
        Some(Origin { topic, partition: self.partition?, offset: self.offset? })
    }
}

/// The families whose headers are there, in the order of their first ones. A family is there when it says where the message
/// came from or why it failed; its other headers alone may be the message's own.
fn present(all: &Headers) -> Vec<Family> {
    let mut present: Vec<(usize, Family)> = Vec::new();
    for family in Family::PLAIN {
        let marks = |name: &str| match family {
            Family::Original => original::marks(name),
            Family::Spring => spring::marks(name),
            _ => family.owns(name),
        };
        let first = all.iter().position(|(name, _)| marks(name));
        present.extend(first.map(|index| (index, family)));
    }
    present.sort_unstable();
    present.into_iter().map(|(_, family)| family).collect()
}

/// The headers whose names fit, in their order, null ones too.
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

/// What Lazaret wrote is whole. Headers of others that stand before it are the message's own.
fn from_lazaret(all: &Headers, passed: PassedOn) -> Told {
    let mut warnings = Vec::new();
    if passed.failure.is_none() {
        warnings.push("why it failed is not told".to_owned());
    }
    Told {
        family: Family::Lazaret,
        origin: Some(Origin {
            topic: passed.stream.as_str().to_owned(),
            partition: passed.partition,
            offset: passed.offset,
        }),
        id: Some(passed.id),
        timestamp: passed.timestamp,
        group: Some(passed.group),
        failure: passed.failure,
        attempts: Some(passed.attempts),
        crashes: passed.crashes,
        first_failed_at: passed.first_failed_at,
        last_failed_at: passed.last_failed_at,
        claim: passed.claim.is_some(),
        taken: between(all, &passed.headers),
        headers: passed.headers,
        warnings,
    }
}

/// What stands in one block among headers that are otherwise these.
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

/// The phase of a failure that is not told: the handler's own work.
pub(super) const UNTOLD_PHASE: Phase = Phase::Handle;

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn headers(pairs: &[(&str, &[u8])]) -> Headers {
        pairs.iter().map(|(name, value)| (*name, Bytes::copy_from_slice(value))).collect()
    }

    #[test]
    fn a_record_without_failure_headers_tells_nothing() {
        assert_eq!(read(&Headers::new(), None), None);
        assert_eq!(
            read(&headers(&[("x-correlation-id", b"c"), ("kafka_deliveryAttempt", &[0, 0, 0, 1])]), None),
            None
        );
    }

    #[test]
    fn the_first_family_tells_the_origin_and_the_last_the_failure() {
        // I8: a copy of a copy is the same message.
        let told = read(
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
        assert_eq!(told.origin, Some(Origin { topic: "orders".into(), partition: 1, offset: 7 }));
        assert_eq!(told.failure.unwrap().error_type, "Second");
        assert_eq!((told.family, told.headers.len(), told.taken.len()), (Family::Spring, 1, 8));
    }

    #[test]
    fn damage_is_told_and_what_can_be_read_is_read() {
        let told = read(
            &headers(&[
                ("kafka_dlt-original-topic", b"orders"),
                ("kafka_dlt-original-partition", b"\x01"),
                ("kafka_dlt-original-offset", &[0; 8]),
                ("kafka_dlt-exception-message", b"caf\xe9"),
            ]),
            None,
        )
        .unwrap();
        assert_eq!(told.origin, None);
        assert_eq!(told.failure.unwrap().message, "caf\u{fffd}");
        let all = told.warnings.join("; ");
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
        fn no_headers_are_too_much(
            drawn in proptest::collection::vec(
                (0..NAMES.len(), proptest::option::of(proptest::collection::vec(any::<u8>(), 0..20))), 0..30)
        ) {
            // I10, I5: whatever stands there, nothing panics, and no header is lost.
            let mut all = Headers::new();
            for (name, value) in &drawn {
                match value {
                    Some(value) => all.push(NAMES[*name], value.clone()),
                    None => all.push_null(NAMES[*name]),
                }
            }
            if let Some(told) = read(&all, None).filter(|told| told.family != Family::Lazaret) {
                prop_assert_eq!(told.headers.len() + told.taken.len(), all.len());
            }
        }
    }
}
