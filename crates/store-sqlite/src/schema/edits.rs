//! Migration to version 5: moves the edits of existing letters out of their bodies.

use rusqlite::{Connection, params};

use crate::error::Work;
use crate::letters::edits;
use crate::rows::{Body, limit as rows_of};

/// Moves the edits of all letters to their own table.
pub(super) fn fill(connection: &Connection) -> Work<()> {
    /// Bodies with edits can be large.
    const PAGE: usize = 16;
    let mut select = connection.prepare(
        "SELECT lid, body FROM letters WHERE lid > ?1 AND instr(body, CAST('\"edits\":' AS BLOB)) > 0
         ORDER BY lid LIMIT ?2",
    )?;
    let mut update = connection.prepare("UPDATE letters SET body = ?2, edits = ?3 WHERE lid = ?1")?;
    let mut last = i64::MIN;
    loop {
        let mut page = Vec::new();
        let mut rows = select.query([last, rows_of(PAGE)])?;
        while let Some(row) = rows.next()? {
            let body = Body::decode(row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?)?;
            page.push((row.get(0)?, body));
        }
        drop(rows);
        let Some((lid, _)) = page.last() else { return Ok(()) };
        last = *lid;
        for (lid, mut body) in page {
            let number = edits::insert_all(connection, lid, &body.take_edits())?;
            update.execute(params![lid, body.encode()?, number])?;
        }
    }
}
