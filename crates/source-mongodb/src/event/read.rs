//! Events as the reader passes them on.

use bson::{RawDocumentBuf, Timestamp as ClusterTime};
use lazaret_core::{Operation, Position};

use super::{Fields, operation_of, text};
use crate::position::{offset_of, time_of_token, token_bytes};

/// An event that was read, and what the reader must know of it. Its message is made when the engine takes it, on another task:
/// that costs more than reading.
#[derive(Clone, Debug)]
pub(crate) struct ReadEvent {
    pub(crate) raw: RawDocumentBuf,
    pub(crate) position: Position,
    pub(crate) operation: Operation,
    pub(crate) cluster_time: Option<ClusterTime>,
}

impl ReadEvent {
    /// Only an event without a resume token is none. An event without a cluster time is placed at `last_offset`: offsets never
    /// decrease.
    pub(crate) fn of(raw: RawDocumentBuf, last_offset: u64) -> Option<Self> {
        let fields = Fields::of(&raw);
        let token = fields.token?;
        let cluster_time = fields.cluster_time.or_else(|| text(token, "_data").and_then(time_of_token));
        let position = Position {
            partition: 0,
            offset: cluster_time.map_or(last_offset, |time| offset_of(time).max(last_offset)),
            token: Some(token_bytes(token)),
        };
        let operation = fields.operation.map_or(Operation::Other, operation_of);
        Some(Self { raw, position, operation, cluster_time })
    }
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
    fn an_event_without_a_token_is_none() {
        let raw = RawDocumentBuf::try_from(&doc! { "operationType": "insert" }).unwrap();
        assert!(ReadEvent::of(raw, 0).is_none());
    }
}
