//! Events as the reader passes them on.

use bson::{RawDocumentBuf, Timestamp as ClusterTime, Uuid};
use lazaret_core::{Operation, Position};

use super::{Fields, operation_of, text};
use crate::position::{collection_of_token, is_invalidation, offset_of, time_of_token, token_bytes};

/// An event that was read, with what the reader must know about it. Its message is built when the engine
/// takes it, on another task, because that costs more than reading.
#[derive(Clone, Debug)]
pub(crate) struct ReadEvent {
    pub(crate) raw: RawDocumentBuf,
    pub(crate) position: Position,
    pub(crate) operation: Operation,
    pub(crate) cluster_time: Option<ClusterTime>,
    /// The UUID of the collection of a changed document, if the token names it.
    pub(crate) collection: Option<Uuid>,
    /// Whether the stream ends with this event. Most tokens show this too, even if a pipeline has
    /// removed the operation.
    pub(crate) is_invalidation: bool,
}

impl ReadEvent {
    /// Reads an event. Returns `None` only without a resume token. An event without a cluster time is
    /// placed at `last_offset`, because offsets never decrease.
    pub(crate) fn of(raw: RawDocumentBuf, last_offset: u64) -> Option<Self> {
        let fields = Fields::of(&raw);
        let token = fields.token?;
        let data = text(token, "_data");
        let cluster_time = fields.cluster_time.or_else(|| data.and_then(time_of_token));
        let offset = cluster_time.map_or(last_offset, |time| offset_of(time).max(last_offset));
        let position = Position { token: Some(token_bytes(token)), ..Position::new(0, offset) };
        let operation = fields.operation.map_or(Operation::Other, operation_of);
        // A rename may name the collection that gets the name.
        let collection = data.filter(|_| is_of_document(operation)).and_then(collection_of_token);
        let is_invalidation = operation == Operation::Invalidate || data.is_some_and(is_invalidation);
        Some(Self { raw, position, operation, cluster_time, collection, is_invalidation })
    }

    /// Returns `true` if a document was changed, and not the whole collection or database.
    pub(crate) fn is_of_document(&self) -> bool {
        is_of_document(self.operation)
    }
}

fn is_of_document(operation: Operation) -> bool {
    matches!(operation, Operation::Insert | Operation::Update | Operation::Replace | Operation::Delete)
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    #[test]
    fn offsets_never_decrease_even_without_a_cluster_time() {
        // I1
        let bare = doc! { "_id": { "_data": "x" }, "operationType": "invalidate" };
        let read = ReadEvent::of(RawDocumentBuf::try_from(&bare).unwrap(), 41).unwrap();
        assert_eq!((read.position.offset, read.operation), (41, Operation::Invalidate));
    }

    #[test]
    fn the_event_of_a_document_names_its_collection_and_no_other_event_does() {
        let id = "07".repeat(16);
        let data = format!("8267C867A2000000192B042C0100296E5A1004{id}463C6F7004");
        let read = |operation: &str| {
            let event = doc! { "_id": { "_data": &data }, "operationType": operation };
            ReadEvent::of(RawDocumentBuf::try_from(&event).unwrap(), 0).unwrap()
        };
        for operation in ["insert", "update", "replace", "delete"] {
            assert_eq!(read(operation).collection, Some(Uuid::from_bytes([7; 16])), "{operation}");
        }
        for operation in ["drop", "rename", "dropDatabase", "invalidate", "create"] {
            assert_eq!((read(operation).collection, read(operation).is_of_document()), (None, false));
        }
    }

    #[test]
    fn an_invalidation_is_known_by_its_operation_or_by_its_token() {
        let read = |flag: &str, operation: Option<&str>| {
            let data = format!("8267C867A2000000192B042C010029{flag}5A1004{}04", "07".repeat(16));
            let mut event = doc! { "_id": { "_data": data } };
            event.extend(operation.map(|operation| ("operationType".to_owned(), operation.into())));
            ReadEvent::of(RawDocumentBuf::try_from(&event).unwrap(), 0).unwrap().is_invalidation
        };
        assert!(read("6E", Some("invalidate")) && read("6F", Some("invalidate")) && read("6F", None));
        assert!(!read("6E", Some("drop")) && !read("6E", None));
    }

    #[test]
    fn an_event_without_a_token_is_none() {
        let raw = RawDocumentBuf::try_from(&doc! { "operationType": "insert" }).unwrap();
        assert!(ReadEvent::of(raw, 0).is_none());
    }
}
