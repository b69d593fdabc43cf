//! Inboxes over HTTP: durable before it is answered.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use lazaret_api::{BatchAnswer, Code, InboxAnswer, InboxBacklog, Problem};
use lazaret_core::source::{NewMessage, Posted, jsonl};
use lazaret_core::store;
use lazaret_core::{Headers, MessageId};
use percent_encoding::percent_decode;

use crate::app::App;
use crate::extract::{Name, read};
use crate::fault::{Fault, Result};
use crate::idempotency;

/// When to come back to an inbox that is full, in seconds.
const COME_BACK: u32 = 1;

/// Where messages can be posted.
#[async_trait]
pub trait Ingest: Send + Sync + 'static {
    /// Takes messages, in order. Those that were taken are durable when this returns.
    async fn post(&self, messages: Vec<NewMessage>) -> store::Result<Vec<Posted>>;

    /// How much waits to be consumed: messages and bytes.
    async fn backlog(&self) -> store::Result<InboxBacklog>;
}

#[cfg(feature = "sqlite")]
#[async_trait]
impl Ingest for lazaret_store_sqlite::InboxLog {
    async fn post(&self, messages: Vec<NewMessage>) -> store::Result<Vec<Posted>> {
        Self::post(self, messages).await
    }

    async fn backlog(&self) -> store::Result<InboxBacklog> {
        let backlog = Self::backlog(self).await?;
        Ok(InboxBacklog { messages: backlog.messages, bytes: backlog.bytes })
    }
}

fn inbox<'a>(app: &'a App, consumer: &str) -> Result<&'a Arc<dyn Ingest>> {
    let missing = || Fault::new(Code::NoInbox, format!("{consumer} has no inbox here"));
    app.inboxes.get(consumer).ok_or_else(missing)
}

pub(crate) async fn backlog(
    State(app): State<App>,
    Name(consumer): Name,
) -> Result<axum::Json<InboxBacklog>> {
    Ok(axum::Json(inbox(&app, &consumer)?.backlog().await?))
}

pub(crate) async fn post(
    State(app): State<App>,
    Name(consumer): Name,
    request: Request<Body>,
) -> Result<Response> {
    let inbox = inbox(&app, &consumer)?;
    let (parts, body) = request.into_parts();
    let mut message = facts(&parts.headers)?;
    message.payload = Some(read(&parts.headers, body, app.options.limits.message_bytes).await?);
    let posted = inbox.post(vec![message]).await?.into_iter().next();
    let posted = posted.ok_or_else(|| Fault::new(Code::Internal, "the inbox gave no answer"))?;
    let answer = answer(posted)?;
    let status = if answer.duplicate { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, axum::Json(answer)).into_response())
}

fn answer(posted: Posted) -> Result<InboxAnswer> {
    let (id, position, duplicate) = match posted {
        Posted::Taken { id, position } => (id, position, false),
        Posted::Known { id, position } => (id, position, true),
        Posted::Full => {
            return Err(Fault::from(Problem::new(Code::InboxFull)).retry_after(COME_BACK));
        }
        Posted::TooLarge => {
            return Err(Fault::new(Code::TooLarge, "it is larger than the whole inbox may be"));
        }
    };
    Ok(InboxAnswer { id: id.to_string(), position: position.to_string(), duplicate })
}

/// What the headers say about a message: Lazaret's own, else those of CloudEvents in binary mode.
fn facts(headers: &HeaderMap) -> Result<NewMessage> {
    let mut message = NewMessage::default();
    let mut kept = Headers::new();
    for (name, value) in headers {
        let name = name.as_str();
        if let Some(own) = name.strip_prefix("lazaret-header-") {
            kept.push(own, Bytes::copy_from_slice(value.as_bytes()));
        } else if is_passed_on(name) {
            kept.push(name, Bytes::from(decoded(name, value.as_bytes())));
        }
    }
    message.headers = kept;
    let raw = |name: &str| headers.get(name).map(|value| decoded(name, value.as_bytes()));
    let text = |own: &str, cloud: &str| {
        let found = raw(own).map(|value| (own, value)).or_else(|| raw(cloud).map(|value| (cloud, value)));
        found.map(|(name, value)| {
            let text = String::from_utf8(value);
            text.map_err(|_| Fault::invalid(name, "it is not UTF-8"))
        })
    };
    message.id = text("lazaret-id", "ce-id").transpose()?.map(MessageId::from);
    if message.id.is_none() {
        message.id = idempotency::key(headers)?.map(MessageId::from);
    }
    if message.id.as_ref().is_some_and(|id| id.as_str().is_empty()) {
        return Err(Fault::invalid("lazaret-id", "the id is empty"));
    }
    message.event_type = text("lazaret-type", "ce-type").transpose()?.map(Into::into);
    message.correlation = text("lazaret-correlation", "ce-correlationid").transpose()?.map(Into::into);
    message.key = raw("lazaret-key").or_else(|| raw("ce-partitionkey")).map(Bytes::from);
    let time = text("lazaret-time", "ce-time").transpose()?;
    let time = time
        .map(|time| time.parse().map_err(|error| Fault::invalid("ce-time", format!("{time:?}: {error}"))));
    message.timestamp = time.transpose()?;
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|given| given.to_str().ok());
    message.content_type = content_type.map(Into::into);
    Ok(message)
}

/// CloudEvents percent-encodes what it puts into headers (its HTTP binding, 3.1.3.2). Lazaret's own are as they stand.
fn decoded(name: &str, value: &[u8]) -> Vec<u8> {
    if name.starts_with("ce-") { percent_decode(value).collect() } else { value.to_vec() }
}

/// Headers that stay with the message: traces, and what CloudEvents says besides the facts that have a place of their own.
fn is_passed_on(name: &str) -> bool {
    let own = ["ce-id", "ce-type", "ce-time", "ce-partitionkey", "ce-correlationid", "ce-specversion"];
    matches!(name, "traceparent" | "tracestate") || (name.starts_with("ce-") && !own.contains(&name))
}

/// Takes one message a line. When there is no room for all, the answer says how many lines are durable.
pub(crate) async fn batch(
    State(app): State<App>,
    Name(consumer): Name,
    request: Request<Body>,
) -> Result<Response> {
    let inbox = inbox(&app, &consumer)?;
    let (parts, body) = request.into_parts();
    let limits = &app.options.limits;
    let body = read(&parts.headers, body, limits.batch_bytes).await?;
    let mut messages = Vec::new();
    for (line, number) in lines(&body).zip(1_u64..) {
        if jsonl::is_blank(&line) {
            continue;
        }
        if line.len() > limits.message_bytes {
            let detail =
                format!("line {number} has {} bytes, the limit is {}", line.len(), limits.message_bytes);
            return Err(Problem::new(Code::TooLarge).with_detail(detail).at(format!("line {number}")).into());
        }
        messages.push(jsonl::message(line));
    }
    let undecodable = messages.iter().map(|message| message.undecodable.is_some()).collect::<Vec<_>>();
    let posted = inbox.post(messages).await?;
    let mut batch = BatchAnswer { taken: 0, duplicates: 0, undecodable: 0, messages: Vec::new() };
    for (posted, undecodable) in posted.into_iter().zip(undecodable) {
        match answer(posted) {
            Ok(answer) => {
                batch.taken += u64::from(!answer.duplicate);
                batch.duplicates += u64::from(answer.duplicate);
                batch.undecodable += u64::from(undecodable);
                batch.messages.push(answer);
            }
            Err(mut fault) => {
                fault.problem.accepted = Some(batch.messages.len() as u64);
                fault.problem.detail =
                    Some(format!("the first {} messages are durable, the rest is not", batch.messages.len()));
                return Err(fault);
            }
        }
    }
    let status = if batch.taken > 0 { StatusCode::ACCEPTED } else { StatusCode::OK };
    Ok((status, axum::Json(batch)).into_response())
}

/// The lines of a text, without their ends. Nothing is copied.
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
    fn lazarets_own_headers_are_read_as_they_stand() {
        let message = facts(&headers(&[
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
        let id = |pairs: &[(&'static str, &[u8])]| facts(&headers(pairs)).unwrap().id;
        assert_eq!(id(&[("idempotency-key", b"k-1")]), Some("k-1".into()));
        assert_eq!(id(&[("idempotency-key", b"k-1"), ("lazaret-id", b"e-1")]), Some("e-1".into()));
        assert_eq!(id(&[("idempotency-key", b"k-1"), ("ce-id", b"c-1")]), Some("c-1".into()));
        assert!(facts(&headers(&[("idempotency-key", b"")])).is_err());
    }

    #[test]
    fn cloud_events_in_binary_mode_are_read_too() {
        let message = facts(&headers(&[
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
    fn without_a_key_there_is_none_and_an_empty_one_is_empty() {
        // I5
        assert_eq!(facts(&headers(&[])).unwrap().key, None);
        assert_eq!(facts(&headers(&[("lazaret-key", b"")])).unwrap().key, Some(Bytes::new()));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for pair in [("lazaret-id", &b""[..]), ("lazaret-id", b"\xff"), ("ce-time", b"yesterday")] {
            assert!(facts(&headers(&[pair])).is_err(), "{pair:?}");
        }
    }

    #[test]
    fn lines_end_as_on_any_system() {
        let text = Bytes::from_static(b"a\r\nb\n\nc");
        assert_eq!(lines(&text).collect::<Vec<_>>(), ["a", "b", "", "c"]);
    }
}
