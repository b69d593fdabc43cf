//! The room that a store takes.

/// The room that a store takes, and what is left to it. `None` for what it does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Bytes that it takes, with its logs and indexes.
    pub used: Option<u64>,
    /// Bytes that are free on its file system.
    pub free: Option<u64>,
    /// The size of its file system in bytes.
    pub size: Option<u64>,
}
