//! The headers of records in retry topics and dead-letter topics. The relay writes them, and the source
//! reads them back.
//!
//! The headers of the message come first, unchanged. Lazaret's headers follow in one block, whose last
//! header `x-lazaret` holds their number. Reading therefore restores exactly the headers that the
//! message had, even if they have the same names. The block is replaced at every hop, so it does not
//! grow (I5, I7).
//!
//! All values are UTF-8 except `x-original-key`. Numbers are decimal, and times are RFC 3339. Spring's
//! `kafka_dlt-*` headers are binary, as Spring writes them.
//!
//! ```
//! use lazaret_core::{Letter, Message, Position, QueueName, Timestamp};
//! use lazaret_source_kafka::headers::{self, HeaderStyle};
//!
//! let message = Message::new("evt-1", "orders", Position::new(3, 41));
//! let queue = QueueName::of("billing", "billing");
//! let letter = Letter::new(queue, "ada".into(), message.into(), Timestamp::UNIX_EPOCH);
//!
//! let written = headers::write(&letter, "billing-group", 1, HeaderStyle::default());
//! let relayed = headers::read(&written).expect("the headers are Lazaret's");
//! assert_eq!((relayed.id.as_str(), relayed.partition, relayed.offset), ("evt-1", 3, 41));
//! ```

use std::str::FromStr;

use bytes::Bytes;
use lazaret_core::fingerprint::normalise;
use lazaret_core::relay::handover_id;
use lazaret_core::{
    Failure, Fingerprint, Headers, Letter, LetterId, LetterState, Message, MessageId, Phase, QueueName,
    Reason, StreamName, Timestamp,
};

/// The last header of the block. It holds the version, and the number of headers before it in the block.
///
/// ```
/// assert_eq!(lazaret_source_kafka::headers::MARKER, "x-lazaret");
/// ```
pub const MARKER: &str = "x-lazaret";
const VERSION: &str = "1";

const TOPIC: &str = "x-original-topic";
const PARTITION: &str = "x-original-partition";
const INCARNATION: &str = "x-original-incarnation";
const OFFSET: &str = "x-original-offset";
const KEY: &str = "x-original-key";
const TIMESTAMP: &str = "x-original-timestamp";
const ID: &str = "x-message-id";
const HANDOFF: &str = "x-handoff-id";
const GROUP: &str = "x-consumer-group";
const QUEUE: &str = "x-consumer";
const STATE: &str = "x-letter-state";
const REASON: &str = "x-failure-reason";
const PHASE: &str = "x-failure-phase";
const CLASS: &str = "x-exception-class";
const TEXT: &str = "x-exception-message-safe";
const FINGERPRINT: &str = "x-failure-fingerprint";
const ATTEMPTS: &str = "x-attempt-count";
const CRASHES: &str = "x-crash-count";
const SAME: &str = "x-same-failure-count";
pub(crate) const FIRST: &str = "x-first-failure-at";
const LAST: &str = "x-last-failure-at";
const DUE: &str = "x-due-at";
const CLAIM: &str = "x-claim-check";
const CORRELATION: &str = "x-correlation-id";

/// The maximum number of bytes of an error message, an error type or a key.
const TEXT_LIMIT: usize = 512;
const CLASS_LIMIT: usize = 256;
const KEY_LIMIT: usize = 256;
/// The maximum number of bytes of a backtrace in Spring's headers.
const TRACE_LIMIT: usize = 8 * 1024;

/// The selection of headers to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderStyle {
    /// Adds Spring Kafka's `kafka_dlt-*` headers, for tools that read them.
    pub spring: bool,
    /// Writes error messages unmasked, and backtraces in Spring's headers. By default, the variable
    /// parts of a message (numbers, ids, quoted text) are masked, because people who may not see
    /// payloads can see headers.
    pub unmasked_errors: bool,
    /// Writes only the headers that a retry needs, for a record that would be too large.
    pub minimal: bool,
    /// Writes a claim check. The message is a letter in the store, and its own headers are omitted.
    pub claim_check: bool,
}

/// Returns the headers of the record that holds this letter: its message's headers, then Lazaret's.
///
/// `same_failure` is the number of consecutive failures with the same fingerprint.
pub fn write(letter: &Letter, group: &str, same_failure: u32, style: HeaderStyle) -> Headers {
    let message = &letter.message;
    let mut headers = if style.claim_check { Headers::new() } else { message.headers.clone() };
    let before = headers.len();
    write_place(&mut headers, message, style);
    write_failure(&mut headers, letter, same_failure, style);
    let mut text = |name: &'static str, value: &str| headers.push(name, value.to_owned());
    text(HANDOFF, &handover_id(&letter.queue, &message.id, letter.attempts));
    text(GROUP, group);
    text(QUEUE, letter.queue.as_str());
    text(STATE, letter.state.as_str());
    if let Some(due) = letter.due_at {
        text(DUE, &due.to_string());
    }
    if style.claim_check {
        text(CLAIM, &letter.id.to_string());
    }
    if style.spring && !style.minimal {
        write_spring(&mut headers, letter, group, style);
    }
    let count = headers.len() - before;
    headers.push(MARKER, format!("{VERSION};{count}"));
    headers
}

fn write_place(headers: &mut Headers, message: &Message, style: HeaderStyle) {
    headers.push(TOPIC, message.stream.as_str().to_owned());
    headers.push(PARTITION, message.position.partition.to_string());
    if message.position.incarnation > 0 {
        headers.push(INCARNATION, message.position.incarnation.to_string());
    }
    headers.push(OFFSET, message.position.offset.to_string());
    headers.push(ID, message.id.as_str().to_owned());
    if let Some(time) = message.timestamp {
        headers.push(TIMESTAMP, time.to_string());
    }
    if style.minimal {
        return;
    }
    if let Some(key) = message.key.as_ref().filter(|key| key.len() <= KEY_LIMIT) {
        headers.push(KEY, key.clone());
    }
    if let Some(correlation) = message.correlation.as_deref().filter(|text| text.len() <= KEY_LIMIT) {
        headers.push(CORRELATION, correlation.to_owned());
    }
}

fn write_failure(headers: &mut Headers, letter: &Letter, same_failure: u32, style: HeaderStyle) {
    if let Some(failure) = &letter.cause {
        headers.push(REASON, failure.reason.as_str().to_owned());
        headers.push(PHASE, failure.phase.as_str());
        headers.push(FINGERPRINT, failure.fingerprint.to_string());
        if !style.minimal {
            headers.push(CLASS, cut(&failure.error_type, CLASS_LIMIT).to_owned());
            headers.push(TEXT, message_of(failure, style));
        }
    }
    headers.push(ATTEMPTS, letter.attempts.to_string());
    headers.push(CRASHES, letter.crash_attempts.to_string());
    headers.push(SAME, same_failure.to_string());
    for (name, time) in [(FIRST, letter.first_failed_at), (LAST, letter.last_failed_at)] {
        if let Some(time) = time {
            headers.push(name, time.to_string());
        }
    }
}

/// Returns the message of a failure, masked unless the style disables it.
fn message_of(failure: &Failure, style: HeaderStyle) -> String {
    let masked;
    let text = if style.unmasked_errors {
        &failure.message
    } else {
        masked = normalise(&failure.message);
        &masked
    };
    cut(text, TEXT_LIMIT).to_owned()
}

/// Writes the headers of Spring Kafka. Numbers are big-endian.
fn write_spring(headers: &mut Headers, letter: &Letter, group: &str, style: HeaderStyle) {
    let message = &letter.message;
    let number = |n: u64| Bytes::copy_from_slice(&i64::try_from(n).unwrap_or(i64::MAX).to_be_bytes());
    let partition = i32::try_from(message.position.partition).unwrap_or(i32::MAX).to_be_bytes();
    headers.push("kafka_dlt-original-topic", message.stream.as_str().to_owned());
    headers.push("kafka_dlt-original-partition", Bytes::copy_from_slice(&partition));
    headers.push("kafka_dlt-original-offset", number(message.position.offset));
    if let Some(time) = message.timestamp {
        let millis = time.as_millisecond().to_be_bytes();
        headers.push("kafka_dlt-original-timestamp", Bytes::copy_from_slice(&millis));
        headers.push("kafka_dlt-original-timestamp-type", "CreateTime");
    }
    headers.push("kafka_dlt-original-consumer-group", group.to_owned());
    let Some(failure) = &letter.cause else { return };
    headers.push("kafka_dlt-exception-fqcn", cut(&failure.error_type, CLASS_LIMIT).to_owned());
    headers.push("kafka_dlt-exception-message", message_of(failure, style));
    let cause = failure.chain.last().and_then(|link| link.error_type.as_deref());
    if let Some(cause) = cause {
        headers.push("kafka_dlt-exception-cause-fqcn", cut(cause, CLASS_LIMIT).to_owned());
    }
    if let Some(trace) = failure.backtrace.as_deref().filter(|_| style.unmasked_errors) {
        headers.push("kafka_dlt-exception-stacktrace", cut(trace, TRACE_LIMIT).to_owned());
    }
}

/// A relayed message, as the headers of its record describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relayed {
    /// The original headers of the message.
    pub headers: Headers,
    /// The id of the message.
    pub id: MessageId,
    /// The topic that the message was consumed from.
    pub stream: StreamName,
    /// The partition in that topic.
    pub partition: u32,
    /// The incarnation of that topic.
    pub incarnation: u32,
    /// The offset in that partition.
    pub offset: u64,
    /// The timestamp, if the message had one.
    pub timestamp: Option<Timestamp>,
    /// The group that consumed the message.
    pub group: String,
    /// The queue of the component whose attempts failed.
    pub queue: QueueName,
    /// The id of the handover. Copies of the same handover have the same id.
    pub handover: String,
    /// The state of the letter. `None` for a state that this version does not know.
    pub state: Option<LetterState>,
    /// The last failure. `None` if there was none.
    pub failure: Option<Failure>,
    /// The number of automatic attempts so far.
    pub attempts: u32,
    /// The number of attempts that ended with a crash of the process.
    pub crashes: u32,
    /// The number of consecutive failures with the same fingerprint.
    pub same_failure: u32,
    /// When the message first failed.
    pub first_failed_at: Option<Timestamp>,
    /// When the message last failed.
    pub last_failed_at: Option<Timestamp>,
    /// When the message may be retried.
    pub due_at: Option<Timestamp>,
    /// The letter in the store that holds the message, if the record is a claim check.
    pub claim: Option<LetterId>,
}

/// The error for headers that are not Lazaret's, or are damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidHeaders(
    /// The reason.
    pub String,
);

/// Reads the headers of a record.
///
/// # Errors
/// When they are not Lazaret's, or are damaged.
pub fn read(headers: &Headers) -> Result<Relayed, InvalidHeaders> {
    let (own, rest) = split(headers).ok_or_else(|| InvalidHeaders(format!("{MARKER} is missing")))?;
    let id = required(&own, ID)?;
    if id.is_empty() {
        // All messages with an empty id would count as one.
        return Err(InvalidHeaders(format!("{ID} is empty")));
    }
    let queue = QueueName::from(required(&own, QUEUE)?);
    let attempts = number(&own, ATTEMPTS)?;
    Ok(Relayed {
        handover: handover_id(&queue, &id.into(), attempts),
        id: id.into(),
        stream: required(&own, TOPIC)?.into(),
        partition: number(&own, PARTITION)?,
        incarnation: if own.get(INCARNATION).is_some() { number(&own, INCARNATION)? } else { 0 },
        offset: number(&own, OFFSET)?,
        timestamp: optional_time(&own, TIMESTAMP)?,
        group: required(&own, GROUP)?.to_owned(),
        state: own.get_str(STATE).and_then(|text| LetterState::ALL.into_iter().find(|s| s.as_str() == text)),
        failure: failure(&own),
        attempts,
        crashes: number(&own, CRASHES)?,
        same_failure: number(&own, SAME)?,
        first_failed_at: optional_time(&own, FIRST)?,
        last_failed_at: optional_time(&own, LAST)?,
        due_at: optional_time(&own, DUE)?,
        claim: own.get_str(CLAIM).and_then(|text| text.parse().ok()),
        headers: rest,
        queue,
    })
}

/// Separates Lazaret's block from the other headers, in order. Other tools may have appended headers
/// after the block.
fn split(headers: &Headers) -> Option<(Headers, Headers)> {
    let mark = headers.iter().enumerate().filter(|(_, (name, _))| *name == MARKER).last();
    let (end, (_, value)) = mark?;
    let (version, count) = std::str::from_utf8(value).ok()?.split_once(';')?;
    let begin = end.checked_sub(count.parse().ok()?).filter(|_| version == VERSION)?;
    let (mut own, mut rest) = (Headers::new(), Headers::new());
    for (index, (name, value)) in headers.iter_nullable().enumerate() {
        let list = if (begin..=end).contains(&index) { &mut own } else { &mut rest };
        match value {
            Some(value) => list.push(name, value.clone()),
            None => list.push_null(name),
        }
    }
    Some((own, rest))
}

fn required<'a>(own: &'a Headers, name: &str) -> Result<&'a str, InvalidHeaders> {
    own.get_str(name).ok_or_else(|| InvalidHeaders(format!("{name} is missing")))
}

fn number<N: FromStr>(own: &Headers, name: &str) -> Result<N, InvalidHeaders> {
    required(own, name)?.parse().map_err(|_| InvalidHeaders(format!("{name} is not a number")))
}

fn optional_time(own: &Headers, name: &str) -> Result<Option<Timestamp>, InvalidHeaders> {
    let parse = |text: &str| text.parse().map_err(|_| InvalidHeaders(format!("{name} is not a time")));
    own.get_str(name).map(parse).transpose()
}

fn failure(own: &Headers) -> Option<Failure> {
    let reason = Reason::new(own.get_str(REASON)?).unwrap_or(Reason::HANDLER_ERROR);
    let text = |name| own.get_str(name).unwrap_or_default();
    let phase = Phase::ALL.into_iter().find(|phase| phase.as_str() == text(PHASE)).unwrap_or_default();
    let panicked = reason == Reason::PANICKED;
    let mut failure = Failure::new(reason, text(CLASS), text(TEXT)).in_phase(phase);
    failure.panicked = panicked;
    // The stored fingerprint covers the whole message. This failure holds only a part of it.
    failure.fingerprint = text(FINGERPRINT).parse::<Fingerprint>().unwrap_or(failure.fingerprint);
    Some(failure)
}

fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lazaret_core::{Position, SequenceId};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn message() -> Message {
        let mut message =
            Message::new("evt-1", "case-events", Position::new(3, 41)).with_key(&b"\xff\x00"[..]);
        message.timestamp = Some(Timestamp::from_millisecond(1_500).unwrap());
        message.correlation = Some("c-1".into());
        message.headers.push("tenant", "acme");
        message.headers.push_null("nothing");
        // These headers have Lazaret's names but belong to the message.
        message.headers.push("x-correlation-id", "theirs");
        message.headers.push("x-lazaret", "theirs too");
        message
    }

    fn letter(attempts: u32, text: &str) -> Letter {
        let queue = QueueName::of("notification-service", "mail");
        let mut letter = Letter::new(queue, SequenceId::from("s"), Arc::new(message()), at(9));
        letter.state = LetterState::Retrying;
        letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", text).in_phase(Phase::ExternalCall));
        (letter.attempts, letter.crash_attempts) = (attempts, 1);
        (letter.first_failed_at, letter.last_failed_at) = (Some(at(7)), Some(at(8)));
        letter.due_at = Some(at(99));
        letter
    }

    fn text(headers: &Headers, name: &str) -> Option<String> {
        headers.get_all(name).last().map(|value| String::from_utf8(value.to_vec()).unwrap())
    }

    #[test]
    fn written_headers_are_read_back() {
        // I4, I5
        let letter = letter(2, "no answer after 3s");
        let read = read(&write(&letter, "group", 2, HeaderStyle::default())).unwrap();
        assert_eq!(read.headers, letter.message.headers);
        assert_eq!((read.id.as_str(), read.stream.as_str()), ("evt-1", "case-events"));
        assert_eq!((read.partition, read.offset, read.timestamp), (3, 41, letter.message.timestamp));
        assert_eq!((read.attempts, read.crashes, read.same_failure), (2, 1, 2));
        assert_eq!(
            (read.first_failed_at, read.last_failed_at, read.due_at),
            (Some(at(7)), Some(at(8)), Some(at(99)))
        );
        assert_eq!((read.group.as_str(), read.queue), ("group", letter.queue.clone()));
        assert_eq!(read.state, Some(LetterState::Retrying));
        assert_eq!(read.handover, "mail/evt-1#2");
        let (failure, cause) = (read.failure.unwrap(), letter.cause.unwrap());
        assert_eq!((&failure.reason, failure.phase), (&cause.reason, cause.phase));
        assert_eq!(failure.fingerprint, cause.fingerprint);
        assert_eq!(failure.message, "no answer after #");
    }

    #[test]
    fn the_names_are_those_that_tools_expect() {
        let headers = write(&letter(2, "no"), "group", 1, HeaderStyle::default());
        let expected = [
            ("x-original-topic", "case-events"),
            ("x-original-partition", "3"),
            ("x-original-offset", "41"),
            ("x-original-timestamp", "1970-01-01T00:00:01.5Z"),
            ("x-consumer-group", "group"),
            ("x-failure-reason", "TIMEOUT"),
            ("x-exception-class", "HttpError"),
            ("x-exception-message-safe", "no"),
            ("x-attempt-count", "2"),
            ("x-first-failure-at", "1970-01-01T00:00:07Z"),
            ("x-last-failure-at", "1970-01-01T00:00:08Z"),
            ("x-correlation-id", "c-1"),
            ("x-handoff-id", "mail/evt-1#2"),
        ];
        for (name, value) in expected {
            assert_eq!(text(&headers, name).as_deref(), Some(value), "{name}");
        }
        assert_eq!(headers.get(KEY).map(Bytes::as_ref), Some(&b"\xff\x00"[..]));
    }

    #[test]
    fn a_thousand_hops_do_not_grow_the_headers() {
        // I7
        let style = HeaderStyle { spring: true, ..HeaderStyle::default() };
        let mut sizes = Vec::new();
        let mut message = message();
        for hop in 1..=1000 {
            let mut letter = letter(hop, &"x".repeat(hop as usize * 1000));
            // The same number of digits at every hop.
            letter.attempts = 100 + hop % 900;
            letter.message = Arc::new(message.clone());
            let headers = write(&letter, "group", 1, style);
            sizes.push(headers.byte_size());
            message.headers = read(&headers).unwrap().headers;
        }
        assert_eq!(message.headers, self::message().headers);
        assert!(sizes.iter().all(|size| *size <= sizes[1]), "{} {}", sizes[1], sizes[999]);
    }

    #[test]
    fn numbers_and_names_in_an_error_are_masked_by_default() {
        let secret = letter(1, "card 4111111111111111 of 'ada@example.org' declined");
        let headers = write(&secret, "group", 1, HeaderStyle { spring: true, ..HeaderStyle::default() });
        let all: Vec<u8> = headers.iter().flat_map(|(_, value)| value.to_vec()).collect();
        let all = String::from_utf8_lossy(&all);
        assert!(!all.contains("4111") && !all.contains("ada@"), "{all}");
        let headers =
            write(&secret, "group", 1, HeaderStyle { unmasked_errors: true, ..HeaderStyle::default() });
        assert!(text(&headers, TEXT).unwrap().contains("4111"));
    }

    #[test]
    fn minimal_headers_are_enough_for_a_retry() {
        let letter = letter(2, &"long ".repeat(500));
        let style = HeaderStyle { spring: true, ..HeaderStyle::default() };
        let whole = write(&letter, "group", 2, style);
        let minimal = write(&letter, "group", 2, HeaderStyle { minimal: true, ..style });
        assert!(minimal.byte_size() + 600 < whole.byte_size());
        let (whole, minimal) = (read(&whole).unwrap(), read(&minimal).unwrap());
        let fingerprint = |read: &Relayed| read.failure.as_ref().map(|failure| failure.fingerprint);
        assert_eq!(fingerprint(&whole), fingerprint(&minimal));
        assert_eq!(Relayed { failure: None, ..whole }, Relayed { failure: None, ..minimal });
    }

    #[test]
    fn a_claim_check_names_the_letter_and_omits_large_parts() {
        let letter = letter(2, "no");
        let style = HeaderStyle { minimal: true, claim_check: true, ..HeaderStyle::default() };
        let claim = read(&write(&letter, "group", 1, style)).unwrap();
        assert_eq!((claim.claim, claim.headers.len()), (Some(letter.id), 0));
        assert_eq!(read(&write(&letter, "group", 1, HeaderStyle::default())).unwrap().claim, None);
    }

    #[test]
    fn springs_headers_are_binary_as_spring_writes_them() {
        let mut letter = letter(1, "no");
        (letter.state, letter.due_at) = (LetterState::Dead, None);
        let headers = write(&letter, "group", 1, HeaderStyle { spring: true, ..HeaderStyle::default() });
        let expected: [(&str, &[u8]); 8] = [
            ("kafka_dlt-original-topic", b"case-events"),
            ("kafka_dlt-original-partition", &[0, 0, 0, 3]),
            ("kafka_dlt-original-offset", &[0, 0, 0, 0, 0, 0, 0, 41]),
            ("kafka_dlt-original-timestamp", &[0, 0, 0, 0, 0, 0, 5, 220]),
            ("kafka_dlt-original-timestamp-type", b"CreateTime"),
            ("kafka_dlt-original-consumer-group", b"group"),
            ("kafka_dlt-exception-fqcn", b"HttpError"),
            ("kafka_dlt-exception-message", b"no"),
        ];
        for (name, value) in expected {
            assert_eq!(headers.get(name).map(Bytes::as_ref), Some(value), "{name}");
        }
        assert_eq!(read(&headers).unwrap().headers, letter.message.headers);
    }

    #[test]
    fn headers_appended_by_others_are_kept() {
        let mut headers = write(&letter(1, "no"), "group", 1, HeaderStyle::default());
        headers.push("added", "later");
        let read = read(&headers).unwrap();
        assert_eq!(read.headers.iter().last().map(|(name, _)| name), Some("added"));
        assert_eq!(read.headers.len(), message().headers.len() + 1);
    }

    #[test]
    fn damaged_headers_are_refused() {
        assert!(read(&Headers::new()).is_err());
        let written = write(&letter(1, "no"), "group", 1, HeaderStyle::default());
        for (name, value) in [
            ("x-message-id", ""),
            ("x-attempt-count", "-1"),
            ("x-due-at", "soon"),
            ("x-lazaret", "1;999"),
            ("x-lazaret", "2;1"),
        ] {
            let mut broken = Headers::new();
            for (header, own) in written.iter() {
                broken.push(header, if header == name { Bytes::from(value) } else { own.clone() });
            }
            assert!(read(&broken).is_err(), "{name}: {value}");
        }
    }
}
