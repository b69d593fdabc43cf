//! The temporary folder of a demo and the files in it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folder of a demo, with the paths of its files.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    root: PathBuf,
}

impl Folder {
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of the orders, one per line. The consumer follows this file.
    pub(crate) fn orders(&self) -> PathBuf {
        self.root.join("orders.jsonl")
    }

    /// Returns the path of the embedded store.
    pub(crate) fn store(&self) -> PathBuf {
        self.root.join("lazaret.db")
    }

    /// Returns the path of the flight recorder, which holds the orders in progress for crash detection.
    pub(crate) fn flight(&self) -> PathBuf {
        self.root.join("orders.flight")
    }

    /// Returns the path of the handler's journal.
    pub(crate) fn journal(&self) -> PathBuf {
        self.root.join("journal.jsonl")
    }

    /// Returns the path of the worker's log.
    pub(crate) fn log(&self) -> PathBuf {
        self.root.join("worker.log")
    }

    /// Returns the path of the file that exists while the bank is down. As a file, the outage outlives
    /// the worker.
    pub(crate) fn outage(&self) -> PathBuf {
        self.root.join("harbour-bank-is-down")
    }

    /// Starts or ends the outage of the bank.
    pub(crate) fn set_outage(&self, down: bool) -> io::Result<()> {
        if down {
            return fs::write(self.outage(), "");
        }
        match fs::remove_file(self.outage()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    pub(crate) fn is_outage(&self) -> bool {
        self.outage().exists()
    }
}
