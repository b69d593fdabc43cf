//! The schedules for writing positions, renewing leases, and reopening failed streams.

use std::time::Duration;

/// The schedule for writing positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// The number of settled events after which the position is written, at least one.
    pub every: u32,
    /// The maximum time until a settled position is written.
    pub interval: Duration,
    /// The time without events after which the position that the server certifies is written, so that it
    /// does not fall out of the oplog. Zero means never.
    pub idle_heartbeat: Duration,
}

impl Default for CheckpointOptions {
    /// Returns the defaults: every event, 5 s, 5 min.
    fn default() -> Self {
        Self { every: 1, interval: Duration::from_secs(5), idle_heartbeat: Duration::from_secs(300) }
    }
}

/// The timing of the lease under which an instance reads.
///
/// A failed renewal is repeated after half a second, then after longer pauses of at most 2 s. An
/// unanswered renewal is repeated concurrently, so that three fit between `renew` and the margin. If the
/// lease is in a MongoDB store, leave 12 s between these two. The election of a primary may take that
/// long, and no lease is renewed in the meantime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseOptions {
    /// How long a lease lasts without renewal.
    pub ttl: Duration,
    /// The interval between renewals.
    pub renew: Duration,
    /// How long before the end of the lease the holder stops if renewals fail.
    pub margin: Duration,
    /// The interval at which an instance without the lease tries to get it.
    pub standby: Duration,
}

impl Default for LeaseOptions {
    /// Returns the defaults: 30 s, renewed every 8 s, given up 5 s before its end, tried every 5 s.
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(30),
            renew: Duration::from_secs(8),
            margin: Duration::from_secs(5),
            standby: Duration::from_secs(5),
        }
    }
}

/// The schedule for reopening a failed stream.
///
/// The delays grow with the number of failures since the stream last made progress. Progress is an event
/// that was read, or a later position that the server certified. A successful connection alone is not
/// progress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RestartPolicy {
    /// The maximum number of restarts without progress. 0 means no limit.
    pub max_attempts: u32,
    /// The delay before the first restart.
    pub initial_delay: Duration,
    /// The factor between delays.
    pub multiplier: f64,
    /// The maximum delay.
    pub max_delay: Duration,
}

impl Default for RestartPolicy {
    /// Returns the defaults: no limit, from 1 s to 60 s, doubling.
    fn default() -> Self {
        Self {
            max_attempts: 0,
            initial_delay: Duration::from_secs(1),
            multiplier: 2.0,
            max_delay: Duration::from_secs(60),
        }
    }
}

impl RestartPolicy {
    /// Returns the delay before this restart, counted from 1. Returns `None` beyond the limit.
    pub fn delay(&self, attempt: u32) -> Option<Duration> {
        if self.max_attempts > 0 && attempt > self.max_attempts {
            return None;
        }
        let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let seconds = self.initial_delay.as_secs_f64() * self.multiplier.powi(exponent);
        Some(Duration::try_from_secs_f64(seconds).map_or(self.max_delay, |delay| delay.min(self.max_delay)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_delays_grow_up_to_a_limit() {
        let policy = RestartPolicy { max_attempts: 9, ..RestartPolicy::default() };
        let seconds: Vec<_> = (1..=9).map(|n| policy.delay(n).unwrap().as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(policy.delay(10), None);
        assert_eq!(RestartPolicy::default().delay(u32::MAX), Some(Duration::from_secs(60)));
    }
}
