//! Options of an inbox.

use std::time::Duration;

/// Options of an inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxOptions {
    /// How long the id of a consumed message is kept. A message with the same id within that time is
    /// a duplicate.
    pub window: Duration,
    /// Maximum number of unconsumed messages.
    pub max_messages: u64,
    /// Maximum total size of unconsumed messages, in bytes. A larger single message is never taken.
    pub max_bytes: u64,
    /// Batch size of the source, at least one.
    pub batch: usize,
    /// How often the source polls for posts of other processes. Posts of this process wake it at once.
    pub poll: Duration,
}

impl Default for InboxOptions {
    /// Ids for seven days, a million messages, 4 GiB; batches of 512 messages, two polls a second.
    fn default() -> Self {
        Self {
            window: Duration::from_secs(7 * 24 * 3600),
            max_messages: 1_000_000,
            max_bytes: 4 * 1024 * 1024 * 1024,
            batch: 512,
            poll: Duration::from_millis(500),
        }
    }
}
