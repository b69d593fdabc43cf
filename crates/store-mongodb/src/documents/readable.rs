//! The fields of a letter that people and other tools read. Lazaret writes them and never reads them.

use bson::raw::CStr;
use bson::{Bson, DateTime, Document, cstr};
use lazaret_core::letter::Letter;
use serde::Serialize;

use super::flowwarden::DeadLetter;
use super::shown::{SHOWN_BYTES, document_key, field_name, full_document};
use crate::layout::Layout;
use crate::values::date;

/// The readable fields, in a layout.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Readable<'a> {
    Lazaret(Box<Fields<'a>>),
    FlowWarden(Box<DeadLetter<'a>>),
}

impl<'a> Readable<'a> {
    pub(crate) fn of(letter: &'a Letter, layout: Layout) -> Self {
        match layout {
            Layout::Lazaret => Self::Lazaret(Box::new(Fields::of(letter))),
            Layout::FlowWarden => Self::FlowWarden(Box::new(DeadLetter::of(letter))),
        }
    }
}

/// The name of the field with the state of a purged letter, and its value.
pub(crate) fn purged(layout: Layout) -> (&'static CStr, &'static str) {
    match layout {
        Layout::Lazaret => (cstr!("state"), "purged"),
        Layout::FlowWarden => (cstr!("status"), "PURGED"),
    }
}

/// The fields of Lazaret's own layout, with the words of its API.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Fields<'a> {
    queue: &'a str,
    stream: &'a str,
    state: &'static str,
    reason: Option<&'a str>,
    phase: Option<&'static str>,
    error: Option<ReadableError<'a>>,
    message_id: &'a str,
    r#type: Option<&'a str>,
    key: Option<Bson>,
    payload: Option<Document>,
    attempts: i64,
    first_failed_at: Option<DateTime>,
    last_failed_at: Option<DateTime>,
    enqueued_at: DateTime,
    expires_at: Option<DateTime>,
    owner: Option<&'a str>,
    diagnostics: Document,
}

impl<'a> Fields<'a> {
    fn of(letter: &'a Letter) -> Self {
        let (message, cause) = (&*letter.message, letter.cause.as_ref());
        Self {
            queue: letter.queue.as_str(),
            stream: message.stream.as_str(),
            state: letter.state.as_str(),
            reason: cause.map(|cause| cause.reason.as_str()),
            phase: cause.map(|cause| cause.phase.as_str()),
            error: ReadableError::of(letter),
            message_id: message.id.as_str(),
            r#type: message.event_type.as_deref(),
            key: document_key(message),
            payload: full_document(message),
            attempts: i64::from(letter.attempts),
            first_failed_at: letter.first_failed_at.map(date),
            last_failed_at: letter.last_failed_at.map(date),
            enqueued_at: date(letter.enqueued_at),
            expires_at: letter.expires_at.map(date),
            owner: letter.owner.as_deref(),
            diagnostics: diagnostics(letter),
        }
    }
}

/// The cause of a letter, in every layout.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReadableError<'a> {
    r#type: &'a str,
    message: &'a str,
    stack_trace: Option<&'a str>,
}

impl<'a> ReadableError<'a> {
    pub(super) fn of(letter: &'a Letter) -> Option<Self> {
        letter.cause.as_ref().map(|cause| Self {
            r#type: beginning(&cause.error_type),
            message: beginning(&cause.message),
            stack_trace: cause.backtrace.as_deref().map(beginning),
        })
    }
}

/// The beginning of a text, as much of it as is shown. The letter keeps all of it.
fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHOWN_BYTES)]
}

/// The diagnostics, under names that queries can reach, as many as fit.
pub(super) fn diagnostics(letter: &Letter) -> Document {
    let mut room = SHOWN_BYTES;
    let fits = |(name, text): &(&String, &String)| {
        let left = room.checked_sub(name.len() + text.len());
        room = left.unwrap_or(room);
        left.is_some()
    };
    let entries = letter.diagnostics.iter().filter(fits);
    entries.map(|(name, text)| (field_name(name), Bson::from(text.as_str()))).collect()
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use lazaret_core::message::{Message, Position};
    use lazaret_core::{Failure, LetterState, QueueName, Reason, Timestamp};

    use super::*;

    #[test]
    fn a_letter_has_the_words_of_the_api() {
        let message = Message::new("m-1", "orders", Position::new(0, 0)).with_type("OrderPlaced");
        let message = message.with_key("order-7").with_payload(r#"{"total": 5}"#);
        let time = |second| Timestamp::from_second(second).unwrap();
        let mut letter = Letter::new(QueueName::of("shop", "mail"), "k".into(), message.into(), time(3));
        letter.state = LetterState::Dead;
        letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom").with_backtrace("at x"));
        letter.attempts = 4;
        (letter.first_failed_at, letter.last_failed_at) = (Some(time(1)), Some(time(2)));
        letter.owner = Some("shop-team".into());
        letter.diagnostics.insert("gateway.eu".into(), "slow".into());
        let expected = doc! {
            "queue": "shop/mail",
            "stream": "orders",
            "state": "dead",
            "reason": "TIMEOUT",
            "phase": "handle",
            "error": { "type": "HttpError", "message": "boom", "stackTrace": "at x" },
            "messageId": "m-1",
            "type": "OrderPlaced",
            "key": { "_id": "order-7" },
            "payload": { "total": 5 },
            "attempts": 4_i64,
            "firstFailedAt": date(time(1)),
            "lastFailedAt": date(time(2)),
            "enqueuedAt": date(time(3)),
            "expiresAt": null,
            "owner": "shop-team",
            "diagnostics": { "gateway_eu": "slow" },
        };
        let readable = bson::serialize_to_document(&Readable::of(&letter, Layout::Lazaret)).unwrap();
        assert_eq!(readable, expected);
    }

    #[test]
    fn of_large_texts_a_part_is_shown() {
        // A document ends at 16 MiB, and the letter is in it a second time.
        let message = Message::new("m-1", "orders", Position::new(0, 0));
        let mut letter =
            Letter::new(QueueName::of("a", "b"), "k".into(), message.into(), Timestamp::UNIX_EPOCH);
        let large = "é".repeat(SHOWN_BYTES);
        let mut cause = Failure::new(Reason::TIMEOUT, "HttpError", "boom");
        (cause.message, cause.backtrace) = (large.clone(), Some(large.clone()));
        letter.cause = Some(cause);
        letter.diagnostics.insert("large".into(), large);
        letter.diagnostics.insert("small".into(), "x".into());
        for (layout, diagnostics) in [(Layout::Lazaret, "diagnostics"), (Layout::FlowWarden, "metadata")] {
            let shown = bson::serialize_to_document(&Readable::of(&letter, layout)).unwrap();
            let error = shown.get_document("error").unwrap();
            assert_eq!(error.get_str("message").unwrap(), "é".repeat(SHOWN_BYTES / 2));
            assert_eq!(error.get_str("stackTrace").unwrap().len(), SHOWN_BYTES);
            assert_eq!(shown.get_document(diagnostics).unwrap(), &doc! { "small": "x" });
        }
    }

    #[test]
    fn each_layout_names_the_state_of_a_purged_letter_as_it_names_that_of_others() {
        let letter = Letter::new(
            QueueName::of("shop", "mail"),
            "k".into(),
            Message::new("m-1", "orders", Position::new(0, 0)).into(),
            Timestamp::UNIX_EPOCH,
        );
        for layout in Layout::ALL {
            let readable = bson::serialize_to_document(&Readable::of(&letter, layout)).unwrap();
            assert!(readable.contains_key(purged(layout).0.as_str()), "{layout}");
        }
    }
}
