//! The tables, the format version, and how a file is opened.
//!
//! - `letters` has one row per letter, open or closed, in the order of arrival: the row id grows, so the large rows
//!   are always appended. The small indexes take the random access. A closed letter has no `sid`,
//!   but the time when it was closed; a purged one has neither: only its id and state remain.
//!   `reason` duplicates the body's, for queries; code that changes the cause has to change it, too.
//!   `revision` counts the changes of a letter.
//! - `payloads` holds the bytes of their messages, under the same row ids. Only edits change them, so retries
//!   rewrite a letter without them. `edits` holds the payloads that edits replaced.
//! - `sequences` has one row per open sequence, under an integer that letters refer to. `due` and `busy` are set only
//!   while the sequence may run automatically: `due` while it is not leased, `busy` (the earliest next claim) while
//!   it is. So the two partial indexes hold exactly what the scheduler queries.
//! - `queues` and `counts` hold the counters of a queue, `groups` those of the letters with the same cause;
//!   they change with the letters. A sequence refers to the group of its head, which blocks all letters behind it.
//! - `plans` and their `items` are immutable except for the outcomes in the items; `operations` holds the mutable state.
//!   Partial indexes over items without an outcome make the next letter, and the end of a stage, cheap to find.
//! - `redo` has one row: the mark of valid records of the [redo log](crate::redo).
//! - `inbox_logs` has one row per inbox that is a source; `posts` holds its messages until they are settled, and
//!   `consumed_posts` their ids for some time after that.
//! - `key_values` holds checkpoints, locks and the duplicate filter.
//! - `watched` names the queues whose ended letters are listed in `ends`, until they were announced.
//!
//! Times are nanoseconds since 1970. The format version is in `meta` for people and in `PRAGMA user_version`
//! for the code; `PRAGMA application_id` identifies a Lazaret file.

mod edits;
mod groups;
mod key_values;

use std::path::{Path, PathBuf};

use lazaret_core::store::{ErrorKind, Result, StoreError};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use crate::error::{Fault, Work};
use crate::options::{Durability, Options};
use crate::permissions;

/// The format version that this code writes.
pub const FORMAT_VERSION: u32 = 8;
/// `LZRT`, in the file's header.
const APPLICATION_ID: i32 = 0x4c5a_5254;
/// WAL size that triggers a checkpoint, in pages of 4 KiB.
const CHECKPOINT_PAGES: u32 = 8000;
/// Maximum size of the WAL file after a checkpoint, in bytes.
pub(crate) const LOG_LIMIT: i64 = 64 * 1024 * 1024;
const STATEMENTS: usize = 256;
const OPEN: &str = "open";

/// A step from one version of the format to the next.
struct Migration {
    sql: &'static str,
    /// The part that SQL alone cannot express, after it.
    fill: fn(&Connection) -> Work<()>,
}

/// The migrations from an empty file to the current format: migration n leads from version n to n + 1. A released migration
/// never changes.
const MIGRATIONS: &[Migration] = &[
    Migration { sql: include_str!("schema/v1.sql"), fill: |_| Ok(()) },
    Migration {
        sql: concat!(
            include_str!("schema/v2/groups.sql"),
            include_str!("schema/v2/operations.sql"),
            include_str!("schema/v2/query.sql"),
            include_str!("schema/v2/inbox_source.sql"),
        ),
        fill: groups::fill,
    },
    Migration {
        sql: concat!(include_str!("schema/v3/outbox.sql"), include_str!("schema/v3/redo.sql")),
        fill: |_| Ok(()),
    },
    Migration { sql: include_str!("schema/v4/key_value.sql"), fill: key_values::fill },
    Migration {
        sql: concat!(
            include_str!("schema/v5/digests.sql"),
            include_str!("schema/v5/pace.sql"),
            include_str!("schema/v5/edits.sql"),
        ),
        fill: edits::fill,
    },
    Migration { sql: include_str!("schema/v6/leases.sql"), fill: |_| Ok(()) },
    Migration { sql: include_str!("schema/v7/audit.sql"), fill: |_| Ok(()) },
    Migration { sql: include_str!("schema/v8/erasure.sql"), fill: |_| Ok(()) },
];

const _: () = assert!(MIGRATIONS.len() == FORMAT_VERSION as usize);

/// Opens the file, verifies its application id and version, and migrates it to the current format.
pub(crate) fn open_file(path: &Path, options: &Options) -> Result<Connection> {
    refuse_read_only(path)?;
    let mut connection = connect(path, options)?;
    let failed = |error| at(path, error);
    if connection.is_readonly("main").map_err(failed)? {
        return Err(read_only(path));
    }
    let version = check_format(&connection, path)?;
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0)).map_err(failed)?;
    if !mode.eq_ignore_ascii_case("wal") {
        let context = format!("file {} does not support a write-ahead log", path.display());
        return Err(StoreError::not_done(ErrorKind::Invalid, OPEN, context));
    }
    if version < FORMAT_VERSION {
        migrate(&mut connection, path)?;
    }
    // After the first access to the log, because SQLite creates its files with the permissions of the database.
    for suffix in ["", "-wal", "-shm"] {
        permissions::restrict(&beside(path, suffix));
    }
    Ok(connection)
}

/// The path of a file of the database.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The format version of a file; 0 if it is empty. Opens the file read-only.
///
/// # Errors
/// `Invalid` if it is not a Lazaret file or has a newer format than [`FORMAT_VERSION`]; `Corrupt` if it is not an SQLite
/// file; `Unavailable` if it cannot be read.
///
/// ```
/// use lazaret_store_sqlite::{FORMAT_VERSION, Options, SqliteStore, format_version};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("lazaret.db");
/// assert!(format_version(&path).is_err());
/// let store = SqliteStore::open(&path, Options::default()).unwrap();
/// assert_eq!(format_version(&path).unwrap(), FORMAT_VERSION);
/// # drop(store);
/// ```
pub fn format_version(path: impl AsRef<Path>) -> Result<u32> {
    let path = path.as_ref();
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| at(path, error))?;
    connection.busy_timeout(Options::default().busy_timeout).map_err(|error| at(path, error))?;
    check_format(&connection, path)
}

/// Checks a complete file of any known format: that all pages can be read and belong together.
pub(crate) fn check_file(path: &Path) -> Result<()> {
    let failed = |error| at(path, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    check_format(&connection, path)?;
    let found: String =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(failed)?;
    if found == "ok" {
        return Ok(());
    }
    Err(StoreError::not_done(ErrorKind::Corrupt, OPEN, format!("file {}: {found}", path.display())))
}

/// Connects to a file that [`open_file`] has opened before.
pub(crate) fn connect(path: &Path, options: &Options) -> Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    permissions::create(path);
    let connection = Connection::open_with_flags(path, flags).map_err(|error| at(path, error))?;
    configure(&connection, options).map_err(|error| at(path, error))?;
    Ok(connection)
}

/// Opens a read-only connection, and reads once so that errors surface now.
pub(crate) fn connect_reader(path: &Path, options: &Options) -> Result<Connection> {
    let connection = connect(path, options)?;
    connection.pragma_update(None, "query_only", true).map_err(|error| at(path, error))?;
    check_format(&connection, path)?;
    Ok(connection)
}

fn configure(connection: &Connection, options: &Options) -> rusqlite::Result<()> {
    connection.busy_timeout(options.busy_timeout)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // Without it, partial indexes make SQLite prepare nearly every statement again when its parameters change.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    let synchronous = match options.durability {
        Durability::Full => "full",
        Durability::Normal => "normal",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.pragma_update(None, "foreign_keys", false)?;
    connection.pragma_update(None, "cache_size", -i64::from(options.cache_kib))?;
    if options.max_pages.is_some() {
        limit_pages(connection, options.max_pages)?;
    }
    connection.pragma_update_and_check(None, "wal_autocheckpoint", CHECKPOINT_PAGES, |_| Ok(()))?;
    connection.pragma_update_and_check(None, "journal_size_limit", LOG_LIMIT, |_| Ok(()))
}

/// Sets the maximum size of the file for this connection.
pub(crate) fn limit_pages(connection: &Connection, pages: Option<u32>) -> rusqlite::Result<()> {
    /// SQLite's maximum.
    const ALL: u32 = 0xffff_fffe;
    connection.pragma_update_and_check(None, "max_page_count", pages.unwrap_or(ALL), |_| Ok(()))
}

/// Checkpoints and truncates SQLite's log.
pub(crate) fn truncate_wal(connection: &Connection) -> Work<()> {
    let is_busy: bool = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    if is_busy {
        let context = "the file is in use by another connection: some commits remain in its log";
        return Err(StoreError::not_done(ErrorKind::Unavailable, "close", context).into());
    }
    Ok(())
}

/// Checkpoints SQLite's log without waiting for anybody. Returns the bytes of the free pages of the file; `None` if a part of the log was not
/// checkpointed.
pub(crate) fn merge_wal(connection: &Connection) -> Work<Option<u64>> {
    let (is_busy, frames, checkpointed): (bool, i64, i64) =
        connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    if is_busy || frames != checkpointed {
        return Ok(None);
    }
    let number = |pragma| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let (pages, size) = (number("freelist_count")?, number("page_size")?);
    Ok(Some(pages.unsigned_abs().saturating_mul(size.unsigned_abs())))
}

/// Refuses a file that is marked as read-only, even for a user that may write it, such as root.
fn refuse_read_only(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(file) if file.permissions().readonly() => Err(read_only(path)),
        // SQLite reports any other problem.
        _ => Ok(()),
    }
}

fn read_only(path: &Path) -> StoreError {
    let context = format!("file {} is read-only", path.display());
    StoreError::not_done(ErrorKind::Invalid, OPEN, context)
}

/// The format version of the file; 0 if it is empty.
pub(crate) fn check_format(connection: &Connection, path: &Path) -> Result<u32> {
    let failed = |error| at(path, error);
    let number = |pragma| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let application = number("application_id").map_err(failed)?;
    let version = number("user_version").map_err(failed)?;
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0)).map_err(failed)?;
    let invalid = |what: String| {
        let context = format!("file {} {what}", path.display());
        Err(StoreError::not_done(ErrorKind::Invalid, OPEN, context))
    };
    if application == 0 && version == 0 && tables == 0 {
        return Ok(0);
    }
    if application != i64::from(APPLICATION_ID) {
        return invalid("is an SQLite file, but not a Lazaret file".into());
    }
    match u32::try_from(version) {
        Ok(version) if version <= FORMAT_VERSION => Ok(version),
        _ => invalid(format!(
            "has format version {version}, newer than the supported version {FORMAT_VERSION}"
        )),
    }
}

/// Migrates the file to the current format, atomically. Another process may have done it in the meantime.
fn migrate(connection: &mut Connection, path: &Path) -> Result<()> {
    let begin = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let transaction = begin.map_err(|error| at(path, error))?;
    let version = check_format(&transaction, path)?;
    let steps = || -> Work<()> {
        for step in &MIGRATIONS[version as usize..] {
            transaction.execute_batch(step.sql)?;
            (step.fill)(&transaction)?;
        }
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", FORMAT_VERSION)?;
        transaction.execute(
            "INSERT INTO meta (key, value) VALUES ('format_version', ?1)
             ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            [FORMAT_VERSION],
        )?;
        Ok(())
    };
    steps().map_err(|error| at(path, error))?;
    transaction.commit().map_err(|error| at(path, error))
}

/// An error while opening this file.
pub(crate) fn at(path: &Path, error: impl Into<Fault>) -> StoreError {
    let error = error.into().into_error(OPEN);
    let context = format!("file {}: {}", path.display(), error.context());
    StoreError::not_done(error.kind(), OPEN, context).with_source(error)
}
