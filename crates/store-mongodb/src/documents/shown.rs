//! Keys, payloads and tokens as documents that people and other tools can query.

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use lazaret_core::message::{Message, Operation};
use serde_json::Value as Json;

/// A payload above this size is not shown as a document; its bytes are kept all the same.
pub(super) const SHOWN_BYTES: usize = 256 << 10;

/// A document that is nested deeper is not shown: MongoDB takes 100 levels, and the letter is a few levels deep itself.
const SHOWN_LEVELS: usize = 64;

/// Stands for a `$` at the beginning of a name. Servers before 5.0 refuse such names.
const DOLLAR: char = '\u{ff04}';

pub(super) fn operation_type(operation: Operation) -> &'static str {
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
pub(super) fn document_key(message: &Message) -> Option<Bson> {
    let key = message.key.as_deref()?;
    if key.len() > SHOWN_BYTES {
        return None;
    }
    let value =
        as_document(key).map_or_else(|| Bson::Document(doc! { "_id": text_or_bytes(key) }), Bson::Document);
    Some(value)
}

/// The payload as a document; of a change event, the document after the change.
pub(super) fn full_document(message: &Message) -> Option<Document> {
    let payload = message.payload.as_deref()?;
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
    shown(document, SHOWN_LEVELS)
}

pub(super) fn resume_token(token: &[u8]) -> Bson {
    as_document(token).map_or_else(|| Bson::Document(doc! { "_data": text_or_bytes(token) }), Bson::Document)
}

fn text_or_bytes(bytes: &[u8]) -> Bson {
    match std::str::from_utf8(bytes) {
        Ok(text) => Bson::from(text),
        Err(_) => Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() }),
    }
}

fn as_document(bytes: &[u8]) -> Option<Document> {
    let document = read_json(bytes).or_else(|| read_bson(bytes))?;
    shown(document, SHOWN_LEVELS)
}

/// A JSON object, extended JSON included. An object that is almost extended JSON, such as one with a `$date` that is none, is read
/// as it stands.
fn read_json(bytes: &[u8]) -> Option<Document> {
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return None;
    }
    serde_json::from_slice(bytes).ok().or_else(|| match serde_json::from_slice(bytes).ok()? {
        Json::Object(fields) => Some(fields.into_iter().map(|(name, value)| (name, plain(value))).collect()),
        _ => None,
    })
}

/// A JSON value in which no name has a meaning.
fn plain(value: Json) -> Bson {
    match value {
        Json::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| (name, plain(value)));
            Bson::Document(fields.collect())
        }
        Json::Array(values) => Bson::Array(values.into_iter().map(plain).collect()),
        Json::String(text) => Bson::String(text),
        Json::Bool(flag) => Bson::Boolean(flag),
        Json::Null => Bson::Null,
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Bson::Int64(whole),
            (None, Some(fraction)) => Bson::Double(fraction),
            (None, None) => Bson::String(number.to_string()),
        },
    }
}

fn read_bson(bytes: &[u8]) -> Option<Document> {
    let length = <[u8; 4]>::try_from(bytes.get(..4)?).ok().map(i32::from_le_bytes)?;
    if usize::try_from(length) != Ok(bytes.len()) {
        return None;
    }
    Document::from_reader(bytes).ok()
}

/// The document with names that every server takes; `None` if it is nested too deep.
///
/// References to other documents (`$ref`, `$id` and `$db`, in this order) stay as they are: servers take them, and drivers follow them.
/// Of other names, a `$` at the beginning becomes the fullwidth one. Dots stay.
fn shown(document: Document, levels: usize) -> Option<Document> {
    let levels = levels.checked_sub(1)?;
    let reference = reference_fields(&document);
    let fields = document.into_iter().enumerate().map(|(place, (name, value))| {
        let name = if reference.contains(&place) { name } else { stored_name(&name) };
        Some((name, shown_value(value, levels)?))
    });
    fields.collect()
}

fn shown_value(value: Bson, levels: usize) -> Option<Bson> {
    Some(match value {
        Bson::Document(inner) => Bson::Document(shown(inner, levels)?),
        Bson::Array(values) => {
            let levels = levels.checked_sub(1)?;
            let values: Option<Vec<Bson>> =
                values.into_iter().map(|value| shown_value(value, levels)).collect();
            Bson::Array(values?)
        }
        other => other,
    })
}

/// The places of the fields of a reference, as servers demand it: a text `$ref`, `$id`, and maybe a text `$db`, one behind the other.
fn reference_fields(document: &Document) -> std::ops::Range<usize> {
    let is_text = |value: &Bson| matches!(value, Bson::String(_));
    let mut fields = document.iter().enumerate().skip_while(|(_, (name, _))| *name != "$ref");
    let Some((start, (_, collection))) = fields.next() else { return 0..0 };
    let has_id = fields.next().is_some_and(|(_, (name, _))| name == "$id");
    if !is_text(collection) || !has_id {
        return 0..0;
    }
    match fields.next() {
        Some((_, (name, database))) if name == "$db" && is_text(database) => start..start + 3,
        _ => start..start + 2,
    }
}

/// A name that every server takes.
fn stored_name(name: &str) -> String {
    let name = name.replace('\0', "\u{fffd}");
    match name.strip_prefix('$') {
        Some(rest) => format!("{DOLLAR}{rest}"),
        None => name,
    }
}

/// The name of a diagnostic as that of a field that queries can reach.
pub(super) fn field_name(name: &str) -> String {
    name.replace(['.', '$', '\0'], "_")
}

#[cfg(test)]
mod tests {
    use lazaret_core::message::Position;

    use super::*;

    fn message() -> Message {
        Message::new("m", "orders", Position::new(0, 0))
    }

    fn shown_payload(payload: &str) -> Option<Document> {
        full_document(&message().with_payload(payload.to_owned()))
    }

    #[test]
    fn a_json_object_is_shown_and_other_payloads_are_not() {
        assert_eq!(shown_payload(r#" {"a": {"b": [1, "x"]}}"#), Some(doc! { "a": { "b": [1, "x"] } }));
        assert_eq!(
            shown_payload(r#"{"_id": {"$oid": "5f0000000000000000000000"}}"#)
                .unwrap()
                .get_object_id("_id")
                .unwrap()
                .to_hex(),
            "5f0000000000000000000000"
        );
        for payload in ["", "[1]", "7", "{", "\u{0}"] {
            assert_eq!(shown_payload(payload), None, "{payload:?}");
        }
        let deep = format!("{}1{}", r#"{"a":"#.repeat(100), "}".repeat(100));
        assert_eq!(shown_payload(&deep), None);
        let deep = format!(r#"{{"a":{}1{}}}"#, "[".repeat(100), "]".repeat(100));
        assert_eq!(shown_payload(&deep), None);
        assert_eq!(shown_payload(&format!(r#"{{"a": "{}"}}"#, "x".repeat(SHOWN_BYTES))), None);
        assert_eq!(full_document(&message()), None);
    }

    #[test]
    fn a_reference_to_another_document_is_shown_as_it_is() {
        let payload = r#"{"customer": {"$ref": "customers", "$id": {"$oid": "5f0000000000000000000000"}, "$db": "shop", "since": 7},
            "items": [{"$ref": "items", "$id": 3}]}"#;
        let document = shown_payload(payload).unwrap();
        let customer = document.get_document("customer").unwrap();
        assert_eq!(customer.keys().map(String::as_str).collect::<Vec<_>>(), ["$ref", "$id", "$db", "since"]);
        assert_eq!(customer.get_object_id("$id").unwrap().to_hex(), "5f0000000000000000000000");
        assert_eq!(
            document.get_array("items").unwrap()[0],
            Bson::Document(doc! { "$ref": "items", "$id": 3 })
        );
    }

    #[test]
    fn names_that_servers_refuse_get_another_dollar_and_dots_stay() {
        let shown = |payload: &str| shown_payload(payload).unwrap();
        assert_eq!(
            shown(r#"{"a": {"$where": 1}, "$set": {"b.c": 2}}"#),
            doc! { "a": { "＄where": 1 }, "＄set": { "b.c": 2 } }
        );
        assert_eq!(shown(r#"{"a$b": 1, "a\u0000b": 2}"#), doc! { "a$b": 1, "a\u{fffd}b": 2 });
        // References that a server would refuse: without an id, in another order, with a collection that is no text.
        assert_eq!(shown(r#"{"a": {"$ref": "x"}}"#), doc! { "a": { "＄ref": "x" } });
        assert_eq!(shown(r#"{"a": {"$id": 1, "$ref": "x"}}"#), doc! { "a": { "＄id": 1, "＄ref": "x" } });
        assert_eq!(shown(r#"{"a": {"$ref": 7, "$id": 1}}"#), doc! { "a": { "＄ref": 7, "＄id": 1 } });
        assert_eq!(
            shown(r#"{"a": {"$ref": "x", "$id": 1, "$db": 2}}"#),
            doc! { "a": { "$ref": "x", "$id": 1, "＄db": 2 } }
        );
        // Not extended JSON, although it begins like it.
        let odd = shown(r#"{"at": {"$date": "yesterday"}, "n": [1, 2.5, null, true]}"#);
        let expected = doc! { "at": { "＄date": "yesterday" }, "n": [1_i64, 2.5, Bson::Null, true] };
        assert_eq!(odd, expected);
    }

    #[test]
    fn of_a_change_event_the_document_after_the_change_is_shown() {
        let shown = |payload: &str| {
            let mut message = message().with_payload(payload.to_owned());
            message.position.token = Some(r#"{"_data":"82"}"#.into());
            full_document(&message)
        };
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
    fn a_bson_document_is_shown() {
        let document = doc! { "_id": 7, "name": "x", "of": { "$ref": "orders", "$id": 7 } };
        let mut message = message().with_payload(document.to_vec().unwrap());
        message.content_type = Some("application/bson".into());
        assert_eq!(full_document(&message), Some(document));
    }

    #[test]
    fn a_key_is_a_document_or_the_id_of_one() {
        let key = |key: &[u8]| document_key(&message().with_key(key.to_vec()));
        assert_eq!(key(br#"{"_id": 7}"#), Some(Bson::Document(doc! { "_id": 7 })));
        assert_eq!(key(b"order-7"), Some(Bson::Document(doc! { "_id": "order-7" })));
        assert_eq!(document_key(&message()), None);
    }
}
