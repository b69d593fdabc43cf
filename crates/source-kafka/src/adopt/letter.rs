//! From a record of a dead-letter topic to the letter that the consumer would have written itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::letter::Diagnostics;
use lazaret_core::{
    Failure, Letter, LetterState, Message, MessageId, Partition, Phase, Position, QueueName, Reason,
    SequenceId, Sequencing, Timestamp,
};

use super::Unknown;
use super::family::{self, Told};
use super::values::shown;
use crate::record::{Parts, Reader};

/// Under this name the diagnostics of a letter say where it was found.
pub(crate) const ADOPTED_FROM: &str = "adopted-from";
/// How many failure headers a letter keeps in its context (I7).
const CONTEXT_LIMIT: usize = 64;
/// The sequences of letters that stand apart begin with this. No key does: those that begin with `~` are escaped.
const APART: &str = "~dlt:";

/// A record as it was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) place: Partition,
    pub(super) offset: u64,
    pub(super) parts: Parts,
    /// When it was written, as far as the topic tells.
    pub(super) written_at: Option<Timestamp>,
}

impl Found {
    /// Where it stands: topic, partition and offset.
    pub(super) fn address(&self) -> String {
        format!("{}/{}", self.place, self.offset)
    }

    /// How large it is, roughly.
    pub(super) fn size(&self) -> usize {
        let Parts { key, payload, headers, .. } = &self.parts;
        let bytes = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map_or(0, bytes::Bytes::len);
        bytes(key) + bytes(payload) + headers.byte_size()
    }
}

/// What a record turned out to be.
#[derive(Debug)]
pub(super) enum Made {
    /// A letter; whether some of it could not be read.
    Letter { letter: Box<Letter>, damaged: bool },
    /// It has no failure headers that are known, and such ones are left out; or it does not hold the message at all.
    Unknown,
    /// It is a dead letter of another group.
    Foreign,
}

/// Makes letters.
#[derive(Clone, Debug)]
pub(super) struct Clerk {
    pub(super) queue: QueueName,
    pub(super) reader: Reader,
    pub(super) sequencing: Sequencing,
    pub(super) apart: bool,
    pub(super) group: Option<String>,
    pub(super) unknown: Unknown,
    pub(super) owner: Option<Arc<str>>,
    pub(super) ttl: Option<Duration>,
}

impl Clerk {
    /// The letter of a record.
    pub(super) fn make(&self, found: Found, now: Timestamp) -> Made {
        let address = found.address();
        let told = match family::read(&found.parts.headers, found.written_at) {
            // Without its message it would be a tombstone, which somebody might replay.
            Some(told) if told.claim => return Made::Unknown,
            Some(told) => Some(told),
            None if self.unknown == Unknown::LeaveOut => return Made::Unknown,
            None => None,
        };
        let group = told.as_ref().and_then(|told| told.group.as_deref());
        if let (Some(wanted), Some(group)) = (self.group.as_deref(), group)
            && wanted != group
        {
            return Made::Foreign;
        }
        let warnings = told.as_ref().map(|told| told.warnings.clone()).unwrap_or_default();
        let mut letter = match told {
            Some(told) => self.known(found, told, now),
            None => self.unknown(found, now),
        };
        letter.diagnostics.insert(ADOPTED_FROM.to_owned(), address);
        let damaged = !warnings.is_empty();
        if damaged {
            letter.diagnostics.insert("adopted-warnings".to_owned(), warnings.join("; "));
        }
        Made::Letter { letter: Box::new(letter), damaged }
    }

    fn known(&self, found: Found, told: Told, now: Timestamp) -> Letter {
        let Found { place, offset, parts, written_at } = found;
        let (stream, position) = match &told.origin {
            Some(origin) => (origin.topic.as_str().into(), Position::new(origin.partition, origin.offset)),
            // Not known whole: then it came from here.
            None => (place.stream.clone(), Position::new(place.index, offset)),
        };
        let parts = Parts { headers: told.headers, ..parts };
        let id = told.id.or_else(|| self.reader.id(&parts.headers));
        let id = id.unwrap_or_else(|| {
            MessageId::new(format!("{stream}/{}/{}", position.partition, position.offset))
        });
        let message = self.reader.message(parts, id, stream, position, told.timestamp);
        let mut letter = self.letter(message, now);
        letter.cause = Some(told.failure.unwrap_or_else(|| untold("the headers do not say why it failed")));
        // It was tried at least once.
        letter.attempts = told.attempts.unwrap_or(1).max(1);
        letter.crash_attempts = told.crashes;
        (letter.first_failed_at, letter.last_failed_at) = (told.first_failed_at, told.last_failed_at);
        letter.context = context(&told.taken);
        note(&mut letter.diagnostics, told.family.as_str(), told.group.as_deref(), written_at);
        letter
    }

    /// A record that says nothing of a failure is taken as it stands: it came from here.
    fn unknown(&self, found: Found, now: Timestamp) -> Letter {
        let Found { place, offset, parts, written_at } = found;
        let position = Position::new(place.index, offset);
        let id = self.reader.id(&parts.headers);
        let id = id.unwrap_or_else(|| MessageId::new(format!("{place}/{offset}")));
        let undecodable = parts.undecodable.clone();
        let message = self.reader.message(parts, id, place.stream, position, written_at);
        let mut letter = self.letter(message, now);
        let mut cause = untold("the record has no failure headers that are known");
        if let Some(why) = undecodable {
            cause = Failure::new(Reason::INVALID_SCHEMA, "unknown", why.as_ref()).in_phase(Phase::Decode);
        }
        letter.cause = Some(cause);
        letter.attempts = 1;
        note(&mut letter.diagnostics, "unknown", None, written_at);
        letter
    }

    fn letter(&self, message: Message, now: Timestamp) -> Letter {
        let sequence = self.sequence(&message);
        let mut letter = Letter::new(self.queue.clone(), sequence, Arc::new(message), now);
        letter.state = LetterState::Dead;
        letter.owner.clone_from(&self.owner);
        letter.expires_at = self.ttl.and_then(|ttl| now.checked_add(ttl).ok());
        letter
    }

    /// The sequence in which the consumer would have put the message. Its rule may panic (I10).
    fn sequence(&self, message: &Message) -> SequenceId {
        let sequence = catch_unwind(AssertUnwindSafe(|| self.sequencing.id(message)));
        let sequence = sequence.unwrap_or_else(|_| SequenceId::by_key(message));
        if self.apart { SequenceId::new(format!("{APART}{sequence}")) } else { sequence }
    }
}

fn untold(message: &str) -> Failure {
    Failure::new(Reason::HANDLER_ERROR, "unknown", message)
}

fn note(diagnostics: &mut Diagnostics, family: &str, group: Option<&str>, written_at: Option<Timestamp>) {
    diagnostics.insert("adopted-family".to_owned(), family.to_owned());
    if let Some(group) = group {
        diagnostics.insert("adopted-group".to_owned(), group.to_owned());
    }
    if let Some(time) = written_at {
        diagnostics.insert("adopted-written-at".to_owned(), time.to_string());
    }
}

/// The failure headers, for people to read. Stack traces are in the cause.
fn context(taken: &lazaret_core::Headers) -> Diagnostics {
    let mut context = Diagnostics::new();
    let shown_headers = taken.iter_nullable().filter(|(name, _)| !name.ends_with("stacktrace"));
    for (name, value) in shown_headers.take(CONTEXT_LIMIT) {
        let again = (2..).map(|n| format!("{name}#{n}"));
        let free = std::iter::once(name.to_owned()).chain(again).find(|name| !context.contains_key(name));
        if let Some(free) = free {
            context.insert(free, shown(value));
        }
    }
    context
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lazaret_core::Headers;
    use proptest::prelude::*;

    use super::*;
    use crate::headers::{self, HeaderStyle};
    use crate::options::KafkaOptions;

    fn clerk() -> Clerk {
        Clerk {
            queue: QueueName::of("billing", "billing"),
            reader: Reader::new(&KafkaOptions::new("b", "g", ["t"])),
            sequencing: Sequencing::default(),
            apart: false,
            group: None,
            unknown: Unknown::LeaveOut,
            owner: None,
            ttl: None,
        }
    }

    fn found(headers: &[(&'static str, &'static [u8])]) -> Found {
        let headers: Headers =
            headers.iter().map(|(name, value)| (*name, Bytes::from_static(value))).collect();
        let parts = Parts { key: Some("k".into()), payload: None, headers, undecodable: None };
        Found { place: Partition::new("dlt", 2), offset: 7, parts, written_at: None }
    }

    const TOLD: [(&str, &[u8]); 5] = [
        ("kafka_dlt-original-topic", b"orders"),
        ("kafka_dlt-original-partition", &[0, 0, 0, 1]),
        ("kafka_dlt-original-offset", &[0, 0, 0, 0, 0, 0, 0, 9]),
        ("kafka_dlt-original-topic", b"orders-dlt"),
        ("kafka_dlt-original-consumer-group", b"billing"),
    ];

    fn made(clerk: &Clerk) -> Letter {
        match clerk.make(found(&TOLD), Timestamp::UNIX_EPOCH) {
            Made::Letter { letter, damaged: false } => *letter,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_letter_says_where_it_was_found_and_what_the_headers_said() {
        let letter = made(&clerk());
        assert_eq!((letter.message.id.as_str(), letter.sequence.as_str()), ("orders/1/9", "k"));
        assert_eq!(letter.diagnostics[ADOPTED_FROM], "dlt/2/7");
        assert_eq!(letter.context["kafka_dlt-original-offset"], "9");
        assert_eq!(letter.context["kafka_dlt-original-topic"], "orders");
        assert_eq!(letter.context["kafka_dlt-original-topic#2"], "orders-dlt");
        assert!(letter.cause.is_some() && letter.message.headers.is_empty());
    }

    #[test]
    fn a_claim_check_is_no_tombstone() {
        // I5: the message is a letter in some store. Nobody may take it for one without a payload.
        let mut letter = made(&clerk());
        letter.message = Arc::new(Message { payload: Some("large".into()), ..(*letter.message).clone() });
        let style = HeaderStyle { least: true, claim: true, ..HeaderStyle::default() };
        let mut claim = found(&[]);
        claim.parts.headers = headers::write(&letter, "billing", 1, style);
        let taking = Clerk { unknown: Unknown::Take, ..clerk() };
        assert!(matches!(taking.make(claim.clone(), Timestamp::UNIX_EPOCH), Made::Unknown));
        claim.parts.headers = headers::write(&letter, "billing", 1, HeaderStyle::default());
        assert!(matches!(taking.make(claim, Timestamp::UNIX_EPOCH), Made::Letter { .. }));
    }

    #[test]
    fn a_rule_that_panics_gives_way_to_the_key() {
        // I10
        let rule = Sequencing::Custom(Arc::new(|_: &Message| panic!("no such order")));
        assert_eq!(made(&Clerk { sequencing: rule, ..clerk() }).sequence.as_str(), "k");
        assert_eq!(made(&Clerk { apart: true, ..clerk() }).sequence.as_str(), "~dlt:k");
    }

    #[test]
    fn another_group_is_foreign_and_none_is_not() {
        let only = |group: &str| Clerk { group: Some(group.to_owned()), ..clerk() };
        assert!(matches!(only("shipping").make(found(&TOLD), Timestamp::UNIX_EPOCH), Made::Foreign));
        assert!(matches!(only("billing").make(found(&TOLD), Timestamp::UNIX_EPOCH), Made::Letter { .. }));
        assert!(matches!(
            only("shipping").make(found(&TOLD[..3]), Timestamp::UNIX_EPOCH),
            Made::Letter { .. }
        ));
    }

    #[test]
    fn headers_that_cannot_be_read_at_all_are_a_failure_to_decode() {
        let mut damaged = found(&[]);
        damaged.parts.undecodable = Some("the name of a header is not UTF-8".into());
        assert!(matches!(clerk().make(damaged.clone(), Timestamp::UNIX_EPOCH), Made::Unknown));
        let taking = Clerk { unknown: Unknown::Take, ..clerk() };
        let Made::Letter { letter, .. } = taking.make(damaged, Timestamp::UNIX_EPOCH) else {
            panic!("it is taken")
        };
        assert_eq!(letter.cause.unwrap().phase, Phase::Decode);
        assert!(letter.message.undecodable.is_some(), "no handler sees it");
    }

    proptest! {
        #[test]
        fn any_record_becomes_something(
            drawn in proptest::collection::vec(("[a-z_.-]{1,12}|kafka_dlt-original-(topic|partition|offset)|x-original-topic",
                proptest::collection::vec(any::<u8>(), 0..12)), 0..12),
            ttl in any::<Option<Duration>>(),
        ) {
            // I10
            let headers: Headers = drawn.into_iter().map(|(name, value)| (name, Bytes::from(value))).collect();
            let parts = Parts { key: None, payload: None, headers, undecodable: None };
            let record = Found { place: Partition::new("dlt", 0), offset: 1, parts, written_at: None };
            Clerk { unknown: Unknown::Take, ttl, ..clerk() }.make(record, Timestamp::now());
        }
    }
}
