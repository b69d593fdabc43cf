//! Options of an inbox.

use std::time::Duration;

/// Options of an inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxOptions {
    /// How long the id of a consumed message is kept. A message with the same id within that time is a duplicate.
    pub window: Duration,
    /// Maximum number of unconsumed messages.
    pub max_messages: u64,
    /// Maximum total size of unconsumed messages, in bytes. A larger single message is never taken.
    pub max_bytes: u64,
    /// Batch size of the source, at least one.
    pub batch: usize,
    /// How often the source looks for posts if no notification tells about them, and an instance that stands by for a lease that
    /// has ended.
    pub poll: Duration,
    /// How long an instance may read the inbox without renewing its lease. Another one takes over after that.
    pub lease: Duration,
    /// The name of this instance in the lease, for people.
    pub instance: String,
}

impl Default for InboxOptions {
    /// Ids for seven days, a million messages, 4 GiB; batches of 512 messages, a poll per second, a lease of 30 seconds.
    fn default() -> Self {
        Self {
            window: Duration::from_secs(7 * 24 * 3600),
            max_messages: 1_000_000,
            max_bytes: 4 * 1024 * 1024 * 1024,
            batch: 512,
            poll: Duration::from_secs(1),
            lease: Duration::from_secs(30),
            instance: format!("process-{}", std::process::id()),
        }
    }
}
