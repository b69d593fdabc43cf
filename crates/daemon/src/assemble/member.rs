//! Ids that belong to one process at a time: of static members of a consumer group, and of transactional producers.
//!
//! Two members or producers with one id fence each other, and both the store and the machine may be shared by several processes.
//! So an id is used only by the process that holds the lock of a file. The kernel releases the lock when the process ends,
//! however it ends, and the next process is known by the same id.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// How many processes of one machine have stable ids for the same purpose.
const SLOTS: usize = 64;

/// The locks that this process holds, until it ends. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnIds {
    held: Arc<Mutex<BTreeMap<PathBuf, File>>>,
}

impl OwnIds {
    /// Returns whether this process, alone, holds the lock of this file. It is created if it is missing.
    pub(crate) fn claim(&self, path: &Path) -> bool {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.contains_key(path) {
            return true;
        }
        let opened = OpenOptions::new().create(true).truncate(false).write(true).open(path);
        let locked = opened.and_then(|file| Ok(file.try_lock().map(|()| file)?));
        match locked {
            Ok(file) => _ = held.insert(path.to_owned(), file),
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "id not claimed");
                return false;
            }
        }
        true
    }

    /// Claims the first free one of the files that are named like this with a number. Returns the number; `None` if all are
    /// in use.
    pub(crate) fn claim_slot(&self, path: &Path) -> Option<usize> {
        let name = |slot: &usize| {
            let mut name = path.as_os_str().to_owned();
            name.push(format!("-{slot}"));
            PathBuf::from(name)
        };
        // One that is free by now must not change the id of this process.
        let known = {
            let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            (0..SLOTS).find(|slot| held.contains_key(&name(slot)))
        };
        known.or_else(|| (0..SLOTS).find(|slot| self.claim(&name(slot))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_belongs_to_one_process_and_to_the_next_one_after_its_end() {
        // I6
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lazaret.db-member-shop");
        let (first, second) = (OwnIds::default(), OwnIds::default());
        assert!(first.claim(&path) && first.claim(&path), "it keeps the id over restarts of the consumer");
        assert!(!second.claim(&path));
        assert_eq!((first.claim_slot(&path), second.claim_slot(&path)), (Some(0), Some(1)));
        assert_eq!(first.claim_slot(&path), Some(0), "the slot is stable");
        drop(first);
        assert!(second.claim(&path));
        assert_eq!(second.claim_slot(&path), Some(1));
        assert!(!second.claim(&folder.path().join("missing").join("x")), "without a lock there is no id");
    }
}
