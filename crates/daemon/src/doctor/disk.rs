//! Folders and room on the disk.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statvfs};

use super::Finding;

/// Less than this is too little to begin with.
const LEAST: u64 = 64 << 20;
/// Less than this will not last long.
const LITTLE: u64 = 1 << 30;

/// Who makes a folder that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maker {
    /// Lazaret, with all folders above it.
    Lazaret,
    /// Nobody but a person.
    #[cfg(feature = "sqlite")]
    Person,
}

/// Whether files can be made in a folder.
pub(super) fn folder(subject: &str, folder: &Path, maker: Maker) -> Finding {
    let shown = folder.display();
    if folder.exists() && !folder.is_dir() {
        let advice = "name another folder, or move that file away";
        return Finding::fail(subject, format!("{shown} is not a folder"), advice);
    }
    if !folder.exists() && maker != Maker::Lazaret {
        let advice = format!("make it: mkdir -p {shown}");
        return Finding::fail(subject, format!("the folder {shown} is not there"), advice);
    }
    let there = existing(folder);
    // What is in the way of a folder is not made away with.
    if !there.is_dir() {
        let advice = "name another folder, or move that file away";
        return Finding::fail(subject, format!("{} is not a folder", there.display()), advice);
    }
    if let Err(error) = access(&there, Access::WRITE_OK | Access::EXEC_OK) {
        let advice = format!("let the user who runs Lazaret write to {}", there.display());
        return Finding::fail(subject, format!("{shown} cannot be written to: {error}"), advice);
    }
    let seen = if folder.exists() { "can be written to" } else { "is not there yet and can be made" };
    Finding::ok(subject, format!("{shown} {seen}"))
}

/// Whether there is room where this folder is.
pub(super) fn room(subject: &str, folder: &Path) -> Finding {
    let folder = existing(folder);
    let free = match statvfs(&folder) {
        Ok(system) => system.f_bavail.saturating_mul(system.f_frsize),
        Err(error) => {
            let seen = format!("the room on {} is not known: {error}", folder.display());
            return Finding::warn(subject, seen, "see for yourself, as with df");
        }
    };
    judged(subject, free)
}

fn judged(subject: &str, free: u64) -> Finding {
    let seen = format!("{} MiB are free", free >> 20);
    // I9: a store that is full takes nothing, and the sources wait.
    let advice = "make room: a store that is full makes every source wait";
    match free {
        ..LEAST => Finding::fail(subject, seen, advice),
        LEAST..LITTLE => Finding::warn(subject, seen, advice),
        _ => Finding::ok(subject, seen),
    }
}

/// The folder, or the nearest one above it that is there.
fn existing(folder: &Path) -> PathBuf {
    let there = folder.ancestors().find(|above| !above.as_os_str().is_empty() && above.exists());
    there.map_or_else(|| PathBuf::from("."), Path::to_owned)
}

/// The folder in which a file is, or would be.
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
    fn too_little_room_is_found() {
        assert_eq!(judged("disk", LEAST - 1).health, Health::Fail);
        assert_eq!(judged("disk", LEAST).health, Health::Warn);
        assert_eq!(judged("disk", LITTLE).health, Health::Ok);
    }

    #[test]
    fn a_folder_that_is_a_file_is_found_and_a_missing_one_is_no_trouble_for_who_makes_it() {
        let here = tempfile::tempdir().unwrap();
        let file = here.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(folder("f", &file, Maker::Lazaret).health, Health::Fail);
        assert_eq!(folder("f", &file.join("below"), Maker::Lazaret).health, Health::Fail);
        let found = folder("f", &here.path().join("a/b"), Maker::Lazaret);
        assert_eq!(found.health, Health::Ok, "{found}");
        assert!(!here.path().join("a").exists(), "looking makes nothing");
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn a_folder_that_nobody_makes_must_be_there() {
        let here = tempfile::tempdir().unwrap();
        let missing = here.path().join("a/b");
        let found = folder("f", &missing, Maker::Person);
        assert_eq!(found.health, Health::Fail, "{found}");
        assert!(found.advice.unwrap().contains("mkdir -p"));
        std::fs::create_dir_all(&missing).unwrap();
        assert_eq!(folder("f", &missing, Maker::Person).health, Health::Ok);
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn a_file_without_a_folder_is_here() {
        assert_eq!(of_file(Path::new("lazaret.db")), Path::new("."));
        assert_eq!(of_file(Path::new("a/lazaret.db")), Path::new("a"));
    }
}
