//! The temporary folder of a demo and the files in it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The files of a demo.
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

    /// The orders, one per line; the consumer follows this file.
    pub(crate) fn orders(&self) -> PathBuf {
        self.root.join("orders.jsonl")
    }

    /// The embedded store.
    pub(crate) fn store(&self) -> PathBuf {
        self.root.join("lazaret.db")
    }

    /// The flight recorder: orders in progress, for crash detection.
    pub(crate) fn flight(&self) -> PathBuf {
        self.root.join("orders.flight")
    }

    /// The journal of the handler.
    pub(crate) fn journal(&self) -> PathBuf {
        self.root.join("journal.jsonl")
    }

    /// The log of the worker.
    pub(crate) fn log(&self) -> PathBuf {
        self.root.join("worker.log")
    }

    /// Exists while the bank is down. A file, so that the outage outlives the worker.
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
