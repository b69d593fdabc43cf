//! The payload edits of letters. They are kept apart from their letters: an edit writes its own row, and retries and searches do not
//! touch any.

use lazaret_core::letter::Edit;
use lazaret_core::store::{Change, KeptEdits};
use rusqlite::{Connection, params};

use crate::error::Work;
use crate::rows::{nanos, time, unsigned};

/// Appends the edit with this number, the first being 1. `kept` is the size of the originals before it.
pub(crate) fn insert(connection: &Connection, lid: i64, number: i64, kept: usize, edit: &Edit) -> Work<()> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO edits (lid, number, who, at, why, kept, original) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    let kept = kept.saturating_add(size(edit));
    let kept = i64::try_from(kept).unwrap_or(i64::MAX);
    insert.execute(params![
        lid,
        number,
        edit.by,
        nanos(edit.at),
        edit.why,
        kept,
        edit.original.as_deref()
    ])?;
    Ok(())
}

/// Inserts all edits of a new letter, and returns their number.
pub(crate) fn insert_all(connection: &Connection, lid: i64, edits: &[Edit]) -> Work<i64> {
    let (mut number, mut kept) = (0, 0);
    for edit in edits {
        number += 1;
        insert(connection, lid, number, kept, edit)?;
        kept += size(edit);
    }
    Ok(number)
}

/// The edits of a letter up to this number, the oldest first.
pub(crate) fn read(connection: &Connection, lid: i64, number: i64) -> Work<Vec<Edit>> {
    if number == 0 {
        return Ok(Vec::new());
    }
    let mut select = connection.prepare_cached(
        "SELECT who, at, why, original FROM edits WHERE lid = ?1 AND number <= ?2 ORDER BY number",
    )?;
    let rows = select.query_map([lid, number], |row| {
        let original: Option<Vec<u8>> = row.get(3)?;
        Ok(Edit {
            by: row.get(0)?,
            at: time(row.get(1)?),
            why: row.get(2)?,
            original: original.map(Into::into),
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// What a change has to know of the earlier edits, `number` of them. Reads two rows at most.
pub(super) fn kept(connection: &Connection, lid: i64, number: i64, change: &Change) -> Work<KeptEdits> {
    let (Change::Payload(payload) | Change::HeldPayload(payload), 1..) = (change, number) else {
        return Ok(KeptEdits::default());
    };
    let mut select = connection.prepare_cached("SELECT kept FROM edits WHERE lid = ?1 AND number = ?2")?;
    let bytes: i64 = select.query_row([lid, number], |row| row.get(0))?;
    let mut select =
        connection.prepare_cached("SELECT original IS ?2 FROM edits WHERE lid = ?1 AND number = 1")?;
    let reverts = select.query_row(params![lid, payload.as_deref()], |row| row.get(0))?;
    let in_memory = |number: i64| unsigned(number).map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    Ok(KeptEdits { edits: in_memory(number)?, bytes: in_memory(bytes)?, reverts })
}

/// Deletes the edits of a letter.
pub(super) fn delete(connection: &Connection, lid: i64) -> Work<()> {
    connection.prepare_cached("DELETE FROM edits WHERE lid = ?1")?.execute([lid])?;
    Ok(())
}

fn size(edit: &Edit) -> usize {
    edit.original.as_ref().map_or(0, |original| original.len())
}
