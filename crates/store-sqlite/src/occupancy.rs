//! The room that the store's files take, and what is free beside them.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use lazaret_core::policy::DiskSpace;
use lazaret_core::store::{ErrorKind, Occupancy, Result, StoreError};

/// The room that the store at this path takes.
pub(crate) async fn of(path: &Path) -> Result<Occupancy> {
    let path = path.to_owned();
    let found = tokio::task::spawn_blocking(move || measure(&path).map(|found| found.room())).await;
    let found = found.unwrap_or_else(|ended| Err(io::Error::other(ended)));
    found.map_err(|error| {
        let context = format!("failed to measure the files of the store: {error}");
        StoreError::not_done(ErrorKind::Unavailable, "occupancy", context)
    })
}

/// The least room without which errors of the system are those of a full disk: a page of each log, and of the index of SQLite's.
const LEAST_ROOM: u64 = 128 << 10;

/// Names a full disk as the cause of an error of the system, and tells which disk: SQLite reports some of them as plain input and output
/// errors, for example when it cannot extend its shared memory.
pub(crate) fn explain(path: &Path, error: StoreError) -> StoreError {
    let free = || measure(path).ok().map(|found| found.free);
    let free = match error.kind() {
        ErrorKind::Full => free(),
        ErrorKind::Unavailable => free().filter(|free| *free < LEAST_ROOM),
        _ => None,
    };
    let Some(free) = free else { return error };
    let disk = DiskSpace { free, reserve: None }.describe(Some(&place(path)));
    let context = format!("{}; the disk is full: {disk}", error.context());
    StoreError::not_done(ErrorKind::Full, error.operation(), context).with_source(error)
}

/// The file of the store, for people.
pub(crate) fn place(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// The files of the store and their disk, in bytes.
struct Found {
    used: u64,
    /// What the disk still takes when the logs are written to the database.
    pending: u64,
    free: u64,
    size: u64,
}

impl Found {
    /// What is promised to the logs is not free for letters.
    fn room(&self) -> Occupancy {
        let free = self.free.saturating_sub(self.pending);
        Occupancy { used: Some(self.used), free: Some(free), size: Some(self.size) }
    }
}

fn measure(path: &Path) -> io::Result<Found> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let name = path.file_name().unwrap_or(OsStr::new("")).as_encoded_bytes();
    let (mut used, mut pending) = (0, 0);
    for entry in std::fs::read_dir(&folder)? {
        let entry = entry?;
        // The database, its log and the redo logs: their names begin with that of the store.
        let file = entry.file_name();
        let Some(rest) = file.as_encoded_bytes().strip_prefix(name) else { continue };
        // A log may be gone by now.
        let bytes = entry.metadata().map_or(0, |metadata| metadata.len());
        used += bytes;
        pending += bytes * copies_to_come(rest);
    }
    let disk = rustix::fs::statvfs(&folder)?;
    // Blocks that only root may use are not free for the store.
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    Ok(Found { used, pending, free: bytes(disk.f_bavail), size: bytes(disk.f_blocks) })
}

/// How often the content of the file with this ending is still to be written elsewhere, at most: what the redo log holds goes to
/// SQLite's log, and from there to the database.
fn copies_to_come(ending: &[u8]) -> u64 {
    match ending {
        b"-redo" => 2,
        b"-wal" => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, SqliteStore};

    #[tokio::test]
    async fn the_files_of_the_store_are_counted_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("other.bin"), vec![0; 1 << 22]).unwrap();
        let path = folder.path().join("lazaret.db");
        let store = SqliteStore::open(&path, Options::default()).unwrap();
        let room = of(store.path()).await.unwrap();
        let file = std::fs::metadata(&path).unwrap().len();
        assert!(room.used.unwrap() >= file && file > 0, "{room:?}");
        assert!(room.used.unwrap() < 1 << 22, "{room:?}");
        assert!(room.free.unwrap() <= room.size.unwrap() && room.size.unwrap() > 0, "{room:?}");
        drop(store);
        let gone = of(Path::new("/nowhere/lazaret.db")).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn a_full_disk_is_named_with_what_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lazaret.db");
        let full = StoreError::not_done(ErrorKind::Full, "open", "database or disk is full");
        let explained = explain(&path, full);
        assert_eq!(explained.kind(), ErrorKind::Full);
        let expected = format!(" free on the disk of {}", path.display());
        assert!(
            explained.context().starts_with("database or disk is full; the disk is full: "),
            "{explained}"
        );
        assert!(explained.context().ends_with(&expected), "{explained}");
        // A system that fails for another reason has room.
        let other = explain(&path, StoreError::not_done(ErrorKind::Unavailable, "open", "disk I/O error"));
        assert_eq!((other.kind(), other.context()), (ErrorKind::Unavailable, "disk I/O error"));
    }

    #[test]
    fn what_the_logs_still_write_to_the_database_is_not_free() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lazaret.db");
        for (ending, bytes) in [("", 1 << 20), ("-wal", 1 << 16), ("-redo", 1 << 12), ("-shm", 1 << 8)] {
            std::fs::write(folder.path().join(format!("lazaret.db{ending}")), vec![1; bytes]).unwrap();
        }
        let found = measure(&path).unwrap();
        let pending = (1 << 16) + 2 * (1 << 12);
        assert_eq!((found.pending, found.used), (pending, (1 << 20) + (1 << 16) + (1 << 12) + (1 << 8)));
        assert_eq!(found.room().free, Some(found.free.saturating_sub(pending)));
        let short = Found { free: pending - 1, ..found };
        assert_eq!(short.room().free, Some(0));
    }
}
