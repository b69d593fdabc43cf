//! Backups: a copy of a file in use, and back.
//!
//! A backup is a `VACUUM INTO`: one read transaction, so it is consistent and does not hold up the writer. It gets a redo mark of
//! its own, so that no log that lies beside its future place belongs to it. Both directions write to temporary files, check and sync
//! them, and rename them: a file under the requested name is complete, and a store is [replaced](crate::replacement) whole.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use lazaret_core::store::{ErrorKind, Result, StoreError};
use rusqlite::{Connection, OpenFlags};
use tokio::sync::oneshot;

use crate::options::Options;
use crate::redo::{self, Mark};
use crate::replacement::{Replacement, copy_into, is_unfinished, sync_folder_of};
use crate::schema::{self, FORMAT_VERSION, beside, check_file};
use crate::store::SqliteStore;
use crate::{error, permissions};

pub(crate) const BACKUP: &str = "backup";
const RESTORE: &str = "restore";

/// The first format with a redo log.
const REDO_SINCE: u32 = 3;

/// Options of [`restore`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoreOptions {
    /// Replace a store that exists. It is kept under another name.
    pub replace: bool,
}

/// The result of a [`restore`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// Where the files of the earlier store are kept; leftover logs count, too.
    pub set_aside: Vec<PathBuf>,
}

/// Writes a copy of the store in this file, which another process may use, to a new file.
///
/// A file of an older format is not migrated, and copied as it is.
///
/// # Errors
/// As [`SqliteStore::backup`]; `NotFound` if there is no store, and `Invalid` if a file of an older format has writes that only the
/// version that wrote them can read.
pub async fn backup(store: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let (store, to) = (store.as_ref().to_owned(), to.as_ref().to_owned());
    if !store.exists() {
        let context = format!("there is no store at {}", store.display());
        return Err(StoreError::not_done(ErrorKind::NotFound, BACKUP, context));
    }
    refuse_unfinished(&store, BACKUP)?;
    let (file, target) = (store.clone(), to.clone());
    let opened = in_thread(move || {
        let version = schema::format_version(&file)?;
        if version == FORMAT_VERSION {
            return SqliteStore::open(&file, Options::default()).map(Some);
        }
        if fs::metadata(redo::path_of(&file)).is_ok_and(|log| log.len() > 0) {
            let context = format!(
                "file {} has format version {version}, and a log of writes that are not in it yet: stop its daemon first",
                file.display()
            );
            return refused(BACKUP, context);
        }
        write(&file, &target).map(|()| None)
    });
    match opened.await? {
        Some(store) => store.backup(to).await,
        None => Ok(()),
    }
}

/// Runs blocking work in a thread of its own.
pub(crate) async fn in_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (reply, answer) = oneshot::channel();
    let started = thread::Builder::new().name("lazaret-backup".into()).spawn(move || _ = reply.send(work()));
    started.map_err(|error| {
        StoreError::not_done(ErrorKind::Unavailable, BACKUP, "failed to start a thread").with_source(error)
    })?;
    answer.await.unwrap_or_else(|_| {
        Err(StoreError::not_done(ErrorKind::Unavailable, BACKUP, "the thread has stopped"))
    })
}

/// Writes a copy of the committed content of a file that is in use.
pub(crate) fn write(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        return refused(BACKUP, format!("file {} exists already", to.display()));
    }
    let copy = Temporary::beside(to, BACKUP)?;
    let connection = schema::connect(from, &Options::default())?;
    let text = copy.path.to_str().ok_or_else(|| {
        let context = format!("{} is not valid UTF-8", copy.path.display());
        StoreError::not_done(ErrorKind::Invalid, BACKUP, context)
    })?;
    connection.execute("VACUUM INTO ?1", [text]).map_err(|error| failed(BACKUP, error))?;
    drop(connection);
    copy.finish(to, BACKUP)
}

/// Puts a backup in the place of a store, which must not be in use.
///
/// A store that is there is replaced only if the options say so, and is kept under another name with its logs. Logs without a
/// store, which a new file must not meet, are always set aside.
///
/// # Errors
/// `Invalid` if the backup is not a store of a known format, or if there is a store and it is not to be replaced;
/// `Corrupt` if the backup is damaged; `Unavailable` if another process uses the store, or a file cannot be written; `Full` if the
/// disk is full. The store that was there is unchanged then.
///
/// If the process crashes during the call, no store is opened at this path until the call is repeated.
pub fn restore(backup: impl AsRef<Path>, to: impl AsRef<Path>, options: RestoreOptions) -> Result<Restored> {
    let (backup, to) = (backup.as_ref(), to.as_ref());
    if schema::format_version(backup)? == 0 {
        return refused(RESTORE, format!("file {} is empty", backup.display()));
    }
    if to.exists() {
        if !options.replace {
            return refused(RESTORE, format!("there is a store at {}", to.display()));
        }
        refuse_if_in_use(to)?;
    }
    let copy = Temporary::beside(to, RESTORE)?;
    // A read transaction over the source: it may have a log, such as after a copy of all files.
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let source = Connection::open_with_flags(backup, flags).map_err(|error| failed(RESTORE, error))?;
    let text = copy.path.to_str().ok_or_else(|| {
        let context = format!("{} is not valid UTF-8", copy.path.display());
        StoreError::not_done(ErrorKind::Invalid, RESTORE, context)
    })?;
    source.execute("VACUUM INTO ?1", [text]).map_err(|error| failed(RESTORE, error))?;
    drop(source);
    let log = redo::path_of(backup);
    let has_log = fs::metadata(&log).is_ok_and(|log| log.len() > 0);
    copy.prepare(RESTORE, if has_log { Marked::AsBefore } else { Marked::Anew })?;
    let mut log_copy = None;
    if has_log {
        // A copy of all files after a crash: its log belongs to it, and the next opening applies it.
        let copy = Temporary::beside(&redo::path_of(to), RESTORE)?;
        copy_into(&log, &copy.path).map_err(|error| of_file(RESTORE, &log, error))?;
        log_copy = Some(copy);
    }
    let set_aside = replace(to, copy, log_copy)?;
    Ok(Restored { set_aside })
}

/// Puts the copies in the place of a store that is not in use. Returns where its files are kept.
fn replace(to: &Path, copy: Temporary, log: Option<Temporary>) -> Result<Vec<PathBuf>> {
    let replacement = Replacement::begin(to).map_err(|error| of_file(RESTORE, to, error))?;
    // Again: nothing opens it from here on.
    if let Err(in_use) = refuse_if_in_use(to) {
        replacement.abandon();
        return Err(in_use);
    }
    let mut new: Vec<(&Path, &str)> = log.iter().map(|log| (&*log.path, "-redo")).collect();
    new.push((&copy.path, ""));
    let replaced = replacement.run(&new, &mut |from, to| fs::rename(from, to));
    replaced.map_err(|error| of_file(RESTORE, to, error))
}

/// Refuses a store whose restore has not ended.
pub(crate) fn refuse_unfinished(path: &Path, operation: &'static str) -> Result<()> {
    if !is_unfinished(path) {
        return Ok(());
    }
    let context = format!("a restore of {} was interrupted: repeat it", path.display());
    refused(operation, context)
}

/// Refuses a file that another connection uses: leaving the write-ahead log needs exclusive access.
fn refuse_if_in_use(path: &Path) -> Result<()> {
    let Ok(connection) = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE) else {
        return Ok(());
    };
    let left = connection.pragma_update_and_check(None, "journal_mode", "delete", |_| Ok(()));
    match left.map_err(|error| error.sqlite_error_code()) {
        Err(Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked)) => {
            let context = format!("the store at {} is in use: stop the daemon first", path.display());
            Err(StoreError::not_done(ErrorKind::Unavailable, RESTORE, context))
        }
        // A damaged file is replaced, too.
        _ => Ok(()),
    }
}

/// The redo mark of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Marked {
    /// A new one, so that no log belongs to it.
    Anew,
    /// That of the original, whose log comes with it.
    AsBefore,
}

/// A file that is removed unless it gets its name.
struct Temporary {
    path: PathBuf,
    keep: bool,
}

impl Temporary {
    /// A path in the directory of the target, so that it can be renamed.
    fn beside(target: &Path, operation: &'static str) -> Result<Self> {
        let path = beside(target, &format!(".{operation}-{}", std::process::id()));
        // Left behind by a process that crashed.
        _ = fs::remove_file(&path);
        // SQLite writes into an empty file, which keeps its permissions.
        let created = permissions::private(OpenOptions::new().write(true).create_new(true)).open(&path);
        created.map_err(|error| of_file(operation, &path, error))?;
        Ok(Self { path, keep: false })
    }

    fn finish(self, target: &Path, operation: &'static str) -> Result<()> {
        self.prepare(operation, Marked::Anew)?;
        self.rename(target, operation)
    }

    /// Marks, checks and syncs the copy.
    fn prepare(&self, operation: &'static str, marked: Marked) -> Result<()> {
        check_file(&self.path)?;
        if marked == Marked::Anew && schema::format_version(&self.path)? >= REDO_SINCE {
            let connection = Connection::open(&self.path).map_err(|error| failed(operation, error))?;
            Mark::renew(&connection).map_err(|error| failed(operation, error))?;
            connection.close().map_err(|(_, error)| failed(operation, error))?;
        }
        let synced = File::open(&self.path).and_then(|file| file.sync_all());
        synced.map_err(|error| of_file(operation, &self.path, error))
    }

    fn rename(mut self, target: &Path, operation: &'static str) -> Result<()> {
        fs::rename(&self.path, target).map_err(|error| of_file(operation, target, error))?;
        self.keep = true;
        sync_folder_of(target).map_err(|error| of_file(operation, target, error))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.keep {
            // It has a name that nothing else uses.
            _ = fs::remove_file(&self.path);
        }
    }
}

fn refused<T>(operation: &'static str, context: String) -> Result<T> {
    Err(StoreError::not_done(ErrorKind::Invalid, operation, context))
}

fn failed(operation: &'static str, error: rusqlite::Error) -> StoreError {
    error::of_sqlite(error, operation, lazaret_core::store::Certainty::NotDone)
}

fn of_file(operation: &'static str, path: &Path, error: io::Error) -> StoreError {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Full,
        _ => ErrorKind::Unavailable,
    };
    StoreError::not_done(kind, operation, format!("file {}: {error}", path.display())).with_source(error)
}
