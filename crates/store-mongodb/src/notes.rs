//! Attempt notes: the attempts of messages that wait in memory.

use bson::{Document, doc, rawdoc};
use lazaret_core::message::PartitionNumber;
use lazaret_core::store::{AttemptNote, Result};
use lazaret_core::{Failure, MessageId, Partition, QueueName, StreamName};
use serde::{Deserialize, Serialize};

use crate::database::{encode, project};
use crate::error::invalid;
use crate::store::MongoStore;
use crate::values::{int, nanos, time, uint};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NoteDoc {
    #[serde(rename = "_id")]
    id: String,
    queue: QueueName,
    stream: StreamName,
    partition: i64,
    offset: i64,
    message: MessageId,
    attempts: i64,
    first_failed_at: i64,
    failure: Failure,
    same_failure: u32,
    due_at: i64,
}

impl NoteDoc {
    fn new(queue: &QueueName, note: AttemptNote) -> Result<Self> {
        let AttemptNote { message, partition, offset, .. } = note;
        let offset = i64::try_from(offset).map_err(|_| invalid(format!("offset {offset} is above 2^63")))?;
        let id = format!(
            "{}:{queue}{}:{partition}:{offset}:{message}",
            queue.as_str().len(),
            partition.stream.as_str().len()
        );
        Ok(Self {
            id,
            queue: queue.clone(),
            partition: partition.number().stored(),
            stream: partition.stream,
            offset,
            message,
            attempts: note.attempts.into(),
            first_failed_at: nanos(note.first_failed_at),
            failure: note.failure,
            same_failure: note.same_failure,
            due_at: nanos(note.due_at),
        })
    }

    fn note(self) -> AttemptNote {
        let number = PartitionNumber::from_stored(self.partition);
        let number = number.unwrap_or(PartitionNumber { index: 0, incarnation: 0 });
        AttemptNote {
            message: self.message,
            partition: number.of(self.stream),
            offset: uint(self.offset),
            attempts: u32::try_from(self.attempts).unwrap_or(u32::MAX),
            first_failed_at: time(self.first_failed_at),
            failure: self.failure,
            same_failure: self.same_failure,
            due_at: time(self.due_at),
        }
    }
}

impl MongoStore {
    /// Writes notes. One with more attempts stays: the filter does not find it, and the upsert is a duplicate.
    pub(crate) async fn write_notes(&self, queue: &QueueName, notes: Vec<AttemptNote>) -> Result<()> {
        let mut updates = Vec::with_capacity(notes.len());
        for note in notes {
            let doc = NoteDoc::new(queue, note)?;
            let filter = doc! { "_id": &doc.id, "attempts": { "$lte": doc.attempts } };
            updates.push(rawdoc! { "q": encode(&filter)?, "u": encode(&doc)?, "upsert": true });
        }
        self.db().update_all(&self.db().notes, &updates).await.map(drop)
    }

    pub(crate) async fn read_notes(
        &self,
        queue: &QueueName,
        partitions: &[Partition],
    ) -> Result<Vec<AttemptNote>> {
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        // Each for itself, so that the server reads each from where it begins, in the order of the index.
        let any: Vec<Document> = partitions.iter().map(|partition| of_partition(queue, partition)).collect();
        let filter = doc! { "$or": any };
        let sort = doc! { "stream": 1, "partition": 1, "offset": 1 };
        let notes: Vec<NoteDoc> = project(&self.db().notes, filter, Document::new(), sort).await?;
        Ok(notes.into_iter().map(NoteDoc::note).collect())
    }

    pub(crate) async fn delete_notes(
        &self,
        queue: &QueueName,
        partition: &Partition,
        up_to: u64,
    ) -> Result<()> {
        let mut filter = of_partition(queue, partition);
        filter.insert("offset", doc! { "$lte": int(up_to) });
        self.db().delete(&self.db().notes, filter).await.map(drop)
    }
}

fn of_partition(queue: &QueueName, partition: &Partition) -> Document {
    doc! {
        "queue": queue.as_str(), "stream": partition.stream.as_str(), "partition": partition.number().stored(),
    }
}
