//! Decodes records of a dead-letter topic.

use lazaret_core::letter::Diagnostics;
use lazaret_core::{Failure, Headers, MessageId, Phase, Position, Reason};
use lazaret_source_kafka::{MessageDecoder, RecordParts, TopicRecord};

use super::framework::{self, DeadLetterInfo};
use super::values::display;
use crate::foreign::ForeignLetter;

/// The maximum number of failure headers in the context of a letter (I7).
const CONTEXT_LIMIT: usize = 64;

/// How records without known failure headers are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownRecords {
    /// Skips them. They are counted, and the report lists the first ones.
    #[default]
    Skip,
    /// Adopts them as messages of the dead-letter topic itself.
    Adopt,
}

/// Decodes records.
#[derive(Clone, Debug)]
pub(super) struct Decoder {
    pub(super) messages: MessageDecoder,
    pub(super) unknown: UnknownRecords,
}

impl Decoder {
    /// Returns the dead letter of a record. Returns `None` if the record does not hold the message, or
    /// if it has no known failure headers and such records are skipped.
    pub(super) fn decode(&self, record: TopicRecord) -> Option<ForeignLetter> {
        match framework::read(&record.parts.headers, record.timestamp) {
            // A claim check has no message. If it were adopted, it could be replayed as a tombstone.
            Some(info) if info.claim_check => None,
            Some(info) => Some(self.known(record, info)),
            None if self.unknown == UnknownRecords::Skip => None,
            None => Some(self.unknown(record)),
        }
    }

    fn known(&self, record: TopicRecord, info: DeadLetterInfo) -> ForeignLetter {
        let TopicRecord { partition, offset, parts, timestamp } = record;
        let (stream, position) = match &info.origin {
            Some(origin) => (origin.topic.as_str().into(), Position::new(origin.partition, origin.offset)),
            // Without a complete origin the record counts as a message of this topic.
            None => (partition.stream.clone(), Position::new(partition.index, offset)),
        };
        let parts = RecordParts { headers: info.headers, ..parts };
        let id = info.id.or_else(|| self.messages.id(&parts.headers));
        let id = id.unwrap_or_else(|| {
            MessageId::new(format!("{stream}/{}/{}", position.partition, position.offset))
        });
        let message = self.messages.message(parts, id, stream, position, info.timestamp);
        let cause = info.failure.unwrap_or_else(|| unknown_failure("the headers hold no cause"));
        ForeignLetter {
            attempts: info.attempts.unwrap_or(1).max(1),
            crash_attempts: info.crashes,
            first_failed_at: info.first_failed_at,
            last_failed_at: info.last_failed_at,
            group: info.group,
            written_at: timestamp,
            context: context(&info.failure_headers),
            warnings: info.warnings,
            ..ForeignLetter::new(info.framework.as_str(), message, cause)
        }
    }

    /// Adopts a record without failure headers as a message of this topic.
    fn unknown(&self, record: TopicRecord) -> ForeignLetter {
        let TopicRecord { partition, offset, parts, timestamp } = record;
        let position = Position::new(partition.index, offset);
        let id = self.messages.id(&parts.headers);
        let id = id.unwrap_or_else(|| MessageId::new(format!("{partition}/{offset}")));
        let cause = match &parts.undecodable {
            Some(reason) => {
                Failure::new(Reason::INVALID_SCHEMA, "unknown", reason.as_ref()).in_phase(Phase::Decode)
            }
            None => unknown_failure("the record has no known failure headers"),
        };
        let message = self.messages.message(parts, id, partition.stream, position, timestamp);
        ForeignLetter { written_at: timestamp, ..ForeignLetter::new("unknown", message, cause) }
    }
}

fn unknown_failure(message: &str) -> Failure {
    Failure::new(Reason::HANDLER_ERROR, "unknown", message)
}

/// Returns the failure headers in readable form, without stack traces, which are in the cause.
fn context(failure_headers: &Headers) -> Diagnostics {
    let mut context = Diagnostics::new();
    let headers = failure_headers.iter_nullable().filter(|(name, _)| !name.ends_with("stacktrace"));
    for (name, value) in headers.take(CONTEXT_LIMIT) {
        let numbered = (2..).map(|n| format!("{name}#{n}"));
        let free = std::iter::once(name.to_owned()).chain(numbered).find(|name| !context.contains_key(name));
        if let Some(free) = free {
            context.insert(free, display(value));
        }
    }
    context
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lazaret_core::{Letter, Partition, QueueName, Timestamp};
    use lazaret_source_kafka::KafkaOptions;
    use lazaret_source_kafka::headers::{self, HeaderStyle};
    use proptest::prelude::*;

    use super::*;

    fn decoder() -> Decoder {
        let messages = MessageDecoder::new(&KafkaOptions::new("b", "g", ["t"]));
        Decoder { messages, unknown: UnknownRecords::Skip }
    }

    fn adopting() -> Decoder {
        Decoder { unknown: UnknownRecords::Adopt, ..decoder() }
    }

    fn record(headers: &[(&'static str, &'static [u8])]) -> TopicRecord {
        let headers: Headers =
            headers.iter().map(|(name, value)| (*name, Bytes::from_static(value))).collect();
        let parts = RecordParts { key: Some("k".into()), headers, ..RecordParts::default() };
        TopicRecord { partition: Partition::new("dlt", 2), offset: 7, parts, timestamp: None }
    }

    const HEADERS: [(&str, &[u8]); 5] = [
        ("kafka_dlt-original-topic", b"orders"),
        ("kafka_dlt-original-partition", &[0, 0, 0, 1]),
        ("kafka_dlt-original-offset", &[0, 0, 0, 0, 0, 0, 0, 9]),
        ("kafka_dlt-original-topic", b"orders-dlt"),
        ("kafka_dlt-original-consumer-group", b"billing"),
    ];

    #[test]
    fn a_dead_letter_holds_the_original_position_and_the_failure_headers() {
        let letter = decoder().decode(record(&HEADERS)).unwrap();
        assert_eq!(
            (letter.message.id.as_str(), letter.message.key.as_deref()),
            ("orders/1/9", Some(&b"k"[..]))
        );
        assert_eq!((letter.framework, letter.group.as_deref()), ("spring", Some("billing")));
        assert_eq!(letter.context["kafka_dlt-original-offset"], "9");
        assert_eq!(letter.context["kafka_dlt-original-topic"], "orders");
        assert_eq!(letter.context["kafka_dlt-original-topic#2"], "orders-dlt");
        assert_eq!((letter.message.headers.len(), letter.warnings.len()), (0, 0));
    }

    #[test]
    fn a_claim_check_is_no_tombstone() {
        // I5: the message is a letter in a store. The record must not be adopted as a letter without a
        // payload.
        let mut message = decoder().decode(record(&HEADERS)).unwrap().message;
        message.payload = Some("large".into());
        let queue = QueueName::of("billing", "billing");
        let letter = Letter::new(queue, "k".into(), message.into(), Timestamp::UNIX_EPOCH);
        let style = HeaderStyle { minimal: true, claim_check: true, ..HeaderStyle::default() };
        let mut claim = record(&[]);
        claim.parts.headers = headers::write(&letter, "billing", 1, style);
        assert_eq!(adopting().decode(claim.clone()), None);
        claim.parts.headers = headers::write(&letter, "billing", 1, HeaderStyle::default());
        assert!(adopting().decode(claim).is_some());
    }

    #[test]
    fn undecodable_headers_are_a_decoding_failure() {
        let mut damaged = record(&[]);
        damaged.parts.undecodable = Some("the name of a header is not UTF-8".into());
        assert_eq!(decoder().decode(damaged.clone()), None);
        let letter = adopting().decode(damaged).unwrap();
        assert_eq!(letter.cause.unwrap().phase, Phase::Decode);
        assert!(letter.message.undecodable.is_some(), "no handler runs");
    }

    proptest! {
        #[test]
        fn any_record_is_decoded(
            drawn in proptest::collection::vec(("[a-z_.-]{1,12}|kafka_dlt-original-(topic|partition|offset)|x-original-topic",
                proptest::collection::vec(any::<u8>(), 0..12)), 0..12),
        ) {
            // I10
            let headers: Headers = drawn.into_iter().map(|(name, value)| (name, Bytes::from(value))).collect();
            let parts = RecordParts { headers, ..RecordParts::default() };
            let record = TopicRecord { partition: Partition::new("dlt", 0), offset: 1, parts, timestamp: None };
            prop_assert!(adopting().decode(record).is_some());
        }
    }
}
