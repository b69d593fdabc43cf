//! The mark that content was erased since the file was last rewritten. It is in the file, so it outlives a restart.

use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Work;

/// Its name in the table `meta`.
const KEY: &str = "erased";

/// Sets the mark, in the transaction of an erasure. Each has another value.
pub(crate) fn set(connection: &Connection) -> Work<()> {
    let mut set = connection.prepare_cached(
        "INSERT INTO meta (key, value) VALUES (?1, random()) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
    )?;
    set.execute([KEY])?;
    Ok(())
}

/// The mark of the last erasure, if the file may still hold what it erased.
pub(crate) fn read(connection: &Connection) -> Work<Option<i64>> {
    let mut select = connection.prepare_cached("SELECT value FROM meta WHERE key = ?1")?;
    Ok(select.query_row([KEY], |row| row.get(0)).optional()?)
}

/// Removes the mark, unless it is that of a later erasure.
pub(crate) fn remove(connection: &Connection, mark: i64) -> Work<()> {
    connection.execute("DELETE FROM meta WHERE key = ?1 AND value = ?2", params![KEY, mark])?;
    Ok(())
}
