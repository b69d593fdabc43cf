//! Fuzz targets: the headers of relayed records, and the metadata of commits.

use std::ops::RangeInclusive;

use bytes::Bytes;
use lazaret_core::{
    Failure, Headers, Letter, LetterState, Message, Partition, Position, QueueName, Reason, Timestamp,
};
use lazaret_fuzz::{Fuzz, Shape};

use crate::headers::{self, HeaderStyle, Relayed};
use crate::positions::metadata::{self, CommitKey, DEFAULT_LIMIT};
use crate::positions::settled::SettledOffsets;

/// Formats one line `name=value` per header, with each byte of the value as a character.
fn to_lines(headers: &Headers) -> String {
    let line = |(name, value): (&str, Option<&Bytes>)| match value {
        None => name.to_owned(),
        Some(value) => format!("{name}={}", value.iter().map(|byte| char::from(*byte)).collect::<String>()),
    };
    headers.iter_nullable().map(line).collect::<Vec<_>>().join("\n")
}

fn from_lines(text: &str) -> Headers {
    let mut headers = Headers::new();
    for line in text.split('\n') {
        match line.split_once('=') {
            None => headers.push_null(line),
            Some((name, value)) => {
                let bytes: Vec<u8> =
                    value.chars().map(|c| u8::try_from(u32::from(c)).unwrap_or(b'?')).collect();
                headers.push(name, bytes);
            }
        }
    }
    headers
}

fn letter() -> Letter {
    let mut message = Message::new("evt-1", "case-events", Position::new(3, 41)).with_key(&b"\xff\x00"[..]);
    message = message.with_header("tenant", "acme").with_header("x-lazaret", "1;2");
    (message.timestamp, message.correlation) = (Some(Timestamp::UNIX_EPOCH), Some("c-1".into()));
    let mut letter =
        Letter::new(QueueName::of("mail", "mail"), "ada".into(), message.into(), Timestamp::UNIX_EPOCH);
    letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "no answer after 10 s"));
    (letter.state, letter.due_at, letter.attempts) = (LetterState::Retrying, Some(Timestamp::UNIX_EPOCH), 2);
    letter
}

/// Returns a letter as the headers describe it.
fn described(relayed: &Relayed) -> Letter {
    let (incarnation, position) = (relayed.incarnation, Position::new(relayed.partition, relayed.offset));
    let position = Position { incarnation, ..position };
    let mut message = Message::new(relayed.id.clone(), relayed.stream.clone(), position);
    (message.headers, message.timestamp) = (relayed.headers.clone(), relayed.timestamp);
    let mut letter = Letter::new(relayed.queue.clone(), "s".into(), message.into(), Timestamp::UNIX_EPOCH);
    letter.state = relayed.state.unwrap_or(LetterState::Retrying);
    letter.cause = relayed.failure.clone();
    (letter.attempts, letter.crash_attempts) = (relayed.attempts, relayed.crashes);
    (letter.first_failed_at, letter.last_failed_at) = (relayed.first_failed_at, relayed.last_failed_at);
    letter.due_at = relayed.due_at;
    letter
}

fn headers_target() -> Fuzz {
    let styles = [
        HeaderStyle::default(),
        HeaderStyle { spring: true, unmasked_errors: true, ..HeaderStyle::default() },
        HeaderStyle { minimal: true, claim_check: true, ..HeaderStyle::default() },
    ];
    let corpus = styles.map(|style| to_lines(&headers::write(&letter(), "group", 1, style)));
    let words =
        ["x-lazaret=1;0", "x-lazaret=1;99", ";", "=", "\nx-attempt-count=", "\u{ff}", "-1", "4294967295"];
    Fuzz::target("kafka-headers").corpus(corpus).words(words).shape(Shape::Lines)
}

/// Returns a check of headers. `relayed_again` returns the letter that is written at the next hop.
fn headers_check(relayed_again: impl Fn(&Relayed) -> Letter) -> impl Fn(&[u8]) -> Result<(), String> {
    move |input| {
        let given = from_lines(&String::from_utf8_lossy(input));
        let relayed = match headers::read(&given) {
            Ok(relayed) => relayed,
            Err(error) if error.0.is_empty() => return Err("an error without a reason".into()),
            Err(_) => return Ok(()),
        };
        // Writes and reads the headers again, as the next hop does. Nothing changes, and nothing grows
        // (I5, I7).
        let style = HeaderStyle { unmasked_errors: true, ..HeaderStyle::default() };
        let written = headers::write(&relayed_again(&relayed), &relayed.group, relayed.same_failure, style);
        let again = headers::read(&written).map_err(|error| format!("not read again: {}", error.0))?;
        let fingerprint = |relayed: &Relayed| relayed.failure.as_ref().map(|failure| failure.fingerprint);
        if fingerprint(&again) != fingerprint(&relayed) {
            return Err("another fingerprint".into());
        }
        let same = |relayed: &Relayed| {
            let state = Some(relayed.state.unwrap_or(LetterState::Retrying));
            Relayed { failure: None, claim: None, state, ..relayed.clone() }
        };
        if same(&again) == same(&relayed) { Ok(()) } else { Err(format!("{relayed:?} became {again:?}")) }
    }
}

#[test]
fn kafka_headers() {
    headers_target().run(headers_check(described));
}

#[test]
fn a_planted_bug_of_headers_is_found() {
    // The bug turns a header without a value into a header with an empty value.
    headers_target().finds(headers_check(|relayed| {
        let mut headers = Headers::new();
        for (name, value) in relayed.headers.iter_nullable() {
            headers.push(name, value.cloned().unwrap_or_default());
        }
        described(&Relayed { headers, ..relayed.clone() })
    }));
}

const KEY: CommitKey<'static> = CommitKey { topic: "orders", partition: 3, offset: 100, log: None };

type Encode = fn(&[RangeInclusive<u64>], CommitKey<'_>, Option<&str>, usize) -> String;

/// Checks metadata from any writer, after `encode` has written it again.
fn check_metadata(text: &str, encode: Encode) -> Result<(), String> {
    let key = CommitKey { log: metadata::log_of(text), ..KEY };
    let Ok(ranges) = metadata::decode(text, key) else { return Ok(()) };
    let in_order = ranges.windows(2).all(|pair| pair[0].end() < pair[1].start());
    let beyond = ranges.iter().all(|range| key.offset <= *range.start() && range.start() <= range.end());
    if !in_order || !beyond {
        return Err(format!("out of order: {ranges:?}"));
    }
    let store = metadata::store_of(text);
    let written = encode(&ranges, key, store, 1 << 24);
    if metadata::decode(&written, key).as_ref() != Ok(&ranges)
        || metadata::store_of(&written) != store
        || metadata::log_of(&written) != key.log
    {
        return Err(format!("{ranges:?} became {written}"));
    }
    if encode(&ranges, key, store, DEFAULT_LIMIT).len() > DEFAULT_LIMIT {
        return Err("beyond the limit".into());
    }
    // After an assignment and a commit, settled offsets stay settled.
    let merged = metadata::with_earlier(vec![150..=160], &ranges, key.offset);
    let settled = SettledOffsets::new(key.offset, merged, DEFAULT_LIMIT, None);
    if settled.offset < key.offset {
        return Err(format!("the offset went back to {}", settled.offset));
    }
    let _ = settled.metadata(&Partition::new("orders", 3), store);
    let inside = metadata::within(ranges, 120, 1000);
    match inside.iter().all(|range| *range.start() >= 120 && *range.end() < 1000) {
        true => Ok(()),
        false => Err(format!("outside of the log: {inside:?}")),
    }
}

fn metadata_target() -> Fuzz {
    let ranges: [&[_]; 3] =
        [&[101..=101], &[102..=107, 200..=300, 1000..=70_000], &[u64::MAX - 3..=u64::MAX]];
    let texts = ranges.map(|ranges| metadata::encode(ranges, KEY, None, DEFAULT_LIMIT).into_bytes());
    let with_store =
        ranges.map(|ranges| metadata::encode(ranges, KEY, Some("3f2a"), DEFAULT_LIMIT).into_bytes());
    let with_log = ranges.map(|ranges| {
        let key = CommitKey { log: Some("AAAAAAAAAAAAAAAAAAAAAQ"), ..KEY };
        metadata::encode(ranges, key, Some("3f2a"), DEFAULT_LIMIT).into_bytes()
    });
    // Only the ranges, without prefix and checksum.
    let bodies = [&[1, 0][..], &[2, 5, 92, 100, 0xbb, 5, 0xe8, 0x9a, 4], &[0xff; 20]].map(<[u8]>::to_vec);
    Fuzz::target("commit-metadata")
        .corpus(texts)
        .corpus(with_store)
        .corpus(with_log)
        .corpus(bodies)
        .words(["lz1.", "lz2.a.", "lz3.b.a.", "AAAA", "_-", "="])
}

fn metadata_check(encode: Encode) -> impl Fn(&[u8]) -> Result<(), String> {
    move |input| {
        check_metadata(&String::from_utf8_lossy(input), encode)?;
        // With a valid checksum in front, the mutation reaches the ranges.
        check_metadata(&metadata::sealed(input, KEY), encode)
    }
}

#[test]
fn commit_metadata() {
    metadata_target().run(metadata_check(metadata::encode));
}

#[test]
fn a_planted_bug_of_commit_metadata_is_found() {
    // The bug ends the id of a store at its first dot.
    metadata_target().finds(metadata_check(|ranges, key, store, limit| {
        let store = store.map(|id| id.split_once('.').map_or(id, |(start, _)| start));
        metadata::encode(ranges, key, store, limit)
    }));
}
