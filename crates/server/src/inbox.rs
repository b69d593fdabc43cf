//! Handlers of the inbox routes: messages are durable before the response.

use std::collections::HashSet;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use lazaret_api::{BatchAnswer, Code, InboxAnswer, InboxBacklog, Problem};
use lazaret_core::source::{Ingest, NewMessage, Posted, jsonl};
use lazaret_core::{Headers, MessageId};
use percent_encoding::percent_decode;

use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::extract::{Name, read};
use crate::idempotency::{self, CompactBody};
use crate::options::Limits;

/// The `Retry-After` of a full inbox, in seconds.
const FULL_RETRY_AFTER: u32 = 1;

/// What to do about a consumer without an inbox.
const NO_INBOX_HINT: &str = "only a consumer with `source: { inbox: {} }` accepts messages";

fn inbox<'a>(app: &'a App, consumer: &str) -> Result<&'a Arc<dyn Ingest>> {
    let missing = || {
        let problem = Problem::new(Code::NoInbox).with_detail(format!("{consumer} has no inbox here"));
        ApiError::from(problem.with_hint(NO_INBOX_HINT))
    };
    app.inboxes.get(consumer).ok_or_else(missing)
}

pub(crate) async fn backlog(
    State(app): State<App>,
    caller: Caller,
    Name(consumer): Name,
) -> Result<axum::Json<InboxBacklog>> {
    caller.require_consumer(&consumer)?;
    Ok(axum::Json(InboxBacklog::from(inbox(&app, &consumer)?.backlog().await?)))
}

pub(crate) async fn post(
    State(app): State<App>,
    caller: Caller,
    Name(consumer): Name,
    request: Request<Body>,
) -> Result<Response> {
    caller.require_consumer(&consumer)?;
    let inbox = inbox(&app, &consumer)?;
    let (parts, body) = request.into_parts();
    let mut message = parse_headers(&parts.headers)?;
    check_sizes(&message, &app.options.limits).map_err(|(field, detail)| ApiError::invalid(field, detail))?;
    message.payload = Some(read(&app, &parts.headers, body, app.options.limits.message_bytes).await?);
    let posted = inbox.post(vec![message]).await?.into_iter().next();
    let posted = posted.ok_or_else(|| ApiError::new(Code::Internal, "the inbox returned no result"))?;
    let answer = answer(posted, app.shows_derived(&caller))?;
    if answer.conflict {
        let detail = format!("a message with the id {} and another payload was accepted before", answer.id);
        return Err(ApiError::new(Code::Conflict, detail));
    }
    let status = if answer.duplicate { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, axum::Json(answer)).into_response())
}

/// The answer to a message. Where conflicts are not shown, a known id with another payload is a duplicate like one with the same payload:
/// otherwise a message would tell whether the payload that was accepted has been guessed.
fn answer(posted: Posted, shows_conflicts: bool) -> Result<InboxAnswer> {
    let (id, position, duplicate, conflict) = match posted {
        Posted::Taken { id, position } => (id, position, false, false),
        Posted::Known { id, position } => (id, position, true, false),
        Posted::Conflict { id, position } => (id, position, !shows_conflicts, shows_conflicts),
        Posted::Full => {
            return Err(ApiError::from(Problem::new(Code::InboxFull)).retry_after(FULL_RETRY_AFTER));
        }
        Posted::TooLarge => {
            return Err(ApiError::new(Code::TooLarge, "the message exceeds the limit of the whole inbox"));
        }
    };
    Ok(InboxAnswer { id: id.to_string(), position: position.to_string(), duplicate, conflict })
}

/// Checks the size of each part of a message besides its payload: ids, keys and types are indexed, logged and kept (I7).
fn check_sizes(message: &NewMessage, limits: &Limits) -> std::result::Result<(), (&'static str, String)> {
    let text = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
    for (field, bytes, limit) in [
        ("id", message.id.as_ref().map_or(0, |id| id.as_str().len()), limits.id_bytes),
        ("key", message.key.as_ref().map_or(0, Bytes::len), limits.key_bytes),
        ("type", text(&message.event_type), limits.type_bytes),
        ("content-type", text(&message.content_type), limits.type_bytes),
        ("correlation", text(&message.correlation), limits.type_bytes),
        ("headers", message.headers.byte_size(), limits.message_header_bytes),
    ] {
        if bytes > limit {
            return Err((field, format!("{field} of {bytes} bytes, the limit is {limit}")));
        }
    }
    Ok(())
}

/// Parses the metadata of a message from Lazaret's headers, or from those of CloudEvents in binary mode.
fn parse_headers(headers: &HeaderMap) -> Result<NewMessage> {
    let mut message = NewMessage::default();
    let mut kept = Headers::new();
    for (name, value) in headers {
        let name = name.as_str();
        if let Some(own) = name.strip_prefix("lazaret-header-") {
            kept.push(own, Bytes::copy_from_slice(value.as_bytes()));
        } else if is_kept(name) {
            kept.push(name, Bytes::from(decoded(name, value.as_bytes())));
        }
    }
    message.headers = kept;
    let raw = |name: &str| headers.get(name).map(|value| decoded(name, value.as_bytes()));
    let text = |own: &str, cloud: &str| {
        let found = raw(own).map(|value| (own, value)).or_else(|| raw(cloud).map(|value| (cloud, value)));
        found.map(|(name, value)| {
            let text = String::from_utf8(value);
            text.map_err(|_| ApiError::invalid(name, "not UTF-8"))
        })
    };
    message.id = text("lazaret-id", "ce-id").transpose()?.map(MessageId::from);
    if message.id.is_none() {
        message.id = idempotency::key(headers)?.map(MessageId::from);
    }
    if message.id.as_ref().is_some_and(|id| id.as_str().is_empty()) {
        return Err(ApiError::invalid("lazaret-id", "the id is empty"));
    }
    message.event_type = text("lazaret-type", "ce-type").transpose()?.map(Into::into);
    message.correlation = text("lazaret-correlation", "ce-correlationid").transpose()?.map(Into::into);
    message.key = raw("lazaret-key").or_else(|| raw("ce-partitionkey")).map(Bytes::from);
    let time = text("lazaret-time", "ce-time").transpose()?;
    let time = time
        .map(|time| time.parse().map_err(|error| ApiError::invalid("ce-time", format!("{time:?}: {error}"))));
    message.timestamp = time.transpose()?;
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|given| given.to_str().ok());
    message.content_type = content_type.map(Into::into);
    Ok(message)
}

/// Decodes a header value. CloudEvents percent-encodes values (HTTP binding, 3.1.3.2); Lazaret's headers are literal.
fn decoded(name: &str, value: &[u8]) -> Vec<u8> {
    if name.starts_with("ce-") { percent_decode(value).collect() } else { value.to_vec() }
}

/// Headers that are kept with the message: trace context, and CloudEvents attributes without a field of their own.
fn is_kept(name: &str) -> bool {
    let own = ["ce-id", "ce-type", "ce-time", "ce-partitionkey", "ce-correlationid", "ce-specversion"];
    matches!(name, "traceparent" | "tracestate") || (name.starts_with("ce-") && !own.contains(&name))
}

/// Accepts one message per line. When the inbox fills up, the problem contains the number of durable lines.
pub(crate) async fn batch(
    State(app): State<App>,
    caller: Caller,
    Name(consumer): Name,
    request: Request<Body>,
) -> Result<Response> {
    caller.require_consumer(&consumer)?;
    let inbox = inbox(&app, &consumer)?;
    let (parts, body) = request.into_parts();
    let body = read(&app, &parts.headers, body, app.options.limits.batch_bytes).await?;
    // A batch has megabytes: parsed here, it would stall all other requests.
    let (limits, texts) = (app.options.limits.clone(), app.options.redaction.stored_texts());
    let parsed = tokio::task::spawn_blocking(move || {
        let mut messages = parse_batch(&body, &limits)?;
        for why in messages.iter_mut().filter_map(|message| message.undecodable.as_mut()) {
            let redacted: Arc<str> = texts.redact(why).into();
            *why = redacted;
        }
        Ok::<_, ApiError>(messages)
    })
    .await;
    let messages = parsed.map_err(|_| ApiError::from(Problem::new(Code::Internal)))??;
    let undecodable = messages.iter().map(|message| message.undecodable.is_some()).collect::<Vec<_>>();
    let posted = inbox.post(messages).await?;
    let shows_conflicts = app.shows_derived(&caller);
    let mut batch = BatchAnswer::default();
    for (posted, undecodable) in posted.into_iter().zip(undecodable) {
        match answer(posted, shows_conflicts) {
            Ok(answer) => {
                batch.undecodable += u64::from(undecodable);
                batch.messages.push(answer);
            }
            Err(mut error) => {
                error.problem.accepted = Some(batch.messages.len() as u64);
                error.problem.detail = Some(format!(
                    "the first {} messages are durable, the rest was not accepted",
                    batch.messages.len()
                ));
                return Err(error);
            }
        }
    }
    one_verdict_for_each_id(&mut batch.messages);
    for answer in &batch.messages {
        batch.taken += u64::from(!answer.duplicate && !answer.conflict);
        batch.conflicts += u64::from(answer.conflict);
        batch.duplicates += u64::from(answer.duplicate);
    }
    let status = if batch.taken > 0 { StatusCode::ACCEPTED } else { StatusCode::OK };
    let BatchAnswer { taken, duplicates, undecodable, conflicts, .. } = batch;
    let messages = Vec::new();
    let short = BatchAnswer { taken, duplicates, undecodable, conflicts, messages, messages_left_out: true };
    let short = serde_json::to_vec(&short).map(|short| CompactBody(short.into()));
    let mut response = (status, axum::Json(batch)).into_response();
    if let Ok(short) = short {
        response.extensions_mut().insert(short);
    }
    Ok(response)
}

/// Gives all lines that repeat an id the same verdict: a conflict if one of them is. A batch of guesses with one id must not tell which of
/// them is the payload that was accepted.
fn one_verdict_for_each_id(answers: &mut [InboxAnswer]) {
    let conflicts = answers.iter().filter(|answer| answer.conflict);
    let conflicts: HashSet<String> = conflicts.map(|answer| answer.id.clone()).collect();
    for answer in answers.iter_mut().filter(|answer| answer.duplicate && conflicts.contains(&answer.id)) {
        (answer.duplicate, answer.conflict) = (false, true);
    }
}

/// Parses the lines of a batch within its limits. Nothing is copied: payloads are parts of the body.
fn parse_batch(body: &Bytes, limits: &Limits) -> Result<Vec<NewMessage>> {
    let refused = |code, number: u64, detail: String| {
        let problem = Problem::new(code).with_detail(format!("line {number}: {detail}"));
        ApiError::from(problem.at(format!("line {number}")))
    };
    let mut messages = Vec::new();
    for (line, number) in lines(body).zip(1_u64..) {
        if jsonl::is_blank(&line) {
            continue;
        }
        if messages.len() == limits.batch_messages {
            let detail = format!("more than {} messages in a batch", limits.batch_messages);
            return Err(refused(Code::TooLarge, number, detail));
        }
        if line.len() > limits.message_bytes {
            let detail = format!("{} bytes exceed the limit of {}", line.len(), limits.message_bytes);
            return Err(refused(Code::TooLarge, number, detail));
        }
        let message = jsonl::message(line);
        check_sizes(&message, limits).map_err(|(_, why)| refused(Code::InvalidRequest, number, why))?;
        messages.push(message);
    }
    Ok(messages)
}

/// Splits a text into lines without line endings, without copying.
fn lines(text: &Bytes) -> impl Iterator<Item = Bytes> + '_ {
    text.split(|byte| *byte == b'\n').map(|line| text.slice_ref(line.strip_suffix(b"\r").unwrap_or(line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, axum::http::HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    #[test]
    fn lazaret_headers_are_read_literally() {
        let message = parse_headers(&headers(&[
            ("lazaret-id", b"e-1"),
            ("lazaret-key", b"\xff%41"),
            ("lazaret-type", b"OrderPlaced"),
            ("lazaret-header-tenant", b"acme"),
            ("lazaret-header-tenant", b"globex"),
            ("content-type", b"application/json"),
            ("traceparent", b"00-1-2-01"),
            ("ce-id", b"other"),
            ("accept", b"*/*"),
        ]));
        let message = message.unwrap();
        assert_eq!((message.id, message.key.as_deref()), (Some("e-1".into()), Some(&b"\xff%41"[..])));
        assert_eq!(message.event_type.as_deref(), Some("OrderPlaced"));
        let kept: Vec<_> =
            message.headers.iter().map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
        let expected = [("tenant", "acme"), ("tenant", "globex"), ("traceparent", "00-1-2-01")];
        assert_eq!(kept, expected.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())));
        assert_eq!(message.content_type.as_deref(), Some("application/json"));
    }

    #[test]
    fn an_idempotency_key_is_the_id_of_a_message_that_has_no_other() {
        let id = |pairs: &[(&'static str, &[u8])]| parse_headers(&headers(pairs)).unwrap().id;
        assert_eq!(id(&[("idempotency-key", b"k-1")]), Some("k-1".into()));
        assert_eq!(id(&[("idempotency-key", b"k-1"), ("lazaret-id", b"e-1")]), Some("e-1".into()));
        assert_eq!(id(&[("idempotency-key", b"k-1"), ("ce-id", b"c-1")]), Some("c-1".into()));
        assert!(parse_headers(&headers(&[("idempotency-key", b"")])).is_err());
    }

    #[test]
    fn cloud_events_in_binary_mode_are_supported() {
        let message = parse_headers(&headers(&[
            ("ce-specversion", b"1.0"),
            ("ce-id", b"a%20b"),
            ("ce-type", b"Euro%20%E2%82%AC"),
            ("ce-source", b"/shop"),
            ("ce-time", b"2026-01-01T00:00:00Z"),
            ("ce-partitionkey", b"%C3%BC"),
        ]));
        let message = message.unwrap();
        assert_eq!((message.id, message.key), (Some("a b".into()), Some("ü".into())));
        assert_eq!(message.event_type.as_deref(), Some("Euro €"));
        assert_eq!(message.headers.get_str("ce-source"), Some("/shop"));
        assert_eq!(message.timestamp.unwrap().to_string(), "2026-01-01T00:00:00Z");
    }

    #[test]
    fn a_missing_key_differs_from_an_empty_one() {
        // I5
        assert_eq!(parse_headers(&headers(&[])).unwrap().key, None);
        assert_eq!(parse_headers(&headers(&[("lazaret-key", b"")])).unwrap().key, Some(Bytes::new()));
    }

    #[test]
    fn invalid_headers_are_rejected() {
        for pair in [("lazaret-id", &b""[..]), ("lazaret-id", b"\xff"), ("ce-time", b"yesterday")] {
            assert!(parse_headers(&headers(&[pair])).is_err(), "{pair:?}");
        }
    }

    #[test]
    fn the_lines_of_an_id_have_one_verdict() {
        let line = |id: &str, duplicate, conflict| InboxAnswer {
            id: id.to_owned(),
            position: "0:0".to_owned(),
            duplicate,
            conflict,
        };
        let mut answers =
            [line("a", false, false), line("b", true, false), line("a", true, false), line("a", false, true)];
        one_verdict_for_each_id(&mut answers);
        let verdicts = answers.map(|answer| (answer.duplicate, answer.conflict));
        // The first was taken; of the others, the one with the same payload looks like the one with another.
        assert_eq!(verdicts, [(false, false), (true, false), (false, true), (false, true)]);
    }

    #[test]
    fn both_line_endings_are_supported() {
        let text = Bytes::from_static(b"a\r\nb\n\nc");
        assert_eq!(lines(&text).collect::<Vec<_>>(), ["a", "b", "", "c"]);
    }
}
