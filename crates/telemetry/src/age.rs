//! The age of timestamps.

use std::time::Duration;

use lazaret_core::Timestamp;

/// The time since then; zero when the local clock is behind the store's.
pub(crate) fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO)
}
