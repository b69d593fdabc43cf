//! Builds the headers of a request: CloudEvents in binary mode, and Lazaret's metadata.

use std::fmt::Display;

use bytes::Bytes;
use lazaret_core::HandlerError;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use crate::attempt_info::{
    AttemptInfo, Caller, DEFAULT_TYPE, HeaderBudget, NAME_BYTES_LIMIT, names_too_long, operation_name,
};
use crate::encoding::{self, is_attribute_byte, is_name_byte, percent};
use crate::error::Error;

const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");
const CE_VERSION: HeaderName = HeaderName::from_static("ce-specversion");
const CE_ID: HeaderName = HeaderName::from_static("ce-id");
const CE_SOURCE: HeaderName = HeaderName::from_static("ce-source");
const CE_TYPE: HeaderName = HeaderName::from_static("ce-type");
const CE_TIME: HeaderName = HeaderName::from_static("ce-time");
const CE_KEY: HeaderName = HeaderName::from_static("ce-partitionkey");
const CONSUMER: HeaderName = HeaderName::from_static("lazaret-consumer");
const ATTEMPT: HeaderName = HeaderName::from_static("lazaret-attempt");
const SEQUENCE: HeaderName = HeaderName::from_static("lazaret-sequence");
const POSITION: HeaderName = HeaderName::from_static("lazaret-position");
const LETTER: HeaderName = HeaderName::from_static("lazaret-letter");
const REPLAY: HeaderName = HeaderName::from_static("lazaret-replay");
const REPLAY_ATTEMPT: HeaderName = HeaderName::from_static("lazaret-replay-attempt");
const TOMBSTONE: HeaderName = HeaderName::from_static("lazaret-tombstone");
const OPERATION: HeaderName = HeaderName::from_static("lazaret-operation");
const CORRELATION: HeaderName = HeaderName::from_static("lazaret-correlation");
const LEFT_OUT: HeaderName = HeaderName::from_static("lazaret-headers-left-out");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const PREFIX: &str = "lazaret-header-";

/// The initial capacity: all fixed headers and some message headers.
const USUAL_HEADERS: usize = 24;

/// Builds the headers of all requests: the configured headers and the consumer.
pub(super) fn template(configured: &[(String, String)], caller: &Caller) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::with_capacity(USUAL_HEADERS);
    let agent = HeaderValue::from_static(concat!("lazaret/", env!("CARGO_PKG_VERSION")));
    headers.insert(reqwest::header::USER_AGENT, agent);
    headers.insert(CONTENT_TYPE, OCTETS);
    for (name, value) in configured {
        let wrong = |why| Error::Header { name: name.clone(), why };
        let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong("invalid header name"))?;
        if is_reserved(known.as_str()) {
            return Err(wrong("reserved for Lazaret"));
        }
        let value =
            HeaderValue::from_str(value).map_err(|_| wrong("the value contains control characters"))?;
        headers.insert(known, secret(value));
    }
    headers.insert(CE_VERSION, HeaderValue::from_static("1.0"));
    headers.insert(CONSUMER, carried(&encoding::value(caller.consumer.as_str().as_bytes())));
    Ok(headers)
}

/// Marks a value as sensitive, so that it is not printed.
pub(super) fn secret(mut value: HeaderValue) -> HeaderValue {
    value.set_sensitive(true);
    value
}

fn is_reserved(name: &str) -> bool {
    const FRAMING: [&str; 8] =
        ["connection", "content-length", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade"];
    const TRACE: [&str; 2] = ["traceparent", "tracestate"];
    name.starts_with("ce-")
        || name.starts_with("lazaret-")
        || FRAMING.contains(&name)
        || TRACE.contains(&name)
}

/// Builds the headers of one request. They are valid and bounded for every message.
pub(super) fn headers(template: &HeaderMap, info: &AttemptInfo<'_>) -> Result<HeaderMap, HandlerError> {
    let message = info.message;
    let mut headers = template.clone();
    if let Some(content_type) = message.content_type.as_deref().and_then(content_type) {
        headers.insert(CONTENT_TYPE, content_type);
    }
    let mut names = Names { headers: &mut headers, bytes: 0 };
    names.insert(CE_ID, &percent(message.id.as_str().as_bytes(), is_attribute_byte));
    names.insert(CE_SOURCE, &percent(message.stream.as_str().as_bytes(), is_attribute_byte));
    let event_type = message.event_type.as_deref().filter(|name| !name.is_empty()).unwrap_or(DEFAULT_TYPE);
    names.insert(CE_TYPE, &percent(event_type.as_bytes(), is_attribute_byte));
    if let Some(key) = &message.key {
        names.insert(CE_KEY, &percent(key, is_attribute_byte));
    }
    names.insert(SEQUENCE, &encoding::value(info.sequence.as_bytes()));
    if let Some(correlation) = &message.correlation {
        names.insert(CORRELATION, &encoding::value(correlation.as_bytes()));
    }
    if names.bytes > NAME_BYTES_LIMIT {
        return Err(names_too_long(names.bytes));
    }
    headers.insert(ATTEMPT, HeaderValue::from(info.attempt));
    headers.insert(POSITION, shown(&message.position));
    if let Some(time) = message.timestamp {
        headers.insert(CE_TIME, shown(time));
    }
    if let Some(operation) = message.operation {
        headers.insert(OPERATION, HeaderValue::from_static(operation_name(operation)));
    }
    if message.payload.is_none() {
        headers.insert(TOMBSTONE, HeaderValue::from_static("true"));
    }
    if let Some(replay) = &info.replay {
        headers.insert(LETTER, shown(replay.letter));
        headers.insert(REPLAY, carried(&encoding::value(replay.operation.as_bytes())));
        headers.insert(REPLAY_ATTEMPT, HeaderValue::from(replay.attempt));
    }
    add_message_headers(&mut headers, info);
    Ok(headers)
}

/// Adds the headers of the message: the trace context unchanged, the others with a prefix.
fn add_message_headers(headers: &mut HeaderMap, info: &AttemptInfo<'_>) {
    let (traceparent, tracestate) = (info.traceparent(), info.tracestate());
    for (name, value) in [(TRACEPARENT, traceparent), (TRACESTATE, tracestate)] {
        if let Some(value) = value {
            headers.insert(name, shared(value));
        }
    }
    let mut budget = HeaderBudget::new();
    let mut buffer = String::new();
    for (name, value) in info.message.headers.iter() {
        let passed_as = match name {
            "traceparent" => traceparent,
            "tracestate" => tracestate,
            _ => None,
        };
        // Compares addresses, so that only this header is skipped and not another one with the same
        // name.
        if passed_as.is_some_and(|passed| std::ptr::eq(passed, value)) {
            continue;
        }
        let encoded = percent(name.as_bytes(), is_name_byte);
        let value = match encoding::value(value) {
            std::borrow::Cow::Borrowed(_) => shared(value),
            std::borrow::Cow::Owned(encoded) => shared(&Bytes::from(encoded)),
        };
        buffer.clear();
        buffer.push_str(PREFIX);
        buffer.push_str(std::str::from_utf8(&encoded).expect("encoded names are ASCII"));
        let Ok(name) = HeaderName::from_bytes(buffer.as_bytes()) else {
            // The name exceeds the limit of the HTTP library.
            budget.left_out += 1;
            continue;
        };
        if !encoded.is_empty() && budget.take(name.as_str().len() + value.len()) {
            headers.append(name, value);
        } else if encoded.is_empty() {
            budget.left_out += 1;
        }
    }
    if budget.left_out > 0 {
        headers.insert(LEFT_OUT, HeaderValue::from(budget.left_out));
    }
}

/// Adds the names of a message and counts their size.
struct Names<'a> {
    headers: &'a mut HeaderMap,
    bytes: usize,
}

impl Names<'_> {
    fn insert(&mut self, name: HeaderName, encoded: &[u8]) {
        self.bytes += encoded.len();
        self.headers.insert(name, carried(encoded));
    }
}

/// Returns the media type, if it is a valid header value.
fn content_type(text: &str) -> Option<HeaderValue> {
    let fits = (1..=255).contains(&text.len()) && text.bytes().all(|b| matches!(b, 0x20..=0x7e));
    fits.then(|| carried(text.trim().as_bytes()))
}

fn carried(encoded: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(encoded).expect("encoded values are printable ASCII")
}

fn shared(plain: &Bytes) -> HeaderValue {
    HeaderValue::from_maybe_shared(plain.clone()).expect("encoded values are printable ASCII")
}

fn shown(value: impl Display) -> HeaderValue {
    let text = Bytes::from(value.to_string());
    HeaderValue::from_maybe_shared(text).expect("numbers, times and ids are printable ASCII")
}
