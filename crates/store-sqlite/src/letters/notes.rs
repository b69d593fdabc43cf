//! Notes on the attempts of messages that wait in memory.

use lazaret_core::Partition;
use lazaret_core::store::AttemptNote;
use rusqlite::{Connection, params};

use super::Queue;
use crate::encoded_letter::{Note, NoteBody};
use crate::error::Work;
use crate::rows::{self, bound, unsigned};

impl Queue<'_> {
    /// Stores all notes, or none if one is invalid.
    pub(crate) fn note_attempts(&self, notes: &[Note]) -> Work<()> {
        let offset = |note: &Note| rows::number(note.place.offset, "offset", "note_attempts");
        let offsets = notes.iter().map(offset).collect::<Work<Vec<i64>>>()?;
        let mut upsert = self.connection.prepare_cached(
            "INSERT INTO notes (qid, stream, partition, position, message, attempts, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (qid, stream, partition, position, message)
             DO UPDATE SET attempts = excluded.attempts, body = excluded.body WHERE attempts <= excluded.attempts",
        )?;
        for (note, offset) in notes.iter().zip(offsets) {
            upsert.execute(params![
                self.numbers.qid,
                note.place.stream.as_str(),
                note.place.partition.stored(),
                offset,
                note.message.as_str(),
                note.attempts,
                note.body,
            ])?;
        }
        Ok(())
    }

    pub(crate) fn forget_attempts(&self, partition: &Partition, up_to: u64) -> Work<()> {
        let mut delete = self.connection.prepare_cached(
            "DELETE FROM notes WHERE qid = ?1 AND stream = ?2 AND partition = ?3 AND position <= ?4",
        )?;
        delete.execute(params![
            self.numbers.qid,
            partition.stream.as_str(),
            partition.number().stored(),
            bound(up_to)
        ])?;
        Ok(())
    }
}

/// The notes on messages of these partitions.
pub(crate) fn attempt_notes(
    connection: &Connection,
    qid: i64,
    partitions: &[Partition],
) -> Work<Vec<AttemptNote>> {
    let mut notes = Vec::new();
    let mut select = connection.prepare_cached(
        "SELECT position, message, attempts, body FROM notes
         WHERE qid = ?1 AND stream = ?2 AND partition = ?3 ORDER BY position, message",
    )?;
    for partition in partitions {
        let mut found = select.query(params![qid, partition.stream.as_str(), partition.number().stored()])?;
        while let Some(row) = found.next()? {
            let body = NoteBody::decode(row.get_ref(3)?.as_blob().map_err(rusqlite::Error::from)?)?;
            notes.push(AttemptNote {
                message: row.get::<_, String>(1)?.into(),
                partition: partition.clone(),
                offset: unsigned(row.get(0)?)?,
                attempts: row.get(2)?,
                first_failed_at: body.first_failed_at,
                failure: body.failure,
                same_failure: body.same_failure,
                due_at: body.due_at,
            });
        }
    }
    Ok(notes)
}
