//! The layout of FlowWarden's dead letters.

use bson::{Bson, DateTime, Document};
use lazaret_core::letter::Letter;
use serde::Serialize;

use super::readable::{ReadableError, diagnostics};
use super::shown::{document_key, full_document, operation_type, resume_token};
use crate::values::date;

/// The fields of a dead letter. All of them are always there; null where there is no value.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeadLetter<'a> {
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

impl<'a> DeadLetter<'a> {
    pub(crate) fn of(letter: &'a Letter) -> Self {
        let message = &*letter.message;
        Self {
            stream_name: message.stream.as_str(),
            operation_type: message.operation.map(operation_type),
            document_key: document_key(message),
            full_document: full_document(message),
            resume_token: message.position.token.as_deref().map(resume_token),
            error: ReadableError::of(letter),
            attempts: i32::try_from(letter.attempts).unwrap_or(i32::MAX),
            status: status(letter),
            first_attempt_at: letter.first_failed_at.map(date),
            last_attempt_at: letter.last_failed_at.map(date),
            created_at: date(letter.enqueued_at),
            expires_at: letter.expires_at.map(date),
            metadata: diagnostics(letter),
        }
    }
}

/// `PENDING` for an open letter, as FlowWarden writes it; else its state.
fn status(letter: &Letter) -> String {
    if letter.state.is_open() { "PENDING".to_owned() } else { letter.state.as_str().to_uppercase() }
}

/// A letter as a dead letter of FlowWarden, with its id.
///
/// ```
/// use lazaret_core::{Letter, Message, Position, QueueName, Timestamp};
/// let message = Message::new("evt-1", "orders", Position::new(0, 0)).with_payload(r#"{"total": 5}"#);
/// let letter = Letter::new(QueueName::of("orders", "orders"), "k".into(), message.into(), Timestamp::UNIX_EPOCH);
/// let document = lazaret_store_mongodb::flowwarden_document(&letter);
/// assert_eq!(document.get_str("streamName").unwrap(), "orders");
/// assert_eq!(document.get_document("fullDocument").unwrap().get_i32("total").unwrap(), 5);
/// ```
pub fn flowwarden_document(letter: &Letter) -> Document {
    let mut document = Document::new();
    document.insert("_id", letter.id.to_string());
    let fields = bson::serialize_to_document(&DeadLetter::of(letter)).expect("its fields are BSON values");
    document.extend(fields);
    document
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use lazaret_core::message::{Message, Operation, Position};
    use lazaret_core::{Failure, LetterState, QueueName, Reason, Timestamp};

    use super::*;

    #[test]
    fn a_letter_has_every_field_of_a_dead_letter_of_flowwarden() {
        // Seed 001, `FailedEvent`.
        let message = Message::new("m", "orders", Position::new(0, 0));
        let mut message = message.with_key(r#"{"_id":7}"#).with_payload(r#"{"total": 5}"#);
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
            "_id": letter.id.to_string(),
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
        assert_eq!(flowwarden_document(&letter), expected);
        // What is left out, or does not expire, is null: seed 000's table of the schema.
        letter.message = std::sync::Arc::new(Message { payload: None, ..(*letter.message).clone() });
        letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom"));
        letter.expires_at = None;
        let minimal = flowwarden_document(&letter);
        for null in [
            minimal.get("fullDocument"),
            minimal.get("expiresAt"),
            minimal.get_document("error").unwrap().get("stackTrace"),
        ] {
            assert_eq!(null, Some(&Bson::Null), "{minimal}");
        }
        letter.state = LetterState::Resolved;
        assert_eq!(flowwarden_document(&letter).get_str("status").unwrap(), "RESOLVED");
    }
}
