//! When positions are written, leases renewed, and failed streams opened again.

use std::time::Duration;

/// When positions are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// The number of settled events after which the position is written, at least one.
    pub every: u32,
    /// The time after which a settled position is written in any case.
    pub interval: Duration,
    /// The time without events after which the position that the server certifies is written, so that it does not fall out of
    /// the oplog. Zero: never.
    pub idle_heartbeat: Duration,
}

impl Default for CheckpointOptions {
    /// Every event, 5 s, 5 min.
    fn default() -> Self {
        Self { every: 1, interval: Duration::from_secs(5), idle_heartbeat: Duration::from_secs(300) }
    }
}

/// The times of the lease under which an instance reads.
///
/// A renewal that fails is repeated after half a second, then after longer pauses of at most 2 s. One that is not answered is repeated beside
/// it, so that three fit between `renew` and the margin. Leave 12 s between these two if the lease is in a MongoDB store: so long may the
/// election of a primary take, and no lease is renewed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseOptions {
    /// How long a lease lasts without renewal.
    pub ttl: Duration,
    /// How often it is renewed.
    pub renew: Duration,
    /// How long before its end the holder stops when renewals fail.
    pub margin: Duration,
    /// How often an instance without the lease tries to get it.
    pub standby: Duration,
}

impl Default for LeaseOptions {
    /// 30 s, renewed every 8 s, given up 5 s before its end, tried every 5 s.
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(30),
            renew: Duration::from_secs(8),
            margin: Duration::from_secs(5),
            standby: Duration::from_secs(5),
        }
    }
}

/// When a failed stream is opened again.
///
/// The delays grow with the number of failures since the stream last made progress: an event that was read, or a later position
/// that the server certified. A successful connection alone is no progress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RestartPolicy {
    /// The number of restarts without progress; 0 for no limit.
    pub max_attempts: u32,
    /// The delay before the first restart.
    pub initial_delay: Duration,
    /// The factor between delays.
    pub multiplier: f64,
    /// The longest delay.
    pub max_delay: Duration,
}

impl Default for RestartPolicy {
    /// No limit, from 1 s to 60 s, doubling.
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
    /// The delay before this restart, from 1; `None` when the limit is passed.
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
