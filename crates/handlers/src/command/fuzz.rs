//! Fuzz target: the line protocol of workers.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lazaret_core::handler::Delivery;
use lazaret_core::{Message, Position};
use lazaret_fuzz::{Fuzz, Shape};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::line::{classify, request};
use crate::attempt_info::{AttemptInfo, Caller};

/// The maximum size of an error message: an excerpt of 8 KiB, and notes.
const MESSAGE_LIMIT: usize = 16 * 1024;

/// The payload of a line.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Parts<'a> {
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    payload_base64: Option<Cow<'a, str>>,
}

fn target() -> Fuzz {
    let corpus = [
        r#"{"id":"e","verdict":"handled"}"#,
        r#"{"id":"e","verdict":"retry","reason":"RATE_LIMITED","retry-after":1.5,"message":"later"}"#,
        r#"{"id":"e","reason":"INVALID_SCHEMA","retry-after":"3","other":[1,{"a":null}]}"#,
        r#"{"id":"another","verdict":"dead-letter"}"#,
        r#"{"id":"e","verdict":"retry","detail":"no","errorType":"E","stackTrace":["at a"],"phase":"ack","diagnostics":{"a":1}}"#,
    ];
    let words = [
        "id",
        "verdict",
        "reason",
        "message",
        "retry-after",
        "errorType",
        "stackTrace",
        "phase",
        "diagnostics",
        "handled",
        "retry",
        "dead-letter",
        "park",
        "quarantine",
        "skip",
        "duplicate",
        "stop",
        "e",
        "TIMEOUT",
        "1e400",
        "-1",
    ];
    Fuzz::target("worker-protocol").corpus(corpus).words(words).shape(Shape::Json)
}

/// Returns a check of the protocol. `sent` converts a line to the form in which it reaches the worker.
fn check(sent: impl Fn(String) -> String) -> impl Fn(&[u8]) -> Result<(), String> {
    move |input| {
        let delivery = Delivery::new(Message::new("e", "orders", Position::new(0, 1)));
        match classify(input, &delivery, || "from stderr".to_owned()) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let failure = error.failure();
                if failure.message.is_empty() || failure.message.len() > MESSAGE_LIMIT {
                    return Err(format!("a message of {} bytes", failure.message.len()));
                }
            }
            Err(error) => {
                let told = error.to_string();
                if told.is_empty() || told.len() > MESSAGE_LIMIT {
                    return Err(format!("an error of {} bytes", told.len()));
                }
            }
        }
        // The same bytes as a message to a worker: one line of JSON from which they can be read again.
        let text = String::from_utf8_lossy(input);
        let mut message = Message::new("e", "orders", Position::new(0, 1)).with_payload(input.to_vec());
        message.content_type = Some("application/json".into());
        let message = match text.char_indices().nth(100) {
            None => message.with_key(input.to_vec()).with_header("a", input.to_vec()).with_type(&*text),
            Some(_) => message,
        };
        let caller = Caller::default();
        let Ok(line) = request(&caller, &AttemptInfo::of(&caller, &Delivery::new(message))) else {
            return Ok(());
        };
        let line = sent(String::from_utf8(line).map_err(|error| error.to_string())?);
        let line = line.strip_suffix('\n').ok_or("a line without an end")?;
        if line.contains(['\n', '\r', '\u{2028}', '\u{2029}']) {
            return Err("more than one line".into());
        }
        // Not read as values, because numbers of any length and nesting of any depth are valid JSON.
        let read: Parts<'_> =
            serde_json::from_str(line).map_err(|error| format!("not JSON: {error}: {line}"))?;
        match (read.payload, read.payload_base64) {
            (Some(value), None) => {
                // Line ends between values were replaced with spaces.
                let flat = |text: &str| text.replace(['\n', '\r'], " ").trim().to_owned();
                let escaped = text.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029");
                match flat(value.get()) == flat(&escaped) {
                    true => Ok(()),
                    false => Err(format!("another payload: {value}")),
                }
            }
            (None, Some(encoded)) if STANDARD.decode(&*encoded).is_ok_and(|payload| payload == input) => {
                Ok(())
            }
            (None, None) if text.trim() == "null" => Ok(()),
            other => Err(format!("another payload: {other:?}")),
        }
    }
}

#[test]
fn worker_protocol() {
    target().run(check(|line| line));
}

#[test]
fn planted_bugs_of_the_worker_protocol_are_found() {
    // Bytes that are not JSON lose their padding.
    target().finds(check(|line| line.replace("==\"", "\"").replace("=\"", "\"")));
    // Characters that some readers treat as line ends are not escaped.
    target().finds(check(|line| line.replace("\\u2028", "\u{2028}")));
}
