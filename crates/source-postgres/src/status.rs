//! The status of an outbox, for monitoring.

use jiff::Timestamp;

/// The status of an outbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutboxStatus {
    /// The current activity of the source.
    pub state: OutboxState,
    /// The last id that was drawn. Ids of rolled-back transactions count.
    pub last_id: Option<u64>,
    /// The last id up to which rows were read.
    pub read_up_to: Option<u64>,
    /// When the server last answered.
    pub answered_at: Option<Timestamp>,
    /// The sessions whose open transactions rows wait for. A prepared transaction has no session and
    /// counts as 0.
    pub waits_for: Vec<i32>,
    /// The number of rows read.
    pub rows: u64,
    /// The number of times that ids began to refer to other rows, because the table was recreated, its
    /// sequence was set back, or the server lost transactions.
    pub incarnation: u32,
}

/// The activity of an outbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutboxState {
    /// Connecting, or reading the position.
    #[default]
    Starting,
    /// Waiting while another session reads the outbox.
    Standby {
        /// The process id of that session on the server.
        leader: Option<i32>,
    },
    /// Reading.
    Reading,
    /// Retrying after the connection or the store failed.
    Restarting {
        /// The error.
        error: String,
    },
    /// Failed permanently.
    Failed {
        /// The error.
        error: String,
    },
    /// Closed.
    Closed,
}
