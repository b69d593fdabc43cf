//! Change events: their fields, their operations, and their restoration from messages.

mod factory;
mod read;
mod recorded;

use bson::raw::RawBsonRef;
use bson::{Document, RawDocument, Timestamp as ClusterTime};
use lazaret_core::{Message, Operation};

pub(crate) use self::factory::MessageFactory;
pub(crate) use self::read::ReadEvent;
use crate::extjson;

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

/// The fields of an event, found in one pass. Absent fields and fields of another type are treated alike.
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
        // The iteration ends at bytes that are not BSON. The payload reports them.
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

/// Returns the operation with this server name.
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

/// Returns the server's name of an operation. Other operations have many names.
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

/// Restores an event from the payload of its message.
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
    use super::*;

    #[test]
    fn every_operation_has_one_name() {
        for name in ["insert", "update", "replace", "delete", "drop", "dropDatabase", "rename", "invalidate"]
        {
            assert_eq!(name_of(operation_of(name)), Some(name));
        }
    }
}
