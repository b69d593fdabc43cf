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
    due: Option<i64>,
    #[serde(default)]
    reserved: Option<i64>,
}

impl FreeSequence {
    /// When its head is due.
    pub(crate) const fn due(&self) -> Option<i64> {
        self.row.due
    }

    /// The operation that may keep it for itself.
    pub(crate) const fn reserved(&self) -> Option<i64> {
        self.row.reserved
    }
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
        let of = |free_at: Document| doc! { "queue": queue.as_str(), "open": true, "freeAt": free_at };
        let filter = match behind {
            None => of(doc! { "$lte": until }),
            // Each way for itself, so that the server reads both from where they begin.
            Some(last) => {
                let mut same = of(doc! { "$eq": last.free_at });
                same.insert("sequence", doc! { "$gt": last.sequence.as_str() });
                doc! { "$or": [of(doc! { "$gt": last.free_at, "$lte": until }), same] }
            }
        };
        let fields = doc! { "_id": 0, "sequence": 1, "freeAt": 1, "row.due": 1, "row.reserved": 1 };
        let sort = doc! { "freeAt": 1, "sequence": 1 };
        list_fields(&self.db().sequences, filter, fields, sort, limit).await
    }
}
