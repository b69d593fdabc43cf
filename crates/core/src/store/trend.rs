//! Hourly counts of the letters that entered a group.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::triage::{TREND_BUCKET_SECONDS, TREND_BUCKETS};

/// Counts events in time buckets and keeps the last [`TREND_BUCKETS`] of them; older ones are dropped.
///
/// ```
/// use lazaret_core::Timestamp;
/// use lazaret_core::store::Trend;
/// let mut trend = Trend::default();
/// let noon: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
/// trend.record(noon);
/// let two: Timestamp = "2026-01-01T14:59:59Z".parse().unwrap();
/// trend.record(two);
/// assert_eq!(trend.at(two)[21..], [1, 0, 1]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trend {
    /// The number of the last bucket since the Unix epoch.
    last: i64,
    /// The count of each bucket, the last one at the end.
    counts: [u64; TREND_BUCKETS],
}

fn bucket(time: Timestamp) -> i64 {
    time.as_second().div_euclid(TREND_BUCKET_SECONDS)
}

impl Trend {
    /// Counts one event. Events before the oldest kept bucket are ignored.
    pub fn record(&mut self, at: Timestamp) {
        self.record_many(at, 1);
    }

    /// Counts events of the same time.
    pub(crate) fn record_many(&mut self, at: Timestamp, events: u64) {
        let bucket = bucket(at);
        if bucket > self.last && events > 0 {
            *self = Self { last: bucket, counts: self.at(at) };
        }
        let age = usize::try_from(self.last - bucket).unwrap_or(usize::MAX);
        if let Some(count) = self.counts.iter_mut().rev().nth(age) {
            *count += events;
        }
    }

    /// The buckets at this time, the current one last.
    pub fn at(&self, now: Timestamp) -> [u64; TREND_BUCKETS] {
        // A clock that was set back does not restore dropped buckets.
        let passed = usize::try_from(bucket(now).saturating_sub(self.last).max(0)).unwrap_or(usize::MAX);
        let mut counts = [0; TREND_BUCKETS];
        for (count, kept) in counts.iter_mut().zip(self.counts.iter().skip(passed)) {
            *count = *kept;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hour(hour: i64) -> Timestamp {
        Timestamp::from_second(hour * TREND_BUCKET_SECONDS + 1).unwrap()
    }

    #[test]
    fn a_day_is_kept_and_older_buckets_are_dropped() {
        let mut trend = Trend::default();
        for at in [100, 100, 101, 123] {
            trend.record(hour(at));
        }
        let mut expected = [0; TREND_BUCKETS];
        (expected[0], expected[1], expected[23]) = (2, 1, 1);
        assert_eq!(trend.at(hour(123)), expected);
        assert_eq!(trend.at(hour(124))[..2], [1, 0]);
        assert_eq!(trend.at(hour(124))[22..], [1, 0]);
        assert_eq!(trend.at(hour(1000)), [0; TREND_BUCKETS]);
        trend.record(hour(1000));
        assert_eq!(trend.at(hour(1000))[22..], [0, 1]);
    }

    #[test]
    fn after_the_clock_was_set_back_events_count_in_their_bucket_or_are_ignored() {
        let mut trend = Trend::default();
        trend.record(hour(200));
        trend.record(hour(198));
        trend.record(hour(176));
        trend.record(Timestamp::MIN);
        assert_eq!(trend.at(hour(200)).iter().sum::<u64>(), 2);
        assert_eq!(trend.at(hour(198))[21..], [1, 0, 1]);
        assert_eq!(trend.at(Timestamp::MAX), [0; TREND_BUCKETS]);
    }
}
