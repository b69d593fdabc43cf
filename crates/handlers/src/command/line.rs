//! The line protocol of workers: one JSON object per message and one per response.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lazaret_core::handler::Delivery;
use lazaret_core::{HandlerError, LetterId, Reason, Timestamp, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::attempt_info::{
    AttemptInfo, Caller, HeaderBudget, NAME_BYTES_LIMIT, names_too_long, operation_name,
};
use crate::explicit::{ExplicitVerdict, RETRY_AFTER_LIMIT, excerpt};
use crate::report::Report;
use crate::sanitize::{sanitize, with_notes};

/// A message, as sent to a worker.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Request<'a> {
    id: &'a str,
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    #[serde(rename = "type")]
    event_type: Option<&'a str>,
    time: Option<Timestamp>,
    stream: &'a str,
    sequence: &'a str,
    position: String,
    consumer: &'a str,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation: Option<&'a str>,
    content_type: Option<&'a str>,
    headers: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    more_headers: Vec<(&'a str, &'a str)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    headers_base64: Vec<(&'a str, String)>,
    #[serde(skip_serializing_if = "is_zero")]
    headers_left_out: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    letter: Option<LetterId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay_attempt: Option<u32>,
    #[serde(skip_serializing_if = "is_false")]
    tombstone: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Cow<'a, RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Serializes a message as a line.
pub(super) fn request(caller: &Caller, info: &AttemptInfo<'_>) -> Result<Vec<u8>, HandlerError> {
    let message = info.message;
    let names = [Some(message.id.as_str()), message.event_type.as_deref(), message.correlation.as_deref()];
    let names = names.into_iter().flatten().map(str::len).sum::<usize>()
        + message.stream.as_str().len()
        + message.key.as_ref().map_or(0, |key| key.len())
        + info.sequence.len();
    if names > NAME_BYTES_LIMIT {
        return Err(names_too_long(names));
    }
    let key = message.key.as_deref().map(|key| std::str::from_utf8(key).map_err(|_| STANDARD.encode(key)));
    let (key, key_base64) = match key {
        None => (None, None),
        Some(Ok(text)) => (Some(text), None),
        Some(Err(encoded)) => (None, Some(encoded)),
    };
    let mut request = Request {
        id: message.id.as_str(),
        key,
        key_base64,
        event_type: message.event_type.as_deref(),
        time: message.timestamp,
        stream: message.stream.as_str(),
        sequence: &info.sequence,
        position: message.position.to_string(),
        consumer: caller.consumer.as_str(),
        attempt: info.attempt,
        operation: message.operation.map(operation_name),
        correlation: message.correlation.as_deref(),
        content_type: message.content_type.as_deref(),
        headers: BTreeMap::new(),
        more_headers: Vec::new(),
        headers_base64: Vec::new(),
        headers_left_out: 0,
        letter: info.replay.as_ref().map(|replay| replay.letter),
        replay: info.replay.as_ref().map(|replay| &*replay.operation),
        replay_attempt: info.replay.as_ref().map(|replay| replay.attempt),
        tombstone: message.payload.is_none(),
        payload: None,
        payload_base64: None,
    };
    add_headers(&mut request, info);
    match &message.payload {
        // A worker that only reads the payload finds null.
        None => request.payload = Some(Cow::Borrowed(RawValue::NULL)),
        Some(payload) => match json(message.content_type.as_deref(), payload) {
            Some(value) => request.payload = Some(value),
            None => request.payload_base64 = Some(STANDARD.encode(payload)),
        },
    }
    let line = serde_json::to_vec(&request).map_err(HandlerError::from)?;
    Ok(one_line(line))
}

/// Adds the headers: the first value of each name directly, further and binary values in lists.
fn add_headers<'a>(request: &mut Request<'a>, info: &AttemptInfo<'a>) {
    let mut budget = HeaderBudget::new();
    for (name, value) in info.message.headers.iter() {
        if !budget.take(name.len() + value.len()) {
            continue;
        }
        match std::str::from_utf8(value) {
            Err(_) => request.headers_base64.push((name, STANDARD.encode(value))),
            Ok(text) if request.headers.contains_key(name) => request.more_headers.push((name, text)),
            Ok(text) => {
                request.headers.insert(name, text);
            }
        }
    }
    request.headers_left_out = budget.left_out;
}

/// Returns the payload as JSON, if its content type is JSON and it is valid.
fn json<'a>(content_type: Option<&str>, payload: &'a [u8]) -> Option<Cow<'a, RawValue>> {
    let media = content_type?.split(';').next()?.trim().to_ascii_lowercase();
    if media != "application/json" && !media.ends_with("+json") {
        return None;
    }
    let value: &RawValue = serde_json::from_slice(payload).ok()?;
    if !value.get().contains(['\n', '\r']) {
        return Some(Cow::Borrowed(value));
    }
    // Inside strings they are escaped, so these are white space between values.
    let flat = value.get().replace(['\n', '\r'], " ");
    RawValue::from_string(flat).ok().map(Cow::Owned)
}

/// Terminates the line, and escapes U+2028 and U+2029, which some readers treat as line ends. They occur
/// only in strings, where they can be escaped.
fn one_line(mut line: Vec<u8>) -> Vec<u8> {
    const SEPARATORS: [&[u8]; 2] = ["\u{2028}".as_bytes(), "\u{2029}".as_bytes()];
    if line.windows(3).any(|three| SEPARATORS.contains(&three)) {
        let text = String::from_utf8(line).expect("JSON is UTF-8");
        line = text.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029").into_bytes();
    }
    line.push(b'\n');
    line
}

/// The response of a worker.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", expecting = "an object with an id and a verdict")]
struct Response {
    id: String,
    verdict: Option<String>,
    reason: Option<String>,
    message: Option<String>,
    retry_after: Option<serde_json::Value>,
}

/// The reason why a response is invalid.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidResponse {
    /// The line is not a JSON object with the expected fields.
    #[error("invalid response {line:?}: {why}")]
    Malformed { line: String, why: String },
    /// The response is for another message.
    #[error("the response is for another message, {id:?}")]
    OtherMessage { id: String },
    /// The response has neither a verdict nor a reason.
    #[error("the response has neither a verdict nor a reason")]
    NoVerdict,
    /// The response exceeds the limit.
    #[error("the response is longer than {limit} bytes")]
    TooLong { limit: usize },
}

/// Returns the outcome of the attempt, or the reason why the response is invalid. `stderr` supplies the
/// message of a failure without one. The diagnostics of a failure are added to the delivery.
pub(super) fn classify(
    line: &[u8],
    delivery: &Delivery,
    stderr: impl FnOnce() -> String,
) -> Result<Result<(), HandlerError>, InvalidResponse> {
    let malformed =
        |why: &dyn Display| InvalidResponse::Malformed { line: excerpt(line), why: why.to_string() };
    if !line.trim_ascii_start().starts_with(b"{") {
        // serde also accepts a list of values in field order.
        return Err(malformed(&"not a JSON object"));
    }
    let response: Response = serde_json::from_slice(line).map_err(|error| malformed(&error))?;
    if response.id != delivery.message().id.as_str() {
        return Err(InvalidResponse::OtherMessage { id: excerpt(response.id.as_bytes()) });
    }
    if response.verdict.is_none() && response.reason.is_none() {
        return Err(InvalidResponse::NoVerdict);
    }
    let verdict = response.verdict.as_ref().map(String::as_bytes);
    let ExplicitVerdict { verdict, handled, reason, mut notes } =
        ExplicitVerdict::parse(verdict, response.reason.as_ref().map(String::as_bytes));
    if handled {
        return Ok(Ok(()));
    }
    let mut report = Report::from_json(line).unwrap_or_default();
    report.keep_diagnostics(delivery);
    notes.append(&mut report.notes);
    let text = response.message.map(|text| sanitize(text.as_bytes())).filter(|text| !text.is_empty());
    let text = text.or_else(|| report.message()).unwrap_or_else(stderr);
    let text = if text.is_empty() { verdict.map_or("failed", Verdict::as_str).to_owned() } else { text };
    let error_type = report.error_type.take().unwrap_or_else(|| "worker".to_owned());
    let mut error = report.complete(HandlerError::foreign(error_type, with_notes(text, &notes)));
    match (verdict, reason) {
        (Some(Verdict::Duplicate), None) => error = error.reason(Reason::DUPLICATE),
        (_, Some(reason)) => error = error.reason(reason),
        (Some(_), None) => {}
        // The response has neither a valid verdict nor a valid reason.
        (None, None) => error = error.reason(Reason::INVALID_RESPONSE),
    }
    if let Some(verdict) = verdict {
        error = error.verdict(verdict);
    }
    if let Some(wait) = response.retry_after.as_ref().and_then(retry_after) {
        error = error.retry_after(wait);
    }
    Ok(Err(error))
}

/// Parses seconds, as a number or a string. Returns `None` for an invalid value.
fn retry_after(value: &serde_json::Value) -> Option<Duration> {
    let seconds = match value {
        serde_json::Value::Number(number) => number.as_f64()?,
        serde_json::Value::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    if seconds.is_nan() || seconds < 0.0 {
        return None;
    }
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(RETRY_AFTER_LIMIT).min(RETRY_AFTER_LIMIT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use lazaret_core::{Message, Phase, Position};
    use serde_json::{Value, json};

    fn line(message: Message) -> Vec<u8> {
        let delivery = Delivery::new(message);
        let caller = Caller::default();
        request(&caller, &AttemptInfo::of(&caller, &delivery)).unwrap()
    }

    fn read(message: Message) -> Value {
        let line = line(message);
        let (last, text) = line.split_last().unwrap();
        assert_eq!(*last, b'\n');
        let text = std::str::from_utf8(text).unwrap();
        assert!(!text.contains(['\n', '\r', '\u{2028}', '\u{2029}']), "one line for everybody: {text}");
        serde_json::from_str(text).unwrap()
    }

    fn message() -> Message {
        Message::new("evt-1", "orders", Position::new(3, 41))
    }

    fn json_message(payload: &str) -> Message {
        let mut message = message().with_payload(Bytes::copy_from_slice(payload.as_bytes()));
        message.content_type = Some("application/json".into());
        message
    }

    #[test]
    fn a_line_has_all_metadata() {
        let mut message = json_message(r#"{"total": 7}"#).with_key("order-7").with_type("OrderPlaced");
        message = message.with_header("a", "1").with_header("a", "2").with_header("b", &b"\xff"[..]);
        message.timestamp = Some("2026-01-01T00:00:00Z".parse().unwrap());
        let expected = json!({
            "id": "evt-1", "key": "order-7", "type": "OrderPlaced", "time": "2026-01-01T00:00:00Z",
            "stream": "orders", "sequence": "order-7", "position": "3:41", "consumer": "lazaret", "attempt": 1,
            "content-type": "application/json", "headers": {"a": "1"}, "more-headers": [["a", "2"]],
            "headers-base64": [["b", "/w=="]], "payload": {"total": 7},
        });
        assert_eq!(read(message), expected);
    }

    #[test]
    fn a_payload_is_json_where_the_source_says_so_and_base64_otherwise() {
        let value = |message: Message| {
            (read(message.clone())["payload"].clone(), read(message)["payload-base64"].clone())
        };
        let none = Value::Null;
        assert_eq!(value(json_message("{\n\t\"a\": [1,\r\n2]\n}\n")), (json!({"a": [1, 2]}), none.clone()));
        assert_eq!(value(json_message("\"a\u{2028}b\"")), (json!("a\u{2028}b"), none.clone()));
        assert_eq!(value(json_message("{broken")), (none.clone(), json!("e2Jyb2tlbg==")));
        assert_eq!(value(message().with_payload("{}")), (none.clone(), json!("e30=")));
        assert_eq!(value(message().with_payload("")), (none, json!("")));
        let problem = Message { content_type: Some("application/x+JSON; q=1".into()), ..json_message("7") };
        assert_eq!(read(problem)["payload"], json!(7));
        let text = String::from_utf8(line(json_message(r#"{"a" : 1.10}"#))).unwrap();
        assert!(text.contains(r#""payload":{"a" : 1.10}"#), "byte for byte: {text}");
    }

    #[test]
    fn null_differs_from_empty() {
        // I5
        let tombstone = read(message());
        assert_eq!((&tombstone["tombstone"], &tombstone["payload"]), (&json!(true), &Value::Null));
        assert!(read(message().with_payload("")).get("tombstone").is_none());
        assert_eq!(read(message())["key"], Value::Null);
        assert_eq!(read(message().with_key(""))["key"], json!(""));
        let binary = read(message().with_key(&b"\xff\0"[..]));
        assert_eq!((&binary["key"], &binary["key-base64"]), (&Value::Null, &json!("/wA=")));
    }

    #[test]
    fn hostile_names_stay_inside_of_the_line() {
        let hostile = "\n{\"id\":\"x\"}\r\u{2028}\u{2029}\0\"\\";
        let read = read(Message::new(hostile, hostile, Position::new(0, 0)).with_header(hostile, hostile));
        assert_eq!((&read["id"], &read["headers"][hostile]), (&json!(hostile), &json!(hostile)));
    }

    fn answer(line: &str) -> Result<Result<(), HandlerError>, InvalidResponse> {
        let delivery = Delivery::new(Message::new("e", "orders", Position::new(0, 0)));
        classify(line.as_bytes(), &delivery, || "from stderr".to_owned())
    }

    fn failed(line: &str) -> HandlerError {
        answer(line).unwrap().unwrap_err()
    }

    #[test]
    fn a_response_sets_the_outcome() {
        assert!(answer(r#"{"id":"e","verdict":"handled"}"#).unwrap().is_ok());
        for verdict in Verdict::ALL {
            let error = failed(&format!(r#"{{"id":"e","verdict":"{verdict}","message":"m"}}"#));
            assert_eq!((error.asked_verdict(), error.to_string()), (Some(verdict), "m".into()));
        }
        let error = failed(r#"{"id":"e","verdict":"retry","reason":"RATE_LIMITED","retry-after":1.5}"#);
        let failure = error.failure();
        assert_eq!((failure.reason, &*failure.message), (Reason::RATE_LIMITED, "from stderr"));
        assert_eq!(failure.retry_after, Some(Duration::from_millis(1500)));
        let error = failed(r#"{"id":"e","reason":"INVALID_SCHEMA"}"#);
        assert_eq!((error.asked_verdict(), error.failure().reason), (None, Reason::INVALID_SCHEMA));
        assert_eq!(failed(r#"{"id":"e","verdict":"duplicate"}"#).failure().reason, Reason::DUPLICATE);
    }

    #[test]
    fn a_response_may_report_type_trace_phase_and_diagnostics() {
        let line = r#"{"id":"e","verdict":"retry","detail":"no card","errorType":"KeyError","stackTrace":["at a","at b"],
            "phase":"validate","diagnostics":{"gateway":"eu"}}"#;
        let delivery = Delivery::new(Message::new("e", "orders", Position::new(0, 0)));
        let error = classify(line.as_bytes(), &delivery, String::new).unwrap().unwrap_err();
        let failure = error.failure();
        assert_eq!((&*failure.error_type, &*failure.message), ("KeyError", "no card"));
        assert_eq!((failure.backtrace.as_deref(), failure.phase), (Some("at a\nat b"), Phase::Validate));
        assert_eq!(delivery.metadata()["gateway"], "eu");
        let both = failed(r#"{"id":"e","verdict":"retry","message":"m","detail":"no card","errorType":7}"#)
            .failure();
        assert_eq!((&*both.error_type, &*both.message), ("worker", "m (invalid errorType 7 was ignored)"));
        // Unrelated fields with these names belong to the worker.
        assert!(answer(r#"{"id":"e","verdict":"handled","title":7,"phase":[]}"#).unwrap().is_ok());
        assert_eq!(failed(r#"{"id":"e","verdict":"retry","type":"OrderPlaced"}"#).to_string(), "from stderr");
    }

    #[test]
    fn invalid_values_are_ignored_with_a_note() {
        let error =
            failed(r#"{"id":"e","verdict":"dead","reason":"no good","message":"m","retry-after":-1}"#);
        let failure = error.failure();
        assert_eq!(
            (error.asked_verdict(), failure.reason, failure.retry_after),
            (None, Reason::INVALID_RESPONSE, None)
        );
        assert!(
            failure.message.contains("unknown verdict \"dead\"") && failure.message.contains("\"no good\"")
        );
        for value in ["\"soon\"", "[]", "null", "\"NaN\"", "-0.5"] {
            let line = format!(r#"{{"id":"e","verdict":"retry","retry-after":{value}}}"#);
            assert_eq!(failed(&line).failure().retry_after, None, "{value}");
        }
        for value in ["1e300", "\"inf\"", "99999999999"] {
            let line = format!(r#"{{"id":"e","verdict":"retry","retry-after":{value}}}"#);
            assert_eq!(failed(&line).failure().retry_after, Some(RETRY_AFTER_LIMIT), "{value}");
        }
    }

    #[test]
    fn an_invalid_response_is_described() {
        let table = [
            ("hello", "invalid response \"hello\""),
            ("", "invalid response"),
            ("[\"e\",\"handled\",null,null,null]", "invalid response"),
            (r#"{"id":7,"verdict":"handled"}"#, "invalid response"),
            (r#"{"verdict":"handled"}"#, "invalid response"),
            (r#"{"id":"other","verdict":"handled"}"#, "the response is for another message, \"other\""),
            (r#"{"id":"e"}"#, "neither a verdict nor a reason"),
        ];
        for (line, expected) in table {
            let why = answer(line).unwrap_err().to_string();
            assert!(why.contains(expected), "{line}: {why}");
        }
    }
}
