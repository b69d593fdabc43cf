//! Converts a row of Axon's table to a foreign dead letter.

use bytes::Bytes;
use lazaret_core::letter::Diagnostics;
use lazaret_core::message::Schema;
use lazaret_core::{Message, MessageId, Phase, Position, Reason, Timestamp};
use serde_json::Value;
use tokio_postgres::Row;

use super::layout::{Field, Layout};
use crate::foreign::ForeignLetter;
use crate::java::Exception;
use crate::source::Content;

const FRAMEWORK: &str = "axon";
/// The headers that Axon's own Kafka extension adds to a message.
const AGGREGATE_TYPE: &str = "axon-message-aggregate-type";
const AGGREGATE_ID: &str = "axon-message-aggregate-id";
const AGGREGATE_NUMBER: &str = "axon-message-aggregate-seq";
const METADATA: &str = "axon-metadata";

/// An entry of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: String,
    pub(super) group: String,
    pub(super) sequence: String,
    pub(super) index: i64,
    pub(super) event_id: String,
    pub(super) timestamp: Option<String>,
    pub(super) event_type: String,
    pub(super) revision: Option<String>,
    pub(super) payload: Option<Vec<u8>>,
    pub(super) metadata: Option<Vec<u8>>,
    pub(super) aggregate_type: Option<String>,
    pub(super) aggregate_id: Option<String>,
    pub(super) aggregate_number: Option<i64>,
    pub(super) token_type: Option<String>,
    pub(super) token: Option<Vec<u8>>,
    pub(super) enqueued_at: Option<String>,
    pub(super) last_touched: Option<String>,
    pub(super) processing_started: Option<String>,
    pub(super) cause_type: Option<String>,
    pub(super) cause_message: Option<String>,
    pub(super) diagnostics: Option<Vec<u8>>,
}

impl TryFrom<&Row> for Entry {
    type Error = tokio_postgres::Error;

    fn try_from(row: &Row) -> Result<Self, Self::Error> {
        let text = |field| row.try_get::<_, Option<String>>(Layout::place(field));
        let number = |field| row.try_get::<_, Option<i64>>(Layout::place(field));
        let bytes = |field| row.try_get::<_, Option<Vec<u8>>>(Layout::place(field));
        Ok(Self {
            id: text(Field::Id)?.unwrap_or_default(),
            group: text(Field::Group)?.unwrap_or_default(),
            sequence: text(Field::Sequence)?.unwrap_or_default(),
            index: number(Field::Index)?.unwrap_or_default(),
            event_id: text(Field::EventId)?.unwrap_or_default(),
            timestamp: text(Field::Timestamp)?,
            event_type: text(Field::Type)?.unwrap_or_default(),
            revision: text(Field::Revision)?,
            payload: bytes(Field::Payload)?,
            metadata: bytes(Field::Metadata)?,
            aggregate_type: text(Field::AggregateType)?,
            aggregate_id: text(Field::AggregateId)?,
            aggregate_number: number(Field::AggregateNumber)?,
            token_type: text(Field::TokenType)?,
            token: bytes(Field::Token)?,
            enqueued_at: text(Field::EnqueuedAt)?,
            last_touched: text(Field::LastTouched)?,
            processing_started: text(Field::ProcessingStarted)?,
            cause_type: text(Field::CauseType)?,
            cause_message: text(Field::CauseMessage)?,
            diagnostics: bytes(Field::Diagnostics)?,
        })
    }
}

impl Entry {
    /// Returns the dead letter. `first` is set for the first entry of its sequence, which is the one
    /// that failed. A later entry without a cause never failed itself.
    pub(super) fn decode(self, first: bool) -> Content {
        let Ok(offset) = u64::try_from(self.index) else {
            return Content::Unknown(Some(format!("the sequence index is {}", self.index)));
        };
        let mut warnings = Vec::new();
        let mut message = self.message(offset, &mut warnings);
        let mut context = Diagnostics::new();
        self.describe(&mut message, &mut context, &mut warnings);
        let enqueued_at = time("enqueuedAt", self.enqueued_at.as_deref(), &mut warnings);
        let touched_at = time("lastTouched", self.last_touched.as_deref(), &mut warnings);
        let failed = self.cause_type.is_some() || self.cause_message.is_some();
        let mut letter = match failed || first {
            true => {
                let exception = Exception {
                    class: self.cause_type,
                    message: self
                        .cause_message
                        .or_else(|| (!failed).then(|| "Axon recorded no cause".to_owned())),
                    ..Exception::default()
                };
                let reason = (!failed).then_some(Reason::HANDLER_ERROR);
                let cause = exception.failure(reason, Phase::Handle, |_| false);
                ForeignLetter::new(FRAMEWORK, message, cause)
            }
            false => ForeignLetter::waiting(FRAMEWORK, message),
        };
        if failed {
            (letter.first_failed_at, letter.last_failed_at) = (enqueued_at, touched_at.or(enqueued_at));
        }
        letter.group = Some(self.group);
        letter.written_at = enqueued_at;
        (letter.context, letter.warnings) = (context, warnings);
        Content::Letter(Box::new(letter))
    }

    /// Returns the event as a message. Axon's identifier becomes the id, the sequence becomes the key,
    /// and the index in the sequence becomes the position.
    fn message(&self, offset: u64, warnings: &mut Vec<String>) -> Message {
        let id = match self.event_id.is_empty() {
            false => MessageId::given(self.event_id.as_str().into()),
            true => {
                warnings.push("the event has no identifier".to_owned());
                MessageId::from(format!("axon:~{}", self.id))
            }
        };
        let stream = format!("{FRAMEWORK}:{}", self.group);
        let mut message = Message::new(id, stream, Position::new(0, offset)).with_key(self.sequence.clone());
        // 5.x writes the name and the version of a type to one column.
        let (name, version) = match (self.event_type.rsplit_once('#'), &self.revision) {
            (Some((name, version)), None) => (name, Some(version)),
            (_, revision) => (self.event_type.as_str(), revision.as_deref()),
        };
        message.event_type = Some(name).filter(|name| !name.is_empty()).map(Into::into);
        let version = version.filter(|version| !version.is_empty());
        message.schema = version.map(|version| Box::new(Schema { id: None, version: Some(version.into()) }));
        message.timestamp = time("timestamp", self.timestamp.as_deref(), warnings);
        message.content_type = self.payload.as_deref().and_then(media_type).map(Into::into);
        message.payload = self.payload.clone().map(Bytes::from);
        message
    }

    /// Adds headers and context: metadata, aggregate, token and diagnostics.
    fn describe(&self, message: &mut Message, context: &mut Diagnostics, warnings: &mut Vec<String>) {
        let number = self.aggregate_number.map(|number| number.to_string());
        let headers = [
            (AGGREGATE_TYPE, self.aggregate_type.clone()),
            (AGGREGATE_ID, self.aggregate_id.clone()),
            (AGGREGATE_NUMBER, number),
        ];
        for (name, value) in headers {
            if let Some(value) = value {
                message.headers.push(name, value.into_bytes());
            }
        }
        if let Some(bytes) = &self.metadata {
            match object(bytes) {
                Some(values) => values.into_iter().for_each(|(name, value)| {
                    message.headers.push(format!("{METADATA}-{name}"), value.into_bytes());
                }),
                // A serializer for XML or a binary format wrote the metadata.
                None => message.headers.push(METADATA, bytes.clone()),
            }
        }
        if let Some(bytes) = &self.diagnostics {
            match (object(bytes), std::str::from_utf8(bytes)) {
                (Some(values), _) => values.into_iter().for_each(|(name, value)| {
                    context.insert(format!("axon-diagnostics-{name}"), value);
                }),
                (None, Ok(text)) => {
                    context.insert("axon-diagnostics".to_owned(), text.to_owned());
                }
                (None, Err(_)) => warnings.push("the diagnostics are binary and were not kept".to_owned()),
            }
        }
        let token = self.token.as_deref().map(|token| String::from_utf8_lossy(token).into_owned());
        let more = [
            ("axon-dead-letter-id", Some(self.id.clone())),
            ("axon-token", token),
            ("axon-token-type", self.token_type.clone()),
            // Set while an event processor works on the entry.
            ("axon-processing-started", self.processing_started.clone()),
        ];
        for (name, value) in more {
            if let Some(value) = value {
                context.insert(name.to_owned(), value);
            }
        }
    }
}

/// Parses a time.
fn time(name: &str, text: Option<&str>, warnings: &mut Vec<String>) -> Option<Timestamp> {
    let parsed = text?.parse();
    if parsed.is_err() {
        warnings.push(format!("{name} is no time"));
    }
    parsed.ok()
}

/// Returns the members of a JSON object as text.
fn object(bytes: &[u8]) -> Option<Vec<(String, String)>> {
    let Ok(Value::Object(members)) = serde_json::from_slice(bytes) else { return None };
    let text = |value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    Some(members.into_iter().map(|(name, value)| (name, text(value))).collect())
}

/// Guesses the media type from the payload: Jackson writes JSON, XStream writes XML.
fn media_type(payload: &[u8]) -> Option<&'static str> {
    match payload.trim_ascii_start().first()? {
        b'<' => Some("application/xml"),
        _ => serde_json::from_slice::<serde::de::IgnoredAny>(payload).is_ok().then_some("application/json"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        let text = |text: &str| Some(text.to_owned());
        let bytes = |text: &str| Some(text.as_bytes().to_vec());
        Entry {
            id: "d-1".into(),
            group: "billing".into(),
            sequence: "order-7".into(),
            index: 3,
            event_id: "e-1".into(),
            timestamp: text("2026-03-01T10:00:00.123Z"),
            event_type: "com.example.OrderPlaced#2.0".into(),
            payload: bytes(r#"{"total":12.50}"#),
            metadata: bytes(r#"{"traceId":"t-1","retry":2}"#),
            aggregate_type: text("Order"),
            aggregate_id: text("order-7"),
            aggregate_number: Some(4),
            token: bytes(r#"{"globalIndex":99}"#),
            enqueued_at: text("2026-03-01T10:00:01Z"),
            last_touched: text("2026-03-01T11:00:00Z"),
            cause_type: text("java.lang.IllegalStateException"),
            cause_message: text("no stock"),
            diagnostics: bytes(r#"{"attempt":"3"}"#),
            ..Entry::default()
        }
    }

    fn letter(entry: Entry, first: bool) -> ForeignLetter {
        let Content::Letter(letter) = entry.decode(first) else { panic!("no letter") };
        *letter
    }

    #[test]
    fn an_entry_becomes_the_event_with_its_cause() {
        let letter = letter(entry(), true);
        let message = &letter.message;
        assert_eq!((message.id.as_str(), message.key.as_deref()), ("e-1", Some(&b"order-7"[..])));
        assert_eq!((message.stream.as_str(), message.position.offset), ("axon:billing", 3));
        assert_eq!(message.event_type.as_deref(), Some("com.example.OrderPlaced"));
        assert_eq!(message.schema.as_ref().unwrap().version.as_deref(), Some("2.0"));
        assert_eq!(message.content_type.as_deref(), Some("application/json"));
        assert_eq!(message.payload.as_deref(), Some(&br#"{"total":12.50}"#[..]), "byte for byte");
        let header = |name: &str| message.headers.get_str(name);
        assert_eq!(header("axon-metadata-traceId"), Some("t-1"));
        assert_eq!(header("axon-metadata-retry"), Some("2"));
        assert_eq!(header(AGGREGATE_NUMBER), Some("4"));
        let cause = letter.cause.as_ref().unwrap();
        assert_eq!(
            (cause.error_type.as_str(), cause.message.as_str()),
            ("java.lang.IllegalStateException", "no stock")
        );
        assert_eq!(letter.context["axon-diagnostics-attempt"], "3");
        assert_eq!(letter.context["axon-token"], r#"{"globalIndex":99}"#);
        assert_eq!(letter.last_failed_at, "2026-03-01T11:00:00Z".parse().ok());
        assert!(letter.warnings.is_empty(), "{:?}", letter.warnings);
    }

    #[test]
    fn an_event_behind_the_head_waits_unless_it_failed_itself() {
        let without = Entry { cause_type: None, cause_message: None, ..entry() };
        assert_eq!(letter(without.clone(), false).cause, None);
        assert!(letter(entry(), false).cause.is_some());
        let head = letter(without, true).cause.unwrap();
        assert_eq!((head.reason, head.message.as_str()), (Reason::HANDLER_ERROR, "Axon recorded no cause"));
    }

    #[test]
    fn what_cannot_be_read_is_a_warning_or_unknown() {
        let damaged = Entry {
            event_id: String::new(),
            enqueued_at: Some("yesterday".into()),
            diagnostics: Some(vec![0xff]),
            ..entry()
        };
        let decoded = letter(damaged, true);
        assert_eq!((decoded.message.id.as_str(), decoded.warnings.len()), ("axon:~d-1", 3));
        assert!(matches!(Entry { index: -1, ..entry() }.decode(true), Content::Unknown(Some(_))));
    }

    #[test]
    fn xml_and_binary_values_are_kept_as_they_are() {
        let xml = Entry {
            payload: Some(b"<order/>".to_vec()),
            metadata: Some(b"<meta-data/>".to_vec()),
            diagnostics: Some(b"<meta-data/>".to_vec()),
            event_type: "com.example.OrderPlaced".into(),
            revision: Some("7".into()),
            ..entry()
        };
        let decoded = letter(xml, true);
        assert_eq!(decoded.message.content_type.as_deref(), Some("application/xml"));
        assert_eq!(decoded.message.headers.get_str(METADATA), Some("<meta-data/>"));
        assert_eq!(decoded.context["axon-diagnostics"], "<meta-data/>");
        assert_eq!(decoded.message.schema.unwrap().version.as_deref(), Some("7"));
        let binary = letter(Entry { payload: Some(vec![1, 2]), ..entry() }, true);
        assert_eq!(binary.message.content_type, None);
    }
}
