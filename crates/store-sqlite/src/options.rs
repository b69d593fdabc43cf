//! Options of a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::{Clock, SystemClock};

/// The durability of acknowledged writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Acknowledged writes survive a power cut: each group of writes is synced. The default.
    #[default]
    Full,
    /// Acknowledged writes survive a crash of the process, but not of the machine: after a power cut the newest
    /// writes may be missing. **Breaks "no loss" (I1) on such a machine**; meant for tests.
    Normal,
}

/// Options of a [`SqliteStore`](crate::SqliteStore).
///
/// ```
/// use lazaret_store_sqlite::{Durability, Options};
/// let options = Options { readers: 4, ..Options::default() };
/// assert_eq!(options.durability, Durability::Full);
/// ```
#[derive(Clone)]
pub struct Options {
    /// The store's clock, which determines the end of leases and due times.
    pub clock: Arc<dyn Clock>,
    /// Number of reader connections. At least one. Queries that may examine many letters use all but one of them, so that reads of single
    /// letters do not wait for them; a single one is shared by all. There is one more for values, such as positions and what a health check
    /// asks for.
    pub readers: usize,
    /// The durability of acknowledged writes.
    pub durability: Durability,
    /// How long to wait for the write lock of another process, before a call fails as `Unavailable`.
    pub busy_timeout: Duration,
    /// How long a query may take, before it is interrupted and fails as `Unavailable`. A query whose caller has stopped waiting
    /// is interrupted at once.
    pub query_timeout: Duration,
    /// Capacity of the writer's queue; further calls wait for a slot (I7).
    pub waiting: usize,
    /// Page cache of each connection, in KiB.
    pub cache_kib: u32,
    /// Maximum size of the file, in pages of 4 KiB; writes beyond it are refused as `Full`, and nothing is lost (I9).
    /// `None` for no limit.
    pub max_pages: Option<u32>,
    /// Minimum number of letters and notes, in a group or in groups that follow each other closely, to write them to the redo log
    /// first, and to the database with a later commit. Fewer are committed at once. 0 means always, `usize::MAX` never.
    pub redo_from: usize,
    /// How long letters may be in the redo log only. Every store that opens the file sees them anyway; this is for
    /// other tools. Without requests, they are committed after a twentieth of it.
    pub redo_time: Duration,
    /// How long after the last erasure the file is rewritten, so that several erasures share a rewrite; at most an hour. Writes wait
    /// during the rewrite.
    pub rewrite_after: Duration,
}

impl Default for Options {
    /// The system clock, three readers, full durability, a busy timeout of five seconds, a query timeout of a minute, a rewrite five seconds after an erasure.
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            readers: 3,
            durability: Durability::Full,
            busy_timeout: Duration::from_secs(5),
            query_timeout: Duration::from_secs(60),
            waiting: 1024,
            // A commit scans the cache, so a larger one makes small groups slower; the system caches the rest.
            cache_kib: 16 * 1024,
            max_pages: None,
            // Below it, the second write costs more than the first one saves.
            redo_from: 16,
            redo_time: Duration::from_millis(100),
            rewrite_after: Duration::from_secs(5),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("readers", &self.readers)
            .field("durability", &self.durability)
            .field("busy_timeout", &self.busy_timeout)
            .field("query_timeout", &self.query_timeout)
            .field("waiting", &self.waiting)
            .field("cache_kib", &self.cache_kib)
            .field("max_pages", &self.max_pages)
            .field("redo_from", &self.redo_from)
            .field("redo_time", &self.redo_time)
            .field("rewrite_after", &self.rewrite_after)
            .finish_non_exhaustive()
    }
}
