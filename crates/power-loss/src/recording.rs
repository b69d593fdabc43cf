//! The interface of a recording.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

use crate::log::Log;
use crate::{interpose, session};

/// Tests of one process record one after the other.
static TURN: Mutex<()> = Mutex::new(());

/// A running recording of one folder. Other recordings wait until it is finished or dropped.
#[derive(Debug)]
pub struct Recording {
    _turn: MutexGuard<'static, ()>,
}

impl Recording {
    /// Starts to record a folder. The files that it holds now are taken as synced. Folders in it are not recorded.
    pub fn start(folder: &Path) -> Self {
        Self::start_mapped(folder, &[])
    }

    /// Starts to record a folder with files that the program maps to memory and changes there. These changes are noted with the next
    /// mark or call on the file.
    pub fn start_mapped(folder: &Path, mapped: &[&str]) -> Self {
        assert!(interpose::addresses().iter().all(|address| *address != 0));
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        session::start(folder, mapped.iter().map(|name| (*name).to_owned()).collect());
        Self { _turn: turn }
    }

    /// Marks the present, and returns its cut: the number of events before it.
    pub fn mark(&self) -> usize {
        session::mark()
    }

    /// Ends the recording.
    ///
    /// # Panics
    /// If a file differs from the record: then a write was not seen, and the record is worth nothing.
    pub fn finish(self) -> Log {
        session::stop().expect("the recording runs")
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        session::abandon();
    }
}

/// A new folder for recorded or rebuilt files, in memory if possible: what is on a disk does not matter to a recording.
///
/// # Panics
/// If it cannot be created.
pub fn scratch() -> TempDir {
    let in_memory = tempfile::Builder::new().prefix("lazaret-power-loss-").tempdir_in("/dev/shm");
    in_memory.or_else(|_| tempfile::tempdir()).expect("a folder can be created")
}
