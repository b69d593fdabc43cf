//! The numbers of letters and sequences, read from indexes alone.
//!
//! The documents of sequences hold counts too, but a queue has one for each sequence that it ever had. The index of letters by state has
//! an entry of some bytes for each letter, and no letter is read.

use std::collections::BTreeMap;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use lazaret_core::QueueName;
use lazaret_core::Timestamp;
use lazaret_core::letter::LetterState;
use lazaret_core::store::{Counts, QueueSummary, Result};
use serde::Deserialize;

use crate::calls::Documents;
use crate::database::{count, list_fields};
use crate::error::reading;
use crate::indexes::is_number;
use crate::store::MongoStore;
use crate::values::{time, uint};

/// The condition that a letter has a number: it was not purged, and it is one of Lazaret's.
fn is_numbered() -> Document {
    doc! { "$gt": 0_i64 }
}

/// The names of the open states.
pub(crate) fn open_states() -> Vec<&'static str> {
    LetterState::ALL.iter().filter(|state| state.is_open()).map(|state| state.as_str()).collect()
}

/// When a letter was taken in, and when it expires.
#[derive(Deserialize)]
struct TimesDoc {
    lazaret: Times,
}

#[derive(Deserialize)]
struct Times {
    #[serde(default)]
    enqueued: Option<i64>,
    #[serde(default)]
    expires: Option<i64>,
}

/// A whole number, of whatever kind.
fn number(document: &Document, name: &str) -> u64 {
    match document.get(name) {
        Some(Bson::Int64(number)) => uint(*number),
        Some(Bson::Int32(number)) => uint((*number).into()),
        Some(Bson::Double(number)) => *number as u64,
        _ => 0,
    }
}

impl MongoStore {
    pub(crate) async fn counts_of(&self, queue: &QueueName) -> Result<Counts> {
        self.catch_up().await?;
        let counted = self.counted(Some(queue)).await?;
        Ok(counted.into_iter().next().map_or_else(Counts::default, |(_, counts)| counts))
    }

    /// The queues that have ever held a letter. The server skips from one to the next in an index.
    pub(crate) async fn queues_with_letters(&self) -> Result<Vec<QueueName>> {
        let named = doc! { "lazaret.queue": { "$gte": "" } };
        let found =
            self.db().letters.call(|letters| async move { letters.distinct("lazaret.queue", named).await });
        let found = found.await.map_err(reading)?;
        let mut queues: Vec<QueueName> = found.iter().filter_map(Bson::as_str).map(QueueName::from).collect();
        queues.sort();
        Ok(queues)
    }

    /// The counts of a queue, or of all that have letters or open sequences.
    pub(crate) async fn counted(&self, queue: Option<&QueueName>) -> Result<BTreeMap<QueueName, Counts>> {
        let of = queue.map_or_else(|| Bson::from(doc! { "$gte": "" }), |queue| queue.as_str().into());
        let letters = [
            doc! { "$match": { "lazaret.queue": of.clone(), "lazaret.number": is_numbered() } },
            doc! { "$group": {
                "_id": { "queue": "$lazaret.queue", "state": "$lazaret.state" }, "counted": { "$sum": 1_i64 },
            } },
        ];
        let mut counts: BTreeMap<QueueName, Counts> = BTreeMap::new();
        for row in grouped(&self.db().letters, letters).await? {
            let Ok(group) = row.get_document("_id") else { continue };
            let (Ok(queue), Ok(name)) = (group.get_str("queue"), group.get_str("state")) else { continue };
            if let Some(state) = LetterState::ALL.iter().find(|state| state.as_str() == name) {
                let counts = counts.entry(QueueName::from(queue)).or_default();
                counts.by_state[*state as usize] = number(&row, "counted");
            }
        }
        if let Some(queue) = queue {
            let open = doc! { "queue": queue.as_str(), "open": true };
            let sequences = count(&self.db().sequences, open, None).await?;
            counts.entry(queue.clone()).or_default().sequences = sequences;
            return Ok(counts);
        }
        let sequences = [
            doc! { "$match": { "queue": of, "open": true } },
            doc! { "$group": { "_id": "$queue", "counted": { "$sum": 1_i64 } } },
        ];
        for row in grouped(&self.db().sequences, sequences).await? {
            if let Ok(queue) = row.get_str("_id") {
                counts.entry(QueueName::from(queue)).or_default().sequences = number(&row, "counted");
            }
        }
        Ok(counts)
    }

    pub(crate) async fn summaries(&self) -> Result<Vec<QueueSummary>> {
        self.catch_up().await?;
        let mut counted = self.counted(None).await?;
        let mut summaries = Vec::new();
        for queue in self.queues_with_letters().await? {
            let counts = counted.remove(&queue).unwrap_or_default();
            let oldest = self.oldest(&queue).await?;
            let next_expiry = self.next_expiry(&queue).await?;
            summaries.push(QueueSummary { queue, counts, oldest, next_expiry });
        }
        Ok(summaries)
    }

    /// When the oldest open letter of a queue was taken in: the one that arrived first.
    async fn oldest(&self, queue: &QueueName) -> Result<Option<Timestamp>> {
        let filter = doc! {
            "lazaret.queue": queue.as_str(), "lazaret.state": { "$in": open_states() }, "lazaret.number": is_numbered(),
        };
        let oldest = self.first_times(filter, doc! { "lazaret.number": 1 }).await?;
        Ok(oldest.and_then(|oldest| oldest.enqueued).map(time))
    }

    /// When the oldest open letter of a group was taken in.
    pub(crate) async fn oldest_of_group(
        &self,
        queue: &QueueName,
        fingerprint: &str,
    ) -> Result<Option<Timestamp>> {
        let filter = doc! {
            "lazaret.queue": queue.as_str(), "lazaret.group": fingerprint, "lazaret.open": true,
            "lazaret.number": is_numbered(),
        };
        let oldest = self.first_times(filter, doc! { "lazaret.number": 1 }).await?;
        Ok(oldest.and_then(|oldest| oldest.enqueued).map(time))
    }

    /// When the next open letter of a queue expires. Letters that wait do not.
    async fn next_expiry(&self, queue: &QueueName) -> Result<Option<Timestamp>> {
        let next = self.first_times(will_expire(queue, None), doc! { "lazaret.expires": 1 }).await?;
        Ok(next.and_then(|next| next.expires).map(time))
    }

    async fn first_times(&self, filter: Document, sort: Document) -> Result<Option<Times>> {
        let fields = doc! { "_id": 0, "lazaret.enqueued": 1, "lazaret.expires": 1 };
        let first: Vec<TimesDoc> = list_fields(&self.db().letters, filter, fields, sort, 1).await?;
        Ok(first.into_iter().next().map(|first| first.lazaret))
    }
}

/// The open letters of a queue that expire, by a time at the latest. Those that wait do not expire.
pub(crate) fn will_expire(queue: &QueueName, until: Option<i64>) -> Document {
    let mut expires = is_number();
    if let Some(until) = until {
        expires.insert("$lte", until);
    }
    doc! {
        "lazaret.queue": queue.as_str(),
        "lazaret.open": true,
        "lazaret.expires": expires,
        "lazaret.state": { "$ne": LetterState::Waiting.as_str() },
    }
}

/// The rows of an aggregation.
async fn grouped<const N: usize>(of: &Documents, stages: [Document; N]) -> Result<Vec<Document>> {
    let found = of.call(|of| async move { of.aggregate(stages).await?.try_collect::<Vec<Document>>().await });
    found.await.map_err(reading)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_any_kind_is_read() {
        let row = doc! { "long": 7_i64, "int": 7, "double": 7.0, "text": "7" };
        let read = |name| number(&row, name);
        assert_eq!((read("long"), read("int"), read("double")), (7, 7, 7));
        assert_eq!((read("text"), read("none")), (0, 0));
    }

    #[test]
    fn letters_that_wait_are_open() {
        assert_eq!(open_states(), ["retrying", "dead", "parked", "quarantined", "waiting"]);
    }
}
