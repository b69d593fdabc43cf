//! From a record of a retry topic to the message that it was, with what is known of its attempts.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use lazaret_core::relay::Hop;
use lazaret_core::{Message, Partition, Position, Timestamp};

use crate::chain::Chain;
use crate::headers::{self, PassedOn};
use crate::record::{Place, Reader, Record};

/// How many handovers of a partition are remembered to know their copies. A copy comes soon: it is sent when nobody knew
/// whether the first one had arrived, or after a restart.
const REMEMBERED: usize = 4096;

/// One partition of a retry topic.
pub(crate) struct Returning {
    chain: Arc<Chain>,
    partition: Partition,
    /// What came since the partition was assigned, the latest last.
    order: VecDeque<Arc<str>>,
    seen: HashSet<Arc<str>>,
}

impl Returning {
    /// `None` when the partition is not of a retry topic.
    pub(crate) fn new(chain: &Arc<Chain>, partition: &Partition, start: u64) -> Option<Self> {
        chain.of_retry_topic(partition.stream.as_str())?;
        chain.read(partition, Some(start));
        Some(Self {
            chain: chain.clone(),
            partition: partition.clone(),
            order: VecDeque::new(),
            seen: HashSet::new(),
        })
    }

    /// The partition is read again from here. What came before may not have been settled.
    pub(crate) fn begin_again(&mut self, start: u64) {
        self.order.clear();
        self.seen.clear();
        self.chain.read(&self.partition, Some(start));
    }

    /// The offset behind the last record that we wrote to it.
    pub(crate) fn written(&self) -> u64 {
        self.chain.written(&self.partition)
    }

    /// The message that a record was.
    pub(crate) fn read(
        &mut self,
        reader: &Reader,
        record: &impl Record,
        offset: u64,
        place: &mut Place,
    ) -> Message {
        let stored = reader.read(record, offset, place);
        self.chain.read(&self.partition, Some(offset + 1));
        let links = self.chain.of_retry_topic(self.partition.stream.as_str());
        let passed = headers::read(&stored.headers).map_err(|headers::NotOurs(why)| why).and_then(|passed| {
            let fits = links.is_some_and(|links| links.stream == passed.stream.as_str());
            fits.then_some(passed).ok_or_else(|| "it belongs to another stream".to_owned())
        });
        match passed {
            Ok(passed) => self.back(reader, stored, passed),
            // Not run: nobody knows what it is. It is kept as it is, for a person to look at.
            Err(why) => {
                let why = format!("this record of a retry topic was not written by this consumer: {why}");
                Message { undecodable: Some(why.into()), ..stored }
            }
        }
    }

    /// The message as it was, with a hop that says where it stands now.
    fn back(&mut self, reader: &Reader, stored: Message, passed: PassedOn) -> Message {
        let written_at = stored.timestamp.unwrap_or(Timestamp::UNIX_EPOCH);
        // Whatever a header says: nobody waits for ever, and who came here has failed once.
        let latest = written_at.checked_add(self.chain.longest_wait).unwrap_or(Timestamp::MAX);
        let failure = passed.failure.unwrap_or_else(|| {
            lazaret_core::Failure::new(lazaret_core::Reason::HANDLER_ERROR, "unknown", "")
        });
        let hop = Hop {
            stream: stored.stream,
            position: stored.position,
            queue: passed.queue,
            attempts: passed.attempts.max(1),
            crashes: passed.crashes,
            first_failed_at: passed.first_failed_at.unwrap_or(written_at),
            last_failed_at: passed.last_failed_at.unwrap_or(written_at),
            failure,
            same_failure: passed.same_failure.max(1),
            due_at: passed.due_at.unwrap_or(written_at).min(latest),
            twin: !self.remember(passed.handover),
        };
        let mut message = Message {
            id: passed.id,
            stream: passed.stream,
            position: Position::new(passed.partition, passed.offset),
            timestamp: passed.timestamp,
            headers: passed.headers,
            hop: Some(Box::new(hop)),
            ..stored
        };
        reader.describe(&mut message);
        message
    }

    /// Says whether this handover is new here.
    fn remember(&mut self, handover: String) -> bool {
        let handover: Arc<str> = handover.into();
        if !self.seen.insert(handover.clone()) {
            return false;
        }
        self.order.push_back(handover);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        true
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        self.chain.read(&self.partition, None);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lazaret_core::{Failure, Headers, Letter, LetterState, QueueName, Reason};
    use rdkafka::Timestamp as Time;
    use rdkafka::message::{Header, OwnedHeaders, OwnedMessage};

    use super::*;
    use crate::chain::RetryTopics;
    use crate::headers::HeaderStyle;
    use crate::options::KafkaOptions;

    const TOPIC: &str = "orders.mail.retry.1m";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn returning() -> Returning {
        let topics = RetryTopics::new("mail", [Duration::from_secs(60)]);
        let chain = Arc::new(Chain::new(&topics, &["orders".to_owned()]).unwrap());
        Returning::new(&chain, &Partition::new(TOPIC, 1), 0).unwrap()
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

    fn read(returning: &mut Returning, record: &OwnedMessage) -> Message {
        let reader = Reader::new(&KafkaOptions::new("b", "g", ["orders"]));
        let mut place = Place::new(&Partition::new(TOPIC, 1));
        returning.read(&reader, record, 4, &mut place)
    }

    fn written(letter: &Letter) -> OwnedMessage {
        record(&headers::write(letter, "g", 1, HeaderStyle::default()), letter)
    }

    #[test]
    fn a_message_comes_back_as_it_was() {
        // I5: a tombstone with an empty key, here.
        let letter = letter();
        let mut message = read(&mut returning(), &written(&letter));
        let hop = message.hop.take().unwrap();
        assert_eq!(message, *letter.message);
        assert_eq!((hop.partition(), hop.position.offset), (Partition::new(TOPIC, 1), 4));
        assert_eq!((hop.attempts, hop.due_at, hop.twin), (2, at(100), false));
    }

    #[test]
    fn copies_of_one_handover_are_known_until_the_partition_is_read_again() {
        // I8
        let (mut returning, mut letter) = (returning(), letter());
        let twin =
            |returning: &mut Returning, letter: &Letter| read(returning, &written(letter)).hop.unwrap().twin;
        assert!(!twin(&mut returning, &letter));
        assert!(twin(&mut returning, &letter));
        letter.attempts = 3;
        assert!(!twin(&mut returning, &letter));
        returning.begin_again(0);
        assert!(!twin(&mut returning, &letter), "the first one may not have been settled");
    }

    #[test]
    fn the_memory_of_handovers_is_bounded() {
        // I7
        let mut returning = returning();
        for number in 0..REMEMBERED * 2 {
            assert!(returning.remember(number.to_string()));
        }
        assert_eq!((returning.order.len(), returning.seen.len()), (REMEMBERED, REMEMBERED));
        assert!(!returning.remember((REMEMBERED * 2 - 1).to_string()));
    }

    #[test]
    fn nobody_waits_for_ever_whatever_a_header_says() {
        let mut letter = letter();
        letter.due_at = Some(Timestamp::MAX);
        let hop = read(&mut returning(), &written(&letter)).hop.unwrap();
        assert_eq!(hop.due_at, at(20 + 24 * 3600));
    }

    #[test]
    fn a_record_of_somebody_else_is_not_run() {
        let letter = letter();
        let foreign = read(&mut returning(), &record(&Headers::new(), &letter));
        assert!(foreign.undecodable.unwrap().contains("x-lazaret") && foreign.hop.is_none());
        let mut other = letter.clone();
        other.message = Message { stream: "cases".into(), ..(*letter.message).clone() }.into();
        assert!(read(&mut returning(), &written(&other)).undecodable.unwrap().contains("another stream"));
    }
}
