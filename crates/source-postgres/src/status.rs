//! The status of an outbox, for monitoring.

use jiff::Timestamp;

/// The status of an outbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutboxStatus {
    /// What the source does.
    pub state: OutboxState,
    /// The last id that was drawn. Ids of transactions that were rolled back count.
    pub last_id: Option<u64>,
    /// The last id up to which rows were read.
    pub read_up_to: Option<u64>,
    /// When the server last answered.
    pub answered_at: Option<Timestamp>,
    /// The sessions whose open transactions rows wait for. A prepared transaction has none, and counts as 0.
    pub waits_for: Vec<i32>,
    /// The number of rows that were read.
    pub rows: u64,
    /// The number of times that ids began to stand for other rows: the table was created again, its sequence was set back, or the
    /// server lost transactions.
    pub incarnation: u32,
}

/// What an outbox does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutboxState {
    /// It connects, or reads its position.
    #[default]
    Starting,
    /// Another session reads the outbox.
    Standby {
        /// The process id of that session on the server.
        leader: Option<i32>,
    },
    /// It reads.
    Reading,
    /// The connection or the store failed, and is tried again.
    Restarting {
        /// The error.
        error: String,
    },
    /// It failed for good.
    Failed {
        /// The error.
        error: String,
    },
    /// It was closed.
    Closed,
}
