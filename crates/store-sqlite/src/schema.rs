//! The tables, the version of the format, and how a file is opened.
//!
//! - `letters` has one row per letter, open or closed, in the order of arrival: the row id grows, so the rows, which are
//!   large, are always written at the end. The small indexes take the random access. A closed letter has no `sid`,
//!   but the time when it was closed; a purged one has neither: its row is the trace that is left of it.
//!   `reason` repeats what stands in the body, for queries; whoever changes the cause there changes it, too.
//! - `payloads` holds the bytes of their messages, under the same row ids. They never change, so a letter that is tried
//!   again and again is written again and again without them.
//! - `sequences` has one row per open sequence, under an integer that letters refer to. `due` and `busy` are filled only
//!   while the sequence may run by itself: `due` while nobody holds it, `busy` (when it can be claimed again) while
//!   somebody does. So the two partial indexes hold exactly what the scheduler looks for.
//! - `queues` and `counts` hold what is known of a queue as a whole, `groups` what is known of the letters with one cause;
//!   they change with the letters. A sequence names the group of its head, because all behind it are blocked by that.
//! - `plans` and their `items` are frozen but for the outcomes, which stand in the items; `operations` holds what moves.
//!   Partial indexes over items without an outcome make the next turn, and the end of a stage, cheap to find.
//! - `redo` has one row: which records of the [redo log](crate::redo) count.
//! - `inbox_logs` has one row per inbox that is a source; `posts` holds its messages until they are settled, and
//!   `consumed_posts` their ids for a while after that.
//! - `key_values` holds checkpoints, locks, and for a while the messages that were handled.
//! - `watched` names the queues whose letters are listed in `ends` when they end, until everybody was told.
//!
//! Times are nanoseconds since 1970. The version of the format stands in `meta` for people and in `PRAGMA user_version`
//! for the code; `PRAGMA application_id` says that it is a file of Lazaret's.

mod groups;
mod key_values;

use std::path::Path;

use lazaret_core::store::{ErrorKind, Result, StoreError};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use crate::error::{Fault, Work};
use crate::options::{Durability, Options};

/// The version of the format that this code writes.
pub const FORMAT_VERSION: u32 = 4;
/// `LZRT`, in the file's header.
const APPLICATION_ID: i32 = 0x4c5a_5254;
/// How many pages of 4 KiB the log may hold before it is copied into the file.
const CHECKPOINT_PAGES: u32 = 8000;
/// The log file is cut back to this after it has grown, in bytes.
const LOG_LIMIT: i64 = 64 * 1024 * 1024;
const STATEMENTS: usize = 256;
const OPEN: &str = "open";

/// A step from one version of the format to the next.
struct Migration {
    sql: &'static str,
    /// What SQL alone cannot do, after it.
    fill: fn(&Connection) -> Work<()>,
}

/// The steps from an empty file to the current format: step n leads from version n to n + 1. A step that was released is
/// never changed.
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
];

const _: () = assert!(MIGRATIONS.len() == FORMAT_VERSION as usize);

/// Opens the file, makes sure that it is ours and readable, and brings it to the current format.
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
        let context = format!("the file {} cannot be used with a write-ahead log", path.display());
        return Err(StoreError::not_done(ErrorKind::Invalid, OPEN, context));
    }
    if version < FORMAT_VERSION {
        migrate(&mut connection, path)?;
    }
    Ok(connection)
}

/// The version of the format that a file has; 0 when it is empty. Changes nothing: the file is only read.
///
/// # Errors
/// `Invalid` when the file is not one of Lazaret's or has a newer format than [`FORMAT_VERSION`]; `Corrupt` when it is no SQLite
/// file at all; `Unavailable` when it cannot be read.
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

/// A connection to a file that [`open_file`] has opened before.
pub(crate) fn connect(path: &Path, options: &Options) -> Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| at(path, error))?;
    configure(&connection, options).map_err(|error| at(path, error))?;
    Ok(connection)
}

/// A connection that can only read. It has read once, so that what stands in the way is known now.
pub(crate) fn connect_reader(path: &Path, options: &Options) -> Result<Connection> {
    let connection = connect(path, options)?;
    connection.pragma_update(None, "query_only", true).map_err(|error| at(path, error))?;
    check_format(&connection, path)?;
    Ok(connection)
}

fn configure(connection: &Connection, options: &Options) -> rusqlite::Result<()> {
    connection.busy_timeout(options.busy_timeout)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // Without it, partial indexes have SQLite plan nearly every statement anew each time its parameters change.
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

/// Says how large the file may grow through this connection.
pub(crate) fn limit_pages(connection: &Connection, pages: Option<u32>) -> rusqlite::Result<()> {
    /// As many as SQLite knows.
    const ALL: u32 = 0xffff_fffe;
    connection.pragma_update_and_check(None, "max_page_count", pages.unwrap_or(ALL), |_| Ok(()))
}

/// Brings all commits from SQLite's log into the file, and empties the log.
pub(crate) fn fold_log(connection: &Connection) -> Work<()> {
    let is_busy: bool = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    if is_busy {
        let context =
            "somebody else uses the file: a part of what it holds is still in its log, and safe there";
        return Err(StoreError::not_done(ErrorKind::Unavailable, "close", context).into());
    }
    Ok(())
}

/// Whoever may write everything, as root may, still respects that a file is marked as read-only.
fn refuse_read_only(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(file) if file.permissions().readonly() => Err(read_only(path)),
        // Whatever else is wrong with it, SQLite will say.
        _ => Ok(()),
    }
}

fn read_only(path: &Path) -> StoreError {
    let context = format!("the file {} is read-only", path.display());
    StoreError::not_done(ErrorKind::Invalid, OPEN, context)
}

/// The version of the format of the file; 0 when it is empty.
fn check_format(connection: &Connection, path: &Path) -> Result<u32> {
    let failed = |error| at(path, error);
    let number = |pragma| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let application = number("application_id").map_err(failed)?;
    let version = number("user_version").map_err(failed)?;
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0)).map_err(failed)?;
    let invalid = |what: String| {
        let context = format!("the file {} {what}", path.display());
        Err(StoreError::not_done(ErrorKind::Invalid, OPEN, context))
    };
    if application == 0 && version == 0 && tables == 0 {
        return Ok(0);
    }
    if application != i64::from(APPLICATION_ID) {
        return invalid("is an SQLite file, but not one of Lazaret's".into());
    }
    match u32::try_from(version) {
        Ok(version) if version <= FORMAT_VERSION => Ok(version),
        _ => invalid(format!(
            "has format version {version}; this version of Lazaret knows up to {FORMAT_VERSION}"
        )),
    }
}

/// Brings the file to the current format, all or nothing. Another process may have done it in the meantime.
fn migrate(connection: &mut Connection, path: &Path) -> Result<()> {
    let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let transaction = begun.map_err(|error| at(path, error))?;
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

/// An error at opening, with the name of the file.
fn at(path: &Path, error: impl Into<Fault>) -> StoreError {
    let told = error.into().into_error(OPEN);
    let context = format!("the file {}: {}", path.display(), told.context());
    StoreError::not_done(told.kind(), OPEN, context).with_source(told)
}
