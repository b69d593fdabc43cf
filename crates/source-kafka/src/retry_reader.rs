//! Restores the original messages from records of a retry topic, with their attempts so far.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use lazaret_core::relay::Hop;
use lazaret_core::{Message, Partition, Position, Timestamp};

use crate::headers::{self, Relayed};
use crate::record::{PartitionNames, Record, RecordReader};
use crate::topology::Topology;

/// The number of handovers per partition that are remembered to detect copies. A copy follows soon: it
/// is sent when the outcome of the first send is unknown, or after a restart.
const REMEMBERED: usize = 4096;

/// Reads one partition of a retry topic.
pub(crate) struct RetryReader {
    topology: Arc<Topology>,
    partition: Partition,
    /// The handovers since the partition was assigned, latest last.
    order: VecDeque<Arc<str>>,
    /// A digest of each handover's message.
    seen: HashMap<Arc<str>, u64>,
    digests: RandomState,
}

/// The result of looking up a handover among the ones read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// The handover is new.
    New,
    /// The handover was read before, with the same message.
    Copy,
    /// The handover was read before with a different message, so two messages have the same id.
    Other,
}

impl RetryReader {
    /// Creates a reader. Returns `None` if the partition does not belong to a retry topic.
    pub(crate) fn new(topology: &Arc<Topology>, partition: &Partition, start: u64) -> Option<Self> {
        topology.of_retry_topic(partition.stream.as_str())?;
        topology.record_start(partition, Some(start));
        Some(Self {
            topology: topology.clone(),
            partition: partition.clone(),
            order: VecDeque::new(),
            seen: HashMap::new(),
            digests: RandomState::new(),
        })
    }

    /// Rewinds to this offset. Records read before may not have been settled.
    pub(crate) fn rewind(&mut self, start: u64) {
        self.order.clear();
        self.seen.clear();
        self.topology.record_start(&self.partition, Some(start));
    }

    /// Returns the offset after the last record that this relay wrote.
    pub(crate) fn written(&self) -> u64 {
        self.topology.written(&self.partition)
    }

    /// Reads a record.
    pub(crate) fn read(
        &mut self,
        reader: &RecordReader,
        record: &impl Record,
        offset: u64,
        names: &PartitionNames,
    ) -> Message {
        let stored = reader.read(record, offset, names);
        let topics = self.topology.of_retry_topic(self.partition.stream.as_str());
        let invalid = |headers::InvalidHeaders(reason)| reason;
        let relayed = headers::read(&stored.headers).map_err(invalid).and_then(|relayed| {
            let fits = topics.is_some_and(|topics| topics.stream == relayed.stream.as_str());
            fits.then_some(relayed).ok_or_else(|| "it belongs to another stream".to_owned())
        });
        match relayed {
            Ok(relayed) => self.restore(reader, stored, relayed, names),
            // No handler runs. The record becomes a letter as it is.
            Err(reason) => {
                let reason =
                    format!("the record of a retry topic was not written by this consumer: {reason}");
                Message { undecodable: Some(reason.into()), ..stored }
            }
        }
    }

    /// Restores the original message, with a hop that holds its current position and its attempts.
    fn restore(
        &mut self,
        reader: &RecordReader,
        stored: Message,
        relayed: Relayed,
        names: &PartitionNames,
    ) -> Message {
        let seen = self.remember(relayed.handover, self.digests.hash_one((&stored.key, &stored.payload)));
        // This is not the message that was read before, so it must not be settled as its copy.
        let id = match seen {
            Seen::New | Seen::Copy => relayed.id,
            Seen::Other => names.at(stored.position.offset),
        };
        let written_at = stored.timestamp.unwrap_or(Timestamp::UNIX_EPOCH);
        // The wait is bounded whatever a header contains, and a relayed message has failed at least once.
        let latest = written_at.checked_add(self.topology.max_wait).unwrap_or(Timestamp::MAX);
        let failure = relayed.failure.unwrap_or_else(|| {
            lazaret_core::Failure::new(lazaret_core::Reason::HANDLER_ERROR, "unknown", "")
        });
        let hop = Hop {
            stream: stored.stream,
            position: stored.position,
            queue: relayed.queue,
            attempts: relayed.attempts.max(1),
            crashes: relayed.crashes,
            first_failed_at: relayed.first_failed_at.unwrap_or(written_at),
            last_failed_at: relayed.last_failed_at.unwrap_or(written_at),
            failure,
            same_failure: relayed.same_failure.max(1),
            due_at: relayed.due_at.unwrap_or(written_at).min(latest),
            twin: seen == Seen::Copy,
            conflict: seen == Seen::Other,
        };
        let mut message = Message {
            id,
            stream: relayed.stream,
            position: Position {
                incarnation: relayed.incarnation,
                ..Position::new(relayed.partition, relayed.offset)
            },
            timestamp: relayed.timestamp,
            headers: relayed.headers,
            hop: Some(Box::new(hop)),
            ..stored
        };
        reader.decoder().describe(&mut message);
        message
    }

    /// Remembers a handover with the digest of its message. Returns whether it was read before.
    fn remember(&mut self, handover: String, digest: u64) -> Seen {
        if let Some(known) = self.seen.get(&*handover) {
            return if *known == digest { Seen::Copy } else { Seen::Other };
        }
        let handover: Arc<str> = handover.into();
        self.seen.insert(handover.clone(), digest);
        self.order.push_back(handover);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        Seen::New
    }
}

impl Drop for RetryReader {
    fn drop(&mut self) {
        self.topology.record_start(&self.partition, None);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lazaret_core::{Failure, Headers, Letter, LetterState, QueueName, Reason};
    use rdkafka::Timestamp as Time;
    use rdkafka::message::{Header, OwnedHeaders, OwnedMessage};

    use super::*;
    use crate::headers::HeaderStyle;
    use crate::options::KafkaOptions;
    use crate::retry_topics::RetryTopics;

    const TOPIC: &str = "orders.mail.retry.1m";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn retry_reader() -> RetryReader {
        let topics = RetryTopics::new("mail", [Duration::from_secs(60)]);
        let topology = Arc::new(Topology::new(&topics, &["orders".to_owned()]).unwrap());
        RetryReader::new(&topology, &Partition::new(TOPIC, 1), 0).unwrap()
    }

    fn letter() -> Letter {
        let mut message = Message::new("evt-1", "orders", Position::new(5, 7)).with_key("");
        message.headers.push("ce_type", "Placed");
        message.event_type = Some("Placed".into());
        message.timestamp = Some(at(3));
        let mut letter = Letter::new(QueueName::of("mail", "mail"), "s".into(), message.into(), at(9));
        letter.cause = Some(Failure::new(Reason::TIMEOUT, "E", "no"));
        (letter.state, letter.attempts, letter.due_at) = (LetterState::Retrying, 2, Some(at(100)));
        letter
    }

    fn record(headers: &Headers, letter: &Letter) -> OwnedMessage {
        let owned = headers.iter_nullable().fold(OwnedHeaders::new(), |owned, (key, value)| {
            owned.insert(Header { key, value: value.map(|value| value.as_ref()) })
        });
        let key = letter.message.key.as_ref().map(|key| key.to_vec());
        OwnedMessage::new(None, key, TOPIC.to_owned(), Time::CreateTime(20_000), 1, 4, Some(owned))
    }

    fn read(retry: &mut RetryReader, record: &OwnedMessage) -> Message {
        let reader = RecordReader::new(&KafkaOptions::new("b", "g", ["orders"]));
        let names = PartitionNames::new(&Partition::new(TOPIC, 1));
        retry.read(&reader, record, 4, &names)
    }

    fn written(letter: &Letter) -> OwnedMessage {
        record(&headers::write(letter, "g", 1, HeaderStyle::default()), letter)
    }

    #[test]
    fn the_original_message_is_restored() {
        // I5: the message is a tombstone with an empty key.
        let letter = letter();
        let mut message = read(&mut retry_reader(), &written(&letter));
        let hop = message.hop.take().unwrap();
        assert_eq!(message, *letter.message);
        assert_eq!((hop.partition(), hop.position.offset), (Partition::new(TOPIC, 1), 4));
        assert_eq!((hop.attempts, hop.due_at, hop.twin), (2, at(100), false));
    }

    #[test]
    fn copies_of_one_handover_are_detected_until_the_partition_is_rewound() {
        // I8
        let (mut retry, mut letter) = (retry_reader(), letter());
        let twin = |retry: &mut RetryReader, letter: &Letter| read(retry, &written(letter)).hop.unwrap().twin;
        assert!(!twin(&mut retry, &letter));
        assert!(twin(&mut retry, &letter));
        letter.attempts = 3;
        assert!(!twin(&mut retry, &letter));
        retry.rewind(0);
        assert!(!twin(&mut retry, &letter), "the first one may not have been settled");
    }

    #[test]
    fn another_message_with_the_id_of_the_first_is_no_copy_of_it() {
        // I1, I8: the message is handled under its own id.
        let (mut retry, letter) = (retry_reader(), letter());
        assert_eq!(read(&mut retry, &written(&letter)).id.as_str(), "evt-1");
        let other = Message { key: Some("other".into()), ..(*letter.message).clone() };
        let forged = Letter { message: other.into(), ..letter };
        let message = read(&mut retry, &written(&forged));
        let hop = message.hop.unwrap();
        assert_eq!(message.id.as_str(), "orders.mail.retry.1m/1/4");
        assert_eq!((hop.twin, hop.conflict, hop.attempts), (false, true, 2));
    }

    #[test]
    fn the_memory_of_handovers_is_bounded() {
        // I7
        let mut retry = retry_reader();
        for number in 0..REMEMBERED * 2 {
            assert_eq!(retry.remember(number.to_string(), 0), Seen::New);
        }
        assert_eq!((retry.order.len(), retry.seen.len()), (REMEMBERED, REMEMBERED));
        assert_eq!(retry.remember((REMEMBERED * 2 - 1).to_string(), 0), Seen::Copy);
    }

    #[test]
    fn the_wait_is_bounded_whatever_a_header_contains() {
        let mut letter = letter();
        letter.due_at = Some(Timestamp::MAX);
        let hop = read(&mut retry_reader(), &written(&letter)).hop.unwrap();
        assert_eq!(hop.due_at, at(20 + 24 * 3600));
    }

    #[test]
    fn a_foreign_record_is_undecodable() {
        let letter = letter();
        let foreign = read(&mut retry_reader(), &record(&Headers::new(), &letter));
        assert!(foreign.undecodable.unwrap().contains("x-lazaret") && foreign.hop.is_none());
        let mut other = letter.clone();
        other.message = Message { stream: "cases".into(), ..(*letter.message).clone() }.into();
        assert!(read(&mut retry_reader(), &written(&other)).undecodable.unwrap().contains("another stream"));
    }
}
