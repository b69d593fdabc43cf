//! The folder of the benchmark files. It must be on a disk for meaningful results.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

/// A folder on a disk that is removed when it is dropped.
pub(crate) struct Disk {
    folder: TempDir,
    files: AtomicUsize,
}

impl Disk {
    /// Creates a folder in the system's temporary directory, unless that is in memory.
    pub(crate) fn find() -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("lazaret-bench-").tempdir();
        let folder = folder.map_err(|error| format!("failed to create a temporary folder: {error}"))?;
        let kind = file_system(folder.path()).unwrap_or_else(|| "unknown".to_owned());
        if matches!(&*kind, "tmpfs" | "ramfs") {
            return Err(format!(
                "{} is a {kind}, which is not durable; set TMPDIR to a folder on a disk",
                folder.path().display()
            ));
        }
        eprintln!("files are in {} ({kind})", folder.path().display());
        Ok(Self { folder, files: AtomicUsize::new(0) })
    }

    /// Returns the path of a new file with a unique name: the threads of a store close its file shortly after the store is dropped,
    /// and must not touch the next one.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join(format!("{}.db", self.files.fetch_add(1, Ordering::Relaxed)))
    }
}

/// Removes a file and its companion files.
pub(crate) fn remove(path: &Path) {
    for end in ["", "-wal", "-shm", "-redo"] {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        // Not every file exists.
        _ = std::fs::remove_file(name);
    }
}

/// Returns the file system type of this path, from the list of mounts.
fn file_system(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    kind_in(&mounts, &path)
}

fn kind_in(mounts: &str, path: &Path) -> Option<String> {
    let entries = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((Path::new(words.next()?), words.next()?))
    });
    let around = entries.filter(|(point, _)| path.starts_with(point));
    around.max_by_key(|(point, _)| point.components().count()).map(|(_, kind)| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_says_what_a_folder_lies_on() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n";
        assert_eq!(kind_in(mounts, Path::new("/dev/shm/x")).as_deref(), Some("tmpfs"));
        assert_eq!(kind_in(mounts, Path::new("/dev/shmx")).as_deref(), Some("ext4"));
        assert_eq!(kind_in("", Path::new("/x")), None);
    }
}
