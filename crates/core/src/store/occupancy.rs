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
    /// Bytes of [`free`](Self::free) at most that its logs still write to other files.
    pub pending: u64,
    /// Bytes that are free in its files, and that are written before the files grow.
    pub reusable: u64,
}

impl Occupancy {
    /// Bytes that may still be written.
    pub fn available(&self) -> Option<u64> {
        self.free.map(|free| free.saturating_sub(self.pending).saturating_add(self.reusable))
    }
}
