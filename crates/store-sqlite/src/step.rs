//! The context of a writer's request.

use rusqlite::Connection;

use crate::write_cache::WriteCache;

/// The context of a request inside a transaction.
pub(crate) struct Step<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) cache: &'a mut WriteCache,
    /// The store's time, in nanoseconds since 1970.
    pub(crate) now: i64,
}
