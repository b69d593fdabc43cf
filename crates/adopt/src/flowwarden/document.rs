//! Decodes documents of FlowWarden's dead letters.
//!
//! Checked against FlowWarden 1.0.0-rc.6. It writes every field, null where there is no value. All times
//! are the time of the write. The document key went through JSON, which turns a small 64-bit number into
//! a 32-bit one. If the full document has the same field, the type is restored from there.

use std::collections::BTreeSet;

use lazaret_core::letter::{CONTEXT_VALUE_LIMIT, Diagnostics};
use lazaret_core::{Phase, Reason, Timestamp};
use lazaret_source_mongodb::MongoSourceOptions;
use lazaret_source_mongodb::bson::{Bson, Document, RawDocument, doc};

use crate::foreign::ForeignLetter;
use crate::java::{Exception, truncate};
use crate::source::Content;

/// The name of the framework in diagnostics and ids.
const FRAMEWORK: &str = "flowwarden";
/// The error type of an event that a handler dead-lettered itself.
const MANUAL: &str = "ManualDlq";
/// The maximum number of metadata entries in the context of a letter (I7).
const METADATA_LIMIT: usize = 64;

/// The status of a pending dead letter. FlowWarden writes no other status.
pub(super) const PENDING: &str = "PENDING";
/// The statuses of dead letters that tools working on the collection have dealt with.
const CLOSED: [&str; 6] = ["REPROCESSED", "RESOLVED", "EVICTED", "SKIPPED", "EXPIRED", "PURGED"];

/// Decodes documents.
#[derive(Clone, Debug)]
pub(super) struct Decoder {
    pub(super) options: MongoSourceOptions,
    /// The collection that the stream watches. FlowWarden does not record it.
    pub(super) namespace: (String, String),
    /// The statuses that are adopted.
    pub(super) statuses: BTreeSet<String>,
}

impl Decoder {
    /// Returns the content of a document.
    pub(super) fn decode(&self, raw: &RawDocument) -> Content {
        let decoded = Document::try_from(raw).map_err(|error| format!("invalid BSON: {error}"));
        match decoded.and_then(|document| self.document(document)) {
            Ok(content) => content,
            Err(reason) => Content::Unknown(Some(reason)),
        }
    }

    fn document(&self, mut document: Document) -> Result<Content, String> {
        let status = required(&document, "status")?;
        let operation = operation(&required(&document, "operationType")?)?;
        let stream = required(&document, "streamName")?;
        if !self.statuses.contains(&status) {
            return match CLOSED.contains(&status.as_str()) {
                true => Ok(Content::Closed),
                false => Err(format!("unknown status `{status}`")),
            };
        }
        let id = match document.remove("_id") {
            Some(Bson::String(id)) => id,
            Some(other) => other.to_string(),
            None => return Err("no `_id`".to_owned()),
        };
        let mut fields = Fields { document, warnings: Vec::new() };
        let written_at = fields.time("createdAt");
        let event = self.event(&mut fields, operation);
        let placed_at = written_at.unwrap_or(Timestamp::UNIX_EPOCH);
        let message = self.options.message_of(event, &format!("{FRAMEWORK}/{id}"), placed_at);
        let message = message.map_err(|error| format!("invalid event: {error}"))?;
        let cause = fields.cause();
        let letter = ForeignLetter {
            attempts: fields.attempts(),
            first_failed_at: fields.time("firstAttemptAt"),
            last_failed_at: fields.time("lastAttemptAt"),
            group: Some(stream),
            written_at,
            expires_at: fields.time("expiresAt"),
            context: fields.metadata(),
            payload_is_rebuilt: true,
            ..ForeignLetter::new(FRAMEWORK, message, cause)
        };
        Ok(Content::Letter(Box::new(ForeignLetter { warnings: fields.warnings, ..letter })))
    }

    /// Restores the change event from the known fields.
    fn event(&self, fields: &mut Fields, operation: &str) -> Document {
        let mut event = Document::new();
        let token = fields.document("resumeToken").filter(|token| token.contains_key("_data"));
        match token {
            Some(token) => drop(event.insert("_id", token)),
            None => fields.warn("no resume token: the id and the position are made of the record"),
        }
        event.insert("operationType", operation);
        let full = fields.document("fullDocument");
        if full.is_none() && matches!(operation, "insert" | "replace") {
            fields.warn("the document was not kept");
        }
        let (database, collection) = &self.namespace;
        event.insert("ns", doc! { "db": database, "coll": collection });
        if let Some(key) = fields.document("documentKey") {
            event.insert("documentKey", with_types_of(key, full.as_ref()));
        }
        if let Some(full) = full {
            event.insert("fullDocument", full);
        }
        event
    }
}

/// Returns the document key with the types that its fields have in the full document.
fn with_types_of(key: Document, full: Option<&Document>) -> Document {
    let typed = |(name, value): (String, Bson)| {
        let same = full.and_then(|full| full.get(&name)).filter(|own| is_same_number(own, &value));
        let value = same.cloned().unwrap_or(value);
        (name, value)
    };
    key.into_iter().map(typed).collect()
}

fn is_same_number(a: &Bson, b: &Bson) -> bool {
    let whole = |value: &Bson| match value {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        _ => None,
    };
    whole(a).is_some_and(|number| whole(b) == Some(number))
}

/// Returns a text that every document of FlowWarden has.
fn required(document: &Document, name: &str) -> Result<String, String> {
    match document.get_str(name) {
        Ok(text) if !text.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("no `{name}`")),
    }
}

/// Returns the server's name of an operation.
fn operation(name: &str) -> Result<&'static str, String> {
    Ok(match name {
        "INSERT" => "insert",
        "UPDATE" => "update",
        "REPLACE" => "replace",
        "DELETE" => "delete",
        "DROP" => "drop",
        "DROP_DATABASE" => "dropDatabase",
        "RENAME" => "rename",
        "INVALIDATE" => "invalidate",
        other => return Err(format!("unknown operation `{other}`")),
    })
}

/// Reads fields that may be missing, and collects warnings about fields of a different type.
struct Fields {
    document: Document,
    warnings: Vec<String>,
}

impl Fields {
    fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }

    /// Takes a field and reads it. A value of a different type causes a warning.
    fn read<T>(&mut self, name: &str, read: impl FnOnce(Bson) -> Option<T>) -> Option<T> {
        let value = self.document.remove(name).filter(|value| *value != Bson::Null)?;
        let read = read(value);
        if read.is_none() {
            self.warn(format!("`{name}` has another type"));
        }
        read
    }

    fn document(&mut self, name: &str) -> Option<Document> {
        self.read(name, |value| match value {
            Bson::Document(document) => Some(document),
            _ => None,
        })
    }

    fn time(&mut self, name: &str) -> Option<Timestamp> {
        self.read(name, |value| Timestamp::from_millisecond(value.as_datetime()?.timestamp_millis()).ok())
    }

    /// Returns the number of attempts, at least one. FlowWarden's reactive runtime counts from zero.
    fn attempts(&mut self) -> u32 {
        let attempts = self.read("attempts", |value| match value {
            Bson::Int32(number) => Some(i64::from(number)),
            Bson::Int64(number) => Some(number),
            _ => None,
        });
        attempts.map_or(1, |attempts| u32::try_from(attempts.max(1)).unwrap_or(u32::MAX))
    }

    fn cause(&mut self) -> lazaret_core::Failure {
        let error = self.document("error");
        if error.is_none() {
            self.warn("no error");
        }
        let text = |name: &str| Some(error.as_ref()?.get_str(name).ok()?.to_owned());
        let exception = Exception {
            class: text("type"),
            message: text("message"),
            root: None,
            trace: text("stackTrace"),
        };
        let reason = (exception.class.as_deref() == Some(MANUAL)).then_some(Reason::MANUAL);
        exception.failure(reason, Phase::Handle, |_| false)
    }

    /// Returns the metadata that handlers added, in readable form.
    fn metadata(&mut self) -> Diagnostics {
        let metadata = self.document("metadata").unwrap_or_default();
        let shown = |(name, value): (String, Bson)| {
            let text = match value {
                Bson::String(text) => text,
                other => other.to_string(),
            };
            (format!("metadata.{name}"), truncate(&text, CONTEXT_VALUE_LIMIT).to_owned())
        };
        metadata.into_iter().take(METADATA_LIMIT).map(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::Operation;
    use lazaret_source_mongodb::bson::{DateTime, RawDocumentBuf};

    use super::*;

    const TOKEN: &str = "826AFB78B2000000162B042C0100296E";

    fn decoder() -> Decoder {
        Decoder {
            options: MongoSourceOptions::collection("mongodb://localhost", "shop", "orders"),
            namespace: ("shop".into(), "orders".into()),
            statuses: [PENDING.to_owned()].into(),
        }
    }

    /// Returns a document as FlowWarden writes it.
    fn written() -> Document {
        doc! {
            "_id": "b6f9e1a4-0b1c-4d2e-8f3a-111111111111", "streamName": "order-stream", "operationType": "INSERT",
            "documentKey": { "_id": 7 }, "fullDocument": { "_id": 7_i64, "total": 12.5 },
            "resumeToken": { "_data": TOKEN },
            "error": {
                "type": "java.lang.IllegalStateException", "message": "stock is negative",
                "stackTrace": "java.lang.IllegalStateException: stock is negative\n\tat shop.Stock.take(Stock.java:7)\n\
                    Caused by: java.net.SocketTimeoutException: Read timed out\n\tat shop.Http.get(Http.java:9)\n",
            },
            "attempts": 3, "status": "PENDING",
            "firstAttemptAt": DateTime::from_millis(1_000_500), "lastAttemptAt": DateTime::from_millis(1_000_500),
            "createdAt": DateTime::from_millis(1_000_500), "expiresAt": DateTime::from_millis(9_000_000),
            "metadata": { "tenant": "acme", "tries": 2 },
        }
    }

    fn decode(document: &Document) -> Content {
        decoder().decode(&RawDocumentBuf::try_from(document).unwrap())
    }

    fn letter(document: &Document) -> ForeignLetter {
        match decode(document) {
            Content::Letter(letter) => *letter,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_field_of_flowwarden_reaches_the_letter() {
        let letter = letter(&written());
        let message = &letter.message;
        assert_eq!((message.id.as_str(), message.stream.as_str()), (&*format!("orders:{TOKEN}"), "orders"));
        assert_eq!(
            message.key.as_deref(),
            Some(&br#"{"_id":{"$numberLong":"7"}}"#[..]),
            "the type is restored"
        );
        assert_eq!(message.operation, Some(Operation::Insert));
        let payload = std::str::from_utf8(message.payload.as_deref().unwrap()).unwrap();
        assert!(
            payload
                .contains(r#""fullDocument":{"_id":{"$numberLong":"7"},"total":{"$numberDouble":"12.5"}}"#)
        );
        assert_eq!(message.headers.get_str("mongodb-collection"), Some("orders"));
        let cause = letter.cause.as_ref().unwrap();
        assert_eq!(cause.error_type, "java.lang.IllegalStateException");
        assert_eq!((cause.message.as_str(), &cause.reason), ("stock is negative", &Reason::HANDLER_ERROR));
        assert_eq!(cause.chain[0].error_type.as_deref(), Some("java.net.SocketTimeoutException"));
        assert!(cause.backtrace.as_deref().unwrap().contains("Stock.java:7"));
        let millis = |time: Option<Timestamp>| time.unwrap().as_millisecond();
        assert_eq!((letter.attempts, millis(letter.first_failed_at)), (3, 1_000_500));
        assert_eq!((millis(letter.last_failed_at), millis(letter.written_at)), (1_000_500, 1_000_500));
        assert_eq!((millis(letter.expires_at), letter.group.as_deref()), (9_000_000, Some("order-stream")));
        assert_eq!((&*letter.context["metadata.tenant"], &*letter.context["metadata.tries"]), ("acme", "2"));
        assert_eq!(letter.warnings, [] as [&str; 0]);
    }

    #[test]
    fn the_key_of_a_shard_keeps_its_fields_and_gets_their_types_back() {
        let mut sharded = written();
        sharded.insert("documentKey", doc! { "region": 1, "_id": 7 });
        sharded.insert("fullDocument", doc! { "_id": 7_i64, "region": 1_i64 });
        let key = letter(&sharded).message.key.unwrap();
        assert_eq!(&key[..], br#"{"region":{"$numberLong":"1"},"_id":{"$numberLong":"7"}}"#);
    }

    #[test]
    fn fields_that_are_null_are_no_damage_where_flowwarden_leaves_them_null() {
        let mut deleted = written();
        deleted.insert("operationType", "DELETE");
        for name in ["fullDocument", "expiresAt"] {
            deleted.insert(name, Bson::Null);
        }
        deleted.insert("error", doc! { "type": "E", "message": Bson::Null, "stackTrace": Bson::Null });
        deleted.insert("metadata", Document::new());
        let letter = letter(&deleted);
        assert_eq!((letter.warnings.len(), letter.expires_at, letter.context.len()), (0, None, 0));
        let cause = letter.cause.unwrap();
        assert_eq!((cause.error_type.as_str(), cause.backtrace), ("E", None));
        assert_eq!(letter.message.operation, Some(Operation::Delete));
    }

    #[test]
    fn a_document_without_a_token_has_an_id_that_no_live_message_has() {
        let mut bare = written();
        bare.insert("resumeToken", Bson::Null);
        let letter = letter(&bare);
        assert_eq!(letter.message.id.as_str(), "orders:~flowwarden/b6f9e1a4-0b1c-4d2e-8f3a-111111111111");
        assert_eq!(letter.warnings.len(), 1);
        assert_eq!(letter.message.position.offset >> 31, 1_000, "the time of the record");
    }

    #[test]
    fn what_is_missing_or_of_another_type_is_a_warning() {
        let mut damaged = written();
        damaged.insert("attempts", "three");
        damaged.insert("createdAt", "yesterday");
        damaged.insert("fullDocument", "gone");
        damaged.insert("error", Bson::Null);
        let decoded = letter(&damaged);
        assert_eq!((decoded.attempts, decoded.written_at), (1, None));
        assert_eq!(decoded.warnings.len(), 5, "{:?}", decoded.warnings);
        let mut left_out = written();
        left_out.insert("fullDocument", Bson::Null);
        assert_eq!(letter(&left_out).warnings, ["the document was not kept"]);
    }

    #[test]
    fn a_manual_dead_letter_and_no_attempts_are_read() {
        let mut manual = written();
        manual.insert("error", doc! { "type": MANUAL, "message": "no stock", "stackTrace": Bson::Null });
        manual.insert("attempts", 0);
        let letter = letter(&manual);
        let cause = letter.cause.as_ref().unwrap();
        assert_eq!((&cause.reason, cause.message.as_str()), (&Reason::MANUAL, "no stock"));
        assert_eq!(letter.attempts, 1);
    }

    #[test]
    fn only_pending_documents_are_adopted_unless_more_is_asked_for() {
        let with = |status: &str| {
            let mut document = written();
            document.insert("status", status);
            document
        };
        for closed in CLOSED {
            assert_eq!(decode(&with(closed)), Content::Closed, "{closed}");
        }
        let Content::Unknown(Some(reason)) = decode(&with("INVESTIGATING")) else { panic!() };
        assert_eq!(reason, "unknown status `INVESTIGATING`");
        let mut more = decoder();
        more.statuses.insert("INVESTIGATING".to_owned());
        let raw = RawDocumentBuf::try_from(&with("INVESTIGATING")).unwrap();
        assert!(matches!(more.decode(&raw), Content::Letter(_)));
    }

    #[test]
    fn a_document_of_something_else_is_unknown_with_the_reason() {
        for (name, value) in
            [("streamName", Bson::Null), ("operationType", "MODIFY".into()), ("status", 1.into())]
        {
            let mut other = written();
            other.insert(name, value);
            assert!(matches!(decode(&other), Content::Unknown(Some(_))), "{name}");
        }
        // The text is not UTF-8.
        let mut bytes =
            RawDocumentBuf::try_from(&doc! { "_id": "x", "streamName": "abc" }).unwrap().into_bytes();
        let at = bytes.windows(3).position(|window| window == b"abc").unwrap();
        bytes[at] = 0xff;
        let raw = RawDocumentBuf::from_bytes(bytes).unwrap();
        assert!(matches!(decoder().decode(&raw), Content::Unknown(Some(_))));
    }

    #[test]
    fn every_operation_of_flowwarden_is_known() {
        let names =
            ["INSERT", "UPDATE", "REPLACE", "DELETE", "DROP", "DROP_DATABASE", "RENAME", "INVALIDATE"];
        for name in names {
            let mut document = written();
            document.insert("operationType", name);
            let operation = letter(&document).message.operation.unwrap();
            assert_ne!(operation, Operation::Other, "{name}");
        }
    }
}
