//! The room that the store's files take, and what is free beside them.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use lazaret_core::store::{ErrorKind, Occupancy, Result, StoreError};

/// The room that the store at this path takes.
pub(crate) async fn of(path: &Path) -> Result<Occupancy> {
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

/// Names a full disk as the cause of an error of the system: SQLite reports some of them as plain input and output errors, for
/// example when it cannot extend its shared memory.
pub(crate) fn explain(path: &Path, error: StoreError) -> StoreError {
    let is_full = || measure(path).is_ok_and(|room| room.free.is_some_and(|free| free < LEAST_ROOM));
    match error.kind() {
        ErrorKind::Unavailable if is_full() => {
            let context = format!("{}; the disk is full", error.context());
            StoreError::not_done(ErrorKind::Full, error.operation(), context).with_source(error)
        }
        _ => error,
    }
}

fn measure(path: &Path) -> io::Result<Occupancy> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let name = path.file_name().unwrap_or(OsStr::new(""));
    let mut used = 0;
    for entry in std::fs::read_dir(&folder)? {
        let entry = entry?;
        // The database, its log and the redo logs: their names begin with that of the store.
        if entry.file_name().as_encoded_bytes().starts_with(name.as_encoded_bytes()) {
            // A log may be gone by now.
            used += entry.metadata().map_or(0, |metadata| metadata.len());
        }
    }
    let disk = rustix::fs::statvfs(&folder)?;
    // Blocks that only root may use are not free for the store.
    let bytes = |blocks: u64| Some(blocks.saturating_mul(disk.f_frsize));
    Ok(Occupancy { used: Some(used), free: bytes(disk.f_bavail), size: bytes(disk.f_blocks) })
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
}
