//! Change events, and the messages that are made of them.

use std::sync::Arc;

use bson::raw::RawBsonRef;
use bson::{Document, RawDocument, RawDocumentBuf, Timestamp as ClusterTime};
use bytes::Bytes;
use jiff::Timestamp;
use lazaret_core::{Message, Operation, Position, StreamName};

use crate::extjson;
use crate::options::MongoSourceOptions;
use crate::position::{offset_at, offset_of, time_of_token, token_bytes, wall_time};

/// The media type of a payload in canonical extended JSON.
pub(crate) const JSON: &str = "application/json";
/// The media type of a payload that extended JSON cannot express.
pub(crate) const BSON: &str = "application/bson";

/// The names of the headers of a message.
pub mod headers {
    /// The database.
    pub const DATABASE: &str = "mongodb-database";
    /// The collection. Absent for events of a whole database.
    pub const COLLECTION: &str = "mongodb-collection";
    /// The operation, in the server's spelling.
    pub const OPERATION: &str = "mongodb-operation";
    /// The cluster time, as `seconds.increment`.
    pub const CLUSTER_TIME: &str = "mongodb-cluster-time";
    /// The resume token, as JSON.
    pub const RESUME_TOKEN: &str = "mongodb-resume-token";
    /// The session of the transaction, as extended JSON.
    pub const SESSION: &str = "mongodb-lsid";
    /// The number of the transaction in its session.
    pub const TRANSACTION: &str = "mongodb-txn-number";
}

/// Makes messages of the events of one stream. Texts that most events share are kept, so that their messages share them, too.
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

/// An event that was read.
#[derive(Debug)]
pub(crate) struct ReadEvent {
    pub(crate) message: Message,
    pub(crate) operation: Operation,
    pub(crate) token: RawDocumentBuf,
    pub(crate) cluster_time: Option<ClusterTime>,
}

/// The fields of an event, found in one pass. An absent field and one of another type are alike.
#[derive(Default)]
struct Fields<'a> {
    token: Option<&'a RawDocument>,
    operation: Option<&'a str>,
    cluster_time: Option<ClusterTime>,
    wall_time: Option<bson::DateTime>,
    namespace: Option<&'a RawDocument>,
    document_key: Option<&'a RawDocument>,
    full_document: Option<&'a RawDocument>,
    session: Option<&'a RawDocument>,
    transaction: Option<i64>,
}

impl<'a> Fields<'a> {
    fn of(event: &'a RawDocument) -> Self {
        let mut fields = Self::default();
        // Bytes that are not BSON end the event; its payload says so.
        for (name, value) in event.iter().map_while(Result::ok) {
            match name.as_str() {
                "_id" => fields.token = value.as_document(),
                "operationType" => fields.operation = value.as_str(),
                "clusterTime" => fields.cluster_time = value.as_timestamp(),
                "wallTime" => fields.wall_time = value.as_datetime(),
                "ns" => fields.namespace = value.as_document(),
                "documentKey" => fields.document_key = value.as_document(),
                "fullDocument" => fields.full_document = value.as_document(),
                "lsid" => fields.session = value.as_document(),
                "txnNumber" => fields.transaction = value.as_i64(),
                _ => {}
            }
        }
        fields
    }
}

/// The operation with this name of the server.
pub(crate) fn operation_of(name: &str) -> Operation {
    match name {
        "insert" => Operation::Insert,
        "update" => Operation::Update,
        "replace" => Operation::Replace,
        "delete" => Operation::Delete,
        "drop" => Operation::Drop,
        "dropDatabase" => Operation::DropDatabase,
        "rename" => Operation::Rename,
        "invalidate" => Operation::Invalidate,
        _ => Operation::Other,
    }
}

/// The server's name of an operation. Other operations have many names.
pub(crate) fn name_of(operation: Operation) -> Option<&'static str> {
    Some(match operation {
        Operation::Insert => "insert",
        Operation::Update => "update",
        Operation::Replace => "replace",
        Operation::Delete => "delete",
        Operation::Drop => "drop",
        Operation::DropDatabase => "dropDatabase",
        Operation::Rename => "rename",
        Operation::Invalidate => "invalidate",
        _ => return None,
    })
}

fn field<'a>(event: &'a RawDocument, name: &str) -> Option<RawBsonRef<'a>> {
    event.get(name).ok().flatten()
}

fn text<'a>(event: &'a RawDocument, name: &str) -> Option<&'a str> {
    field(event, name).and_then(|value| value.as_str())
}

/// A copy of a text, or the one that is kept if it is the same.
fn shared(kept: Option<&Bytes>, text: &str) -> Bytes {
    match kept {
        Some(kept) if kept == text => kept.clone(),
        _ => Bytes::copy_from_slice(text.as_bytes()),
    }
}

impl MessageFactory {
    pub(crate) fn of(options: &MongoSourceOptions) -> Self {
        let names = Names {
            database: headers::DATABASE.into(),
            collection: headers::COLLECTION.into(),
            operation: headers::OPERATION.into(),
            cluster_time: headers::CLUSTER_TIME.into(),
            resume_token: headers::RESUME_TOKEN.into(),
        };
        Self {
            stream: options.stream.clone(),
            database: options.database.clone().map(Bytes::from),
            collection: options.collection.clone().map(Bytes::from),
            names,
            json: JSON.into(),
            event_type: "insert".into(),
        }
    }

    /// Makes the message of an event. Only an event without a resume token has none. An event without a cluster time is placed
    /// at `last_offset`: offsets never decrease.
    pub(crate) fn message(&mut self, raw: RawDocumentBuf, last_offset: u64) -> Option<ReadEvent> {
        let fields = Fields::of(&raw);
        let token = fields.token?.to_owned();
        let data = text(&token, "_data");
        let cluster_time = fields.cluster_time.or_else(|| data.and_then(time_of_token));
        let position_token = token_bytes(&token);
        let identity = data.map_or_else(|| String::from_utf8_lossy(&position_token), Into::into);
        let position = Position {
            partition: 0,
            offset: cluster_time.map_or(last_offset, |time| offset_of(time).max(last_offset)),
            token: Some(position_token.clone()),
        };
        let mut message = self.described(&fields, &identity, position, cluster_time);
        let operation = message.operation.unwrap_or(Operation::Other);
        self.add_payload(&mut message, raw);
        Some(ReadEvent { message, operation, token, cluster_time })
    }

    /// Makes the message of an event that another tool recorded. See [`MongoSourceOptions::message_of`].
    fn recorded(
        &mut self,
        mut event: Document,
        record: &str,
        at: Timestamp,
    ) -> Result<Message, bson::error::Error> {
        let data = event.get_document("_id").ok().and_then(|token| token.get_str("_data").ok());
        if let Some(time) = data.and_then(time_of_token)
            && !event.contains_key("clusterTime")
        {
            event.insert("clusterTime", time);
        }
        let raw = RawDocumentBuf::try_from(&event)?;
        let placed = offset_at(at);
        let has_time = Fields::of(&raw).cluster_time.is_some();
        Ok(match self.message(raw.clone(), if has_time { 0 } else { placed }) {
            Some(read) => read.message,
            None => {
                let position = Position { partition: 0, offset: placed, token: None };
                // No token begins with a tilde: they are hexadecimal digits, or JSON.
                let mut message = self.described(&Fields::of(&raw), &format!("~{record}"), position, None);
                self.add_payload(&mut message, raw);
                message
            }
        })
    }

    /// Makes the message of an event, without its payload.
    fn described(
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
        let mut message = Message::new(format!("{}:{identity}", self.stream), self.stream.clone(), position)
            .with_type(self.event_type.clone());
        message.operation = Some(operation_of(name));
        message.timestamp = timestamp(fields, cluster_time);
        message.key = self.key(fields);
        self.add_headers(&mut message, fields, cluster_time);
        message
    }

    /// The database and collection of an event: its own, or the watched ones.
    fn namespace(&self, fields: &Fields<'_>) -> (Option<Bytes>, Option<Bytes>) {
        let Some(namespace) = fields.namespace else {
            return (self.database.clone(), self.collection.clone());
        };
        let database = text(namespace, "db").map(|name| shared(self.database.as_ref(), name));
        let collection = text(namespace, "coll").map(|name| shared(self.collection.as_ref(), name));
        (database, collection)
    }

    /// The document key as extended JSON. A stream of several collections adds the namespace: one `_id` may occur in each.
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
            headers.push(names.cluster_time.clone(), format!("{}.{}", time.time, time.increment));
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

    /// Adds the event as payload, without loss (I5): extended JSON where it can express the event, BSON otherwise. Bytes that are
    /// not BSON are undecodable.
    fn add_payload(&self, message: &mut Message, raw: RawDocumentBuf) {
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

impl MongoSourceOptions {
    /// Makes the message that the source delivers for a change event, from an event that another tool recorded: with the same id,
    /// key, position and form. The cluster time is added from the resume token.
    ///
    /// An event without a resume token gets an id that no event of a server has, made of the name of its record, and is placed at
    /// the time of the record.
    ///
    /// ```
    /// use lazaret_source_mongodb::MongoSourceOptions;
    /// use lazaret_source_mongodb::bson::doc;
    ///
    /// let options = MongoSourceOptions::collection("mongodb://127.0.0.1", "shop", "orders");
    /// let event = doc! {
    ///     "_id": { "_data": "826AFB78B2000000162B0429296E1404" }, "operationType": "delete", "documentKey": { "_id": 7 },
    /// };
    /// let message = options.message_of(event, "tool/1", jiff::Timestamp::UNIX_EPOCH).unwrap();
    /// assert_eq!(message.id.as_str(), "orders:826AFB78B2000000162B0429296E1404");
    ///
    /// let without_token = doc! { "operationType": "delete", "documentKey": { "_id": 7 } };
    /// let message = options.message_of(without_token, "tool/1", jiff::Timestamp::UNIX_EPOCH).unwrap();
    /// assert_eq!(message.id.as_str(), "orders:~tool/1");
    /// ```
    ///
    /// # Errors
    /// When the event cannot be BSON: the name of a field contains a null character.
    pub fn message_of(
        &self,
        event: Document,
        record: &str,
        at: Timestamp,
    ) -> Result<Message, bson::error::Error> {
        MessageFactory::of(self).recorded(event, record, at)
    }
}

/// When the event happened, in milliseconds where the server says so.
fn timestamp(fields: &Fields<'_>, cluster_time: Option<ClusterTime>) -> Option<Timestamp> {
    let wall = fields.wall_time;
    wall.and_then(|time| Timestamp::from_millisecond(time.timestamp_millis()).ok())
        .or_else(|| cluster_time.map(wall_time))
}

/// The document key as extended JSON. Where it contradicts the full document, the `_id` of that document counts: some servers
/// send the update instead of the key.
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

/// Reads an event back from the payload of its message.
pub(crate) fn event_of(message: &Message) -> Result<Document, String> {
    let payload = message.payload.as_ref().ok_or("the message has no payload, expected a change event")?;
    match message.content_type.as_deref() {
        Some(BSON) => {
            let raw = RawDocument::from_bytes(payload).map_err(|error| error.to_string())?;
            Document::try_from(raw).map_err(|error| error.to_string())
        }
        _ => extjson::from_json(payload).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use bson::{Bson, DateTime, doc};

    use super::*;

    fn factory() -> MessageFactory {
        MessageFactory::of(&MongoSourceOptions::collection("mongodb://h", "shop", "orders"))
    }

    fn read(event: &Document) -> ReadEvent {
        factory().message(RawDocumentBuf::try_from(event).unwrap(), 0).unwrap()
    }

    fn insert() -> Document {
        doc! {
            "_id": { "_data": "82AB" }, "operationType": "insert",
            "clusterTime": ClusterTime { time: 100, increment: 3 }, "wallTime": DateTime::from_millis(100_250),
            "fullDocument": { "_id": 7_i64, "total": 1.5 }, "ns": { "db": "shop", "coll": "orders" },
            "documentKey": { "_id": 7_i64 }, "lsid": { "id": "s" }, "txnNumber": 4_i64,
        }
    }

    #[test]
    fn an_event_becomes_a_message_with_a_lasting_identity() {
        // I5, I8: stream and resume token.
        let event = insert();
        let ReadEvent { message, operation, .. } = read(&event);
        assert_eq!(message.id.as_str(), "orders:82AB");
        assert_eq!(message, read(&event).message, "the same each time");
        assert_eq!(operation, Operation::Insert);
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
    fn an_event_without_a_namespace_is_of_the_watched_collection() {
        let mut event = insert();
        event.remove("ns");
        let message = read(&event).message;
        assert_eq!(message.headers.get_str(headers::COLLECTION), Some("orders"));
        assert_eq!(message.headers.get_str(headers::DATABASE), Some("shop"));
    }

    #[test]
    fn a_wrong_document_key_yields_to_the_full_document() {
        let mut event = insert();
        event.insert("documentKey", doc! { "$set": { "total": 2 } });
        assert_eq!(read(&event).message.key, read(&insert()).message.key);
        event.insert("documentKey", doc! { "_id": 8_i64 });
        assert_eq!(read(&event).message.key, read(&insert()).message.key);
        event.insert("fullDocument", Bson::Null);
        let key = read(&event).message.key.unwrap();
        assert_eq!(&key[..], br#"{"_id":{"$numberLong":"8"}}"#, "a deleted document leaves only the key");
    }

    #[test]
    fn a_shard_key_is_a_part_of_the_key() {
        let mut event = insert();
        event.insert("documentKey", doc! { "region": "eu", "_id": 7_i64 });
        let key = read(&event).message.key.unwrap();
        assert_eq!(&key[..], br#"{"region":"eu","_id":{"$numberLong":"7"}}"#);
    }

    #[test]
    fn keys_of_two_collections_differ() {
        // I2
        let mut whole = MessageFactory { collection: None, ..factory() };
        let mut key = |collection: &str| {
            let mut event = insert();
            event.insert("ns", doc! { "db": "shop", "coll": collection });
            whole.message(RawDocumentBuf::try_from(&event).unwrap(), 0).unwrap().message.key.unwrap()
        };
        assert_ne!(key("orders"), key("items"));
        assert!(serde_json::from_slice::<serde_json::Value>(&key("a\"b")).is_ok());
    }

    #[test]
    fn offsets_never_decrease_even_without_a_cluster_time() {
        // I1
        let bare = doc! { "_id": { "_data": "x" }, "operationType": "invalidate" };
        let raw = RawDocumentBuf::try_from(&bare).unwrap();
        let read = factory().message(raw, 41).unwrap();
        assert_eq!(read.message.position.offset, 41);
        assert_eq!((read.operation, read.message.key), (Operation::Invalidate, None));
    }

    #[test]
    fn an_event_that_json_cannot_express_stays_bson() {
        // I5
        let mut event = insert();
        event.insert("fullDocument", doc! { "_id": 7_i64, "x": { "$oid": "text" } });
        let message = read(&event).message;
        assert_eq!(message.content_type.as_deref(), Some(BSON));
        assert_eq!(event_of(&message).unwrap(), event);
        assert_eq!(message.undecodable, None);
    }

    #[test]
    fn an_unknown_operation_is_delivered() {
        let mut event = insert();
        event.insert("operationType", "shardCollection");
        let read = read(&event);
        assert_eq!(read.operation, Operation::Other);
        assert_eq!(read.message.event_type.as_deref(), Some("shardCollection"));
    }

    #[test]
    fn an_event_without_a_token_is_none() {
        let raw = RawDocumentBuf::try_from(&doc! { "operationType": "insert" }).unwrap();
        assert!(factory().message(raw, 0).is_none());
    }

    fn recorded(event: Document) -> Message {
        factory().recorded(event, "tool/1", Timestamp::from_second(500).unwrap()).unwrap()
    }

    #[test]
    fn a_recorded_event_is_the_message_that_the_source_delivers() {
        // I5, I8
        let mut event = insert();
        event.insert("_id", doc! { "_data": "8200000064000000032B04" });
        let live = read(&event).message;
        assert_eq!(recorded(event.clone()), live);
        // A record that keeps neither the time nor the namespace.
        event.remove("clusterTime");
        let again = recorded(event);
        assert_eq!((&again.id, &again.key, &again.position), (&live.id, &live.key, &live.position));
        assert_eq!((&again.headers, again.operation), (&live.headers, live.operation));
    }

    #[test]
    fn a_recorded_event_without_a_token_has_an_id_of_its_own_and_the_place_of_its_record() {
        let mut event = insert();
        event.remove("_id");
        event.remove("clusterTime");
        let message = recorded(event);
        assert_eq!((message.id.as_str(), &message.position.token), ("orders:~tool/1", &None));
        let written = offset_of(ClusterTime { time: 500, increment: 0 });
        assert!(message.position.offset >= written, "it was recorded after it happened");
        assert_eq!(message.headers.get_str(headers::RESUME_TOKEN), None);
    }

    #[test]
    fn a_recorded_token_without_a_time_is_placed_at_the_time_of_the_record() {
        let mut event = insert();
        event.remove("clusterTime");
        let message = recorded(event);
        assert_eq!(message.id.as_str(), "orders:82AB");
        assert_eq!(message.position.offset >> 31, 500);
    }

    #[test]
    fn every_operation_has_one_name() {
        for name in ["insert", "update", "replace", "delete", "drop", "dropDatabase", "rename", "invalidate"]
        {
            assert_eq!(name_of(operation_of(name)), Some(name));
        }
    }
}
