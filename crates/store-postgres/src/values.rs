//! Encodings of values in the tables: times, numbers, texts, states and headers.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use lazaret_core::message::PartitionNumber;
use lazaret_core::store::{ErrorKind, StoreError};
use lazaret_core::{Headers, LetterId, LetterState, Partition};
use sha2::{Digest, Sha256};
use tokio_postgres::Row;
use tokio_postgres::types::FromSqlOwned;
use uuid::Uuid;

use crate::error::{Fault, Work};

/// A time as stored: nanoseconds since 1970, saturating outside of the years 1677 to 2262.
pub(crate) fn nanos(time: Timestamp) -> i64 {
    let end = if time < Timestamp::UNIX_EPOCH { i64::MIN } else { i64::MAX };
    i64::try_from(time.as_nanosecond()).unwrap_or(end)
}

/// A stored time.
pub(crate) fn time(nanos: i64) -> Timestamp {
    match nanos {
        i64::MIN => Timestamp::MIN,
        i64::MAX => Timestamp::MAX,
        _ => Timestamp::from_nanosecond(nanos.into()).unwrap_or(Timestamp::MAX),
    }
}

/// A number for comparison with stored ones, saturating at their maximum.
pub(crate) fn bound(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number to store, which ends at 2^63.
pub(crate) fn number(number: u64, what: &str, operation: &'static str) -> Work<i64> {
    i64::try_from(number).map_err(|_| {
        let context = format!("{what} {number} exceeds the maximum of this store");
        Fault::Refused(StoreError::not_done(ErrorKind::Invalid, operation, context))
    })
}

/// A stored number that is never negative.
pub(crate) fn unsigned(number: i64) -> Work<u64> {
    u64::try_from(number).map_err(|_| Fault::Corrupt(format!("unexpected negative number {number}")))
}

/// A stored number of 32 bits.
pub(crate) fn small(number: i64) -> Work<u32> {
    u32::try_from(number).map_err(|_| Fault::Corrupt(format!("number {number} is out of range")))
}

/// The partition of a stored number, in its incarnation.
pub(crate) fn partition_number(stored: i64) -> Work<PartitionNumber> {
    PartitionNumber::from_stored(stored)
        .ok_or_else(|| Fault::Corrupt(format!("partition {stored} is out of range")))
}

/// The partition of a stream with a stored number.
pub(crate) fn partition(stream: String, stored: i64) -> Work<Partition> {
    Ok(partition_number(stored)?.of(stream))
}

/// The row limit of a query.
pub(crate) fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// A stored state, by its index in [`LetterState::ALL`].
pub(crate) fn state(number: i16) -> Work<LetterState> {
    let state = usize::try_from(number).ok().and_then(|place| LetterState::ALL.get(place));
    state.copied().ok_or_else(|| Fault::Corrupt(format!("unknown letter state {number}")))
}

/// The stored form of a state.
pub(crate) const fn state_number(state: LetterState) -> i16 {
    state as i16
}

/// A stored letter id.
pub(crate) fn letter_id(id: Uuid) -> Work<LetterId> {
    let mut text = Uuid::encode_buffer();
    let text = id.hyphenated().encode_lower(&mut text);
    text.parse().map_err(|error| Fault::Corrupt(format!("invalid letter id: {error}")))
}

/// The key of a text in an index, whose entries cannot be longer than some kilobytes. The lengths keep ("ab", "c") and ("a", "bc")
/// apart.
pub(crate) fn key_of(parts: &[&str]) -> Uuid {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hasher.finalize()[..16]);
    Uuid::from_bytes(bytes)
}

/// The key of an advisory lock. Such locks are shared with the other users of the database, so it is a hash.
pub(crate) fn lock_key(parts: &[&str]) -> i64 {
    let (high, _) = key_of(parts).as_u64_pair();
    high.cast_signed()
}

const ESCAPE: char = '\\';

/// The stored form of a text. PostgreSQL's texts hold no NUL, so that is escaped. A text with a prefix has the stored form of the
/// prefix as a prefix.
pub(crate) fn text(text: &str) -> Cow<'_, str> {
    if !text.contains([ESCAPE, '\0']) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\0' => escaped.push_str("\\0"),
            ESCAPE => escaped.push_str("\\\\"),
            c => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

/// The text with this stored form.
pub(crate) fn untext(stored: String) -> String {
    if !stored.contains(ESCAPE) {
        return stored;
    }
    let mut text = String::with_capacity(stored.len());
    let mut characters = stored.chars();
    while let Some(c) = characters.next() {
        match c {
            ESCAPE => text.push(if characters.next() == Some('0') { '\0' } else { ESCAPE }),
            c => text.push(c),
        }
    }
    text
}

/// A value as JSON, in a column of that type. JSON has an escape for NUL.
pub(crate) fn to_json<T: serde::Serialize>(value: &T, what: &str) -> Work<String> {
    serde_json::to_string(value).map_err(|error| Fault::Corrupt(format!("failed to encode {what}: {error}")))
}

/// The value of a JSON column, read as text.
pub(crate) fn from_json<T: serde::de::DeserializeOwned>(json: &str, what: &str) -> Work<T> {
    serde_json::from_str(json).map_err(|error| Fault::Corrupt(format!("failed to decode {what}: {error}")))
}

/// Reads the columns of a row one after the other.
pub(crate) struct Columns<'r> {
    row: &'r Row,
    next: usize,
}

impl<'r> Columns<'r> {
    pub(crate) const fn of(row: &'r Row) -> Self {
        Self { row, next: 0 }
    }

    pub(crate) fn get<T: FromSqlOwned>(&mut self) -> Work<T> {
        self.next += 1;
        Ok(self.row.try_get(self.next - 1)?)
    }

    pub(crate) fn unsigned(&mut self) -> Work<u64> {
        unsigned(self.get()?)
    }

    pub(crate) fn time(&mut self) -> Work<Timestamp> {
        Ok(time(self.get()?))
    }

    pub(crate) fn moment(&mut self) -> Work<Option<Timestamp>> {
        Ok(self.get::<Option<i64>>()?.map(time))
    }

    pub(crate) fn text(&mut self) -> Work<String> {
        Ok(untext(self.get()?))
    }

    pub(crate) fn optional_text(&mut self) -> Work<Option<String>> {
        Ok(self.get::<Option<String>>()?.map(untext))
    }

    pub(crate) fn arc_text(&mut self) -> Work<Arc<str>> {
        Ok(self.text()?.into())
    }

    pub(crate) fn bytes(&mut self) -> Work<Option<Bytes>> {
        Ok(self.get::<Option<Vec<u8>>>()?.map(Bytes::from))
    }
}

/// The length that marks a null value. No value is that long.
const NULL_LENGTH: u64 = u64::MAX;

/// Encodes headers: for each its name and its value, each with a length prefix. `None` without headers.
pub(crate) fn encode_headers(headers: &Headers) -> Option<Vec<u8>> {
    if headers.is_empty() {
        return None;
    }
    let mut bytes = Vec::with_capacity(headers.byte_size() + 16 * headers.len());
    for (name, value) in headers.iter_nullable() {
        for part in [Some(name.as_bytes()), value.map(AsRef::as_ref)] {
            let length = part.map_or(NULL_LENGTH, |part| part.len() as u64);
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(part.unwrap_or_default());
        }
    }
    Some(bytes)
}

/// Decodes stored headers.
pub(crate) fn decode_headers(mut bytes: Bytes) -> Work<Headers> {
    let corrupt = || Fault::Corrupt("truncated headers of a letter".into());
    // `None` is null.
    let part = |bytes: &mut Bytes| -> Work<Option<Bytes>> {
        let length =
            bytes.first_chunk::<8>().map(|length| u64::from_le_bytes(*length)).ok_or_else(corrupt)?;
        let _ = bytes.split_to(8);
        if length == NULL_LENGTH {
            return Ok(None);
        }
        let length =
            usize::try_from(length).ok().filter(|length| *length <= bytes.len()).ok_or_else(corrupt)?;
        Ok(Some(bytes.split_to(length)))
    };
    let mut headers = Headers::new();
    while !bytes.is_empty() {
        let name = part(&mut bytes)?.ok_or_else(corrupt)?;
        let name = std::str::from_utf8(&name)
            .map_err(|error| Fault::Corrupt(format!("invalid header name: {error}")))?;
        match part(&mut bytes)? {
            Some(value) => headers.push(name, value),
            None => headers.push_null(name),
        }
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_nanoseconds_and_saturate() {
        let some = Timestamp::new(1_767_225_600, 123_456_789).unwrap();
        assert_eq!(time(nanos(some)), some);
        for end in [Timestamp::MAX, Timestamp::MIN] {
            assert_eq!(time(nanos(end)), end);
        }
    }

    #[test]
    fn texts_with_a_nul_or_a_backslash_round_trip() {
        for plain in ["", "order-7", "a\\b", "a\0b", "\\0", "\0\\\\0", "ä\\"] {
            let stored = text(plain).into_owned();
            assert!(!stored.contains('\0'));
            assert_eq!(untext(stored.clone()), plain);
            for end in plain.char_indices().map(|(place, _)| place) {
                assert!(stored.starts_with(&*text(&plain[..end])), "a prefix stays one");
            }
        }
        assert_ne!(text("\0"), text("\\0"));
    }

    #[test]
    fn headers_round_trip_byte_for_byte() {
        // I5
        let mut headers = Headers::new();
        headers.push("", "");
        headers.push("binary", (0..=255).collect::<Vec<u8>>());
        headers.push("again", "1");
        headers.push_null("again");
        let bytes = Bytes::from(encode_headers(&headers).unwrap());
        assert_eq!(decode_headers(bytes.clone()).unwrap(), headers);
        for end in [1, 9, bytes.len() - 1] {
            assert!(matches!(decode_headers(bytes.slice(..end)), Err(Fault::Corrupt(_))), "cut at {end}");
        }
    }
}
