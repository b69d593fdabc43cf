//! Builds the messages of change events.

use std::sync::Arc;

use bson::{RawDocumentBuf, Timestamp as ClusterTime};
use bytes::Bytes;
use jiff::Timestamp;
use lazaret_core::{Message, Position, StreamName};

use super::{BSON, Fields, JSON, ReadEvent, field, headers, name_of, operation_of, text};
use crate::extjson;
use crate::options::MongoSourceOptions;
use crate::position::wall_time;

/// Builds messages from the events of one stream. Texts that most events share are kept, so that the
/// messages of a batch also share them.
#[derive(Clone, Debug)]
pub(crate) struct MessageFactory {
    stream: StreamName,
    database: Option<Bytes>,
    collection: Option<Bytes>,
    names: Names,
    json: Arc<str>,
    /// The type of the last event.
    event_type: Arc<str>,
}

/// The names of the headers.
#[derive(Clone, Debug)]
struct Names {
    database: Arc<str>,
    collection: Arc<str>,
    operation: Arc<str>,
    cluster_time: Arc<str>,
    resume_token: Arc<str>,
}

/// Returns a copy of a text, or the kept one if it is the same.
fn shared(kept: Option<&Bytes>, text: &str) -> Bytes {
    match kept {
        Some(kept) if kept == text => kept.clone(),
        _ => Bytes::copy_from_slice(text.as_bytes()),
    }
}

impl Names {
    fn new() -> Self {
        Self {
            database: headers::DATABASE.into(),
            collection: headers::COLLECTION.into(),
            operation: headers::OPERATION.into(),
            cluster_time: headers::CLUSTER_TIME.into(),
            resume_token: headers::RESUME_TOKEN.into(),
        }
    }
}

impl MessageFactory {
    pub(crate) fn of(options: &MongoSourceOptions) -> Self {
        Self {
            stream: options.stream.clone(),
            database: options.database.clone().map(Bytes::from),
            collection: options.collection.clone().map(Bytes::from),
            names: Names::new(),
            json: JSON.into(),
            event_type: "insert".into(),
        }
    }

    /// Begins a batch. Its messages do not share texts with the last batch, which the engine is about to
    /// drop. Threads that count references to the same text slow each other down.
    pub(crate) fn begin_batch(&mut self) {
        let copy = |name: &Bytes| Bytes::copy_from_slice(name);
        self.database = self.database.as_ref().map(copy);
        self.collection = self.collection.as_ref().map(copy);
        self.names = Names::new();
        self.json = JSON.into();
        self.event_type = (*self.event_type).into();
    }

    /// Builds the message of an event.
    pub(crate) fn message(&mut self, event: ReadEvent) -> Message {
        let ReadEvent { raw, position, cluster_time, .. } = event;
        let fields = Fields::of(&raw);
        let token = position.token.clone().unwrap_or_default();
        let data = fields.token.and_then(|token| text(token, "_data"));
        let identity = data.map_or_else(|| String::from_utf8_lossy(&token), Into::into);
        let mut message = self.described(&fields, &identity, position, cluster_time);
        self.add_payload(&mut message, raw);
        message
    }

    /// Builds the message of an event without its payload.
    pub(super) fn described(
        &mut self,
        fields: &Fields<'_>,
        identity: &str,
        position: Position,
        cluster_time: Option<ClusterTime>,
    ) -> Message {
        let name = fields.operation.unwrap_or("unknown");
        if *self.event_type != *name {
            self.event_type = name.into();
        }
        let id = match position.incarnation {
            0 => [self.stream.as_str(), ":", identity].concat(),
            // A server whose history was replaced may assign the same tokens again.
            later => format!("{}~{later}:{identity}", self.stream),
        };
        let mut message = Message::new(id, self.stream.clone(), position).with_type(self.event_type.clone());
        message.operation = Some(operation_of(name));
        message.timestamp = timestamp(fields, cluster_time);
        message.key = self.key(fields);
        self.add_headers(&mut message, fields, cluster_time);
        message
    }

    /// Returns the database and collection of an event: its own, or the watched ones.
    fn namespace(&self, fields: &Fields<'_>) -> (Option<Bytes>, Option<Bytes>) {
        let Some(namespace) = fields.namespace else {
            return (self.database.clone(), self.collection.clone());
        };
        let database = text(namespace, "db").map(|name| shared(self.database.as_ref(), name));
        let collection = text(namespace, "coll").map(|name| shared(self.collection.as_ref(), name));
        (database, collection)
    }

    /// Returns the document key as extended JSON. A stream of several collections adds the namespace,
    /// because the same `_id` may occur in each.
    fn key(&self, fields: &Fields<'_>) -> Option<Bytes> {
        let key = document_key(fields)?;
        if self.collection.is_some() {
            return Some(key.into());
        }
        let (database, collection) = self.namespace(fields);
        let text = |name: &Option<Bytes>| name.as_deref().map(String::from_utf8_lossy).map(String::from);
        let namespace = serde_json::json!({ "db": text(&database), "coll": text(&collection) });
        Some(format!(r#"{{"ns":{namespace},"documentKey":{key}}}"#).into())
    }

    fn add_headers(&self, message: &mut Message, fields: &Fields<'_>, cluster_time: Option<ClusterTime>) {
        let (database, collection) = self.namespace(fields);
        let token = message.position.token.clone();
        let (names, headers) = (&self.names, &mut message.headers);
        if let Some(database) = database {
            headers.push(names.database.clone(), database);
        }
        if let Some(collection) = collection {
            headers.push(names.collection.clone(), collection);
        }
        if let Some(operation) = fields.operation {
            let known = name_of(operation_of(operation)).map(Bytes::from);
            headers.push(names.operation.clone(), shared(known.as_ref(), operation));
        }
        if let Some(time) = cluster_time {
            headers.push(names.cluster_time.clone(), seconds_and_increment(time));
        }
        if let Some(Ok(session)) = fields.session.map(extjson::to_json) {
            headers.push(headers::SESSION, session);
        }
        if let Some(number) = fields.transaction {
            headers.push(headers::TRANSACTION, number.to_string());
        }
        if let Some(token) = token {
            headers.push(names.resume_token.clone(), token);
        }
    }

    /// Adds the event as payload, without loss (I5). It uses extended JSON if that can express the
    /// event, and BSON otherwise. Bytes that are not BSON are undecodable.
    pub(super) fn add_payload(&self, message: &mut Message, raw: RawDocumentBuf) {
        let (payload, content_type): (Bytes, Arc<str>) = match extjson::to_json(&raw) {
            Ok(json) => (json.into(), self.json.clone()),
            Err(error) => {
                if let extjson::WriteError::Invalid(_) = error {
                    message.undecodable = Some(error.to_string().into());
                }
                (raw.into_bytes().into(), BSON.into())
            }
        };
        message.payload = Some(payload);
        message.content_type = Some(content_type);
    }
}

/// Formats a cluster time as `seconds.increment`.
fn seconds_and_increment(time: ClusterTime) -> String {
    let mut text = String::with_capacity(24);
    extjson::write_number(&mut text, i64::from(time.time));
    text.push('.');
    extjson::write_number(&mut text, i64::from(time.increment));
    text
}

/// Returns when the event happened, in milliseconds if the server reports them.
fn timestamp(fields: &Fields<'_>, cluster_time: Option<ClusterTime>) -> Option<Timestamp> {
    let wall = fields.wall_time;
    wall.and_then(|time| Timestamp::from_millisecond(time.timestamp_millis()).ok())
        .or_else(|| cluster_time.map(wall_time))
}

/// Returns the document key as extended JSON. If it contradicts the full document, the `_id` of that
/// document counts, because some servers send the update instead of the key.
fn document_key(fields: &Fields<'_>) -> Option<String> {
    let key = fields.document_key;
    let own = fields.full_document.and_then(|full| field(full, "_id"));
    let key_id = key.and_then(|key| field(key, "_id"));
    match (key, own) {
        (Some(key), Some(id)) if key_id.is_some_and(|key_id| key_id == id) => extjson::to_json(key).ok(),
        (_, Some(id)) => {
            let mut document = RawDocumentBuf::new();
            document.append(bson::cstr!("_id"), id);
            extjson::to_json(&document).ok()
        }
        (Some(key), None) => extjson::to_json(key).ok(),
        (None, None) => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use bson::{Bson, DateTime, Document, doc};

    use lazaret_core::Operation;

    use super::*;
    use crate::event::event_of;
    use crate::position::offset_of;

    pub(in crate::event) fn factory() -> MessageFactory {
        MessageFactory::of(&MongoSourceOptions::collection("mongodb://h", "shop", "orders"))
    }

    fn read(event: &Document) -> ReadEvent {
        ReadEvent::of(RawDocumentBuf::try_from(event).unwrap(), 0).unwrap()
    }

    pub(in crate::event) fn message_of(event: &Document) -> Message {
        factory().message(read(event))
    }

    pub(in crate::event) fn insert() -> Document {
        doc! {
            "_id": { "_data": "82AB" }, "operationType": "insert",
            "clusterTime": ClusterTime { time: 100, increment: 3 }, "wallTime": DateTime::from_millis(100_250),
            "fullDocument": { "_id": 7_i64, "total": 1.5 }, "ns": { "db": "shop", "coll": "orders" },
            "documentKey": { "_id": 7_i64 }, "lsid": { "id": "s" }, "txnNumber": 4_i64,
        }
    }

    #[test]
    fn an_event_becomes_a_message_with_a_lasting_identity() {
        // I5, I8: the id consists of stream and resume token.
        let event = insert();
        let message = message_of(&event);
        assert_eq!(message.id.as_str(), "orders:82AB");
        assert_eq!(message, message_of(&event), "the same each time");
        assert_eq!(read(&event).operation, Operation::Insert);
        assert_eq!(
            (message.operation, message.event_type.as_deref()),
            (Some(Operation::Insert), Some("insert"))
        );
        assert_eq!(message.key.as_deref(), Some(&br#"{"_id":{"$numberLong":"7"}}"#[..]));
        assert_eq!(message.timestamp.unwrap().as_millisecond(), 100_250);
        assert_eq!(message.position.offset, offset_of(ClusterTime { time: 100, increment: 3 }));
        assert_eq!(message.position.token.as_deref(), Some(&br#"{"_data":"82AB"}"#[..]));
        assert_eq!(event_of(&message).unwrap(), event, "nothing is lost");
        let header = |name| message.headers.get_str(name);
        assert_eq!(header(headers::DATABASE), Some("shop"));
        assert_eq!(header(headers::COLLECTION), Some("orders"));
        assert_eq!(header(headers::OPERATION), Some("insert"));
        assert_eq!(header(headers::CLUSTER_TIME), Some("100.3"));
        assert_eq!(header(headers::RESUME_TOKEN), Some(r#"{"_data":"82AB"}"#));
        assert_eq!(
            (header(headers::SESSION), header(headers::TRANSACTION)),
            (Some(r#"{"id":"s"}"#), Some("4"))
        );
    }

    #[test]
    fn the_identity_of_an_event_names_its_incarnation() {
        // I1: what is known about an event of another incarnation does not apply to this one.
        let mut event = read(&insert());
        event.position.incarnation = 2;
        let message = factory().message(event);
        assert_eq!(message.id.as_str(), "orders~2:82AB");
        assert_eq!(message.position.incarnation, 2);
    }

    #[test]
    fn the_messages_of_two_batches_are_alike_and_share_nothing() {
        // I5
        let mut factory = factory();
        let event = read(&insert());
        let mut next = || factory.message(event.clone());
        let (first, second) = (next(), next());
        factory.begin_batch();
        let other = factory.message(event);
        assert_eq!((&first, &first), (&second, &other));
        let is_shared = |one: &Message, two: &Message| {
            let texts = |message: &Message| {
                let names: Vec<_> = message.headers.iter().map(|(name, _)| name.as_ptr()).collect();
                let database = message.headers.get(headers::DATABASE).unwrap().as_ptr();
                let types = [&message.event_type, &message.content_type];
                let types = types.map(|text| text.as_deref().unwrap().as_ptr());
                (names[..3].to_vec(), database, types)
            };
            texts(one) == texts(two)
        };
        assert!(is_shared(&first, &second) && !is_shared(&first, &other));
    }

    #[test]
    fn an_event_without_a_namespace_is_of_the_watched_collection() {
        let mut event = insert();
        event.remove("ns");
        let message = message_of(&event);
        assert_eq!(message.headers.get_str(headers::COLLECTION), Some("orders"));
        assert_eq!(message.headers.get_str(headers::DATABASE), Some("shop"));
    }

    #[test]
    fn a_wrong_document_key_yields_to_the_full_document() {
        let mut event = insert();
        event.insert("documentKey", doc! { "$set": { "total": 2 } });
        assert_eq!(message_of(&event).key, message_of(&insert()).key);
        event.insert("documentKey", doc! { "_id": 8_i64 });
        assert_eq!(message_of(&event).key, message_of(&insert()).key);
        event.insert("fullDocument", Bson::Null);
        let key = message_of(&event).key.unwrap();
        assert_eq!(&key[..], br#"{"_id":{"$numberLong":"8"}}"#, "a deleted document leaves only the key");
    }

    #[test]
    fn a_shard_key_is_a_part_of_the_key() {
        let mut event = insert();
        event.insert("documentKey", doc! { "region": "eu", "_id": 7_i64 });
        let key = message_of(&event).key.unwrap();
        assert_eq!(&key[..], br#"{"region":"eu","_id":{"$numberLong":"7"}}"#);
    }

    #[test]
    fn keys_of_two_collections_differ() {
        // I2
        let mut whole = MessageFactory { collection: None, ..factory() };
        let mut key = |collection: &str| {
            let mut event = insert();
            event.insert("ns", doc! { "db": "shop", "coll": collection });
            whole.message(read(&event)).key.unwrap()
        };
        assert_ne!(key("orders"), key("items"));
        assert!(serde_json::from_slice::<serde_json::Value>(&key("a\"b")).is_ok());
    }

    #[test]
    fn an_event_that_json_cannot_express_stays_bson() {
        // I5
        let mut event = insert();
        event.insert("fullDocument", doc! { "_id": 7_i64, "x": { "$oid": "text" } });
        let message = message_of(&event);
        assert_eq!(message.content_type.as_deref(), Some(BSON));
        assert_eq!(event_of(&message).unwrap(), event);
        assert_eq!(message.undecodable, None);
    }

    #[test]
    fn an_unknown_operation_is_delivered() {
        let mut event = insert();
        event.insert("operationType", "shardCollection");
        let message = message_of(&event);
        assert_eq!(message.operation, Some(Operation::Other));
        assert_eq!(message.event_type.as_deref(), Some("shardCollection"));
    }
}
