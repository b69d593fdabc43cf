//! Converts rows to messages.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use lazaret_core::message::PartitionNumber;
use lazaret_core::source::NewMessage;
use lazaret_core::{Headers, Message, Position, StreamName};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use tokio_postgres::Row;

/// The header that names the media type of the payload, in any letter case.
const CONTENT_TYPE: &str = "content-type";
/// The headers that may hold the correlation id. The first one present is used.
const CORRELATION: [&str; 2] = ["correlation-id", "x-correlation-id"];

/// The number of bytes in a fingerprint.
const FINGERPRINT_BYTES: usize = 16;

/// Returns the id of a row.
pub(crate) fn id(row: &Row) -> i64 {
    row.get(0)
}

/// Returns the version of a row where rows are deleted, or 0 where they stay.
pub(crate) fn version(row: &Row) -> i64 {
    row.get::<_, Option<i64>>(6).unwrap_or_default()
}

/// Returns the message of a row that [`Table::read_sql`](crate::table::Table::read_sql) selected.
/// `is_json` says whether the payload is JSON.
pub(crate) fn message(row: &Row, is_json: bool, stream: &StreamName, partition: PartitionNumber) -> Message {
    // Reading starts at 0.
    let position = Position::at(partition, id(row).unsigned_abs());
    let mut undecodable: Option<Arc<str>> = None;
    // A database with the encoding SQL_ASCII may hold arbitrary bytes.
    let mut text_at = |index: usize, what: &str| {
        row.try_get::<_, Option<&str>>(index).unwrap_or_else(|error| {
            undecodable = Some(format!("{what}: {error}").into());
            None
        })
    };
    let (event_type, headers) = (text_at(2, "type"), text_at(4, "headers"));
    let headers = headers.map_or_else(|| Ok(Headers::new()), read_headers).unwrap_or_else(|error| {
        undecodable = Some(format!("headers: {error}").into());
        Headers::new()
    });
    let text =
        |name: &str| headers.find(name).and_then(|value| std::str::from_utf8(value).ok()).map(Arc::from);
    let payload: Option<Vec<u8>> = row.get(3);
    let json = (is_json && payload.is_some()).then(|| Arc::from("application/json"));
    let new = NewMessage {
        id: None,
        key: row.get::<_, Option<Vec<u8>>>(1).map(Into::into),
        event_type: event_type.map(Arc::from),
        content_type: text(CONTENT_TYPE).or(json),
        correlation: CORRELATION.into_iter().find_map(text),
        payload: payload.map(Into::into),
        timestamp: row.get::<_, Option<i64>>(5).and_then(|micros| Timestamp::from_microsecond(micros).ok()),
        undecodable,
        headers,
    };
    new.at(stream.clone(), position)
}

/// Returns a hash that distinguishes the row of a message from another row with its id. It covers key,
/// type, payload and time.
pub(crate) fn fingerprint(message: &Message) -> String {
    let timestamp = message.timestamp.map(|time| time.as_microsecond().to_be_bytes());
    let mut hasher = Sha256::new();
    for part in [
        message.key.as_deref(),
        message.event_type.as_deref().map(str::as_bytes),
        message.payload.as_deref(),
        timestamp.as_ref().map(|time| &time[..]),
    ] {
        // The lengths separate the parts, and distinguish an absent part from an empty one.
        hasher.update(part.map_or(u64::MAX, |part| part.len() as u64).to_be_bytes());
        hasher.update(part.unwrap_or_default());
    }
    hasher.finalize().iter().take(FINGERPRINT_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

/// Reads an object. Strings are kept as they are, other values as JSON.
fn read_headers(text: &str) -> Result<Headers, serde_json::Error> {
    if text == "null" {
        return Ok(Headers::new());
    }
    serde_json::from_str::<Pairs>(text).map(|pairs| pairs.0)
}

/// An object with its order and its repeated names.
struct Pairs(Headers);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut headers = Headers::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    match value.get() {
                        "null" => headers.push_null(name),
                        text if text.starts_with('"') => {
                            let value: String =
                                serde_json::from_str(text).map_err(serde::de::Error::custom)?;
                            headers.push(name, value);
                        }
                        text => headers.push(name, text.to_owned()),
                    }
                }
                Ok(Pairs(headers))
            }
        }

        input.deserialize_map(Collect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_tells_rows_from_each_other() {
        let row = |key: &'static str, payload: &'static str| {
            Message::new("0:7", "outbox", Position::new(0, 7)).with_key(key).with_payload(payload)
        };
        let one = fingerprint(&row("k", "1"));
        assert_eq!((one.len(), &one), (2 * FINGERPRINT_BYTES, &fingerprint(&row("k", "1"))));
        let typed = Message { event_type: Some("T".into()), ..row("k", "1") };
        let timed = Message { timestamp: Some(Timestamp::UNIX_EPOCH), ..row("k", "1") };
        let null = Message { payload: None, ..row("k", "1") };
        let others = [row("k", "2"), row("k1", ""), row("", "k1"), typed, timed, null, row("k", "")];
        let distinct: std::collections::BTreeSet<String> = others.iter().map(fingerprint).collect();
        assert!(distinct.len() == others.len() && !distinct.contains(&one));
    }

    #[test]
    fn headers_keep_their_order_and_their_values() {
        let headers =
            read_headers(r#"{"b": "ü\n", "a": 1.10, "c": {"d": [1]}, "b": "2", "n": null}"#).unwrap();
        let read: Vec<_> =
            headers.iter_nullable().map(|(name, value)| (name, value.map(|v| &v[..]))).collect();
        let expected: [(&str, Option<&[u8]>); 5] = [
            ("b", Some("ü\n".as_bytes())),
            ("a", Some(b"1.10")),
            ("c", Some(br#"{"d": [1]}"#)),
            ("b", Some(b"2")),
            ("n", None),
        ];
        assert_eq!(read, expected);
        assert!(read_headers("{}").unwrap().is_empty() && read_headers("null").unwrap().is_empty());
        for text in ["[]", "1", "\"a\""] {
            assert!(read_headers(text).unwrap_err().to_string().contains("expected an object"), "{text}");
        }
    }
}
