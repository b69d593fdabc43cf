//! JSON Lines: one message a line.
//!
//! ```text
//! {"id": "e-1", "key": "order-7", "type": "OrderPlaced", "headers": {"a": "b"}, "time": "2026-01-01T00:00:00Z", "payload": {…}}
//! ```
//!
//! Only `payload` is required: any JSON value, passed on byte for byte as in the line. `payload-base64` carries
//! bytes instead. `content-type` and `correlation` are read too. A field that is `null` is missing, but for `payload`, where
//! it is a value. Other fields are ignored. A header may repeat; the order is kept.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use jiff::Timestamp;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::NewMessage;
use crate::message::{Headers, MessageId};

/// The padding at the end may be left out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Reads a line, without its end. One that is not a message becomes an [undecodable](NewMessage::undecodable) one with
/// the raw bytes. Nothing is copied: the payload is a part of the line.
///
/// ```
/// use lazaret_core::source::jsonl;
/// let message = jsonl::message(r#"{"key": "order-7", "payload": {"total":  1.10}}"#.into());
/// assert_eq!(message.payload.unwrap(), r#"{"total":  1.10}"#);
/// let broken = jsonl::message(r#"{"key": "order-7"}"#.into());
/// assert_eq!(broken.undecodable.as_deref(), Some("neither payload nor payload-base64 is there"));
/// ```
pub fn message(line: Bytes) -> NewMessage {
    read(&line).unwrap_or_else(|why| NewMessage::undecodable(line, why))
}

/// Returns whether a line is blank and skipped.
pub fn is_blank(line: &[u8]) -> bool {
    line.trim_ascii().is_empty()
}

/// A line as it is written.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", expecting = "an object with a payload")]
struct Line<'a> {
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "type")]
    event_type: Option<Cow<'a, str>>,
    headers: Option<Pairs>,
    time: Option<Timestamp>,
    #[serde(borrow)]
    content_type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    correlation: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "even_null")]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    payload_base64: Option<Cow<'a, str>>,
}

/// A value that is there, be it `null`.
fn even_null<'de, D: Deserializer<'de>>(input: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(input).map(Some)
}

/// An object of strings, with its order and its repetitions.
struct Pairs(Headers);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut headers = Headers::new();
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    headers.push(name, value);
                }
                Ok(Pairs(headers))
            }
        }

        input.deserialize_map(Collect)
    }
}

fn read(raw: &Bytes) -> Result<NewMessage, String> {
    let text = std::str::from_utf8(raw)
        .map_err(|error| format!("not UTF-8: the byte at {} does not fit", error.valid_up_to()))?;
    if !text.trim_start().starts_with('{') {
        // A list of values in the right order would pass for an object otherwise.
        return Err("not a JSON object".into());
    }
    let line: Line<'_> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if line.id.as_deref() == Some("") {
        return Err("the id is empty".into());
    }
    let arc = |text: Option<Cow<'_, str>>| text.map(Arc::<str>::from);
    let mut content_type = arc(line.content_type);
    let payload = match (line.payload, line.payload_base64) {
        (Some(_), Some(_)) => return Err("both payload and payload-base64 are there".into()),
        (None, None) => return Err("neither payload nor payload-base64 is there".into()),
        (Some(value), None) => {
            content_type = content_type.or_else(|| Some("application/json".into()));
            raw.slice_ref(value.get().as_bytes())
        }
        (None, Some(text)) => {
            BASE64.decode(text.as_bytes()).map_err(|error| format!("payload-base64: {error}"))?.into()
        }
    };
    Ok(NewMessage {
        id: arc(line.id).map(MessageId::new),
        key: line.key.map(|key| Bytes::from(key.into_owned())),
        event_type: arc(line.event_type),
        headers: line.headers.map_or_else(Headers::new, |pairs| pairs.0),
        payload: Some(payload),
        content_type,
        timestamp: line.time,
        correlation: arc(line.correlation),
        undecodable: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> NewMessage {
        let message = message(Bytes::copy_from_slice(text.as_bytes()));
        assert_eq!(message.undecodable, None, "{text}");
        message
    }

    fn payload(text: &str) -> String {
        String::from_utf8(line(text).payload.unwrap().into()).unwrap()
    }

    fn why(raw: impl AsRef<[u8]>) -> String {
        let raw = Bytes::copy_from_slice(raw.as_ref());
        let message = message(raw.clone());
        let why = message.undecodable.clone().expect("it makes no sense");
        assert_eq!(message, NewMessage::undecodable(raw, why.clone()), "nothing but the raw bytes is there");
        why.to_string()
    }

    #[test]
    fn a_full_line_is_read() {
        let message = line(
            r#" {"id": "e-1", "key": "order-7", "type": "OrderPlaced", "headers": {"b": "1", "a": "2", "b": "ü\n"},
                 "time": "2026-01-01T00:00:00Z", "payload": [1], "content-type": "text/x", "correlation": "c", "more": {}} "#,
        );
        let headers: Headers = [("b", "1"), ("a", "2"), ("b", "ü\n")].into_iter().collect();
        let expected = NewMessage {
            id: Some("e-1".into()),
            key: Some("order-7".into()),
            event_type: Some("OrderPlaced".into()),
            headers,
            payload: Some("[1]".into()),
            content_type: Some("text/x".into()),
            timestamp: Some("2026-01-01T00:00:00Z".parse().unwrap()),
            correlation: Some("c".into()),
            undecodable: None,
        };
        assert_eq!(message, expected);
    }

    #[test]
    fn a_payload_is_passed_on_byte_for_byte() {
        // I5
        for value in [
            r#"{"a" :  1.10,"a":2, "ü":"\u00fc\/"}"#,
            "\"text\"",
            "null",
            "0.1000",
            "1e400",
            "123456789012345678901234567890",
            "[ ]",
            "false",
        ] {
            assert_eq!(payload(&format!("{{\"key\":\"k\", \"payload\" : {value} , \"id\":\"1\"}}")), value);
        }
    }

    #[test]
    fn a_deep_payload_is_passed_on() {
        let deep = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
        assert_eq!(payload(&format!("{{\"payload\":{deep}}}")), deep);
    }

    #[test]
    fn a_null_key_is_not_an_empty_key() {
        // I5
        assert_eq!(line(r#"{"payload":1}"#).key, None);
        assert_eq!(line(r#"{"payload":1,"key":null}"#).key, None);
        assert_eq!(line(r#"{"payload":1,"key":""}"#).key, Some(Bytes::new()));
    }

    #[test]
    fn json_says_what_it_is_and_bytes_do_not() {
        assert_eq!(line(r#"{"payload":1}"#).content_type.as_deref(), Some("application/json"));
        let bytes = line(r#"{"payload-base64":"AP+A"}"#);
        assert_eq!((bytes.payload.unwrap().to_vec(), bytes.content_type), (vec![0, 255, 128], None));
        for text in ["AA==", "AA"] {
            let message = line(&format!("{{\"payload-base64\":\"{text}\"}}"));
            assert_eq!(message.payload.unwrap().to_vec(), [0]);
        }
        assert_eq!(line(r#"{"payload-base64":""}"#).payload, Some(Bytes::new()));
    }

    #[test]
    fn escapes_in_names_are_read() {
        assert_eq!(line(r#"{"payload":1,"id":"a\"\u00e9","key":"\ud83d\ude00"}"#).id, Some("a\"é".into()));
    }

    #[test]
    fn what_is_not_a_message_says_why() {
        assert_eq!(why("hello"), "not a JSON object");
        assert_eq!(why(r#"["e-1","k","T",null,null,null,null,1,null]"#), "not a JSON object");
        assert_eq!(why("{}"), "neither payload nor payload-base64 is there");
        assert_eq!(why(r#"{"payload":1,"payload-base64":""}"#), "both payload and payload-base64 are there");
        assert_eq!(why(r#"{"payload":1,"id":""}"#), "the id is empty");
        assert_eq!(why(b"{\"payload\":\"\xff\"}"), "not UTF-8: the byte at 12 does not fit");
        assert!(why(r#"{"payload":1}{"payload":2}"#).starts_with("trailing characters"));
        assert!(why(r#"{"payload":"#).starts_with("EOF"));
        assert!(why(r#"{"payload":1,"payload":2}"#).starts_with("duplicate field `payload`"));
        assert!(why(r#"{"payload":1,"id":7}"#).contains("expected a string"));
        assert!(why(r#"{"payload":1,"headers":{"a":1}}"#).contains("expected a string"));
        assert!(why(r#"{"payload":1,"headers":[]}"#).contains("expected an object of strings"));
        assert!(why(r#"{"payload":1,"time":"yesterday"}"#).contains("line 1"));
        assert!(why(r#"{"payload-base64":"!"}"#).starts_with("payload-base64: "));
    }

    #[test]
    fn only_white_space_is_blank() {
        assert!(is_blank(b"") && is_blank(b" \t\r"));
        assert!(!is_blank(b"x") && !is_blank(b"\0"));
    }
}
