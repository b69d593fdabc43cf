//! Checks directories and free disk space.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statvfs};

use super::finding::Finding;

/// Less free space than this fails the check.
const FAIL_BELOW: u64 = 64 << 20;
/// Less free space than this is a warning.
const WARN_BELOW: u64 = 1 << 30;

/// What a missing directory means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingFolder {
    /// Lazaret creates it.
    Created,
    /// It is an error.
    Fails,
}

/// Checks that files can be created in a directory.
pub(super) fn folder(subject: &str, folder: &Path, missing: MissingFolder) -> Finding {
    let shown = folder.display();
    if folder.exists() && !folder.is_dir() {
        let advice = "choose another directory, or move that file";
        return Finding::fail(subject, format!("{shown} is not a directory"), advice);
    }
    if !folder.exists() && missing != MissingFolder::Created {
        let advice = format!("create it: mkdir -p {shown}");
        return Finding::fail(subject, format!("the directory {shown} does not exist"), advice);
    }
    let there = existing(folder);
    // A file on the path blocks the directory.
    if !there.is_dir() {
        let advice = "choose another directory, or move that file";
        return Finding::fail(subject, format!("{} is not a directory", there.display()), advice);
    }
    if let Err(error) = access(&there, Access::WRITE_OK | Access::EXEC_OK) {
        let advice = format!("allow the user of the daemon to write to {}", there.display());
        return Finding::fail(subject, format!("{shown} is not writable: {error}"), advice);
    }
    let detail = if folder.exists() { "is writable" } else { "does not exist and can be created" };
    Finding::ok(subject, format!("{shown} {detail}"))
}

/// Checks the free space of the file system.
pub(super) fn free_space(subject: &str, folder: &Path) -> Finding {
    let folder = existing(folder);
    let free = match statvfs(&folder) {
        Ok(system) => system.f_bavail.saturating_mul(system.f_frsize),
        Err(error) => {
            let detail = format!("failed to query the free space of {}: {error}", folder.display());
            return Finding::warn(subject, detail, "check it with df");
        }
    };
    space_finding(subject, free)
}

fn space_finding(subject: &str, free: u64) -> Finding {
    let detail = format!("{} MiB free", free >> 20);
    // I9: a full store accepts nothing, and the sources are paused.
    let advice = "free disk space: a full store pauses every source";
    match free {
        ..FAIL_BELOW => Finding::fail(subject, detail, advice),
        FAIL_BELOW..WARN_BELOW => Finding::warn(subject, detail, advice),
        _ => Finding::ok(subject, detail),
    }
}

/// Returns the directory, or its nearest existing ancestor.
fn existing(folder: &Path) -> PathBuf {
    let there = folder.ancestors().find(|above| !above.as_os_str().is_empty() && above.exists());
    there.map_or_else(|| PathBuf::from("."), Path::to_owned)
}

/// Returns the directory of a file.
#[cfg(feature = "sqlite")]
pub(super) fn of_file(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Health;

    #[test]
    fn low_disk_space_is_reported() {
        assert_eq!(space_finding("disk", FAIL_BELOW - 1).health, Health::Fail);
        assert_eq!(space_finding("disk", FAIL_BELOW).health, Health::Warn);
        assert_eq!(space_finding("disk", WARN_BELOW).health, Health::Ok);
    }

    #[test]
    fn a_file_in_place_of_a_directory_fails_and_a_missing_directory_is_created() {
        let here = tempfile::tempdir().unwrap();
        let file = here.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(folder("f", &file, MissingFolder::Created).health, Health::Fail);
        assert_eq!(folder("f", &file.join("below"), MissingFolder::Created).health, Health::Fail);
        let found = folder("f", &here.path().join("a/b"), MissingFolder::Created);
        assert_eq!(found.health, Health::Ok, "{found}");
        assert!(!here.path().join("a").exists(), "the check creates nothing");
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn a_required_directory_must_exist() {
        let here = tempfile::tempdir().unwrap();
        let missing = here.path().join("a/b");
        let found = folder("f", &missing, MissingFolder::Fails);
        assert_eq!(found.health, Health::Fail, "{found}");
        assert!(found.advice.unwrap().contains("mkdir -p"));
        std::fs::create_dir_all(&missing).unwrap();
        assert_eq!(folder("f", &missing, MissingFolder::Fails).health, Health::Ok);
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn a_file_without_a_directory_is_in_the_current_one() {
        assert_eq!(of_file(Path::new("lazaret.db")), Path::new("."));
        assert_eq!(of_file(Path::new("a/lazaret.db")), Path::new("a"));
    }
}
