//! Extractors for the handlers of change events.

use std::sync::Arc;

use bson::{Bson, Document as BsonDocument, Timestamp as ClusterTime};
use lazaret_core::handler::{Delivery, FromDelivery};
use lazaret_core::{HandlerError, Operation, Phase, Reason};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::event::{event_of, headers};

fn undecodable(why: impl Into<String>) -> HandlerError {
    HandlerError::msg(why.into()).reason(Reason::INVALID_SCHEMA).phase(Phase::Decode)
}

fn event(delivery: &Delivery) -> Result<BsonDocument, HandlerError> {
    event_of(delivery.message())
        .map_err(|error| undecodable(format!("the payload is not a change event: {error}")))
}

/// Reads a field of the event into a type. An absent field is read as null, so `Option<T>` reads it as
/// `None`.
fn image<T: DeserializeOwned>(delivery: &Delivery, field: &str) -> Result<T, HandlerError> {
    let mut event = event(delivery)?;
    let value = event.remove(field).unwrap_or(Bson::Null);
    let is_absent = value == Bson::Null;
    bson::deserialize_from_bson(value).map_err(|error| {
        let operation = event.get_str("operationType").unwrap_or("unknown");
        match is_absent {
            true => undecodable(format!("the event `{operation}` has no `{field}`")),
            false => HandlerError::from(error).reason(Reason::INVALID_SCHEMA).phase(Phase::Decode),
        }
    })
}

/// The full document of the event, read into a type. An event without one, such as a delete, is a decode
/// failure. `Document<Option<T>>` reads it as `None`.
///
/// ```
/// use lazaret_core::handler::handler;
/// use lazaret_source_mongodb::{Document, OperationType};
///
/// #[derive(serde::Deserialize)]
/// struct Order { total: f64 }
///
/// let project = handler(|Document(order): Document<Option<Order>>, OperationType(operation): OperationType| async move {
///     println!("{operation:?} {:?}", order.map(|order| order.total));
/// });
/// # let _ = project;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Document<T>(pub T);

impl<T: DeserializeOwned> FromDelivery for Document<T> {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        image(delivery, "fullDocument").map(Self)
    }
}

/// The document before the change, read into a type. `Before<Option<T>>` reads an absent one as `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before<T>(pub T);

impl<T: DeserializeOwned> FromDelivery for Before<T> {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        image(delivery, "fullDocumentBeforeChange").map(Self)
    }
}

/// The whole change event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChangeEvent(pub BsonDocument);

impl FromDelivery for ChangeEvent {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        event(delivery).map(Self)
    }
}

/// The changes of an update. Only update events have them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateDescription {
    /// The new values by path.
    pub updated_fields: BsonDocument,
    /// The paths that were removed.
    pub removed_fields: Vec<String>,
    /// Arrays that were shortened.
    pub truncated_arrays: Vec<TruncatedArray>,
    /// The parts of paths that are ambiguous because of a dot in a field name.
    pub disambiguated_paths: BsonDocument,
}

/// An array that an update shortened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TruncatedArray {
    /// The path of the array.
    pub field: String,
    /// The new length.
    pub new_size: i64,
}

impl UpdateDescription {
    /// Returns `true` if the update changed this path, a path above it, or a path below it.
    pub fn has_changed(&self, path: &str) -> bool {
        let touches = |changed: &str| {
            let below = |long: &str, short: &str| {
                long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            below(changed, path) || below(path, changed)
        };
        self.updated_fields.keys().any(|changed| touches(changed))
            || self.removed_fields.iter().any(|changed| touches(changed))
            || self.truncated_arrays.iter().any(|array| touches(&array.field))
    }
}

impl FromDelivery for UpdateDescription {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        image::<Option<Self>>(delivery, "updateDescription")?
            .ok_or_else(|| undecodable("the event has no `updateDescription`: only updates have one"))
    }
}

/// The operation of the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationType(pub Operation);

impl FromDelivery for OperationType {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        delivery.message().operation.map(Self).ok_or_else(|| undecodable("the message is not a change event"))
    }
}

/// The key of the changed document: `_id` and, if there is one, the shard key. Events of a whole
/// collection have none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DocumentKey(pub BsonDocument);

impl FromDelivery for DocumentKey {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        let key = delivery.message().key.as_ref();
        let key = key.ok_or_else(|| undecodable("the event has no document key"))?;
        let mut key = crate::extjson::from_json(key)
            .map_err(|error| undecodable(format!("the key is not a document key: {error}")))?;
        // In a stream of several collections, the key also holds the namespace.
        match key.remove("documentKey") {
            Some(Bson::Document(inner)) if key.contains_key("ns") => Ok(Self(inner)),
            Some(other) => {
                key.insert("documentKey", other);
                Ok(Self(key))
            }
            None => Ok(Self(key)),
        }
    }
}

/// The transaction of the event, if there was one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transaction(pub Option<TransactionInfo>);

/// A transaction. All of its events have the same session and number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TransactionInfo {
    /// The session.
    pub session: BsonDocument,
    /// The number in the session.
    pub number: i64,
}

impl FromDelivery for Transaction {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        let headers = &delivery.message().headers;
        let (Some(session), Some(number)) =
            (headers.get(headers::SESSION), headers.get_str(headers::TRANSACTION))
        else {
            return Ok(Self(None));
        };
        let session = crate::extjson::from_json(session).map_err(|error| undecodable(error.to_string()))?;
        let number =
            number.parse().map_err(|_| undecodable("the number of the transaction is not a number"))?;
        Ok(Self(Some(TransactionInfo { session, number })))
    }
}

/// The database and collection of the event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// The database.
    pub database: Option<Arc<str>>,
    /// The collection. `None` for events of a whole database.
    pub collection: Option<Arc<str>>,
}

impl FromDelivery for Namespace {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        let header = |name| delivery.message().headers.get_str(name).map(Arc::from);
        Ok(Self { database: header(headers::DATABASE), collection: header(headers::COLLECTION) })
    }
}

/// The resume token of the event, and its cluster time including the increment.
#[derive(Clone, Debug, PartialEq)]
pub struct ResumePoint {
    /// The resume token.
    pub token: BsonDocument,
    /// The cluster time.
    pub cluster_time: Option<ClusterTime>,
}

impl FromDelivery for ResumePoint {
    fn from_delivery(delivery: &Delivery) -> Result<Self, HandlerError> {
        let headers = &delivery.message().headers;
        let token = headers.get(headers::RESUME_TOKEN).ok_or_else(|| undecodable("no resume token"))?;
        let token = crate::extjson::from_json(token).map_err(|error| undecodable(error.to_string()))?;
        let cluster_time = headers.get_str(headers::CLUSTER_TIME).and_then(|text| {
            let (time, increment) = text.split_once('.')?;
            Some(ClusterTime { time: time.parse().ok()?, increment: increment.parse().ok()? })
        });
        Ok(Self { token, cluster_time })
    }
}

#[cfg(test)]
mod tests {
    use bson::{RawDocumentBuf, doc};

    use super::*;
    use crate::event::{MessageFactory, ReadEvent};
    use crate::options::MongoSourceOptions;

    fn read(event: &BsonDocument) -> ReadEvent {
        ReadEvent::of(RawDocumentBuf::try_from(event).unwrap(), 0).unwrap()
    }

    fn deliver(event: &BsonDocument) -> Delivery {
        let mut factory =
            MessageFactory::of(&MongoSourceOptions::collection("mongodb://h", "shop", "orders"));
        Delivery::new(factory.message(read(event)))
    }

    fn update() -> BsonDocument {
        doc! {
            "_id": { "_data": "82AB" }, "operationType": "update",
            "clusterTime": ClusterTime { time: 9, increment: 2 },
            "documentKey": { "_id": 7_i64 }, "fullDocument": { "_id": 7_i64, "total": 3_i64 },
            "fullDocumentBeforeChange": { "_id": 7_i64, "total": 2_i64 },
            "updateDescription": {
                "updatedFields": { "total": 3_i64, "a.b.c": 1 }, "removedFields": ["old"],
                "truncatedArrays": [{ "field": "items", "newSize": 2_i32 }],
            },
            "lsid": { "id": "s" }, "txnNumber": 4_i64,
        }
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Order {
        total: i64,
    }

    #[track_caller]
    fn assert_decode_failure<T: FromDelivery>(delivery: &Delivery, text: &str) {
        let failure = T::from_delivery(delivery).err().expect("extraction should fail").failure();
        assert_eq!((failure.phase, &failure.reason), (Phase::Decode, &Reason::INVALID_SCHEMA));
        assert!(failure.message.contains(text), "{}", failure.message);
    }

    #[test]
    fn documents_are_read_into_their_type() {
        let delivery = deliver(&update());
        assert_eq!(Document::<Order>::from_delivery(&delivery).unwrap().0, Order { total: 3 });
        assert_eq!(Before::<Order>::from_delivery(&delivery).unwrap().0, Order { total: 2 });
        let Document(raw) = Document::<BsonDocument>::from_delivery(&delivery).unwrap();
        assert_eq!(raw, doc! { "_id": 7_i64, "total": 3_i64 }, "a small long stays a long");
    }

    #[test]
    fn a_document_that_does_not_fit_is_a_decode_failure() {
        let mut event = update();
        event.insert("fullDocument", doc! { "total": "three" });
        assert_decode_failure::<Document<Order>>(&deliver(&event), "invalid type");
    }

    #[test]
    fn a_missing_document_is_told_and_an_option_takes_it() {
        let mut event = update();
        event.insert("operationType", "delete");
        event.insert("fullDocument", Bson::Null);
        event.remove("fullDocumentBeforeChange");
        let delivery = deliver(&event);
        assert_decode_failure::<Document<Order>>(&delivery, "the event `delete` has no `fullDocument`");
        assert_decode_failure::<Before<Order>>(&delivery, "fullDocumentBeforeChange");
        assert_eq!(Document::<Option<Order>>::from_delivery(&delivery).unwrap(), Document(None));
    }

    #[test]
    fn an_update_tells_what_it_changed() {
        let changes = UpdateDescription::from_delivery(&deliver(&update())).unwrap();
        assert_eq!(changes.removed_fields, ["old"]);
        assert_eq!(changes.truncated_arrays[0], TruncatedArray { field: "items".into(), new_size: 2 });
        for path in ["total", "a", "a.b", "a.b.c", "a.b.c.d", "old", "items"] {
            assert!(changes.has_changed(path), "{path}");
        }
        for path in ["tot", "totals", "b", "a.bc"] {
            assert!(!changes.has_changed(path), "{path}");
        }
        let mut event = update();
        event.remove("updateDescription");
        assert_decode_failure::<UpdateDescription>(&deliver(&event), "only updates have one");
    }

    #[test]
    fn operation_key_transaction_and_place_are_taken_as_they_are() {
        let delivery = deliver(&update());
        assert_eq!(OperationType::from_delivery(&delivery).unwrap().0, Operation::Update);
        assert_eq!(DocumentKey::from_delivery(&delivery).unwrap().0, doc! { "_id": 7_i64 });
        let Transaction(transaction) = Transaction::from_delivery(&delivery).unwrap();
        assert_eq!(transaction, Some(TransactionInfo { session: doc! { "id": "s" }, number: 4 }));
        let namespace = Namespace::from_delivery(&delivery).unwrap();
        assert_eq!(
            (namespace.database.as_deref(), namespace.collection.as_deref()),
            (Some("shop"), Some("orders"))
        );
        let point = ResumePoint::from_delivery(&delivery).unwrap();
        assert_eq!(point.token, doc! { "_data": "82AB" });
        assert_eq!(point.cluster_time, Some(ClusterTime { time: 9, increment: 2 }));
        assert_eq!(ChangeEvent::from_delivery(&delivery).unwrap().0, update());
    }

    #[test]
    fn the_key_of_a_whole_database_gives_back_the_document_key() {
        let mut factory = MessageFactory::of(&MongoSourceOptions::database("mongodb://h", "shop"));
        let delivery = Delivery::new(factory.message(read(&update())));
        let DocumentKey(key) = DocumentKey::from_delivery(&delivery).unwrap();
        assert_eq!(key, doc! { "_id": 7_i64 });
    }

    #[test]
    fn an_event_outside_of_a_transaction_has_none() {
        let mut event = update();
        event.remove("lsid");
        assert_eq!(Transaction::from_delivery(&deliver(&event)).unwrap(), Transaction(None));
    }
}
