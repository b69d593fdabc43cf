//! The room that the store's files take, and what is free beside them.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use lazaret_core::policy::{CapacityPolicy, DiskSpace};
use lazaret_core::store::{ErrorKind, Occupancy, Result, StoreError};

use crate::schema::LOG_LIMIT;

/// Measures the files of the store at this path.
pub(crate) async fn of(path: &Path) -> Result<Found> {
    let path = path.to_owned();
    let found = tokio::task::spawn_blocking(move || measure(&path)).await;
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
    let disk = DiskSpace { free, ..DiskSpace::default() }.describe(Some(&place(path)));
    let context = format!("{}; the disk is full: {disk}", error.context());
    StoreError::not_done(ErrorKind::Full, error.operation(), context).with_source(error)
}

/// The file of the store, for people.
pub(crate) fn place(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// The files of the store and their disk, in bytes.
pub(crate) struct Found {
    used: u64,
    /// What the disk still takes at most when the logs are written to the database: nobody has looked how much of them was.
    pending: u64,
    /// The size of SQLite's log.
    log: u64,
    free: u64,
    size: u64,
}

impl Found {
    /// Whether so little is free that a reserve may be reached soon. Then it matters what is in the logs, and in the file.
    pub(crate) fn is_scarce(&self) -> bool {
        let available = self.free.saturating_sub(self.pending);
        available < CapacityPolicy::largest_reserve(self.size).saturating_add(LOG_LIMIT.unsigned_abs())
    }

    /// The room as long as nobody knows what is in the logs.
    pub(crate) fn room(&self) -> Occupancy {
        Occupancy {
            used: Some(self.used),
            free: Some(self.free),
            size: Some(self.size),
            pending: self.pending,
            reusable: 0,
        }
    }

    /// The room after the logs were written to the database, which has so many bytes of free pages. What comes next passes through the log
    /// before: no more of the free pages can be used without any of the disk than SQLite's log has room for, which starts again from its
    /// beginning.
    pub(crate) fn room_of_merged_logs(&self, free_pages: u64) -> Occupancy {
        Occupancy { pending: 0, reusable: free_pages.min(self.log), ..self.room() }
    }
}

fn measure(path: &Path) -> io::Result<Found> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let name = path.file_name().unwrap_or(OsStr::new("")).as_encoded_bytes();
    let (mut used, mut pending, mut log) = (0, 0, 0);
    for entry in std::fs::read_dir(&folder)? {
        let entry = entry?;
        // The database, its log and the redo logs: their names begin with that of the store.
        let file = entry.file_name();
        let Some(rest) = file.as_encoded_bytes().strip_prefix(name) else { continue };
        // A log may be gone by now.
        let bytes = entry.metadata().map_or(0, |metadata| metadata.len());
        used += bytes;
        pending += bytes * copies_to_come(rest);
        if rest == b"-wal" {
            log = bytes;
        }
    }
    let disk = rustix::fs::statvfs(&folder)?;
    // Blocks that only root may use are not free for the store.
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    Ok(Found { used, pending, log, free: bytes(disk.f_bavail), size: bytes(disk.f_blocks) })
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
        let room = store.room().await.unwrap();
        let file = std::fs::metadata(&path).unwrap().len();
        assert!(room.used.unwrap() >= file && file > 0, "{room:?}");
        assert!(room.used.unwrap() < 1 << 22, "{room:?}");
        assert!(room.free.unwrap() <= room.size.unwrap() && room.size.unwrap() > 0, "{room:?}");
        drop(store);
        let gone = of(Path::new("/nowhere/lazaret.db")).await.err().unwrap();
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
        assert_eq!(found.room().available(), Some(found.free.saturating_sub(pending)));
        assert_eq!(found.room().free, Some(found.free), "as the system tells it");
        let short = Found { free: pending - 1, ..found };
        assert_eq!(short.room().available(), Some(0));
    }

    #[test]
    fn only_a_disk_with_little_room_needs_a_closer_look() {
        let found = Found { used: 0, pending: 1, log: 0, free: 6 << 30, size: 100 << 30 };
        assert!(!found.is_scarce());
        assert!(Found { pending: 1 << 30, ..found }.is_scarce());
    }

    #[tokio::test]
    async fn what_the_logs_have_written_is_free_and_so_are_the_free_pages() {
        // I9
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lazaret.db");
        let store = SqliteStore::open(&path, Options::default()).unwrap();
        let fill = "CREATE TABLE filler AS SELECT randomblob(2000000) AS content";
        for sql in [fill, "DROP TABLE filler"] {
            store.write("test", move |step| Ok(step.connection.execute_batch(sql)?)).await.unwrap();
        }
        let unknown = of(&path).await.unwrap();
        assert!(unknown.pending >= 2_000_000, "the log has the whole table");
        let free_pages = store.merge_logs().await.unwrap().expect("nobody else uses the file");
        assert!(free_pages >= 1_500_000, "{free_pages}");
        let merged = of(&path).await.unwrap();
        assert_eq!(merged.log, unknown.log, "the file of the log is kept, and used again");
        let room = merged.room_of_merged_logs(free_pages);
        assert_eq!((room.free, room.pending), (Some(merged.free), 0));
        assert_eq!(room.reusable, free_pages.min(merged.log));
        assert_eq!(Found { log: 10, ..merged }.room_of_merged_logs(free_pages).reusable, 10);
    }
}
