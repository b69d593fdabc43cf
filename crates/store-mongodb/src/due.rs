//! The sequences of a queue in the order in which they can be claimed, read in pages by the index of that order.

use bson::{Document, doc};
use lazaret_core::store::Result;
use lazaret_core::{QueueName, SequenceId};
use serde::Deserialize;

use crate::database::list_fields;
use crate::store::MongoStore;

/// A sequence that can be claimed from a time on, pauses and reservations apart.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FreeSequence {
    pub(crate) sequence: SequenceId,
    pub(crate) free_at: i64,
    #[serde(default)]
    row: FreeRow,
}

#[derive(Debug, Default, Deserialize)]
struct FreeRow {
    #[serde(default)]
    reserved: Option<i64>,
}

impl FreeSequence {
    /// The operation that may keep it for itself.
    pub(crate) const fn reserved(&self) -> Option<i64> {
        self.row.reserved
    }
}

/// The sequences of a queue that can be claimed by a time, behind one that can be claimed at another.
pub(crate) fn free_by(queue: &QueueName, until: i64, behind: Option<(i64, &SequenceId)>) -> Document {
    let of = |free_at: Document| doc! { "queue": queue.as_str(), "open": true, "freeAt": free_at };
    match behind {
        None => of(doc! { "$lte": until }),
        // Each way for itself, so that the server reads both from where they begin.
        Some((free_at, sequence)) => {
            let mut same = of(doc! { "$eq": free_at });
            same.insert("sequence", doc! { "$gt": sequence.as_str() });
            doc! { "$or": [of(doc! { "$gt": free_at, "$lte": until }), same] }
        }
    }
}

/// The order in which sequences can be claimed.
pub(crate) fn free_order() -> Document {
    doc! { "freeAt": 1, "sequence": 1 }
}

impl MongoStore {
    /// The next sequences that can be claimed by a time, behind the last one of the page before.
    pub(crate) async fn free_sequences(
        &self,
        queue: &QueueName,
        until: i64,
        behind: Option<&FreeSequence>,
        limit: usize,
    ) -> Result<Vec<FreeSequence>> {
        let filter = free_by(queue, until, behind.map(|last| (last.free_at, &last.sequence)));
        let fields = doc! { "_id": 0, "sequence": 1, "freeAt": 1, "row.reserved": 1 };
        list_fields(&self.db().sequences, filter, fields, free_order(), limit).await
    }
}
