//! Notes on the attempts of messages that wait in memory.

use jiff::Timestamp;
use lazaret_core::letter::LetterId;
use lazaret_core::store::{AttemptNote, Result};
use lazaret_core::{Failure, Partition};
use serde::{Deserialize, Serialize};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::error::Work;
use crate::store::{PostgresStore, Queue};
use crate::values::{Columns, bound, from_json, number, partition, small, text, to_json};

const NOTE: &str = "note_attempts";
/// Of two notes on one message in a call, the later one counts, as it would in two calls.
const WRITE: &str = "INSERT INTO notes AS n (qid, id, stream, partition, position, message, attempts, body)
    SELECT DISTINCT ON (id, stream, partition, position) $1, id, stream, partition, position, message, attempts,
    body::json FROM unnest($2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[], $8::text[])
    WITH ORDINALITY AS u (id, stream, partition, position, message, attempts, body, place)
    ORDER BY id, stream, partition, position, attempts DESC, place DESC
    ON CONFLICT (qid, id, stream, partition, position) DO UPDATE SET attempts = excluded.attempts, body = excluded.body
    WHERE n.attempts <= excluded.attempts";
const READ: &str = "SELECT n.stream, n.partition, n.position, n.message, n.attempts, n.body::text FROM notes n
    JOIN unnest($2::text[], $3::bigint[]) WITH ORDINALITY AS u (stream, partition, place)
    ON n.stream = u.stream AND n.partition = u.partition WHERE n.qid = $1 ORDER BY u.place, n.position, n.message";
const FORGET: &str = "DELETE FROM notes WHERE qid = $1 AND stream = $2 AND partition = $3 AND position <= $4";

/// The fields of a note without a column of their own.
#[derive(Serialize, Deserialize)]
struct NoteBody {
    first_failed_at: Timestamp,
    failure: Failure,
    same_failure: u32,
    due_at: Timestamp,
}

#[derive(Default)]
struct NoteArrays {
    id: Vec<Uuid>,
    stream: Vec<String>,
    partition: Vec<i64>,
    position: Vec<i64>,
    message: Vec<String>,
    attempts: Vec<i64>,
    body: Vec<String>,
}

impl NoteArrays {
    fn push(&mut self, queue: &Queue, note: &AttemptNote) -> Work<()> {
        self.position.push(number(note.offset, "offset", NOTE)?);
        self.id.push(LetterId::of(&queue.name, &note.message).as_uuid());
        self.stream.push(text(note.partition.stream.as_str()).into_owned());
        self.partition.push(note.partition.number().stored());
        self.message.push(text(note.message.as_str()).into_owned());
        self.attempts.push(note.attempts.into());
        let body = NoteBody {
            first_failed_at: note.first_failed_at,
            failure: note.failure.clone(),
            same_failure: note.same_failure,
            due_at: note.due_at,
        };
        self.body.push(to_json(&body, "an attempt note")?);
        Ok(())
    }
}

fn read(row: &Row) -> Work<AttemptNote> {
    let mut c = Columns::of(row);
    let partition = partition(c.text()?, c.get()?)?;
    let (offset, message, attempts) = (c.unsigned()?, c.text()?.into(), small(c.get()?)?);
    let NoteBody { first_failed_at, failure, same_failure, due_at } =
        from_json(&c.get::<String>()?, "an attempt note")?;
    Ok(AttemptNote { message, partition, offset, attempts, first_failed_at, failure, same_failure, due_at })
}

impl PostgresStore {
    /// Stores all notes, or none if one is invalid.
    pub(crate) async fn write_notes(&self, queue: &Queue, notes: &[AttemptNote]) -> Result<()> {
        let mut arrays = NoteArrays::default();
        let pushed: Work<()> = notes.iter().try_for_each(|note| arrays.push(queue, note));
        pushed.map_err(|fault| fault.into_error(NOTE))?;
        let NoteArrays { id, stream, partition, position, message, attempts, body } = &arrays;
        self.write_once(NOTE, WRITE, &[&queue.qid, id, stream, partition, position, message, attempts, body])
            .await
    }

    pub(crate) async fn read_notes(
        &self,
        queue: &Queue,
        partitions: &[Partition],
    ) -> Result<Vec<AttemptNote>> {
        const READING: &str = "attempt_notes";
        let streams: Vec<_> = partitions.iter().map(|partition| text(partition.stream.as_str())).collect();
        let indexes: Vec<i64> = partitions.iter().map(|partition| partition.number().stored()).collect();
        let rows = self.ask(READING, READ, &[&queue.qid, &streams, &indexes]).await?;
        rows.iter().map(read).collect::<Work<_>>().map_err(|fault| fault.into_error(READING))
    }

    pub(crate) async fn forget_notes(&self, queue: &Queue, partition: &Partition, up_to: u64) -> Result<()> {
        let (stream, index) = (text(partition.stream.as_str()), partition.number().stored());
        self.write_once("forget_attempts", FORGET, &[&queue.qid, &stream, &index, &bound(up_to)]).await
    }
}
