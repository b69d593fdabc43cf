//! Change events, and the messages that are made of them.

use std::sync::Arc;

use bson::raw::RawBsonRef;
use bson::{Document, RawDocument, RawDocumentBuf, Timestamp as ClusterTime};
use bytes::Bytes;
use jiff::Timestamp;
use lazaret_core::{Message, Operation, Position, StreamName};

use crate::extjson;
use crate::options::MongoSourceOptions;
use crate::position::{StreamPosition, offset_at, offset_of, time_of_token, wall_time};

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

/// Makes messages of the events of one stream.
#[derive(Clone, Debug)]
pub(crate) struct MessageFactory {
    pub(crate) stream: StreamName,
    pub(crate) database: Option<String>,
    pub(crate) collection: Option<String>,
}

/// An event that was read.
#[derive(Debug)]
pub(crate) struct ReadEvent {
    pub(crate) message: Message,
    pub(crate) operation: Operation,
    pub(crate) token: Document,
    pub(crate) cluster_time: Option<ClusterTime>,
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

fn document<'a>(event: &'a RawDocument, name: &str) -> Option<&'a RawDocument> {
    field(event, name).and_then(|value| value.as_document())
}

fn text<'a>(event: &'a RawDocument, name: &str) -> Option<&'a str> {
    field(event, name).and_then(|value| value.as_str())
}

impl MessageFactory {
    pub(crate) fn of(options: &MongoSourceOptions) -> Self {
        Self {
            stream: options.stream.clone(),
            database: options.database.clone(),
            collection: options.collection.clone(),
        }
    }

    /// Makes the message of an event. Only an event without a resume token has none. An event without a cluster time is placed
    /// at `last_offset`: offsets never decrease.
    pub(crate) fn message(&self, raw: RawDocumentBuf, last_offset: u64) -> Option<ReadEvent> {
        let token = document(&raw, "_id")?;
        let token_document = Document::try_from(token).ok()?;
        let data = text(token, "_data");
        let cluster_time = cluster_time_of(&raw, data);
        let position_token = StreamPosition::After(token_document.clone()).to_bytes();
        let identity =
            data.map_or_else(|| String::from_utf8_lossy(&position_token).into_owned(), str::to_owned);
        let position = Position {
            partition: 0,
            offset: cluster_time.map_or(last_offset, |time| offset_of(time).max(last_offset)),
            token: Some(position_token),
        };
        let message = self.assemble(raw, &identity, position, cluster_time);
        let operation = message.operation.unwrap_or(Operation::Other);
        Some(ReadEvent { message, operation, token: token_document, cluster_time })
    }

    /// Makes the message of an event that another tool recorded. See [`MongoSourceOptions::message_of`].
    fn recorded(
        &self,
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
        let has_time = cluster_time_of(&raw, None).is_some();
        Ok(match self.message(raw.clone(), if has_time { 0 } else { placed }) {
            Some(read) => read.message,
            None => {
                let position = Position { partition: 0, offset: placed, token: None };
                // No token begins with a tilde: they are hexadecimal digits, or JSON.
                self.assemble(raw, &format!("~{record}"), position, None)
            }
        })
    }

    fn assemble(
        &self,
        raw: RawDocumentBuf,
        identity: &str,
        position: Position,
        cluster_time: Option<ClusterTime>,
    ) -> Message {
        let name = text(&raw, "operationType").unwrap_or("unknown");
        let mut message = Message::new(format!("{}:{identity}", self.stream), self.stream.clone(), position)
            .with_type(name);
        message.operation = Some(operation_of(name));
        message.timestamp = timestamp(&raw, cluster_time);
        message.key = self.key(&raw);
        self.add_headers(&mut message, &raw, cluster_time);
        add_payload(&mut message, raw);
        message
    }

    /// The database and collection of an event: its own, or the watched ones.
    fn namespace<'a>(&'a self, raw: &'a RawDocument) -> (Option<&'a str>, Option<&'a str>) {
        match document(raw, "ns") {
            Some(namespace) => (text(namespace, "db"), text(namespace, "coll")),
            None => (self.database.as_deref(), self.collection.as_deref()),
        }
    }

    /// The document key as extended JSON. A stream of several collections adds the namespace: one `_id` may occur in each.
    fn key(&self, raw: &RawDocument) -> Option<Bytes> {
        let key = document_key(raw)?;
        if self.collection.is_some() {
            return Some(key.into());
        }
        let (database, collection) = self.namespace(raw);
        let namespace = serde_json::json!({ "db": database, "coll": collection });
        Some(format!(r#"{{"ns":{namespace},"documentKey":{key}}}"#).into())
    }

    fn add_headers(&self, message: &mut Message, raw: &RawDocument, cluster_time: Option<ClusterTime>) {
        let (database, collection) = self.namespace(raw);
        let mut push = |name: &'static str, value: String| message.headers.push(name, value);
        if let Some(database) = database {
            push(headers::DATABASE, database.to_owned());
        }
        if let Some(collection) = collection {
            push(headers::COLLECTION, collection.to_owned());
        }
        if let Some(operation) = text(raw, "operationType") {
            push(headers::OPERATION, operation.to_owned());
        }
        if let Some(time) = cluster_time {
            push(headers::CLUSTER_TIME, format!("{}.{}", time.time, time.increment));
        }
        if let Some(Ok(session)) = document(raw, "lsid").map(extjson::to_json) {
            push(headers::SESSION, session);
        }
        if let Some(RawBsonRef::Int64(number)) = field(raw, "txnNumber") {
            push(headers::TRANSACTION, number.to_string());
        }
        if let Some(token) = message.position.token.clone() {
            message.headers.push(headers::RESUME_TOKEN, token);
        }
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

/// The cluster time of an event; that of its token, if a pipeline removed the field.
fn cluster_time_of(raw: &RawDocument, data: Option<&str>) -> Option<ClusterTime> {
    let own = field(raw, "clusterTime").and_then(|value| value.as_timestamp());
    own.or_else(|| data.and_then(time_of_token))
}

/// When the event happened, in milliseconds where the server says so.
fn timestamp(raw: &RawDocument, cluster_time: Option<ClusterTime>) -> Option<Timestamp> {
    let wall = field(raw, "wallTime").and_then(|value| value.as_datetime());
    wall.and_then(|time| Timestamp::from_millisecond(time.timestamp_millis()).ok())
        .or_else(|| cluster_time.map(wall_time))
}

/// The document key as extended JSON. Where it contradicts the full document, the `_id` of that document counts: some servers
/// send the update instead of the key.
fn document_key(raw: &RawDocument) -> Option<String> {
    let key = document(raw, "documentKey");
    let own = document(raw, "fullDocument").and_then(|full| field(full, "_id"));
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

/// Adds the event as payload, without loss (I5): extended JSON where it can express the event, BSON otherwise. Bytes that are
/// not BSON are undecodable.
fn add_payload(message: &mut Message, raw: RawDocumentBuf) {
    let (payload, content_type): (Bytes, &str) = match extjson::to_json(&raw) {
        Ok(json) => (json.into(), JSON),
        Err(error) => {
            if let extjson::WriteError::Invalid(_) = error {
                message.undecodable = Some(error.to_string().into());
            }
            (raw.into_bytes().into(), BSON)
        }
    };
    message.payload = Some(payload);
    message.content_type = Some(Arc::from(content_type));
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
        MessageFactory {
            stream: "orders".into(),
            database: Some("shop".into()),
            collection: Some("orders".into()),
        }
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
        let whole = MessageFactory { collection: None, ..factory() };
        let key = |collection: &str| {
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
