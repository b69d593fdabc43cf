//! The folder in which everything of a demo lies, and what is where.

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

    /// The orders, one a line; the consumer follows it.
    pub(crate) fn orders(&self) -> PathBuf {
        self.root.join("orders.jsonl")
    }

    /// The embedded store.
    pub(crate) fn store(&self) -> PathBuf {
        self.root.join("lazaret.db")
    }

    /// Which orders are being handled, for when the process dies.
    pub(crate) fn flight(&self) -> PathBuf {
        self.root.join("orders.flight")
    }

    /// What the handler saw.
    pub(crate) fn journal(&self) -> PathBuf {
        self.root.join("journal.jsonl")
    }

    /// What the worker had to say.
    pub(crate) fn log(&self) -> PathBuf {
        self.root.join("worker.log")
    }

    /// Is there while the bank does not answer. A file, so that it outlives the worker, as a bank does.
    pub(crate) fn outage(&self) -> PathBuf {
        self.root.join("harbour-bank-is-down")
    }

    /// Breaks the bank, or repairs it.
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
