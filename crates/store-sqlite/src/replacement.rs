//! Replaces the files of a store by others: all of them, or none.
//!
//! Several files have to change their names, and a crash can come between any two of them. A database without its redo log, or
//! beside the write-ahead log of another one, would lose acknowledged writes or be damaged. So a marker is written first and removed
//! last, and no store is opened beside one. It names the old files, so that a repeated call goes on where the first one ended.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::schema::beside;
use crate::{permissions, redo};

/// The files that belong to a database.
const FILES: [&str; 4] = ["", "-wal", "-shm", "-redo"];
/// The suffix of the marker.
const MARKER: &str = "-restoring";

/// Renames a file.
pub(crate) type Rename<'a> = &'a mut dyn FnMut(&Path, &Path) -> io::Result<()>;

/// Returns `true` if the store at this path is being replaced, or was when the process crashed.
pub(crate) fn is_unfinished(path: &Path) -> bool {
    beside(path, MARKER).exists()
}

/// A replacement that has begun: nothing opens the store until it ends.
pub(crate) struct Replacement<'a> {
    path: &'a Path,
    old: OldFiles,
    /// An earlier call began it.
    is_resumed: bool,
}

/// The content of the marker.
#[derive(Debug, Serialize, Deserialize)]
struct OldFiles {
    /// They are set aside as `.replaced-NUMBER`.
    number: u32,
    /// The suffixes of those that exist.
    files: Vec<String>,
}

impl<'a> Replacement<'a> {
    /// Begins to replace the store at this path, or resumes that after a crash.
    pub(crate) fn begin(path: &'a Path) -> io::Result<Self> {
        // A marker that cannot be read was not synced: nothing was renamed yet.
        let marker = fs::read(beside(path, MARKER)).ok();
        if let Some(old) = marker.and_then(|marker| serde_json::from_slice(&marker).ok()) {
            return Ok(Self { path, old, is_resumed: true });
        }
        let is_free = |number: &u32| {
            let name = aside(path, *number);
            FILES.iter().all(|suffix| !beside(&name, suffix).exists())
        };
        let number = (1..=u32::MAX).find(is_free).ok_or(io::ErrorKind::AlreadyExists)?;
        let files = FILES.iter().filter(|suffix| beside(path, suffix).exists());
        let old = OldFiles { number, files: files.map(|suffix| (*suffix).to_owned()).collect() };
        let begun = Self { path, old, is_resumed: false };
        begun.write_marker().inspect_err(|_| _ = fs::remove_file(beside(path, MARKER)))?;
        Ok(begun)
    }

    fn write_marker(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let options = permissions::private(options.write(true).create(true).truncate(true));
        let mut marker = options.open(beside(self.path, MARKER))?;
        marker.write_all(&serde_json::to_vec(&self.old)?)?;
        marker.sync_all()?;
        sync_folder_of(self.path)
    }

    /// Ends it without a change, unless an earlier call made some.
    pub(crate) fn abandon(self) {
        if !self.is_resumed {
            _ = self.end();
        }
    }

    /// Sets the old files aside and moves each new one to the path with its suffix. Returns where the old ones are. After an error
    /// all files have their old names again.
    pub(crate) fn run(self, new: &[(&Path, &str)], rename: Rename<'_>) -> io::Result<Vec<PathBuf>> {
        let (mut set_aside, mut undo) = (Vec::new(), Vec::new());
        let renamed = self.rename_all(new, &mut set_aside, &mut |from, to| {
            rename(from, to)?;
            undo.push((to.to_owned(), from.to_owned()));
            Ok(())
        });
        if let Err(error) = renamed.and_then(|()| sync_folder_of(self.path)) {
            for (from, to) in undo.iter().rev() {
                // If that fails as well, the marker stays: the store must not be opened as it is.
                fs::rename(from, to)?;
            }
            sync_folder_of(self.path)?;
            self.abandon();
            return Err(error);
        }
        self.end()?;
        Ok(set_aside)
    }

    fn rename_all(
        &self,
        new: &[(&Path, &str)],
        set_aside: &mut Vec<PathBuf>,
        rename: Rename<'_>,
    ) -> io::Result<()> {
        for suffix in FILES {
            let (here, there) =
                (beside(self.path, suffix), beside(&aside(self.path, self.old.number), suffix));
            let is_old = self.old.files.iter().any(|old| old == suffix);
            let was_set_aside = is_old && there.exists();
            if here.exists() && is_old && !was_set_aside {
                rename(&here, &there)?;
            } else if here.exists() {
                // An earlier call has moved it here, and nothing has opened it since.
                fs::remove_file(&here)?;
            }
            if is_old && there.exists() {
                set_aside.push(there);
            }
        }
        new.iter().try_for_each(|(from, suffix)| rename(from, &beside(self.path, suffix)))
    }

    fn end(self) -> io::Result<()> {
        fs::remove_file(beside(self.path, MARKER))?;
        sync_folder_of(self.path)
    }
}

/// The name of an old database.
fn aside(path: &Path, number: u32) -> PathBuf {
    beside(path, &format!(".replaced-{number}"))
}

/// Makes the names of the files in the folder of a file durable.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    redo::sync_folder(folder.unwrap_or(Path::new(".")))
}

/// Copies a file to an existing one, durably.
pub(crate) fn copy_into(from: &Path, to: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(to)?;
    io::copy(&mut File::open(from)?, &mut file)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// A folder with an old store, and the files of a new one.
    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            let place = Self(tempfile::tempdir().unwrap());
            for suffix in ["", "-wal", "-redo"] {
                fs::write(beside(&place.store(), suffix), format!("old{suffix}")).unwrap();
            }
            place.write_new();
            place
        }

        fn write_new(&self) {
            for suffix in ["", "-redo"] {
                fs::write(beside(&self.new_store(), suffix), format!("new{suffix}")).unwrap();
            }
        }

        fn store(&self) -> PathBuf {
            self.0.path().join("lazaret.db")
        }

        fn new_store(&self) -> PathBuf {
            self.0.path().join("new.db")
        }

        fn run(&self, rename: Rename<'_>) -> io::Result<Vec<PathBuf>> {
            let (path, new) = (self.store(), self.new_store());
            let log = beside(&new, "-redo");
            Replacement::begin(&path)?.run(&[(&log, "-redo"), (&new, "")], rename)
        }

        /// The contents of the files of a store.
        fn files(&self, name: &str) -> Vec<String> {
            let path = self.0.path().join(name);
            FILES.iter().filter_map(|suffix| fs::read_to_string(beside(&path, suffix)).ok()).collect()
        }
    }

    /// Renames this many files, and then does that.
    fn after(mut left: usize, then: fn() -> io::Result<()>) -> impl FnMut(&Path, &Path) -> io::Result<()> {
        move |from, to| {
            if left == 0 {
                return then();
            }
            left -= 1;
            fs::rename(from, to)
        }
    }

    #[test]
    fn a_replaced_store_is_kept_whole() {
        let place = Place::new();
        let set_aside = place.run(&mut after(usize::MAX, || Ok(()))).unwrap();
        assert_eq!(place.files("lazaret.db"), ["new", "new-redo"]);
        assert_eq!(place.files("lazaret.db.replaced-1"), ["old", "old-wal", "old-redo"]);
        assert_eq!(set_aside.len(), 3);
        assert!(!is_unfinished(&place.store()));
    }

    #[test]
    fn after_an_error_every_file_has_its_old_name() {
        for renames in 0..5 {
            let place = Place::new();
            let error =
                place.run(&mut after(renames, || Err(io::ErrorKind::StorageFull.into()))).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            assert_eq!(place.files("lazaret.db"), ["old", "old-wal", "old-redo"], "after {renames}");
            assert_eq!(place.files("lazaret.db.replaced-1"), [""; 0], "after {renames}");
            assert_eq!(place.files("new.db"), ["new", "new-redo"], "after {renames}");
            assert!(!is_unfinished(&place.store()), "after {renames}");
        }
    }

    #[test]
    fn after_a_crash_no_store_is_opened_and_a_repeated_call_keeps_the_old_one_whole() {
        for renames in 0..5 {
            let place = Place::new();
            let crashed =
                catch_unwind(AssertUnwindSafe(|| place.run(&mut after(renames, || panic!("crash")))));
            assert!(crashed.is_err() && is_unfinished(&place.store()), "after {renames}");
            place.write_new();
            place.run(&mut after(usize::MAX, || Ok(()))).unwrap();
            assert_eq!(place.files("lazaret.db"), ["new", "new-redo"], "after {renames}");
            let old = place.files("lazaret.db.replaced-1");
            assert_eq!(old, ["old", "old-wal", "old-redo"], "after {renames}");
            assert!(!is_unfinished(&place.store()));
        }
    }

    #[test]
    fn a_marker_that_was_not_synced_marks_nothing() {
        let place = Place::new();
        fs::write(beside(&place.store(), MARKER), "").unwrap();
        place.run(&mut after(usize::MAX, || Ok(()))).unwrap();
        assert_eq!(place.files("lazaret.db.replaced-1"), ["old", "old-wal", "old-redo"]);
    }
}
