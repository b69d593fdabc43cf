//! Reads a value of a file that another process may be using.

use std::path::Path;

use lazaret_core::store::Result;
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use crate::options::Options;
use crate::schema::{at, check_format};

/// The format version from which files have values by name.
const SINCE: u32 = 4;

/// The value with this name in a namespace of a file, for checks before the start. Opens the file read-only.
///
/// # Errors
/// As [`format_version`](crate::format_version).
///
/// ```
/// use lazaret_core::store::{Expect, KeyValue};
/// use lazaret_store_sqlite::{Options, SqliteStore, stored_value};
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("lazaret.db");
/// let store = SqliteStore::open(&path, Options::default()).unwrap();
/// assert_eq!(stored_value(&path, "a", "b").unwrap(), None);
/// store.write("a", "b", Expect::Absent, Some("c".into()), None).await.unwrap();
/// assert_eq!(stored_value(&path, "a", "b").unwrap().as_deref(), Some(&b"c"[..]));
/// # });
/// ```
pub fn stored_value(path: impl AsRef<Path>, space: &str, name: &str) -> Result<Option<Vec<u8>>> {
    let path = path.as_ref();
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| at(path, error))?;
    connection.busy_timeout(Options::default().busy_timeout).map_err(|error| at(path, error))?;
    if check_format(&connection, path)? < SINCE {
        return Ok(None);
    }
    let sql = "SELECT value FROM key_values WHERE space = ?1 AND name = ?2";
    let found = connection.query_row(sql, [space, name], |row| row.get(0)).optional();
    found.map_err(|error| at(path, error))
}
