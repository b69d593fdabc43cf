//! The fields of a letter that people and other tools read: those of FlowWarden's dead letters. Lazaret writes them and never reads them.

use bson::{Binary, Bson, DateTime, Document, doc};
use lazaret_core::letter::Letter;
use lazaret_core::message::{Message, Operation};
use serde::Serialize;

use crate::values::date;

/// A payload above this size is not shown as a document; its bytes are kept all the same.
const SHOWN_BYTES: usize = 256 << 10;

/// A document that is nested deeper is not shown: MongoDB takes 100 levels, and the letter is a few levels deep itself.
const SHOWN_LEVELS: usize = 64;

/// The readable fields.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Readable<'a> {
    stream_name: &'a str,
    operation_type: Option<&'static str>,
    document_key: Option<Bson>,
    full_document: Option<Document>,
    resume_token: Option<Bson>,
    error: Option<ReadableError<'a>>,
    attempts: i32,
    status: String,
    first_attempt_at: Option<DateTime>,
    last_attempt_at: Option<DateTime>,
    created_at: DateTime,
    expires_at: Option<DateTime>,
    metadata: Document,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReadableError<'a> {
    r#type: &'a str,
    message: &'a str,
    stack_trace: Option<&'a str>,
}

impl<'a> Readable<'a> {
    pub(crate) fn of(letter: &'a Letter) -> Self {
        let message = &*letter.message;
        let error = letter.cause.as_ref().map(|cause| ReadableError {
            r#type: beginning(&cause.error_type),
            message: beginning(&cause.message),
            stack_trace: cause.backtrace.as_deref().map(beginning),
        });
        let mut room = SHOWN_BYTES;
        let fits = |(name, text): &(&String, &String)| {
            let left = room.checked_sub(name.len() + text.len());
            room = left.unwrap_or(room);
            left.is_some()
        };
        let metadata = letter.diagnostics.iter().filter(fits);
        let metadata = metadata.map(|(name, text)| (shown_name(name), Bson::from(text.as_str()))).collect();
        Self {
            stream_name: message.stream.as_str(),
            operation_type: message.operation.map(operation_type),
            document_key: document_key(message),
            full_document: message.payload.as_deref().and_then(|payload| full_document(message, payload)),
            resume_token: message.position.token.as_deref().map(resume_token),
            error,
            attempts: i32::try_from(letter.attempts).unwrap_or(i32::MAX),
            status: status(letter),
            first_attempt_at: letter.first_failed_at.map(date),
            last_attempt_at: letter.last_failed_at.map(date),
            created_at: date(letter.enqueued_at),
            expires_at: letter.expires_at.map(date),
            metadata,
        }
    }
}

/// The beginning of a text, as much of it as is shown. The letter keeps all of it.
fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHOWN_BYTES)]
}

/// `PENDING` for an open letter, as FlowWarden writes it; else its state.
fn status(letter: &Letter) -> String {
    if letter.state.is_open() { "PENDING".to_owned() } else { letter.state.as_str().to_uppercase() }
}

fn operation_type(operation: Operation) -> &'static str {
    match operation {
        Operation::Insert => "INSERT",
        Operation::Update => "UPDATE",
        Operation::Replace => "REPLACE",
        Operation::Delete => "DELETE",
        Operation::Drop => "DROP",
        Operation::DropDatabase => "DROP_DATABASE",
        Operation::Rename => "RENAME",
        Operation::Invalidate => "INVALIDATE",
        _ => "OTHER",
    }
}

/// The key as a document: as it is if it is one, else as the `_id` of one.
fn document_key(message: &Message) -> Option<Bson> {
    let key = message.key.as_deref()?;
    if key.len() > SHOWN_BYTES {
        return None;
    }
    let value =
        as_document(key).map_or_else(|| Bson::Document(doc! { "_id": text_or_bytes(key) }), Bson::Document);
    Some(value)
}

/// The payload as a document; of a change event, the document after the change.
fn full_document(message: &Message, payload: &[u8]) -> Option<Document> {
    if payload.len() > SHOWN_BYTES {
        return None;
    }
    let is_bson = message.content_type.as_deref().is_some_and(|content| content.contains("bson"));
    let mut document = if is_bson { read_bson(payload) } else { read_json(payload) }?;
    // A position with a token, and the fields of an event of a change stream.
    let is_change = message.position.token.is_some()
        && document.get_str("operationType").is_ok()
        && document.get_document("_id").is_ok_and(|token| token.contains_key("_data"));
    if is_change {
        document = match document.remove("fullDocument")? {
            Bson::Document(after) => after,
            _ => return None,
        };
    }
    Some(document).filter(|document| can_be_shown(document, SHOWN_LEVELS))
}

fn resume_token(token: &[u8]) -> Bson {
    as_document(token).map_or_else(|| Bson::Document(doc! { "_data": text_or_bytes(token) }), Bson::Document)
}

fn text_or_bytes(bytes: &[u8]) -> Bson {
    match std::str::from_utf8(bytes) {
        Ok(text) => Bson::from(text),
        Err(_) => Bson::Binary(Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: bytes.to_vec() }),
    }
}

fn as_document(bytes: &[u8]) -> Option<Document> {
    let document = read_json(bytes).or_else(|| read_bson(bytes));
    document.filter(|document| can_be_shown(document, SHOWN_LEVELS))
}

/// A JSON object, extended JSON included.
fn read_json(bytes: &[u8]) -> Option<Document> {
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return None;
    }
    serde_json::from_slice(bytes).ok()
}

fn read_bson(bytes: &[u8]) -> Option<Document> {
    let length = <[u8; 4]>::try_from(bytes.get(..4)?).ok().map(i32::from_le_bytes)?;
    if usize::try_from(length) != Ok(bytes.len()) {
        return None;
    }
    Document::from_reader(bytes).ok()
}

/// Whether MongoDB takes the names and the depth of a document.
fn can_be_shown(document: &Document, levels: usize) -> bool {
    let value = |value: &Bson| match value {
        Bson::Document(inner) => can_be_shown(inner, levels - 1),
        Bson::Array(values) => are_shown(values, levels - 1),
        _ => true,
    };
    levels > 0
        && document.iter().all(|(name, inner)| !name.starts_with('$') && !name.contains('\0') && value(inner))
}

fn are_shown(values: &[Bson], levels: usize) -> bool {
    levels > 0
        && values.iter().all(|value| match value {
            Bson::Document(inner) => can_be_shown(inner, levels - 1),
            Bson::Array(inner) => are_shown(inner, levels - 1),
            _ => true,
        })
}

/// A name that MongoDB takes.
fn shown_name(name: &str) -> String {
    name.replace(['.', '$', '\0'], "_")
}

#[cfg(test)]
mod tests {
    use lazaret_core::message::Position;
    use lazaret_core::{Failure, LetterState, QueueName, Reason, Timestamp};

    use super::*;

    fn message() -> Message {
        Message::new("m", "orders", Position::new(0, 0))
    }

    #[test]
    fn a_letter_has_every_field_of_a_dead_letter_of_flowwarden() {
        // Seed 001, `FailedEvent`.
        let mut message = message().with_key(r#"{"_id":7}"#).with_payload(r#"{"total": 5}"#);
        message.operation = Some(Operation::Update);
        message.position.token = Some(r#"{"_data":"82"}"#.into());
        let time = |second| Timestamp::from_second(second).unwrap();
        let mut letter = Letter::new(QueueName::of("orders", "orders"), "k".into(), message.into(), time(3));
        letter.state = LetterState::Dead;
        letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom").with_backtrace("at x"));
        letter.attempts = 4;
        (letter.first_failed_at, letter.last_failed_at) = (Some(time(1)), Some(time(2)));
        letter.expires_at = Some(time(4));
        letter.diagnostics.insert("gateway.eu".into(), "slow".into());
        let expected = doc! {
            "streamName": "orders",
            "operationType": "UPDATE",
            "documentKey": { "_id": 7 },
            "fullDocument": { "total": 5 },
            "resumeToken": { "_data": "82" },
            "error": { "type": "HttpError", "message": "boom", "stackTrace": "at x" },
            "attempts": 4,
            "status": "PENDING",
            "firstAttemptAt": date(time(1)),
            "lastAttemptAt": date(time(2)),
            "createdAt": date(time(3)),
            "expiresAt": date(time(4)),
            "metadata": { "gateway_eu": "slow" },
        };
        assert_eq!(bson::serialize_to_document(&Readable::of(&letter)).unwrap(), expected);
        // What is left out, or does not expire, is null: seed 000's table of the schema.
        letter.message = std::sync::Arc::new(Message { payload: None, ..(*letter.message).clone() });
        letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom"));
        letter.expires_at = None;
        let minimal = bson::serialize_to_document(&Readable::of(&letter)).unwrap();
        for null in [
            minimal.get("fullDocument"),
            minimal.get("expiresAt"),
            minimal.get_document("error").unwrap().get("stackTrace"),
        ] {
            assert_eq!(null, Some(&Bson::Null), "{minimal}");
        }
        letter.state = LetterState::Resolved;
        let closed = bson::serialize_to_document(&Readable::of(&letter)).unwrap();
        assert_eq!(closed.get_str("status").unwrap(), "RESOLVED");
    }

    #[test]
    fn a_json_object_is_shown_and_other_payloads_are_not() {
        let shown = |payload: &str| full_document(&message(), payload.as_bytes());
        assert_eq!(shown(r#" {"a": {"b": [1, "x"]}}"#), Some(doc! { "a": { "b": [1, "x"] } }));
        assert_eq!(
            shown(r#"{"_id": {"$oid": "5f0000000000000000000000"}}"#)
                .unwrap()
                .get_object_id("_id")
                .unwrap()
                .to_hex(),
            "5f0000000000000000000000"
        );
        for payload in ["", "[1]", "7", "{", r#"{"a\u0000b": 1}"#, r#"{"a": {"$where": 1}}"#, "\u{0}"] {
            assert_eq!(shown(payload), None, "{payload:?}");
        }
        let deep = format!("{}1{}", r#"{"a":"#.repeat(100), "}".repeat(100));
        assert_eq!(shown(&deep), None);
        let deep = format!(r#"{{"a":{}1{}}}"#, "[".repeat(100), "]".repeat(100));
        assert_eq!(shown(&deep), None);
        assert_eq!(shown(&format!(r#"{{"a": "{}"}}"#, "x".repeat(SHOWN_BYTES))), None);
    }

    #[test]
    fn of_a_change_event_the_document_after_the_change_is_shown() {
        let mut message = message();
        message.position.token = Some(r#"{"_data":"82"}"#.into());
        let shown = |payload: &str| full_document(&message, payload.as_bytes());
        let event = r#"{"_id": {"_data": "82"}, "operationType": "update", "fullDocument": {"_id": 7, "total": {"$numberInt": "-5"}},
            "updateDescription": {"updatedFields": {"$a.b": 1}}}"#;
        assert_eq!(shown(event), Some(doc! { "_id": 7, "total": -5 }));
        assert_eq!(
            shown(r#"{"_id": {"_data": "82"}, "operationType": "delete", "documentKey": {"_id": 7}}"#),
            None
        );
        assert_eq!(
            shown(r#"{"fullDocument": {"a": 1}}"#),
            Some(doc! { "fullDocument": { "a": 1 } }),
            "not an event"
        );
    }

    #[test]
    fn of_large_texts_a_part_is_shown() {
        // A document ends at 16 MiB, and the letter is in it a second time.
        let mut letter =
            Letter::new(QueueName::of("a", "b"), "k".into(), message().into(), Timestamp::UNIX_EPOCH);
        let large = "é".repeat(SHOWN_BYTES);
        let mut cause = Failure::new(Reason::TIMEOUT, "HttpError", "boom");
        (cause.message, cause.backtrace) = (large.clone(), Some(large.clone()));
        letter.cause = Some(cause);
        letter.diagnostics.insert("large".into(), large);
        letter.diagnostics.insert("small".into(), "x".into());
        let shown = bson::serialize_to_document(&Readable::of(&letter)).unwrap();
        let error = shown.get_document("error").unwrap();
        assert_eq!(error.get_str("message").unwrap(), "é".repeat(SHOWN_BYTES / 2));
        assert_eq!(error.get_str("stackTrace").unwrap().len(), SHOWN_BYTES);
        assert_eq!(shown.get_document("metadata").unwrap(), &doc! { "small": "x" });
    }

    #[test]
    fn a_bson_document_is_shown() {
        let document = doc! { "_id": 7, "name": "x" };
        let mut message = message();
        message.content_type = Some("application/bson".into());
        assert_eq!(full_document(&message, &document.to_vec().unwrap()), Some(document));
    }

    #[test]
    fn a_key_is_a_document_or_the_id_of_one() {
        let key = |key: &[u8]| document_key(&message().with_key(key.to_vec()));
        assert_eq!(key(br#"{"_id": 7}"#), Some(Bson::Document(doc! { "_id": 7 })));
        assert_eq!(key(b"order-7"), Some(Bson::Document(doc! { "_id": "order-7" })));
        assert_eq!(document_key(&message()), None);
    }
}
