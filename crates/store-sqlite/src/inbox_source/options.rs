//! How an inbox behaves.

use std::time::Duration;

/// How an inbox behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxOptions {
    /// How long the id of a message is remembered after the message was consumed. The same id posted within that time is
    /// not taken again.
    pub window: Duration,
    /// How many messages may wait to be consumed.
    pub max_messages: u64,
    /// How many bytes they may have, all in all. A single message with more is never taken.
    pub max_bytes: u64,
    /// How many messages the source gives at once, at least one.
    pub batch: usize,
    /// How often the source looks for what other processes have posted. What this process posts, it sees at once.
    pub poll: Duration,
}

impl Default for InboxOptions {
    /// Ids for seven days, a million messages, 4 GiB; 512 messages at once, two looks a second.
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
