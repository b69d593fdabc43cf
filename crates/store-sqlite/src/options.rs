//! How a store is opened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::{Clock, SystemClock};

/// What an answer promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// What was answered survives a power cut: each group of writes is forced to the disk. The default.
    #[default]
    Full,
    /// What was answered survives the death of the process, not that of the machine: after a power cut the newest
    /// writes may be missing. **Breaks "no loss" (I1) on such a machine**; meant for tests.
    Normal,
}

/// How a [`SqliteStore`](crate::SqliteStore) works.
///
/// ```
/// use lazaret_store_sqlite::{Durability, Options};
/// let options = Options { readers: 4, ..Options::default() };
/// assert_eq!(options.durability, Durability::Full);
/// ```
#[derive(Clone)]
pub struct Options {
    /// The store's clock, which decides about leases and due times.
    pub clock: Arc<dyn Clock>,
    /// How many connections read side by side. At least one.
    pub readers: usize,
    /// What an answer promises.
    pub durability: Durability,
    /// How long to wait for another process that is writing, before the answer is `Unavailable`.
    pub busy_timeout: Duration,
    /// How many calls may wait for the writer; further ones wait before they get in line (I7).
    pub waiting: usize,
    /// How much memory each connection may use for pages, in KiB.
    pub cache_kib: u32,
    /// How large the file may grow, in pages of 4 KiB; what does not fit is refused as `Full`, and nothing is lost (I9).
    /// `None` leaves it to the disk.
    pub max_pages: Option<u32>,
    /// From how many letters and notes at a time they are made durable in the redo log first, and reach the database
    /// together with many others a little later. Fewer go to the database at once. 0 means always, `usize::MAX` never.
    pub redo_from: usize,
    /// How long letters may stand in the redo log alone. Whoever opens the file as a store sees them anyway; this is for
    /// other tools. When nobody asks for anything, they reach the database after a twentieth of it.
    pub redo_time: Duration,
}

impl Default for Options {
    /// The machine's clock, two readers, full durability, five seconds for others.
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            readers: 2,
            durability: Durability::Full,
            busy_timeout: Duration::from_secs(5),
            waiting: 1024,
            // A commit walks over the cache, so a larger one makes small groups dearer; the system caches the rest.
            cache_kib: 16 * 1024,
            max_pages: None,
            // Below it, the second write costs more than the first one saves.
            redo_from: 16,
            redo_time: Duration::from_millis(100),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("readers", &self.readers)
            .field("durability", &self.durability)
            .field("busy_timeout", &self.busy_timeout)
            .field("waiting", &self.waiting)
            .field("cache_kib", &self.cache_kib)
            .field("max_pages", &self.max_pages)
            .field("redo_from", &self.redo_from)
            .field("redo_time", &self.redo_time)
            .finish_non_exhaustive()
    }
}
